"""The values of a batch of entries, column by column, as Arrow's buffers: validity, offsets, data.

Plain lists are collected over all entries of the batch and converted once; a column with one value for all rows is made
by repetition; packed bodies already lie as Arrow wants them.  It knows no message and no file.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.records.entries import Control, Entry, Group, Moves, Publishes
from penstock.records.kinds import NO_ROUTE, NO_VIA, Kind
from penstock.records.message_bodies import PackedBodies

Part: TypeAlias = "Publishes | Control | Moves"

Texts: TypeAlias = "tuple[bytes | memoryview, bytes]"
"""Offsets and data of a column of texts or bytes."""

PUBLISH, TRANSIENT = int(Kind.PUBLISH), int(Kind.PUBLISH_TRANSIENT)

REACH = (1 << 31) - 1
"""Bytes of one column that Arrow's 32-bit offsets reach."""

_SMALL = 48  # rows up to which plain Python beats numpy's fixed cost
_RUN = 24  # rows of a part, on average, from which it is handled as one
_WIDTH = {"b": 1, "h": 2, "i": 4, "q": 8}
_PACK = {code: struct.Struct("<" + code).pack for code in _WIDTH}


def parts_of(entries: Iterable[Entry]) -> list[Part]:
    """The entries with groups opened, in order, without empty ones."""
    out: list[Part] = []
    for entry in entries:
        if isinstance(entry, Control):
            out.append(entry)
        elif isinstance(entry, Group):
            out += [part for part in entry.entries if len(part)]
        elif len(entry):
            out.append(entry)
    return out


def _spread(values: list[Any], counts: list[int]) -> list[Any]:
    """One element a row, of one value or list a part."""
    out: list[Any] = []
    for value, count in zip(values, counts, strict=True):
        if value.__class__ is list:
            out += value
        elif count == 1:
            out.append(value)
        else:
            out += [value] * count
    return out


