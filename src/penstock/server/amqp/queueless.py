"""Consumers without a queue: of replies to a client, as RabbitMQ has them, and of topics from a place in the log on.
No lease, nothing to settle.

A channel consumes replies from the pseudo queue `amq.rabbitmq.reply-to` without acks; what it publishes with that as
`reply_to` says an address instead, a secret of this consumer.  Whoever has been asked publishes the answer to that
address over the default exchange of the same vhost, by whatever door.  Replies are in no queue and not in the log, and
go to the client at once, at most once: what comes when the consumer is gone was sent to nobody.  Who waits is the
core's to know (`core.open_replies`), so the address holds whichever process the door is.

A consumer with `x-bookmark` gets messages of topics from a place in the log on, then live.  Deliveries have tags like
all others, and an ack or a reject of such a tag is taken without a word: there is nothing to settle, so prefetch does
not count either.  What holds such a consumer back is its connection: when the client does not read, nothing more is
delivered, and when it reads again the log is read on from where it was.

    x-bookmark               where to start (docs/replay.md); the queue's name stands for what the queue is a view of
    x-filter                 an expression
    x-rate, x-rate-max-gap   `1000` messages or `500KB` a second, or `2X` the speed they came with; a duration
    x-bookmark-not-found     epoch, now or fail
    x-select                 which fields of a JSON body are sent: `-/,+/id`
    x-fully-durable          true: nothing more, for all that is told is durable
    x-timestamp              true: each delivery has a header `x-timestamp`, when it was stored, milliseconds
    x-info                   true: each delivery has a header `x-bookmark`
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.core.sow.select import SelectList, narrowed_select, parse_select
from penstock.core.topology.routing import REPLY_PREFIX, REPLY_TO
from penstock.errors import InvalidArgument, LogBroken, NotFound, PenstockError, PreconditionFailed, ProtocolError
from penstock.expr import Context
from penstock.records.one_or_each import rows_at, value_at
from penstock.records.properties import with_reply_to
from penstock.server.amqp.consumer_arguments import BOOKMARK, STAMP, count_of, filter_of, flag, informed, text_of
from penstock.server.amqp.links import SEND_MOST
from penstock.server.follow import ENDLESS
from penstock.server.replaying.log_source import Asked, Follower
from penstock.server.replaying.page import Page
from penstock.server.replaying.selection import fields_of, select_of, selection_for
from penstock.server.views.record_query import sent
from penstock.units import parse_duration
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.pieces import header_too_large, too_large
from penstock.wire.flight.bookmarks import format_bookmark

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
            self._channel.counts.unroutable_dropped += 1
        elif self._early is not None:
            self._early.append(reply)
        elif len(reply.properties) > self._encoder.properties_most:
            error = header_too_large("a reply", len(reply.properties), session.machine.frame_max)
            self._channel.counts.unroutable_dropped += 1
            session.engine.call_soon(partial(self._fail, error))
        else:
            tag = self._channel.tags.spend()
            frames = self._encoder.encode(tag, False, (reply.topic,), (reply.properties,), (reply.body,))
            outgoing.deliver(self._channel.number, frames, len(reply.body) + len(reply.properties))
            self._channel.counts.delivered_consume_auto_ack += 1

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


def consume_replies(session: Session, channel: Channel, tag: str, method: m.BasicConsume) -> None:
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


def cancel_replies(channel: Channel, tag: str) -> None:
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


KNOWN = frozenset(
    {BOOKMARK, "x-filter", "x-rate", "x-rate-max-gap", "x-bookmark-not-found", "x-select", "x-fully-durable", STAMP}
    | {"x-info", "x-priority"}
)


class Following:
    """One such consumer: the taker of its follower."""

    def __init__(
        self, session: Session, channel: Channel, tag: str, *, info: bool, timed: bool, select: SelectList | None
    ) -> None:
        self.tag = tag
        self.follower: Follower | None = None
        self.announced = False  # the client knows the tag
        self._session = session
        self._channel = channel
        self._info = info
        self._timed = timed
        self._select = select
        self._cutting = False  # a page is on its way to be cut to the fields that are sent
        self._after: Callable[[], None] | None = None  # what came to be told meanwhile
        self._over = False
        self._share = session.engine.shares.of("amqp_replays")
        self._counted = False  # among those of its user
        self._encoder = channel.encoder(tag)

    def room(self) -> int:
        """As long as the connection takes bytes."""
        open_ = self.announced and self._channel.open and not self._session.closed
        return ENDLESS if open_ and not self._session.outgoing.full and not self._cutting else 0

    def take(self, page: Page) -> None:
        """Deliver, off the loop cut to the fields that are sent."""
        if self._select is None:
            self._deliver(page, page.bodies)
            return
        work, off = partial(sent, page.bodies, self._select), self._session.engine.replays.off
        if off is None:
            self._deliver(page, work())
            return
        self._cutting = True
        off(work, partial(self._cut, page))

    def _cut(self, page: Page, bodies: list[bytes]) -> None:
        self._cutting = False
        if self._channel.open and not self._session.closed and self._channel.followings.get(self.tag) is self:
            self._deliver(page, bodies)
        after, self._after = self._after, None
        if after is not None:
            after()
        elif self.follower is not None:
            self.follower.step()
        self._session.engine.replays.done()

    def _deliver(self, page: Page, bodies: list[bytes]) -> None:
        session, count = self._session, len(page)
        properties = page.properties
        if self._info or self._timed:
            origin = session.engine.log.origin
            properties = [
                informed(
                    page.properties_of(row),
                    bookmark=format_bookmark(origin, page.lsns[row]) if self._info else None,
                    time=page.time_of(row) if self._timed else None,
                )
                for row in range(count)
            ]
        topics, frame_max = page.topics, session.machine.frame_max
        large = too_large(properties, frame_max) if count else None
        if large is not None:
            lsn, size = page.lsns[large], len(value_at(properties, large))
            session.engine.call_soon(partial(self._fail, header_too_large(f"message {lsn}", size, frame_max)))
            count, bodies = large, bodies[:large]
            topics, properties = rows_at(topics, slice(large)), rows_at(properties, slice(large))
        first = self._channel.tags.skip(count)
        frames = self._encoder.encode(first, False, topics, properties, bodies)
        session.outgoing.deliver(self._channel.number, frames, page.size)
        self._channel.counts.delivered_consume_auto_ack += count

    def level(self) -> None:
        """AMQP has no word for it."""

    def ended(self, error: PenstockError | None) -> None:
        """The end of a range is the end of the consumer; what cannot be read is the channel's trouble."""
        self._tell(self._cancel if error is None else partial(self._fail, error))

    def _tell(self, what: Callable[[], None]) -> None:
        """Behind what is being cut."""
        if self._cutting:
            self._after = what
        else:
            what()

    def _fail(self, error: PenstockError) -> None:
        if isinstance(error, LogBroken):
            self._cancel()  # the server's trouble
        elif self._channel.open:
            self._session.fail_channel(self._channel.number, error, m.BasicConsume)

    def count(self) -> None:
        """It is its user's until it ends.  Raises Unavailable."""
        session = self._session
        self._share.take(session.logins.who(session.user))
        self._counted = True

    def _uncount(self) -> None:
        if self._counted:
            self._counted = False
            self._share.give(self._session.user)

    def _cancel(self) -> None:
        if self.announced:
            self._uncount()
            self._channel.followings.pop(self.tag, None)
            self._channel.notify_cancel(self.tag)
        else:
            self._over = True

    def announce(self) -> None:
        """The client knows the tag now."""
        self.announced = True
        if self._over:
            self._cancel()
        elif self.follower is not None:
            self.follower.step()

    def go_on(self) -> None:
        """The connection takes bytes again."""
        if self.follower is not None:
            self._session.engine.replays.walk.add((self.follower,))

    def close(self) -> None:
        """Deliver nothing more."""
        self._uncount()
        if self.follower is not None:
            self.follower.close()


