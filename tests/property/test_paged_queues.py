"""The walks of the queue models with all state that may leave the heap in an arena, after each command.

Every array counts, however small, some arenas are full soon, and a view that somebody changed in place would raise.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from choices import spread
from penstock.core.arena import Move
from penstock.core.queue import expiry
from penstock.core.queue.lasting import page
from penstock.server import scratch_pages as arenas
from penstock.server.scratch_pages import Arena
from penstock.testing.instance import NoFile
from property import test_ordered_queue_walks
from property.queue_walk import Walk
from property.test_ordered_queue_model import OrderedMachine
from property.test_ordered_queue_walks import walk
from property.whole_machine import WholeMachine

PARTS = 4
WALKS, ORDERED = 24, 10
"""In each part; with more effort more for each step of it, as `BULK` has them."""

BULK = 40, 16

CAPACITIES = (1 << 30, 1 << 30, 1 << 17, 0)
"""Of the arenas of one walk after the other."""


class Paged:
    """What a machine has besides."""

    kept = 0
    capacity = 0

    def _page(self) -> None:
        queue = getattr(self, "queue", None)
        if queue is None:
            return
        if not hasattr(self, "arena"):
            self.arena = Arena(NoFile(self.capacity), least=1, extent=1 << 16)
        self.arena.retry()
        page(queue, Move(self.arena, 1 << 62, 1 << 30))
        type(self).kept += self.arena.used


class PagedWhole(Paged, WholeMachine):
    def before(self) -> None:
        self._page()
        super().before()

    def after(self) -> None:
        super().after()
        self._page()


class PagedOrdered(Paged, OrderedMachine):
    def before(self) -> None:
        self._page()
        super().before()

    def after(self) -> None:
        super().after()
        self._page()


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "PAGE", 64)
    monkeypatch.setattr(expiry, "PIECE", 3)


def named(error: BaseException, seed: Any) -> None:
    error.add_note(f"seed {seed}")


@pytest.mark.parametrize("part", spread(range(PARTS), 2))
def test_walks_agree_with_the_definition(part: int, effort: int) -> None:
    PagedWhole.kept = 0
    with patch.object(Walk, "MACHINE", PagedWhole):
        for number in range(WALKS if effort == 1 else BULK[0] * effort):
            seed = 700_000 + number * PARTS + part
            PagedWhole.capacity = CAPACITIES[number % len(CAPACITIES)]
            try:
                Walk(seed).run()
            except Exception as error:
                named(error, seed)
                raise
    assert PagedWhole.kept > 100_000


@pytest.mark.parametrize("part", spread(range(PARTS), 2))
def test_ordered_walks_agree_with_the_definition(part: int, effort: int) -> None:
    PagedOrdered.kept = 0
    with patch.object(test_ordered_queue_walks, "OrderedMachine", PagedOrdered):
        for number in range(ORDERED if effort == 1 else BULK[1] * effort):
            seed = 800_000 + number * PARTS + part
            PagedOrdered.capacity = CAPACITIES[number % len(CAPACITIES)]
            try:
                walk(seed)
            except Exception as error:
                named(error, seed)
                raise
    assert PagedOrdered.kept > 100_000
