"""How messages flow through a queue: as they arrive, as time passes, and where steps go on that stopped at a bound.

What arrives passes the stages that the queue has, stands in its order, and is offered to consumers.  What comes back,
or is due, passes the same stages from the first on (`stages.come_back`, `put_back`); what came free is let go on from
the last to the first (`Queue.offer_all`).

| stage | before the next because |
| --- | --- |
| limits | what one gives way to another for shows within a batch: it says how many may be decided as a whole |
| ranks | whoever places a message asks for its rank |
| scheduled | what is due enters like a newcomer: all below see it then |
| expiry | what is over must not replace another, nor take a turn |
| ownership | what is another site's is ready for nobody here |
| last value | before all that hold back: of a key one alone waits |
| shares | keys say who may be offered what; what stands in line is ready, and in no order |
| barrier, priority, depth | the orders of a queue: one of them takes all that is left; none: the main order does |

A plain queue has no stage: an arrival is one append.  The stages of scheduled messages, deadlines, last values and
shares are here, the others beside what else is done with their part of the queue.

| on the agenda | goes on before the next because |
| --- | --- |
| pause | it says whether anything may be given out |
| attempts, those who left | what they give back, or out, is like any other in what follows |
| ranks, shares, pace, attendance | they say who may be given what |
| dead letters, leases | what ends here may be delayed, or expire, in the same moment |
| delays and deadlines | in the order of the stages |

After these comes what every command ends with: what is over a limit goes, and what is ready is given out.  What is due
in the queue of an exchange at which messages wait goes on to the exchange and to nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue import whole
from penstock.core.queue.administering import pause_due
from penstock.core.queue.contents import Contents
from penstock.core.queue.dispatching import attendance, joining
from penstock.core.queue.dispatching.dispatch import dispatch, room_now, some_fill_nothing, straight
from penstock.core.queue.due import expire_due, fall_due
from penstock.core.queue.expiry import Ints, deadlines, queue_deadline
from penstock.core.queue.held import BEHIND_BARRIERS, BEHIND_DEPTH
from penstock.core.queue.order.ranking import BY_PRIORITY, RANKED
from penstock.core.queue.order.runs import NEVER, Run, packed, sorted_chunk, view
from penstock.core.queue.owning import ELSEWHERE
from penstock.core.queue.parts import NO_EXPIRY
from penstock.core.queue.settling.attempts import spent
from penstock.core.queue.settling.letters import Letter
from penstock.core.queue.settling.settle import time_out
from penstock.core.queue.stages import Newcomers, Plan, Stage, append_rest, plan_of, stages_of
from penstock.core.queue.staging import Told
from penstock.core.queue.trimming import BOUNDED
from penstock.core.queue.whole import ATTEMPTS, DISPATCH
from penstock.records.causes import DUE, TIME_LIMIT
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes


class _Scheduled(Stage):
    """What is not due yet waits among what is delayed."""

    def wanted(self, new: Newcomers) -> bool:
        return new.not_before is not None

    def admit(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        if new.not_before is None:
            return
        later = [(lsn, when) for lsn, when in zip(new.chunk, new.not_before, strict=True) if when > now.wall]
        if later:
            lsns = [lsn for lsn, _ in later]
            queue.ensure_delays().schedule(lsns, [when for _, when in later])
            new.delayed = as_chunk(lsns)


class _Expiring(Stage):
    """Deadlines are worked out.  What is over does not go in, what is over at this moment is offered once."""

    def present(self, queue: Contents) -> bool:
        settings = queue.settings
        return settings.expiration is not None or settings.message_ttl is not None or queue.expiry is not NO_EXPIRY

    def wanted(self, new: Newcomers) -> bool:
        return new.expires_at is not None

    def cut(self, queue: Contents, now: Now, new: Newcomers) -> int:
        if queue.shares is None:
            return len(new)
        at_once = 0 in (queue.settings.expiration, queue.settings.message_ttl)  # it then keeps none of its key waiting
        return 1 if at_once or (new.expires_at is not None and now.wall in new.expires_at) else len(new)

    def admit(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        common = queue_deadline(queue.settings, now.wall)
        sent = None if new.batch is None or (new.expires_at is None and not common) else new.batch.sent_at
        if sent is not None:
            self._admit_sent(queue, now, new, sent)
            return
        if new.expires_at is None or not any(new.expires_at):
            if common:
                queue.ensure_expiry().add(new.chunk, common)
            elif not queue.expiry.empty:
                queue.expiry.part()
            return
        self._admit_each(
            queue, now, new, deadlines(queue.settings, now.wall, np.array(new.expires_at, dtype=np.int64)), common
        )

    def _admit_sent(self, queue: Contents, now: Now, new: Newcomers, sent: Sequence[int]) -> None:
        """The same of what another site took: it is as old as it is there."""
        rows = range(len(sent)) if new.rows is None else new.rows
        taken = np.array([sent[row] for row in rows], dtype=np.int64)
        own = np.zeros(len(new), dtype=np.int64) if new.expires_at is None else np.array(new.expires_at, dtype=np.int64)
        times = deadlines(queue.settings, taken, own)
        if times.any():
            self._admit_each(queue, now, new, times, int(times[-1]))
        elif not queue.expiry.empty:
            queue.expiry.part()

    def _admit_each(self, queue: Contents, now: Now, new: Newcomers, times: Ints, common: int) -> None:
        """A deadline for each; many may have the common one."""
        lsns = view(new.chunk)
        past = (times > 0) & (times < now.wall)
        if new.delayed is not None:
            past &= ~np.isin(lsns, view(new.delayed), assume_unique=True)
        queue.ensure_expiry().add_each(lsns[~past], times[~past], common)
        new.dead = packed(lsns[past]) if past.any() else None

    def entered(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        if new.dead is not None:
            queue.expire([Run(new.dead, False)], TIME_LIMIT, sink)

    def ended(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        if queue.expiry.due > now.wall:
            return
        while queue.agenda & DISPATCH:
            queue.give_out(now, sink)
        expire_due(queue, now, sink)
        if queue.barriers.held or queue.tail.count:  # one may have waited for those alone
            queue.give_out(now, sink)


class _Replacing(Stage):
    """Newcomers replace the older ones of their keys, once everybody was offered something.

    Where others are held back, or give way, each is over before the next comes: what it replaces lets the next in.
    """

    def present(self, queue: Contents) -> bool:
        return queue.last_values is not None

    def cut(self, queue: Contents, now: Now, new: Newcomers) -> int:
        return len(new) if queue.shares is None and queue.limits is None else 1

    def admit(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        if queue.last_values is not None:
            keys = [0] * len(new) if new.last_keys is None else new.last_keys
            queue.last_values.add(queue, new.chunk, keys, new.gone)

    def readmit(self, queue: Contents, run: Run) -> list[Run]:
        if queue.last_values is not None:
            queue.last_values.came_back(run)
        return [run]

    def delayed(self, queue: Contents, run: Run) -> None:
        if queue.last_values is not None:
            queue.last_values.came_back(run)

    def prepare(self, queue: Contents, sink: Sink) -> None:
        if queue.last_values is not None and queue.last_values.waiting:
            queue.last_values.settle(queue, sink)

    def offered(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        if queue.last_values is not None:
            while queue.agenda & DISPATCH:  # who has room is given each before a later one of the batch replaces it
                dispatch(queue, now, sink)
            queue.last_values.settle(queue, sink)


REPLACING = _Replacing()


class _Shared(Stage):
    """Some are offered, some wait for others of their keys."""

    def present(self, queue: Contents) -> bool:
        return queue.shares is not None

    def cut(self, queue: Contents, now: Now, new: Newcomers) -> int:
        """Of those that a turn would order as many go as they come as there is room for; then it is asked again."""
        if queue.shares is None or queue.shares.tenants is None or not some_fill_nothing(queue):
            return len(new)
        return max(room_now(queue, now), 1)

    def admit(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        shares = queue.shares
        if shares is None:
            return
        shares.mono = now.mono
        room = 0 if shares.tenants is None else room_now(queue, now)
        away = [part for part in (new.dead, new.elsewhere) if part]
        new.taken = shares.arrive(queue, new.chunk, new.keys, new.delayed, sorted_chunk(away) if away else None, room)
        if new.taken is None:
            return
        if queue.weight >= 0:
            queue.weight += queue.sizes.total(new.taken)
        if queue.targets.lists:
            queue.targets.foreseen.look(queue.targets, new.taken, new.chunk, new.batch, new.rows)

    def readmit(self, queue: Contents, run: Run) -> list[Run]:
        offered = run if queue.shares is None else queue.shares.come_back(queue, run)
        return [] if offered is None else [offered]

    def left(self, queue: Contents, runs: Sequence[Run]) -> bool:
        return queue.shares is not None and queue.shares.left(queue, runs)

    def prepare(self, queue: Contents, sink: Sink) -> None:
        if queue.shares is not None:
            queue.shares.ask(queue, sink)

    def offered(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        if queue.shares is not None:
            if queue.shares.tenants is not None and not queue.agenda & DISPATCH:
                queue.shares.tenants.come_again()
            queue.shares.ask(queue, sink)

    def release(self, queue: Contents, now: Now, sink: Sink) -> None:
        shares = queue.shares
        if shares is not None and shares.staging:
            done = not queue.agenda & DISPATCH and not queue.targets.asked
            shares.ask(queue, sink, done and room_now(queue, now) > 0)


SCHEDULED, EXPIRING, SHARED = _Scheduled(), _Expiring(), _Shared()


STAGES: tuple[Stage, ...] = (
    BOUNDED, RANKED, SCHEDULED, EXPIRING, ELSEWHERE, REPLACING, SHARED, BEHIND_BARRIERS, BY_PRIORITY, BEHIND_DEPTH,
)  # fmt: skip


def arrive(
    queue: Contents,
    now: Now,
    chunk: Chunk,
    sink: Sink,
    *,
    batch: Publishes | None = None,
    rows: Sequence[int] | None = None,
    expires_at: Sequence[int] | None = None,
    not_before: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
    keys: Sequence[Told] | None = None,
    last_keys: Sequence[int] | None = None,
    barriers: Sequence[int] | None = None,
) -> None:
    """Take messages (ascending, newer than all before), then dispatch.  What the others are: see `Newcomers`."""
    if not len(chunk):
        return
    plan = stages_of(queue).stages
    if not plan and expires_at is None and not_before is None and barriers is None:
        if straight(queue, now, chunk, sink):
            return
        if queue.is_due(now):
            queue.tick(now, sink)
        if queue.targets.lists:
            queue.targets.arrive(chunk, batch, rows, queue.main)
        queue.ensure_main().append(chunk)
        queue.offer_all(now, sink)
        if queue.targets.lists or queue.attendance.looking:
            queue.look_on(now, sink)
        return
    new = Newcomers(chunk, batch, rows, expires_at, not_before, ranks, keys, last_keys, barriers)
    _pass(queue, now, new, plan, sink)


def _pass(queue: Contents, now: Now, new: Newcomers, plan: Sequence[Stage], sink: Sink) -> None:
    """Newcomers pass the stages of the queue, and those that they bring with them, in parts decided as a whole."""
    while True:
        queue.catch_up(now, sink)
        stages = [stage for stage in STAGES if stage in plan or stage.wanted(new)]
        count = len(new)
        if count > 1:
            count = min([stage.cut(queue, now, new) for stage in stages])
        if count == len(new):
            _enter(queue, now, new, stages, sink)
            return
        _enter(queue, now, new.part(0, count), stages, sink)
        new = new.part(count, len(new))


def plan(queue: Contents) -> Plan:
    """The stages of a queue as it is now."""
    queue.plan = out = plan_of(tuple([stage for stage in STAGES if stage.present(queue)]))
    return out


def _enter(queue: Contents, now: Now, new: Newcomers, stages: Sequence[Stage], sink: Sink) -> None:
    """Newcomers that may be decided as a whole."""
    for stage in stages:
        stage.begin(queue, now, new, sink)
    for stage in stages:
        stage.admit(queue, now, new, sink)
    append_rest(queue, new)
    for stage in stages:
        stage.entered(queue, now, new, sink)
    queue.offer_all(now, sink)
    for stage in stages:
        stage.offered(queue, now, new, sink)
    queue.look_on(now, sink)
    for stage in reversed(stages):
        stage.ended(queue, now, new, sink)


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that a queue may have to come back to."""

    bit: int
    due: Callable[[Contents], int]  # when; 0: at once
    go_on: Callable[[Contents, Now, Sink], None]
    by_wall: bool = False  # `due` is told by the wall clock


