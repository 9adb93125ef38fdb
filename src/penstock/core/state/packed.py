"""Parts of an encoded durable state that are no JSON, in the fewest bytes: chunks, columns, SOW indexes, sizes.

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
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import numpy as np
import numpy.typing as npt

from penstock.core.sizes import Sizes
from penstock.core.sow.holding import SowState
from penstock.core.state.lsns import CHUNK, Ints, ints, runs_of, spread, to_array
from penstock.records.chunks import Chunk

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
    if len(best[1]) > 2 * len(lsns) and len(np.unique(values[:SAMPLE])) < SAMPLE // 2:
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
