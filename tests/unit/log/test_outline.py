"""Outlines: batches without the bytes of bodies, for who counts and weighs messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import LogDamaged
from penstock.history.history import History, Limits
from penstock.history.view import Folder, View, listing
from penstock.log.frame import Frame, FrameReader
from penstock.log.log import Log
from penstock.log.record_batches import column, lengths
from penstock.log.simdisk import SimDisk, SimFile
from penstock.records.entries import Topic
from penstock.wire.flight.commands import Replay
from sim.logkit import SMALL, FakeClock, commit, messages, opened

SETTINGS = replace(SMALL, cache=1)
ORDERS, OTHERS = Topic("/", "", "orders"), Topic("/", "", "others")
ROWS, BODY = 500, 1000


@pytest.fixture
def disk() -> SimDisk:
    """Four batches of 500 messages of 1,000 and a few bytes, every second batch of another topic; LSNs from 1."""
    disk = SimDisk()
    log = opened(disk, SETTINGS)
    for batch in range(4):
        bodies = [b"%d:" % row + b"x" * (BODY + row % 7) for row in range(ROWS)]
        commit(log, messages(log.appended + 1, *bodies, topic=(ORDERS, OTHERS)[batch % 2]))
    log.close()
    return disk


def beside(disk: SimDisk) -> View:
    """The log as a process sees it that has checked nothing yet."""
    log = Log.open(disk, FakeClock(), SETTINGS)
    listed = listing(log)
    log.close()
    return Folder(disk).view(listed)


def frames(disk: SimDisk) -> tuple[str, list[Frame]]:
    """The batches of the only segment."""
    (name,) = [name for name in disk.files() if name.endswith(".arrows")]
    data, reader, found = bytes(disk.files()[name]), FrameReader(), list[Frame]()
    at = 8 + int.from_bytes(data[4:8], "little")
    while len(found) < 4:
        frame = reader.header(data[at : at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")], at)
        found += [frame] if frame.rows else []
        at += frame.length
    return name, found


def lsns_of(batch: pa.RecordBatch) -> list[int]:
    return column(batch, "lsn", "<i8").tolist()


def test_an_outline_has_all_but_the_bytes_of_bodies(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    log, read, pread = beside(disk), list[int](), SimFile.pread
    whole = list(log.batches(1, 1 << 60))

    def counting(file: SimFile, size: int, offset: int) -> bytes:
        read.append(size)
        return pread(file, size, offset)

    monkeypatch.setattr(SimFile, "pread", counting)
    for outline, batch in zip(log.outlines(1, 1 << 60), whole, strict=True):
        assert outline.drop_columns(["body"]).equals(batch.drop_columns(["body"]))
        assert (lengths(outline, "body") == lengths(batch, "body")).all()
    assert sum(read) < 4 * ROWS * BODY / 4, "bodies were read"
    log.close()


def test_a_part_of_a_batch_and_the_batches_of_a_topic_alone(disk: SimDisk) -> None:
    log = beside(disk)
    assert [batch.num_rows for batch in log.outlines(100, 1101)] == [401, 500, 100]
    command, limits = Replay(vhost="/", topic="others"), Limits(rows=700, parts=2)
    found = History(log, lambda: False).measure(command, 1, 1 << 40, limits)
    first, second = list(log.batches(1, 1 << 60))[1::2]
    sizes = np.concatenate([lengths(first, "body"), lengths(second, "body")])
    assert (found.rows, found.bytes) == (700, int(sizes[:700].sum()))
    assert found.end == lsns_of(second)[199] + 1
    assert found.cuts == (lsns_of(first)[350],), "LSNs of the first batch stay when the second is read"
    log.close()


def test_a_damaged_body_is_left_to_who_reads_it(disk: SimDisk) -> None:
    name, found = frames(disk)
    log = beside(disk)
    disk.flip(name, 8 * (found[1].offset + found[1].header + found[1].buffers[-2] + 5000))
    assert sum(batch.num_rows for batch in log.outlines(1, 1 << 60)) == 4 * ROWS
    with pytest.raises(LogDamaged):
        list(log.batches(1, 1 << 60))


@pytest.mark.parametrize(("part", "byte"), [("lsns", 3003), ("lsns", 0), ("names begin", 403), ("header", 5)])
def test_damage_that_could_lead_astray_is_found(disk: SimDisk, part: str, byte: int) -> None:
    """A bit of an LSN could end a range anywhere, one of where names begin reads beyond a buffer."""
    name, found = frames(disk)
    start = {"header": -found[2].header, "lsns": found[2].buffers[2], "names begin": found[2].buffers[10]}[part]
    log = beside(disk)
    disk.flip(name, 8 * (found[2].offset + found[2].header + start + byte))
    with pytest.raises(LogDamaged, match="batch 2 at byte"):
        list(log.outlines(1, 1 << 60))


def test_small_batches_are_read_whole() -> None:
    disk = SimDisk()
    log = opened(disk, SETTINGS)
    commit(log, messages(1, b"one", b"two", topic=ORDERS))
    (batch,) = log.outlines(1, 3)
    assert batch.column("body").to_pylist() == [b"one", b"two"]
    log.close()
