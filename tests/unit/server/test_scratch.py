"""The files that paged state lies in: made anew, removed, never in the way, and never those of others."""

from __future__ import annotations

import errno
import logging
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.server import scratch_pages as files
from penstock.server.base.faults import Faults
from penstock.server.scratch_pages import HEAD, MARK, STEP, TIDY_BEATS, Pager, Scratch, ScratchFile
from penstock.testing.instance import FakeClock, NoFile

SOME = array("q", range(100_000))


def scratch_of(data: Path, spared: int = 0) -> Scratch:
    return Scratch(data, lambda path: ScratchFile(path, spared))


def resident(path: Path) -> int:
    """Bytes of this process's memory that are pages of the file."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_the_file_is_there_with_the_first_array_and_gone_at_the_end(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path)
    arena = scratch("")
    assert not (tmp_path / "paged").exists()
    view = arena.keep(SOME)
    path = tmp_path / "paged" / "state"
    assert path.stat().st_size == HEAD + (4 << 20)
    assert path.stat().st_blocks * 512 >= 4 << 20, "its room is taken from the disk before it is used"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes()[: len(MARK)] == MARK
    assert path.read_bytes()[HEAD : HEAD + 800_000] == SOME.tobytes()
    assert (scratch.used, scratch.size) == (802_816, 4 << 20)
    scratch.close()
    assert list((tmp_path / "paged").iterdir()) == []
    assert view == SOME


def test_pages_leave_memory_and_come_back_as_they_were(tmp_path: Path) -> None:
    """What is paged out lies with the system as long as it has room: the process does not hold it."""
    scratch = scratch_of(tmp_path)
    views = [scratch("").keep(array("q", range(n, n + 100_000))) for n in range(30)]
    path = tmp_path / "paged" / "state"
    assert all(view is not None and view[-1] == n + 99_999 for n, view in enumerate(views))
    assert [sum(view) for view in views if view is not None] == [sum(range(n, n + 100_000)) for n in range(30)]
    assert resident(path) > 20 << 20
    scratch.tidy()
    assert resident(path) == 0
    assert views[7] == array("q", range(7, 100_007))
    assert 0 < resident(path) < 4 << 20, "only what was looked at is there again"
    scratch.close()


@pytest.mark.parametrize(
    "garbage", [b"", b"\0" * 10_000, MARK[:20], os.urandom(70_000), MARK + b"x" * 5_000_000], ids=range(5)
)
def test_whatever_a_crash_has_left_in_the_data_folder_is_removed(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "paged" / "state"
    path.parent.mkdir()
    path.write_bytes(garbage)
    (path.parent / "mine.txt").write_text("not ours")
    scratch = scratch_of(tmp_path)
    scratch.clear()
    assert [one.name for one in path.parent.iterdir()] == ["mine.txt"]
    assert scratch("").keep(SOME) == SOME
    scratch.close()


def test_what_cannot_be_removed_stays_and_state_stays_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "paged" / "state"
    path.mkdir(parents=True)
    (path / "inside").write_text("x")
    scratch = scratch_of(tmp_path)
    scratch.clear()
    assert "stays where it is" in caplog.text
    assert scratch("").keep(SOME) is None
    scratch.close()
    assert (path / "inside").read_text() == "x"


def test_a_named_file_that_is_not_ours_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "report.pdf"
    path.write_bytes(b"%PDF")
    scratch = scratch_of(tmp_path / "data")
    arena = scratch(str(path))
    assert arena.keep(SOME) is None
    assert arena.reason == f"{path} is there, and no scratch file of this server"
    scratch.look()
    scratch.look()
    assert caplog.text.count("state stays in memory") == 1
    scratch.close()
    assert path.read_bytes() == b"%PDF"
    link = tmp_path / "link"
    link.symlink_to(path)
    assert scratch(str(link)).keep(SOME) is None
    assert path.read_bytes() == b"%PDF"


def test_a_named_file_of_a_process_that_is_gone_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "own"
    path.write_bytes(MARK + b"left by a crash")
    first, second = scratch_of(tmp_path), scratch_of(tmp_path)
    held = first(str(path)).keep(SOME)
    assert second(str(path)).keep(SOME) is None
    assert second(str(path)).reason == f"{path} is in use by another server"
    assert held == SOME
    first.close()
    second(str(path)).retry()
    assert second(str(path)).keep(SOME) == SOME
    second.close()
    assert not path.exists()


def test_the_last_of_the_disk_is_left_to_others(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path, spared=1 << 60)
    assert scratch("").keep(SOME) is None
    assert "MiB of the disk are free" in str(scratch("").reason)
    assert scratch.refused == 1
    scratch.close()


def test_room_that_the_disk_has_not_is_an_error_before_anything_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scratch = scratch_of(tmp_path)
    assert scratch("").keep(SOME) is not None

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "posix_fallocate", full)
        assert scratch("").keep(array("q", bytes(5 << 20))) is None
        with caplog.at_level(logging.WARNING):
            scratch.look()
    assert "cannot grow: No space left on device" in caplog.text
    assert scratch("").keep(array("q", bytes(5 << 20))) is not None, "tried again at the next look"
    scratch.close()


class FakeCore:
    """Counts what it is asked for."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.asked: list[int] = []

    def page(self, arenas: Callable[[str], Any], most: int) -> bool:
        self.asked.append(most)
        self.steps -= 1
        if self.steps >= 0:
            arenas("").keep(SOME)
        return self.steps > 0


class FakeEngine:
    def __init__(self, steps: int) -> None:
        self.core = FakeCore(steps)
        self.clock = FakeClock(0)
        self.faults = Faults(cast("Any", self.core), self.clock)


def test_the_pace_steps_with_pauses_and_pages_given_back_now_and_then() -> None:
    later: list[Callable[[], None]] = []
    backing = NoFile()
    scratch = Scratch(Path("unused"), lambda _: backing)
    engine = FakeEngine(3)

    def off(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        done(work())

    pager = Pager(cast("Any", engine), scratch, off, lambda seconds, work: later.append(work))
    pager.beat()
    assert engine.core.asked == [STEP]
    pager.beat()
    assert engine.core.asked == [STEP], "a look that is not over is not begun again"
    while later:
        later.pop()()
    assert engine.core.asked == [STEP] * 3
    held = scratch("").keep(SOME)
    for _ in range(TIDY_BEATS):
        pager.beat()
    assert held is not None
    assert backing.given_back == 1
    pager.end()
    assert backing.closed
    assert later == []