def _refuse_strange(arguments: Mapping[str, object]) -> None:
    """Raises for what is not said to who reads a topic."""
    if flag(arguments, "x-live"):
        raise InvalidArgument(
            "consumer argument x-live: of a topic only what is durable is told; "
            'a queue with deliver = "early" sends ahead of the sync'
        )
    for key in arguments:
        if key not in KNOWN and key != "x-live":
            raise ProtocolError(f"consumer argument {key} does not go with {BOOKMARK}", reply_code=540)


def consume_from_bookmark(session: Session, channel: Channel, name: str, tag: str, method: m.BasicConsume) -> None:
    """basic.consume with `x-bookmark`.  Raises what cannot be."""
    arguments = cast("Mapping[str, object]", method.arguments)
    _refuse_strange(arguments)
    text = partial(text_of, arguments)
    gap = text("x-rate-max-gap")
    try:
        micros = None if gap is None else parse_duration(gap)
    except ValueError as error:
        raise InvalidArgument(f"consumer argument x-rate-max-gap: {error}") from None
    if not name:
        raise NotFound("no queue and no topic is named")
    flag(arguments, "x-fully-durable")  # it always is
    fields, missing = text("x-select"), text("x-bookmark-not-found")
    select = None if fields is None else parse_select([fields])
    info, timed = flag(arguments, "x-info"), flag(arguments, STAMP)
    count_of(arguments, "x-priority", None)  # whoever reads a topic by himself has nobody to go before
    selection = selection_for(session.core, session.rights, session.vhost, "", name)
    if session.core.find_queue(session.vhost, name) is not None:
        session.core.queue(session.vhost, name, by=session)  # another connection's exclusive queue is its own
    select = select_of(session.core, selection, narrowed_select(select, fields_of(selection, session.rights)))
    following = Following(session, channel, tag, info=info, timed=timed, select=select)
    following.count()
    client = f"{session.peer}/{channel.number}"
    here = Context(client_name=client, user=session.user, instance_name=session.core.instance)
    try:
        following.follower = session.engine.replays.subscribe(
            Asked(
                selection,
                text(BOOKMARK) or "",
                filter_of(arguments, here),
                text("x-rate"),
                micros,
                "now" if missing is None else missing,
                rights=session.rights,
                name=name,
                client=client,
                user=session.user,
                tag=tag,
            ),
            following,
        )
    except BaseException:
        following.close()
        raise
    channel.followings[tag] = following
    if method.nowait:
        following.announce()
    else:
        channel.reply(m.BasicConsumeOk(tag), then=following.announce)
