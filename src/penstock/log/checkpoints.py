"""Checkpoints: the core's durable state in one file, so that a start need not fold the whole log.

A checkpoint only saves time.  It is written beside the old ones, synced, renamed and its folder synced; the newest two
are kept.  Whatever is odd about one (magic, version, origin, length, CRC, name) means that it is not used, with a
warning; none is needed.  The one thing a sound checkpoint may do is to witness that the log once was longer.

    0   8s   "PENSTCKP"
    8   u32  version 1
    12  u32  CRC-32C of the file with this field as zeros
    16  u64  origin
    24  u64  LSN: the state holds all records up to it
    32  u32  bytes of the JSON that follows: {"vias": {id: [vhost, exchange]}}
    36       JSON, then the state as the core encoded it
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple, cast

import orjson
from crc32c import crc32c

from penstock.ports import Disk

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
    name, fresh = f"{FOLDER}/{lsn:020d}.state", f"{FOLDER}/new"
    disk.mkdir(FOLDER)
    file = disk.open(fresh, create="new" not in disk.list(FOLDER))
    try:
        file.truncate(0)
        file.pwrite(_HEAD.pack(_MAGIC, _VERSION, crc, origin, lsn, len(extra)) + extra, 0)
        file.pwrite(state, _HEAD.size + len(extra))
        file.sync()
    finally:
        file.close()
    disk.rename(fresh, name)
    disk.sync_folder(FOLDER)
    for old in [item for item in disk.list(FOLDER) if _NAME.match(item)][:-_KEPT]:
        disk.remove(f"{FOLDER}/{old}")
    return name


def newest(disk: Disk, origin: int, warnings: list[str]) -> Checkpoint | None:
    """The newest sound checkpoint of this origin, or None."""
    for name in reversed(disk.list(FOLDER)):
        match = _NAME.match(name)
        if match is None:
            if name != "new":
                warnings.append(f"{FOLDER}/{name} is no checkpoint; left alone")
            continue
        try:
            file = disk.open(f"{FOLDER}/{name}", readonly=True)
            try:
                data = file.pread(file.size(), 0)
            finally:
                file.close()
            return _read(data, int(match[1]), origin)
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
    extra = cast("dict[str, dict[str, list[str]]]", orjson.loads(view[_HEAD.size : _HEAD.size + size]))
    return Checkpoint(lsn, data[_HEAD.size + size :], extra["vias"])