def end_leases(queue: Contents, now: Now, sink: Sink) -> None:
    """Take what ended back, a step of it at most; `lease_due` has passed while there is more."""
    queue.lease_due = NEVER
    in_order = queue.leases_in_order
    most = queue.step_most
    for consumer in [one for one in queue.holders() if not one.leaving]:
        runs = consumer.leases.ended(now.mono, in_order, most) if most > 0 else []
        if runs:
            most -= sum(len(run.chunk) for run in runs)
            time_out(queue, now, consumer, runs, "lease", sink)
        deadline = consumer.leases.next_deadline(in_order)
        if deadline:
            queue.leased_until(deadline)
    if not queue.outstanding:
        queue.leases_in_order = True


def expire_spent(queue: Contents, sink: Sink) -> None:
    queue.agenda &= ~ATTEMPTS
    over: dict[tuple[str, ...], list[Chunk]] = {}
    for place in queue.places("ready", "held"):
        for run in place.back():
            over.setdefault(spent(run.tally, queue.settings), []).append(run.chunk)
    for reasons, chunks in over.items():
        if reasons:
            queue.expire(queue.extract(sorted_chunk(chunks)), ",".join(reasons), sink)


STEP = 4096
"""Messages that set out in one step."""


def depart(queue: Contents, sink: Sink) -> None:
    """What is ready leaves: its body is asked for, and it counts as dying until it is published."""
    runs = queue.take_ready(STEP)
    queue.counted().expired(DUE, sum(len(run.chunk) for run in runs))
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
    Entry(whole.PAUSE, lambda q: q.paused_until or NEVER, lambda q, _, sink: pause_due(q, 0, sink), by_wall=True),
    Entry(whole.ATTEMPTS, _at_once, lambda q, _, sink: expire_spent(q, sink)),
    Entry(whole.LEAVING, _at_once, joining.leave),
    Entry(whole.RANKS, _ranks_due, _forget_ranks),
    Entry(whole.SHARES, lambda q: NEVER if q.shares is None else q.shares.due, _share),
    Entry(whole.PACE, lambda q: NEVER if q.pace is None else q.pace.due, _keep_pace),
    Entry(whole.ATTENDANCE, lambda q: q.attendance.due, attendance.look),
    Entry(whole.LETTERS, lambda q: q.letters.due, lambda q, now, sink: q.letters.wake(now.mono, sink)),
    Entry(whole.LEASES, lambda q: q.lease_due, end_leases),
    Entry(whole.TIMES, lambda q: min(q.delays.due, q.expiry.due), fall_due, by_wall=True),
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
    if bits & whole.AT_ONCE:
        return True
    if bits == whole.ATTENDANCE:  # most queues with consumers have nothing else to come back to
        attendance, mono = queue.attendance, now.mono
        return attendance.opens <= mono or attendance.overdue <= mono
    return bool([entry for entry in _entries(bits) if entry.due(queue) <= (now.wall if entry.by_wall else now.mono)])


_NOTHING = None, None


def next_deadline(queue: Contents) -> tuple[int | None, int | None]:
    """When to `tick` next, on the wall and on the monotonic clock; 0 is at once, None is never."""
    bits, attendance = queue.agenda, queue.attendance
    if not bits or bits == whole.ATTENDANCE:
        mono = attendance.expires
        if bits:
            mono = min(mono, attendance.opens, attendance.overdue)
        return (None, mono) if mono < NEVER else _NOTHING
    here = _entries(bits)
    wall = min([entry.due(queue) for entry in here if entry.by_wall], default=NEVER)
    mono = min([attendance.expires, *[entry.due(queue) for entry in here if not entry.by_wall]])
    if bits & whole.AT_ONCE:
        mono = 0
    return (wall if wall < NEVER else None), (mono if mono < NEVER else None)


def tick(queue: Contents, now: Now, sink: Sink) -> None:
    """Do what is due: leases end, delays end, messages expire; then dispatch."""
    for entry in AGENDA:  # one may be due for what the one before it did
        if entry.bit & queue.agenda and entry.due(queue) <= (now.wall if entry.by_wall else now.mono):
            entry.go_on(queue, now, sink)
    queue.carry_on(now, sink)
