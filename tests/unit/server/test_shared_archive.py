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
from penstock.server.cluster.shared_archive import SharedArchive
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


def opened(tmp_path: Path, term: int, pool: ThreadPoolExecutor, member: str = "a", folder: str = "archive") -> Any:
    """The archive of a member that leads, and its cluster."""
    cluster: Any = Cluster()
    stubs: Any = Still()
    (tmp_path / member).mkdir(exist_ok=True)
    settings = ArchiveSection.model_validate({"folder": str(tmp_path / folder), "shared": True})
    shared = SharedArchive(cluster.keep, tmp_path / member, term)
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
    assert "its manifest is number 0, and number 1 was committed" in opened(tmp_path, 3, pool, "b").archive.why
    manifest.write_bytes(kept)
    assert opened(tmp_path, 4, pool, "b").archive.why is None
