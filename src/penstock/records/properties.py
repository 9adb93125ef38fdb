"""The header of a message: AMQP 0-9-1 basic properties, bytes to a typed value and back.

Owns the layout below.  Refuses to know what a property means to a queue: the core reads `delivery_mode`, `priority`,
`expiration` and `headers` through `peek`, and everybody else carries the publisher's own bytes untouched.

    u16 flags | the properties whose bit is set, in this order
    bit 15 content_type  14 content_encoding  13 headers (table)  12 delivery_mode (u8)  11 priority (u8)
        10 correlation_id  9 reply_to  8 expiration  7 message_id  6 timestamp (u64 seconds)
         5 type  4 user_id  3 app_id  2 cluster_id; the rest are short strings; bits 1 and 0 are always 0

Classes of headers: messages of a client differ by an id, a time, a correlation; what stands before these, flags, table
of headers and delivery mode, is the same in most of them, and alone says what the server has to do.  So that beginning
is judged once and remembered (bounded); of the rest only the sizes are checked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from penstock.errors import InvalidArgument, ProtocolError
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import (
    FRAME_ERROR,
    SYNTAX_ERROR,
    FieldValue,
    Written,
    encode_short_string,
    encode_table,
    read_table,
)
from penstock.records.remembered import Remembered

PERSISTENT = 2
"""The delivery mode of a message that survives a restart."""

EMPTY = b"\x00\x00"
"""The encoded header of a message without properties."""


@dataclass(slots=True)
class Properties:
    """The fourteen basic properties; None is absent."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Mapping[str, FieldValue] | None = None
    delivery_mode: int | None = None  # 1 transient, 2 persistent
    priority: int | None = None  # 0..255
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None  # milliseconds, as text
    message_id: str | None = None
    timestamp: int | None = None  # seconds since the Unix epoch
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None

    def sent_at(self) -> datetime | None:
        """`timestamp` in UTC; None when absent or beyond the year 9999."""
        try:
            return None if self.timestamp is None else datetime.fromtimestamp(self.timestamp, UTC)
        except (ValueError, OverflowError, OSError):
            return None


class Peek(NamedTuple):
    """What the server must know of a header when the message is published."""

    delivery_mode: int  # 0 when absent
    priority: int | None
    expiration: str | None
    user_id: str | None
    headers: dict[str, FieldValue] | None


_HEADERS, _DELIVERY_MODE, _PRIORITY = 0x2000, 0x1000, 0x0800


def _broken(data: bytes, cause: Exception | None = None) -> ProtocolError:
    if len(data) >= 2 and data[1] & 0b11:
        return ProtocolError("property flags name properties that class basic does not have", reply_code=FRAME_ERROR)
    if isinstance(cause, UnicodeDecodeError):
        return ProtocolError("a property is not UTF-8", reply_code=SYNTAX_ERROR)
    return ProtocolError("the property list does not end where the header frame ends", reply_code=FRAME_ERROR)


def decode(data: bytes, written: Written | None = None) -> Properties:
    """The properties in `data`: flags and list, and nothing after them.

    written: gets the fields of the table of headers as they stand there, for who encodes them anew.

    A text that is not UTF-8 gets U+FFFD for what is wrong in it: doors refuse such a header (`peek`), and what was
    stored before they did must not stop who reads it.
    Errors: ProtocolError with reply code 501 (flags or sizes that do not fit) or 502 (unknown field type).
    """
    p = Properties()
    try:
        flags = data[0] << 8 | data[1]
        if flags & 0b11:
            raise _broken(data)
        pos = 2
        for name, read in _present(flags):
            value, pos = read(data, pos) if read is not read_table else read_table(data, pos, written)
            setattr(p, name, value)
    except (IndexError, UnicodeDecodeError) as error:
        raise _broken(data, error) from error
    if pos != len(data):
        raise _broken(data)
    return p


def _short(data: bytes, pos: int) -> tuple[str, int]:
    end = pos + 1 + data[pos]
    raw = data[pos + 1 : end]
    try:
        return raw.decode(), end
    except UnicodeDecodeError:  # what is replaced grows, and has to have a form when the header is written anew
        return raw.decode("utf-8", "replace").encode()[:255].decode("utf-8", "ignore"), end


def _octet(data: bytes, pos: int) -> tuple[int, int]:
    return data[pos], pos + 1


def _seconds(data: bytes, pos: int) -> tuple[int, int]:
    return int.from_bytes(data[pos : pos + 8], "big"), pos + 8


