"""How long the event loop lets everybody wait: the time from one look at the sockets to the next.

A turn is everything the loop does between two looks.  Whoever sent something meanwhile waits for its end, so a long
turn is a pause of the server for all its clients.  The time is wall time, so it holds what other threads and
processes took; the CPU time of the loop's own thread says how much of it was the server's work.

It measures; it knows nothing of what a turn does.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from typing import TYPE_CHECKING

from penstock.records.dataclass import dataclass
from penstock.server.rounds import Rounds

if TYPE_CHECKING:
    from penstock.server.runtime import Soon

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


class Pulse:
    """Measures the turns of the loop that `new_loop` makes.  Belongs to the thread of that loop."""

    def __init__(self) -> None:
        self._rounds: Rounds | None = None  # of the loop that was made
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = self._longest = self._longest_cpu = 0.0
        self._woke = time.monotonic()
        self._cpu = time.thread_time()  # as of some moment, `LONG_S` before the turn or later
        self._cpu_read = self._woke

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop whose turns are measured, and whose rounds have an end."""
        rounds = self._rounds = Rounds(self)
        loop = asyncio.SelectorEventLoop(rounds)
        rounds.begin(loop)
        return loop

    def at_round_end(self, loop: asyncio.AbstractEventLoop) -> Soon:
        """How to run something when all that is ready in this round of the loop was heard; soon, of another's loop."""
        rounds = self._rounds
        return rounds.at_end if rounds is not None and loop is rounds.loop else loop.call_soon

    def pauses(self) -> Pauses:
        """What was measured."""
        return Pauses(self._longest, self._longest_cpu, self._total, tuple(self._counts))

    def begin_anew(self) -> None:
        """Look for the longest pause from now on."""
        self._longest = self._longest_cpu = 0.0

    def rest(self, now: float) -> None:
        """The loop looks at its sockets: a turn has ended.  now: monotonic seconds."""
        span = now - self._woke
        self._total += span
        if span < LONG_S:
            self._counts[span > BOUNDS[0]] += 1
        else:
            self._counts[bisect_left(BOUNDS, span)] += 1
            cpu = time.thread_time()
            self._longest_cpu = max(self._longest_cpu, cpu - self._cpu)
            self._cpu, self._cpu_read = cpu, now
        if span > self._longest:
            self._longest = span

    def wake(self, looked: float, now: float, timeout: float | None, found: bool) -> None:
        """The loop goes on.  What was not meant to be sleep belongs to the turn: it waited for other threads then.

        looked: when it began to look; timeout: how long it may have slept, None: for ever; found: something was there.
        """
        self._woke = now
        if timeout is not None and timeout <= 0:
            self._woke = looked
        elif timeout is not None and not found:
            self._woke = min(now, looked + timeout + BOUNDS[0])  # epoll sleeps whole milliseconds
        if now - self._cpu_read > LONG_S:
            self._cpu, self._cpu_read = time.thread_time(), now
