"""AMQP's consumers: what they may hold, how they begin, change their terms, and end; and basic.get.

x-replace: true     with the tag of a live consumer: other terms for it, and what it holds it keeps.  The queue is
                    the one named here; x-filter (empty text: none) and x-max-backlog stay where they are not named
a pattern           a name that no queue has, with one of `^ $ * + ? ( ) [ ] { } | \\` in it: the consumer gets from
                    every queue that matches, now or later, with one backlog for all of them
x-info: true        each delivery has the headers x-bookmark, x-delivery-count (from the second delivery on) and
                    x-lease-until (milliseconds since the epoch)
x-stream-offset     of a stream: first, last, next (where it says nothing), the offset of a message, a time, or an
                    age; where a time is in the log is looked up by a thread, and the connection waits
x-stream-filter     of a stream: what has one of these values in its header x-stream-filter-value; with
                    x-stream-match-unfiltered what has none, too
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import cast

from penstock.core.commands.subscription import STAYS, Narrow, Subscription
from penstock.core.queue.dispatching.consumers import UNLIMITED, Consumer, Credit
from penstock.core.queue.queue import Queue, queue_of
from penstock.core.topology.routing import REPLY_TO
from penstock.errors import InvalidArgument, PenstockError, PreconditionFailed, ProtocolError, ResourceLocked
from penstock.expr import Context, Filter, TopicPattern, compile_filter
from penstock.records.dataclass import dataclass
from penstock.records.declared_types import Operation
from penstock.records.field_tables import Timestamp
from penstock.server.amqp.channel import Channel, own
from penstock.server.amqp.consumer_arguments import BOOKMARK, OFFSET, count_of, filter_of, flag, told_of, values_of
from penstock.server.amqp.entitled import consuming
from penstock.server.amqp.queueless import cancel_replies, consume_from_bookmark, consume_replies
from penstock.server.amqp.session import Session, generated_name, refuse_reuse
from penstock.server.amqp.transaction import Answer
from penstock.server.people.entitlements import narrowed
from penstock.units import parse_age
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.conversation import QOS_OF_RUNNING


def qos(session: Session, channel: Channel, method: m.BasicQos) -> None:
    """basic.qos: what consumers may hold, of the channel or of each one started from now on.

    For a client that takes it so it holds for running consumers as well, each by itself.
    """
    if method.global_qos:
        limit = method.prefetch_count or UNLIMITED
        if channel.shared is None:
            channel.shared = Credit(limit)
        else:
            channel.shared.limit = limit
            if not session.outgoing.blocked:
                session.core.unchoke_all(session.engine.now(), list(channel.shared.consumers))
    else:
        channel.prefetch = method.prefetch_count
        if QOS_OF_RUNNING in session.machine.client_capabilities:
            most, own = method.prefetch_count or None, "x-max-backlog"
            running = [one for one in channel.consumers.values() if own not in (one.arguments or ())]
            some = [one for one in running if most or not queue_of(one).settings.type.offsets]
            session.core.bound(session.engine.now(), some, most)
    channel.reply(m.BasicQosOk())


OF_TOPICS = {
    "x-select": "work of a queue comes whole",
    "x-timestamp": "only what is read from topics tells when it was stored",
    "x-live": 'a queue has deliver = "early"',
    "x-fully-durable": 'a queue has deliver = "durable"',
    "x-rate": "a queue gives what its consumer has room for",
    "x-rate-max-gap": "a queue gives what its consumer has room for",
    "x-bookmark-not-found": "there is none to be found",
}


def consume(session: Session, channel: Channel, method: m.BasicConsume) -> None:
    """basic.consume: of one queue; of several, from a bookmark, or of answers, elsewhere."""
    channel.attend()
    tag = method.consumer_tag or generated_name("amq.ctag-")
    arguments = cast("Mapping[str, object]", method.arguments)
    if method.queue == REPLY_TO or BOOKMARK in arguments:
        if channel.has_consumer(tag):
            raise refuse_reuse(tag)
        if method.queue == REPLY_TO:
            consume_replies(session, channel, tag, method)
        else:
            consume_from_bookmark(session, channel, channel.queue_name(method.queue), tag, method)
        return
    name = channel.queue_name(method.queue)
    _consume_queues(Wanted(session, channel, name, tag, method, arguments, f"{session.peer}/{channel.number}"))
    session.engine.notices.unheard.consumer(session.vhost, name, arguments)


@dataclass(slots=True)
class Wanted:
    """What a basic.consume of queues asks for."""

    session: Session
    channel: Channel
    name: str  # of the queue, or a pattern
    tag: str
    method: m.BasicConsume
    arguments: Mapping[str, object]
    client: str
    filter: str | None = None
    max_backlog: int | None = None
    priority: int = 0

    def answer(self, consumers: Callable[[], Iterable[Consumer]]) -> None:
        """What they are granted is sent behind it: the client knows their tag then."""
        channel = self.channel
        if not self.method.nowait:
            if channel.answers:
                channel.unannounced = own(channel.unannounced)
                channel.unannounced.update((consumer, []) for consumer in consumers())
            channel.reply(m.BasicConsumeOk(self.tag), then=partial(_announce, channel, consumers))


def _announce(channel: Channel, consumers: Callable[[], Iterable[Consumer]]) -> None:
    for consumer in consumers():
        channel.announce(consumer)


def _consume_queues(wanted: Wanted) -> None:
    session, channel, arguments = wanted.session, wanted.channel, wanted.arguments
    for name, why in OF_TOPICS.items():
        if name in arguments:
            raise InvalidArgument(f"consumer argument {name} goes with {BOOKMARK}: {why}")
    here = Context(client_name=wanted.client, user=session.user, instance_name=session.core.instance)
    wanted.filter = filter_of(arguments, here, empty=flag(arguments, REPLACE))
    wanted.max_backlog = count_of(arguments, "x-max-backlog", 0)
    if flag(arguments, REPLACE):
        _replace(wanted)
        return
    if channel.has_consumer(wanted.tag):
        raise refuse_reuse(wanted.tag)
    if wanted.max_backlog is None and channel.prefetch:
        wanted.max_backlog = channel.prefetch
    wanted.priority = count_of(arguments, "x-priority", None) or 0
    if _is_pattern(session, wanted.name):
        count_of(arguments, "x-consumer-timeout", 0)  # refused where it is none
        _consume_from_several(wanted)
    elif (time := _time_of(session, wanted.name, arguments)) is None:
        _consume_from_one(wanted)
    else:
        _look_up(session, channel, time, partial(_consume_from_one, wanted))


def _time_of(session: Session, name: str, arguments: Mapping[str, object]) -> int | None:
    """The time (microseconds) from which on a consumer reads a stream; None where it does not ask for one."""
    queue, asked = session.core.find_queue(session.vhost, name), arguments.get(OFFSET)
    if queue is None or not queue.settings.type.offsets:
        return None
    if isinstance(asked, Timestamp):
        return int(asked) * 1_000_000
    if isinstance(asked, str):
        with contextlib.suppress(ValueError):
            return session.engine.now().wall - parse_age(asked)
    return None


def _look_up(session: Session, channel: Channel, time: int, begin: Callable[..., None]) -> None:
    """Have somebody else look where a time is in the log; what the connection sends waits meanwhile."""

    def go_on(first: int) -> None:
        if not channel.open:
            return
        try:
            begin(first=first)
        except PenstockError as error:
            session.fail_channel(channel.number, error, m.BasicConsume)

    look, off = partial(session.core.lsn_at, time), session.engine.replays.off
    if off is None:
        begin(first=look())
    else:
        session.incoming.hold()
        off(look, lambda first: session.incoming.go_on(partial(go_on, first)))


def _refuse_terms(
    queue: Queue, arguments: Mapping[str, object], *, together: bool, endless: bool, no_ack: bool
) -> None:  # fmt: skip
    """PreconditionFailed for what a queue of this type has no consumers with."""
    for strange in queue.settings.type.unheard & arguments.keys():
        what, kind = f"queue '{queue.name}' in vhost '{queue.vhost}'", queue.settings.type.name
        raise PreconditionFailed(f"invalid arg '{strange}' for {what} of queue type rabbit_{kind}_queue")
    if together:
        refuse_unsupported(queue, "global qos")
    if endless:
        refuse_unsupported(queue, "no prefetch")
    if no_ack:
        refuse_unsupported(queue, "no ack")


def _consume_from_one(wanted: Wanted, first: int | None = None) -> None:
    """basic.consume of one queue.  first: the LSN from which on a stream is read, where it is known."""
    session, channel, method, arguments = wanted.session, wanted.channel, wanted.method, wanted.arguments
    timeout = count_of(arguments, "x-consumer-timeout", 0)
    narrow = consuming(session, wanted.name, wanted.filter)
    queue = channel.queue(wanted.name)
    endless = not wanted.max_backlog
    _refuse_terms(queue, arguments, together=channel.shared is not None, endless=endless, no_ack=method.no_ack)
    values = values_of(arguments) if queue.settings.type.offsets else None
    if first is None:
        first = first_of(session, queue, arguments)
    before = max(first - 1, 0)
    informs = flag(arguments, INFO)
    consumer = session.core.subscribe(
        session.engine.now(),
        queue,
        tag=wanted.tag,
        holder=channel,
        client=wanted.client,
        arguments=told_of(arguments),
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        filter=narrow,
        max_backlog=wanted.max_backlog,
        shared=channel.shared,
        priority=wanted.priority,
        choked=session.outgoing.blocked,
        own_timeout=None if timeout is None else timeout * 1000,
        on_overdue=channel.overdue,
        read=(before, before),
    )
    channel.consumers[wanted.tag] = consumer
    if values is not None:
        channel.values = own(channel.values)
        channel.values[consumer] = values
    if wanted.filter is not None:
        channel.filters[wanted.tag] = compile_filter(wanted.filter)
    _inform(channel, wanted.tag, informs, queue)
    channel.encoders[consumer] = channel.encoder(wanted.tag)
    wanted.answer(lambda: (consumer,))


def cancel(session: Session, channel: Channel, method: m.BasicCancel) -> None:
    """basic.cancel: answered when what it was granted before has gone out."""
    cancel_replies(channel, method.consumer_tag)
    consumer = channel.consumers.pop(method.consumer_tag, None)
    wish = channel.subscriptions.pop(method.consumer_tag, None)
    channel.filters.pop(method.consumer_tag, None)
    ok = m.BasicCancelOk(method.consumer_tag)
    if (following := channel.followings.pop(method.consumer_tag, None)) is not None:
        following.close()
    if consumer is None and wish is None:
        channel.answer(method, ok)
        return
    over = [consumer] if consumer is not None else []
    if wish is not None:
        over = list(wish.all())
        session.core.close(session.engine.now(), wish, requeue=False)
    elif consumer is not None:
        session.core.unsubscribe(session.engine.now(), consumer, requeue=False)
    channel.cancelled_consumers = [one for one in (*channel.cancelled_consumers, *over) if one.outstanding]
    answer = None if method.nowait else channel.answers.add(ok)

    def delivered() -> None:
        """What it was granted before has gone out, and nothing follows."""
        for one in over:
            channel.encoders.pop(one, None)
            channel.values.pop(one, None)
        channel.informed.pop(method.consumer_tag, None)
        if answer is not None:
            channel.answers.ready(answer)

    session.engine.gates.after_deliveries(channel.gate, delivered)


def get(session: Session, channel: Channel, method: m.BasicGet) -> None:
    """basic.get: a message if there is one, also where a filter has still to look through the queue."""
    channel.attend()
    narrow = consuming(session, channel.queue_name(method.queue), None)
    queue = channel.queue(method.queue)
    refuse_unsupported(queue, "basic.get")
    if queue.settings.single_active_consumer:
        refuse_unsupported(queue, "single get")
    getter = channel.getters.get((queue.id, method.no_ack))
    now = session.engine.now()
    if session.engine.broken is not None:
        session.engine.forget_lost()
    if getter is None:
        getter = session.core.subscribe(
            now,
            queue,
            tag="",
            holder=channel,
            client=f"{session.peer}/{channel.number}",
            no_ack=method.no_ack,
            filter=narrow,
            passive=True,
            on_overdue=channel.overdue,
        )
        channel.getters[(queue.id, method.no_ack)] = getter
    stopped = session.engine.broken is not None and queue.settings.semantics == "at-most-once"
    if stopped or not session.core.pull(now, getter, 1):
        if stopped or not _is_looked_through(getter):
            channel.counts.get_empty += 1
            channel.reply(m.BasicGetEmpty())
        else:
            answer = channel.answers.add(m.BasicGetEmpty())
            session.engine.scans.after.append(partial(_look_again, session, channel, getter, answer))
        return
    _got(session, channel, getter, channel.answers.add(m.BasicGetEmpty()))


def _is_looked_through(getter: Consumer) -> bool:
    """Whether a filter, that of the user's right, has not seen all of the queue yet."""
    return getter.targets is not None and queue_of(getter).filters_look


