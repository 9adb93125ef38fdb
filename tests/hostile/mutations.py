"""Ways to break a valid Arrow stream: each takes a generator and a stream and gives the messages that are sent.

Arrow's layout says where damage hurts.  A header is a flatbuffer of aligned integers: places and lengths of buffers,
numbers of rows and nulls, offsets of its own tables.  A body is buffers side by side: bitmaps, 32- or 64-bit offsets,
values, each of which may be compressed and then begins with its length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from random import Random

from hostile.arrow_streams import Message, Stream
from hostile.flight_wire import descriptor, field, flight_data, varint

INTERESTING = (
    0, 1, 2, 3, 7, 8, 63, 64, 127, 128, 255, 256, 1000, 65_535, 65_536, 1 << 20, 1 << 24, (1 << 28) + 1, (1 << 31) - 1,
    1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 48, (1 << 63) - 1, -1, -2, -8, -1 << 31, -1 << 63,
)  # fmt: skip
"""Numbers at which limits, signs and widths lie."""

Mutation = Callable[[Random, Stream], list[bytes]]


def _number(rng: Random, width: int) -> bytes:
    value = rng.choice(INTERESTING) if rng.random() < 0.8 else rng.getrandbits(8 * width)
    return struct.pack("<Q", value & (1 << 64) - 1)[:width]


def _put_numbers(rng: Random, data: bytes, width: int, most: int = 3) -> bytes:
    """Some aligned integers replaced."""
    out = bytearray(data)
    for _ in range(rng.randint(1, most)):
        if len(out) >= width:
            at = rng.randrange(len(out) // width) * width
            out[at : at + width] = _number(rng, width)
    return bytes(out)


def _nudge(rng: Random, data: bytes, width: int) -> bytes:
    """One aligned integer, a little more or less: what is nearly right."""
    if len(data) < width:
        return data
    at = rng.randrange(len(data) // width) * width
    value = int.from_bytes(data[at : at + width], "little") + rng.choice((-64, -8, -1, 1, 8, 64))
    return data[:at] + (value & (1 << 8 * width) - 1).to_bytes(width, "little") + data[at + width :]


def _flip(rng: Random, data: bytes, most: int = 8) -> bytes:
    """Some bits."""
    out = bytearray(data)
    for _ in range(rng.randint(1, most)):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _cut(rng: Random, data: bytes) -> bytes:
    """Shorter, longer, or with a piece taken out."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 4, 8, 64)))
    return rng.choice((data[:at], data[:at] + data[end:], data + rng.randbytes(rng.randint(1, 64))))


