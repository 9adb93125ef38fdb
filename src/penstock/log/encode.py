"""Entries -> one Arrow IPC record batch, without pyarrow: columns are joined bytes, the header is a patched template.

`columns` has the values.  A large batch stays a list of pieces, which are written from where they lie; a small one is
joined.  A batch of one row, as most commits of a client that waits for each confirm are, has no columns to collect: its
values are packed as they stand.  `arrow_batch` says the same in plain pyarrow: the template is checked
against it once a process, and if they ever differ (another pyarrow) the encoder uses the plain way.  Of nulls: `via`,
`route`, `expires_at` and `not_before` have them, where entries hold NO_VIA, NO_ROUTE or 0.  No rule of the queues is
known here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from penstock.log import columns
from penstock.log.columns import PUBLISH, TRANSIENT, parts_of
from penstock.log.frame import KEY_CRC, KEY_DURABLE, KEY_LSN, ZERO_CRC, FrameReader, Layout, header_of, stamp
from penstock.log.record_batches import make_batch, message_with
from penstock.records.entries import Control, Entry, Group, Moves, Publishes, Topic, singly
from penstock.records.kinds import NO_ROUTE, NO_VIA, Kind
from penstock.records.message_bodies import PackedBodies
from penstock.records.one_or_each import value_at
from penstock.records.remembered import Remembered
from penstock.records.schema import COLUMNS

_Message: TypeAlias = "tuple[int, bytearray, Sequence[bytes | memoryview]]"  # bytes; the header, or all; what follows

_PAD = [bytes(-n & 7) for n in range(8)]
_GATHER = 1 << 16
"""Bytes from which a message is written piece by piece instead of being joined: the join would cost more."""
_NULLS = {"via": NO_VIA, "route": NO_ROUTE, "expires_at": 0, "not_before": 0}

_SHAPED = 4096
"""Bytes of a lone row's name or properties up to which it has a `_Shape`."""

_SHAPES = 512
"""How many are kept: each holds a header, of less than 2 KiB."""


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