def _integer(value: int, name: str) -> bytes:
    size = 8 if name == "timestamp" else 1
    try:
        return value.to_bytes(size, "big")
    except OverflowError as error:
        raise InvalidArgument(f"{name} is {value}, outside 0..{256**size - 1}") from error


def _table(value: Mapping[str, FieldValue], name: str) -> bytes:
    return encode_table(value)


_Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
_LAYOUT: Sequence[tuple[int, str, _Read, Callable[[Any, str], bytes]]] = (
    (0x8000, "content_type", _short, encode_short_string),
    (0x4000, "content_encoding", _short, encode_short_string),
    (_HEADERS, "headers", read_table, _table),
    (_DELIVERY_MODE, "delivery_mode", _octet, _integer),
    (_PRIORITY, "priority", _octet, _integer),
    (0x0400, "correlation_id", _short, encode_short_string),
    (0x0200, "reply_to", _short, encode_short_string),
    (0x0100, "expiration", _short, encode_short_string),
    (0x0080, "message_id", _short, encode_short_string),
    (0x0040, "timestamp", _seconds, _integer),
    (0x0020, "type", _short, encode_short_string),
    (0x0010, "user_id", _short, encode_short_string),
    (0x0008, "app_id", _short, encode_short_string),
    (0x0004, "cluster_id", _short, encode_short_string),
)
"""Each property in the order of a list: its flag, its name, how it is read and written."""


@lru_cache(1024)
def _present(flags: int) -> list[tuple[str, _Read]]:
    """What a list with these flags holds."""
    return [(name, read) for bit, name, read, _ in _LAYOUT if flags & bit]


_TEXT, _TABLE = 0, -1
_SIZES: Mapping[_Read, int] = {_short: _TEXT, read_table: _TABLE, _octet: 1, _seconds: 8}


@lru_cache(1024)
def _sizes(flags: int) -> tuple[int, ...]:
    """What a list with these flags is to who passes over it: so many bytes each, `_TEXT` or `_TABLE`."""
    return tuple(_SIZES[read] for _, read in _present(flags))


_TELLING = 0x2957
"""Flags of what the core reads besides the delivery mode, and of what is not a text: such a header needs `peek`."""


def plain_mode(data: bytes) -> int:
    """The delivery mode (0 when absent) of a sound header in ASCII that says nothing else the core reads; else -1.

    A third of the cost of `peek`, for headers that differ in every message by an id.
    """
    size = len(data)
    if size < 2:
        return -1
    flags = data[0] << 8 | data[1]
    if flags & _TELLING:
        return -1
    pos, mode = 2, 0
    try:
        for fixed in _sizes(flags):
            if fixed:  # the delivery mode, between texts
                mode = data[pos]
                pos += 1
            else:
                pos += 1 + data[pos]
    except IndexError:
        return -1
    return mode if pos == size and data[2:].isascii() else -1


MANY = 96
"""Headers from which numpy looks at all of them together, where it is loaded: a door's process does without it."""


def plain_mode_of_all(headers: Sequence[bytes]) -> int:
    """What `plain_mode` says of every one of these, if they are many and have the same flags and mode; else -1.

    A fifth of the cost, for a batch in which every message has an id of its own.
    """
    count, flags = len(headers), headers[0][:2]
    said = int.from_bytes(flags, "big")
    np: Any = sys.modules.get("numpy")
    if np is None or count < MANY or len(flags) < 2 or said & _TELLING:
        return -1
    data = np.frombuffer(b"".join(headers), dtype=np.uint8)
    ends = np.fromiter(map(len, headers), np.int64, count).cumsum()
    at = np.concatenate(([0], ends[:-1]))
    if (ends - at).min() < 2 or (data[at] != flags[0]).any() or (data[at + 1] != flags[1]).any():
        return -1
    if np.count_nonzero(data & 0x80) != count * ((flags[0] >> 7) + (flags[1] >> 7)):
        return -1  # a text that is not ASCII has to be looked at
    at += 2
    mode = 0
    for fixed in _sizes(said):
        if (at >= ends).any():
            return -1
        here = data[at]
        if fixed:
            mode = int(here[0])
            if (here != mode).any():
                return -1
        else:
            at += here
        at += 1
    return mode if (at == ends).all() else -1


