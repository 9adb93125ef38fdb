"""What the log says of one durable stream: how far it is, what it was promised, what it holds, and who reads it.

A stream of a queue holds messages; a stream of the log holds the log itself, from the first LSN that its reader may
ask for again.  Either lets go when it is released, by an operator or because nobody has read it for `abandon_after`;
whoever opens it again goes on where it was, and holds again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import ClassVar, cast

import numpy as np

from penstock.core.state.encoding import Shape
from penstock.core.state.lsns import combined
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind

Asked = dict[str, object]
"""What a stream in log mode reads: vhost, exchange, topic or pattern, filter; what is None is left out.

In mode changes vhost and queue."""


@dataclass(slots=True)
class Doubt:
    """What failures have taught about the batch of a stream: see `core.streams`."""

    tries: int = 0  # of the present batch, that came to nothing
    revision: int = 0  # how often the present batch was narrowed
    levels: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Innermost last: rows of a batch at most, for so many rows more."""
    poisoned: int = 0  # rows that were put aside since a batch with rows was settled

    last: tuple[str, int] | None = None  # the query, and its batch, that the batch settled last was

    def copy(self) -> Doubt:
        """One that changes by itself."""
        return Doubt(self.tries, self.revision, list(self.levels), self.poisoned, self.last)

    @property
    def rows_max(self) -> int:
        """Rows of the next batch at most."""
        return next((min(level) for level in reversed(self.levels) if level[1] > 0), 1 << 62)

    def planned(self, rows: int) -> None:
        """A new batch of so many rows."""
        self.tries = self.revision = 0
        while self.levels and self.levels[-1][1] <= 0:  # what had the last of its rows is settled now
            self.levels.pop()
        if self.levels:
            most, left = self.levels[-1]
            self.levels[-1] = (most, left - rows)

    def narrowed(self, revision: int, level: tuple[int, int] | None, poison: int) -> None:
        """The present batch has lost rows: those of `level` come in smaller batches, or `poison` were put aside."""
        self.tries, self.revision = 0, revision
        self.poisoned += poison
        if level is not None and level[1] > 0:
            self.levels.append((level[0], level[1]))


def _doubt(told: tuple[int, int, int, list[tuple[int, int]], tuple[str, int] | None]) -> Doubt:
    tries, revision, poisoned, levels, last = told
    return Doubt(tries, revision, [(most, left) for most, left in levels], poisoned, last and (last[0], last[1]))


