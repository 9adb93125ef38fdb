"""AMQP methods that are not in the hot path, one function each: queue, exchange, basic, confirm, channel.

Each takes the session, the channel and the method, talks to the core, and replies.  What the core refuses it raises;
the session turns that into the close code of the smallest scope.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from penstock.config.arguments import queue_settings
from penstock.core.effects import Deliver, Verb
from penstock.core.queue.consumers import UNLIMITED, Credit
from penstock.errors import InvalidArgument, NotFound, PreconditionFailed, ProtocolError
from penstock.expr import compile_filter
from penstock.memory import Piece
from penstock.server.amqp.channel import Channel, Reply
from penstock.server.amqp.entitled import consuming, may_configure, may_declare, may_purge
from penstock.server.amqp.following import BOOKMARK
from penstock.server.amqp.following import consume as consume_from_bookmark
from penstock.server.amqp.subscribing import INFO, REPLACE, consume_from_several, flag, is_pattern, replace
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.deliver import DeliveryEncoder, get_ok

if TYPE_CHECKING:
    from penstock.core.queue.consumers import Consumer
    from penstock.core.queue.view import Queue
    from penstock.server.amqp.session import Session

Handler = Callable[["Session", Channel, Any], None]


def run(session: Session, channel: Channel, method: m.Method) -> None:
    """Carry out one method; raises what the core or the protocol refuses."""
    handler = _HANDLERS.get(type(method))
    if handler is None:
        raise ProtocolError(f"{type(method).__name__} is not supported", reply_code=540)
    handler(session, channel, method)


# -- queues


def _queue_name(channel: Channel, name: str) -> str:
    """The named queue, or the last one declared on the channel when the name is empty."""
    if name:
        return name
    if not channel.last_queue:
        raise NotFound("no previously declared queue")
    return channel.last_queue


def _queue(session: Session, channel: Channel, name: str) -> Queue:
    return session.core.queue(session.vhost, _queue_name(channel, name), by=session)


def _queue_declare(session: Session, channel: Channel, method: m.QueueDeclare) -> None:
    name = method.queue
    if method.passive:
        queue = _queue(session, channel, name)
        may_declare(session, queue.name, queue.settings)
    else:
        server_named = not name
        name = name or session.door.generated_name("amq.gen-")
        settings = queue_settings(method.arguments, queue=name, vhost=session.vhost)
        may_declare(session, name, settings)
        queue = session.core.declare_queue(
            session.engine.now(),
            session.vhost,
            name,
            settings,
            durable=method.durable,
            exclusive_to=session if method.exclusive else None,
            auto_delete=method.auto_delete,
            arguments=method.arguments,
            by=session,
            server_named=server_named,
        )
    channel.last_queue = queue.name
    if not method.nowait:
        ok = m.QueueDeclareOk(queue.name, queue.ready + queue.held, len(queue.consumers))
        session.reply(channel, ok, durable=queue.durable and queue.exclusive_to is None, needs=queue.id)


def _queue_bind(session: Session, channel: Channel, method: m.QueueBind) -> None:
    may_configure(session, "binding a queue")
    name = _queue_name(channel, method.queue)
    key = method.routing_key if method.routing_key or method.queue else name
    queue = session.core.queue(session.vhost, name, by=session)
    session.core.bind(session.engine.now(), session.vhost, method.exchange, queue.name, "queue", key, method.arguments)
    if not method.nowait:
        session.reply(channel, m.QueueBindOk(), durable=queue.durable)


def _queue_unbind(session: Session, channel: Channel, method: m.QueueUnbind) -> None:
    may_configure(session, "unbinding a queue")
    name = _queue_name(channel, method.queue)
    session.core.unbind(
        session.engine.now(), session.vhost, method.exchange, name, "queue", method.routing_key, method.arguments
    )
    session.reply(channel, m.QueueUnbindOk(), durable=True)


def _queue_purge(session: Session, channel: Channel, method: m.QueuePurge) -> None:
    queue = _queue(session, channel, method.queue)
    may_purge(session, queue)
    count = session.core.purge_queue(session.engine.now(), queue)
    if not method.nowait:
        session.reply(channel, m.QueuePurgeOk(count), durable=queue.durable)


def _queue_delete(session: Session, channel: Channel, method: m.QueueDelete) -> None:
    name = _queue_name(channel, method.queue)
    try:
        queue = session.core.queue(session.vhost, name, by=session)
    except NotFound:
        count = 0  # deleting what is not there is fine
    else:
        if queue.exclusive_to is not session:
            may_configure(session, "deleting a queue")
        count = session.core.delete_queue(
            session.engine.now(), queue, if_unused=method.if_unused, if_empty=method.if_empty
        )
    if not method.nowait:
        session.reply(channel, m.QueueDeleteOk(count), durable=True)


# -- exchanges


def _exchange_declare(session: Session, channel: Channel, method: m.ExchangeDeclare) -> None:
    if not method.passive:
        may_configure(session, "declaring an exchange")
    session.core.declare_exchange(
        session.engine.now(),
        session.vhost,
        method.exchange,
        method.type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=method.arguments,
        passive=method.passive,
    )
    if not method.nowait:
        session.reply(channel, m.ExchangeDeclareOk(), durable=method.durable and not method.passive)


def _exchange_delete(session: Session, channel: Channel, method: m.ExchangeDelete) -> None:
    may_configure(session, "deleting an exchange")
    session.core.delete_exchange(session.engine.now(), session.vhost, method.exchange, if_unused=method.if_unused)
    if not method.nowait:
        session.reply(channel, m.ExchangeDeleteOk(), durable=True)


def _exchange_bind(session: Session, channel: Channel, method: m.ExchangeBind) -> None:
    may_configure(session, "binding an exchange")
    session.core.bind(
        session.engine.now(),
        session.vhost,
        method.source,
        method.destination,
        "exchange",
        method.routing_key,
        method.arguments,
    )
    if not method.nowait:
        session.reply(channel, m.ExchangeBindOk(), durable=True)


def _exchange_unbind(session: Session, channel: Channel, method: m.ExchangeUnbind) -> None:
    may_configure(session, "unbinding an exchange")
    session.core.unbind(
        session.engine.now(),
        session.vhost,
        method.source,
        method.destination,
        "exchange",
        method.routing_key,
        method.arguments,
    )
    if not method.nowait:
        session.reply(channel, m.ExchangeUnbindOk(), durable=True)


# -- consuming


def _qos(session: Session, channel: Channel, method: m.BasicQos) -> None:
    if method.global_qos:
        limit = method.prefetch_count or UNLIMITED
        if channel.shared is None:
            channel.shared = Credit(limit)
        else:
            channel.shared.limit = limit
            if not session.blocked:
                for consumer in list(channel.shared.consumers):
                    session.core.resume(session.engine.now(), consumer)
    else:
        channel.prefetch = method.prefetch_count
    session.reply(channel, m.BasicQosOk())


def _text_argument(arguments: Mapping[str, object], name: str) -> str | None:
    value = arguments.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidArgument(f"consumer argument {name} is {value!r}, not text")
    return value


def _count_argument(arguments: Mapping[str, object], name: str, least: int | None) -> int | None:
    value = arguments.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        raise InvalidArgument(
            f"consumer argument {name} is {value!r}, not an integer{'' if least is None else ' >= 0'}"
        )
    return value


def _consume(session: Session, channel: Channel, method: m.BasicConsume) -> None:
    tag = method.consumer_tag or session.door.generated_name("amq.ctag-")
    if BOOKMARK in method.arguments:
        if tag in channel.consumers or tag in channel.followings:
            raise ProtocolError(f"attempt to reuse consumer tag '{tag}'", reply_code=530)
        consume_from_bookmark(session, channel, _queue_name(channel, method.queue), tag, method)
        return
    arguments = cast("Mapping[str, object]", method.arguments)
    text = _text_argument(arguments, "x-filter")
    backlog = _count_argument(arguments, "x-max-backlog", 0)
    name = _queue_name(channel, method.queue)
    if flag(arguments, REPLACE):
        replace(session, channel, name, tag, method, filter=text, max_backlog=backlog)
        return
    if tag in channel.consumers or tag in channel.followings or tag in channel.subscriptions:
        raise ProtocolError(f"attempt to reuse consumer tag '{tag}'", reply_code=530)
    if backlog is None and channel.prefetch:
        backlog = channel.prefetch
    priority = _count_argument(arguments, "x-priority", None) or 0
    if is_pattern(session, name):
        consume_from_several(session, channel, name, tag, method, filter=text, max_backlog=backlog, priority=priority)
        return
    queue = _queue(session, channel, name)
    informs = flag(arguments, INFO)
    consumer = session.core.subscribe(
        session.engine.now(),
        queue,
        tag=tag,
        holder=channel,
        client=f"{session.peer}/{channel.number}",
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        filter=consuming(session, queue, text),
        max_backlog=backlog,
        shared=channel.shared,
        priority=priority,
        paused=session.blocked,
    )
    channel.consumers[tag] = consumer
    if text is not None:
        channel.filters[tag] = compile_filter(text)
    if informs:
        channel.informed.add(tag)
    channel.encoders[consumer] = DeliveryEncoder(channel.number, tag, session.machine.frame_max)
    if not method.nowait:
        if channel.replies:
            channel.unannounced[consumer] = []
        session.reply(channel, m.BasicConsumeOk(tag), then=partial(_announced, session, channel, consumer))


def _announced(session: Session, channel: Channel, consumer: Consumer) -> None:
    """The client knows the consumer's tag now: what was granted meanwhile may follow."""
    for effect, piece in channel.unannounced.pop(consumer, ()):
        session.engine.deliver_again(effect, piece.chunk, piece)


