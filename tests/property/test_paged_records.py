"""The models of records with the index in an arena: every leaf, however small, that nobody has just changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choices import examples
from penstock.core.arena import Move
from penstock.core.sow import index as index_module
from penstock.core.sow.index import Index
from penstock.server import scratch_pages
from penstock.server.scratch_pages import Arena
from penstock.testing import Broker
from penstock.testing.instance import NoFile
from property import test_sow_model
from property.test_sow_model import CONFIG, PUTS, STEPS, Model, agree, check, check_fold, take


class PagedIndex(Index):
    """Its leaves leave the heap around each change."""

    __slots__ = ("arena",)
    kept = 0

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(NoFile(), least=1, extent=1 << 16)

    def leave(self) -> None:
        for _ in range(2):
            self.page(Move(self.arena, 0, 1 << 30))
        PagedIndex.kept += self.arena.used

    def put(self, *what: Any) -> None:
        self.leave()
        super().put(*what)

    def put_many(self, *what: Any) -> None:
        self.leave()
        super().put_many(*what)
        self.leave()

    def expire(self, numbers: Sequence[int], now: int) -> None:
        self.leave()
        super().expire(numbers, now)


@settings(max_examples=examples(100))
@given(PUTS, st.integers(0, 2**32))
def test_a_paged_index_is_a_dict(steps: list[tuple[str, int, int]], seed: int) -> None:
    with patch.object(index_module, "LEAF", 16), patch.object(test_sow_model, "Index", PagedIndex):
        agree(steps, seed)


def paged_config() -> dict[str, object]:
    topics = CONFIG["topic"]
    assert isinstance(topics, list)
    return {
        **CONFIG,
        "topic": [{**topic, "index": "file"} for topic in topics],
        "queue": [{"name": "q", "underlying_topic": "^(plain|short)$", "default_publish_target": "plain",
                   "file_backed_metadata": True}],
    }  # fmt: skip


@settings(max_examples=examples(15))
@given(STEPS)
def test_paged_records_are_those_of_a_dict(steps: list[tuple[str, Any, Any, Any]]) -> None:
    model = Model()
    with (
        patch.object(index_module, "LEAF", 4),
        patch.object(scratch_pages, "Arena", partial(Arena, least=1, extent=1 << 16)),
        Broker(paged_config()) as broker,
    ):
        for step in steps:
            take(broker, model, step)
            model.expire(broker.now())
            check(broker, model)
        check_fold(broker)


def test_the_index_did_leave_the_heap() -> None:
    """Else the two above say nothing."""
    before = PagedIndex.kept
    with patch.object(index_module, "LEAF", 16), patch.object(test_sow_model, "Index", PagedIndex):
        agree([("many", 150, 2), ("put", 3, 0), ("due", 3, 5), ("snapshot", 0, 0), ("drop", 3, 0)], 7)
    assert PagedIndex.kept > before
    with (
        patch.object(scratch_pages, "Arena", partial(Arena, least=1, extent=1 << 16)),
        Broker(paged_config()) as broker,
    ):
        for number in range(20):
            broker.publish("plain", f'{{"id": {number}, "o": {{"k": "x"}}}}')
        broker.advance(1.0)
        broker.advance(1.0)
        assert broker.instance is not None
        assert broker.instance.scratch.used > 0


@pytest.mark.parametrize("index", ["memory", "file"])
def test_a_changed_leaf_comes_back_to_the_heap_and_a_snapshot_stays(index: str) -> None:
    living, arena = Index(), Arena(NoFile(), least=1)
    for number in range(100):
        living.put(number, number + 1)
    if index == "file":
        living.page(Move(arena, 0, 100))
        assert arena.used == 0, "it was changed since the last look"
        living.page(Move(arena, 0, 100))
        assert arena.used > 0
    snapshot = living.snapshot()
    living.put(7, 1000)
    living.drop(8)
    assert (living.get(7), living.get(8), living.get(9)) == (1000, 0, 10)
    assert list(snapshot.packed()[1]) == list(range(1, 101))
    assert living.nbytes == 99 * 16 + 400