def _look_again(session: Session, channel: Channel, getter: Consumer, answer: Answer) -> None:
    """A part of the queue was looked through."""
    if not channel.open:
        return
    if session.core.pull(session.engine.now(), getter, 1):
        _got(session, channel, getter, answer)
    elif _is_looked_through(getter):
        session.engine.scans.after.append(partial(_look_again, session, channel, getter, answer))
    else:
        channel.counts.get_empty += 1
        channel.answers.ready(answer)
    session.engine.arm()


def _got(session: Session, channel: Channel, getter: Consumer, answer: Answer) -> None:
    """A message was granted: it answers, when it comes."""
    answer.left = queue_of(getter).ready
    channel.gets(getter, answer)

    def delivered() -> None:
        """If it did not come by now, it was taken back on its way."""
        if answer.method is not None and channel.open:
            channel.got(getter, answer)
            channel.counts.get_empty += 1
            channel.answers.ready(answer)

    session.engine.gates.after_deliveries(channel.gate, delivered)


def _inform(channel: Channel, tag: str, informs: bool, queue: Queue | None) -> None:
    """Note what the consumer of this tag is told of its deliveries."""
    if informs or (queue is not None and queue.settings.type.offsets):
        channel.informed = own(channel.informed)
        channel.informed[tag] = informs
    else:
        channel.informed.pop(tag, None)