def _cancel(session: Session, channel: Channel, method: m.BasicCancel) -> None:
    consumer = channel.consumers.pop(method.consumer_tag, None)
    wish = channel.subscriptions.pop(method.consumer_tag, None)
    channel.filters.pop(method.consumer_tag, None)
    ok = m.BasicCancelOk(method.consumer_tag)
    if (following := channel.followings.pop(method.consumer_tag, None)) is not None:
        following.close()
    if consumer is None and wish is None:
        if not method.nowait:
            session.reply(channel, ok)
        return
    over = [consumer] if consumer is not None else []
    if wish is not None:
        over = list(wish.all())
        session.core.close(session.engine.now(), wish, requeue=False)
    elif consumer is not None:
        session.core.unsubscribe(session.engine.now(), consumer, requeue=False)
    channel.cancelled_consumers = [one for one in (*channel.cancelled_consumers, *over) if one.outstanding]
    reply = None if method.nowait else session.reply_later(channel, ok)

    def delivered() -> None:
        """What it was granted before has gone out, and nothing follows."""
        for one in over:
            channel.encoders.pop(one, None)
        channel.informed.discard(method.consumer_tag)
        if reply is not None:
            session.ready(channel, reply)

    session.engine.after_deliveries(channel.gate, delivered)


def _get(session: Session, channel: Channel, method: m.BasicGet) -> None:
    queue = _queue(session, channel, method.queue)
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
            filter=consuming(session, queue, None),
            passive=True,
        )
        channel.getters[(queue.id, method.no_ack)] = getter
    stopped = session.engine.broken is not None and queue.settings.semantics == "at-most-once"
    if stopped or not session.core.pull(now, getter, 1):
        if stopped or not _is_looked_through(getter):
            session.counters.get_empty += 1
            session.reply(channel, m.BasicGetEmpty())
        else:
            reply = session.reply_later(channel, m.BasicGetEmpty())
            session.engine.scans.after.append(partial(_look_again, session, channel, getter, reply))
        return
    _got(session, channel, getter, session.reply_later(channel, m.BasicGetEmpty()))