def _swap(rng: Random, data: bytes) -> bytes:
    """Two pieces of a body change places, or one is repeated."""
    places = max(1, len(data) // 8)
    one, other, size = rng.randrange(places) * 8, rng.randrange(places) * 8, rng.choice((8, 16, 64))
    out = bytearray(data)
    a, b = bytes(out[one : one + size]), bytes(out[other : other + size])
    out[other : other + len(b)] = a[: len(b)].ljust(len(b), b"\0")
    if rng.random() < 0.5:
        out[one : one + len(a)] = b[: len(a)].ljust(len(a), b"\0")
    return bytes(out)


def _of_body(change: Callable[[Random, bytes], bytes]) -> Mutation:
    """A change to the body of one message that has one."""

    def mutate(rng: Random, stream: Stream) -> list[bytes]:
        messages = list(stream.messages)
        having = [place for place, one in enumerate(messages) if one.body]
        if having:
            place = rng.choice(having)
            messages[place] = replace(messages[place], body=change(rng, messages[place].body))
        return replace(stream, messages=messages).frames()

    return mutate


def _of_header(change: Callable[[Random, bytes], bytes]) -> Mutation:
    """A change to the header of one message; those of batches twice as often as the schema."""

    def mutate(rng: Random, stream: Stream) -> list[bytes]:
        messages = list(stream.messages)
        having = [place for place, one in enumerate(messages) if one.header]
        batches = [place for place in having if messages[place].body]
        if having:
            place = rng.choice(having + 2 * batches)
            messages[place] = replace(messages[place], header=change(rng, messages[place].header))
        return replace(stream, messages=messages).frames()

    return mutate


def _of_words(rng: Random, stream: Stream) -> list[bytes]:
    """The command, or what is said beside a batch."""
    messages = list(stream.messages)
    having = [place for place, one in enumerate(messages) if one.metadata]
    change = rng.choice((_flip, _cut))
    if not having or rng.random() < 0.3:
        return replace(stream, command=change(rng, stream.command)).frames()
    place = rng.choice(having)
    messages[place] = replace(messages[place], metadata=change(rng, messages[place].metadata))
    return replace(stream, messages=messages).frames()


def _order(rng: Random, stream: Stream) -> list[bytes]:
    """Messages twice, missing, or in another order."""
    messages = list(stream.messages)
    for _ in range(rng.randint(1, 3)):
        if not messages:
            break
        place = rng.randrange(len(messages))
        match rng.randrange(4):
            case 0:
                messages.pop(place)
            case 1:
                messages.insert(rng.randrange(len(messages) + 1), messages[place])
            case 2:
                other = rng.randrange(len(messages))
                messages[place], messages[other] = messages[other], messages[place]
            case _:
                messages[place] = Message(messages[place].header, b"", messages[place].metadata)
    return replace(stream, messages=messages).frames()


def _protobuf(rng: Random, stream: Stream) -> list[bytes]:
    """The protobuf around it: bytes of its own, fields twice, of unknown numbers, of other kinds."""
    frames = stream.frames()
    place = rng.randrange(len(frames))
    match rng.randrange(5):
        case 0:
            frames[place] = _flip(rng, frames[place][:40]) + frames[place][40:]
        case 1:
            frames[place] = frames[place][: rng.randrange(len(frames[place]) + 1)]
        case 2:
            frames[place] += field(rng.choice((1, 2, 3, 7, 999, 1000)), rng.randbytes(rng.randint(0, 40)))
        case 3:
            frames[place] += varint(rng.choice((1, 2, 3, 1000)) << 3) + varint(rng.getrandbits(63))
        case _:
            one = stream.messages[0] if stream.messages else Message()
            named = b"".join(descriptor(stream.command) for _ in range(rng.randint(0, 3)))
            frames[0] = flight_data(one.header, one.body, one.metadata, named + field(3, b"path"))
    return frames


def _several(rng: Random, stream: Stream) -> list[bytes]:
    """Header and body of the same message."""
    messages = list(stream.messages)
    having = [place for place, one in enumerate(messages) if one.header]
    if having:
        place = rng.choice(having)
        one = messages[place]
        header = _nudge(rng, one.header, rng.choice((4, 8)))
        messages[place] = replace(one, header=header, body=_put_numbers(rng, one.body, 4) if one.body else b"")
    return replace(stream, messages=messages).frames()


def _as_it_is(rng: Random, stream: Stream) -> list[bytes]:
    """Valid: what is next to the broken ones must go on working."""
    return stream.frames()


MUTATIONS: dict[str, tuple[int, Mutation]] = {
    "valid": (1, _as_it_is),
    "body int32": (5, _of_body(lambda rng, data: _put_numbers(rng, data, 4))),
    "body int64": (3, _of_body(lambda rng, data: _put_numbers(rng, data, 8))),
    "body nudge": (4, _of_body(lambda rng, data: _nudge(rng, data, rng.choice((4, 8))))),
    "body bits": (2, _of_body(_flip)),
    "body cut": (2, _of_body(_cut)),
    "body swap": (2, _of_body(_swap)),
    "header int64": (4, _of_header(lambda rng, data: _put_numbers(rng, data, 8, 2))),
    "header int32": (3, _of_header(lambda rng, data: _put_numbers(rng, data, 4, 2))),
    "header nudge": (5, _of_header(lambda rng, data: _nudge(rng, data, rng.choice((2, 4, 8))))),
    "header bits": (3, _of_header(lambda rng, data: _flip(rng, data, 3))),
    "header cut": (1, _of_header(_cut)),
    "header and body": (3, _several),
    "words": (2, _of_words),
    "order": (3, _order),
    "protobuf": (2, _protobuf),
}
"""By name: how often, and how."""

_NAMES = list(MUTATIONS)
_WEIGHTS = [MUTATIONS[name][0] for name in _NAMES]


def mutated(rng: Random, stream: Stream) -> tuple[str, list[bytes]]:
    """A mutation's name, and what is sent."""
    [name] = rng.choices(_NAMES, _WEIGHTS)
    return name, MUTATIONS[name][1](rng, stream)


def changed(rng: Random, data: bytes) -> bytes:
    """A word (a ticket, a body of an action) that is broken in one of the ways of bytes."""
    return rng.choice((_flip, _cut, _swap))(rng, data)
