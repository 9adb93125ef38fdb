"""Consumers with `x-bookmark`: messages of topics from a place in the log on, then live.  No lease, nothing to settle.

Deliveries have tags like all others, and an ack or a reject of such a tag is taken without a word: there is nothing to
settle, so prefetch does not count either.  What holds such a consumer back is its connection: when the client does not
read, nothing more is delivered, and when it reads again the log is read on from where it was.

    x-bookmark               where to start (docs/replay.md); the queue's name stands for what the queue is a view of
    x-filter                 an expression
    x-rate, x-rate-max-gap   `1000` messages or `500KB` a second, or `2X` the speed they came with; a duration
    x-bookmark-not-found     epoch, now or fail
    x-info                   true: each delivery has a header `x-bookmark`
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.errors import InvalidArgument, LogBroken, NotFound, PenstockError, ProtocolError
from penstock.records import properties as header_codec
from penstock.server.replaying.page import Page
from penstock.server.replaying.replays import Asked
from penstock.server.replaying.topics import selection_of
from penstock.units import parse_duration
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.deliver import DeliveryEncoder
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session
    from penstock.server.replaying.follower import Follower

BOOKMARK = "x-bookmark"
KNOWN = frozenset({BOOKMARK, "x-filter", "x-rate", "x-rate-max-gap", "x-bookmark-not-found", "x-info", "x-priority"})

ENDLESS = 1 << 30


class Following:
    """One such consumer: the receiver of its follower."""

    def __init__(self, session: Session, channel: Channel, tag: str, *, info: bool) -> None:
        self.tag = tag
        self.follower: Follower | None = None
        self.announced = False  # the client knows the tag
        self._session = session
        self._channel = channel
        self._info = info
        self._over = False
        self._encoder = DeliveryEncoder(channel.number, tag, session.machine.frame_max)

    def room(self) -> int:
        """As long as the connection takes bytes."""
        open_ = self.announced and self._channel.open and not self._session.closed
        return ENDLESS if open_ and not self._session.full else 0

    def take(self, page: Page) -> None:
        """Deliver."""
        session, count = self._session, len(page)
        first = self._channel.tags.skip(count)
        properties = page.properties
        if self._info:
            origin = session.engine.log.origin
            properties = [told(page.properties_of(row), origin, page.lsns[row]) for row in range(count)]
        session.unsent += page.size
        session.out += self._encoder.encode(first, False, page.topics, properties, page.bodies)
        session.counters.delivered_consume_auto_ack += count
        session.mark_dirty()

    def completed(self, *, last: bool) -> None:
        """The end of a range is the end of the consumer."""
        if last:
            self._cancel()

    def ended(self, error: PenstockError) -> None:
        """Nothing more can be read: the channel's trouble, unless it is the server's."""
        if isinstance(error, LogBroken):
            self._cancel()
        elif self._channel.open:
            self._session.fail_channel(self._channel.number, error, m.BasicConsume)

    def _cancel(self) -> None:
        if self.announced:
            self._channel.followings.pop(self.tag, None)
            self._session.notify_cancel(self._channel, self.tag)
        else:
            self._over = True

    def announce(self) -> None:
        """The client knows the tag now."""
        self.announced = True
        if self._over:
            self._cancel()
        elif self.follower is not None:
            self.follower.step()

    def close(self) -> None:
        """Deliver nothing more."""
        if self.follower is not None:
            self.follower.close()


def told(data: bytes, origin: int, lsn: int) -> bytes:
    """A header with the bookmark of its message."""
    properties = header_codec.decode(data)
    properties.headers = {**(properties.headers or {}), BOOKMARK: format_bookmark(origin, lsn)}
    return header_codec.encode(properties)


def consume(session: Session, channel: Channel, name: str, tag: str, method: m.BasicConsume) -> None:
    """basic.consume with `x-bookmark`.  Raises what cannot be."""
    arguments = cast("Mapping[str, object]", method.arguments)
    for key in arguments:
        if key not in KNOWN:
            raise ProtocolError(f"consumer argument {key} does not go with {BOOKMARK}", reply_code=540)
    text = partial(_text, arguments)
    gap = text("x-rate-max-gap")
    queue = session.core.find_queue(session.vhost, name)
    if queue is not None:
        session.core.queue(session.vhost, name, by=session)  # another connection's exclusive queue is its own
    try:
        micros = None if gap is None else parse_duration(gap)
    except ValueError as error:
        raise InvalidArgument(f"consumer argument x-rate-max-gap: {error}") from None
    if not name:
        raise NotFound("no queue and no topic is named")
    following = Following(session, channel, tag, info=arguments.get("x-info") is True)
    following.follower = session.engine.replays.subscribe(
        Asked(
            selection_of(session.core, session.vhost, "", name),
            text(BOOKMARK) or "",
            text("x-filter"),
            text("x-rate"),
            micros,
            text("x-bookmark-not-found") or "now",
            rights=session.rights,
        ),
        following,
    )
    channel.followings[tag] = following
    if method.nowait:
        following.announce()
    else:
        session.reply(channel, m.BasicConsumeOk(tag), then=following.announce)


def _text(arguments: Mapping[str, object], name: str) -> str | None:
    value = arguments.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidArgument(f"consumer argument {name} is {value!r}, not text")
    return value
