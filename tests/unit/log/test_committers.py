"""Commits that the loop writes and the kernel syncs: what is told durable, when, and what becomes of a failure.

The log's writer ends after what it was given, also when it was only just woken for it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import select
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from penstock.errors import PenstockError
from penstock.log.committers import CommitThread, KernelSync
from penstock.log.disk import OsDisk, OsFile
from penstock.log.log import Log
from penstock.log.verify import verify
from penstock.log.writer import SHORT, Appender, Commit, LogSettings
from penstock.ports import File
from sim.logkit import messages, note, opened
from unit.log.test_disk import RealClock

QUICK = LogSettings(origin=7, ahead=1 << 16, reserve=1 << 14, low_space=0)


class SlowSync:
    """A syncer whose syncs end when the test says so."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.begun: list[File] = []
        self.ended = 0
        self.error: OSError | None = None
        self.closed = False
        self._refuses = refuses
        self._told = os.eventfd(0, os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._told

    def begin(self, file: File) -> None:
        if self._refuses:
            raise OSError(errno.EAGAIN, "no more requests")
        self.begun.append(file)

    def finish(self, error: OSError | None = None) -> None:
        """The disk has done it."""
        self.error = error
        os.eventfd_write(self._told, 1)

    def end(self) -> None:
        self.ended += 1
        self.begun.pop().sync()
        self.hush()
        if self.error is not None:
            raise self.error

    def hush(self) -> None:
        try:
            os.eventfd_read(self._told)
        except BlockingIOError:
            return

    def close(self) -> None:
        self.closed = True
        os.close(self._told)


class House:
    """A log on a real disk, with what it told."""

    def __init__(self, folder: Path, syncer: SlowSync | KernelSync | None, settings: LogSettings = QUICK) -> None:
        loop = asyncio.get_running_loop()
        self.log = Log.open(OsDisk(folder), RealClock(), settings)
        self.heard: list[int] = []
        self.broken: list[PenstockError] = []
        self._news = asyncio.Event()
        self.log.on_durable = self._durable
        self.log.on_broken = self._break
        self.log.start_thread(loop.call_soon_threadsafe, loop.call_later, loop, syncer)

    def _durable(self, lsn: int) -> None:
        self.heard.append(lsn)
        self._news.set()

    def _break(self, error: PenstockError) -> None:
        self.broken.append(error)
        self._news.set()

    async def until(self, lsn: int) -> None:
        async with asyncio.timeout(20):
            while self.log.durable < lsn and not self.broken:
                self._news.clear()
                await self._news.wait()


def kernel() -> KernelSync:
    """This kernel's; the machines of this project have it."""
    syncer = KernelSync.of_this_system()
    assert syncer is not None
    return syncer


async def test_what_the_kernel_synced_is_durable_and_no_thread_had_it(tmp_path: Path) -> None:
    house = House(tmp_path, kernel())
    for lsn in range(1, 201):
        house.log.append([messages(lsn, b"x" * 300)])
        assert house.log.thread_since == 0
        if lsn % 7 == 0:
            await asyncio.sleep(0)
    await house.until(200)
    assert house.heard == sorted(set(house.heard))
    assert (house.heard[-1], house.log.synced, house.log.waiting_since) == (200, 200, 0)
    house.log.close()
    again = opened(OsDisk(tmp_path), QUICK)
    assert (again.recovery.clean, again.recovery.last_lsn) == (True, 200)
    again.close()


async def test_nothing_is_durable_before_its_sync_has_ended(tmp_path: Path) -> None:
    syncer = SlowSync()
    house = House(tmp_path, syncer)
    house.log.append([messages(1, b"first")])
    house.log.append([messages(2, b"gathers meanwhile")])
    for _ in range(20):
        await asyncio.sleep(0)
    assert (house.heard, len(syncer.begun)) == ([], 1)
    syncer.finish()
    await house.until(1)
    assert (house.heard, len(syncer.begun)) == ([1], 1)
    syncer.finish()
    await house.until(2)
    assert (house.heard, syncer.ended) == ([1, 2], 2)
    house.log.close()
    assert syncer.closed


async def test_a_sync_that_failed_breaks_the_log_and_confirms_nothing(tmp_path: Path) -> None:
    syncer = SlowSync()
    house = House(tmp_path, syncer)
    house.log.append([messages(1, b"x")])
    syncer.finish(OSError(errno.EIO, os.strerror(errno.EIO)))
    await house.until(1)
    assert "cannot be written" in str(house.broken[0])
    assert (house.heard, house.log.durable) == ([], 0)
    house.log.append([messages(2, b"x")])
    assert not syncer.begun
    house.log.close()


async def test_a_write_that_failed_breaks_the_log(tmp_path: Path) -> None:
    house = House(tmp_path, kernel())
    house.log._appender.segment.file.close()  # pyright: ignore[reportPrivateUsage]
    house.log.append([messages(1, b"x")])
    await house.until(1)
    assert "cannot be written" in str(house.broken[0])
    assert house.heard == []
    house.log.close()


async def test_a_kernel_that_takes_no_more_requests_keeps_nothing_from_being_synced(tmp_path: Path) -> None:
    house = House(tmp_path, SlowSync(refuses=True))
    house.log.append([messages(1, b"x")])
    await house.until(1)
    assert house.heard == [1]
    house.log.close()


async def test_who_closes_waits_for_what_the_kernel_has(tmp_path: Path) -> None:
    syncer = SlowSync()
    house = House(tmp_path, syncer)
    house.log.append([messages(1, b"x")])
    assert syncer.begun
    house.log.close()
    assert (house.heard, syncer.closed) == ([1], True)
    again = opened(OsDisk(tmp_path), QUICK)
    assert (again.recovery.clean, again.recovery.last_lsn) == (True, 1)
    again.close()


async def test_a_long_commit_is_the_threads_and_the_next_short_one_is_not(tmp_path: Path) -> None:
    house = House(tmp_path, kernel())
    house.log.append([messages(1, b"x" * SHORT, b"y" * SHORT)])
    assert house.log.thread_since > 0
    await house.until(2)
    house.log.append([note(3)])
    assert house.log.thread_since == 0
    await house.until(3)
    assert house.heard == [2, 3]
    house.log.close()


async def test_segments_are_begun_by_the_thread_and_every_row_is_there(tmp_path: Path) -> None:
    small = replace(QUICK, segment=4 * SHORT)
    house = House(tmp_path, kernel(), small)
    threads = 0
    for lsn in range(1, 151):
        house.log.append([messages(lsn, b"%d" % lsn * 3_000)])
        threads += house.log.thread_since > 0
        await house.until(lsn)
    assert 0 < threads < 150
    assert len(house.log.segments()) > 1
    house.log.close()
    assert verify(OsDisk(tmp_path)).good
    again = opened(OsDisk(tmp_path), small)
    assert again.recovery.last_lsn == 150
    again.close()


def test_the_kernel_tells_when_a_file_is_synced(tmp_path: Path) -> None:
    syncer = kernel()
    file = OsDisk(tmp_path).open("a", create=True)
    for _ in range(3):
        file.pwrite(b"x" * 5_000, 0)
        syncer.begin(file)
        assert select.select([syncer], [], [], 20)[0]
        syncer.end()
        assert not select.select([syncer], [], [], 0)[0]
    syncer.close()


def test_what_cannot_be_synced_is_told_as_file_sync_tells_it(tmp_path: Path) -> None:
    syncer = kernel()
    ours, theirs = os.pipe()
    pipe, closed = OsFile(ours), OsDisk(tmp_path).open("a", create=True)
    closed.close()
    for file, number in ((pipe, errno.EINVAL), (closed, errno.EBADF)):
        with pytest.raises(OSError, match=".") as failed:  # noqa: PT012  the kernel may say so at once or at the end
            syncer.begin(file)
            syncer.end()
        assert failed.value.errno == number
    os.close(theirs)
    syncer.close()


def test_where_the_kernel_has_none_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "sparc")
    assert KernelSync.of_this_system() is None
    monkeypatch.undo()

    def refuse(_: KernelSync) -> None:
        raise PermissionError(errno.EPERM, "a sandbox")

    monkeypatch.setattr(KernelSync, "__init__", refuse)
    assert KernelSync.of_this_system() is None


class Kept:
    """Instead of an appender: keeps what it was given."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []

    def run(self, commit: Commit) -> None:
        self.commits.append(commit)


def test_a_commit_that_was_given_and_not_begun_is_done_before_the_end() -> None:
    kept, gate = Kept(), Event()
    first, second = Commit([], 0, False), Commit([], 0, True)

    def tell(commit: Commit) -> None:
        if commit is first:
            gate.wait(20)

    thread = CommitThread(cast(Appender, kept), tell)
    thread.post(first)
    assert first.done is not None
    assert first.done.acquire(timeout=20)
    thread.post(second)  # the thread is still telling of the first
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(thread.stop)
        gate.set()
        stopped.result(20)
    assert [commit is one for commit, one in zip(kept.commits, (first, second), strict=True)] == [True, True]


def test_an_idle_thread_ends_at_once() -> None:
    CommitThread(cast(Appender, Kept()), lambda commit: None).stop()
