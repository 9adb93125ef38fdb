"""The frame of one record batch in a segment: where its numbers stand, how its CRC is made.

An Arrow IPC message, little-endian, every part padded to 8 bytes:

    0   u32  0xFFFFFFFF
    4   i32  length of the flatbuffer with its padding: H
    8        flatbuffer `Message` > `RecordBatch`: rows, one (length, nulls) a column, one (offset, length) a buffer,
             and the custom metadata:
               penstock.lsn      16 hex digits: LSN of the first row; of an empty batch (a mark) the next LSN, or
                                 STOPPED or SEALED
               penstock.crc      8 hex digits: CRC-32C over the whole message, with the offset of the message in its
                                 file (u64) in the place of these digits.  So a batch that somebody sent as the body
                                 of a message is never taken for a batch of the log
               penstock.durable  16 hex digits: the LSN known to be synced when the batch was written
               penstock.last     16 hex digits, in files that `log.rewrite` wrote alone: LSN of the last row.  There
                                 the buffers may be compressed, so that nothing can be read from them with `struct`
    8+H      body: the buffers

For one schema the flatbuffer always has the same length and its numbers stand at the same places.  `Layout` finds them
once, by walking the flatbuffer that pyarrow made, so that batches are written and indexed with `struct` alone.  This
module checks frames and sums; it does not know what the columns mean.
Source: Arrow columnar format, "IPC Streaming Format" and `Message.fbs`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from crc32c import crc32c

from penstock.ports import File
from penstock.records.chunks import LSN_LIMIT
from penstock.records.remembered import Remembered

START = b"\xff\xff\xff\xff"
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
KEY_LSN, KEY_CRC, KEY_DURABLE, KEY_LAST = "penstock.lsn", "penstock.crc", "penstock.durable", "penstock.last"
ZERO_CRC = b"00000000"
STOPPED = 0
"""LSN of a mark that ends a clean stop."""
SEALED = (1 << 64) - 1
"""LSN of the mark that closes a segment once its successor exists.  Arrow's own end-of-stream mark cannot say so: the
first four bytes of a torn batch, before zeros, look the same."""
HEADER_LIMIT = 1 << 16
"""No header of ours comes near; a larger length is not believed."""

_LAYOUTS = 8
"""Kinds of headers that are remembered; an intact log has three."""

_U16, _I32, _U32, _I64 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<q")
_RECORD_BATCH = 3  # MessageHeader.RecordBatch


class Frame(NamedTuple):
    """One batch as its header tells it; nothing of it is true before the CRC was checked."""

    offset: int  # in the file
    length: int  # bytes of the whole message
    header: int  # bytes before the body
    rows: int
    lsn: int  # of the first row; see the module for empty batches
    durable: int
    crc: int
    crc_at: int  # where the CRC's digits are, from the start of the message
    buffers: tuple[int, ...]  # offset, length, offset, length ... of each buffer in the body
    last: int = -1  # LSN of the last row, where the header says it
    compressed: bool = False

    @property
    def last_at(self) -> int:
        """Where the last value of the first column, the last row's LSN, is from the start of the message."""
        return self.header + self.buffers[2] + 8 * (self.rows - 1)

    def last_lsn(self, window: Window) -> int:
        """LSN of the last row, from the file where the header does not say it."""
        if self.last >= 0:
            return self.last
        return int.from_bytes(window.read(self.offset + self.last_at, 8), "little", signed=True)

    def begins_with(self, kind: int, window: Window) -> bool:
        """Whether the first row is of this kind: the first byte of the second column, which is not compressed."""
        return not self.compressed and window.read(self.offset + self.header + self.buffers[6], 1) == bytes((kind,))


class NotAFrame(ValueError):
    """These bytes are not the header of a batch of ours."""


def _field(data: bytes, table: int, number: int) -> int:
    """Position of a field of a flatbuffer table, or 0 when it is absent."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 8:
        raise NotAFrame("vtable outside the header")
    size = _U16.unpack_from(data, vtable)[0]
    slot = 4 + 2 * number
    if slot + 2 > size:
        return 0
    shift = int(_U16.unpack_from(data, vtable + slot)[0])
    return table + shift if shift else 0


def _follow(data: bytes, place: int) -> int:
    target = place + int(_U32.unpack_from(data, place)[0])
    if not place or target >= len(data):
        raise NotAFrame("offset outside the header")
    return target


def _metadata(data: bytes, pairs: int) -> dict[str, tuple[int, int]]:
    """Of each key of a message's metadata where its value stands, and how long that is."""
    values = dict[str, tuple[int, int]]()
    for index in range(min(int(_U32.unpack_from(data, pairs)[0]), 16)):
        entry = _follow(data, pairs + 4 + 4 * index)
        key, value = _follow(data, _field(data, entry, 0)), _follow(data, _field(data, entry, 1))
        name = data[key + 4 : key + 4 + _U32.unpack_from(data, key)[0]].decode("ascii", "replace")
        values[name] = (value + 4, int(_U32.unpack_from(data, value)[0]))
    return values


