"""The real disk, and the thread that commits on it.

Descriptors kept for the log: what becomes of a process's limits.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import DataFolderInUse
from penstock.log.disk import KEPT, MOST, OsDisk, exhausted, to_be
from penstock.log.log import Log
from penstock.log.verify import segments, verify
from penstock.log.writer import LogSettings
from sim.logkit import commit, content, messages, note, opened

QUICK = LogSettings(origin=7, ahead=1 << 16, reserve=1 << 14, low_space=0)


class RealClock:
    def wall(self) -> int:
        return time.time_ns() // 1000

    def mono(self) -> int:
        return time.monotonic_ns() // 1000


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("pread", (1, 0)),
        ("pwrite", (b"a", 0)),
        ("pwritev", ([b"a"], 0)),
        ("sync", ()),
        ("truncate", (1,)),
        ("allocate", (1,)),
    ],
)
def test_what_the_system_says_against_an_open_file_names_it(
    tmp_path: Path, method: str, arguments: tuple[object, ...]
) -> None:
    """As where one is opened: else nobody knows which of a thousand it was, or takes it for the output."""
    disk = OsDisk(tmp_path)
    os.mkfifo(tmp_path / "a")  # which has no places, and no disk below it
    with pytest.raises(OSError, match=str(tmp_path / "a")):
        getattr(disk.open("a"), method)(*arguments)


def test_files_and_names(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path / "deep" / "folder")
    disk.mkdir("log")
    disk.mkdir("log")
    file = disk.open("log/a", create=True)
    with pytest.raises(FileExistsError):
        disk.open("log/a", create=True)
    file.pwrite(b"hello", 3)
    file.sync()
    assert (file.pread(99, 0), file.size()) == (b"\0\0\0hello", 8)
    file.pwritev([b"h", bytearray(b"all"), memoryview(b"o!")], 3)
    assert file.pread(99, 0) == b"\0\0\0hallo!"
    file.truncate(4)
    assert file.pread(10, 3) == b"h"
    file.close()
    file.close()
    disk.rename("log/a", "log/b")
    disk.sync_folder("log")
    assert (disk.list("log"), disk.list("none")) == (["b"], [])
    disk.remove("log/b")
    assert disk.list("log") == []
    assert disk.free() > 0


def test_more_pieces_than_one_call_takes_and_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsDisk(tmp_path).open("a", create=True)
    pieces = [b"%d," % number for number in range(3000)]
    file.pwritev(pieces, 5)
    assert file.pread(1 << 20, 5) == b"".join(pieces)
    whole = os.pwritev

    def short(fd: int, some: list[bytes], offset: int) -> int:
        return whole(fd, [b"".join(some)[:7]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    file.pwritev(pieces, 1)
    assert file.pread(1 << 20, 1)[: sum(map(len, pieces))] == b"".join(pieces)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    log = opened(OsDisk(tmp_path), QUICK)
    code = (
        "from penstock.errors import DataFolderInUse\nfrom penstock.log.disk import OsDisk\n"
        f"try: OsDisk({str(tmp_path)!r}).lock()\nexcept DataFolderInUse as error: print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": str(Path(__file__).parents[3] / "src")},
    ).stdout  # fmt: skip
    assert str(tmp_path) in said
    assert "in use" in said
    with pytest.raises(DataFolderInUse):
        OsDisk(tmp_path).lock()
    log.close()
    opened(OsDisk(tmp_path), QUICK).close()


def test_the_room_of_a_held_folder_is_known_wherever_its_name_leads(tmp_path: Path) -> None:
    """The server looks each second: a mount or a name that was away for a moment ended it."""
    disk = OsDisk(tmp_path / "data")
    (tmp_path / "data").mkdir(exist_ok=True)
    disk.lock()
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert disk.free() > 0
    disk.unlock()
    with pytest.raises(FileNotFoundError):
        disk.free()


def test_a_log_on_the_real_disk(tmp_path: Path) -> None:
    log = opened(OsDisk(tmp_path), replace(QUICK, segment=20_000))
    for at in range(30):
        commit(log, messages(log.appended + 1, b"x" * 1_000, b"%d" % at))
    expected = content(log)
    log.close(clean=False)
    log = opened(OsDisk(tmp_path), QUICK)
    assert content(log) == expected
    assert verify(OsDisk(tmp_path)).good
    assert len(segments(OsDisk(tmp_path))) == len(log.segments()) > 1
    log.close()


async def test_the_thread_confirms_on_the_loop(tmp_path: Path) -> None:
    log = Log.open(OsDisk(tmp_path), RealClock(), replace(QUICK, segment=30_000))
    loop = asyncio.get_running_loop()
    heard, done = list[int](), asyncio.Event()

    def on_durable(lsn: int) -> None:
        assert asyncio.get_running_loop() is loop
        heard.append(lsn)
        if lsn >= 400:
            done.set()

    log.on_durable = on_durable
    log.start_thread(loop.call_soon_threadsafe, loop.call_later)
    for lsn in range(1, 401, 2):
        log.append([messages(lsn, b"x" * 300, b"y")])
        if lsn % 20 == 1:
            await asyncio.sleep(0)
    assert log.waiting_since > 0
    await asyncio.wait_for(done.wait(), 20)
    assert heard == sorted(set(heard))
    assert (log.durable, log.pending.bytes, log.waiting_since) == (400, 0, 0)
    assert log.commits < 200
    assert len(log.segments()) > 1
    log.append([note(401)], urgent=False)  # its time comes by the loop's own timer
    done.clear()
    await asyncio.wait_for(done.wait(), 20)
    assert log.durable == 401
    log.append([note(402)], urgent=False)
    log.close()
    again = opened(OsDisk(tmp_path), QUICK)
    assert (again.recovery.clean, again.recovery.last_lsn) == (True, 402)
    again.close()


async def test_a_failure_in_the_thread_is_told_on_the_loop(tmp_path: Path) -> None:
    log = Log.open(OsDisk(tmp_path), RealClock(), QUICK)
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[BaseException] = loop.create_future()
    log.on_broken = broken.set_result
    log.start_thread(loop.call_soon_threadsafe, loop.call_later)
    log._appender.segment.file.close()  # pyright: ignore[reportPrivateUsage]
    log.append([messages(1, b"x")])
    assert "cannot be written" in str(await asyncio.wait_for(broken, 20))
    assert log.durable == 0
    log.close()


@pytest.mark.parametrize(
    ("soft", "hard", "made"),
    [
        (1024, 20_000, (20_000 - KEPT, KEPT)),
        (1024, 1024, (1024 - KEPT, KEPT)),
        (256, 256, (192, 64)),
        (64, 64, (48, 16)),
        (1024, 1 << 30, (MOST - KEPT, KEPT)),
        (1024, resource.RLIM_INFINITY, (MOST - KEPT, KEPT)),
        (1 << 21, 1 << 21, ((1 << 21) - KEPT, KEPT)),
    ],
)
def test_the_soft_limit_is_raised_but_for_what_is_kept(soft: int, hard: int, made: tuple[int, int]) -> None:
    assert to_be(soft, hard) == made


def test_only_a_want_of_descriptors_is_one() -> None:
    assert exhausted(OSError(errno.EMFILE, ""))
    assert exhausted(OSError(errno.ENFILE, ""))
    assert not exhausted(OSError(errno.ENOSPC, ""))