def arrow_batch(entries: Sequence[Entry]) -> pa.RecordBatch:
    """The same batch as pyarrow alone makes it: slow, and obvious."""
    rows: list[tuple[object, ...]] = []
    for part in singly(entries):
        if isinstance(part, Control):
            rows.append((
                part.lsn, int(part.kind), part.name, part.via, part.route, part.time, 0, 0, 0, part.header, part.body,
            ))  # fmt: skip
            continue
        for row, body in enumerate(part.bodies):
            topic = part.topic_of(row)
            rows.append((
                part.first + row,
                TRANSIENT if value_at(part.transient, row) else PUBLISH,
                topic.name,
                topic.via,
                value_at(part.routes, row),
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
    crc_at = Layout(header_of(message)).crc
    stamp(message, crc_at, offset)
    return message


Row: TypeAlias = "tuple[int, int, str, int, int, int, bytes, bytes]"
"""LSN, kind, name, via, route, time, properties and body."""


class _Shape(NamedTuple):
    """How batches of one row lie of which name and properties have the same sizes, and the same values are null."""

    header: bytearray  # with all that they have in common
    pack: Callable[..., bytes]  # their buffers up to the bodies: LSN, kind, 0, name's size, name, via, route ...
    size: int  # bytes of those


def lone_row(entry: Entry) -> Row | None:
    """An entry that is one row, without times of its own, without priority; None: it is not."""
    if isinstance(entry, Control):
        return (
            entry.lsn, int(entry.kind), entry.name, entry.via, entry.route, entry.time, entry.header, entry.body,
        )  # fmt: skip
    if not isinstance(entry, Publishes) or len(entry.bodies) != 1 or entry.expires_at or entry.not_before:
        return None
    topic, header, bodies, route = entry.topics, entry.properties, entry.bodies, entry.routes
    if (
        entry.priority or isinstance(topic, list) or not isinstance(header, bytes)
        or not isinstance(bodies, list) or isinstance(route, list) or isinstance(entry.transient, list)
    ):  # fmt: skip
        return None
    kind = TRANSIENT if entry.transient else PUBLISH
    return entry.first, kind, topic.name, topic.via, route, entry.time, header, bodies[0]


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
    kinds, names = [Kind.GRANT, Kind.SETTLE, Kind.SETTLE], ["orders", "", "o"]
    lone = Publishes(other, b"\x10\0\x02", [b"body"], 89, 6, 3, transient=True)
    bare = Publishes(plain, b"", [b""], 89, 6)
    moves = Moves(86, 6, kinds, names, [b"{}", b"", b"{ }"], [bytes(24), b"", b"x"])
    return [
        [few], [many], [control], [few, Group([many, control]), later], [control, short], [packed], [many, packed],
        [moves], [moves, packed], [lone], [bare], [short.select([1])],
    ]  # fmt: skip


@cache
def learned() -> Layout:
    """The layout of pyarrow's header for our schema."""
    example = _plain_message(arrow_batch(samples()[1]), 1, 0, 0)
    return Layout(header_of(example))


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
        self._shapes = Remembered[tuple[int, int, bool, bool], _Shape](_SHAPES)
        self.uses_template = template_agrees() if uses_template is None else uses_template

    def encode(self, entries: Sequence[Entry], durable: int, offset: int = 0) -> Encoded:
        """All entries as one batch, for this offset of the file, that claims `durable` as synced.

        OverflowError when names, properties or bodies together pass 2 GiB, the reach of Arrow's 32-bit offsets.
        """
        if len(entries) == 1 and self.uses_template and (row := lone_row(entries[0])) is not None:
            made = self._lone(row, durable, offset)
            if made is not None:
                return made
        parts = parts_of(entries)
        if not parts:
            raise ValueError("a batch needs a row; use mark()")
        values = columns.Columns(parts)
        first, last = values.firsts[0], values.firsts[-1] + values.counts[-1] - 1
        if not self.uses_template:
            message = _plain_message(arrow_batch(entries), first, durable, offset)
            return Encoded(first, last, values.rows, len(message), message)
        size, head, rest = self._message(values, first, durable, offset)
        return Encoded(first, last, values.rows, size, head, rest)

    def mark(self, lsn: int, durable: int, offset: int = 0) -> bytearray | None:
        """An empty batch: it only claims what is durable.  `lsn` is the next one, STOPPED or SEALED.

        None without the template: pyarrow leaves the zero row count out of the header, so there is nothing to patch.
        """
        if not self.uses_template:
            return None
        nothing = [b""] * (self.layout.n_buffers - 1)
        return self._assemble(nothing, [], 0, [0] * (2 * self.layout.n_nodes), 0, lsn, durable, offset)[1]

    def _lone(self, row: Row, durable: int, offset: int) -> Encoded | None:
        """What `_message` makes of one row without times and priority; None for one with large properties or body."""
        lsn, kind, text, via, route, time, properties, body = row
        name, size = text.encode(), len(body)
        sizes = len(name), len(properties), via == NO_VIA, route == NO_ROUTE
        shape = self._shapes.get(sizes)
        if shape is None:
            if len(name) > _SHAPED or len(properties) > _SHAPED:
                return None
            shape = self._shapes.keep(sizes, self._shape(*sizes))
        header, pack, at = shape
        if at + size >= _GATHER:
            return None
        front = pack(
            lsn, kind, 0, len(name), name, 0 if via == NO_VIA else via, 0 if route == NO_ROUTE else route, time,
            0, len(properties), properties, 0, size,
        )  # fmt: skip
        message = bytearray().join((header, front, body, _PAD[size & 7]))
        layout = self.layout
        self._number(message, layout.body, at + size + (-size & 7))
        self._number(message, layout.buffers + 16 * layout.n_buffers - 8, size)
        self._sign(message, lsn, durable, offset)
        return Encoded(lsn, lsn, 1, len(message), message)

    def _shape(self, name: int, properties: int, no_via: bool, no_route: bool) -> _Shape:
        """Of names and properties of so many bytes.  Validity stands before what is null, and all at multiples of 8."""
        via, route = ("8xi4x" if null else "i4x" for null in (no_via, no_route))
        front = struct.Struct(f"<qb7x2i{name}s{-name & 7}x{via}{route}q16x16x8x2i{properties}s{-properties & 7}x2i")
        lone = Control(
            Kind.BOOT, "n" * name, bytes(properties), via=NO_VIA if no_via else 0, route=NO_ROUTE if no_route else 0
        )
        _, message, _ = self._message(columns.Columns([lone]), 0, 0, 0)
        return _Shape(message[: len(self._header)], front.pack, front.size)

    def _message(self, c: columns.Columns, lsn: int, durable: int, offset: int) -> _Message:
        rows = c.rows
        no_time, expires, expire_nulls = c.fixed(c.expires_at, "q", 0)
        no_start, starts, start_nulls = c.fixed(c.not_before, "q", 0)
        no_via, vias, via_nulls = c.fixed(c.vias, "i", NO_VIA)
        no_route, routes, route_nulls = c.fixed(c.routes, "i", NO_ROUTE)
        name_at, names = c.strings(c.names)
        properties_at, properties = c.binaries(c.properties)
        body_at, bodies, size = c.bodies()
        if max(len(properties), len(names)) > columns.REACH:
            raise columns.too_large()
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
        if at < _GATHER:
            message = bytearray().join([header, *out])
            self._sign(message, lsn, durable, offset)
            return len(message), message, ()
        head, rest = bytearray(header), [piece for piece in out if len(piece)]
        self._sign(head, lsn, durable, offset, rest)
        return len(head) + at, head, rest

    def _sign(
        self, message: bytearray, lsn: int, durable: int, offset: int, rest: Sequence[bytes | memoryview] = ()
    ) -> None:
        """Write the metadata of a message, of which `rest` are the pieces behind its header."""
        layout = self.layout
        message[layout.lsn : layout.lsn + 16] = b"%016x" % lsn
        message[layout.durable : layout.durable + 16] = b"%016x" % durable
        stamp(message, layout.crc, offset, rest)

    def move(self, made: Encoded, offset: int) -> None:
        """Have a message lie at another offset than it was made for."""
        message = made.head
        header = header_of(message)
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
