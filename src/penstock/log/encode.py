"""Entries -> one Arrow IPC record batch, without pyarrow: columns are joined bytes, the header is a patched template.

Plain lists are collected over all entries of the batch and converted once; a column with one value for all rows is made
by repetition; packed bodies already lie as Arrow wants them.  A large batch stays a list of pieces, which are written
from where they lie; a small one is joined.  `arrow_batch` says the same in plain pyarrow: the template is checked
against it once a process, and if they ever differ (another pyarrow) the encoder uses the plain way.  Of nulls: `via`,
`route`, `expires_at` and `not_before` have them, where entries hold NO_VIA, NO_ROUTE or 0.  No rule of the queues is
known here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.log.arrow import make_batch, message_with
from penstock.log.frame import KEY_CRC, KEY_DURABLE, KEY_LSN, ZERO_CRC, FrameReader, Layout, stamp
from penstock.records.bodies import PackedBodies
from penstock.records.entries import Control, Entry, Group, Publishes, Topic
from penstock.records.kinds import NO_ROUTE, NO_VIA, Kind
from penstock.records.schema import COLUMNS

Part: TypeAlias = "Publishes | Control"
_Message: TypeAlias = "tuple[int, bytearray, Sequence[bytes | memoryview]]"  # bytes; the header, or all; what follows
T = TypeVar("T")

_SMALL = 48  # rows up to which plain Python beats numpy's fixed cost
_PAD = [bytes(-n & 7) for n in range(8)]
_WIDTH = {"b": 1, "h": 2, "i": 4, "q": 8}
_PACK = {code: struct.Struct("<" + code).pack for code in _WIDTH}
_PUBLISH, _TRANSIENT = int(Kind.PUBLISH), int(Kind.PUBLISH_TRANSIENT)
_I32_MAX = (1 << 31) - 1
_GATHER = 1 << 16
"""Bytes from which a message is written piece by piece instead of being joined: the join would cost more."""
_NULLS = {"via": NO_VIA, "route": NO_ROUTE, "expires_at": 0, "not_before": 0}


class Encoded(NamedTuple):
    """One batch, ready to be written.  Its pieces may be the publisher's own memory."""

    first: int  # LSN of the first row
    last: int
    rows: int
    size: int  # bytes of the message
    head: bytearray  # the message; if it is large, its header alone
    rest: Sequence[bytes | memoryview] = ()  # what follows the header of a large message

    @property
    def data(self) -> bytearray:
        """The whole message in one piece."""
        return self.head if not self.rest else bytearray().join([self.head, *self.rest])


def parts_of(entries: Iterable[Entry]) -> list[Part]:
    """The entries with groups opened, in order, without empty ones."""
    out = list[Part]()
    for entry in entries:
        if isinstance(entry, Group):
            out += [part for part in entry.entries if len(part)]
        elif len(entry):
            out.append(entry)
    return out


def _spread(values: list[Any], counts: list[int]) -> list[Any]:
    """One element a row, of one value or list a part."""
    out = list[Any]()
    for value, count in zip(values, counts, strict=True):
        if value.__class__ is list:
            out += value
        elif count == 1:
            out.append(value)
        else:
            out += [value] * count
    return out


