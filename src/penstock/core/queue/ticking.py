"""What a queue does by time alone, and where its steps go on that stopped at their bounds.

| entry | goes on before the next because |
| --- | --- |
| pause, weighing | they say what may be given out, and how much is too much |
| attempts, those who left | what they give back, or out, is like any other in what follows |
| ranks, shares, pace, attendance | they say who may be given what |
| dead letters, leases | what ends here may be delayed, or expire, in the same moment |
| delays and deadlines | in the order of the stages |

After these comes what every command ends with: what is over a limit goes, and what is ready is given out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.effects import Sink
from penstock.core.queue import agenda, weighing
from penstock.core.queue.dispatching import attendance, joining
from penstock.core.queue.limits.entry import keep_time
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.timed.due import end_delays, end_leases, expire_due, expire_spent
from penstock.core.queue.timed.moving import pause
from penstock.records.chunks import Now

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


class Entry(NamedTuple):
    """Something that a queue may have to come back to."""

    bit: int
    due: Callable[[Queue], int]  # when; 0: at once
    go_on: Callable[[Queue, Now, Sink], None]
    by_wall: bool = False  # `due` is told by the wall clock


def _at_once(queue: Queue) -> int:
    return 0


def _forget_ranks(queue: Queue, now: Now, sink: Sink) -> None:
    """The dead ones; putting them in order is a part of what every command ends with."""
    if queue.ranks is not None and queue.ranks.forgetting:
        queue.ranks.forget_some()


def _ranks_due(queue: Queue) -> int:
    ranks, ranking = queue.ranks, queue.ranking
    return 0 if ranks is not None and (ranks.forgetting or (ranking is not None and ranking.more)) else NEVER


def _share(queue: Queue, now: Now, sink: Sink) -> None:
    if queue.shares is not None:
        queue.shares.tick(now.mono)


def _keep_pace(queue: Queue, now: Now, sink: Sink) -> None:
    if queue.pace is not None:
        queue.pace.tick(now.mono)


def _times(queue: Queue, now: Now, sink: Sink) -> None:
    if queue.limits is not None:
        keep_time(queue, now, sink)
        return
    if queue.delays.due <= now.wall:
        end_delays(queue, now, sink)
    if queue.expiry.due <= now.wall:
        expire_due(queue, now, sink)


AGENDA = (
    Entry(agenda.PAUSE, lambda q: q.paused_until or NEVER, lambda q, _, sink: pause(q, 0, sink), by_wall=True),
    Entry(agenda.WEIGHING, lambda q: NEVER if q.weighing is None else 0, lambda q, _, sink: weighing.go_on(q)),
    Entry(agenda.ATTEMPTS, _at_once, lambda q, _, sink: expire_spent(q, sink)),
    Entry(agenda.LEAVING, _at_once, joining.leave),
    Entry(agenda.RANKS, _ranks_due, _forget_ranks),
    Entry(agenda.SHARES, lambda q: NEVER if q.shares is None else q.shares.due, _share),
    Entry(agenda.PACE, lambda q: NEVER if q.pace is None else q.pace.due, _keep_pace),
    Entry(agenda.ATTENDANCE, lambda q: q.attendance.due, attendance.look),
    Entry(agenda.LETTERS, lambda q: q.letters.due, lambda q, now, sink: q.letters.wake(now.mono, sink)),
    Entry(agenda.LEASES, lambda q: q.lease_due, end_leases),
    Entry(agenda.TIMES, lambda q: min(q.delays.due, q.expiry.due), _times, by_wall=True),
)
"""In the order in which they go on, where several are due in one moment."""

_OF: dict[int, tuple[Entry, ...]] = {}


def _entries(bits: int) -> tuple[Entry, ...]:
    """Those of a queue."""
    some = _OF.get(bits)
    if some is None:
        some = _OF[bits] = tuple([entry for entry in AGENDA if entry.bit & bits])
    return some


def is_due(queue: Queue, now: Now) -> bool:
    """Whether something should have happened by now."""
    bits = queue.agenda
    if not bits:
        return False
    if bits & agenda.AT_ONCE:
        return True
    return bool([entry for entry in _entries(bits) if entry.due(queue) <= (now.wall if entry.by_wall else now.mono)])


def next_deadline(queue: Queue) -> tuple[int | None, int | None]:
    """When to `tick` next, on the wall and on the monotonic clock; 0 is at once, None is never."""
    here = _entries(queue.agenda)
    wall = min([entry.due(queue) for entry in here if entry.by_wall], default=NEVER)
    mono = min([queue.attendance.expires, *[entry.due(queue) for entry in here if not entry.by_wall]])
    if queue.agenda & agenda.AT_ONCE:
        mono = 0
    return (wall if wall < NEVER else None), (mono if mono < NEVER else None)


def tick(queue: Queue, now: Now, sink: Sink) -> None:
    """Do what is due: leases end, delays end, messages expire; then dispatch."""
    for entry in AGENDA:  # one may be due for what the one before it did
        if entry.bit & queue.agenda and entry.due(queue) <= (now.wall if entry.by_wall else now.mono):
            entry.go_on(queue, now, sink)
    queue.carry_on(now, sink)
