"""Saved states: checkpoints, which make a start quick, and bases, which make old segments deletable.

A checkpoint is the core's durable state in one file, so that a start need not fold the whole log.  It only saves time.
It is written beside the old ones, synced, renamed and its folder synced; the newest two
are kept.  Whatever is odd about one (magic, version, origin, length, CRC, name) means that it is not used, with a
warning; none is needed.  The one thing a sound checkpoint may do is to witness that the log once was longer.

    0   8s   "PENSTCKP"
    8   u32  version 1
    12  u32  CRC-32C of the file with this field as zeros
    16  u64  origin
    24  u64  LSN: the state holds all records up to it
    32  u32  bytes of the JSON that follows: {"vias": {id: [vhost, exchange]}}
    36       JSON, then the state as the core encoded it

A base is the durable state as of a floor, that is of all records below it, written again at the log's end
as one group of BASE records.  A segment may go when each of its rows lies below the floor that the caller names *and*
below the floor of a base that is durable as a whole.  Segments go from the front, one at a time, the folder synced
after each, so that a crash leaves an unbroken rest.  Recovery then is: the base with the highest floor, and all records
from that floor on.  Which floor is right (retention, holds, what is still waiting) is the caller's knowledge.

A BASE record: header {"part", "parts", "floor", "vias"?}, body a slice of the encoded state; `vias` in part 0 only.
"""

from __future__ import annotations

import re
import struct
from contextlib import closing
from typing import Any, NamedTuple, cast

import orjson
import pyarrow as pa
from crc32c import crc32c

from penstock.log.archive.told import Told
from penstock.log.record_batches import cells
from penstock.ports import Disk, read_whole
from penstock.records.entries import Control, Group
from penstock.records.kinds import Kind

FOLDER = "checkpoints"
_NAME = re.compile(r"([0-9]{20})\.state\Z")
_HEAD = struct.Struct("<8sIIQQI")
_MAGIC, _VERSION = b"PENSTCKP", 1
_KEPT = 2


class Checkpoint(NamedTuple):
    """A sound checkpoint."""

    lsn: int
    state: bytes
    vias: dict[str, list[str]]


def write(disk: Disk, origin: int, lsn: int, state: bytes, vias: dict[str, list[str]]) -> str:
    """Write a checkpoint and drop all but two; its name.  OSError leaves the older ones as they are."""
    extra = orjson.dumps({"vias": vias})
    head = _HEAD.pack(_MAGIC, _VERSION, 0, origin, lsn, len(extra))
    crc = crc32c(state, crc32c(head + extra))
    name, fresh = name_of(lsn), f"{FOLDER}/new"
    disk.mkdir(FOLDER)
    with closing(disk.open(fresh, create="new" not in disk.list(FOLDER))) as file:
        file.truncate(0)
        file.pwrite(_HEAD.pack(_MAGIC, _VERSION, crc, origin, lsn, len(extra)) + extra, 0)
        file.pwrite(state, _HEAD.size + len(extra))
        file.sync()
    disk.rename(fresh, name)
    disk.sync_folder(FOLDER)
    for old in lsns(disk)[:-_KEPT]:
        disk.remove(name_of(old))
    return name


def lsns(disk: Disk) -> list[int]:
    """Of the checkpoints that are there, ascending."""
    return sorted(int(match[1]) for name in disk.list(FOLDER) if (match := _NAME.match(name)))


def name_of(lsn: int) -> str:
    return f"{FOLDER}/{lsn:020d}.state"


def remove_above(disk: Disk, lsn: int) -> None:
    """Remove the checkpoints that hold records above an LSN."""
    above = [one for one in lsns(disk) if one > lsn]
    for one in above:
        disk.remove(name_of(one))
    if above:
        disk.sync_folder(FOLDER)


def newest(disk: Disk, origin: int, warnings: list[str]) -> Checkpoint | None:
    """The newest sound checkpoint of this origin, or None."""
    for name in reversed(disk.list(FOLDER)):
        match = _NAME.match(name)
        if match is None:
            if name != "new":
                warnings.append(f"{FOLDER}/{name} is no checkpoint; left alone")
            continue
        try:
            return _read(read_whole(disk, f"{FOLDER}/{name}"), int(match[1]), origin)
        except (OSError, ValueError) as error:
            warnings.append(f"{FOLDER}/{name} is not used: {error}")
    return None


def _read(data: bytes, lsn: int, origin: int) -> Checkpoint:
    if len(data) < _HEAD.size:
        raise ValueError("it is too short")
    magic, version, crc, made_by, said, size = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError("it has another format")
    view = memoryview(data)
    head = _HEAD.pack(magic, version, 0, made_by, said, size)
    if crc32c(view[_HEAD.size :], crc32c(head)) != crc:
        raise ValueError("its CRC is wrong")
    if made_by != origin:
        raise ValueError(f"it belongs to origin {made_by}")
    if said != lsn:
        raise ValueError(f"it holds LSN {said}")
    said = Told(orjson.loads(view[_HEAD.size : _HEAD.size + size]))
    return Checkpoint(lsn, data[_HEAD.size + size :], said.lists_of_texts("vias"))


PART_BYTES = 4 << 20


class Base(NamedTuple):
    """A complete base."""

    floor: int
    lsn: int  # of its last record: it counts once this is durable
    state: bytes
    vias: dict[str, list[str]]


def base_group(first_lsn: int, time: int, floor: int, state: bytes, vias: dict[str, list[str]]) -> Group:
    """The group of a base; it takes one LSN a part, from `first_lsn` on.  See `base_parts` for how many."""
    parts = base_parts(state)
    entries = list[Any]()
    for part in range(parts):
        header: dict[str, object] = {"part": part, "parts": parts, "floor": floor}
        if part == 0:
            header["vias"] = vias
        body = state[part * PART_BYTES : (part + 1) * PART_BYTES]
        entries.append(Control(Kind.BASE, "", orjson.dumps(header), body, first_lsn + part, time))
    return Group(entries)


def base_parts(state: bytes) -> int:
    """How many LSNs the base of this state takes."""
    return max(1, -(-len(state) // PART_BYTES))


def read_base(batch: pa.RecordBatch) -> Base | None:
    """The last complete base in a batch, or None."""
    parts = list[bytes]()
    found: Base | None = None
    vias: dict[str, list[str]] = {}
    columns = (cells(batch, name) for name in ("lsn", "kind", "properties", "body"))
    for lsn, kind, properties, body in zip(*columns, strict=True):
        if kind != Kind.BASE:
            continue
        header = cast("dict[str, Any]", orjson.loads(properties))
        if header["part"] == 0:
            parts, vias = [], header.get("vias", {})
        parts.append(body)
        if header["part"] == header["parts"] - 1 == len(parts) - 1:
            found = Base(header["floor"], lsn, b"".join(parts), vias)
    return found
