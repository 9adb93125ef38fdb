"""A log that somebody follows: what was written is read from memory, and is the same as what lies in the files.

A writer, a follower who is at times behind, a reader of anything, rewriting, and disks of others that are slow: in any
order.  And mistakes of which each has to be found.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from choices import SEED, examples
from penstock.log import reader
from penstock.log.catalog import Segment
from penstock.log.log import Log
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.simdisk import SimDisk, SimFile
from penstock.log.writer import SHORT
from sim.logkit import SMALL, commit, content, messages, note, opened

STEPS = 120
WALKS = 40
ENOUGH = 10
"""Walks in which a planted mistake is found."""

MOST = 20_000
"""Bytes that are kept of what was written, here."""

SETTINGS = replace(SMALL, segment=16_000, cache=4_000)


class Walk:
    """One life of a log."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.disk = SimDisk()
        self.log = opened(self.disk, SETTINGS)
        self.written = list[tuple[int, bytes]]()
        self.cursor = 0  # the follower has all up to here
        self.counts = Counter[str]()
        if self.dice.random() < 0.5:
            self.log.wait_for_copies(lambda *place: None, lambda lsn: None)
        self.log.follow(True)

    def run(self) -> Counter[str]:
        acts: list[Callable[[], None]] = [self.write] * 6 + [self.agree] * 3 + [self.follow] * 3
        acts += [self.look, self.roll, self.rewrite] * 2 + [self.stop, self.spare]
        for _ in range(STEPS):
            self.dice.choice(acts)()
            assert self.log.decoded.bytes <= SETTINGS.cache + MOST + 4 * reader.BATCH_COST
        self.log.committed(self.log.written)
        self.follow()
        assert content(self.log) == self.written
        return self.counts

    def write(self) -> None:
        first, log = self.log.appended + 1, self.log
        bodies = [b"%d " % n * self.dice.choice((1, 30)) for n in range(self.dice.randint(1, 9))]
        commit(log, messages(first, *bodies), note(first + len(bodies), b"n%d" % first))
        self.written += [*((first + n, body) for n, body in enumerate(bodies)), (first + len(bodies), b"n%d" % first)]

    def agree(self) -> None:
        """Other disks have some of it."""
        self.log.committed(self.dice.randint(self.log.durable, self.log.written))

    def between(self, low: int, high: int) -> list[tuple[int, bytes]]:
        """What is durable of [low, high), as the log gives it; asked for as if all were."""
        out = list[tuple[int, bytes]]()
        for batch in self.log.batches(low, high):
            out += zip(batch.column("lsn").to_pylist(), batch.column("body").to_pylist(), strict=True)
        return out

    def follow(self) -> None:
        before = self.cursor
        found = self.between(before + 1, self.log.appended + 1)
        self.cursor = self.log.durable
        self.counts["followed"] += bool(found)
        assert found == [row for row in self.written if before < row[0] <= self.log.durable]

    def look(self) -> None:
        """Somebody reads a part of it, old or new."""
        low = self.dice.randint(1, self.log.appended + 1)
        high = low + self.dice.randint(1, 60)
        upto = min(high, self.log.durable + 1)
        assert self.between(low, high) == [row for row in self.written if low <= row[0] < upto]

    def roll(self) -> None:
        self.log.roll()
        self.log.flush()

    def rewrite(self) -> None:
        """Some closed segments become one; at times nobody has read them yet."""
        young = self.dice.random() < 0.5
        if young:
            self.write()
            self.write()
            self.agree()
            self.roll()
        closed = [one for one in self.log.segments() if one.closed and one.last <= self.log.durable]
        if not closed:
            return
        at = len(closed) - 1 if young else self.dice.randrange(len(closed))
        some = closed[at:][: self.dice.randint(1, 3)]
        order = Order(tuple(Old(one.first, one.last, one.generation, one.rows) for one in some))
        swap = self.log.swap(rewrite(self.disk, order))
        swap.prepare()
        swap.enter()
        swap.finish()
        self.counts["rewritten"] += 1

    def stop(self) -> None:
        """Nobody follows for a moment."""
        self.log.follow(False)
        assert not self.log.decoded._written
        if self.dice.random() < 0.5:
            self.write()
        self.log.follow(True)

    def spare(self) -> None:
        """Memory is short."""
        before, need = self.log.decoded.bytes, self.dice.choice((1, 1_000, 1 << 20))
        assert self.log.decoded.give(need) == before - self.log.decoded.bytes


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WRITTEN_MOST", MOST)


