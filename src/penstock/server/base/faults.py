"""Faults: exceptions that nobody expected.  Who asked for what failed is ended; the server goes on.

One rule says how far a fault reaches.  It is asked wherever several parties are served one after the other:

    nothing is half changed   who asked is ended and told so, the others go on, the log and a counter tell of it
    queues alone may be       the same, and these queues are stopped until the next start (`core.commands.containing`)
    something else may be     the server ends, and a start believes the log

Half changed is the state in two cases.  A command of the core was under way and had decided something
(`Outbox.whole_after`), or what was decided is with the engine and not yet with the log (`behind`).  Nothing more is
logged then.  Who asked is told by the traceback: the innermost object in it that is, or has, an asker; where it names
none, whoever catches the fault says on whose behalf it was.  So nothing is noted while all goes well.

Work that comes again and again is an asker, too: a `Chore` that failed is put off, longer each time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Lock
from traceback import walk_tb
from types import FrameType, MethodType, TracebackType
from typing import TYPE_CHECKING, Protocol, cast

from penstock.errors import PenstockError
from penstock.records.chunks import Now
from penstock.records.remembered import Remembered

if TYPE_CHECKING:
    import asyncio

    from penstock.core.broker import Core
    from penstock.ports import Clock

logger = logging.getLogger("penstock.server")

AGAIN_S = 60.0
"""A fault at the same place is told of so often at most; those between are counted."""

SITES_MOST = 512

REST_LEAST_US, REST_MOST_US = 1_000_000, 60_000_000
"""How long work is put off that has failed: longer each time that it fails again."""

FIRST_FRAMES, LAST_FRAMES = 8, 56
"""Of a traceback that is told: each of a thousand, where something nests too deep, takes a millisecond to write."""

TOLD = "an internal error: the log of the server tells more"
"""What whoever is ended for a fault hears."""


class Reports:
    """What the log and the counters of a process tell of faults.  Any thread."""

    def __init__(self) -> None:
        self.counts = Counter[str]()  # by what who asked had come by
        self.first_us = self.last_us = 0  # when the first and the last came, by the clock; 0: none did
        self._lock = Lock()
        self._sites: Remembered[tuple[str, int, str], list[float]] = Remembered(SITES_MOST)  # -> told at, since then

    def tell(self, error: BaseException, kind: str) -> None:
        """Once of each: the first at its place with the traceback, then how many there were.

        Whoever brings one may bring thousands.
        """
        if getattr(error, "told", False):
            return
        error.told = True  # type: ignore[attr-defined]  # it passes more borders than one
        place, line = _place(error)
        name, now = type(error).__name__, time.monotonic()
        more = 0
        with self._lock:
            self.counts[kind] += 1
            self.last_us = time.time_ns() // 1000
            self.first_us = self.first_us or self.last_us
            known = self._sites.get((place, line, name))
            if known is None:
                self._sites.keep((place, line, name), [now, 0])
            elif now - known[0] < AGAIN_S:
                known[1] += 1
                return
            else:
                more, known[:] = int(known[1]) + 1, (now, 0)
        if known is None:
            told = type(error), error, _bounded(error.__traceback__)
            logger.error("a fault ended what was asked for (%s)", kind, exc_info=told)
        else:
            logger.error("%d more faults (%s) at %s:%d: %s", more, kind, place, line, name)

    def tell_if_a_fault(self, error: BaseException, kind: str) -> bool:
        """Of what another process of ours has failed with: one that it has no word for was a fault, and told there."""
        fault = type(error) is PenstockError
        if fault:
            self.tell(error, kind)
        return fault


def _bounded(traceback: TracebackType | None) -> TracebackType | None:
    """Where it began and where it ended, without what is between where that is much."""
    frames = list[TracebackType]()
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    if len(frames) > FIRST_FRAMES + LAST_FRAMES:
        frames[FIRST_FRAMES:-LAST_FRAMES] = []
    for one in reversed(frames):
        traceback = TracebackType(traceback, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return traceback


reports = Reports()


class Asker(Protocol):
    """Somebody who can be ended alone."""

    @property
    def kind(self) -> str:
        """What it came by: a door, or `upkeep`."""
        ...

    def end_by_fault(self) -> object:
        """What it has asked for failed: it is told, and gives back what it has."""
        ...


class Faults:
    """The rule, for one engine.  Belongs to the loop's thread."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self.behind = False  # what was decided has left the core and is not with the log
        self.fatal: BaseException | None = None  # why nothing in memory is believed any more
        self.ended = 0  # how often somebody was ended
        self.on_fatal: list[Callable[[BaseException], None]] = []
        self._core = core
        self._clock = clock

    @property
    def total(self) -> int:
        """How many there were in this process."""
        return reports.counts.total()

    def remarks(self) -> dict[str, object]:
        """Of health: how many there were, and when, in microseconds; nothing where there was none."""
        if not self.total:
            return {}
        return {"internal_errors": {"count": self.total, "since": reports.first_us, "last": reports.last_us}}

    def contain(
        self, error: Exception, asker: Asker | None = None, *, beside: bool = False, sure: bool = False
    ) -> None:
        """End who asked.  Where that is nobody, or something is half changed, the server ends, and this raises.

        asker: on whose behalf it was, as far as the traceback does not say; sure: whatever that says.  beside: it only
        looked at what was decided, which goes on to the log whatever becomes of the look.
        """
        found = asker if sure else _asker_in(error) or asker
        if found is None:
            self.give_up(error)
            raise error
        self.check_whole(error, beside=beside)
        self.ended += 1
        reports.tell(error, found.kind)
        # The frames that were looked at have it among their locals now, and buffers: a circle that only the collector
        # of garbage would undo, which ends the process where it clears a view before what was made of that.
        error.__traceback__ = None
        try:
            found.end_by_fault()
        except Exception as second:
            self.give_up(second)  # what it had may not have come back
            raise

    def stopped(self, error: Exception, kind: str) -> None:
        """What a fault left half changed was stopped by itself; of a client's command it is told already."""
        self.ended += not getattr(error, "told", False)
        reports.tell(error, kind)
        error.__traceback__ = None

    def check_whole(self, error: Exception, *, beside: bool = False) -> None:
        """Of what was asked for several together: raise this again where something else than queues is half changed.

        Where nothing is, each of them is to be tried alone, and whose fault it was shows then.  beside: as `contain`.
        """
        if (self.behind and not beside) or not self._whole(error):
            self.give_up(error)
            raise error

    def give_up(self, error: BaseException) -> None:
        """Memory is not believed any more."""
        if self.fatal is None:
            self.fatal = error
            for hook in self.on_fatal:
                hook(error)

    def run(self, work: Callable[[], object], asker: Asker | None = None) -> None:
        """Do it; what fails ends who asked."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the border
            self.contain(error, asker or asker_behind(work))

    def run_each(self, works: Iterable[Callable[[], object]]) -> None:
        """Do each, also when one fails."""
        for work in works:
            self.run(work)

    # -- how far it reaches

    def _whole(self, error: Exception) -> bool:
        if self.fatal is not None or isinstance(error, MemoryError):
            return False
        logs = False
        for frame in _frames(error):
            name = str(frame.f_globals.get("__name__", ""))
            if name.startswith("penstock.log."):
                logs = not name.endswith(".reader")
        return not logs and (self._core.whole_after(error) or self._contained(error))

    def _contained(self, error: Exception) -> bool:
        """Whether a command that was left half done is undone, and the queues that it was about are stopped."""
        try:
            return self._core.contain_command(error)
        except Exception as second:
            self.give_up(second)
            raise

    def evict(self, asker: Asker) -> None:
        """Whoever is ended takes nothing any more, also by what was begun when it failed."""
        core = self._core
        some = [one for queue in core.queues() for one in dict.fromkeys((*queue.consumers, *queue.holders()))]
        own = [one for one in some if asker_of(one.holder) is asker]
        core.unsubscribe_all(Now(self._clock.wall(), self._clock.mono()), own, requeue=True, lost=True)


class Chore:
    """Work that is done again and again, whatever became of it the last time."""

    kind = "upkeep"

    def __init__(self, faults: Faults, clock: Clock, work: Callable[[], object]) -> None:
        self.failures = 0  # one after the other
        self.busy = False  # what it has begun elsewhere runs
        self._faults = faults
        self._clock = clock
        self._work = work
        self._until = 0  # mono microseconds

    @property
    def rests(self) -> bool:
        """Whether it is put off."""
        return self.rest > 0

    @property
    def rest(self) -> int:
        """For so many microseconds more it is put off."""
        return max(self._until - self._clock.mono(), 0) if self.failures else 0

    def run(self) -> None:
        """Do it, unless it is put off."""
        if self.rests:
            return
        failures = self.failures
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the border
            self._faults.contain(error, self)
        if self.failures == failures and not self.busy:
            self.failures = 0

    def failed(self, error: Exception) -> None:
        """What it has begun failed later."""
        self._faults.contain(error, self)

    def succeeded(self) -> None:
        """What it has begun came to its end."""
        self.failures = 0

    def hand_over(
        self, off: Callable[[Callable[[], None], Callable[[None], None]], object], work: Callable[[], None]
    ) -> None:
        """Have this done off the loop, as a part of it.  off: an `Off`."""
        self.busy = True
        off(work, self._came)

    def _came(self, _: None) -> None:
        self.busy = False
        self.succeeded()

    def begun(self, work: asyncio.Future[None]) -> None:
        """This is a part of it that nobody waits for."""
        self.busy = True
        work.add_done_callback(self._ended)

    def _ended(self, work: asyncio.Future[None]) -> None:
        self.busy = False
        if work.cancelled():
            return
        error = work.exception()
        if error is None:
            self.succeeded()
        elif isinstance(error, Exception):
            self.failed(error)
        else:
            raise error

    def end_by_fault(self) -> None:
        """It is put off."""
        self.busy = False
        self.failures += 1
        rest = min(REST_MOST_US, REST_LEAST_US << min(self.failures - 1, 10))
        self._until = self._clock.mono() + rest


class Told:
    """Who hears of a fault by whoever catches it: a call, a request."""

    def __init__(self, kind: str, tell: Callable[[], object] = bool) -> None:
        self.kind = kind
        self.end_by_fault = tell


def asker_behind(work: object) -> Asker | None:
    """Who waits for a call: of a method its object, also below `partial`."""
    while isinstance(work, partial):
        work = cast("partial[object]", work).func
    return asker_of(work.__self__) if isinstance(work, MethodType) else None


def asker_of(thing: object) -> Asker | None:
    """Who is ended for a thing: itself where it can be, else whom it names."""
    return cast("Asker | None", thing if hasattr(thing, "end_by_fault") else getattr(thing, "asker", None))


def _asker_in(error: BaseException) -> Asker | None:
    for frame in reversed(list(_frames(error))):
        if (found := asker_of(frame.f_locals.get("self"))) is not None:
            return found
    return None


def _frames(error: BaseException) -> Iterator[FrameType]:
    return (frame for frame, _ in walk_tb(error.__traceback__))


def _place(error: BaseException) -> tuple[str, int]:
    place = "", 0
    for frame, line in walk_tb(error.__traceback__):
        place = frame.f_code.co_filename, line
    return place
