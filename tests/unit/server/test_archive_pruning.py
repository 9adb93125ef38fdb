"""The archive of a server: its own retention, and what it does where the manifest is not what it should be."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.config.settings import ArchiveSection
from penstock.errors import DiskFull, LogDamaged, Unavailable
from penstock.log.archive import file_writer
from penstock.log.archive.manifest import AGAIN, NAME
from penstock.log.catalog import SegmentInfo
from penstock.log.disk import OsDisk
from penstock.log.room import Room
from penstock.log.simdisk import SimDisk
from penstock.log.writer import LogSettings
from penstock.server.alarms import alarms
from penstock.server.upkeep import archive
from penstock.server.upkeep.archive import PRUNE_BEATS, RETRY_BEATS, Archiving
from sim.serverkit import Life
from unit.log.test_archive import DAY
from unit.log.test_archive_keeping import made


class Still:
    """A log that has nothing new."""

    origin, whole_from, settings = 7, 1 << 60, LogSettings()

    def __init__(self) -> None:
        self.room = Room(SimDisk(), ahead=0, reserve=0, low_space=LogSettings().low_space)

    def segments(self) -> list[Any]:
        return [type("Open", (), {"first": 1 << 60, "last": 1 << 60})()]


class House:
    """Settings, clock and floor by hand."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor, **retention: str) -> None:
        self.folder, self.floor = folder, 1 << 60
        for name, data in made(21, rows=1500).disk.files().items():
            place = folder / "archive" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        self.settings = ArchiveSection.model_validate({"retention": retention} if retention else {})
        self.wall, self.pool = 20_000 * DAY, pool
        self.archive = self.opened()
        self.days = sorted({part.day for part in self.archive.manifest.files})

    def opened(self, log: Still | None = None, child: object = None) -> Archiving:
        stubs: Any = log or Still()
        beside: Any = child
        return Archiving(stubs, self.settings, self.folder, beside, self.pool, lambda: self.floor, lambda: self.wall)

    def first_of(self, day: str) -> int:
        return min(part.first for part in self.archive.manifest.files if part.day == day)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder / "archive")) for path in self.folder.rglob("*.parquet")}

    async def beats(self) -> None:
        for _ in range(PRUNE_BEATS + 1):
            self.archive.beat()
        await self.archive.rest()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made_pool:
        yield made_pool


def noon(day: str) -> int:
    return (date.fromisoformat(day) - date(1970, 1, 1)).days * DAY + DAY // 2


