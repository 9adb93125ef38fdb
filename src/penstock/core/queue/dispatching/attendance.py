"""Who attends to a queue: which of its consumers may be given something, how long deliveries stay unsettled, and since
when nobody consumes, gets or declares.

It knows consumers and the monotonic clock; it takes no message away.  Deleting a queue is not a queue's own to do: the
commands ask `unused` (`core.commands.deliveries`).

What nobody can be given, because its body cannot be read, is leased to nobody, without an end.  It is neither dropped
nor settled: it stays in the queue, counts as leased, and holds what retention would delete.  But it is in nobody's
backlog, nor in that of the queue, so that one damaged batch takes nobody's credit for long.  Whoever may settle what
others hold can settle it; a restart makes it ready, since a lease dies with the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.effects import Overdue, Sink
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.settling.settle import time_out
from penstock.records.chunks import Chunk, Now
from penstock.records.queue_settings import QueueSettings

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents


def muster(queue: Contents, now: Now) -> None:
    """Somebody came or went, or a setting changed: say who may be given something."""
    settings, consumers = queue.settings, queue.roster.all
    held_back = False
    if settings.consumers_before_dispatch:
        here = queue.ensure_attendance()
        here.looking = False
        if not consumers:
            here.began, here.opens = False, NEVER
        elif not here.began:
            if len(consumers) >= settings.consumers_before_dispatch:
                here.looking = bool(queue.targets.lists)
                if not here.looking:
                    here.began, here.opens = True, NEVER
            elif here.opens == NEVER and settings.delay_before_dispatch is not None:
                here.opens = now.mono + settings.delay_before_dispatch
        held_back = not here.began
    for place, consumer in enumerate(consumers):
        standby = held_back or (settings.single_active_consumer and place > 0)
        if consumer.standby != standby:
            consumer.standby = standby
            consumer.set_limit()
            if not standby:
                queue.roster.wake(consumer)
    note_use(queue, now)


def looked(queue: Contents, now: Now) -> None:
    """Filters have looked at what waits first: those who came to wait are given something.

    Without that who has no filter would have been given all that it takes before the others take part.
    """
    here = queue.ensure_attendance()
    here.began, here.looking, here.opens = True, False, NEVER
    muster(queue, now)


def note_use(queue: Contents, now: Now) -> None:
    """Somebody consumes, gets, declares, or did until now."""
    expires = queue.settings.queue_expires
    if expires is None:
        return
    here = queue.ensure_attendance()
    here.used = now.mono
    if queue.roster.all:
        here.expires = NEVER
    elif here.expires == NEVER:  # else it is looked at then, and once more
        here.expires = now.mono + expires


def unused(queue: Contents, now: Now) -> bool:
    """Whether the queue's time without use is over; if not, when to look again is set."""
    expires = queue.settings.queue_expires
    here = queue.attendance
    if here.expires > now.mono:
        return False
    if expires is None or queue.roster.all:
        here.expires = NEVER
        return False
    here.expires = here.used + expires
    return here.expires <= now.mono


def altered(queue: Contents, now: Now, before: QueueSettings) -> None:
    """Other settings.  Who waits for others to come goes on waiting, unless the time for that is another."""
    here = queue.attendance
    if not (queue.settings.attended or here.began or any(one.standby for one in queue.roster.all)):
        if here.expires != NEVER:
            here.expires = NEVER
        watch_again(queue)
        return
    here = queue.ensure_attendance()
    here.expires = NEVER
    if not queue.settings.consumers_before_dispatch:
        here.began, here.looking, here.opens = False, False, NEVER
    elif queue.settings.delay_before_dispatch != before.delay_before_dispatch:
        here.opens = NEVER
    muster(queue, now)
    watch_again(queue)


def active_tag(queue: Contents) -> str | None:
    """Who gets everything, where one consumer alone does."""
    consumers = queue.roster.all
    return consumers[0].tag if queue.settings.single_active_consumer and consumers else None


# -- deliveries that nobody settles


def watch(queue: Contents, due: int) -> None:
    """A delivery went out that may stay unsettled until then."""
    if due < queue.attendance.overdue:
        queue.ensure_attendance().overdue = due


def watch_again(queue: Contents) -> None:
    """Look through what is held for when the first of it is out for too long."""
    due = NEVER
    for consumer in queue.holders():
        if consumer.timeout and not consumer.reported and (granted := consumer.leases.oldest_grant()):
            due = min(due, granted + consumer.timeout)
    if due < NEVER or queue.attendance.overdue < NEVER:
        queue.ensure_attendance().overdue = due


def look(queue: Contents, now: Now, sink: Sink) -> None:
    """What is due: dispatch begins, deliveries that stayed out for too long go back."""
    here = queue.attendance
    if here.opens <= now.mono:
        here.began, here.opens = True, NEVER
        muster(queue, now)
    if here.overdue > now.mono:
        return
    for consumer in list(queue.holders()):
        timeout = consumer.timeout
        if not timeout or consumer.leaving or consumer.reported:
            continue
        granted = consumer.leases.oldest_grant()
        if not granted or granted + timeout > now.mono:
            continue
        if consumer.on_overdue is not None:
            consumer.reported = consumer.choked = True  # what it holds goes back with its channel
            sink.effect(Overdue(consumer.on_overdue, timeout))
            continue
        time_out(queue, now, consumer, consumer.leases.granted_until(now.mono - timeout), "timeout", sink)
    watch_again(queue)


NOBODY = 0
"""Serial number of the holder that is nobody; consumers have higher ones."""


def set_aside(queue: Contents, consumer: Consumer, chunk: Chunk) -> int:
    """Take these from a consumer that holds them; how many.  What it does not hold is left alone."""
    runs = consumer.leases.take(chunk)[0]
    if not runs:
        return 0
    count, slots = queue.freed(consumer, runs)
    kept = [run for run in runs if run.place != SLOT]
    if kept:
        holder = nobody(queue)
        if holder is None:
            holder = Consumer(queue, NOBODY, tag="", holder=None, passive=True)
            holder.closed = True  # it is forgotten once it holds nothing
            queue.enlist(holder)
        for run in kept:
            run.deadline = 0
            holder.leases.add(run)
        queue.leased += count - slots
    return count


def nobody(queue: Contents) -> Consumer | None:
    """Who holds what is set aside; None when nothing is."""
    return next((holder for holder in queue.holders() if holder.serial == NOBODY), None)


def count_aside(queue: Contents) -> int:
    """How many messages are set aside."""
    holder = nobody(queue)
    return holder.leases.count if holder is not None else 0