def first_of(session: Session, queue: Queue, arguments: Mapping[str, object]) -> int:
    """The LSN from which on a consumer of a stream reads; 0 is its beginning, and that of all other queues.

    Without `x-stream-offset` it reads what comes from now on; a time is `_look_up`'s.  Raises PreconditionFailed.
    """
    if not queue.settings.type.offsets:
        return 0
    core, asked = session.core, arguments.get(OFFSET, "next")
    match asked:
        case "first":
            return 0
        case "last":
            return queue.newest()
        case "next":
            return core.last_lsn + 1
        case int() if not isinstance(asked, bool | Timestamp):
            return max(asked, 0)
        case _:
            pass
    raise PreconditionFailed(
        f"consumer argument {OFFSET} is {asked!r}: first, last, next, an offset, a time, or an age such as 1h"
    )


def refuse_unsupported(queue: Queue, operation: Operation) -> None:
    """Raise, in RabbitMQ's words, what clients of this type of queue are refused."""
    found = queue.settings.type.unsupported.get(operation)
    if found is None:
        return
    code, text = found
    text = text.format(f"queue '{queue.name}' in vhost '{queue.vhost}'")
    raise _REFUSALS[code](text) if code in _REFUSALS else ProtocolError(text, reply_code=code)


_REFUSALS: Mapping[int, type[PenstockError]] = {405: ResourceLocked, 406: PreconditionFailed}