def _between(data: bytes, changing: list[tuple[int, int]]) -> list[tuple[slice, bytes]]:
    """What stands before, between and behind some numbers, each with its place and width."""
    still, at = list[tuple[slice, bytes]](), 0
    for place, width in [*changing, (len(data), 0)]:
        if not at <= place <= len(data) - width:
            raise NotAFrame("numbers outside the header, or one over the other")
        still.append((slice(at, place), data[at:place]))
        at = place + width
    return still


class Layout:
    """Where the numbers stand in one kind of header; `header` is the example it was learned from."""

    __slots__ = (
        "body", "buffers", "compressed", "crc", "durable", "header", "last", "lsn", "n_buffers", "n_nodes", "nodes",
        "rows", "still",
    )  # fmt: skip

    def __init__(self, header: bytes) -> None:
        """Walk the flatbuffer.  NotAFrame for anything but a record batch with our three metadata values."""
        try:
            self._walk(header)
        except (struct.error, IndexError) as error:
            raise NotAFrame(str(error)) from None

    def _walk(self, data: bytes) -> None:
        if data[:4] != START or len(data) != 8 + _I32.unpack_from(data, 4)[0]:
            raise NotAFrame("no message starts here")
        message = _follow(data, 8)
        kind = _field(data, message, 1)
        if not kind or data[kind] != _RECORD_BATCH:
            raise NotAFrame("not a record batch")
        batch = _follow(data, _field(data, message, 2))
        self.header = data
        self.body = _field(data, message, 3)
        self.rows = _field(data, batch, 0)
        nodes, buffers = _follow(data, _field(data, batch, 1)), _follow(data, _field(data, batch, 2))
        self.compressed = bool(_field(data, batch, 3))
        if not self.body or not self.rows:
            raise NotAFrame("a batch without rows or body")
        self.n_nodes, self.n_buffers = int(_U32.unpack_from(data, nodes)[0]), int(_U32.unpack_from(data, buffers)[0])
        self.nodes, self.buffers = nodes + 4, buffers + 4
        if self.n_nodes < 2 or self.n_buffers < 4:
            raise NotAFrame("fewer than two columns")
        self._read_marks(_metadata(data, _follow(data, _field(data, message, 4))))
        changing = sorted(
            [
                (self.body, 8),
                (self.rows, 8),
                (self.nodes, 16 * self.n_nodes),
                (self.buffers, 16 * self.n_buffers),
                (self.lsn, 16),
                (self.crc, 8),
                (self.durable, 16),
                *([(self.last, 16)] if self.last else []),
            ]
        )
        self.still = _between(data, changing)  # every stretch that is the same in each header of this kind

    def _read_marks(self, values: Mapping[str, tuple[int, int]]) -> None:
        """Where the metadata have first and last LSN, sum and durable LSN.  values: place and width by key."""
        for name, width in ((KEY_LSN, 16), (KEY_CRC, 8), (KEY_DURABLE, 16)):
            if values.get(name, (0, 0))[1] != width:
                raise NotAFrame(f"metadata without {name}")
        self.lsn, self.crc, self.durable = (values[name][0] for name in (KEY_LSN, KEY_CRC, KEY_DURABLE))
        self.last, width = values.get(KEY_LAST, (0, 0))
        if self.last and width != 16:
            raise NotAFrame(f"metadata without {KEY_LAST}")

    def reads(self, header: bytes) -> bool:
        """Whether this header has its numbers at the same places."""
        if len(header) != len(self.header):
            return False
        for stretch, content in self.still:  # noqa: SIM110  `all` of a generator takes twice the time
            if header[stretch] != content:
                return False
        return True

    def frame(self, header: bytes, offset: int) -> Frame:
        """The numbers of a header that `reads` accepted.  NotAFrame when they cannot be."""
        body, rows = _I64.unpack_from(header, self.body)[0], _I64.unpack_from(header, self.rows)[0]
        if body < 0 or rows < 0 or body & 7:
            raise NotAFrame("impossible sizes")
        try:
            lsn, durable = int(header[self.lsn : self.lsn + 16], 16), int(header[self.durable : self.durable + 16], 16)
            crc = int(header[self.crc : self.crc + 8], 16)
            last = int(header[self.last : self.last + 16], 16) if self.last else -1
        except ValueError:
            raise NotAFrame("metadata that is no number") from None
        if min(lsn, durable, last + 1) < 0 or max(lsn if rows else 0, durable, last) >= LSN_LIMIT:
            raise NotAFrame(f"LSNs that nobody gives out: {lsn}, {last} and {durable}")
        buffers = struct.unpack_from(f"<{2 * self.n_buffers}q", header, self.buffers)
        if self.compressed:
            if last < 0:
                raise NotAFrame("compressed, and silent about its last row")
        elif not (0 <= buffers[2] <= body - 8 * rows and 0 <= buffers[6] <= body - rows):
            raise NotAFrame("columns outside the batch")
        size = len(header)
        return Frame(offset, size + body, size, rows, lsn, durable, crc, self.crc, buffers, last, self.compressed)


