"""The way between an AMQP door's process and the core: frames over one Unix stream socket, and what each may hold.

     0  u32  bytes behind this head
     4  u8   kind (`Up` from the door, `Down` from the core)
     5  u8   version: 1
     6  u16  channel
     8  u32  session: its number in the door, from 1 on, never given twice
    12  u32  count: rows, or what the kind says
    16       columns one behind the other, then bytes; numbers as this machine has them

Each direction is one ordered stream, so what one client sent stays in its order, and so does what it is told.  The door
closes what it has gathered with BATCH, the core returns TAKEN for those that it has decided, and the door sends no
third one before: what gathers meanwhile is a larger batch.  Who may say what when is `Stage`'s; whoever says anything
else, or what is no such frame, is `Broken`: it is cut off and not believed.  Nothing is pickled.

Knows no socket, no session and no rule of queues.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.records.password_hashes import Slow
from penstock.server.doors.line import Broken
from penstock.wire.amqp.methods import METHODS, Method

HEAD = struct.Struct("=IBBHII")
VERSION = 1

WINDOW = 2
"""Batches that the door may have sent and the core has not decided."""

ROWS_MOST = 4096
"""Of one frame of rows; a door sends what is more in the next one."""

TEXT_MOST = 64 << 10


class Up(IntEnum):
    """What a door says.  Numbers are never used again for something else."""

    OPENED = 1  # a connection; JSON: addresses, TLS
    LOGIN = 2  # JSON and a field table: who it says it is, and the client's properties
    VHOST = 3  # JSON: what it wants to open, and what was negotiated
    CHANNEL = 4  # a channel begins
    CHANNEL_FAILED = 5  # the door has closed it; count: the code
    CHANNEL_CLOSED = 6  # the client closes it
    FAILED = 7  # the door has closed the connection; count: the code
    CLOSED = 8  # the client closes it, or has answered our close; count: the code
    FINISHED = 9  # the last word is said
    LOST = 10  # its socket is gone, and why if the door has cut it: nothing more comes of this number
    SLOW = 11  # the client does not read
    FAST = 12  # it reads again
    PARTIAL = 13  # count: bytes of bodies begun; channel: the one with the largest
    METHOD = 14  # as it came
    TARGET = 15  # count: number of a basic.publish frame of this client from now on
    MESSAGES = 16  # rows of many sessions
    RUN = 17  # rows of one channel
    ACKS = 18  # rows of many sessions
    FIGURES = 19  # rows: bytes and reads, bytes and writes, what waits
    BATCH = 20  # all before this is to be decided
    ECHO = 21  # all before the core's ECHO was given to the client's socket
    DERIVED = 22  # a digest


class Down(IntEnum):
    """What the core says.  Numbers are never used again for something else."""

    TAKEN = 1  # count: batches decided
    CONFIRMS = 2  # rows of many sessions
    PIECES = 3  # encoded frames of a channel
    METHOD = 4  # a method to send
    FAIL_CHANNEL = 5  # count: the method's number; code and text
    FAIL = 6  # the same for the connection
    LET_IN = 7  # the login is good
    REFUSE = 8  # it is not
    LET_OPEN = 9  # the vhost is open
    KNOWN = 10  # it is no stranger any more
    HELD = 11  # count: whether it waits for us
    PAUSE = 12  # read nothing of it
    RESUME = 13
    CLOSE = 14  # the socket
    END = 15  # nothing follows: end writing
    ECHO = 16  # say when this has come
    DELIVERIES = 17  # rows of many sessions
    DERIVE = 18  # how to make a digest of the password that it has told
    ABORT = 19  # close the socket at once


UP_MOST: Mapping[int, int] = {
    Up.OPENED: 1 << 20, Up.LOGIN: 1 << 20, Up.VHOST: 4096, Up.CHANNEL: 0, Up.CHANNEL_FAILED: 512,
    Up.CHANNEL_CLOSED: 512, Up.FAILED: 512, Up.CLOSED: 512, Up.FINISHED: 0, Up.LOST: 512, Up.SLOW: 0, Up.FAST: 0,
    Up.PARTIAL: 0, Up.TARGET: 513, Up.ACKS: ROWS_MOST * 22, Up.FIGURES: ROWS_MOST * 32, Up.BATCH: 0,
    Up.ECHO: 0, Up.DERIVED: 128,
}  # fmt: skip
"""Bytes of each kind beyond its head; those that hold what a client sent have more, see `up_most`."""


def up_most(frame_max: int, message_max: int) -> dict[int, int]:
    """The bounds of what a door may send: one method is a frame, a row may be the largest message.

    A door writes the fields of tables anew, which makes some longer: an octet of an array takes five bytes, not two.
    """
    rows = message_max + 2 * frame_max + (4 << 20)
    return {**UP_MOST, Up.METHOD: 4 * frame_max, Up.MESSAGES: rows, Up.RUN: rows}


DOWN_MOST: Mapping[int, int] = dict.fromkeys(Down, 0xFFFFFFFF)
"""The door believes the core."""


class Frame(NamedTuple):
    """One frame, in memory of its own."""

    kind: int
    channel: int
    session: int
    number: int  # the count, or what the kind says
    payload: bytes


def head(kind: int, size: int, session: int = 0, channel: int = 0, count: int = 0) -> bytes:
    """What stands before so many bytes."""
    return HEAD.pack(size, kind, VERSION, channel, session, count)


class Cutter:
    """Cuts a stream into frames."""

    __slots__ = ("_kept", "_most", "_need")

    def __init__(self, most: Mapping[int, int]) -> None:
        """most: what may come, with how many bytes."""
        self._most = most
        self._kept = bytearray()
        self._need = 0

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now.  Raises Broken."""
        if self._kept:
            self._kept += data
            if len(self._kept) < self._need:
                return []
            data = bytes(self._kept)
            self._kept.clear()
        frames = list[Frame]()
        at, end, most = 0, len(data), self._most
        self._need = HEAD.size
        while end - at >= HEAD.size:
            size, kind, version, channel, session, count = HEAD.unpack_from(data, at)
            if version != VERSION:
                raise Broken(f"a frame of version {version}, not {VERSION}")
            allowed = most.get(kind)
            if allowed is None or size > allowed:
                raise Broken(f"a frame of kind {kind} with {size} bytes, of {allowed or 0} that may come")
            after = at + HEAD.size + size
            if after > end:
                self._need = HEAD.size + size
                break
            frames.append(Frame(kind, channel, session, count, data[at + HEAD.size : after]))
            at = after
        if at < end:
            self._kept += data[at:] if at else data
        return frames


