"""Followers are asked for what they and the leader have every row of; who reads counts rows over both."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.errors import Unavailable
from penstock.spark import remote
from penstock.spark.options import ReadOptions
from penstock.spark.reading import fetching
from penstock.spark.remote import Where, batches_behind

ROWS = 10


def batch(start: int, end: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"lsn": list(range(start, end))})


class Leader:
    """Left out the first two of its rows up to an LSN."""

    addresses = ("follower",)
    vhost = "/"

    def __init__(self, whole_from: int) -> None:
        self.whole_from, self.skipped = whole_from, list[int]()

    def act(self, name: str, **fields: object) -> dict[str, Any]:
        assert (name, fields) == ("position", {})
        return {"whole_from": self.whole_from}

    def rows(
        self, operation: str, skip: int = 0, again: object = None, /, **fields: object
    ) -> Iterator[pa.RecordBatch]:
        self.skipped.append(skip)
        yield batch(0 if self.whole_from == 0 else 2, ROWS).slice(skip)


class Follower:
    """Gives so many rows, and goes."""

    def __init__(self, gives: int, then: Callable[[], object] = lambda: None) -> None:
        self.gives, self.then, self.asked = gives, then, 0

    def serves(self, start: int, end: int, until: float) -> bool:
        self.asked += 1
        return True

    def rows(self, ticket: bytes, skip: int) -> Iterator[pa.RecordBatch]:
        yield batch(skip, self.gives)
        if self.gives < ROWS:
            self.then()
            raise Unavailable("it went")

    def away(self) -> None:
        """It did not serve."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Leader, Follower], list[int]]:
    """The LSNs that a task reads."""

    def read(leader: Leader, follower: Follower) -> list[int]:
        def the_leader(where: object) -> Leader:
            return leader

        def the_follower(address: object) -> Follower:
            return follower

        monkeypatch.setattr(remote, "Follower", the_follower)
        monkeypatch.setattr(remote, "remote", the_leader)
        one = remote.Followers(Where("penstock://host"))

        def the_followers(where: object) -> remote.Followers:
            return one

        monkeypatch.setattr(fetching, "followers", the_followers)
        options = cast("ReadOptions", SimpleNamespace(read_from="followers", stream=None, where=None))
        found = fetching.spread(options, cast("Any", leader), (0, ROWS), "log", 0)
        return [row["lsn"] for some in found for row in some.to_pylist()]

    return read


def test_rows_come_from_a_follower_and_the_rest_from_the_leader(
    read: Callable[[Leader, Follower], list[int]],
) -> None:
    for gives in (ROWS, 4):
        leader, follower = Leader(0), Follower(gives)
        assert read(leader, follower) == list(range(ROWS))
        assert (follower.asked, leader.skipped) == (1, [] if gives == ROWS else [4])


def test_what_the_leader_has_compacted_it_gives_itself(read: Callable[[Leader, Follower], list[int]]) -> None:
    leader, follower = Leader(5), Follower(4)
    assert read(leader, follower) == list(range(2, ROWS))
    assert (follower.asked, leader.skipped) == (0, [0])


def test_no_rows_are_counted_over_a_follower_and_a_leader_that_has_others(
    read: Callable[[Leader, Follower], list[int]],
) -> None:
    """Another leader than the one that was asked before, say: Spark runs the task again, and that one gives all."""
    leader = Leader(0)
    with pytest.raises(Unavailable, match="compacted them since"):
        read(leader, Follower(4, lambda: setattr(leader, "whole_from", 5)))
    assert leader.skipped == []
    assert read(leader, Follower(0)) == list(range(2, ROWS))


def slow(*took: float) -> Callable[[float, Callable[[], Any]], Any]:
    """Time goes by as each answer says."""
    each = iter(took)

    def within(seconds: float, work: Callable[[], Any]) -> Any:
        if next(each) >= seconds:
            raise Unavailable("nothing came")
        return work()

    return within


class Batches:
    """A stream that has begun."""

    def __init__(self, count: int) -> None:
        self.left, self.cancelled = count, False

    def read_chunk(self) -> SimpleNamespace:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return SimpleNamespace(data=batch(0, ROWS))

    def cancel(self) -> None:
        self.cancelled = True


def read_slowly(stream: Batches, *took: float) -> int:
    """How many rows came before it was left or ended."""
    count = 0
    with contextlib.suppress(Unavailable):
        for one in batches_behind(remote.Prompt(lambda: stream, slow(*took)), 0):
            count += one.num_rows
    return count


def test_a_follower_is_left_when_nothing_comes_however_long_all_of_it_takes() -> None:
    long = read_slowly(stream := Batches(9), *[29.0] * 11)
    assert (long, stream.left) == (9 * ROWS, 0), "five minutes in all, and something came all the time"
    for at, rows in ((0, 0), (1, 0), (4, 3 * ROWS)):
        assert read_slowly(stream := Batches(9), *[1.0] * at, 30.0) == rows
        assert stream.cancelled == (at > 0), "what has not begun cannot be left"


def test_who_waits_for_a_follower_hears_what_came_or_that_nothing_did() -> None:
    never = threading.Event()
    assert remote.within(60, lambda: 7) == 7
    with pytest.raises(StopIteration):
        remote.within(60, Batches(0).read_chunk)
    with pytest.raises(Unavailable, match="nothing for 0 s"):
        remote.within(0, never.wait)
    never.set()