def test_what_is_followed_is_what_lies_in_the_files() -> None:
    counts = Counter[str]()
    for seed in range(SEED, SEED + examples(WALKS, 2)):
        counts += Walk(seed).run()
    assert counts["followed"]
    assert counts["rewritten"]


class Hasty(Walk):
    """What was written is given before it is durable."""

    def spoil(self) -> None:
        self.log.batches = self.log.decoded.batches  # type: ignore[method-assign, assignment]


class Shifted(Walk):
    """Of a batch that one is kept which was written before it."""

    def spoil(self) -> None:
        keep, before = self.log.decoded.keep, list[bytearray]()

        def late(segment: Segment, number: int, data: bytearray) -> None:
            before.append(data)
            keep(segment, number, before[-2] if len(before) > 1 else data)

        self.log._keep = late


class _ByName(OrderedDict[Any, Any]):
    """Batches by the name of their file."""

    @staticmethod
    def _named(key: tuple[Segment, int]) -> tuple[str, int]:
        return key[0].name, key[1]

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._named(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(self._named(key), value)

    def __contains__(self, key: Any) -> bool:
        return super().__contains__(self._named(key))

    def pop(self, key: Any, default: Any = None) -> Any:  # type: ignore[override]
        return super().pop(self._named(key), default)

    def popitem(self, last: bool = True) -> Any:
        key = next(iter(self))
        return key, super().pop(key)


class Stale(Walk):
    """What was written stays when its file was rewritten: the new one has the name of the first of the old ones."""

    def spoil(self) -> None:
        self.log.decoded._written = _ByName()


class Greedy(Walk):
    """All that was written is kept until somebody reads it."""

    def spoil(self) -> None:
        self.log.decoded._let_go = lambda most: None  # type: ignore[method-assign]


@pytest.mark.parametrize("mistake", [Hasty, Shifted, Stale, Greedy])
def test_a_planted_mistake_is_found(mistake: Any) -> None:
    for seed in range(ENOUGH):
        walk = mistake(seed)
        walk.spoil()
        try:
            walk.run()
        except AssertionError:
            return
    raise AssertionError(f"nobody finds it in {ENOUGH} walks: {mistake.__doc__}")


def preads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is read of files from now on."""
    found, pread = list[int](), SimFile.pread

    def counted(file: SimFile, size: int, offset: int) -> bytes:
        found.append(size)
        return pread(file, size, offset)

    monkeypatch.setattr(SimFile, "pread", counted)
    return found


def followed(log: Log, rounds: int, body: bytes) -> None:
    """Commits that are read as soon as they are durable."""
    for _ in range(rounds):
        first = log.appended + 1
        commit(log, messages(first, body, b"next"))
        [batch] = log.batches(first, log.durable + 1)
        assert batch.column("body").to_pylist() == [body, b"next"]


def test_who_keeps_up_reads_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything kept of what is no short commit, or where nobody follows."""
    monkeypatch.setattr(reader, "WRITTEN_MOST", 1 << 20)
    log = opened(SimDisk())
    read = preads(monkeypatch)
    followed(log, 10, b"body")
    assert len(read) == 10
    log.follow(True)
    followed(log, 10, b"body")
    followed(log, 2, b"b" * (100 << 10))  # so long that it is written in pieces
    assert len(read) == 10
    followed(log, 1, b"b" * SHORT)
    assert len(read) == 11
    log.follow(False)
    followed(log, 1, b"body")
    assert len(read) == 12


def test_who_is_behind_reads_the_file_and_the_newest_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(SimDisk())
    log.follow(True)
    for _ in range(60):
        commit(log, messages(log.appended + 1, b"b" * 500))
    kept = len(log.decoded._written)
    assert 0 < kept < 60
    assert log.decoded.bytes <= MOST
    assert log.at_hand([log.durable])
    read = preads(monkeypatch)
    assert len(content(log)) == 60
    assert len(read) == 60 - kept


def test_nothing_of_a_commit_that_found_the_disk_full_is_kept() -> None:
    disk = SimDisk()
    log = opened(disk)
    commit(log, messages(1, b"a"))
    log.follow(True)
    disk.capacity = disk.used() + 100
    log.append([messages(2, b"b" * 5_000)])
    log.flush()
    assert log.broken
    assert not log.decoded._written
    assert content(log) == [(1, b"a")]
