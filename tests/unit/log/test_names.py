"""The index of a closed segment saves reading and nothing else: without it or with a wrong one answers are the same.

Parts of a topic have like numbers of its rows, by what indexes know; nothing of it decides what is read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import replace

import pytest

from penstock.errors import LogDamaged
from penstock.log import name_index as module
from penstock.log.catalog import Span, cuts, pieces_of, span
from penstock.log.log import Log
from penstock.log.name_index import build, index_name, load
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.simdisk import SimDisk
from penstock.records.entries import Topic
from sim.logkit import SMALL, FakeClock, commit, messages, note, opened

SETTINGS = replace(SMALL, segment=12_000, cache=0)
TOPICS = [Topic("/", "", name) for name in ("orders", "größe", "a.b", "")]


def filled(disk: SimDisk) -> Log:
    """Commits to one topic each, in turn; notes between."""
    log = opened(disk, SETTINGS)
    for at in range(40):
        first = log.appended + 1
        commit(log, messages(first, b"%d" % at, b"x", topic=TOPICS[at % 4]), note(first + 2))
    return log


def found(log: Log, wanted: module.Wanted, a: int = 0, b: int = 1 << 60) -> list[tuple[int, str]]:
    """LSN and name of all rows in the batches that are read."""
    out = list[tuple[int, str]]()
    for batch in log.batches(a, b, ["lsn", "kind", "name"], wanted):
        out += [
            (lsn, name)
            for lsn, kind, name in zip(*(batch.column(at).to_pylist() for at in range(3)), strict=True)
            if kind <= 2
        ]
    return out


def closed(log: Log) -> list[tuple[int, int]]:
    return [(one.first, one.generation) for one in log.segments()[:-1]]


def index_all(log: Log) -> None:
    for first in log.unindexed():
        assert build(log.disk, first)


@pytest.mark.parametrize("wanted", ["orders", "größe", "a.b", "", "none", re.compile("^[ao]").search])
def test_batches_without_a_wanted_name_are_passed_over(wanted: module.Wanted) -> None:
    log = filled(SimDisk())
    fits = (lambda name: name == wanted) if isinstance(wanted, str) else lambda name: bool(wanted(name))  # type: ignore[unreachable]
    whole = [row for row in found(log, wanted) if fits(row[1])]
    index_all(log)
    assert log.unindexed() == []
    last = log.segments()[-1].first
    now = found(log, wanted)
    assert [row for row in now if fits(row[1])] == whole
    assert all(fits(name) for lsn, name in now if lsn < last)
    if whole:
        middle = whole[len(whole) // 2][0]
        assert [row for row in found(log, wanted, middle, middle + 7) if fits(row[1])] == [
            row for row in whole if middle <= row[0] < middle + 7
        ]


def test_a_missing_or_damaged_index_is_not_used_and_made_again() -> None:
    disk = SimDisk()
    log = filled(disk)
    index_all(log)
    name = index_name(1, 0)
    whole = [row for row in found(log, "orders") if row[1] == "orders"]
    header, batches = log._catalog.segments[0].header, len(log._catalog.segments[0].lsns)
    sound = disk.files()[name]
    for bit in range(0, 8 * len(sound), 41):
        disk.flip(name, bit)
        assert load(disk, header, batches) is None
        disk.flip(name, bit)
    assert load(disk, header, batches) is not None
    for content in (b"", sound[:20], sound[:-4], bytes(len(sound)), disk.files()[index_name(closed(log)[1][0], 0)]):
        file = disk.open(name)
        file.truncate(0)
        file.pwrite(content, 0)
        again = Log.open(SimDisk(disk.files()), FakeClock(), SETTINGS)
        for _ in range(2):
            assert [row for row in found(again, "orders") if row[1] == "orders"] == whole
        assert again.unindexed() == [1]
        index_all(again)
        assert again.disk.open(name).pread(1 << 20, 0) == sound


def test_an_index_of_another_generation_is_not_used() -> None:
    log = filled(SimDisk())
    index_all(log)
    one, two = (Old(at.first, at.last, at.generation, at.rows) for at in log.segments()[:2])
    whole = [row for row in found(log, "a.b") if row[1] == "a.b"]
    swap = log.swap(rewrite(log.disk, Order((one, two))))
    swap.prepare()
    swap.enter()
    swap.finish()
    assert [row for row in found(log, "a.b") if row[1] == "a.b"] == whole
    assert log.unindexed() == [1]
    assert index_name(1, 0) not in log.disk.list("index")
    index_all(log)
    assert sorted(log.disk.list("index")) == sorted(index_name(*key).rpartition("/")[2] for key in closed(log))
    assert [row for row in found(log, "a.b") if row[1] == "a.b"] == whole


def test_a_segment_with_too_many_names_is_read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMES_MAX", 3)
    log = filled(SimDisk())
    before = found(log, "orders")
    index_all(log)
    assert found(log, "orders") == before
    assert len(log.disk.open(index_name(1, 0)).pread(1000, 0)) == 48


def test_a_damaged_segment_gets_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    log = filled(disk)
    disk.flip(log.segments()[0].name, 8 * 3000)
    with pytest.raises(LogDamaged):
        build(disk, 1)
    assert disk.list("index") == []
    monkeypatch.setattr(module, "GROUP", 1)
    assert build(disk, closed(log)[1][0], lambda done: True) == 0


def test_shares_are_even_wherever_the_rows_are() -> None:
    assert cuts([Span(0, 100, 100)], 4) == [25, 50, 75]
    assert cuts([Span(0, 1000, 10), Span(5000, 5100, 90)], 2) == [5044]
    assert cuts([Span(7, 9, 2)], 9) == [8], "fewer rows than parts"
    assert cuts([Span(7, 9, 2)], 1 << 62) == [8], "which are not counted one by one"
    assert cuts([], 3) == []
    assert cuts([Span(0, 10, 0)], 3) == []
    assert cuts([Span(0, 100, 50), Span(10, 90, 50)], 2) == [10], "files of an archive overlap"
    assert pieces_of(0, 10, 250_000) == [Span(0, 3, 83_333), Span(3, 6, 83_333), Span(6, 10, 83_334)]


def test_a_gap_behind_a_batch_is_no_rows() -> None:
    assert span(10, 10 + 2**32, 0, 1 << 60, 3200) == Span(10, 110, 100)
    assert span(10, 20, 15, 18, 3200) == Span(15, 18, 3)
    assert span(10, 20, 30, 40, 3200).rows == 0


def test_a_rare_topic_is_cut_where_its_messages_are() -> None:
    """Its messages lie in the first tenth of the log: parts by LSNs alone would leave all of them to one."""
    log, rare, common = opened(SimDisk(), SETTINGS), Topic("/", "", "rare"), Topic("/", "", "common")
    for at in range(200):
        topic = rare if at % 2 == 0 and at < 40 else common
        commit(log, messages(log.appended + 1, *(b"%d" % n for n in range(10)), topic=topic))
    index_all(log)
    assert len(log.segments()) > 3
    lsns = [lsn for lsn, name in found(log, "rare") if name == "rare"]
    places = cuts(list(log.spans(0, 1 << 60, "rare")), 4)
    shares = Counter(bisect_right(places, lsn) for lsn in lsns)
    assert len(lsns) == 200
    assert max(shares.values()) <= 60, shares
    last = log.segments()[-1].first
    assert all(one.end > last or one.first < lsns[-1] for one in log.spans(0, 1 << 60, "rare"))
    assert sum(one.rows for one in log.spans(0, 1 << 60)) == log.durable
    log.close()
