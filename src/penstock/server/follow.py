"""Following: what there is, then what changes, for one reader: without a gap, without a repeat, as fast as he reads.

    Source   what is followed.  It is asked for portions, keeps its own place, and wakes its reader when it has more
      |      a source may read another and change what comes: records out of messages, conflated rows, `Mapped`
    Follow   asks while there is room; pause, end and failure: each in one place, and told once
      |
    Taker    who wants it: a connection, a queue for a thread, a conflated topic, a test

    followed            source                      there is                 changes               a slow reader's wait
    messages of topics  replaying.LogSource         the log from a place on  what is committed     in the log
    records of a topic  sow.RecordSource            the index of one moment  messages, removals    in the log
    other topics        Mapped over LogSource       -                        messages              in the log
    rows of a view      views.RowSource             its rows, once level     what the view tells   the last of a row
    with conflation     views.Conflated over these  as it comes              once in an interval   the last of a key
    events              events.RingSource           -                        what happens          in the ring, or lost

Two things only look alike.  A stream's plan in log mode (`server.flight.streams`) is a question with a deadline, asked
from a thread: nothing is handed over, the log is measured from a place that is durable, and the next question may come
days later.  A view that is built (`views.views`) is slowed by nobody, and when it is level it shares one pass over the
journal, and each parsed body, with all other views.

Everything here belongs to the loop's thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from penstock.errors import PenstockError
from penstock.records.dataclass import dataclass
from penstock.server.base.faults import TOLD, Asker, asker_behind, asker_of

T = TypeVar("T")
U = TypeVar("U")
P = TypeVar("P", contravariant=True)

ENDLESS = 1 << 30
"""The room of who takes whatever comes."""


class Sign(Enum):
    """What a source answers when it has no portion."""

    LEVEL = "level"  # all there was when it began has been given; at most once
    OVER = "over"  # nothing follows


class Taker(Protocol[P]):
    """Receives portions.  No method may raise."""

    def room(self) -> int:
        """How many rows it takes now.  Who says 0 calls `Follow.step` when it has room again."""
        ...

    def take(self, portion: P, /) -> None:
        """Rows in order, no more than there is room for."""

    def level(self) -> None:
        """Called once, when the snapshot is complete; never where there is none."""

    def ended(self, error: PenstockError | None) -> None:
        """Nothing more comes, for a reason; None: that was the end.  Told once."""


class Reader(Protocol[P]):
    """The reader of a source, as the source knows it."""

    @property
    def paused(self) -> bool:
        """Whether it does not want to be given anything for now."""
        ...

    def room(self) -> int:
        """How many rows the source may push; 0 for a reader that only pulls."""
        ...

    def give(self, portion: P, /) -> None:
        """Take pushed rows: no more than `room`, and only when all before them were given."""

    def step(self) -> None:
        """There may be something to ask for."""

    def fail(self, error: PenstockError, /) -> None:
        """The source cannot go on."""


class Source(ABC, Generic[T]):
    """Something to follow: a snapshot, then its changes."""

    _reader: Reader[T]  # of one that wakes it

    @property
    def asker(self) -> Asker | None:
        """Who reads it."""
        return asker_of(self._reader)

    @abstractmethod
    def begin(self, reader: Reader[T]) -> None:
        """Called once.  From here on nothing that changes is missed."""

    @abstractmethod
    def next(self, room: int) -> T | Sign | None:
        """The next portion, of no more rows than `room`; None: nothing now, and the reader will be woken.

        Without room only a sign may come, and what can be read again is let go.  PenstockError: it cannot go on.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop.  Twice does no harm."""


class Follow(Generic[T]):
    """One reader's way through a source: a `Reader`."""

    def __init__(self, source: Source[T], taker: Taker[T]) -> None:
        """Begins at once: something may be taken before this returns.  Raises what the source refuses."""
        self.closed = False
        self.paused = False  # whether it waits for `resume`
        self._source = source
        self._taker = taker
        self._stepping = self._woken = False
        source.begin(self)

    # -- for its owner

    def pause(self) -> None:
        """Hand over nothing until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Go on where it stopped."""
        if self.paused:
            self.paused = False
            self.step()

    def close(self) -> None:
        """Nothing more is handed over.  Twice does no harm."""
        if not self.closed:
            self.closed = True
            self._source.close()

    # -- for the source, and a taker that has room again

    def room(self) -> int:
        return 0 if self.closed or self.paused else self._taker.room()

    def give(self, portion: T, /) -> None:
        self._taker.take(portion)

    def fail(self, error: PenstockError, /) -> None:
        """End for a reason, which the taker is told."""
        if not self.closed:
            self.close()
            self._taker.ended(error)

    # -- faults

    kind = "reader"

    def end_by_fault(self) -> None:
        """The taker is told: what came next is not known to have been handed over."""
        self.fail(PenstockError(TOLD))

    def step(self) -> None:
        """Hand over all that there is, and there is room for."""
        self._woken = True
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._woken:
                self._woken = False
                while not self.closed and not self.paused and self._step():
                    pass
        finally:
            self._stepping = False

    def _step(self) -> bool:
        """Ask once; whether to ask again."""
        try:
            found = self._source.next(max(0, self._taker.room()))
        except PenstockError as error:
            self.fail(error)
            return False
        if found is None:
            return False
        if not isinstance(found, Sign):
            self._taker.take(found)
        elif found is Sign.LEVEL:
            self._taker.level()
        else:
            self.close()
            self._taker.ended(None)
        return True


@dataclass(eq=False)
class Asking(Generic[T]):
    """A reader that asks whenever it likes, once it was woken: nothing is given to it."""

    step: Callable[[], None]
    fail: Callable[[PenstockError], None]
    _is_paused: Callable[[], bool] = lambda: False

    @classmethod
    def within(cls, outer: Reader[Any]) -> Asking[T]:
        """The reader of a source that is asked when another is."""
        return cls(outer.step, outer.fail, lambda: outer.paused)

    @property
    def paused(self) -> bool:
        return self._is_paused()

    @property
    def asker(self) -> Asker | None:
        """Of the reader that is asked for."""
        return asker_behind(self.step)

    def room(self) -> int:
        return 0

    def give(self, portion: T, /) -> None:
        raise AssertionError("there is no room")


class Mapped(Source[U], Generic[T, U]):
    """Another source's rows, changed one by one into others."""

    def __init__(self, inner: Source[T], change: Callable[[T], U], *, most: int = ENDLESS, levels: bool = True) -> None:
        """most: rows of a portion.  levels: whether it is told when all there was has come."""
        self._inner, self._change, self._most, self._levels = inner, change, most, levels

    def begin(self, reader: Reader[U]) -> None:
        self._inner.begin(Asking[T].within(reader))

    def next(self, room: int) -> U | Sign | None:
        while True:
            found = self._inner.next(min(room, self._most))
            if found is not None and not isinstance(found, Sign):
                return self._change(found)
            if found is not Sign.LEVEL or self._levels:
                return found

    def close(self) -> None:
        self._inner.close()