REPLACE = "x-replace"
INFO = "x-info"


def _is_pattern(session: Session, name: str) -> bool:
    """Whether the name of a queue to consume from means all that it matches."""
    if session.core.find_queue(session.vhost, name) is not None:
        return False
    try:
        return not TopicPattern(name).literal
    except ValueError:
        return False  # no queue has that name, and that is what the client hears


# -- beginning


def _consume_from_several(wanted: Wanted) -> None:
    """basic.consume with a pattern of queues."""
    session, channel, method, arguments = wanted.session, wanted.channel, wanted.method, wanted.arguments
    if channel.shared is not None:
        raise ProtocolError("a pattern of queues has a backlog of its own: not with a global prefetch", reply_code=540)
    wish = Subscription(
        session.vhost,
        wanted.name,
        tag=wanted.tag,
        holder=channel,
        by=session,
        client=wanted.client,
        arguments=told_of(arguments),
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        filter=None if wanted.filter is None else compile_filter(wanted.filter),
        max_backlog=wanted.max_backlog,
        priority=wanted.priority,
        choked=session.outgoing.blocked,
        narrow=_narrow(session),
    )
    session.core.open(session.engine.now(), wish)
    channel.subscriptions[wanted.tag] = wish
    _inform(channel, wanted.tag, flag(arguments, INFO), None)
    wanted.answer(wish.all)


