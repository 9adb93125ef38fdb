"""Pieces of one delivery: what stands before its tag, and what stands behind.

A door that is a process makes deliveries of these; it needs nothing of what a log or a queue is made of.

A body is cut into frames, a header is not (AMQP 0-9-1, 4.2.6.1), and a client whose frames are small must not get a
larger one (4.2.3).  Such a message came from a client with larger frames or by another door, or the server has added
to its header; it is sent to no client that cannot take it, and that client's channel is told why.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.errors import ProtocolError
from penstock.records.field_tables import encode_short_string
from penstock.wire.amqp.frames import (
    BASIC,
    BODY,
    CONTENT_TOO_LARGE,
    END,
    HEADER,
    METHOD,
    OVERHEAD,
    TEXT_MOST,
    Bytes,
    pack_border,
)
from penstock.wire.amqp.methods import BasicDeliver

pack_tag = struct.Struct(">Q").pack
pack_head = struct.Struct(">BHIHHQ").pack
"""A header frame as far as the property flags."""
pack_body = struct.Struct(">BBHI").pack
"""End mark of the header frame, border of the body frame."""


def properties_most(frame_max: int) -> int:
    """Bytes of properties that a header frame carries: of all that a content has they alone cannot be cut."""
    return frame_max - OVERHEAD - 12


def too_large(properties: bytes | list[bytes], frame_max: int) -> int | None:
    """The first row whose header does not fit a frame."""
    most = properties_most(frame_max)
    if isinstance(properties, bytes):
        return 0 if len(properties) > most else None
    if max(map(len, properties)) <= most:
        return None
    return next(row for row, one in enumerate(properties) if len(one) > most)


def header_too_large(what: str, size: int, frame_max: int) -> ProtocolError:
    """The refusal that ends the channel."""
    return ProtocolError(
        f"the header of {what} has {size} bytes, more than a frame of this connection carries "
        f"({properties_most(frame_max)} of frame_max {frame_max})",
        reply_code=CONTENT_TOO_LARGE,
        scope="channel",
    )


def named(consumer_tag: str) -> bytes:
    """What a delivery says of its consumer: with `front_of` what stands before its tag."""
    return BasicDeliver.ID.to_bytes(4, "big") + encode_short_string(consumer_tag, "consumer tag")


def fitting(name: str) -> str:
    """An exchange or a key as a delivery can say it: of one that is longer than AMQP allows its beginning.

    A client brings none that is, but a dead letter's key is what its queue says, and a trace's begins with a word.
    """
    if len(name) * 4 <= TEXT_MOST:
        return name
    return name.encode()[:TEXT_MOST].decode(errors="ignore")


def behind(redelivered: bool, exchange: str, key: str) -> bytes:
    """What stands behind the tag in the method frame, with its end mark."""
    return bytes((redelivered,)) + encode_short_string(fitting(exchange)) + encode_short_string(fitting(key)) + END


def front_of(channel: int, name: bytes, size: int) -> bytes:
    """What stands before the tag.  name: `named`; size: of `behind`, which stands behind it."""
    return pack_border(METHOD, channel, len(name) + 8 + size - 1) + name  # END is not counted


def behind_tag(
    channel: int, tag: int, head: bytes, properties: bytes, body: bytes, payload_max: int
) -> Sequence[Bytes]:
    """Pieces of one delivery from the tag on."""
    size = len(body)
    if 0 < size <= payload_max:
        return (
            pack_tag(tag), head, pack_head(HEADER, channel, len(properties) + 12, BASIC, 0, size), properties,
            pack_body(0xCE, BODY, channel, size), body, END,
        )  # fmt: skip
    return (pack_tag(tag), head, *content(channel, properties, body, payload_max + OVERHEAD))


def delivery(
    channel: int, tag: int, name: bytes, head: bytes, properties: bytes, body: bytes, frame_max: int
) -> list[Bytes]:
    """Pieces of one delivery.  name: `named`; head: `behind`."""
    front = front_of(channel, name, len(head))
    return [front, *behind_tag(channel, tag, head, properties, body, frame_max - OVERHEAD)]


def content(channel: int, properties: bytes, body: bytes, frame_max: int) -> list[Bytes]:
    """Header frame and body frames of one message, the last piece an end mark."""
    out: list[Bytes] = [pack_head(HEADER, channel, len(properties) + 12, BASIC, 0, len(body)), properties, END]
    most = frame_max - OVERHEAD
    whole = body if len(body) <= most else memoryview(body)  # of a large body no second copy is made
    for start in range(0, len(body), most):
        part = whole[start : start + most]
        out += (pack_border(BODY, channel, len(part)), part, END)
    return out
