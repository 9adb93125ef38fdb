"""Messages on their way out: basic.deliver, get-ok and return with their content, as pieces for one join.

    END of the one before, method frame up to the tag | tag | redelivered, exchange, key, END, header frame, body border
    | body | the same again ... | END

What lies between tag and body is made once per (redelivered, topic, properties, body size) and remembered, bounded;
it names no consumer, so all of a channel share it.  Knows no queue, lease or credit; the tags are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.records.entries import Topic
from penstock.records.remembered import Memo
from penstock.wire.amqp.frames import BASIC, BODY, END, HEADER, METHOD, OVERHEAD, Bytes, frame, reply_text
from penstock.wire.amqp.methods import BasicGetOk, BasicReturn
from penstock.wire.amqp.pieces import (
    behind,
    behind_tag,
    content,
    fitting,
    front_of,
    named,
    pack_body,
    pack_head,
    pack_tag,
    properties_most,
)

_MIDDLES_MOST = 2048
"""Remembered for one channel."""
_PROPERTIES_MOST = 1024
"""Longer property lists are not remembered: the cache would hold more than it saves."""
_BEFORES_MOST = 64
"""Sizes of names for which a consumer's part of the method frame is remembered."""


class _TooLarge(KeyError):
    """The body does not fit one frame."""


class _Middles(dict[int, bytes]):
    """By body size, what lies between tag and body for one (redelivered, topic, properties)."""

    def __init__(self, owner: Contents, head: bytes, properties: bytes) -> None:
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
    head = pack_head(HEADER, channel, len(properties) + 12, BASIC, 0, size) + properties
    return head + pack_body(END[0], BODY, channel, size) if size else head


class Contents:
    """What follows the tag of a delivery on one channel, whoever consumes."""

    def __init__(self, channel: int, frame_max: int) -> None:
        self.channel = channel
        self.payload_max = frame_max - OVERHEAD
        self.room = _MIDDLES_MOST  # how many more pieces may be remembered
        self._middles: dict[tuple[bool, Topic, bytes], _Middles] = {}
        self.heads: dict[tuple[bool, Topic], bytes] = {}

    def forget(self) -> None:
        """Empty the caches."""
        self.room = _MIDDLES_MOST
        self._middles.clear()
        self.heads.clear()

    def head(self, redelivered: bool, topic: Topic) -> bytes:
        """What follows the tag in the method frame."""
        found = self.heads.get((redelivered, topic))
        if found is None:
            found = behind(redelivered, topic.exchange, topic.name)
            if self.room <= 0:
                self.forget()
            self.room -= 1
            self.heads[redelivered, topic] = found
        return found

    def middles(self, redelivered: bool, topic: Topic, properties: bytes) -> _Middles:
        """By body size, what lies between tag and body."""
        found = self._middles.get((redelivered, topic, properties))
        if found is None:
            head = self.head(redelivered, topic)
            if self.room <= 0:
                self.forget()
            self.room -= 1
            found = self._middles[redelivered, topic, properties] = _Middles(self, head, properties)
        return found