class _Columns:
    """The values of a batch, column by column: for each part one value, or a list with one for each of its rows."""

    __slots__ = (
        "_bodies", "_packed", "counts", "expires_at", "firsts", "kinds", "names", "not_before", "priority",
        "properties", "routes", "rows", "times", "vias",
    )  # fmt: skip

    def __init__(self, parts: Sequence[Part]) -> None:
        counts, firsts, kinds, names, vias = list[int](), list[int](), list[Any](), list[Any](), list[Any]()
        routes, times, properties, bodies = list[Any](), list[Any](), list[Any](), list[bytes]()
        expires_at, not_before, priority = list[Any](), list[Any](), list[Any]()
        packed = list[tuple[int, PackedBodies]]()
        for part in parts:
            if isinstance(part, Publishes):
                some = part.bodies
                counts.append(len(some))
                firsts.append(part.first)
                topics, transient = part.topics, part.transient
                if isinstance(topics, list):
                    names.append([topic.name for topic in topics])
                    vias.append([topic.via for topic in topics])
                else:
                    names.append(topics.name)
                    vias.append(topics.via)
                if isinstance(transient, list):
                    kinds.append([_TRANSIENT if mark else _PUBLISH for mark in transient])
                else:
                    kinds.append(_TRANSIENT if transient else _PUBLISH)
                routes.append(part.routes)
                times.append(part.time)
                properties.append(part.properties)
                if isinstance(some, list):
                    bodies += some
                else:
                    packed.append((len(bodies), some))
                expires_at.append(part.expires_at or 0)
                not_before.append(part.not_before or 0)
                priority.append(part.priority or 0)
            else:
                counts.append(1)
                firsts.append(part.lsn)
                kinds.append(int(part.kind))
                names.append(part.name)
                vias.append(part.via)
                routes.append(part.route)
                times.append(part.time)
                properties.append(part.header)
                bodies.append(part.body)
                expires_at.append(0)
                not_before.append(0)
                priority.append(0)
        self.counts, self.firsts, self.kinds, self.names, self.vias = counts, firsts, kinds, names, vias
        self.routes, self.times, self.properties = routes, times, properties
        self.expires_at, self.not_before, self.priority = expires_at, not_before, priority
        self._bodies = bodies  # of the parts that have lists
        self._packed = packed  # the others, each with how many of `_bodies` stand before it
        self.rows = len(bodies) if not packed else sum(counts)

    def lsns(self) -> bytes | memoryview:
        """The `lsn` column."""
        counts, firsts, rows = self.counts, self.firsts, self.rows
        first = firsts[0]
        if firsts[-1] + counts[-1] - first == rows:  # ascending, so adjacent
            if rows == 1:
                return _PACK["q"](first)
            if rows > _SMALL:
                return np.arange(first, first + rows, dtype="<i8").data.cast("B")
            return array("q", range(first, first + rows)).tobytes()
        spans = [range(a, a + n) for a, n in zip(firsts, counts, strict=True)]
        return array("q", chain.from_iterable(spans)).tobytes()

    def fixed(self, values: list[Any], code: str, null: int | None) -> tuple[bytes, bytes, int]:
        """Validity, data and null count of a column of numbers; `null` is the value that stands for null."""
        rows, value = self.rows, values[0]
        if value.__class__ is not list and values.count(value) == len(values):
            if value == null:
                return bytes((rows + 7) >> 3), bytes(rows * _WIDTH[code]), rows
            return b"", _PACK[code](value) * rows, 0
        flat = values if len(values) == rows and list not in set(map(type, values)) else _spread(values, self.counts)
        data = array(code, flat).tobytes()
        if null is None or not (nulls := flat.count(null)):
            return b"", data, 0
        if rows > _SMALL:
            valid = np.frombuffer(data, "<i" + str(_WIDTH[code])) != null
            return np.packbits(valid, bitorder="little").tobytes(), data, nulls
        bits = sum(1 << at for at, item in enumerate(flat) if item != null)
        return bits.to_bytes((rows + 7) >> 3, "little"), data, nulls

    def strings(self, values: list[Any]) -> tuple[bytes | memoryview, bytes]:
        """Offsets and data of a column of str."""
        value, rows = values[0], self.rows
        if value.__class__ is not list and values.count(value) == len(values):
            encoded = value.encode()
            return _even(len(encoded), rows), encoded * rows
        flat = _spread(values, self.counts)
        joined = "".join(flat)
        if joined.isascii():
            return _offsets(flat), joined.encode()
        pieces = [item.encode() for item in flat]
        return _offsets(pieces), b"".join(pieces)

    def binaries(self, values: list[Any]) -> tuple[bytes | memoryview, bytes]:
        """Offsets and data of a column of bytes, one value or list a part."""
        value, rows = values[0], self.rows
        if value.__class__ is not list and values.count(value) == len(values):
            return _even(len(value), rows), value * rows
        flat = _spread(values, self.counts)
        return _offsets(flat), b"".join(flat)

    def bodies(self) -> tuple[bytes | memoryview, list[bytes | memoryview], int]:
        """Offsets of the `body` column, its data in pieces, and the bytes of these.  OverflowError beyond 2 GiB."""
        listed, packed = self._bodies, self._packed
        if not packed:
            joined = b"".join(listed)
            if len(joined) > _I32_MAX:
                raise _too_large()
            return _offsets(listed), [joined], len(joined)
        sums, pieces, size, done = list["npt.NDArray[np.int32]"](), list[bytes | memoryview](), 0, 0
        for place, some in [*packed, (len(listed), None)]:
            if done < place:
                joined = b"".join(listed[done:place])
                if size + len(joined) > _I32_MAX:
                    raise _too_large()
                sums.append(_rebased(np.frombuffer(_offsets(listed[done:place]), "<i4"), size))
                pieces.append(joined)
                size += len(joined)
                done = place
            if some is not None:
                if size + some.size > _I32_MAX:
                    raise _too_large()
                sums.append(_rebased(some.offsets, size))
                pieces.append(some.data)
                size += some.size
        offsets = sums[0] if len(sums) == 1 else np.concatenate([sums[0], *(part[1:] for part in sums[1:])])
        return offsets.data.cast("B"), pieces, size


