"""Direct reply-to: replies to a client without a queue, as RabbitMQ has them.

A channel consumes from the pseudo queue `amq.rabbitmq.reply-to` without acks; what it publishes with that as `reply_to`
says an address instead, a secret of this consumer.  Whoever has been asked publishes the answer to that address over
the default exchange of the same vhost, by whatever door.  Replies are in no queue and not in the log, and go to the
client at once, at most once: what comes when the consumer is gone was sent to nobody.  Who waits is the core's to know
(`core.open_replies`), so the address holds whichever process the door is.
"""

from __future__ import annotations

import secrets
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.topology.routing import REPLY_PREFIX, REPLY_TO
from penstock.errors import InvalidArgument, PreconditionFailed, ProtocolError
from penstock.records.properties import with_reply_to
from penstock.server.amqp.links import SEND_MOST
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.pieces import header_too_large, too_large

if TYPE_CHECKING:
    from penstock.core.effects import Reply
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session

SECRET_BYTES = 24

BEHIND_SHARE = 4
"""A client that does not read may have this part of the memory in replies, or `SEND_MOST`; more are dropped."""

OURS = ("x-filter", "x-max-backlog", "x-replace", "x-info", "x-bookmark")
"""Arguments of consumers of queues and topics, which mean nothing here."""


class Replies:
    """The consumer of replies of one channel."""

    def __init__(self, session: Session, channel: Channel, tag: str) -> None:
        self.tag = tag
        self.address = REPLY_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        self._session = session
        self._channel = channel
        self._encoder = channel.encoder(tag)
        self._early: deque[Reply] | None = deque()  # what came before the client knows its tag
        self._open = True
        session.core.open_replies(session.vhost, self.address, self.take)

    def take(self, reply: Reply) -> None:
        """Deliver a reply, unless nobody waits any more or the client is too far behind."""
        session, outgoing = self._session, self._session.outgoing
        budget = session.engine.bodies.budget.limit
        behind = outgoing.unsent + session.link.buffered() if self._open and not session.closed else 0
        if not self._open or session.closed or behind > max(SEND_MOST, budget // BEHIND_SHARE):
            session.counters.unroutable_dropped += 1
        elif self._early is not None:
            self._early.append(reply)
        elif len(reply.properties) > self._encoder.properties_most:
            error = header_too_large("a reply", len(reply.properties), session.machine.frame_max)
            session.counters.unroutable_dropped += 1
            session.engine.call_soon(partial(self._fail, error))
        else:
            tag = self._channel.tags.spend()
            frames = self._encoder.encode(tag, False, (reply.topic,), (reply.properties,), (reply.body,))
            outgoing.deliver(self._channel.number, frames, len(reply.body) + len(reply.properties))
            session.counters.delivered_consume_auto_ack += 1

    def _fail(self, error: ProtocolError) -> None:
        if self._open and self._channel.open:
            self._session.fail_channel(self._channel.number, error, m.BasicDeliver)

    def announce(self) -> None:
        """The client knows the tag now."""
        early, self._early = self._early, None
        for reply in early or ():
            self.take(reply)

    def close(self) -> None:
        """Nobody waits any more; the address leads nowhere, for ever."""
        self._open = False
        self._session.core.close_replies(self._session.vhost, self.address)


def consume(session: Session, channel: Channel, tag: str, method: m.BasicConsume) -> None:
    """basic.consume of the pseudo queue.  Raises PreconditionFailed with RabbitMQ's words."""
    if not method.no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    if channel.replies is not None:
        raise PreconditionFailed("reply consumer already set")
    for name in OURS:
        if name in method.arguments:
            raise InvalidArgument(f"consumer argument {name} does not go with {REPLY_TO}")
    replies = channel.replies = Replies(session, channel, tag)
    if method.nowait:
        replies.announce()
    else:
        channel.reply(m.BasicConsumeOk(tag), then=partial(Replies.announce, replies))


def cancel(channel: Channel, tag: str) -> None:
    """End the consumer of this tag, if it is one of replies."""
    if channel.replies is not None and channel.replies.tag == tag:
        channel.replies.close()
        channel.replies = None


def declared(session: Session, name: str) -> bool:
    """Whether a name of a queue means replies and somebody waits there; anybody may wait at the pseudo queue."""
    return name == REPLY_TO or (name.startswith(REPLY_PREFIX) and session.core.takes_replies(session.vhost, name))


def asking(channel: Channel, header: bytes) -> bytes | None:
    """The header of a request with the channel's address, None for what is none.  Raises PreconditionFailed."""
    replies = channel.replies
    changed = with_reply_to(header, REPLY_TO, "" if replies is None else replies.address)
    if changed is not None and replies is None:
        raise PreconditionFailed("fast reply consumer does not exist")
    if changed is not None and too_large(changed, frame_max := channel.session.machine.frame_max) is not None:
        what = "a request with the address of its replies"
        raise PreconditionFailed(str(header_too_large(what, len(changed), frame_max)))
    return changed
