"""Which state leaves the heap, and when: what is asked for, what is old, and so much at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.core.arena import Move
from penstock.core.broker import Core
from penstock.core.commands import common_parts
from penstock.core.queue.lasting import page
from penstock.core.queue.order import main_order
from penstock.core.state.durable import canonical
from penstock.records.chunks import Now
from penstock.records.entries import Publishes
from penstock.records.properties import Properties, encode
from penstock.records.queue_settings import QueueSettings
from penstock.server import scratch_pages as arenas
from penstock.server.scratch_pages import Scratch
from penstock.testing.instance import NoFile

NOW = Now(1, 1)
HEADER = encode(Properties(delivery_mode=2))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_order, "PIECE", 10)
    monkeypatch.setattr(main_order, "SMALL", 2)
    monkeypatch.setattr(arenas, "PAGE", 64)


class House:
    """A core with two queues that get messages in turn, and its arenas."""

    def __init__(self, **settings: Any) -> None:
        self.core = Core(1)
        self.queue = self.core.declare_queue(NOW, "/", "a", QueueSettings(**settings))
        self.core.declare_queue(NOW, "/", "b", QueueSettings())
        self.scratch = Scratch(Path(), lambda _: NoFile())
        self.scratch("").least = 1

    def publish(self, count: int) -> None:
        topics = [self.core.topic("/", "", name) for name in "ab"]
        for _ in range(count):
            batch = Publishes([topics[n % 2] for n in range(20)], HEADER, [b"x"] * 20, size=20)
            assert self.core.publish(NOW, batch).stored == 20

    def page(self, most: int = 1 << 20) -> bool:
        return self.core.page(self.scratch, most)

    def blocks(self) -> int:
        """Segments of the queue that lie elsewhere."""
        return sum(isinstance(segment.chunk, memoryview) for segment in self.queue.main.segments)


def test_nobody_is_looked_at_before_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    house.publish(5)
    monkeypatch.setattr(house.core._admin, "by_id", None)
    assert house.page() is False
    assert house.page() is False
    assert house.scratch.used == 0


def test_what_was_there_at_the_last_look_moves() -> None:
    house = House(file_backed_metadata=True)
    house.publish(5)
    assert house.page() is False
    assert house.blocks() == 0, "it is new, and may be gone in a moment"
    house.publish(5)
    assert house.page() is False
    assert house.blocks() == 5
    assert house.page() is False
    assert house.blocks() == 10
    house.queue.check()


def test_nothing_is_looked_at_again_before_something_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server at rest went over all of its queues once a second."""
    house, looks = House(file_backed_metadata=True), list[Move]()
    monkeypatch.setattr(common_parts, "page", lambda queue, move: (looks.append(move), page(queue, move)))
    house.publish(5)
    for _ in range(4):
        assert house.page() is False
    assert [len(looks), house.blocks()] == [2, 5], "what was new at the first look moved at the second one"
    house.publish(5)
    for _ in range(4):
        assert house.page() is False
    assert [len(looks), house.blocks()] == [4, 10]
    house.core.declare_queue(NOW, "/", "c", QueueSettings(file_backed_metadata=True))
    house.page()
    assert len(looks) == 6, "another queue is to be looked at, too"


def test_what_found_no_room_is_tried_again_while_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(file_backed_metadata=True)
    house.publish(5)
    with monkeypatch.context() as patch:
        patch.setattr(house.scratch(""), "keep", lambda values: None)
        for _ in range(4):
            assert house.page(4) is False
        assert house.blocks() == 0
    assert [house.page(3), house.page(3), house.blocks()] == [True, False, 5]


def test_so_many_arrays_a_step_and_the_next_goes_on() -> None:
    house = House(file_backed_metadata=True)
    house.publish(10)
    house.page()
    assert [house.page(4), house.blocks()] == [True, 4]
    house.publish(5)
    assert [house.page(4), house.blocks()] == [True, 8]
    assert [house.page(4), house.blocks()] == [False, 10]
    assert [house.page(100), house.blocks()] == [False, 15]


def test_a_setting_that_changes_counts_from_the_next_look() -> None:
    house = House()
    house.publish(5)
    house.page()
    house.core.alter_queue(NOW, house.queue, replace(house.queue.settings, file_backed_metadata=True))
    house.page()
    house.page()
    assert house.blocks() == 5
    house.core.alter_queue(NOW, house.queue, replace(house.queue.settings, file_backed_metadata=False))
    house.publish(5)
    house.page()
    house.page()
    assert house.blocks() == 5, "what lies there stays until it is used"
    house.queue.check()


def test_a_named_file_has_an_arena_of_its_own_and_what_is_done_with_is_free() -> None:
    house = House(file_backed_metadata="/elsewhere")
    house.scratch("/elsewhere").least = 1
    house.publish(5)
    house.page()
    house.page()
    assert house.scratch("").used == 0
    assert house.scratch("/elsewhere").used > 0
    assert house.core.purge_queue(NOW, house.queue) == 50
    house.scratch("/elsewhere").keep(b"x")
    assert house.scratch("/elsewhere").used <= 64


def test_a_restored_core_goes_on() -> None:
    house = House(file_backed_metadata=True)
    house.publish(5)
    house.page()
    house.page()
    state = house.core.durable_state()
    again = Core.restore(state.decode(state.encode()), origin=1, now=NOW)
    again.boot(NOW, clean=True, next_lsn=house.core.next_lsn)
    scratch = Scratch(Path(), lambda _: NoFile())
    scratch("").least = 1
    again.page(scratch, 100)
    again.page(scratch, 100)
    assert scratch.used > 0
    assert canonical(again.durable_state()).queues == canonical(state).queues