def _is_looked_through(getter: Consumer) -> bool:
    """Whether a filter, that of the user's right, has not seen all of the queue yet."""
    return getter.targets is not None and bool(getter.queue.targets.asked)


def _look_again(session: Session, channel: Channel, getter: Consumer, reply: Reply) -> None:
    """A part of the queue was looked through."""
    if not channel.open:
        return
    if session.core.pull(session.engine.now(), getter, 1):
        _got(session, channel, getter, reply)
    elif _is_looked_through(getter):
        session.engine.scans.after.append(partial(_look_again, session, channel, getter, reply))
    else:
        session.counters.get_empty += 1
        session.ready(channel, reply)
    session.engine.arm()


def _got(session: Session, channel: Channel, getter: Consumer, reply: Reply) -> None:
    """A message was granted: it answers, when it comes."""
    channel.getting.setdefault(getter, deque()).append(reply)

    def delivered() -> None:
        """If it did not come by now, it was taken back on its way."""
        if reply.method is not None:
            channel.getting[getter].remove(reply)
            session.counters.get_empty += 1
            session.ready(channel, reply)

    session.engine.after_deliveries(channel.gate, delivered)


def answer_get(session: Session, channel: Channel, effect: Deliver, piece: Piece) -> None:
    """basic.get-ok for the row that `_get` asked for."""
    if effect.consumer.no_ack:
        session.counters.delivered_get_auto_ack += 1
    else:
        session.counters.delivered_get_manual_ack += 1
    first = channel.tags.give(effect.consumer, piece.chunk, not effect.consumer.no_ack)
    assert piece.bodies is not None
    frames = get_ok(
        channel.number,
        first,
        effect.redelivered,
        piece.topics[0] if isinstance(piece.topics, list) else piece.topics,
        effect.queue.ready,
        piece.properties[0] if isinstance(piece.properties, list) else piece.properties,
        piece.bodies[0],
        session.machine.frame_max,
    )

    def write() -> None:
        session.out += frames
        session.mark_dirty()

    reply = channel.getting[effect.consumer].popleft()
    reply.method, reply.then = None, write
    session.ready(channel, reply)


