"""Commands of sinks: a query's batch becomes visible once, in one group or, decided first, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from penstock.core.commands.parts import Parts
from penstock.core.publishing.whole import Whole
from penstock.core.sow.cutting import Cut
from penstock.core.sow.holding import Sow
from penstock.core.state.decided import DecidedPart, DecidedState
from penstock.core.streams.sinks import Batch, Committed, Owner, Remembered, Settled, kept
from penstock.records.chunks import Now
from penstock.records.entries import Publishes

Drop: TypeAlias = "tuple[Sow, Cut]"
"""Records of a topic that go with a commit."""


class SinkCommands(Parts):
    """What a sink asks for."""

    def sink_commit(
        self,
        now: Now,
        query: str,
        batch: int,
        outputs: Sequence[Publishes],
        settle: Sequence[Settled] = (),
        lineage: Mapping[str, object] | None = None,
        *,
        name: str = "",
        once: bool = False,
        mandatory: bool = False,
        skip_late: bool = False,
        drop: Drop | None = None,
        owner: Owner = kept,
    ) -> Committed:
        """Make the outputs of a query's batch visible, once.  See `Sinks.commit` and `Batch`."""
        before = self._dropping(drop)
        asked = Batch(query, batch, settle, name, once, mandatory, skip_late, lineage, owner, before)
        return self._sinks.commit(self._at(now), asked, outputs)

    def sink_whole(self, query: str, batch: int, *, mandatory: bool = False) -> Whole:
        """For looking at the rows of a batch that will be decided, some at a time."""
        return self._sinks.whole(Batch(query, batch, mandatory=mandatory))

    def sink_look(self, now: Now, whole: Whole, outputs: Sequence[Publishes]) -> None:
        """Look at the next rows of such a batch.  Errors as `Whole.look`."""
        now = self._at(now)
        for output in outputs:
            whole.look(now, output)

    def sink_asks(self, mandatory: bool = False) -> bool:
        """Whether rows could be refused at all for what they are or where they go."""
        return mandatory or bool(self._router.rejecting) or self._publisher.keyed is not None

    def sink_decide(
        self,
        now: Now,
        query: str,
        batch: int,
        parts: Sequence[DecidedPart],
        settle: Sequence[Settled] = (),
        lineage: Mapping[str, object] | None = None,
        *,
        name: str = "",
        once: bool = False,
        skip_late: bool = False,
        drop: Drop | None = None,
        owner: Owner = kept,
    ) -> Committed:
        """Commit a batch whose rows follow in chunks.  See `Sinks.decide`."""
        before = self._dropping(drop)
        asked = Batch(
            query, batch, settle, name, once, skip_late=skip_late, lineage=lineage, owner=owner, before=before
        )
        return self._sinks.decide(self._at(now), asked, parts)

    def _dropping(self, drop: Drop | None) -> Callable[[Now], object] | None:
        if drop is None:
            return None
        sow, cut = drop
        return lambda now: self._keyed.cut(sow, cut, "deleted")

    def sink_copy(self, now: Now, query: str, rows: int, outputs: Sequence[Publishes]) -> Committed:
        """The next chunk of a decided batch.  See `Sinks.copy`."""
        return self._sinks.copy(self._at(now), query, rows, outputs)

    def sink_state(self, query: str) -> int | None:
        """The highest committed batch of a query; None if it has none."""
        return self._sinks.known.batches.get(query)

    @property
    def sinks(self) -> Remembered:
        """All queries that are remembered."""
        return self._sinks.known

    @property
    def decided(self) -> Mapping[str, DecidedState]:
        """By query, the batches that are decided and not yet copied to their end."""
        return self._sinks.decided