def _narrow(session: Session) -> Narrow | None:
    rights = session.rights
    if rights is None:
        return None

    def narrow(queue: Queue, filter: Filter | None) -> Filter | None:
        return narrowed(None if filter is None else filter.text, rights.read_queue(queue.vhost, queue.name))

    return narrow


# -- replacing


def _replace(wanted: Wanted) -> None:
    """basic.consume with `x-replace: true`; the answer comes behind all that was granted before."""
    session, channel, method, arguments = wanted.session, wanted.channel, wanted.method, wanted.arguments
    name, tag, filter, max_backlog = wanted.name, wanted.tag, wanted.filter, wanted.max_backlog
    wish = channel.subscriptions.get(tag)
    consumer = channel.consumers.get(tag)
    if wish is None and consumer is None:
        raise PreconditionFailed(f"{REPLACE}: there is no consumer with the tag '{tag}' on this channel")
    if wish is None:
        assert consumer is not None
        wish = Subscription.around(consumer, session, channel.filters.get(tag), _narrow(session))
    if wish.no_ack != method.no_ack:
        raise PreconditionFailed(f"{REPLACE}: the consumer '{tag}' has no_ack {wish.no_ack}, which stays")
    if channel.shared is not None and name != wish.topic:
        raise ProtocolError(f"{REPLACE} with another queue: not with a global prefetch", reply_code=540)
    if session.rights is not None:
        session.rights.take(session.vhost, name)
    session.core.replace(
        session.engine.now(),
        wish,
        filter=STAYS if filter is None else compile_filter(filter) if filter else None,
        max_backlog=STAYS if max_backlog is None else max_backlog,
        topic=name,
    )
    channel.consumers.pop(tag, None)
    channel.subscriptions[tag] = wish
    wish.ask(told_of(arguments))
    if INFO in arguments:
        _inform(channel, tag, flag(arguments, INFO), session.core.find_queue(session.vhost, name))
    if not method.nowait:
        answer = channel.answers.add(m.BasicConsumeOk(tag))
        session.engine.gates.after_deliveries(channel.gate, lambda: channel.answers.ready(answer))
