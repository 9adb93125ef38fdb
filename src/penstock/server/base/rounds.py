"""The rounds of the event loop: each has an end, and how long it let everybody wait is measured.

A round, or turn, is what the loop runs between two looks at its sockets.  Behind the sockets that are ready the
selector names one more that is none: its callback runs last in the same round, where what all readable sockets brought
is decided and logged, so nothing is waited for and no look is spent on it.  What is asked for outside of such a round
is done in the next one, which then begins at once.

Whoever sent something meanwhile waits for the end of the turn, so a long turn is a pause of the server for all its
clients.  The time is wall time, so it holds what other threads and processes took; the CPU time of the loop's own
thread says how much of it was the server's work.  Nothing here knows what a turn does.

A loop that never sleeps starves every other thread of the interpreter, so it naps: for threads of pools while they have
work, for the log's writer when its commit has waited long enough, and for Flight's threads while calls are made.

Work that may be long goes by turns (`Turns`): so much of it in one turn of the loop, and everybody else between.
Whoever has used up what there is for a turn waits in one line for all, and goes on where it stopped when it is its time
again.  What is at the head of the line always gets something done, so the line moves however little time there is.
What the work is, is not known here.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from selectors import EVENT_READ, DefaultSelector, SelectorKey
from typing import TYPE_CHECKING

from penstock.records.dataclass import dataclass

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.ports import Clock

Soon = Callable[[Callable[[], None]], object]
"""Has something run soon, on the loop."""

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper ends of the buckets, in seconds; one more bucket has no end."""

LONG_S = 0.002
"""The CPU time is looked at after turns as long as this; the clock for it costs half a microsecond."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """The pauses so far."""

    longest: float = 0.0  # seconds, since the last `begin_anew`
    longest_cpu: float = 0.0  # seconds of CPU in the turn that took most of it, since then; a turn's own within 2 ms
    total: float = 0.0  # seconds of all turns since the start, as the counts
    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)  # turns by the bucket of their length, not summed up


class Rounds(DefaultSelector):
    """The selector of one loop, which marks the end of each round and measures it.  Belongs to the loop's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop | None = None  # whose rounds these are
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = self.longest = self.longest_cpu = 0.0
        self._woke = time.monotonic()
        self._cpu = time.thread_time()  # as of some moment, `LONG_S` before the turn or later
        self._cpu_read = self._woke
        self._end: tuple[SelectorKey, int] | None = None
        self._waiting: list[Callable[[], None]] = []
        self.at_end = self._waiting.append  # runs something once, when everything ready in this round has been heard

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop that asks this selector."""
        self.loop = loop
        handle = asyncio.Handle(self._over, (), loop)
        self._end = SelectorKey(-1, -1, EVENT_READ, (handle, None)), EVENT_READ

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """What is ready, and the round's end behind it.

        A turn ends with this call and the next begins when it returns.  What was not meant to be sleep belongs to the
        turn that begins: it waited for other threads then.
        """
        looked = time.monotonic()
        if self._waiting:
            timeout = 0
        ready = super().select(timeout)
        now = time.monotonic()
        span = looked - self._woke
        self.total += span
        if span < LONG_S:
            self.counts[span > BOUNDS[0]] += 1
        else:
            self._count_long(span, now)
        if span > self.longest:
            self.longest = span
        self._woke = now
        if timeout is not None and timeout <= 0:
            self._woke = looked
        elif timeout is not None and not ready:
            self._woke = min(now, looked + timeout + BOUNDS[0])  # epoll sleeps whole milliseconds
        if now - self._cpu_read > LONG_S:
            self._cpu, self._cpu_read = time.thread_time(), now
        if (ready or self._waiting) and self._end is not None:
            ready.append(self._end)
        return ready

    def _count_long(self, span: float, now: float) -> None:
        self.counts[bisect_left(BOUNDS, span)] += 1
        cpu = time.thread_time()
        self.longest_cpu = max(self.longest_cpu, cpu - self._cpu)
        self._cpu, self._cpu_read = cpu, now

    def _over(self) -> None:
        waiting = self._waiting[:]
        self._waiting.clear()
        for callback in waiting:
            callback()


class Pulse:
    """How long the turns of the loop are that `new_loop` makes.  Belongs to the thread of that loop."""

    def __init__(self) -> None:
        self._rounds: Rounds | None = None  # of the loop that was made

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop whose turns are measured, and whose rounds have an end."""
        rounds = self._rounds = Rounds()
        loop = asyncio.SelectorEventLoop(rounds)
        rounds.begin(loop)
        return loop

    def at_round_end(self, loop: asyncio.AbstractEventLoop) -> Soon:
        """A function that runs something at the end of the round of this loop; of a loop that is not ours, soon."""
        rounds = self._rounds
        return rounds.at_end if rounds is not None and loop is rounds.loop else loop.call_soon

    def pauses(self) -> Pauses:
        """What was measured since the last look."""
        here = self._rounds
        return Pauses() if here is None else Pauses(here.longest, here.longest_cpu, here.total, tuple(here.counts))

    def begin_anew(self) -> None:
        """Look for the longest pause from now on."""
        if self._rounds is not None:
            self._rounds.longest = self._rounds.longest_cpu = 0.0