# -- settling


def _nack(session: Session, channel: Channel, method: m.BasicNack) -> None:
    low = 0 if method.multiple else method.delivery_tag
    settled = channel.tags.settle(low, method.delivery_tag) if method.multiple or low else _no_tag(0)
    session.settle(settled, Verb.CANCEL if method.requeue else Verb.EXPIRE)


def _reject(session: Session, channel: Channel, method: m.BasicReject) -> None:
    tag = method.delivery_tag
    settled = channel.tags.settle(tag, tag) if tag else _no_tag(0)
    session.settle(settled, Verb.CANCEL if method.requeue else Verb.EXPIRE)


def _no_tag(tag: int) -> list[tuple[Any, Any]]:
    raise PreconditionFailed(f"unknown delivery tag {tag}")


def _recover(session: Session, channel: Channel, method: m.BasicRecover) -> None:
    session.settle(channel.tags.all(), Verb.RELEASE)
    session.reply(channel, m.BasicRecoverOk())


def _recover_async(session: Session, channel: Channel, method: m.BasicRecoverAsync) -> None:
    session.settle(channel.tags.all(), Verb.RELEASE)


# -- channel


def _confirm_select(session: Session, channel: Channel, method: m.ConfirmSelect) -> None:
    channel.confirming = True
    if not method.nowait:
        session.reply(channel, m.ConfirmSelectOk())


_HANDLERS: dict[type[Any], Handler] = {
    m.QueueDeclare: _queue_declare,
    m.QueueBind: _queue_bind,
    m.QueueUnbind: _queue_unbind,
    m.QueuePurge: _queue_purge,
    m.QueueDelete: _queue_delete,
    m.ExchangeDeclare: _exchange_declare,
    m.ExchangeDelete: _exchange_delete,
    m.ExchangeBind: _exchange_bind,
    m.ExchangeUnbind: _exchange_unbind,
    m.BasicQos: _qos,
    m.BasicConsume: _consume,
    m.BasicCancel: _cancel,
    m.BasicGet: _get,
    m.BasicNack: _nack,
    m.BasicReject: _reject,
    m.BasicRecover: _recover,
    m.BasicRecoverAsync: _recover_async,
    m.ConfirmSelect: _confirm_select,
}
