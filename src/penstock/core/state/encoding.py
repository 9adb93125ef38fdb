"""How parts of a durable state are written: control headers as JSON, and what is no JSON in the fewest bytes.

An AMQP table is written so that reading it gives the same values and types.  Chunks, columns, SOW indexes and sizes:

A chunk     u8 form, u32 count, u32 length of the payload, payload.  Forms: 0 one range (a, b as int64); 1 runs (first
            LSN as int64, then u32 pairs gap, length); 2 and 3 differences to the one before as u16 and u32 (first LSN
            as int64); 4 plain int64.  The smallest is taken, chunk by chunk.
A column    runs      triples a, b, value as int64.  In the JSON: how many integers
            values    an integer of `width` bytes for each message that waits.  In the JSON: ["values", width, base]
            codes     values as int64, then a number of `width` bytes for each.
                      In the JSON: ["codes", width, how many values]
            An integer of `values` is the value less `base`, plus one; one of `codes` is the place of the value, from
            one; 0 is the rest value.
SOW index   per topic, by id: numbers as uint64, LSNs as int64, and deadlines as int64 where some record expires; their
            names are in the JSON
Sizes       rows: the distance of each from the one before and its size plus one (0: it has a block), as integers of the
            widths that the JSON names; then of each block how many LSNs it covers and its width, and the blocks

All integers are little-endian.  It knows no queue.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, fields
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
import orjson

from penstock.core.sizes import Sizes
from penstock.core.sow.holding import SowState
from penstock.core.state.lsns import CHUNK, Ints, ints, runs_of, spread, to_array
from penstock.records.chunks import Chunk
from penstock.records.compute import distinct_numbers
from penstock.records.field_tables import Timestamp
from penstock.records.queue_settings import QueueSettings, Retry

_SAFE = 2**63


_TAGGED: tuple[tuple[type | tuple[type, ...], Callable[[Any], object]], ...] = (
    (Timestamp, lambda value: {"$time": int(value)}),
    (int, lambda value: int(value) if -_SAFE <= value < _SAFE else {"$int": str(int(value))}),
    (float, lambda value: {"$float": value.hex()}),
    ((bytes, bytearray), lambda value: {"$bytes": bytes(value).hex()}),
    (datetime, lambda value: {"$time": int(value.timestamp())}),  # AMQP knows whole seconds alone
    (Decimal, lambda value: {"$decimal": str(value)}),
)
"""What JSON lacks or changes; the first that a value is an instance of counts."""


def wrap(value: object) -> object:
    """An AMQP table value as something JSON holds without loss."""
    if value is None or isinstance(value, bool | str):
        return value
    for kind, write in _TAGGED:
        if isinstance(value, kind):
            return write(value)
    if isinstance(value, Mapping):
        table = {str(key): wrap(item) for key, item in cast("Mapping[object, object]", value).items()}
        return {"$table": table} if "$" in {key[:1] for key in table} else table
    if isinstance(value, Sequence):
        return [wrap(item) for item in cast("Sequence[object]", value)]
    raise TypeError(f"a value of type {type(value).__name__} cannot be kept in the log")


def unwrap(value: object) -> object:
    """The inverse of `wrap`; lists come back as lists, tables as dicts."""
    if isinstance(value, list):
        return [unwrap(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    table = cast("dict[str, object]", value)
    if len(table) == 1:
        ((key, item),) = table.items()
        if key.startswith("$"):
            return _special(key, item)
    return {key: unwrap(item) for key, item in table.items()}


def _special(key: str, item: object) -> object:
    match key, item:
        case "$int", str():
            return int(item)
        case "$float", str():
            return float.fromhex(item)
        case "$bytes", str():
            return bytes.fromhex(item)
        case "$time", int():
            return Timestamp(item)
        case "$decimal", str():
            return Decimal(item)
        case "$table", dict():
            return {name: unwrap(value) for name, value in cast("dict[str, object]", item).items()}
        case _:
            raise ValueError(f"{key!r} is no known form of a value in a control record")


dump: Callable[[Mapping[str, object]], bytes] = orjson.dumps
"""A control header as JSON.  Tables in it must have gone through `wrap`."""


def load(header: bytes) -> dict[str, object]:
    """A control header back from JSON; an empty one is an empty dict."""
    if not header:
        return {}
    value: object = orjson.loads(header)
    if not isinstance(value, dict):
        raise ValueError("a control header must be a JSON object")
    return cast("dict[str, object]", value)


T = TypeVar("T")


class Shape(Generic[T]):
    """A dataclass as a JSON object: its fields by their names, one row for both ways."""

    def __init__(
        self,
        of: type[T],
        always: Collection[str] = (),
        never: Collection[str] = (),
        **ways: tuple[Callable[[Any], object], Callable[[Any], Any]],
    ) -> None:
        """always: told even at rest; others are left out there, if they have a default.  never: whoever reads says it.

        ways: of fields that JSON holds otherwise: to it, and back.
        """
        self._of = of
        rows = [one for one in fields(cast("Any", of)) if one.name not in never]
        self._names = tuple([one.name for one in rows])
        self._ways = ways
        self._rest = {one.name: _rest(one) for one in rows if one.name not in always}

    def dump(self, value: T) -> dict[str, object]:
        """Its fields, in the order in which the class has them."""
        told = dict[str, object]()
        for name in self._names:
            if (one := getattr(value, name)) != self._rest.get(name, MISSING):
                told[name] = self._ways[name][0](one) if name in self._ways else one
        return told

    def load(self, told: Mapping[str, object], **beside: object) -> T:
        """The inverse; what this version does not know is passed over.  TypeError where something is missing."""
        known = {name: told[name] for name in self._names if name in told}
        known |= {name: self._ways[name][1](known[name]) for name in self._ways.keys() & known}
        return self._of(**known, **beside)


def _rest(one: Field[Any]) -> object:
    return one.default if one.default_factory is MISSING else one.default_factory()


def as_table(value: object) -> dict[str, object]:
    """The arguments table of a header, unwrapped."""
    table = unwrap(value)
    return cast("dict[str, object]", table) if isinstance(table, dict) else {}


_NAMES = tuple([one.name for one in fields(QueueSettings)])
_values = attrgetter(*_NAMES)
_RESTING = dict(zip(_NAMES, _values(QueueSettings()), strict=True))

_ALWAYS_TOLD = frozenset(
    {
        "underlying_topic", "exchange", "default_publish_target", "filter", "semantics", "lease_period", "leasing",
        "max_backlog", "max_per_subscription_backlog", "fairness_model", "max_deliveries", "max_cancels",
        "delivery_limit", "retry", "expiration", "expiration_model", "message_ttl", "dead_letter_exchange",
        "dead_letter_routing_key", "deliver", "deferred_ack_expiration", "barrier_expression",
        "barrier_without_subscribers", "priority_expression", "target_queue_depth", "file_backed_metadata",
        "recovery_point", "kind", "initial_owner", "group_local_queue_domain",
    }
)  # fmt: skip
"""Settings of the first versions.  Their defaults may change, and must not change what an old log says."""


def dump_settings(settings: QueueSettings) -> dict[str, object]:
    """Settings as JSON holds them.  Those that came later are left out at rest, which is off for ever: they are many,
    and every queue is in every checkpoint.
    """
    told = zip(_NAMES, _values(settings), strict=True)
    out = {key: value for key, value in told if key in _ALWAYS_TOLD or value != _RESTING[key]}
    out["retry"] = plain(settings.retry)  # the one that is no plain value
    return out


def plain(value: object) -> object:
    """One setting as JSON holds it."""
    return asdict(value) if isinstance(value, Retry) else value


def load_settings(value: object) -> QueueSettings:
    """The inverse of `dump_settings`.  Raises ValueError for keys that this version does not know."""
    table = dict(cast("dict[str, object]", value)) if isinstance(value, dict) else {}
    unknown = table.keys() - _RESTING.keys()
    if unknown:
        raise ValueError(f"queue settings in the log have the unknown keys {', '.join(sorted(unknown))}")
    retry = table.pop("retry", None)
    if isinstance(retry, dict):
        table["retry"] = Retry(**cast("dict[str, int]", retry))
    for key in ("max_leased", "rate_limit"):
        if key in table:
            table[key] = tuple(cast("list[int]", table[key]))
    if "weights" in table:
        table["weights"] = tuple([(name, weight) for name, weight in cast("list[tuple[str, float]]", table["weights"])])
    return QueueSettings(**cast("dict[str, int]", table))  # type: ignore[arg-type]


_CHUNK = struct.Struct("<BII")
_U32 = 2**32 - 1

SAMPLE = 4096
"""Messages of which it is looked how many values they have."""

CODES_MOST = 65_535
"""More distinct values are not numbered."""


def pack(runs: array[int], lsns: Ints) -> tuple[object, bytes]:
    """A column in canonical form, of these messages (ascending): what the JSON says of it, and its bytes."""
    plain: tuple[object, bytes] = len(runs), runs.tobytes()
    if len(plain[1]) <= len(lsns):
        return plain
    values = spread(lsns, runs)
    used = values != 0
    base, top = int(values[used].min()), int(values[used].max())
    span = top - base
    best = plain
    if span < (1 << 64) - 2:
        width = (span + 1).bit_length() + 7 >> 3
        if len(lsns) * width < len(best[1]):
            numbers = np.where(used, values.astype(np.uint64) - np.uint64(base % (1 << 64)) + np.uint64(1), 0)
            best = ["values", width, base], narrow(numbers, width)
    if len(best[1]) > 2 * len(lsns) and len(distinct_numbers(values[:SAMPLE])) < SAMPLE // 2:
        distinct, places = np.unique(values[used], return_inverse=True)
        if len(distinct) <= CODES_MOST:
            width = len(distinct).bit_length() + 7 >> 3
            numbers = np.zeros(len(lsns), dtype=np.uint64)
            numbers[used] = places.reshape(-1) + 1
            coded = distinct.astype("<i8").tobytes() + narrow(numbers, width)
            if len(coded) < len(best[1]):
                best = ["codes", width, len(distinct)], coded
    return best


def unpack(form: object, lsns: Ints, data: bytes, place: int) -> tuple[array[int], int]:
    """The inverse, from `place` on: the column as runs, and where it ends.  ValueError when that does not fit."""
    if isinstance(form, int):
        return _runs(form, data, place)
    kind, width, told = cast("tuple[str, int, int]", form)
    if kind not in ("values", "codes") or not 1 <= width <= 8:
        raise ValueError(f"a column has the unknown form {form}")
    distinct = np.zeros(0, dtype=np.int64)
    if kind == "codes":
        piece, place = _piece(data, place, 8 * told)
        distinct = np.frombuffer(piece, dtype="<i8").astype(np.int64)
    piece, place = _piece(data, place, width * len(lsns))
    numbers = wide(piece, width)
    values = np.zeros(len(lsns), dtype=np.int64)
    used = numbers != 0
    if kind == "codes":
        if len(numbers) and int(numbers.max()) > told:
            raise ValueError(f"a column has the number {int(numbers.max())} of {told} values")
        values[used] = distinct[(numbers[used] - np.uint64(1)).astype(np.int64)]
    else:
        values[used] = (numbers[used] - np.uint64(1) + np.uint64(told % (1 << 64))).astype(np.int64)
    return runs_of(lsns, values), place


def _runs(count: int, data: bytes, place: int) -> tuple[array[int], int]:
    piece, place = _piece(data, place, 8 * count)
    values = array("q")
    values.frombytes(piece)
    return values, place


def _piece(data: bytes, place: int, size: int) -> tuple[bytes, int]:
    piece = data[place : place + size]
    if len(piece) != size:
        raise ValueError("it is short")
    return piece, place + size


def narrow(numbers: npt.NDArray[np.uint64], width: int) -> bytes:
    """Integers of `width` bytes, little-endian."""
    return numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def wide(piece: bytes, width: int) -> npt.NDArray[np.uint64]:
    table = np.frombuffer(piece, dtype=np.uint8).reshape(-1, width)
    out = np.zeros((len(table), 8), dtype=np.uint8)
    out[:, :width] = table
    return out.view("<u8").reshape(-1).astype(np.uint64)


def pack_chunks(chunks: Iterable[Chunk]) -> Iterator[bytes]:
    """Chunks in their smallest forms; long ones in several."""
    for chunk in chunks:
        if isinstance(chunk, range):
            yield _CHUNK.pack(0, len(chunk), 16) + struct.pack("<qq", chunk.start, chunk.stop)
        else:
            lsns = ints(chunk)
            for start in range(0, len(lsns), CHUNK):
                yield _pack_chunk(lsns[start : start + CHUNK])


def _pack_chunk(lsns: Ints) -> bytes:
    """One chunk of at most `CHUNK` LSNs in its smallest form."""
    n = len(lsns)
    gaps = np.diff(lsns)
    widest = int(gaps.max()) if n > 1 else 1
    breaks = np.flatnonzero(gaps != 1)
    runs = len(breaks) + 1
    sizes: Mapping[int, int] = {
        1: 8 + 8 * runs if widest <= _U32 else 8 * n + 1,
        2: 8 + 2 * (n - 1) if widest <= 65_535 else 8 * n + 1,
        3: 8 + 4 * (n - 1) if widest <= _U32 else 8 * n + 1,
        4: 8 * n,
    }
    form = min(sizes, key=sizes.__getitem__)
    if form == 4:
        payload = lsns.astype("<i8").tobytes()
    else:
        payload = struct.pack("<q", int(lsns[0]))
        if form == 1:
            starts = np.concatenate(([0], breaks + 1))
            lengths = np.diff(np.concatenate((starts, [n])))
            between = np.concatenate(([0], gaps[breaks]))
            payload += np.stack((between, lengths), axis=1).astype("<u4").tobytes()
        else:
            payload += gaps.astype("<u2" if form == 2 else "<u4").tobytes()
    return _CHUNK.pack(form, n, len(payload)) + payload


def unpack_chunk(data: bytes, place: int) -> tuple[Chunk, int]:
    """The chunk at `place`, and where it ends.  ValueError when that does not fit."""
    form, count, length = _CHUNK.unpack_from(data, place)
    start = place + _CHUNK.size
    end = start + length
    if end > len(data):
        raise ValueError("the encoded state is cut in a chunk")
    payload = data[start:end]
    lsns: Ints
    if form == 0:
        first, stop = struct.unpack("<qq", payload)
        if stop - first != count:
            raise ValueError("a chunk of the encoded state is not as long as it says")
        return range(first, stop), end
    if form == 4:
        lsns = np.frombuffer(payload, dtype="<i8").astype(np.int64)
    elif form == 1:
        table = np.frombuffer(payload[8:], dtype="<u4").astype(np.int64).reshape(-1, 2)
        # a run starts `gap` after the last element of the run before
        lasts = np.cumsum(table[:, 0]) + np.concatenate(([0], np.cumsum(table[:-1, 1] - 1)))
        begins = lasts + struct.unpack_from("<q", payload)[0]
        lengths = table[:, 1]
        offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        lsns = np.repeat(begins, lengths) + offsets
    elif form in (2, 3):
        gaps = np.frombuffer(payload[8:], dtype="<u2" if form == 2 else "<u4").astype(np.int64)
        lsns = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(gaps))) + struct.unpack_from("<q", payload)[0]
    else:
        raise ValueError(f"a chunk of the encoded state has the unknown form {form}")
    if len(lsns) != count:
        raise ValueError("a chunk of the encoded state is not as long as it says")
    return to_array(lsns), end


_BLOCK = np.dtype([("count", "<u4"), ("width", "u1")])


def dump_sizes(sizes: Sizes, blobs: list[bytes]) -> list[int]:
    """For the JSON; the columns go to the end of `blobs`."""
    firsts, each, blocks = sizes.rows()
    if not len(firsts):
        return []
    gaps, told = np.diff(firsts, prepend=0).astype(np.uint64), (each + 1).astype(np.uint64)
    widths = [max(int(column.max()).bit_length() + 7 >> 3, 1) for column in (gaps, told)]
    shapes = np.array([(len(block), block.itemsize) for block in blocks], dtype=_BLOCK)
    blobs += (narrow(gaps, widths[0]), narrow(told, widths[1]), shapes.tobytes())
    blobs += (block.astype(f"<u{block.itemsize}").tobytes() for block in blocks)
    return [len(firsts), *widths, len(blocks)]


def load_sizes(sizes: Sizes, told: object, data: bytes, place: int) -> int:
    """The inverse, from `place` on; where it ends.  ValueError when that does not fit."""
    if not told:
        return place
    count, gap_width, size_width, held = cast("list[int]", told)

    def piece(size: int) -> bytes:
        nonlocal place
        part = data[place : place + size]
        if len(part) != size:
            raise ValueError("the encoded state is cut: its sizes are short")
        place += size
        return part

    gaps = wide(piece(count * gap_width), gap_width)
    each = wide(piece(count * size_width), size_width)
    shapes = np.frombuffer(piece(held * _BLOCK.itemsize), _BLOCK)
    blocks = [
        np.frombuffer(piece(length * width), f"<u{width}")
        for length, width in zip(shapes["count"].tolist(), shapes["width"].tolist(), strict=True)
    ]
    if np.count_nonzero(each == 0) != held:
        raise ValueError(f"the encoded state has {held} blocks of sizes, its rows say otherwise")
    sizes.load_rows(np.cumsum(gaps).astype(np.int64), each.astype(np.int64) - 1, blocks)
    return place


def dump_sows(states: Mapping[int, SowState], blobs: list[bytes]) -> list[list[object]]:
    """The rows for the JSON; the indexes go to the end of `blobs`."""
    rows: list[list[object]] = []
    for number, sow in sorted(states.items()):
        rows.append([number, sow.vhost, sow.exchange, sow.name, len(sow.numbers), bool(sow.deadlines)])
        blobs += (sow.numbers.tobytes(), sow.lsns.tobytes(), sow.deadlines.tobytes())
    return rows


def load_sows(states: dict[int, SowState], rows: object, data: bytes, place: int) -> int:
    """The inverse, from `place` on; where it ends.  ValueError when bytes are missing."""
    for row in cast("list[list[object]]", rows):
        number, count = cast(int, row[0]), cast(int, row[4])
        columns = [array("Q"), array("q"), array("q")]
        for column in columns if row[5] else columns[:2]:
            piece = data[place : place + 8 * count]
            if len(piece) != 8 * count:
                raise ValueError(f"the encoded state is cut: the index of SOW topic {row[3]!r} is short")
            column.frombytes(piece)
            place += 8 * count
        states[number] = SowState(number, str(row[1]), str(row[2]), str(row[3]), *columns)
    return place