class Columns:
    """Reads a payload from its beginning."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, code: str, count: int) -> list[int]:
        """So many numbers of one type.  Raises Broken."""
        column: array[int] = array(code)
        end = self._at + count * column.itemsize
        if count > len(self._data) or end > len(self._data):
            raise Broken(f"{count} rows in {len(self._data)} bytes")
        column.frombytes(self._data[self._at : end])
        self._at = end
        return column.tolist()

    def pieces(self, sizes: Sequence[int]) -> list[bytes]:
        """Pieces of these sizes, to the very end.  Raises Broken."""
        data, at = self._data, self._at
        if at + sum(sizes) != len(data):
            raise Broken(f"{sum(sizes)} bytes where {len(data) - at} are")
        out = list[bytes]()
        for size in sizes:
            out.append(data[at : at + size])
            at += size
        return out

    def alike(self, first: int, size: int, count: int) -> tuple[bytes, list[bytes]]:
        """A piece of `first` bytes and so many of one size, to the very end.  Raises Broken."""
        head, at = self._at, self._at + first
        if at + count * size != len(self._data):
            raise Broken(f"{first + count * size} bytes where {len(self._data) - head} are")
        rows = struct.iter_unpack(f"{size}s", memoryview(self._data)[at:]) if size else [(b"",)] * count
        return self._data[head:at], [piece for (piece,) in rows]

    def end(self) -> None:
        """Raises Broken for bytes behind the last column."""
        if self._at != len(self._data):
            raise Broken(f"{len(self._data) - self._at} bytes behind the last column")


# -- rows of many sessions


class Messages:
    """What connections with a message or two in a read bring: columns of sessions, targets, headers and bodies."""

    __slots__ = ("_data", "_sizes", "sessions", "size", "targets")

    def __init__(self) -> None:
        self.sessions = list[int]()
        self.targets = list[int]()
        self._sizes = list[int]()  # header, body, header, body
        self._data = list[bytes]()
        self.size = 0

    def __len__(self) -> int:
        return len(self.sessions)

    def add(self, session: int, target: int, header: bytes, body: bytes) -> None:
        """Append a message of a session."""
        self.sessions.append(session)
        self.targets.append(target)
        self._sizes += (len(header), len(body))
        self._data += (header, body)
        self.size += len(header) + len(body) + 16

    def pieces(self) -> list[bytes]:
        """All of it as one frame."""
        columns = b"".join(
            (array("I", self.sessions).tobytes(), array("I", self.targets).tobytes(), array("I", self._sizes).tobytes())
        )
        size = len(columns) + self.size - 16 * len(self)
        return [head(Up.MESSAGES, size, count=len(self)), columns, *self._data]


def messages_of(frame: Frame) -> tuple[list[int], list[int], list[bytes]]:
    """Sessions, targets, and header, body, header, body.  Raises Broken."""
    columns, count = Columns(frame.payload), frame.number
    sessions, targets = columns.take("I", count), columns.take("I", count)
    return sessions, targets, columns.pieces(columns.take("I", 2 * count))


ACKS, CONFIRMS, FIGURES = "IHQQ", "IHQB", "IQIQII"
"""Numbers of a row: session, channel, low and high tag as in `events.AckRun`; session, channel, tag, how; `Figure`."""


class Rows:
    """Rows of numbers of many sessions, which go column by column."""

    __slots__ = ("_codes", "_kind", "rows")

    def __init__(self, kind: int, codes: str) -> None:
        self._kind = kind
        self._codes = codes
        self.rows = list[tuple[int, ...]]()

    def pieces(self) -> list[bytes]:
        """All of it as frames of at most `ROWS_MOST` rows."""
        out = list[bytes]()
        for at in range(0, len(self.rows), ROWS_MOST):
            some = self.rows[at : at + ROWS_MOST]
            columns = _columns(self._codes, some)
            out += (head(self._kind, len(columns), count=len(some)), columns)
        return out


def rows_of(frame: Frame, codes: str) -> list[tuple[int, ...]]:
    """The rows in a frame.  Raises Broken."""
    columns, count = Columns(frame.payload), frame.number
    rows = [columns.take(code, count) for code in codes]
    columns.end()
    return list(zip(*rows, strict=True))


MULTIPLE, REFUSED = 1, 2
"""What the answer to a publish says beside its tag."""


class Deliveries:
    """Messages for consumers of many sessions."""

    __slots__ = ("data", "rows")

    def __init__(self) -> None:
        self.rows = list[tuple[int, int, int]]()  # session, channel, tag
        self.data = list[bytes]()  # of each row: who consumes, what stands behind its tag, properties and body

    def pieces(self) -> list[bytes]:
        """All of it as one frame; there are some."""
        sizes = array("I", map(len, self.data))
        columns = _columns("IHQ", self.rows) + sizes.tobytes()
        return [head(Down.DELIVERIES, len(columns) + sum(sizes), count=len(self.rows)), columns, *self.data]


def deliveries_of(frame: Frame) -> tuple[list[int], list[int], list[int], list[bytes]]:
    """Sessions, channels, tags, and four pieces of each.  Raises Broken."""
    columns, count = Columns(frame.payload), frame.number
    rows = columns.take("I", count), columns.take("H", count), columns.take("Q", count)
    return *rows, columns.pieces(columns.take("I", 4 * count))


def _columns(codes: str, rows: Sequence[tuple[int, ...]]) -> bytes:
    """Rows of numbers, column by column."""
    columns = zip(*rows, strict=True)
    return b"".join([array(code, column).tobytes() for code, column in zip(codes, columns, strict=True)])


class Figure(NamedTuple):
    """What one connection has had so far."""

    session: int
    received: int
    reads: int
    sent: int
    writes: int
    waiting: int  # bytes that the kernel has not taken


# -- rows of one channel

ONE_TARGET, ONE_HEADER = 1, 2
"""All rows have the same."""


def run_pieces(
    session: int, channel: int, targets: Sequence[int], headers: bytes | Sequence[bytes], bodies: Sequence[bytes]
) -> list[bytes]:
    """Messages of one channel as a frame; one target: that of all."""
    alike = (ONE_TARGET if len(targets) == 1 else 0) | (ONE_HEADER if isinstance(headers, bytes) else 0)
    heads = (headers,) if isinstance(headers, bytes) else headers
    sizes, lengths = array("I", map(len, heads)), array("I", map(len, bodies))
    columns = b"".join((array("I", (alike, *targets)).tobytes(), sizes.tobytes(), lengths.tobytes()))
    size = len(columns) + sum(sizes) + sum(lengths)
    return [head(Up.RUN, size, session, channel, len(bodies)), columns, *heads, *bodies]


def run_of(frame: Frame) -> tuple[list[int], list[bytes], list[bytes]]:
    """Targets, headers and bodies; one target or header: that of all.  Raises Broken."""
    columns, count = Columns(frame.payload), frame.number
    if not count:
        raise Broken("a run without rows")
    [alike] = columns.take("I", 1)
    targets = columns.take("I", 1 if alike & ONE_TARGET else count)
    heads = columns.take("I", 1 if alike & ONE_HEADER else count)
    sizes = columns.take("I", count)
    if len(heads) == 1 and sizes.count(sizes[0]) == count:  # as most clients that send so many at once
        head, bodies = columns.alike(heads[0], sizes[0], count)
        return targets, [head], bodies
    pieces = columns.pieces([*heads, *sizes])
    return targets, pieces[: len(heads)], pieces[len(heads) :]


# -- passwords

_SLOW = struct.Struct("=IIII")


def slow_piece(session: int, how: Slow) -> bytes:
    """A frame of DERIVE: digests of passwords are worked out in the door."""
    data = _SLOW.pack(how.size, how.rounds, how.lanes, how.memory_kib) + how.salt
    return head(Down.DERIVE, len(data), session) + data


def slow_of(frame: Frame) -> Slow:
    """How a digest is made."""
    return Slow(frame.payload[_SLOW.size :], *_SLOW.unpack_from(frame.payload))


# -- names


MANDATORY, ANEW = 1, 2
"""Bits of TARGET: the publisher wants it back; every number before this one is forgotten."""


def target_piece(
    session: int, channel: int, number: int, exchange: str, key: str, *, mandatory: bool, anew: bool
) -> bytes:
    """A frame of TARGET: the number under which a target goes from now on."""
    name, last = exchange.encode(), key.encode()
    bits = (MANDATORY if mandatory else 0) | (ANEW if anew else 0)
    return head(Up.TARGET, 2 + len(name) + len(last), session, channel, number) + bytes((bits, len(name))) + name + last


def target_of(frame: Frame) -> tuple[int, str, str]:
    """Bits, exchange and key.  Raises Broken."""
    data = frame.payload
    if len(data) < 2 or len(data) < 2 + data[1] or len(data) > 257 + data[1]:
        raise Broken(f"a target of {len(data)} bytes")
    try:
        return data[0], data[2 : 2 + data[1]].decode(), data[2 + data[1] :].decode()
    except UnicodeDecodeError:
        raise Broken("a target that is no text") from None


def text_piece(kind: int, session: int, channel: int, code: int, text: str) -> bytes:
    """A code and a text; how they end is `kind`'s."""
    data = text.encode()[:TEXT_MOST]
    return head(kind, len(data), session, channel, code) + data


def text_of(frame: Frame) -> str:
    """The text that a frame carries.  Raises Broken."""
    try:
        return frame.payload.decode()
    except UnicodeDecodeError:
        raise Broken("a text that is none") from None


def broken(error: ProtocolError) -> Broken:
    """What a door should have refused."""
    return Broken(f"what the door should have refused: {error}")


_CODE = struct.Struct("=H")


def fail_piece(kind: int, session: int, channel: int, code: int, text: str, method: int) -> bytes:
    """A close that the core asks for, naming the method that it is for."""
    data = _CODE.pack(code) + text.encode("utf-8", "replace")[:TEXT_MOST]
    return head(kind, len(data), session, channel, method) + data


def failure_of(frame: Frame) -> tuple[int, str, type[Method] | None]:
    """Code, text, and the method that it is for."""
    code, text = _CODE.unpack_from(frame.payload)[0], frame.payload[_CODE.size :].decode("utf-8", "ignore")
    return code, text, METHODS.get(frame.number) if frame.number else None