def peek(data: bytes) -> Peek:
    """Delivery mode, priority, expiration, user id and headers of an encoded header, without the other values.

    The whole list is walked and every text looked at: what has passed here can be decoded.  Errors as `decode`, and
    ProtocolError 502 for a text that is not UTF-8.
    """
    if data == EMPTY:
        return _NOTHING
    mode, priority, expiration, user, headers = 0, None, None, None, None
    try:
        flags = data[0] << 8 | data[1]
        pos = 2
        if flags & 0x8000:
            pos = _checked(data, pos)
        if flags & 0x4000:
            pos = _checked(data, pos)
        if flags & 0x2000:
            headers, pos = read_table(data, pos)
        if flags & 0x1000:
            mode = data[pos]
            pos += 1
        if flags & 0x0800:
            priority = data[pos]
            pos += 1
        if flags & 0x07FF:
            if flags & 0x0400:
                pos = _checked(data, pos)
            if flags & 0x0200:
                pos = _checked(data, pos)
            if flags & 0x0100:
                start = pos + 1
                pos = start + data[pos]
                expiration = data[start:pos].decode()
            if flags & 0x0080:
                pos = _checked(data, pos)
            if flags & 0x007F:
                if flags & 0x0040:
                    pos += 8
                if flags & 0x0020:
                    pos = _checked(data, pos)
                if flags & 0x0010:
                    start = pos + 1
                    pos = start + data[pos]
                    user = data[start:pos].decode()
                if flags & 0x0008:
                    pos = _checked(data, pos)
                if flags & 0x0004:
                    pos = _checked(data, pos)
                if flags & 0x0003:
                    raise _broken(data)
    except (IndexError, UnicodeDecodeError) as error:
        raise _broken(data, error) from error
    if pos != len(data):
        raise _broken(data)
    return _peek((mode, priority, expiration, user, headers))


def _checked(data: bytes, pos: int) -> int:
    """The end of a text.  UnicodeDecodeError where it is none."""
    end = pos + 1 + data[pos]
    data[pos + 1 : end].decode()
    return end


_NOTHING = Peek(0, None, None, None, None)
_peek: Callable[[tuple[object, ...]], Peek] = Peek._make  # quicker than the named constructor

_PEEKED_MAX = 4096
_PEEKED_SIZE_MAX = 512
_peeked = Remembered[bytes, Peek](_PEEKED_MAX)


def peeked(data: bytes) -> Peek:
    """`peek`, remembered: the machine checks each header and the core reads it again.  Do not change the headers in it.

    Bounded: 4,096 headers of at most 512 bytes.  Errors as `decode`; a broken header is not remembered.
    """
    found = _peeked.get(data)
    if found is None:
        found = peek(data)
        if len(data) <= _PEEKED_SIZE_MAX:
            _peeked.keep(data, found)
    return found


REPLY_TO = 0x02
"""The flag of `reply_to`, in the first byte of a header."""

_BEFORE_REPLY_TO = 0xFC00


def with_reply_to(data: bytes, old: str, new: str) -> bytes | None:
    """A well-formed header whose `reply_to` is `old`, with `new` instead and all else as it is; None if it is not."""
    if not data[0] & REPLY_TO:
        return None
    pos = 2
    for size in _sizes((data[0] << 8 | data[1]) & _BEFORE_REPLY_TO):
        pos += 4 + int.from_bytes(data[pos : pos + 4], "big") if size == _TABLE else size or 1 + data[pos]
    end = pos + 1 + data[pos]
    if data[pos + 1 : end] != old.encode():
        return None
    return data[:pos] + encode_short_string(new, "reply_to") + data[end:]


def encode(properties: Properties, written: Written | None = None) -> bytes:
    """Flags and list.  InvalidArgument names a property that is too long or out of range.

    written: of the header that they were, as `decode` gave it: values of its table keep the types that they had.
    """
    flags = 0
    out: list[bytes] = [b""]
    for bit, name, _, write in _LAYOUT:
        value = getattr(properties, name)
        if value is not None:
            flags |= bit
            out.append(write(value, name) if bit != _HEADERS else encode_table(value, written))
    out[0] = flags.to_bytes(2, "big")
    return b"".join(out)


ASKING = frozenset(
    {
        "CC", "BCC", "x-delay", "x-deliver-at", "_AMQ_SCHED_DELIVERY", "x-delta", "x-dedup-key", "x-publisher",
        "x-sequence",
    }
)  # fmt: skip
"""Names in the table of headers by which a publisher asks something of the server: `core.publishing` reads them.

Topics with records of their own, exchanges of type headers and filters look at a header themselves, whatever its class.
"""

