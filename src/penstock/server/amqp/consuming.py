"""AMQP's consumers: what they may hold, how they begin and how they end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.core.queue.dispatching.consumers import UNLIMITED, Credit
from penstock.core.topology.routing import REPLY_TO
from penstock.errors import InvalidArgument
from penstock.expr import compile_filter
from penstock.server.amqp import replying
from penstock.server.amqp.consumer_arguments import BOOKMARK, count_of, flag, text_of
from penstock.server.amqp.entitled import consuming
from penstock.server.amqp.following import consume as consume_from_bookmark
from penstock.server.amqp.session import generated_name, refuse_reuse
from penstock.server.amqp.subscribing import INFO, REPLACE, consume_from_several, is_pattern, replace
from penstock.server.filters.asking import asked_by
from penstock.wire.amqp import methods as m

if TYPE_CHECKING:
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session


def qos(session: Session, channel: Channel, method: m.BasicQos) -> None:
    """basic.qos: what consumers may hold, of the channel or of each one started from now on."""
    if method.global_qos:
        limit = method.prefetch_count or UNLIMITED
        if channel.shared is None:
            channel.shared = Credit(limit)
        else:
            channel.shared.limit = limit
            if not session.outgoing.blocked:
                for consumer in list(channel.shared.consumers):
                    session.core.resume(session.engine.now(), consumer)
    else:
        channel.prefetch = method.prefetch_count
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
    """basic.consume: of one queue; of several, or from a bookmark, elsewhere."""
    tag = method.consumer_tag or generated_name("amq.ctag-")
    if method.queue == REPLY_TO:
        if channel.has_consumer(tag):
            raise refuse_reuse(tag)
        replying.consume(session, channel, tag, method)
        return
    if BOOKMARK in method.arguments:
        if channel.has_consumer(tag):
            raise refuse_reuse(tag)
        consume_from_bookmark(session, channel, channel.queue_name(method.queue), tag, method)
        return
    arguments = cast("Mapping[str, object]", method.arguments)
    for name, why in OF_TOPICS.items():
        if name in arguments:
            raise InvalidArgument(f"consumer argument {name} goes with {BOOKMARK}: {why}")
    text = asked_by(
        text_of(arguments, "x-filter"),
        client=f"{session.peer}/{channel.number}",
        user=session.user,
        instance=session.core.instance,
    )
    backlog = count_of(arguments, "x-max-backlog", 0)
    name = channel.queue_name(method.queue)
    if flag(arguments, REPLACE):
        replace(session, channel, name, tag, method, filter=text, max_backlog=backlog)
        return
    if channel.has_consumer(tag):
        raise refuse_reuse(tag)
    if backlog is None and channel.prefetch:
        backlog = channel.prefetch
    priority = count_of(arguments, "x-priority", None) or 0
    timeout = count_of(arguments, "x-consumer-timeout", 0)
    if is_pattern(session, name):
        consume_from_several(session, channel, name, tag, method, filter=text, max_backlog=backlog, priority=priority)
        return
    narrow = consuming(session, name, text)
    queue = channel.queue(name)
    informs = flag(arguments, INFO)
    consumer = session.core.subscribe(
        session.engine.now(),
        queue,
        tag=tag,
        holder=channel,
        client=f"{session.peer}/{channel.number}",
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        filter=narrow,
        max_backlog=backlog,
        shared=channel.shared,
        priority=priority,
        paused=session.outgoing.blocked,
        timeout=None if timeout is None else timeout * 1000,
        on_overdue=channel.overdue,
    )
    channel.consumers[tag] = consumer
    if text is not None:
        channel.filters[tag] = compile_filter(text)
    if informs:
        channel.informed.add(tag)
    channel.encoders[consumer] = channel.encoder(tag)
    if not method.nowait:
        if channel.answers:
            channel.unannounced[consumer] = []
        channel.reply(m.BasicConsumeOk(tag), then=partial(channel.announce, consumer))


def cancel(session: Session, channel: Channel, method: m.BasicCancel) -> None:
    """basic.cancel: answered when what it was granted before has gone out."""
    replying.cancel(session, channel, method.consumer_tag)
    consumer = channel.consumers.pop(method.consumer_tag, None)
    wish = channel.subscriptions.pop(method.consumer_tag, None)
    channel.filters.pop(method.consumer_tag, None)
    ok = m.BasicCancelOk(method.consumer_tag)
    if (following := channel.followings.pop(method.consumer_tag, None)) is not None:
        following.close()
    if consumer is None and wish is None:
        if not method.nowait:
            channel.reply(ok)
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
        channel.informed.discard(method.consumer_tag)
        if answer is not None:
            channel.answers.ready(answer)

    session.engine.gates.after_deliveries(channel.gate, delivered)
