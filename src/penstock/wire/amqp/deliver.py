"""Messages on their way out: basic.deliver, get-ok and return with their content, as pieces for one join.

    END of the one before, method frame up to the tag | tag | redelivered, exchange, key, END, header frame, body border
    | body | the same again ... | END

What lies between tag and body is made once per (redelivered, topic, properties, body size) and remembered, bounded.
Knows no queue, lease or credit; the tags are the caller's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.records.entries import Topic
from penstock.records.tables import encode_short_string
from penstock.wire.amqp.frames import BASIC, BODY, END, HEADER, METHOD, OVERHEAD, frame, pack_border
from penstock.wire.amqp.methods import BasicDeliver, BasicGetOk, BasicReturn
from penstock.wire.amqp.replies import reply_text

_pack_tag = struct.Struct(">Q").pack
_pack_head = struct.Struct(">BHIHHQ").pack  # a header frame as far as the property flags
_pack_body = struct.Struct(">BBHI").pack  # end mark of the header frame, border of the body frame

_MIDDLES_MOST = 1024
_PROPERTIES_MOST = 1024
"""Longer property lists are not remembered: the cache would hold more than it saves."""


class _TooLarge(KeyError):
    """The body does not fit one frame."""


class _Middles(dict[int, bytes]):
    """By body size, what lies between tag and body for one (redelivered, topic, properties)."""

    def __init__(self, owner: DeliveryEncoder, head: bytes, properties: bytes) -> None:
        super().__init__()
        self.owner = owner
        self.head = head  # redelivered, exchange, key, end mark
        self.properties = properties

    def __missing__(self, size: int) -> bytes:
        owner = self.owner
        if size > owner.payload_max:
            raise _TooLarge(size)
        middle = self.head + _content_head(owner.channel, self.properties, size)
        if owner.room <= 0:
            owner.forget()
        else:
            owner.room -= 1
            self[size] = middle
        return middle


def _content_head(channel: int, properties: bytes, size: int) -> bytes:
    """Header frame and border of the body frame, without the very last end mark; an empty body has no frame."""
    head = _pack_head(HEADER, channel, len(properties) + 12, BASIC, 0, size) + properties
    return head + _pack_body(END[0], BODY, channel, size) if size else head


class DeliveryEncoder:
    """Deliveries of one consumer on one channel."""

    def __init__(self, channel: int, consumer_tag: str, frame_max: int) -> None:
        self.channel = channel
        self.consumer_tag = consumer_tag
        self.payload_max = frame_max - OVERHEAD
        self.room = _MIDDLES_MOST  # how many more middles may be remembered
        self._tag_text = encode_short_string(consumer_tag, "consumer tag")
        self._method_id = BasicDeliver.ID.to_bytes(4, "big")
        self._middles: dict[tuple[bool, Topic, bytes], tuple[bytes, _Middles]] = {}
        self._routes: dict[tuple[bool, Topic], tuple[bytes, bytes]] = {}

    def forget(self) -> None:
        """Empty the caches."""
        self.room = _MIDDLES_MOST
        self._middles.clear()
        self._routes.clear()

    def encode(
        self,
        first_tag: int,
        redelivered: bool | Sequence[bool],
        topics: Topic | Sequence[Topic],
        properties: bytes | Sequence[bytes],
        bodies: Sequence[bytes],
    ) -> list[bytes]:
        """Pieces of len(bodies) deliveries with the tags `first_tag`, `first_tag + 1` and so on.

        A column is one value for all rows or a sequence as long as `bodies`.  Bodies above frame_max - 8 are split.
        """
        if not bodies:
            return []
        if (
            isinstance(redelivered, bool)
            and isinstance(topics, Topic)
            and isinstance(properties, bytes)
            and len(properties) <= _PROPERTIES_MOST
        ):
            return self._alike(first_tag, redelivered, topics, properties, bodies)
        return self._mixed(first_tag, redelivered, topics, properties, bodies)

    def _alike(
        self, tag: int, redelivered: bool, topic: Topic, properties: bytes, bodies: Sequence[bytes]
    ) -> list[bytes]:
        found = self._middles.get((redelivered, topic, properties))
        if found is None:
            before, head = self._route(redelivered, topic)
            if self.room <= 0:
                self.forget()
            self.room -= 1
            found = self._middles[redelivered, topic, properties] = before, _Middles(self, head, properties)
        before, middle = found
        if len(bodies) == 1 and 0 < len(bodies[0]) <= self.payload_max:
            body = bodies[0]
            return [before, _pack_tag(tag), middle[len(body)], body, END]
        between = END + before
        out = [before]
        rows = iter(bodies)
        body = b""
        while True:
            try:
                for body in rows:
                    out += (_pack_tag(tag), middle[len(body)], body, between)
                    tag += 1
                break
            except _TooLarge:
                out += (_pack_tag(tag), middle.head, *self._split(properties, body), between)
                tag += 1
        out[-1] = END
        return out

    def _mixed(
        self,
        tag: int,
        redelivered: bool | Sequence[bool],
        topics: Topic | Sequence[Topic],
        properties: bytes | Sequence[bytes],
        bodies: Sequence[bytes],
    ) -> list[bytes]:
        out: list[bytes] = []
        count, channel, payload_max = len(bodies), self.channel, self.payload_max
        flags = [redelivered] * count if isinstance(redelivered, bool) else redelivered
        targets = [topics] * count if isinstance(topics, Topic) else topics
        headers = [properties] * count if isinstance(properties, bytes) else properties
        routes = self._routes
        for again, topic, header, body in zip(flags, targets, headers, bodies, strict=True):
            route = routes.get((again, topic))
            before, head = route if route is not None else self._route(again, topic)
            size = len(body)
            if 0 < size <= payload_max:
                out += (
                    before,
                    _pack_tag(tag),
                    head,
                    _pack_head(HEADER, channel, len(header) + 12, BASIC, 0, size),
                    header,
                    _pack_body(0xCE, BODY, channel, size),
                    body,
                    END,
                )
            else:
                out += (before, _pack_tag(tag), head, *self._split(header, body), END)
            tag += 1
        return out

    def _route(self, redelivered: bool, topic: Topic) -> tuple[bytes, bytes]:
        """A delivery's method frame: what stands before its tag, and what follows it."""
        found = self._routes.get((redelivered, topic))
        if found is None:
            names = encode_short_string(topic.exchange) + encode_short_string(topic.name)
            size = 4 + len(self._tag_text) + 8 + 1 + len(names)
            before = pack_border(METHOD, self.channel, size) + self._method_id + self._tag_text
            found = before, bytes((redelivered,)) + names + END
            if self.room <= 0:
                self.forget()
            self.room -= 1
            self._routes[redelivered, topic] = found
        return found

    def _split(self, properties: bytes, body: bytes) -> list[bytes]:
        """Content without its last end mark, the body in as many frames as it takes."""
        return content(self.channel, properties, body, self.payload_max + OVERHEAD)[:-1]


def content(channel: int, properties: bytes, body: bytes, frame_max: int) -> list[bytes]:
    """Header frame and body frames of one message, the last piece an end mark."""
    out = [_pack_head(HEADER, channel, len(properties) + 12, BASIC, 0, len(body)), properties, END]
    most = frame_max - OVERHEAD
    for start in range(0, len(body), most):
        part = body[start : start + most] if len(body) > most else body
        out += (pack_border(BODY, channel, len(part)), part, END)
    return out


def get_ok(
    channel: int,
    tag: int,
    redelivered: bool,
    topic: Topic,
    message_count: int,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> list[bytes]:
    """basic.get-ok with its message."""
    method = BasicGetOk(tag, redelivered, topic.exchange, topic.name, message_count)
    return [frame(METHOD, channel, method.encode()), *content(channel, properties, body, frame_max)]


def returned(
    channel: int, code: int, exchange: str, key: str, properties: bytes, body: bytes, frame_max: int
) -> list[bytes]:
    """basic.return with its message; `code` is 312 (NO_ROUTE) or 313 (NO_CONSUMERS)."""
    method = BasicReturn(code, reply_text(code, ""), exchange, key)
    return [frame(METHOD, channel, method.encode()), *content(channel, properties, body, frame_max)]
