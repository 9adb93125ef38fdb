"""Why a queue, or one message of it, is not delivered now: one sentence for every reason that holds.

It looks and changes nothing.  `QUEUE_REASONS` and `MESSAGE_REASONS` are lists of functions: a feature that holds
messages back adds its own there, so that nothing here knows it.  Times are told in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.core.queue import whereabouts
from penstock.core.queue.administering import DRAINING
from penstock.core.queue.dispatching.consumers import Consumer, TargetList
from penstock.core.queue.limits import refusing
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.view import Queue, queue_of
from penstock.core.queue.whereabouts import held_up_by, messages, named, told
from penstock.records.chunks import Now

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
    said = whereabouts.where(queue, lsn, now)
    if said is None:
        return []
    state = Reason(*said)
    out = [state]
    for function in MESSAGE_REASONS:
        out += function(queue, lsn, now)
    once = queue.settings.semantics == "at-most-once" or queue.settings.deliver == "durable"
    if lsn > durable and (once or state.code == "ready"):
        out.append(Reason("commit", f"it waits for its commit: the log is on disk up to LSN {durable}"))
    if state.code == "ready":
        others = [reason for reason in explain_queue(queue, now) if reason.code not in _OF_EMPTY]
        if ahead := whereabouts.before(queue, lsn):
            out.append(Reason("behind", f"{messages(ahead)} ready before it"))
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
    if not any(queue.places()):
        yield Reason("empty", "the queue is empty")
        return
    yield Reason("none_ready", "nothing is ready")


def _waiting(queue: Queue, now: Now) -> Iterator[Reason]:
    return (Reason(word, text) for word, text in whereabouts.not_ready(queue, now))


def _at_work(queue: Queue, now: Now) -> Iterator[Reason]:
    return (Reason(word, text) for word, text in whereabouts.at_work(queue))


def _full(queue: Queue, now: Now) -> Iterator[Reason]:
    if queue.holds_up(1):
        yield Reason("full", f"it holds its publishers up until there is room: {refusing.told(queue)}")


def _shares(queue: Queue, now: Now) -> Iterator[Reason]:
    return (Reason(word, text) for word, text in held_up_by(queue, now.mono))


def _takers(queue: Queue, now: Now) -> Iterator[Reason]:
    roster = queue.consumers
    if not roster:
        yield Reason("no_consumer", "it has no consumer")
        return
    limit = queue.settings.max_backlog
    if limit and queue.room <= 0:
        yield Reason("max_backlog", f"its max_backlog of {limit} is reached: {_are(queue.outstanding)} outstanding")
    if not queue.ready:
        return
    full = [_why_full(consumer) for consumer in roster]
    lists = dict.fromkeys(consumer.targets for consumer, why in zip(roster, full, strict=True) if why is None)
    if not lists:
        yield from filter(None, full[:CONSUMERS_MOST])
        if len(roster) > CONSUMERS_MOST:
            yield Reason("no_credit", f"{len(roster) - CONSUMERS_MOST} more consumers have no room either")
        return
    filters = [one for one in lists if one is not None]
    if None not in lists and all(queue.first_wanted(one) is None for one in filters):
        yield from (_unmatched(queue, one) for one in filters)


def _why_full(consumer: Consumer) -> Reason | None:
    """Why a consumer takes nothing now."""
    who = named(consumer)
    if consumer.paused:
        return Reason("no_credit", f"the connection of {who} takes no more bytes now")
    if consumer.room > 0:
        return None
    if consumer.standby:
        queue = queue_of(consumer)
        if queue.settings.single_active_consumer:
            active = queue.consumers[0]
            if active is not consumer and not active.standby:
                return Reason("standby", f"{who} waits: {named(active)} is the single active consumer")
        if queue.waits_for_filters:
            return Reason("standby", f"{who} waits until the filters of all have looked at what waits first")
        need = queue.settings.consumers_before_dispatch
        here = len(queue.consumers)
        return Reason("standby", f"{who} waits for other consumers: {here} of {need} are there")
    if not consumer.limit:
        return Reason("no_credit", f"{who} asked for a backlog of 0")
    shared = consumer.shared
    if shared is not None and shared.room <= 0:
        return Reason("no_credit", f"{who} has no credit: {shared.used} of the {shared.limit} it shares are out")
    return Reason("no_credit", f"{who} has no credit: it holds {consumer.outstanding} of {consumer.limit}")


def _unmatched(queue: Queue, targets: TargetList) -> Reason:
    text = targets.filter.text
    if queue.looks_on(targets):
        return Reason("filter", f"the filter {text!r} is still looking at what waits")
    return Reason("filter", f"the filter {text!r} matches none of the {queue.ready} that wait")


# -- one message


def _unwanted(queue: Queue, lsn: int) -> Iterator[Reason]:
    """Consumers whose filter does not let the message in, when there are no others."""
    roster = queue.consumers
    if not roster or any(consumer.targets is None for consumer in roster):
        return
    lists = dict.fromkeys(consumer.targets for consumer in roster if consumer.targets is not None)
    if any(lsn in one.found or one.back.has(lsn) for one in lists):
        return
    for one in lists:
        text = one.filter.text
        if one.parked or one.slot < 0 or queue.looks_on(one):
            yield Reason("filter", f"the filter {text!r} has not looked at it yet, as far as is known")
        else:
            yield Reason("filter", f"the filter {text!r} does not match it")


# -- words


def _are(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"


_OF_EMPTY = frozenset({"empty", "none_ready", "delayed", "leased", "dying", "inactive", "barrier", "full"})
"""What a look at the queue says of other messages."""

QUEUE_REASONS: list[QueueReasons] = [_halted, _nothing_ready, _waiting, _at_work, _full, _shares, _takers]
MESSAGE_REASONS: list[MessageReasons] = []
