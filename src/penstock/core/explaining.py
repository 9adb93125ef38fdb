"""Why a queue, or one message of it, is not delivered now: one sentence for every reason that holds.

It looks and changes nothing.  `QUEUE_REASONS` and `MESSAGE_REASONS` are lists of functions: a feature that holds
messages back adds its own there, so that nothing here knows it.  Times are told in UTC.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.target_list import TargetList
from penstock.core.queue.limits import refusing
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.runs import NEVER, Run
from penstock.core.queue.priority.order import PriorityOrder
from penstock.core.queue.settling.attempts import binding_limit
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.shares import told as told_shares
from penstock.core.queue.timed.moving import DRAINING
from penstock.core.queue.view import Queue
from penstock.records.chunks import Chunk, Now

CONSUMERS_MOST = 20
"""Consumers that a look at a queue tells of one by one."""


class Reason(NamedTuple):
    """One reason: a word for programs, a sentence for people."""

    code: str
    text: str


QueueReasons = Callable[[Queue, Now], Iterator[Reason]]
MessageReasons = Callable[[Queue, int, Now], Iterator[Reason]]


def explain_queue(queue: Queue, now: Now) -> list[Reason]:
    """Why nothing, or nothing more, of the queue is delivered now; empty when something can be at once."""
    return [reason for function in QUEUE_REASONS for reason in function(queue, now)]


def explain_message(queue: Queue, lsn: int, now: Now, durable: int) -> list[Reason]:
    """Where a message of the queue is, and what it waits for; empty when the queue does not have it.

    durable: the last LSN that is on disk.
    """
    state = _state(queue, lsn, now)
    if state is None:
        return []
    out = [state]
    for function in MESSAGE_REASONS:
        out += function(queue, lsn, now)
    once = queue.settings.semantics == "at-most-once" or queue.settings.deliver == "durable"
    if lsn > durable and (once or state.code == "ready"):
        out.append(Reason("commit", f"it waits for its commit: the log is on disk up to LSN {durable}"))
    if state.code == "ready":
        others = [reason for reason in explain_queue(queue, now) if reason.code not in _OF_EMPTY]
        out += _ahead(queue, lsn)
        out += others
        out += _unwanted(queue, lsn)
    return out


# -- a queue


def _halted(queue: Queue, now: Now) -> Iterator[Reason]:
    until = queue.paused_until
    if queue.draining:
        yield Reason("draining", "the server drains: it delivers nothing until `penstock drain --undo`, or a restart")
    if until == DRAINING:
        return
    if until >= NEVER:
        yield Reason("paused", "the queue is paused until somebody resumes it")
    elif until:
        yield Reason("paused", f"the queue is paused until {told(until)}")


def _nothing_ready(queue: Queue, now: Now) -> Iterator[Reason]:
    if queue.ready:
        return
    if not (queue.held or queue.leased or queue.delayed or queue.dying or queue.tail.count):
        yield Reason("empty", "the queue is empty")
        return
    yield Reason("none_ready", "nothing is ready")


def _waiting(queue: Queue, now: Now) -> Iterator[Reason]:
    if queue.delayed:
        due = queue.delays.scheduled.next_after(0) if queue.delays.scheduled.count else NEVER
        if queue.delays.retries.count:
            due = min(due, queue.delays.retries.head()[0])
        yield Reason("delayed", f"{_messages(queue.delayed)} delayed, the next until {told(due)}")
    if queue.leased:
        yield Reason("leased", f"{_messages(queue.leased)} leased")
    if queue.dying:
        letters = queue.letters
        yield Reason(
            "dying",
            f"{_messages(queue.dying)} on the way to the dead letters"
            if letters.due == NEVER
            else f"a full queue refuses the dead letters of {_messages(queue.dying)}; they are tried again in "
            f"{max(letters.due - now.mono, 0) / 1e6:.0f} s",
        )
    if queue.tail.count:
        yield Reason(
            "inactive",
            f"{_messages(queue.tail.count)} inactive behind the target depth of {queue.settings.target_queue_depth}",
        )
    first = queue.barriers.first
    if first is not None:
        yield Reason(
            "barrier",
            f"the barrier at LSN {first.lsn} waits until all before it is settled, and holds back "
            f"{_messages(queue.barriers.held - 1, '')}behind it",
        )


def _at_work(queue: Queue, now: Now) -> Iterator[Reason]:
    if queue.ranking is not None:
        yield Reason("ranking", "priorities of its messages are being worked out")
    if queue.older is not None:
        yield Reason("recovering", "older messages are being looked for in the log, and it waits for their order")
    if queue.expiry.busy:
        yield Reason("expiring", "messages that expired are being removed first")
    if queue.overfull:
        yield Reason("overfull", "what is beyond its limits is being removed first")
    if queue.onward is not None:
        yield Reason("onward", f"what is due here goes on to exchange '{queue.onward}', and to no consumer")


def _full(queue: Queue, now: Now) -> Iterator[Reason]:
    limits = queue.limits
    if limits is not None and limits.blocks and not limits.fit(queue, 1):
        yield Reason("full", f"it holds its publishers up until there is room: {refusing.told(queue)}")


def _shares(queue: Queue, now: Now) -> Iterator[Reason]:
    return (Reason(word, text) for word, text in told_shares.reasons(queue, now.mono))


def _takers(queue: Queue, now: Now) -> Iterator[Reason]:
    roster = queue.roster.all
    if not roster:
        yield Reason("no_consumer", "it has no consumer")
        return
    limit = queue.settings.max_backlog
    if limit and queue.room <= 0:
        yield Reason("max_backlog", f"its max_backlog of {limit} is reached: {_are(queue.outstanding)} outstanding")
    if not queue.ready:
        return
    free = [consumer for consumer in roster if _why_full(consumer) is None]
    if not free:
        for consumer in roster[:CONSUMERS_MOST]:
            if (why := _why_full(consumer)) is not None:
                yield why
        if len(roster) > CONSUMERS_MOST:
            yield Reason("no_credit", f"{len(roster) - CONSUMERS_MOST} more consumers have no room either")
        return
    if all(consumer.targets is not None for consumer in free):
        lists = dict.fromkeys(consumer.targets for consumer in free if consumer.targets is not None)
        if all(one.head(queue.main) is None for one in lists):
            for one in lists:
                yield _unmatched(queue, one)


def _why_full(consumer: Consumer) -> Reason | None:
    """Why a consumer takes nothing now."""
    who = named(consumer)
    if consumer.paused:
        return Reason("no_credit", f"the connection of {who} takes no more bytes now")
    if consumer.room > 0:
        return None
    if consumer.standby:
        if consumer.queue.settings.single_active_consumer:
            active = consumer.queue.roster.all[0]
            if active is not consumer and not active.standby:
                return Reason("standby", f"{who} waits: {named(active)} is the single active consumer")
        if consumer.queue.attendance.looking:
            return Reason("standby", f"{who} waits until the filters of all have looked at what waits first")
        need = consumer.queue.settings.consumers_before_dispatch
        here = len(consumer.queue.roster.all)
        return Reason("standby", f"{who} waits for other consumers: {here} of {need} are there")
    if not consumer.limit:
        return Reason("no_credit", f"{who} asked for a backlog of 0")
    shared = consumer.shared
    if shared is not None and shared.room <= 0:
        return Reason("no_credit", f"{who} has no credit: {shared.used} of the {shared.limit} it shares are out")
    return Reason("no_credit", f"{who} has no credit: it holds {consumer.outstanding} of {consumer.limit}")


def _unmatched(queue: Queue, targets: TargetList) -> Reason:
    text = targets.filter.text
    if targets.busy or targets.recheck or (targets.slot < 0 and targets.walked < queue.main.last()):
        return Reason("filter", f"the filter {text!r} is still looking at what waits")
    return Reason("filter", f"the filter {text!r} matches none of the {queue.ready} that wait")


# -- one message


def _state(queue: Queue, lsn: int, now: Now) -> Reason | None:
    """Where the message is, as the first of its reasons."""
    for consumer in queue.holders():
        for run in consumer.leases.held():
            if _has(run.chunk, lsn):
                return _held(consumer, run, now)
    for run in queue.delays.retries.runs():
        if _has(run.chunk, lsn):
            times = f"{run.tally.failures} failure{'' if run.tally.failures == 1 else 's'}"
            return Reason("delayed", f"it is delayed until {told(run.deadline)}, after {times}{_limit(queue)}")
    if queue.delays.scheduled.count:
        (due,) = queue.delays.scheduled.times_of(range(lsn, lsn + 1)).tolist()
        if due >= 0:
            return Reason("delayed", f"it is delayed until {told(due)}")
    for run in queue.letters.runs():
        if _has(run.chunk, lsn):
            return Reason("dying", "it has expired, and its dead letter is being written")
    barriers = queue.barriers
    for barrier in barriers.waiting():
        if barrier.lsn == lsn:
            return Reason("barrier", "it is a barrier, and waits until all before it is settled")
        held = [] if barrier.main is None else list(barrier.main.chunks())
        held += [] if barrier.back is None else [run.chunk for run in barrier.back.runs()]
        if any(_has(chunk, lsn) for chunk in held):
            return Reason("barrier", f"it is held back by the barrier at LSN {barrier.lsn}")
    if queue.older is not None and any(_has(chunk, lsn) for chunk in queue.older.chunks):
        return Reason("recovering", "older messages are being looked for in the log, and it waits for their order")
    if queue.tail.count and queue.tail.has(lsn):
        depth = queue.settings.target_queue_depth
        return Reason("inactive", f"it is inactive behind the target depth of {depth}")
    if queue.main.count and queue.main.has(lsn):
        return Reason("ready", "it is ready")
    if (waits := told_shares.where(queue, lsn)) is not None:
        word, text, front = waits
        holder = _state(queue, front, now) if front else None
        return Reason(word, f"{text}, of which is said: {holder.text}" if holder is not None else text)
    for run in queue.returned.runs():
        if _has(run.chunk, lsn):
            many = f"{run.tally.deliveries} deliver{'y' if run.tally.deliveries == 1 else 'ies'}"
            return Reason("ready", f"it is ready again, after {many}{_limit(queue)}")
    return None


def _held(consumer: Consumer, run: Run, now: Now) -> Reason:
    who = named(consumer)
    if run.place == SLOT:
        return Reason("delivered", f"it was delivered, at most once, to {who}")
    if consumer.fenced:
        return Reason("leased", f"it is planned for the {consumer.tag.replace(':', ' ', 1)}")
    until = f" until {told(now.wall + run.deadline - now.mono)}" if run.deadline else ", and its lease has no end"
    return Reason("leased", f"it is leased by {who}{until}, attempt {run.tally.deliveries}")


def _ahead(queue: Queue, lsn: int) -> Iterator[Reason]:
    """How many stand before a message that is ready, where they stand in order of arrival."""
    if isinstance(queue.main, PriorityOrder) or not queue.main.has(lsn):
        return
    count = _below(queue.main, lsn) + sum(run.below((lsn, lsn)) for run in queue.returned.runs())
    if count:
        yield Reason("behind", f"{_messages(count)} ready before it")


def _below(main: Main, lsn: int) -> int:
    return sum(bisect_left(chunk, lsn) for chunk in main.chunks())


def _unwanted(queue: Queue, lsn: int) -> Iterator[Reason]:
    """Consumers whose filter does not let the message in, when there are no others."""
    roster = queue.roster.all
    if not roster or any(consumer.targets is None for consumer in roster):
        return
    lists = dict.fromkeys(consumer.targets for consumer in roster if consumer.targets is not None)
    if any(lsn in one.found or lsn in one.recalled for one in lists):
        return
    for one in lists:
        text = one.filter.text
        if one.busy or one.parked or one.recheck or one.slot < 0:
            yield Reason("filter", f"the filter {text!r} has not looked at it yet, as far as is known")
        else:
            yield Reason("filter", f"the filter {text!r} does not match it")


# -- words


def named(consumer: Consumer) -> str:
    """A consumer for people."""
    if consumer.client and consumer.client != consumer.tag:
        return f"consumer '{consumer.tag}' of client '{consumer.client}'"
    return f"consumer '{consumer.tag or consumer.client}'"


def told(wall: int) -> str:
    """A moment, to the millisecond."""
    try:
        moment = datetime.fromtimestamp(wall // 1_000_000, UTC).replace(microsecond=wall % 1_000_000 // 1000 * 1000)
    except (ValueError, OverflowError, OSError):
        return f"{wall // 1_000_000} s after 1970"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _limit(queue: Queue) -> str:
    limit = binding_limit(queue.settings)
    return "" if limit is None else f"; {limit[0]} allows {limit[1]} deliveries"


def _are(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"


def _messages(count: int, verb: str | None = None) -> str:
    noun = "message" if count == 1 else "messages"
    if verb is None:
        return f"{count} {noun} {'is' if count == 1 else 'are'}"
    return f"{count} {noun} {verb}"


def _has(chunk: Chunk, lsn: int) -> bool:
    if isinstance(chunk, range):
        return lsn in chunk
    at = bisect_left(chunk, lsn)
    return at < len(chunk) and chunk[at] == lsn


_OF_EMPTY = frozenset({"empty", "none_ready", "delayed", "leased", "dying", "inactive", "barrier", "full"})
"""What a look at the queue says of other messages."""

QUEUE_REASONS: list[QueueReasons] = [_halted, _nothing_ready, _waiting, _at_work, _full, _shares, _takers]
MESSAGE_REASONS: list[MessageReasons] = []

__all__ = ["MESSAGE_REASONS", "QUEUE_REASONS", "Reason", "explain_message", "explain_queue"]
