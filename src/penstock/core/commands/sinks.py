"""Commands of sinks: a query's batch becomes visible once, in one group or, decided first, in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.commands.parts import Parts
from penstock.core.state.decided import DecidedPart, DecidedState
from penstock.core.streams.sinks import Committed
from penstock.records.chunks import Now
from penstock.records.entries import Publishes


class SinkCommands(Parts):
    """What a sink asks for."""

    def sink_commit(
        self,
        now: Now,
        query: str,
        batch: int,
        outputs: Sequence[Publishes],
        settle: tuple[str, int, int] | None = None,
        lineage: Mapping[str, object] | None = None,
    ) -> Committed:
        """Make the outputs of a query's batch visible, once.  See `Sinks.commit`."""
        return self._sinks.commit(self._at(now), query, batch, outputs, settle, lineage)

    def sink_decide(
        self,
        now: Now,
        query: str,
        batch: int,
        parts: Sequence[DecidedPart],
        settle: tuple[str, int, int] | None = None,
        lineage: Mapping[str, object] | None = None,
    ) -> Committed:
        """Commit a batch whose rows follow in chunks.  See `Sinks.decide`."""
        return self._sinks.decide(self._at(now), query, batch, parts, settle, lineage)

    def sink_copy(self, now: Now, query: str, rows: int, outputs: Sequence[Publishes]) -> Committed:
        """The next chunk of a decided batch.  See `Sinks.copy`."""
        return self._sinks.copy(self._at(now), query, rows, outputs)

    def sink_state(self, query: str) -> int | None:
        """The highest committed batch of a query; None if it has none."""
        return self._sinks.batches.get(query)

    @property
    def decided(self) -> Mapping[str, DecidedState]:
        """By query, the batches that are decided and not yet copied to their end."""
        return self._sinks.decided
