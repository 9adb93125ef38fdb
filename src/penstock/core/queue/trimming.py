"""What gives way where more is ready than a limit allows, and the stage that says so.

| who calls | with what | what gives way |
| --- | --- | --- |
| `ended`, after newcomers were offered | a limit that drops the head | the head, until the limit holds (`trim`) |
| the same | a ring | as many of the head as newcomers stay beyond its size (`replace`) |
| `returned`, as something comes back | a ring | the oldest of what comes back (`returning`) |
| the end of every command | a limit that drops the head | the head, step by step (`TRIM` is on the agenda) |

`take_yielding` says who is at the head, for limits and rings alike.  Modes that refuse newcomers let nothing give way.

Drop-head: what is ready beyond a limit leaves from the head, and becomes a dead letter if there is a place for it.

One message at a time is the definition: a newcomer is offered to whoever has room, else it stays, and the head goes
while there is too much.  For a batch this is done once, at its end.  Within a batch room is only used, never freed, so
what stands at the head and was not dispatched before it would not be dispatched during it; and what is left is in both
cases the longest tail of the queue that fits.

What returns takes its own place first, and then the head goes: the oldest give way, returned ones or not.

Who gives way first is the oldest, and in a queue with priorities the oldest of the lowest.  RabbitMQ's priority queues
let the head of the *highest* level go, which nobody is promised and nobody wants: the most urgent would be lost first.
Here what would be served last gives way, and of a level what is oldest; so what is left of a batch is the same whether
it is looked at as a whole or message by message.

Ring queues: an arrival beyond the size replaces the message at the head; what comes back to a full ring is replaced.
It differs from drop-head in three ways.  An arrival removes one message at most, so a ring that was made smaller keeps
its length until consumers bring it down.  What returns gives way itself, the newest of them last, for a ring prefers
what is new.  And what is replaced is nobody's dead letter, unless an action asks for it by the reason `replaced`.

    leased and delayed messages are outside the size; a scheduled one that is due enters at the head
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.limits import limits_of
from penstock.core.queue.order.priority import PriorityOrder
from penstock.core.queue.order.returned import PriorityReturned
from penstock.core.queue.order.runs import NEVER, Run, view
from penstock.core.queue.order.standing import LOW, place_of
from penstock.core.queue.stages import Newcomers, Stage
from penstock.core.queue.staging import ascending_chunk
from penstock.core.queue.whole import DISPATCH, TRIM
from penstock.records.causes import MAXLEN, REPLACED
from penstock.records.chunks import Now

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents


NO_RANK = -(1 << 63) - 1
"""Before all ranks."""

ALONE = 16
"""A message that is taken alone takes the time of so many others."""

LOOK = 1024
"""Messages at the head whose sizes are looked at together."""


def take_yielding(queue: Contents, count: int) -> list[Run]:
    """Take up to `count` of those that give way first, in that order."""
    if queue.shares is not None:
        return _of_all(queue, count)
    main = queue.main
    if not isinstance(main, PriorityOrder):
        return queue.take_ready(count)
    out: list[Run] = []
    while count > 0 and queue.ready:
        runs = _of_the_lowest(queue, main, count)
        taken = sum([len(run.chunk) for run in runs])
        if queue.weight >= 0:
            queue.weight -= queue.weight_of(runs)
        count -= taken
        out += runs
    return out


def _of_the_lowest(queue: Contents, main: PriorityOrder, count: int) -> list[Run]:
    """Some of the lowest priority, the oldest first."""
    returned = queue.returned
    back: PriorityReturned | None = returned if isinstance(returned, PriorityReturned) and returned.count else None
    rank = main.last_rank() if main.count else NO_RANK
    last = NO_RANK if back is None else back.last_rank()
    if back is None or last < rank:
        return main.take_last(count, last)
    if last > rank:
        runs = back.take_last(count, rank)
    elif runs := main.take_of(rank, count, back.first_of(rank)):
        return runs
    else:
        behind = main.behind(place_of(rank, 0))
        runs = back.take_of(rank, count, behind & LOW if behind is not None and behind >> 64 == rank else NEVER)
    for run in runs:
        queue.targets.left(run.chunk)
    return runs


def _of_all(queue: Contents, count: int) -> list[Run]:
    """The same where some that are ready stand in lines behind others."""
    assert queue.shares is not None
    yielding, limits = queue.shares.yielding, queue.limits
    out = list[Run]()
    while count > 0 and queue.ready:
        lsns = yielding.next(count)
        if not lsns:
            beyond = 0 if limits is None else queue.ready - limits.length
            yielding.look((run for _, run, _ in queue.standing("ready")), queue.ranks, max(count, beyond))
            continue
        runs = queue.extract_ready(ascending_chunk(lsns))
        count -= sum([len(run.chunk) for run in runs])
        out += runs
    return out


def _count_of_bytes(queue: Contents, excess: int, most: int) -> int:
    """How many of those that give way first have so many bytes together; some of them where that is not known."""
    main = queue.main
    if queue.shares is not None or queue.returned.count or not main.count or isinstance(main, PriorityOrder):
        return 1
    chunk = main.front(min(LOOK, most))
    return min(int(np.searchsorted(np.cumsum(queue.sizes.of(chunk)), excess)) + 1, len(chunk))


def trim(queue: Contents, sink: Sink, most: int = 0) -> None:
    """Let the head give way while a limit is exceeded: `most` messages (0: a step of them), then `TRIM` for the rest.

    Nothing is dispatched before it is over: what has to go must not be given out between two steps.
    """
    limits = queue.limits
    queue.agenda &= ~TRIM
    if limits is None or not limits.mode.drops_head or not limits.exceeded(queue):
        return
    if queue.last_values is not None and queue.last_values.waiting:
        queue.last_values.settle(queue, sink)  # nothing gives way to what a newer one replaced
        if not limits.exceeded(queue):
            return
    if _unknown(queue, sink):
        return
    most = most or queue.step_most
    count = min(queue.ready - limits.length, most)
    runs = take_yielding(queue, count) if count > 0 else []
    left = most - max(count, 0)
    while queue.weight > limits.size and left > 0:
        runs += take_yielding(queue, count := _count_of_bytes(queue, queue.weight - limits.size, left))
        left -= count if count > 1 else ALONE
    if limits.exceeded(queue):
        queue.agenda |= TRIM
    queue.evict(runs, MAXLEN, sink)


def _unknown(queue: Contents, sink: Sink) -> bool:
    """Whether who gives way is not known yet: who expires, who comes last, or who is taken at once."""
    if queue.expiry.busy or queue.ranking is not None:
        return True
    shares = queue.shares  # `Queue.keyed` offers what was told, and trims then
    return shares is not None and shares.staging.count > 0 and _have_room(queue) and shares.asks(queue, sink)


def _have_room(queue: Contents) -> bool:
    """Whether somebody may be given more."""
    if queue.halted or queue.room <= 0:
        return False
    return any(one.room > 0 and not one.choked for level in queue.roster.levels for one in level)


def replace(queue: Contents, count: int, sink: Sink) -> None:
    """So many arrivals stay where the ring has no room for them: as many others go from the head."""
    if count > 0:
        queue.evict(take_yielding(queue, count), REPLACED, sink)


def returning(queue: Contents, runs: list[Run], sink: Sink) -> list[Run]:
    """Of what comes back those that the ring has room for, the newest; the others are replaced.

    Their return is logged and they are in no state when this is called.
    """
    limits = queue.limits
    assert limits is not None
    room = max(limits.ring - queue.ready, 0)
    count = sum([len(run.chunk) for run in runs])
    if count > room and queue.last_values is not None:
        old, runs = queue.last_values.outdated(queue, runs)
        queue.evict(old, REPLACED, sink)  # and nobody gives way to them
        count = sum([len(run.chunk) for run in runs])
    excess = count - room
    if excess <= 0:
        return runs
    if excess >= count:
        queue.evict(runs, REPLACED, sink)
        return []
    lsns = np.concatenate([view(run.chunk) for run in runs])
    places = np.concatenate([view(run.chunk) if not run.place else np.full(len(run.chunk), run.where) for run in runs])
    order = np.lexsort((lsns, places))
    first = int(places[order[excess]]), int(lsns[order[excess]])  # the oldest that stays
    gone, kept = list[Run](), list[Run]()
    for run in runs:
        at = run.below(first)
        if at:
            gone.append(run.part(run.chunk[:at], True))
        if at < len(run.chunk):
            kept.append(run.part(run.chunk[at:], True))
    queue.evict(gone, REPLACED, sink)
    return kept


class _Bounded(Stage):
    """Something may have to give way to newcomers."""

    def present(self, queue: Contents) -> bool:
        return limits_of(queue.settings) is not None

    def cut(self, queue: Contents, now: Now, new: Newcomers) -> int:
        """As few as show who came between whom.

        That are keys, and filters that have to look at something first, where who gives way lets another go;
        priorities with dead letters or with sizes; and a ring with a limit beside it, where each arrival asks both.
        """
        limits, chunk = queue.limits, new.chunk
        if limits is None:
            return len(chunk)
        drops, ring = limits.mode.drops_head, limits.ring < NEVER
        if not (drops or ring):
            return len(chunk)
        if queue.shares is None and not queue.targets.stopped and not (drops and ring):
            by_rank = queue.ranks is not None and (limits.size < NEVER or queue.wants_letter(MAXLEN))
            if ring or not by_rank:
                return len(chunk)  # nobody depends on who came between whom
        fits = min(limits.length, limits.ring) - queue.ready
        if limits.size < NEVER and queue.weight + queue.sizes.total(chunk) > limits.size:
            fits = 1
        return min(len(chunk), max(fits, 1))

    def returned(self, queue: Contents, runs: list[Run], sink: Sink) -> list[Run]:
        limits = queue.limits
        return runs if limits is None or limits.ring == NEVER else returning(queue, runs, sink)

    def trim(self, queue: Contents, sink: Sink) -> None:
        trim(queue, sink)

    def begin(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        """Finish what has begun, as far as it matters.

        An older trim takes none of the newcomers, and a dispatch that stopped at its bound comes before theirs.
        """
        limits = queue.limits
        if limits is None:
            return
        while queue.agenda & TRIM and queue.roster.all and not queue.expiry.busy and queue.ranking is None:
            trim(queue, sink)
        while queue.agenda & DISPATCH and queue.ready + len(new) > limits.ring:
            queue.serve(now, sink)
        new.ready_before = queue.ready

    def ended(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        """Who has room was given some: go on with that while too much is ready, then let it go."""
        limits = queue.limits
        if limits is None:
            return
        while queue.agenda & DISPATCH and (queue.ready > limits.ring or limits.exceeded(queue)):
            dispatch(queue, now, sink)
        if queue.ready > limits.ring and queue.ranking is None:
            replace(queue, min(queue.ready - new.ready_before, queue.ready - limits.ring), sink)
        trim(queue, sink, NEVER)


BOUNDED = _Bounded()