def _rebased(offsets: npt.NDArray[np.int32], start: int) -> npt.NDArray[np.int32]:
    """The same lengths, beginning at `start`."""
    shift = start - int(offsets[0])
    return offsets + np.int32(shift) if shift or not offsets.flags.c_contiguous else offsets


def _too_large() -> OverflowError:
    return OverflowError("a batch of the log cannot hold more than 2 GiB in one column")


def _even(size: int, rows: int) -> bytes | memoryview:
    """Offsets of `rows` values of `size` bytes each."""
    if rows <= _SMALL or not size:
        return array("i", range(0, size * rows + 1, size)).tobytes() if size else bytes(4 * rows + 4)
    return np.arange(0, size * rows + 1, size, dtype="<i4").data.cast("B")


def _offsets(values: Sequence[bytes] | Sequence[str]) -> bytes | memoryview:
    """Offsets of values by their lengths."""
    rows = len(values)
    if rows <= _SMALL:
        return array("i", list(accumulate(map(len, values), initial=0))).tobytes()
    out = np.zeros(rows + 1, "<i4")
    np.fromiter(map(len, values), "<i4", rows).cumsum(out=out[1:])
    return out.data.cast("B")


def arrow_batch(entries: Sequence[Entry]) -> pa.RecordBatch:
    """The same batch as pyarrow alone makes it: slow, and obvious."""
    rows = list[tuple[object, ...]]()
    for part in parts_of(entries):
        if isinstance(part, Control):
            rows.append((
                part.lsn, int(part.kind), part.name, part.via, part.route, part.time, 0, 0, 0, part.header, part.body,
            ))  # fmt: skip
            continue
        for row, body in enumerate(part.bodies):
            topic = part.topic_of(row)
            transient = part.transient[row] if isinstance(part.transient, list) else part.transient
            rows.append((
                part.first + row,
                _TRANSIENT if transient else _PUBLISH,
                topic.name,
                topic.via,
                part.routes[row] if isinstance(part.routes, list) else part.routes,
                part.time,
                part.expires_at[row] if part.expires_at else 0,
                part.not_before[row] if part.not_before else 0,
                part.priority[row] if part.priority else 0,
                part.properties_of(row),
                body,
            ))  # fmt: skip
    absent = {COLUMNS.get_field_index(name): value for name, value in _NULLS.items()}
    return make_batch([[None if absent.get(at) == value else value for at, value in enumerate(row)] for row in rows])


def _plain_message(batch: pa.RecordBatch, lsn: int, durable: int, offset: int) -> bytearray:
    """A batch as pyarrow writes it, with our metadata and the CRC filled in."""
    metadata = {KEY_LSN: f"{lsn:016x}", KEY_CRC: ZERO_CRC.decode(), KEY_DURABLE: f"{durable:016x}"}
    message = message_with(batch, metadata)
    crc_at = Layout(bytes(message[: 8 + int.from_bytes(message[4:8], "little")])).crc
    stamp(message, crc_at, offset)
    return message