async def test_days_go_when_they_are_too_old_and_nobody_asks_for_them(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    house = House(tmp_path, pool, age="1d")
    house.wall = noon(house.days[1])
    await house.beats()
    assert house.archive.first_lsn == house.archive.manifest.spans[0][0]  # nothing is a day old
    assert house.archive.pruned == 0

    house.wall, house.floor = noon(house.days[-1]) + 9 * DAY, house.first_of(house.days[1])
    cut = house.floor
    await house.beats()
    assert house.archive.first_lsn == cut
    assert {part.day for part in house.archive.manifest.files} == set(house.days[1:])
    assert house.files() == {part.path for part in house.archive.manifest.files}

    house.floor = 1 << 60  # the reader is done
    await house.beats()
    assert {part.day for part in house.archive.manifest.files} == {house.days[-1]}
    assert house.opened().manifest == house.archive.manifest


async def test_without_a_retention_all_stays_until_somebody_says_so(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    house = House(tmp_path, pool)
    house.wall = noon(house.days[-1]) + 900 * DAY
    await house.beats()
    before = house.files()
    told = await house.archive.prune_now(DAY, dry_run=True)
    assert house.files() == before
    again = await house.archive.prune_now(DAY)
    assert again["pruned"] == told["pruned"]
    assert house.files() == {part.path for part in house.archive.manifest.files} < before
    assert (await house.archive.prune_now(DAY))["pruned"] is None


@pytest.mark.parametrize("missing", [False, True])
async def test_a_lost_manifest_is_told_and_nothing_is_archived_or_removed(
    tmp_path: Path, pool: ThreadPoolExecutor, missing: bool
) -> None:
    house = House(tmp_path, pool, age="1d")
    manifest = tmp_path / "archive" / NAME
    manifest.unlink() if missing else manifest.write_text("{}")
    before = house.files()
    house.archive = house.opened()
    assert "penstock log archive --repair makes it anew" in str(house.archive.why)
    house.wall = noon(house.days[-1]) + 900 * DAY
    await house.beats()
    assert house.files() == before
    with pytest.raises(LogDamaged, match="cannot be used"):
        await house.archive.prune_now(DAY)


# -- another folder than it was: a disk that is not mounted, a copy that is older


def away(house: House) -> Path:
    """What is left of an archive whose disk is not mounted: its folder, empty."""
    there = house.folder / "archive"
    kept = there.rename(house.folder / "mounted elsewhere")
    there.mkdir()
    return kept


async def beats_of(archive: Archiving) -> None:
    for _ in range(RETRY_BEATS + 2):
        archive.beat()
        await archive.rest()


async def test_an_empty_folder_is_not_taken_for_an_archive_that_was_there(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    house = House(tmp_path, pool)
    manifest, kept = house.archive.manifest, away(house)
    late = house.opened()
    assert late.why is not None
    assert (
        f"it has no manifest, and number {house.archive.manifest.number} was committed to it: is its disk mounted"
        in late.why
    )
    assert not late.has(type("One", (), {"first": 1, "last": 1})())
    assert late.first_lsn == 1  # who asks for the beginning is refused, too
    with pytest.raises(LogDamaged, match="is its disk mounted"):
        late.shown()
    assert list((tmp_path / "archive").iterdir()) == []
    (tmp_path / "archive").rmdir()
    kept.rename(tmp_path / "archive")
    await beats_of(late)  # nobody has to start the server again
    assert late.why is None
    assert late.manifest == manifest
    assert late.shown() is not None


async def test_an_older_copy_of_an_archive_is_refused(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    house = House(tmp_path, pool)
    older = (tmp_path / "archive" / NAME).read_bytes()
    house.wall = noon(house.days[-1]) + 9 * DAY
    assert (await house.archive.prune_now(DAY))["pruned"]
    assert house.opened().why is None
    (tmp_path / "archive" / NAME).write_bytes(older)
    late = house.opened()
    assert late.why is not None
    assert late.why.endswith(f"{house.archive.manifest.number} was committed; {AGAIN}")


async def test_a_disk_that_goes_while_the_server_runs_is_told_before_anything_is_written_where_it_was(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    house = House(tmp_path, pool, age="1d")
    house.wall = noon(house.days[-1]) + 9 * DAY
    kept = away(house)
    await house.beats()
    assert house.archive.why is not None
    assert "is its disk mounted?" in house.archive.why
    assert list((tmp_path / "archive").iterdir()) == []
    (tmp_path / "archive").rmdir()
    kept.rename(tmp_path / "archive")
    await beats_of(house.archive)
    assert house.archive.why is None
    assert house.archive.pruned > 0


async def test_an_archive_that_cannot_be_used_is_an_alarm(tmp_path: Path, pool: ThreadPoolExecutor, life: Life) -> None:
    house = House(tmp_path, pool)
    away(house)
    life.engine.archive = house.opened()
    assert alarms(life.engine, {})["archive"].startswith("nothing is archived, and retention waits: the archive in ")
    life.engine.archive = None
    assert "archive" not in alarms(life.engine, {})


class Behind(Still):
    """A log with three closed segments that nobody has archived, of 50 MiB each."""

    durable = 1 << 61

    def segments(self) -> list[Any]:
        first = 1 << 60
        return [SegmentInfo("", first + n, first + n, 1, 1, 50 << 20, closed=n < 3) for n in range(4)]


@pytest.mark.parametrize("full", [False, True], ids=["taken", "refused"])
@pytest.mark.parametrize(("room", "count"), [(150, 3), (149, 1), (50, 1), (49, 0)])
async def test_of_a_short_disk_as_much_is_archived_at_once_as_fits(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, room: int, count: int, full: bool
) -> None:
    """Five segments of which each had room waited for all, and retention for them.

    Where no publishes are taken none has to be left to them.
    """
    asked = list[int]()

    class Child:
        async def run(self, job: str, *, progress: object = None, **values: Any) -> dict[str, Any]:
            asked.append(values["end"] - values["start"])
            raise Unavailable("that is all")

    monkeypatch.setattr(archive, "listing", lambda *of: SimpleNamespace(plain=dict))
    log = Behind()
    log.room.full = full
    house: Any = Archiving(
        cast("Any", log), ArchiveSection(), tmp_path, cast("Any", Child()), pool, lambda: 0, lambda: 0
    )
    settings = LogSettings()
    apart = 0 if full and count < 3 else archive.ROOM
    free = (room << 20) + apart + settings.low_space + settings.reserve
    monkeypatch.setattr(house._disk, "free", lambda: free)
    with pytest.raises(Unavailable if count else DiskFull):
        await house.step()
    assert asked == [count] * bool(count)


@pytest.mark.parametrize("same", [True, False])
async def test_publishes_leave_an_archive_of_the_same_disk_the_room_that_it_asks_for(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    monkeypatch.setattr(OsDisk, "shares_with", lambda ours, theirs: same)
    log = Behind()
    before, house = log.room.least, cast("Any", House(tmp_path, pool).opened(log))
    monkeypatch.setattr(house._disk, "free", lambda: 0)
    await beats_of(house)
    assert log.room.least - before == same * ((50 << 20) + archive.ROOM + log.settings.reserve)
    assert log.room.least == house._room_for(50 << 20) if same else before
    log.segments = lambda: Behind().segments()[3:]  # type: ignore[method-assign]
    await beats_of(house)
    assert log.room.least - before == same * (archive.ROOM + log.settings.reserve), "all is archived"


def test_disks_are_the_same_where_their_file_system_is(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    assert OsDisk(tmp_path / "a").shares_with(OsDisk(tmp_path / "b"))
    assert OsDisk(tmp_path / "a").shares_with(OsDisk(memory)) == (tmp_path.stat().st_dev == memory.stat().st_dev)


async def test_what_is_past_the_archives_retention_goes_also_while_nothing_can_be_archived(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes the room that the rest waits for."""
    house = House(tmp_path, pool, age="1d")
    house.wall = noon(house.days[-1]) + 9 * DAY
    late: Any = house.opened(Behind())
    monkeypatch.setattr(late._disk, "free", lambda: 0)
    await beats_of(late)
    assert {part.day for part in late.manifest.files} == {house.days[-1]}
    assert late.archived == 0
    assert "the archive waits" in late.why


async def test_that_the_disk_is_full_is_told_once_however_much_is_free(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was told once a minute, for the text has the bytes that are free; another failure is told."""
    late: Any = House(tmp_path, pool).opened(Behind())
    free = iter((10, 1023, 2 << 20, 3 << 19, 4 << 20))
    monkeypatch.setattr(archive, "RETRY_BEATS", 1)
    monkeypatch.setattr(late._disk, "free", lambda: next(free, 0))
    await beats_of(late)
    assert late.failures > 5

    def gone() -> int:
        raise OSError("it is gone")

    monkeypatch.setattr(late._disk, "free", gone)
    await beats_of(late)
    told = [record.getMessage().partition(":")[2] for record in caplog.records if "retention waits" in record.msg]
    assert len(told) == 2
    assert "the archive waits" in told[0]


class Merging:
    """A child that finds no room."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = list[str]()

    async def run(self, job: str, *, progress: object = None, **values: Any) -> dict[str, Any]:
        self.asked.append(job)
        raise self.error


@pytest.mark.parametrize("found", ["before", "meanwhile"])
async def test_small_files_that_have_no_room_to_be_merged_stop_nothing(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """All was archived and the log's retention went on, and the alarm said that neither was so."""
    house, child = House(tmp_path, pool), Merging(DiskFull("no room"))
    late: Any = house.opened(child=child)
    monkeypatch.setattr(file_writer, "plan", lambda manifest, most: list(manifest.files[:2]))
    files = house.files()
    if found == "before":
        monkeypatch.setattr(late._disk, "free", lambda: 0)
    await beats_of(late)
    assert (late.why, late.failures) == (None, 0)
    assert child.asked == ["archive_merge"] * (found == "meanwhile")
    assert house.files() == files


async def test_what_failed_is_tried_again_soon_and_later_each_time(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that does the work may merely have been killed: retention waited a minute for the next one."""
    monkeypatch.setattr(archive, "listing", lambda *of: SimpleNamespace(plain=dict))
    house, child = House(tmp_path, pool), Merging(Unavailable("it was killed"))
    late: Any = house.opened(Behind(), child)
    tries, beats = list[int](), range(6 * RETRY_BEATS)
    for beat in beats:
        asked = len(child.asked)
        late.beat()
        await late.rest()
        if len(child.asked) > asked:
            tries.append(beat)
    pauses = [later - one for one, later in pairwise(tries)]
    assert pauses == [2, 3, 5, 9, 17, 33, *[RETRY_BEATS + 1] * 4]
    monkeypatch.setattr(late, "planned", list)
    await beats_of(late)
    assert late.why is None