STARVED_US = 500
"""A thread with work that has waited this long for the interpreter gets it: the loop sleeps for a moment."""

GUEST_STAYS_US = 1_000_000
"""A Flight call was made so recently: its thread, or the next one's, may be waiting for the interpreter."""

GUEST_US = 100
"""A Flight call takes the interpreter some eight times: with a guest in the house the loop naps this often."""

NAP_S = 20e-6
"""How long a nap is; any real sleep hands the interpreter over."""


def nap() -> None:
    """Let other threads have the interpreter; long work in pure Python does so now and then.

    Without, whoever else needs the interpreter waits five milliseconds for it, and the loop does each time that a call
    of the system has let it go: several times a turn.
    """
    time.sleep(NAP_S)


class Nap:
    """When the loop sleeps for a moment."""

    __slots__ = ("_clock", "_guest_at", "_log", "_napped", "at_work")

    def __init__(self, clock: Clock, log: Log) -> None:
        self.at_work: Callable[[], int] = int  # how many threads of pools have something to do
        self._clock = clock
        self._log = log
        self._guest_at = -GUEST_STAYS_US  # mono when another thread last had business
        self._napped = 0

    def announce_guest(self) -> None:
        """A thread of another door has business and will need the interpreter.  Any thread."""
        self._guest_at = self._clock.mono()

    def let_others_in(self) -> None:
        """At the end of a turn: sleep a moment when another thread has waited long enough."""
        now = self._clock.mono()
        awake = now - self._napped
        if awake < GUEST_US:
            return
        waiting = self._log.thread_since
        starved = awake > STARVED_US and ((waiting and now - waiting > STARVED_US) or self.at_work())
        if starved or now - self._guest_at < GUEST_STAYS_US:
            nap()
            self._napped = self._clock.mono()


TURN_US = 5_000
"""How long such work goes on in one turn, all of it together; one step more may be under way then."""

HEARD_US = 25_000
"""How long what comes from all sockets is heard in one turn; what one of them brings, no longer than `TURN_US`.

Shorter turns have fewer messages for what each of them costs: with 10 ms hundreds of clients at work took a tenth more.
"""

STOOD = 4
"""Rounds of the loop: a turn that is asked for ends within two."""


class Turns:
    """The turns of one loop, and who waits for the next.  Belongs to the loop's thread."""

    __slots__ = (
        "_fresh", "_heard_of", "_heard_until", "_line", "_mono", "_of", "_run", "_serving", "_soon", "_until", "number",
    )  # fmt: skip

    def __init__(self, mono: Callable[[], int], soon: Soon, run: Callable[[Callable[[], None]], None]) -> None:
        """mono: microseconds that never go back.  run: does it; what fails ends who asked."""
        self.number = 0  # of the present turn; whoever ends it counts
        self._mono = mono
        self._soon = soon
        self._run = run
        self._of = -1  # the turn in which somebody has begun
        self._until = 0  # when what there is for all in that is used up
        self._heard_of, self._heard_until = -1, 0  # the same of what comes from sockets
        self._line = deque[Callable[[], None]]()
        self._serving = False  # those in the line go on
        self._fresh = False  # the one that goes on has done nothing yet

    def mine(self) -> int:
        """When somebody's own time in this turn, which begins now, is over."""
        return self._mono() + TURN_US

    def share(self) -> int:
        """When the time is over in which somebody is heard in this turn, which begins now; 0: others had all of it."""
        now = self._mono()
        if self._heard_of != self.number:
            self._heard_of, self._heard_until = self.number, now + HEARD_US
        return min(now + TURN_US, self._heard_until) if now < self._heard_until else 0

    async def heard(self, arm: Callable[[], object]) -> None:
        """Come back when there is time for what has come: others may have had all of this turn's, and of the next.

        arm: asks that turns go on; where none ends any more nobody is waited for.
        """
        stood = 0
        while not self.share() and stood < STOOD:
            before = self.number
            arm()
            await asyncio.sleep(0)
            stood = stood + 1 if self.number == before else 0

    def over(self, until: int) -> bool:
        """Whether somebody's own time is over."""
        return self._mono() >= until

    @property
    def used_up(self) -> bool:
        """Whether others come first: they wait already, or what there is for all is used up."""
        if self._fresh:
            self._fresh = False
            return False
        if self._line and not self._serving:
            return True
        now = self._mono()
        if self._of != self.number:
            self._of, self._until = self.number, now + TURN_US
        return now >= self._until

    def late(self, go_on: Callable[[], None]) -> bool:
        """Whether others come first: then it goes on when it is time, behind all that wait."""
        if self.used_up:
            self.wait(go_on)
            return True
        return False

    def wait(self, go_on: Callable[[], None]) -> None:
        """Go on when it is time, behind all that wait."""
        if not self._line and not self._serving:
            self._soon(self._next)
        self._line.append(go_on)

    def _next(self) -> None:
        self._of, self._serving = -1, True
        for _ in range(len(self._line)):
            if self.used_up:
                break
            self._fresh = True
            self._run(self._line.popleft())
            self._fresh = False
        self._serving = False
        if self._line:
            self._soon(self._next)