@dataclass(slots=True)
class StreamState:
    """One durable reader of a queue or of the log."""

    queue: int  # id; 0 in log mode
    epoch: int = 0  # rises with each opening; older ones are fenced
    mode: str = "queue"
    floor: int = 0  # batches up to this one are settled
    planned: int = 0  # the highest batch ever planned
    plans: dict[int, array[int]] = field(default_factory=dict[int, "array[int]"])  # batch -> flat pairs, exact
    asked: Asked = field(default_factory=Asked)  # what the next batches are read with; mode changes: of which queue
    before: list[tuple[int, Asked]] = field(default_factory=list[tuple[int, Asked]])  # last batch read with it, and it
    start: int | None = None  # log mode: the LSN at which a reader without a checkpoint begins
    said: str = ""  # what named that place
    abandon_after: int = 0  # microseconds without a reader after which it lets go; 0: never
    read: int = 0  # microseconds since the epoch: somebody read it then; no later than it was
    released: int = 0  # microseconds since the epoch: it let go of everything; 0: it holds what it may
    abandoned: bool = False  # because nobody read it
    lapsed: bool = False  # log mode: it let go, and nothing was planned since: what its reader comes to may be less
    dropped: bool = False  # there is no such stream any more
    counted: array[int] = field(default_factory=lambda: array("q"))  # mode changes: flat pairs its reader has counted
    doubt: Doubt = field(default_factory=Doubt)  # queue mode: of the batch that is planned and not settled
    pipeline: str = ""  # whose it is; empty: nobody has said
    owner: str = ""  # the user whose it is: of a reader of several topics, who opened it; empty: nobody's

    @property
    def holds_from(self) -> int | None:
        """The first LSN that its reader may come back to; None: it holds nothing of the log."""
        if self.released:
            return None
        lows = [pairs[0] for pairs in (*self.plans.values(), self.counted) if pairs]
        if not lows and self.start is not None:
            return self.start
        return min(lows, default=None)

    @property
    def position(self) -> int | None:
        """Log mode: one past the last LSN that was planned; None: nobody has said where it begins."""
        pairs = self.plans.get(self.planned)
        return pairs[-1] if pairs else self.start

    def has_held(self, start: int) -> bool:
        """Log mode: whether the log was kept for its reader from this LSN on, ever since it came there."""
        low = self.holds_from
        return not self.lapsed and low is not None and (start >= low or start == self.start)

    def asked_for(self, batch: int) -> Asked:
        """Log mode: what a batch was or will be read with."""
        return next((asked for last, asked in self.before if batch <= last), self.asked)

    def planned_at(self, start: int) -> int | None:
        """Log mode: the batch that begins at this LSN."""
        return next((batch for batch, pairs in self.plans.items() if len(pairs) and pairs[0] == start), None)

    def forget_old(self) -> None:
        """Keep the unsettled batches and the last two planned: Spark may ask for those again after a power cut."""
        last_two = self.planned - (3 if self.mode == "changes" else 1)
        oldest = last_two if self.mode == "log" else min(self.floor + 1, last_two)
        for batch in [b for b in self.plans if b < oldest]:
            del self.plans[batch]
        self.before = [one for one in self.before if one[0] >= oldest]

    def release(self) -> None:
        """What is planned and not settled goes back to the queue; those batches are empty from now on."""
        for batch in self.plans:
            if batch > self.floor:
                self.plans[batch] = array("q")

    def fold(self, kind: Kind, header: Mapping[str, object], body: bytes = b"") -> None:
        """What a record of the stream says.  Living does the same with what it writes."""
        self.read = max(self.read, cast("int", header.get("time", 0)))
        self._FOLDS[kind](self, header, body)

    def _opened(self, header: Mapping[str, object], body: bytes) -> None:
        numbers = cast("Mapping[str, int]", header)
        self.queue, self.epoch, self.mode = numbers["queue"], numbers["epoch"], str(header["mode"])
        asked = cast("Asked", header.get("asked") or self.asked)
        if asked != self.asked:
            if self.planned and self.asked and self.mode == "log":
                self.before.append((self.planned, self.asked))
            self.asked = asked
        self.abandon_after = numbers.get("abandon_after", self.abandon_after)
        self.pipeline = str(header.get("pipeline", self.pipeline))
        self.owner = str(header.get("owner", self.owner))
        self.released, self.abandoned = 0, False
        if header.get("anew"):
            self._count_anew()

    def _planned(self, header: Mapping[str, object], body: bytes) -> None:
        numbers = cast("Mapping[str, int]", header)
        self.planned = numbers["batch"]
        pairs = self._narrow(body)
        if self.mode == "changes":
            self._count(pairs, numbers)
        elif self.mode == "queue":
            self.doubt.planned(sum(pairs[1::2]) - sum(pairs[::2]))
        self.forget_old()
        self.released, self.abandoned, self.lapsed = 0, False, False

    def _narrow(self, body: bytes) -> array[int]:
        """These messages are the batch that was planned last."""
        pairs = self.plans[self.planned] = array("q")
        pairs.frombytes(body[8:])
        return pairs

    def _settled(self, header: Mapping[str, object], body: bytes) -> None:
        numbers = cast("Mapping[str, int]", header)
        if self.plans.get(self.planned):
            self.doubt.poisoned = 0
        if "query" in header:
            self.doubt.last = str(header["query"]), numbers["query_batch"]
        self.floor = numbers["batch"]
        self.forget_old()

    def _tried(self, header: Mapping[str, object], body: bytes) -> None:
        self.doubt.tries = cast("int", header["tries"])

    def _narrowed(self, header: Mapping[str, object], body: bytes) -> None:
        numbers = cast("Mapping[str, int]", header)
        self._narrow(body)
        level = cast("tuple[int, int] | None", header.get("level"))
        self.doubt.narrowed(numbers["revision"], level, numbers.get("poison", 0))

    def _started(self, header: Mapping[str, object], body: bytes) -> None:
        self.start, self.said, self.lapsed = cast("int", header["start"]), str(header["said"]), False

    def _released(self, header: Mapping[str, object], body: bytes) -> None:
        numbers = cast("Mapping[str, int]", header)
        self.epoch = numbers.get("epoch", self.epoch)
        self.abandoned, self.dropped = bool(header.get("abandoned")), bool(header.get("dropped"))
        self.released = numbers.get("released", 0)
        self.lapsed = self.mode == "log"
        if self.mode == "queue":
            self.release()
            self.doubt = Doubt(last=self.doubt.last)
        elif self.mode == "changes":
            self._count_anew()

    def _read(self, header: Mapping[str, object], body: bytes) -> None:
        self.released, self.abandoned = 0, False

    def _count_anew(self) -> None:
        self.floor = self.planned = 0
        self.plans.clear()
        self.counted = array("q")

    def _count(self, pairs: array[int], numbers: Mapping[str, int]) -> None:
        """What went is counted no more, what came is."""
        self.queue = numbers["queue"]
        before, these = (np.frombuffer(one, dtype=np.int64).reshape(-1, 2) for one in (self.counted, pairs))
        if numbers["change"] < 0:
            self.floor = self.planned - 1  # whoever asks for more has read all before
            after = combined(before, these, lambda a, b: a & ~b)
        else:
            after = combined(before, these, lambda a, b: a | b)
        self.counted = array("q", after.tobytes())

    def copy(self) -> StreamState:
        """One that changes by itself; the pairs of a batch never change."""
        return replace(self, plans=dict(self.plans), before=list(self.before), doubt=self.doubt.copy())

    _FOLDS: ClassVar[Mapping[Kind, Callable[..., None]]] = {
        Kind.STREAM: _opened, Kind.PLAN: _planned, Kind.PLAN_SETTLE: _settled,
        Kind.STREAM_TRY: _tried, Kind.STREAM_NARROW: _narrowed,
        Kind.STREAM_START: _started, Kind.STREAM_RELEASE: _released,
        Kind.STREAM_READ: _read,
    }  # fmt: skip


STREAM = Shape(
    StreamState, ("epoch", "mode", "floor", "planned", "plans"), ("dropped",),
    plans=(
        lambda plans: [[batch, pairs.tolist()] for batch, pairs in sorted(plans.items())],
        lambda told: {batch: array("q", pairs) for batch, pairs in told},
    ),
    before=(list, lambda told: [(last, asked) for last, asked in told]),
    counted=(list, lambda told: array("q", told)),
    doubt=(lambda one: [one.tries, one.revision, one.poisoned, one.levels, one.last], _doubt),
)  # fmt: skip
"""A stream as states have it."""
