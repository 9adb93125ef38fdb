"""How many messages lie before each stream in log mode: counted beside the loop, a piece of the log at a time.

LSNs say how far a reader is behind without reading anything; how many of those are messages of its topic only reading
tells.  So it is counted while somebody asks (`look`: metrics and lists), each piece once, and again the one in which
the reader is.  A stream's filter is not asked: it would cost as much as the reader's own work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.history.history import History, Limits, names_wanted
from penstock.records.dataclass import dataclass
from penstock.wire.flight.commands import Replay

if TYPE_CHECKING:
    from penstock.core.state.streams import Asked
    from penstock.server.base.runtime import Off, Runtime


PIECE_ROWS = 100_000
"""About how many records are looked at in one go."""

PIECES_MOST = 200
"""Pieces after one question, of all streams; the next question goes on."""


@dataclass
class Piece:
    """A count of messages in [start, end)."""

    start: int
    end: int
    messages: int


class Count:
    """What is known of one stream: pieces side by side from `at` to `upto`."""

    def __init__(self, asked: Asked, at: int) -> None:
        self.asked = asked
        self.at = self.upto = at
        self.pieces = deque[Piece]()
        self.total = 0

    def move(self, at: int) -> None:
        """The reader has come to this LSN."""
        while self.pieces and self.pieces[0].end <= at:
            self.total -= self.pieces.popleft().messages
        self.at = at
        self.upto = max(self.upto, at)

    @property
    def torn(self) -> Piece | None:
        """The piece that the reader is in the middle of."""
        return self.pieces[0] if self.pieces and self.pieces[0].start < self.at else None

    def found(self, start: int, end: int, messages: int) -> None:
        """Add what was counted: the rest of the torn piece, or what follows the last."""
        torn = self.torn
        if torn is not None and torn.end == end and torn.start < start:
            self.total += messages - torn.messages
            torn.start, torn.messages = start, messages
        elif start == self.upto:
            self.total += messages
            self.upto = end
            if messages:
                self.pieces.append(Piece(start, end, messages))


class Ahead:
    """The counts of one server.  All methods belong to the loop, but `_read`."""

    def __init__(self, runtime: Runtime, walked: Walked) -> None:
        self._runtime = runtime
        self._walked = walked
        self._counts: dict[str, Count] = {}
        self._left = 0  # pieces that may be looked at until somebody asks again
        self._busy = False
        self.off: Off | None = None  # runs work in a thread; None: there are none, and nothing is counted

    def look(self) -> dict[str, int]:
        """Messages before each stream in log mode, where that is known; what is not is counted for the next time."""
        found: dict[str, int] = {}
        if self.off is None:
            return found
        states = self._runtime.core.streams.states
        for name in self._counts.keys() - states.keys():
            del self._counts[name]
        for name, state in states.items():
            if state.mode != "log" or state.position is None or not state.asked:
                continue
            count = self._counts.get(name)
            at = max(self._walked.begin(name, state.position), self._runtime.past.first_lsn)
            if count is None or count.asked != state.asked or at < count.at:
                count = self._counts[name] = Count(state.asked, at)
            count.move(at)
            if count.upto > self._runtime.log.durable:
                found[name] = count.total
            elif count.upto > at and self._runtime.log.durable - count.upto < PIECE_ROWS:
                found[name] = count.total  # what came in the last moment is not in it
        self._left = PIECES_MOST
        self._go_on()
        return found

    def _go_on(self) -> None:
        """Hand the next piece to a thread."""
        if self._busy or self.off is None or not self._left:
            return
        durable = self._runtime.log.durable
        for name, count in self._counts.items():
            torn = count.torn
            if torn is None and count.upto > durable:
                continue
            start, end = (count.at, torn.end) if torn is not None else (count.upto, durable + 1)
            self._left -= 1
            self._busy = True
            work: Callable[[], tuple[int, int] | None] = partial(self._read, count.asked, start, end)
            self.off(work, partial(self._done, name, count, start))
            return

    def _read(self, asked: Asked, start: int, end: int) -> tuple[int, int] | None:
        """In a thread: where the piece ends, and its messages.  None when it cannot be read."""
        fields: dict[str, Any] = {"topic": None, **{key: one for key, one in asked.items() if key != "filter"}}
        command = Replay(**fields)
        history = History(self._runtime.past, lambda: False)
        try:
            rows = 0
            for one in self._runtime.past.spans(start, end, names_wanted(command)):
                rows += one.rows
                if rows >= PIECE_ROWS:
                    end = max(one.end, start + 1)
                    break
            return end, history.measure(command, start, end, Limits()).rows
        except (PenstockError, OSError):
            return None  # retention has passed it, or it is damaged: whoever reads it is told

    def _done(self, name: str, count: Count, start: int, read: tuple[int, int] | None) -> None:
        self._busy = False
        if read is None:
            self._counts.pop(name, None)
            self._left = 0
        elif self._counts.get(name) is count:
            count.found(start, *read)
        self._go_on()


class Walked:
    """How far readers in log mode have looked, when they were level, and how much is before them.

    Of this process alone, and of the loop.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.ahead = Ahead(runtime, self)
        self._upto = dict[str, tuple[int, int]]()  # start of the question, up to where it found nothing
        self._level = dict[
            str, int
        ]()  # microseconds since the epoch: it had everything then, or up to a message of then

    def looked(self, name: str, start: int, upto: int) -> None:
        """Note that nothing for this stream lies in [start, upto)."""
        self._upto[name] = (start, upto)

    def begin(self, name: str, start: int) -> int:
        """From which LSN on to look for what follows `start`."""
        asked, upto = self._upto.get(name, (start, start))
        return upto if asked == start else start

    def level(self, name: str, time: int) -> None:
        """Nothing older than `time` is left for it."""
        self._level[name] = max(time, self._level.get(name, 0))

    def since(self, name: str) -> int | None:
        return self._level.get(name)