def header_of(message: bytes | bytearray | memoryview) -> bytes:
    """What stands before the body, of a message that begins there; shorter where it is cut off."""
    return bytes(message[: 8 + int.from_bytes(message[4:8], "little")])


def message_size(prefix: bytes | bytearray) -> int:
    """How long the header is that begins with these eight bytes, they included.  NotAFrame for other bytes."""
    size = _I32.unpack_from(prefix, 4)[0]
    if prefix[:4] != START or not 8 <= size <= HEADER_LIMIT or size & 7:
        raise NotAFrame("no message starts here")
    return 8 + int(size)


class FrameReader:
    """Reads frames; remembers the layouts it met: a file has one, or two when some of its batches are compressed."""

    def __init__(self, layout: Layout | None = None) -> None:
        self._layouts = Remembered[int, Layout](_LAYOUTS)
        if layout is not None:
            self._layouts.keep(len(layout.header), layout)

    def header(self, header: bytes, offset: int) -> Frame:
        """The frame with this whole header (prefix included)."""
        layout = self._layouts.get(len(header))
        if layout is None or not layout.reads(header):
            layout = self._layouts.keep(len(header), Layout(header))
        return layout.frame(header, offset)

    def at(self, window: Window, offset: int) -> Frame | None:
        """The frame at an offset of a file.  None at the end: an end-of-stream mark, zeros or nothing left.

        NotAFrame for anything else, and for a batch that reaches beyond the file.
        """
        prefix = window.read(offset, 8)
        if len(prefix) < 8:
            if prefix.strip(b"\0"):
                raise NotAFrame("a few stray bytes")
            return None
        if prefix in (END_OF_STREAM, bytes(8)):
            return None
        frame = self.header(window.read(offset, message_size(prefix)), offset)
        if offset + frame.length > window.size:
            raise NotAFrame("the batch reaches beyond the end of the file")
        return frame

    def each(self, window: Window, offset: int) -> Iterator[Frame]:
        """The frames from an offset on, one behind the other, up to the end.  NotAFrame as of `at`."""
        while (frame := self.at(window, offset)) is not None:
            yield frame
            offset += frame.length


class Window:
    """Reads pieces of a file that lie close together with few system calls."""

    def __init__(self, file: File, size: int, block: int = 1 << 18) -> None:
        self.file = file
        self.size = size
        self._block = block
        self._start = 0
        self._data = b""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`, fewer at the end of the file."""
        at = offset - self._start
        if at < 0 or at + size > len(self._data):
            near = 0 <= at <= len(self._data) + 4096  # scattered headers need no large blocks
            wanted = max(size, self._block if near else 4096)
            self._data = self.file.pread(min(wanted, max(0, self.size - offset)), offset)
            self._start, at = offset, 0
        return self._data[at : at + size]


def sum_of(
    message: bytes | bytearray | memoryview, crc_at: int, offset: int, rest: Iterable[bytes | memoryview] = ()
) -> int:
    """CRC-32C of a message that lies at `offset` of its file; the offset counts in the place of the digits.

    `rest`: pieces that belong to the message and follow.
    """
    view = memoryview(message)
    crc = crc32c(view[:crc_at])
    crc = crc32c(offset.to_bytes(8, "little"), crc)
    crc = crc32c(view[crc_at + 8 :], crc)
    for piece in rest:
        crc = crc32c(piece, crc)
    return crc


def stamp(message: bytearray, crc_at: int, offset: int, rest: Iterable[bytes | memoryview] = ()) -> None:
    """Write the CRC that a message, with the pieces that follow it, has at this offset of its file."""
    message[crc_at : crc_at + 8] = b"%08x" % sum_of(message, crc_at, offset, rest)


def sound(frame: Frame, message: bytes | memoryview) -> bool:
    """Whether these bytes are what was written there: length and CRC."""
    return len(message) == frame.length and sum_of(message, frame.crc_at, frame.offset) == frame.crc


def candidates(data: bytes, start: int) -> Iterator[int]:
    """Offsets (multiples of 8, from `start`) in a block where a message might start."""
    at = data.find(START, start)
    while at >= 0:
        if at & 7 == 0:
            yield at
            at = data.find(START, at + 8)
        else:
            at = data.find(START, at + 1)
