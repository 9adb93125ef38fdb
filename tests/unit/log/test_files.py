"""Closed segments' files: a few are open, all can be read, and a name that changes its meaning misleads nobody."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.segment import Shelf
from penstock.log.simdisk import SimDisk
from sim.logkit import SMALL, FakeClock, commit, content, messages, opened

SETTINGS = replace(SMALL, segment=3000, cache=0)


def disk_with(count: int) -> SimDisk:
    return SimDisk({f"log/{n}": b"file %d" % n for n in range(count)})


def test_only_so_many_stay_open_the_last_read_ones() -> None:
    shelf = Shelf(disk_with(5), limit=2)
    files = [shelf.put(f"log/{n}") for n in range(5)]
    for file in files:
        file.pread(4, 0)
    assert len(shelf._open) == 2
    assert [file.file is not None for file in files] == [False] * 3 + [True] * 2
    files[3].pread(4, 0)
    assert files[0].pread(6, 0) == b"file 0"
    assert [file.file is not None for file in files] == [True, False, False, True, False]
    assert [file.pread(6, 0) for file in files] == [b"file %d" % n for n in range(5)]


def test_a_pinned_file_is_read_after_its_name_is_gone() -> None:
    disk = disk_with(3)
    shelf = Shelf(disk, limit=1)
    one, two = shelf.put("log/1"), shelf.put("log/2")
    one.pin()
    disk.remove("log/1")
    assert two.pread(6, 0) == b"file 2"
    assert one.pread(6, 0) == b"file 1"
    disk.rename("log/0", "log/1")
    assert one.pread(6, 0) == b"file 1"
    one.close()
    assert one.pread(6, 0) == b"file 0"


def test_a_closed_segment_is_not_written() -> None:
    file = Shelf(disk_with(1)).put("log/0")
    for change in (lambda: file.pwrite(b"x", 0), file.sync, lambda: file.truncate(0), lambda: file.pwritev([b"x"], 0)):
        with pytest.raises(OSError, match="a closed segment is not written"):
            change()
    assert file.size() == 6
    file.give_back()


def test_a_long_log_keeps_few_descriptors(tmp_path: Path) -> None:
    log = opened(OsDisk(tmp_path), SETTINGS)
    for at in range(150):
        commit(log, messages(log.appended + 1, b"%d" % at))
    assert len(log.segments()) > 70
    before = content(log)

    def open_files() -> int:
        places = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
        return sum(".arrows" in place.name and place.is_relative_to(tmp_path.resolve()) for place in places)

    assert open_files() <= 65
    log.close()
    assert open_files() == 0
    log = Log.open(OsDisk(tmp_path), FakeClock(), SETTINGS)
    assert open_files() <= 65
    assert content(log) == before
    assert log.give_back(log.segments()[-2].first) == len(log.segments()) - 2
    assert log.give_back(log.segments()[-1].first) == 1
    assert open_files() <= 65
    log.close()


def test_readers_and_rewritings_at_the_same_time(tmp_path: Path) -> None:
    """Threads read everything again and again while files are exchanged under them, with few descriptors."""
    log = opened(OsDisk(tmp_path), SETTINGS)
    for at in range(60):
        commit(log, messages(log.appended + 1, b"%d" % at, b"x" * at))
    assert log._catalog.shelf is not None
    log._catalog.shelf._limit = 3
    before, lsns = content(log), list(range(1, 121))
    wrong, stop = list[object](), threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                if content(log) != before or log.read(lsns).lsns != lsns:
                    wrong.append("other rows")
        except Exception as error:  # noqa: BLE001  told by the test
            wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len(closed := log.segments()[:-1]) > 1 and not wrong:
        some = closed[len(closed) // 2 - 1 :][:3]
        olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in some)
        if len(olds) == 1:
            break
        swap = log.swap(rewrite(log.disk, Order(olds)))
        swap.prepare()
        swap.enter()
        swap.finish()
    stop.set()
    for thread in threads:
        thread.join(20)
    assert not wrong
    log.close()