class Columns:
    """The values of a batch, column by column: for each part one value, or a list with one for each of its rows."""

    __slots__ = (
        "_bodies", "_packed", "counts", "expires_at", "firsts", "kinds", "names", "not_before", "priority",
        "properties", "routes", "rows", "times", "vias",
    )  # fmt: skip

    def __init__(self, parts: Sequence[Part]) -> None:
        firsts, kinds, names, vias = list[int](), list[Any](), list[Any](), list[Any]()
        routes, times, properties, bodies = list[Any](), list[Any](), list[Any](), list[bytes]()
        counts: list[int] = [1] * len(parts)
        expires_at: list[Any] = [0] * len(parts)
        not_before, priority = expires_at[:], expires_at[:]
        packed: list[tuple[int, PackedBodies]] = []
        for at, part in enumerate(parts):
            if isinstance(part, Publishes):
                some = part.bodies
                counts[at] = len(some)
                firsts.append(part.first)
                topics, transient = part.topics, part.transient
                if isinstance(topics, list):
                    names.append([topic.name for topic in topics])
                    via = [topic.via for topic in topics]
                    vias.append(via[0] if via.count(via[0]) == len(via) else via)
                else:
                    names.append(topics.name)
                    vias.append(topics.via)
                if isinstance(transient, list):
                    kinds.append([TRANSIENT if mark else PUBLISH for mark in transient])
                else:
                    kinds.append(TRANSIENT if transient else PUBLISH)
                routes.append(part.routes)
                times.append(part.time)
                properties.append(part.properties)
                if isinstance(some, list):
                    bodies += some
                else:
                    packed.append((len(bodies), some))
                expires_at[at] = part.expires_at or 0
                not_before[at] = part.not_before or 0
                priority[at] = part.priority or 0
            elif isinstance(part, Moves):
                counts[at] = len(part.kinds)
                firsts.append(part.first)
                kinds.append(part.kinds)
                names.append(part.names)
                vias.append(NO_VIA)
                routes.append(NO_ROUTE)
                times.append(part.time)
                properties.append(part.headers)
                bodies += part.bodies
            else:
                firsts.append(part.lsn)
                kinds.append(int(part.kind))
                names.append(part.name)
                vias.append(part.via)
                routes.append(part.route)
                times.append(part.time)
                properties.append(part.header)
                bodies.append(part.body)
        self.counts, self.firsts, self.kinds, self.names, self.vias = counts, firsts, kinds, names, vias
        self.routes, self.times, self.properties = routes, times, properties
        self.expires_at, self.not_before, self.priority = expires_at, not_before, priority
        self._bodies = bodies  # of the parts that have lists
        self._packed = packed  # the others, each with how many of `_bodies` stand before it
        self.rows = len(bodies) if not packed else sum(counts)

    def lsns(self) -> bytes | memoryview:
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

    def fixed(self, values: list[Any], code: str, null: int | None) -> tuple[bytes, bytes | memoryview, int]:
        """Validity, data and null count of a column of numbers; `null` is the value that stands for null."""
        rows, value = self.rows, values[0]
        if value.__class__ is not list and values.count(value) == len(values):
            if value == null:
                return bytes((rows + 7) >> 3), bytes(rows * _WIDTH[code]), rows
            return b"", _PACK[code](value) * rows, 0
        if self._long(values):
            return self._fixed_runs(values, code, null)
        flat = values if len(values) == rows and list not in set(map(type, values)) else _spread(values, self.counts)
        data = array(code, flat).tobytes()
        if null is None or not (nulls := flat.count(null)):
            return b"", data, 0
        if rows > _SMALL:
            return _valid(np.frombuffer(data, "<i" + str(_WIDTH[code])) != null), data, nulls
        bits = sum(1 << at for at, item in enumerate(flat) if item != null)
        return bits.to_bytes((rows + 7) >> 3, "little"), data, nulls

    def _long(self, values: list[Any]) -> bool:
        """Whether parts are so long that a step for each of them costs less than one for each row."""
        return self.rows > _SMALL and self.rows >= _RUN * len(values)

    def _fixed_runs(self, values: list[Any], code: str, null: int | None) -> tuple[bytes, memoryview, int]:
        flat: npt.NDArray[Any] = np.empty(self.rows, "<i" + str(_WIDTH[code]))
        at = 0
        for value, count in zip(values, self.counts, strict=True):
            if code == "b" and value.__class__ is list:
                value = array("b", value)  # kinds are members of an enum, which numpy takes four times as long for
            flat[at : at + count] = value
            at += count
        nulls = 0 if null is None else int(np.count_nonzero(flat == null))
        return (_valid(flat != null) if nulls else b""), flat.data.cast("B"), nulls

    def strings(self, values: list[Any]) -> Texts:
        """Offsets and data of a column of str."""
        value, rows = values[0], self.rows
        if value.__class__ is not list and values.count(value) == len(values):
            encoded = value.encode()
            return _even(len(encoded), rows), encoded * rows
        if self._long(values) and not _listed(values):
            return self._runs([value if value.__class__ is list else value.encode() for value in values], _texts)
        return _texts(_spread(values, self.counts))

    def binaries(self, values: list[Any]) -> Texts:
        """Offsets and data of a column of bytes, one value or list a part."""
        value, rows = values[0], self.rows
        if value.__class__ is not list and values.count(value) == len(values):
            return _even(len(value), rows), value * rows
        if self._long(values) and not _listed(values):
            return self._runs(values, _pieces)
        return _pieces(_spread(values, self.counts))

    def _runs(self, values: list[Any], of: Callable[[list[Any]], Texts]) -> Texts:
        """The same of a few long parts; `of` a list."""
        sums, pieces, size = list["npt.NDArray[np.int32]"](), list[bytes](), 0
        for value, count in zip(values, self.counts, strict=True):
            if value.__class__ is list:
                offsets, data = of(value)
            else:
                offsets, data = _even(len(value), count), value * count
            if size + len(data) > REACH:
                raise too_large()
            sums.append(_rebased(np.frombuffer(offsets, "<i4"), size))
            pieces.append(data)
            size += len(data)
        return _chained(sums), b"".join(pieces)

    def bodies(self) -> tuple[bytes | memoryview, list[bytes | memoryview], int]:
        """Offsets of the `body` column, its data in pieces, and the bytes of these.  OverflowError beyond 2 GiB."""
        listed, packed = self._bodies, self._packed
        if not packed:
            joined = b"".join(listed)
            if len(joined) > REACH:
                raise too_large()
            return _offsets(listed), [joined], len(joined)
        sums, pieces, size, done = list["npt.NDArray[np.int32]"](), list[bytes | memoryview](), 0, 0
        for place, some in [*packed, (len(listed), None)]:
            if done < place:
                joined = b"".join(listed[done:place])
                if size + len(joined) > REACH:
                    raise too_large()
                sums.append(_rebased(np.frombuffer(_offsets(listed[done:place]), "<i4"), size))
                pieces.append(joined)
                size += len(joined)
                done = place
            if some is not None:
                if size + some.size > REACH:
                    raise too_large()
                sums.append(_rebased(some.offsets, size))
                pieces.append(some.data)
                size += some.size
        return _chained(sums), pieces, size


def _listed(values: list[Any]) -> bool:
    """Whether each part has a list, so that there is nothing to repeat."""
    return {*map(type, values)} == {list}


def _texts(values: list[str]) -> Texts:
    """Offsets and data of texts as UTF-8."""
    joined = "".join(values)
    if joined.isascii():
        return _offsets(values), joined.encode()
    return _pieces([value.encode() for value in values])


def _pieces(values: list[bytes]) -> Texts:
    """Offsets and data of values."""
    return _offsets(values), b"".join(values)


def _valid(there: npt.NDArray[np.bool_]) -> bytes:
    """Arrow's bitmap of the rows that are not null."""
    return np.packbits(there, bitorder="little").tobytes()


def _chained(sums: list[npt.NDArray[np.int32]]) -> memoryview:
    """Offsets of parts, each from where the one before ends, as one column's."""
    offsets = sums[0] if len(sums) == 1 else np.concatenate([sums[0], *(part[1:] for part in sums[1:])])
    return offsets.data.cast("B")


def _rebased(offsets: npt.NDArray[np.int32], start: int) -> npt.NDArray[np.int32]:
    """The same lengths, beginning at `start`."""
    shift = start - int(offsets[0])
    return offsets + np.int32(shift) if shift or not offsets.flags.c_contiguous else offsets


def too_large() -> OverflowError:
    """That a column passes the reach of its offsets."""
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