def samples() -> list[list[Entry]]:
    """Batches that use every way a column can be made; the template is believed if these come back equal."""
    plain, other = Topic("/", "", "orders"), Topic("/", "flow", "größe", 7)
    few = Publishes(plain, b"\x10\0\x02", [b"a", b"", b"ccc"], 5, 1_700_000_000_000_000, 3)
    many = Publishes(
        [plain, other] * 40, [b"\0\0", b"\x20\0x"] * 40, [b"x" * n for n in range(80)], 8, 1_700_000_000_000_001,
        [NO_ROUTE, 4] * 40, [0, 9] * 40, [11, 0] * 40, [1, 2] * 40, [True, False] * 40,
    )  # fmt: skip
    control = Control(Kind.SETTLE, "orders", b"{}", bytes(24), 88, 1_700_000_000_000_002)
    later = Control(Kind.BOOT, "", b"{}", b"", 1 << 40, 1_700_000_000_000_003)
    short = Publishes([plain, other], [b"", b"\0\0"], [b"1", b"2"], 89, 5, [NO_ROUTE, 1], [0, 1], [2, 0], [0, 255])
    packed = Publishes(plain, b"\x10\0\x02", PackedBodies.of([b"dd", b"", b"e"] * 30).part(1, 81), 89, 6, 3)
    return [[few], [many], [control], [few, Group([many, control]), later], [control, short], [packed], [many, packed]]


@cache
def learned() -> Layout:
    """The layout of pyarrow's header for our schema."""
    example = _plain_message(arrow_batch(samples()[1]), 1, 0, 0)
    return Layout(bytes(example[: 8 + int.from_bytes(example[4:8], "little")]))


@cache
def template_agrees() -> bool:
    """Whether pyarrow reads from our messages exactly what it would have written; asked once a process."""
    return Encoder(uses_template=True).agrees()


