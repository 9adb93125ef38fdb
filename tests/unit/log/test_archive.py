"""The archive's files: every row once, as the log had it, whatever is merged, and whatever a crash leaves."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from choices import EFFORT
from penstock.errors import DiskFull, LogDamaged
from penstock.log.archive import file_writer as merging
from penstock.log.archive.file_writer import Form, Writing
from penstock.log.archive.manifest import Manifest, commit, escaped, read, runs, tidy
from penstock.log.archive.repairing import check
from penstock.log.archive.row_groups import Archive, Piece, pieces
from penstock.log.catalog import SegmentInfo
from penstock.log.record_batches import make_batch
from penstock.log.room import told_of_disk
from penstock.log.simdisk import SimDisk
from penstock.records.kinds import Kind
from penstock.records.schema import COLUMNS

DAY = 86_400_000_000
VIAS = {3: ("/", "events"), 4: ("other", "")}


TOPICS = ("orders", "eu/orders = 1", "", "_others", *(f"t{i}" for i in range(6)))
FEW = TOPICS[:3]
"""Where the same is asked after each step: each topic is a file more a day, which is read again each time."""


def history(seed: int, rows: int, first: int = 1, topics: Sequence[str] = TOPICS) -> pa.Table:
    """Rows of a log: messages of a few topics, and other records between them; LSNs with holes; two days and more."""
    random_ = random.Random(seed)
    lsn, time, out = first, 20_000 * DAY - 5_000_000, list[Sequence[object]]()
    for _ in range(rows):
        lsn += 1 if random_.random() < 0.98 else random_.randrange(2, 1 << 33)
        time += random_.randrange(0, 4 * 5_000_000)
        if random_.random() < 0.3:
            kind = random_.choice([Kind.SETTLE, Kind.GRANT, Kind.BASE, Kind.MARK])
            out.append((lsn, int(kind), "q", None, None, time, None, None, None, b"{}", b"\1\0\0\0\0\0\0\0"))
            continue
        kind = random_.choice([Kind.PUBLISH, Kind.PUBLISH, Kind.PUBLISH_TRANSIENT])
        via, ends = random_.choice([None, 3, 4]), random_.choice([None, time + 7])
        body = random_.choice([b"", random_.randbytes(random_.randrange(300))])
        rank = random_.choice([None, 0, 200])
        out.append((lsn, int(kind), random_.choice(topics), via, 5, time, ends, None, rank, b"\x10\0\2", body))
    return pa.Table.from_batches([make_batch(out)]).replace_schema_metadata(None)


def batches(table: pa.Table, rows: int = 97) -> Iterator[pa.RecordBatch]:
    yield from table.to_batches(max_chunksize=rows)


def read_back(disk: SimDisk, a: int, b: int) -> pa.Table:
    return pa.Table.from_batches(list(Archive(disk).batches(a, b)), schema=COLUMNS)


def between(table: pa.Table, a: int, b: int) -> pa.Table:
    lsns = table.column("lsn").to_numpy()
    low, high = np.searchsorted(lsns, (a, b)).tolist()
    return table.slice(low, high - low)


def same(a: pa.Table, b: pa.Table) -> bool:
    return a.num_rows == b.num_rows and a.combine_chunks().cast(COLUMNS).equals(b.combine_chunks().cast(COLUMNS))


class Run:
    """One log, archived a stretch at a time."""

    def __init__(self, disk: SimDisk, table: pa.Table, stretches: int) -> None:
        self.disk, self.table = disk, table
        lsns = table.column("lsn").to_numpy()
        cuts = np.linspace(0, len(lsns), stretches + 1).astype(int).tolist()
        self.edges = [int(lsns[at]) for at in cuts[:-1]] + [int(lsns[-1]) + 1]
        self.tries = 0

    def manifest(self) -> Manifest:
        return read(self.disk) or Manifest(7)

    def step(self) -> bool:
        """As the server does: the oldest stretch that is not archived, else one merge."""
        self.tries += 1
        manifest = self.manifest()
        tidy(self.disk, manifest)
        manifest = manifest._replace(gone=())
        for a, b in zip(self.edges, self.edges[1:], strict=False):
            if not manifest.has(a, b - 1):
                writing = Writing(self.disk, Form(topics=3), f"r{self.tries}", VIAS, 7, (a, b))
                parts = writing.run(batches(between(self.table, a, b)), lambda lsn: None)
                after = manifest.with_files(a, b, parts, {"3": ["/", "events"]})
                break
        else:
            old = merging.plan(manifest, 1 << 20)
            if old is None:
                return False
            after = manifest.replaced(old, merging.merge(self.disk, old, Form(), f"m{self.tries}"))
        commit(self.disk, after)
        tidy(self.disk, after)
        return True

    def whole(self) -> bool:
        """Whether the archive has what its manifest says, row by row, and nothing else lies about."""
        manifest = self.manifest()
        for a, b in manifest.spans:
            if not same(read_back(self.disk, a, b), between(self.table, a, b)):
                return False
        found = check(self.disk)
        return found is None or (not found.damage and found.rows == manifest.rows)


@pytest.mark.parametrize("first", [1, 1 << 40])
def test_rows_come_back_as_they_were_in_any_range_before_and_after_files_are_merged(first: int) -> None:
    table = history(1, 1000, first)
    run = Run(SimDisk(), table, 8)
    random_ = random.Random(2)
    steps = 0
    while run.step():
        steps += 1
        assert steps % 4 or run.whole()
    assert steps > 9
    assert run.whole()
    manifest = run.manifest()
    assert manifest.spans == ((run.edges[0], run.edges[-1]),)
    assert manifest.rows == table.num_rows
    assert manifest.vias == {"3": ["/", "events"]}
    lsns = table.column("lsn").to_pylist()
    for _ in range(25):
        a, b = sorted(random_.choices(lsns, k=2))
        assert same(read_back(run.disk, a, b), between(table, a, b))
    assert run.disk.list(".new") == []
    named = {part.path for part in manifest.files}
    assert {name for name in run.disk.files() if name.endswith(".parquet")} == named


def test_a_topic_is_read_from_its_own_files_and_from_those_that_are_shared() -> None:
    table = history(3, 2000)
    run = Run(SimDisk(), table, 3)
    while run.step():
        pass
    for topic in ("orders", "", "t5", "eu/orders = 1", "never"):
        got = pa.Table.from_batches(list(Archive(run.disk).batches(1, 1 << 60, None, topic)), schema=COLUMNS)
        mine = [row for row in got.to_pylist() if row["name"] == topic and row["kind"] <= 2]
        assert mine == [row for row in table.to_pylist() if row["name"] == topic and row["kind"] <= 2]
        assert got.num_rows < table.num_rows
    assert escaped("eu/orders = 1") == "eu%2Forders %3D 1"
    one = Archive(run.disk).batches(1, 1 << 60, ["lsn"], lambda name: name.startswith("t"))
    assert next(one).schema.names == ["lsn"]


@pytest.mark.parametrize("kind", ["write", "sync", "folder"])
def test_a_crash_at_any_step_leaves_every_row_once_and_no_file_that_nobody_names(kind: str) -> None:
    table = history(5, 120, topics=FEW)
    ready = Run(SimDisk(), table, 5)
    for _ in range(4):
        ready.step()  # four small files a folder: the next steps archive once more, and merge
    files = ready.disk.files()
    failures = after = 0
    while True:
        run = Run(SimDisk(files, seed=after), table, 5)
        run.tries = 100
        run.disk.fail_next(kind, after=after)
        try:
            while run.step():
                pass
        except (OSError, pa.ArrowException):
            failures += 1
        else:
            break
        run.disk.crash()
        assert run.whole(), f"after the {after}th {kind}"
        run.tries = 200
        while run.step():
            pass
        assert run.whole()
        assert run.manifest().rows == table.num_rows
        assert run.disk.list(".new") == []
        after += 1 if after < 4 else 5 + after // (4 if EFFORT > 1 else 2)
    assert failures > 5


def test_what_is_not_as_it_was_written_is_told_by_name() -> None:
    table, told = history(6, 1500), 0
    run = Run(SimDisk(), table, 2)
    while run.step():
        pass
    files = run.disk.files()
    part = max(run.manifest().files, key=lambda one: one.bytes)
    for where in (0.1, 0.3, 0.5, 0.97):
        damaged = bytearray(files[part.path])
        damaged[int(len(damaged) * where)] ^= 4
        disk = SimDisk({**files, part.path: bytes(damaged)})
        found = check(disk)
        assert found is not None
        assert part.path in found.damage[0]
        try:
            rows = read_back(disk, 1, 1 << 60)
        except LogDamaged as error:
            told += part.path in str(error)
        else:
            assert same(rows, table)  # the flipped bit says nothing that is read
    assert told >= 3
    short = SimDisk({**files, part.path: files[part.path][:-9]})
    with pytest.raises(LogDamaged, match="bytes, and"):
        read_back(short, 1, 1 << 60)
    gone = SimDisk({name: content for name, content in files.items() if name != part.path})
    with pytest.raises(LogDamaged, match="is missing; put back a copy"):
        read_back(gone, 1, 1 << 60)
    torn = bytearray(files["manifest.json"])
    torn[torn.index(b'"rows": ') + 8] ^= 1
    with pytest.raises(LogDamaged, match=r"manifest\.json is not what was written"):
        read(SimDisk({**files, "manifest.json": bytes(torn)}))
    found = check(SimDisk(files), origin=8)
    assert found is not None
    assert "another data folder (origin 7, not 8)" in found.damage[0]


def test_a_full_disk_is_told_as_one_and_leaves_the_archive_as_it_was() -> None:
    table = history(9, 400)
    run = Run(SimDisk(), table, 4)
    run.step()
    before = run.disk.files()
    full = Run(SimDisk(before, capacity=run.disk.used() + 3000), table, 4)
    with pytest.raises(DiskFull, match="the archive's folder /a has no room"), told_of_disk("the archive's folder /a"):
        full.step()
    assert full.whole()
    tidy(full.disk, full.manifest())
    assert full.disk.files() == before


def test_a_reader_goes_on_when_files_are_merged_under_it() -> None:
    table = history(8, 1200)
    run = Run(SimDisk(), table, 6)
    for _ in range(6):
        run.step()
    archive = Archive(run.disk)
    rows, out = archive.batches(1, 1 << 60), list[pa.RecordBatch]()
    out.append(next(rows))
    archive._open.clear()  # pyright: ignore[reportPrivateUsage] - as if it had more files open than it may
    while run.step():
        pass
    out += rows
    assert same(pa.Table.from_batches(out), table)


def test_from_the_archive_comes_what_the_log_may_have_left_out() -> None:
    assert pieces(1, 90, 50, []) == [Piece(1, 90, False)]
    assert pieces(1, 90, 50, [(1, 70)]) == [Piece(1, 50, True), Piece(50, 90, False)]
    assert pieces(5, 40, 50, [(1, 70)]) == [Piece(5, 40, True)]
    assert pieces(60, 90, 50, [(1, 70)]) == [Piece(60, 90, False)]
    mixed = [Piece(1, 10, False), Piece(10, 20, True), Piece(20, 30, False), Piece(30, 50, True), Piece(50, 90, False)]
    assert pieces(1, 90, 50, [(10, 20), (30, 70)]) == mixed


def test_closed_segments_are_archived_together_and_merged_ones_not_again() -> None:
    def segment(first: int, last: int, size: int = 100) -> SegmentInfo:
        return SegmentInfo("", first, last, 1, 1, size, True)

    segments = [segment(1, 9), segment(10, 19), segment(1 << 33, (1 << 33) + 5), segment((1 << 33) + 6, 1 << 34)]
    [run] = runs(segments, Manifest(7))
    assert (run.start, run.end, run.segments) == (1, (1 << 33) + 6, 3)  # the last one is open
    archived = Manifest(7).with_files(1, 10, [], {})
    [run] = runs(segments, archived)
    assert (run.start, run.segments) == (10, 2)
    [run] = runs([segment(1, 19), *segments[2:]], archived)  # the first two were joined by compaction
    assert (run.start, run.end) == (10, (1 << 33) + 6)
    large = 200 << 20
    assert [
        one.segments for one in runs([segment(1, 9, large), segment(10, 19, large), segment(20, 20)], archived)
    ] == [1]
    with pytest.raises(ValueError, match="archived in part"):
        archived.with_files(5, 20, [], {})
    pruned = archived.with_files(10, 20, [], {}).without(15)
    [run] = runs([segment(1, 29), segment(30, 40)], pruned)  # joined later: what has gone of it is not archived again
    assert (run.start, run.end) == (20, 30)
    assert runs([segment(1, 9), segment(10, 19), segment(20, 20)], pruned) == []
