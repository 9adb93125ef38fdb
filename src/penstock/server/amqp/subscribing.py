"""Consumers with terms of their own: of several queues (a pattern), replaced while they live, told about each lease.

    x-replace: true     with the tag of a live consumer: other terms for it, and what it holds it keeps.  The queue is
                        the one named here; x-filter (empty text: none) and x-max-backlog stay where they are not named
    a pattern           a name that no queue has, with one of `^ $ * + ? ( ) [ ] { } | \\` in it: the consumer gets from
                        every queue that matches, now or later, with one backlog for all of them
    x-info: true        each delivery has the headers x-bookmark, x-delivery-count (from the second delivery on) and
                        x-lease-until (milliseconds since the epoch)

A plain consumer is none of this file's business until it is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.core.commands.subscription import STAYS, Narrow, Subscription
from penstock.errors import PreconditionFailed, ProtocolError
from penstock.expr import Filter, TopicPattern, compile_filter
from penstock.server.amqp.consumer_arguments import flag
from penstock.server.entitlements import narrowed
from penstock.wire.amqp import methods as m

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session

REPLACE = "x-replace"
INFO = "x-info"


def is_pattern(session: Session, name: str) -> bool:
    """Whether the name of a queue to consume from means all that it matches."""
    if session.core.find_queue(session.vhost, name) is not None:
        return False
    try:
        return not TopicPattern(name).literal
    except ValueError:
        return False  # no queue has that name, and that is what the client hears


# -- beginning


def consume_from_several(
    session: Session,
    channel: Channel,
    pattern: str,
    tag: str,
    method: m.BasicConsume,
    *,
    filter: str | None,
    max_backlog: int | None,
    priority: int,
) -> None:
    """basic.consume with a pattern of queues."""
    if channel.shared is not None:
        raise ProtocolError("a pattern of queues has a backlog of its own: not with a global prefetch", reply_code=540)
    wish = Subscription(
        session.vhost,
        pattern,
        tag=tag,
        holder=channel,
        by=session,
        client=f"{session.peer}/{channel.number}",
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        filter=None if filter is None else compile_filter(filter),
        max_backlog=max_backlog,
        priority=priority,
        paused=session.outgoing.blocked,
        narrow=_narrow(session),
    )
    session.core.open(session.engine.now(), wish)
    channel.subscriptions[tag] = wish
    if flag(cast("Mapping[str, object]", method.arguments), INFO):
        channel.informed.add(tag)
    if not method.nowait:
        if channel.answers:
            channel.unannounced.update((consumer, []) for consumer in wish.consumers.values())
        channel.reply(m.BasicConsumeOk(tag), then=partial(_announced, channel, wish))


def _announced(channel: Channel, wish: Subscription) -> None:
    for consumer in wish.all():
        channel.announce(consumer)


def _narrow(session: Session) -> Narrow | None:
    rights = session.rights
    if rights is None:
        return None

    def narrow(queue: Queue, filter: Filter | None) -> Filter | None:
        return narrowed(None if filter is None else filter.text, rights.read_queue(queue.vhost, queue.name))

    return narrow


# -- replacing


def replace(
    session: Session,
    channel: Channel,
    name: str,
    tag: str,
    method: m.BasicConsume,
    *,
    filter: str | None,
    max_backlog: int | None,
) -> None:
    """basic.consume with `x-replace: true`; the answer comes behind all that was granted before."""
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
    arguments = cast("Mapping[str, object]", method.arguments)
    if INFO in arguments:
        (channel.informed.add if flag(arguments, INFO) else channel.informed.discard)(tag)
    if not method.nowait:
        answer = channel.answers.add(m.BasicConsumeOk(tag))
        session.engine.gates.after_deliveries(channel.gate, lambda: channel.answers.ready(answer))