class Encoder:
    """Makes batches.  Not thread-safe; one writer has one."""

    def __init__(self, *, uses_template: bool | None = None) -> None:
        """Take the template if it was found right, unless the caller knows."""
        layout = self.layout = learned()
        header = bytearray(layout.header)
        header[layout.crc : layout.crc + 8] = ZERO_CRC
        self._header = header
        self._nodes = struct.Struct(f"<{2 * layout.n_nodes}q")
        self._buffers = struct.Struct(f"<{2 * layout.n_buffers}q")
        self._number = struct.Struct("<q").pack_into
        self.uses_template = template_agrees() if uses_template is None else uses_template

    def encode(self, entries: Sequence[Entry], durable: int, offset: int = 0) -> Encoded:
        """All entries as one batch, for this offset of the file, that claims `durable` as synced.

        OverflowError when names, properties or bodies together pass 2 GiB, the reach of Arrow's 32-bit offsets.
        """
        parts = parts_of(entries)
        if not parts:
            raise ValueError("a batch needs a row; use mark()")
        columns = _Columns(parts)
        first, last = columns.firsts[0], columns.firsts[-1] + columns.counts[-1] - 1
        if not self.uses_template:
            message = _plain_message(arrow_batch(entries), first, durable, offset)
            return Encoded(first, last, columns.rows, len(message), message)
        size, head, rest = self._message(columns, first, durable, offset)
        return Encoded(first, last, columns.rows, size, head, rest)

    def mark(self, lsn: int, durable: int, offset: int = 0) -> bytearray | None:
        """An empty batch: it only claims what is durable.  `lsn` is the next one, STOPPED or SEALED.

        None without the template: pyarrow leaves the zero row count out of the header, so there is nothing to patch.
        """
        if not self.uses_template:
            return None
        nothing = [b""] * (self.layout.n_buffers - 1)
        return self._assemble(nothing, [], 0, [0] * (2 * self.layout.n_nodes), 0, lsn, durable, offset)[1]

    def _message(self, c: _Columns, lsn: int, durable: int, offset: int) -> _Message:
        rows = c.rows
        no_time, expires, expire_nulls = c.fixed(c.expires_at, "q", 0)
        no_start, starts, start_nulls = c.fixed(c.not_before, "q", 0)
        no_via, vias, via_nulls = c.fixed(c.vias, "i", NO_VIA)
        no_route, routes, route_nulls = c.fixed(c.routes, "i", NO_ROUTE)
        name_at, names = c.strings(c.names)
        properties_at, properties = c.binaries(c.properties)
        body_at, bodies, size = c.bodies()
        if max(len(properties), len(names)) > _I32_MAX:
            raise _too_large()
        pieces: list[bytes | memoryview] = [
            b"", c.lsns(),
            b"", c.fixed(c.kinds, "b", None)[1],
            b"", name_at, names,
            no_via, vias,
            no_route, routes,
            b"", c.fixed(c.times, "q", None)[1],
            no_time, expires,
            no_start, starts,
            b"", c.fixed(c.priority, "h", None)[1],
            b"", properties_at, properties,
            b"", body_at,
        ]  # fmt: skip
        nodes = [
            rows, 0, rows, 0, rows, 0, rows, via_nulls, rows, route_nulls, rows, 0, rows, expire_nulls,
            rows, start_nulls, rows, 0, rows, 0, rows, 0,
        ]  # fmt: skip
        return self._assemble(pieces, bodies, size, nodes, rows, lsn, durable, offset)

    def _assemble(
        self,
        pieces: Sequence[bytes | memoryview],
        bodies: Sequence[bytes | memoryview],
        bodies_size: int,
        nodes: list[int],
        rows: int,
        lsn: int,
        durable: int,
        offset: int,
    ) -> _Message:
        """The message with these buffers, of which the last, the bodies, may come in pieces."""
        layout, header = self.layout, self._header
        places, out, at = list[int](), list["bytes | memoryview"](), 0
        for piece in pieces:
            size = len(piece)
            places.append(at)
            places.append(size)
            if size:
                out.append(piece)
                at += size
                if size & 7:
                    out.append(_PAD[size & 7])
                    at += -size & 7
        places += (at, bodies_size)
        out += bodies
        out.append(_PAD[bodies_size & 7])
        at += bodies_size + (-bodies_size & 7)
        self._number(header, layout.rows, rows)
        self._number(header, layout.body, at)
        self._nodes.pack_into(header, layout.nodes, *nodes)
        self._buffers.pack_into(header, layout.buffers, *places)
        header[layout.lsn : layout.lsn + 16] = b"%016x" % lsn
        header[layout.durable : layout.durable + 16] = b"%016x" % durable
        if at < _GATHER:
            message = bytearray().join([header, *out])
            stamp(message, layout.crc, offset)
            return len(message), message, ()
        head, rest = bytearray(header), [piece for piece in out if len(piece)]
        stamp(head, layout.crc, offset, rest)
        return len(head) + at, head, rest

    def move(self, made: Encoded, offset: int) -> None:
        """Have a message lie at another offset than it was made for."""
        message = made.head
        header = bytes(message[: 8 + int.from_bytes(message[4:8], "little")])
        crc_at = self.layout.crc if self.layout.reads(header) else Layout(header).crc
        stamp(message, crc_at, offset, made.rest)

    def agrees(self) -> bool:
        """Whether pyarrow reads from our messages exactly what it would have written, and so does our index."""
        if len(COLUMNS) != self.layout.n_nodes or self.layout.n_buffers != 25:
            return False
        reader = FrameReader(self.layout)
        try:
            for entries in samples():
                made = self.encode(entries, 3)
                frame = reader.header(bytes(made.data[: len(self._header)]), 0)
                message = pa.ipc.read_message(pa.py_buffer(made.data))
                batch = pa.ipc.read_record_batch(message, COLUMNS)
                batch.validate(full=True)
                if not batch.equals(arrow_batch(entries)) or (frame.lsn, frame.rows) != (made.first, made.rows):
                    return False
        except (pa.ArrowException, ValueError, struct.error):
            return False
        return True
