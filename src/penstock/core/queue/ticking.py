"""What a queue does by time alone, and where its steps go on that stopped at their bounds.

| entry | goes on before the next because |
| --- | --- |
| pause, weighing | they say what may be given out, and how much is too much |
| attempts, those who left | what they give back, or out, is like any other in what follows |
| ranks, shares, pace, attendance | they say who may be given what |
| dead letters, leases | what ends here may be delayed, or expire, in the same moment |
| delays and deadlines | in the order of the stages |

After these comes what every command ends with: what is over a limit goes, and what is ready is given out.

What is due in the queue of an exchange at which messages wait goes on to the exchange and to nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue import agenda, weighing
from penstock.core.queue.administering import pause
from penstock.core.queue.agenda import ATTEMPTS, DISPATCH
from penstock.core.queue.dispatching import attendance, joining
from penstock.core.queue.figures import Figures
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.places import AVAILABLE
from penstock.core.queue.settling.attempts import spent
from penstock.core.queue.settling.leases import STEP_MOST
from penstock.core.queue.settling.letters import Letter
from penstock.core.queue.settling.settle import give_back
from penstock.core.queue.timed.due import fall_due
from penstock.records.causes import DUE
from penstock.records.chunks import Now
from penstock.records.dataclass import dataclass

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that a queue may have to come back to."""

    bit: int
    due: Callable[[Contents], int]  # when; 0: at once
    go_on: Callable[[Contents, Now, Sink], None]
    by_wall: bool = False  # `due` is told by the wall clock


def end_leases(queue: Contents, now: Now, sink: Sink) -> None:
    """Take what ended back, `STEP_MOST` at most; `lease_due` has passed while there is more."""
    queue.lease_due = NEVER
    in_order = queue.leases_in_order
    most = STEP_MOST
    for consumer in [one for one in queue.holders() if not one.leaving]:
        runs = consumer.leases.ended(now.mono, in_order, most) if most > 0 else []
        if runs:
            most -= sum(len(run.chunk) for run in runs)
            queue.counted(now.mono).expired_leases += sum(len(run.chunk) for run in runs)
            queue.freed(consumer, runs)
            give_back(queue, now, runs, sink, cause="lease", failed=True)
        deadline = consumer.leases.next_deadline(in_order)
        if deadline:
            queue.leased_until(deadline)
    if not queue.outstanding:
        queue.leases_in_order = True


def expire_spent(queue: Contents, sink: Sink) -> None:
    queue.agenda &= ~ATTEMPTS
    waiting = [place.back() for place in queue.places(*AVAILABLE)]
    for run in [run for runs in waiting for run in runs]:
        reasons = spent(run.tally, queue.settings)
        if reasons:
            queue.expire(queue.extract(run.chunk), ",".join(reasons), sink)


STEP = 4096
"""Messages that set out in one step."""


def depart(queue: Contents, sink: Sink) -> None:
    """What is ready leaves: its body is asked for, and it counts as dying until it is published."""
    runs = queue.take_ready(STEP)
    if queue.figures is None:
        queue.figures = Figures()
    queue.figures.expired(DUE, sum(len(run.chunk) for run in runs))
    queue.ensure_letters().add(Letter(runs, DUE), sink)
    if queue.ready:
        queue.agenda |= DISPATCH


def _at_once(queue: Contents) -> int:
    return 0


def _forget_ranks(queue: Contents, now: Now, sink: Sink) -> None:
    """The dead ones; putting them in order is a part of what every command ends with."""
    if queue.ranks is not None and queue.ranks.forgetting:
        queue.ranks.forget_some()


def _ranks_due(queue: Contents) -> int:
    ranks, ranking = queue.ranks, queue.ranking
    return 0 if ranks is not None and (ranks.forgetting or (ranking is not None and ranking.more)) else NEVER


def _share(queue: Contents, now: Now, sink: Sink) -> None:
    if queue.shares is not None:
        queue.shares.tick(now.mono)


def _keep_pace(queue: Contents, now: Now, sink: Sink) -> None:
    if queue.pace is not None:
        queue.pace.tick(now.mono)


AGENDA: tuple[Entry, ...] = (
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
    Entry(agenda.TIMES, lambda q: min(q.delays.due, q.expiry.due), fall_due, by_wall=True),
)
"""In the order in which they go on, where several are due in one moment."""

_OF: dict[int, tuple[Entry, ...]] = {}


def _entries(bits: int) -> tuple[Entry, ...]:
    """The entries whose bits a queue has, in their order."""
    some = _OF.get(bits)
    if some is None:
        some = _OF[bits] = tuple([entry for entry in AGENDA if entry.bit & bits])
    return some


def is_due(queue: Contents, now: Now) -> bool:
    """Whether something should have happened by now."""
    bits = queue.agenda
    if not bits:
        return False
    if bits & agenda.AT_ONCE:
        return True
    return bool([entry for entry in _entries(bits) if entry.due(queue) <= (now.wall if entry.by_wall else now.mono)])


def next_deadline(queue: Contents) -> tuple[int | None, int | None]:
    """When to `tick` next, on the wall and on the monotonic clock; 0 is at once, None is never."""
    here = _entries(queue.agenda)
    wall = min([entry.due(queue) for entry in here if entry.by_wall], default=NEVER)
    mono = min([queue.attendance.expires, *[entry.due(queue) for entry in here if not entry.by_wall]])
    if queue.agenda & agenda.AT_ONCE:
        mono = 0
    return (wall if wall < NEVER else None), (mono if mono < NEVER else None)


def tick(queue: Contents, now: Now, sink: Sink) -> None:
    """Do what is due: leases end, delays end, messages expire; then dispatch."""
    for entry in AGENDA:  # one may be due for what the one before it did
        if entry.bit & queue.agenda and entry.due(queue) <= (now.wall if entry.by_wall else now.mono):
            entry.go_on(queue, now, sink)
    queue.carry_on(now, sink)