ASKS = -1
"""The class of a header that asks for something, or that may be broken: whoever has it reads it."""

DIRECT = b"amq.rabbitmq.reply-to"
"""A `reply_to` that begins so asks for something: an address in its place, which answers without a queue."""

_ASKING_FLAGS = 0x0913
"""Flags of priority, expiration and user id, and those that mean nothing."""

_REPLY = -1
"""Of what follows a beginning: the text that says where an answer goes."""

_STARTS_MOST = 4096
_START_SIZE_MOST = 1024
"""Of what is remembered: the headers are strangers'."""


_known = Remembered[bytes, tuple[int, tuple[int, ...]]](_STARTS_MOST)
"""By beginning: the delivery mode, and what follows it: `_TEXT`, `_REPLY`, anything else so many bytes."""


class HeaderClasses:
    """What headers say, asked by one who sees many that begin alike."""

    __slots__ = ("_end", "_long", "_mode", "_rest", "_size", "_start", "_text")

    def __init__(self) -> None:
        self._start = b"\xff\xff"  # of the last; flags that no header has
        self._mode = ASKS
        self._rest: tuple[int, ...] = ()
        self._size = -1  # of the last where it has one text behind its beginning; below 0: it has not
        self._text = self._end = self._long = 0  # where that begins and ends, and its length

    def mode(self, data: bytes) -> int:
        """The delivery mode (0 when absent) of a well-formed header that asks for nothing else; else `ASKS`."""
        start = self._start
        if (
            len(data) == self._size and data[self._text - 1] == self._long and data.startswith(start)
            and data[self._text : self._end].isascii()
        ):  # fmt: skip
            return self._mode  # it is as long as the last in each part
        if not data.startswith(start) and not (start := self._begin(data)):
            return ASKS
        at = len(start)
        try:
            for size in self._rest:
                if size > 0:
                    at += size
                    continue
                end = at + 1 + data[at]
                text = data[at + 1 : end]
                if not text.isascii():
                    text.decode()  # it may be no text
                if size and text.startswith(DIRECT):
                    return ASKS
                at = end
        except (IndexError, UnicodeDecodeError):
            return ASKS
        if at != len(data):
            return ASKS
        if self._rest[:1] == (_TEXT,) and min(self._rest[1:], default=1) > 0:
            self._text = len(start) + 1
            self._long = data[len(start)]
            self._end, self._size = self._text + self._long, at
        return self._mode

    def _begin(self, data: bytes) -> bytes:
        """The beginning of a header, whose class is the last one's from now on; empty: it has none."""
        start = data[: _end_of_start(data)]
        told = _known.get(start)
        if told is None:
            if not start or (told := _judge(start)) is None:
                return b""
            if len(start) <= _START_SIZE_MOST:
                _known.keep(start, told)
        self._start, self._size = start, -1
        self._mode, self._rest = told
        return start


def _end_of_start(data: bytes) -> int:
    """Where what comes behind the delivery mode begins; 0: nowhere, or the header asks for something by its flags."""
    size = len(data)
    if size < 2:
        return 0
    flags = data[0] << 8 | data[1]
    if flags & _ASKING_FLAGS:
        return 0
    at = 2
    try:  # step by step: this is asked of messages that do not begin alike
        if flags & 0x8000:
            at += 1 + data[at]
        if flags & 0x4000:
            at += 1 + data[at]
        if flags & 0x2000:
            at += 4 + int.from_bytes(data[at : at + 4], "big")
        if flags & 0x1000:
            at += 1
    except IndexError:
        return 0
    return at if at <= size else 0


def _judge(start: bytes) -> tuple[int, tuple[int, ...]] | None:
    """The delivery mode of what begins so, and the sizes of what follows; None where it asks for something."""
    flags = start[0] << 8 | start[1]
    rest: list[int] = []
    for flag, size in (
        (0x0400, _TEXT), (0x0200, _REPLY), (0x0080, _TEXT), (0x0040, 8), (0x0020, _TEXT), (0x0008, _TEXT),
        (0x0004, _TEXT),
    ):  # fmt: skip
        if flags & flag:
            rest.append(size)
    try:
        told = peek(start + b"".join([bytes(max(size, 1)) for size in rest]))
    except ProtocolError:
        return None
    if told.headers is not None and not ASKING.isdisjoint(told.headers):
        return None
    return told.delivery_mode, tuple(rest)