class DeliveryEncoder:
    """Deliveries of one consumer on one channel."""

    __slots__ = (
        "befores", "channel", "consumer_tag", "contents", "front", "front_size", "name", "payload_max",
        "properties_most",
    )  # fmt: skip

    def __init__(self, channel: int, consumer_tag: str, frame_max: int, contents: Contents | None = None) -> None:
        """contents: of the channel; None: its own."""
        self.channel = channel
        self.consumer_tag = consumer_tag
        self.payload_max = frame_max - OVERHEAD
        self.properties_most = properties_most(frame_max)
        self.contents = contents or Contents(channel, frame_max)
        self.name = named(consumer_tag)
        # by the size of what follows the tag in the method frame, what stands before it
        self.befores: Memo[int, bytes] = Memo(_BEFORES_MOST, partial(front_of, channel, self.name))
        self.front = b""  # of `befores`, what was used last where each message had a consumer of its own
        self.front_size = -1  # which one that is

    def find_front(self, size: int) -> bytes:
        """What stands before the tag where so much follows it in the method frame."""
        self.front, self.front_size = self.befores[size], size
        return self.front

    def encode(
        self,
        first_tag: int,
        redelivered: bool | Sequence[bool],
        topics: Topic | Sequence[Topic],
        properties: bytes | Sequence[bytes],
        bodies: Sequence[bytes],
    ) -> list[Bytes]:
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

    def one(self, tag: int, head: bytes, properties: bytes, body: bytes) -> list[Bytes]:
        """Pieces of one delivery.  head: `Contents.head`."""
        front = self.front if self.front_size == len(head) else self.find_front(len(head))
        return [front, *behind_tag(self.channel, tag, head, properties, body, self.payload_max)]

    def _alike(
        self, tag: int, redelivered: bool, topic: Topic, properties: bytes, bodies: Sequence[bytes]
    ) -> list[Bytes]:
        middle = self.contents.middles(redelivered, topic, properties)
        before = self.befores[len(middle.head)]
        if len(bodies) == 1 and 0 < len(bodies[0]) <= self.payload_max:
            body = bodies[0]
            return [before, pack_tag(tag), middle[len(body)], body, END]
        between = END + before
        out: list[Bytes] = [before]
        rows = iter(bodies)
        body = b""
        while True:
            try:
                for body in rows:
                    out += (pack_tag(tag), middle[len(body)], body, between)
                    tag += 1
                break
            except _TooLarge:
                out += (pack_tag(tag), middle.head, *self._split(properties, body), between)
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
    ) -> list[Bytes]:
        out: list[Bytes] = []
        count, channel, payload_max = len(bodies), self.channel, self.payload_max
        flags = [redelivered] * count if isinstance(redelivered, bool) else redelivered
        targets = [topics] * count if isinstance(topics, Topic) else topics
        headers = [properties] * count if isinstance(properties, bytes) else properties
        contents, befores = self.contents, self.befores
        heads = contents.heads
        for again, topic, header, body in zip(flags, targets, headers, bodies, strict=True):
            head = heads.get((again, topic)) or contents.head(again, topic)
            before = befores[len(head)]
            size = len(body)
            if 0 < size <= payload_max:
                out += (
                    before,
                    pack_tag(tag),
                    head,
                    pack_head(HEADER, channel, len(header) + 12, BASIC, 0, size),
                    header,
                    pack_body(0xCE, BODY, channel, size),
                    body,
                    END,
                )
            else:
                out += (before, pack_tag(tag), head, *self._split(header, body), END)
            tag += 1
        return out

    def _split(self, properties: bytes, body: bytes) -> list[Bytes]:
        """Content without its last end mark, the body in as many frames as it takes."""
        return content(self.channel, properties, body, self.payload_max + OVERHEAD)[:-1]


def encode_each(
    encoders: Sequence[DeliveryEncoder],
    first_tag: int,
    topics: Topic | Sequence[Topic],
    properties: bytes | Sequence[bytes],
    bodies: Sequence[bytes],
) -> list[Bytes]:
    """Pieces of a first delivery to each of these consumers of one channel, with ascending tags.

    The columns are those of `DeliveryEncoder.encode`, as long as `encoders`; what the channel remembers is theirs all.
    """
    out: list[Bytes] = []
    tag = first_tag
    if isinstance(topics, Topic) and isinstance(properties, bytes) and len(properties) <= _PROPERTIES_MOST:
        middle = encoders[0].contents.middles(False, topics, properties)
        size, most = len(middle.head), encoders[0].payload_max
        for encoder, body in zip(encoders, bodies, strict=True):
            if 0 < len(body) <= most:
                front = encoder.front if encoder.front_size == size else encoder.find_front(size)
                out += (front, pack_tag(tag), middle[len(body)], body, END)
            else:
                out += encoder.encode(tag, False, topics, properties, (body,))
            tag += 1
        return out
    columns = (
        [topics] * len(bodies) if isinstance(topics, Topic) else topics,
        [properties] * len(bodies) if isinstance(properties, bytes) else properties,
    )
    for encoder, topic, header, body in zip(encoders, *columns, bodies, strict=True):
        out += encoder.encode(tag, False, (topic,), (header,), (body,))
        tag += 1
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
) -> list[Bytes]:
    """basic.get-ok with its message."""
    method = BasicGetOk(tag, redelivered, fitting(topic.exchange), fitting(topic.name), message_count)
    return [frame(METHOD, channel, method.encode()), *content(channel, properties, body, frame_max)]


def returned(
    channel: int, code: int, exchange: str, key: str, properties: bytes, body: bytes, frame_max: int
) -> list[Bytes]:
    """basic.return with its message; `code` is 312 (NO_ROUTE) or 313 (NO_CONSUMERS)."""
    method = BasicReturn(code, reply_text(code, ""), exchange, key)
    return [frame(METHOD, channel, method.encode()), *content(channel, properties, body, frame_max)]
