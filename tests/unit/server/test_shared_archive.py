"""The archive of a cluster: the same folder for all, and retention waits until all who may lead know of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.config.settings import ArchiveSection
from penstock.errors import Unavailable
from penstock.log.archive.manifest import Part, runs
from penstock.server.cluster.shared_archive import ByHand, SharedArchive
from penstock.server.upkeep.archive import Archiving
from unit.server.test_archive_pruning import Still


class Cluster:
    """Has files copied when the test says so."""

    def __init__(self) -> None:
        self.waiting = asyncio.Queue[Callable[[], object]]()

    def keep(self, names: Sequence[str], then: Callable[[], object]) -> None:
        assert names == ["archive.json"]
        self.waiting.put_nowait(then)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def opened(
    tmp_path: Path, term: int, pool: ThreadPoolExecutor, member: str = "a", folder: str = "archive",
    by_hand: ByHand | None = None,
) -> Any:  # fmt: skip
    """The archive of a member that leads, and its cluster."""
    cluster: Any = Cluster()
    stubs: Any = Still()
    (tmp_path / member).mkdir(exist_ok=True)
    settings = ArchiveSection.model_validate({"folder": str(tmp_path / folder), "shared": True})
    shared = SharedArchive(cluster.keep, tmp_path / member, term, by_hand)
    made = Archiving(stubs, settings, tmp_path / member, stubs, pool, lambda: 1 << 60, lambda: 0, shared)
    return SimpleNamespace(archive=made, cluster=cluster)


def test_retention_waits_until_all_know(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    one = opened(tmp_path, 1, pool)
    segment: Any = SimpleNamespace(first=1, last=99)

    async def run() -> None:
        manifest = one.archive.manifest.with_files(1, 100, [], {})
        committing = asyncio.ensure_future(one.archive._commit(manifest))
        known = await one.cluster.waiting.get()
        assert one.archive.manifest.has(1, 99), "readers see it"
        assert not one.archive.has(segment)
        known()
        await committing
        assert one.archive.has(segment)
        again = asyncio.ensure_future(one.archive._commit(one.archive.manifest.with_files(100, 200, [], {})))
        await one.cluster.waiting.get()
        one.archive.stop()  # and does not wait for ever
        with pytest.raises(Unavailable):
            await again

    asyncio.run(run())


def test_the_next_leader_goes_on_with_it_and_the_former_one_does_not(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    one = opened(tmp_path, 1, pool)
    two = opened(tmp_path, 2, pool, "b")
    assert two.archive.why is None

    async def run() -> None:
        with pytest.raises(OSError, match="No such file"):
            await one.archive._commit(one.archive.manifest.with_files(1, 100, [], {}))
        assert one.cluster.waiting.empty()

    asyncio.run(run())
    late = opened(tmp_path, 1, pool)
    assert late.archive.broken
    assert "the leader of term 2 has the archive" in late.archive.why


def test_another_folder_or_an_older_manifest_is_refused(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    one = opened(tmp_path, 1, pool)

    async def run() -> None:
        committing = asyncio.ensure_future(one.archive._commit(one.archive.manifest.with_files(1, 100, [], {})))
        (await one.cluster.waiting.get())()
        await committing

    asyncio.run(run())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "archive.json").write_bytes((tmp_path / "a" / "archive.json").read_bytes())  # as it is copied
    elsewhere = opened(tmp_path, 2, pool, "b", "another archive")
    assert "all members must see the same one" in elsewhere.archive.why
    manifest = tmp_path / "archive" / "manifest.json"
    kept = manifest.read_bytes()
    manifest.unlink()
    assert "it has no manifest, and number 1 was committed" in opened(tmp_path, 3, pool, "b").archive.why
    manifest.write_bytes(kept)
    assert opened(tmp_path, 4, pool, "b").archive.why is None


# a person says who leads


def part(first: int, last: int) -> Part:
    return Part(f"messages/topic=a/day=2026-01-01/{first:020d}-x-0000.parquet", "a", first, last, 1, 9, 0, 0)


def archived(tmp_path: Path, pool: ThreadPoolExecutor, *files: tuple[int, int]) -> None:
    """What the leader of term 193 has put there, a file for each of these spans."""
    one = opened(tmp_path, 193, pool)

    async def run() -> None:
        for first, last in files:
            manifest = one.archive.manifest.with_files(first, last + 1, [part(first, last)], {})
            committing = asyncio.ensure_future(one.archive._commit(manifest))
            (await one.cluster.waiting.get())()
            await committing

    asyncio.run(run())


def by_hand(lost: Callable[[int], bool], heard: list[int] | None = None, *, behind: int = 1 << 60) -> ByHand:
    return ByHand(lost, lambda segment: segment.last < behind, ([] if heard is None else heard).append)


def test_what_was_set_aside_is_left_out_by_the_leader_who_goes_on_without(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    archived(tmp_path, pool, (1, 99), (100, 199), (200, 299))
    kept = opened(tmp_path, 258, pool, "b", by_hand=by_hand(lambda lsn: 150 < lsn < 1000)).archive
    assert "has LSNs that the log has, and LSNs that it goes on without" in kept.why
    kept = opened(tmp_path, 322, pool, "b", by_hand=by_hand(lambda lsn: 100 <= lsn < 1000)).archive
    assert kept.why is None
    assert (kept.manifest.spans, [one.first for one in kept.manifest.files]) == (((1, 100),), [1])
    again = opened(tmp_path, 386, pool, "c", by_hand=by_hand(lambda lsn: False)).archive
    assert again.manifest.spans == ((1, 100),), "it is so on the disk"
    assert again.manifest.with_files(1000, 1100, [part(1000, 1099)], {}).has(1000, 1099)


def test_the_gap_in_which_records_were_set_aside_is_closed_by_what_follows(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """A segment ends where the next one begins, and between the two lie the LSNs of another line."""
    archived(tmp_path, pool, (1, 99), (100, 199), (1000, 1099))
    kept = opened(tmp_path, 258, pool, "b", by_hand=by_hand(lambda lsn: 100 <= lsn < 1000)).archive
    assert kept.manifest.spans == ((1, 100), (1000, 1100))
    closed = SimpleNamespace(first=50, last=99, bytes=10)
    following = SimpleNamespace(first=1000, last=1099, bytes=10)
    last = SimpleNamespace(first=1100, last=1100, bytes=10)
    for run in runs([closed, following, last], kept.manifest):  # type: ignore[list-item]
        kept.manifest = kept.manifest.with_files(run.start, run.end, [], {})
    assert kept.manifest.spans in {((1, 1100),), ((1, 100), (1000, 1100))}


def test_a_segment_that_a_member_lacks_is_not_archived_yet(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    """A person may have that member lead."""
    log: Any = SimpleNamespace(
        origin=7, whole_from=1 << 60, settings=Still.settings, durable=250,
        segments=lambda: [SimpleNamespace(first=n, last=n + 99, bytes=10) for n in (1, 101, 201, 301)],
    )  # fmt: skip
    archive = opened(tmp_path, 1, pool, by_hand=by_hand(lambda lsn: False, behind=150)).archive
    archive._log = log
    assert [(run.start, run.end) for run in archive.planned()] == [(1, 101)]
    archive = opened(tmp_path, 2, pool, by_hand=by_hand(lambda lsn: False)).archive
    archive._log = log
    assert [(run.start, run.end) for run in archive.planned()] == [(1, 201)]


def test_one_who_finds_a_later_term_in_the_folder_makes_a_later_one_next_time(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """Of a leader that was cut off: it was started again and again, and nobody heard of its terms."""
    archived(tmp_path, pool, (1, 99))
    heard = list[int]()
    late = opened(tmp_path, 66, pool, "b", by_hand=by_hand(lambda lsn: False, heard)).archive
    assert heard == [193]
    assert "this is 66; the term that begins when this server is started again is later" in late.why
