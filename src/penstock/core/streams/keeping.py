"""Streams that nobody reads: when they were read last, and when they let go of what they hold (`abandon_after`).

When a stream was read last is logged when it is opened and planned, and else only as often as `abandon_after` needs:
ten times while it lasts.  So a start knows it well enough, and time in which no server ran counts; after a start
readers have a while to come back first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.state.streams import StreamState
from penstock.records.chunks import Now
from penstock.records.kinds import Kind

MARKS = 10
"""How often it is logged, while `abandon_after` passes, that a stream is read."""

GRACE_US = 600_000_000
"""How long readers have after a start to come back, if `abandon_after` is not shorter."""


class Owner(Protocol):
    """The streams, as this file sees them."""

    @property
    def states(self) -> Mapping[str, StreamState]: ...


class Keeping:
    """When each stream was read last, and what is due because of it."""

    def __init__(self, outbox: Outbox[Effect], streams: Owner) -> None:
        self._outbox = outbox
        self._streams = streams
        self._seen = dict[str, int]()  # microseconds since the epoch, more exact than what is logged
        self.abandoned = list[str]()  # since somebody took them out, for the server to tell
        self._started = 0  # wall time of this process's start; 0: it has not been told

    def begin(self, now: Now) -> None:
        self._started = now.wall

    def read(self, now: Now, name: str, state: StreamState) -> None:
        """Somebody reads the stream now; logged where `abandon_after` needs it."""
        self._seen[name] = now.wall
        if state.abandoned or (state.abandon_after and now.wall - state.read >= state.abandon_after // MARKS):
            header = {"time": now.wall}
            self._outbox.record(Kind.STREAM_READ, name, header)
            state.fold(Kind.STREAM_READ, header)

    def last_read(self, name: str, state: StreamState) -> int:
        """Microseconds since the epoch; 0: it is not known."""
        return max(self._seen.get(name, 0), state.read)

    def due(self) -> int | None:
        """When the next stream is overdue: wall microseconds, None for never."""
        return min((self._end(name, one) for name, one in self._streams.states.items() if _watched(one)), default=None)

    def overdue(self, now: Now) -> list[str]:
        """Streams that let go now."""
        watched = [(name, one) for name, one in self._streams.states.items() if _watched(one)]
        return [name for name, one in watched if self._end(name, one) <= now.wall]

    def _end(self, name: str, state: StreamState) -> int:
        grace = self._started + min(GRACE_US, state.abandon_after)
        return max(self.last_read(name, state) + state.abandon_after, grace)


def _watched(state: StreamState) -> bool:
    return bool(state.abandon_after) and not state.released
