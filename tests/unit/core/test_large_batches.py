"""Batches too large for one group of the log: what belongs to a row is in one group with it."""

from __future__ import annotations

from typing import Any, Self

import pytest

from penstock.core.broker import Core
from penstock.core.publishing import storing
from penstock.core.state.durable import DurableState, canonical
from penstock.records.entries import Group, Publishes
from unit.core.world import DURABLE, World, to_table


def body(number: int, key: int) -> bytes:
    return b'{"n": %d, "id": %d, "pad": "%s"}' % (number, key, b"x" * 60)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "PART_BYTES", 250)


@pytest.mark.usefixtures("small_groups")
def test_last_values_of_a_large_batch_are_those_of_a_prefix_wherever_a_crash_cuts() -> None:
    world = World()
    queue = world.declare("q", last_value_key="/id")
    world.publish("q", body(0, 1), body(1, 2))
    before = list(world.tables)
    bodies = [body(2 + number, number % 3) for number in range(9)]
    published = world.core.publish(world.now, Publishes(world.core.topic("/", "", "q"), DURABLE, bodies))
    assert (published.stored, len(published.positions)) == (9, 9)
    entries = world.core.take_journal()
    assert len(entries) > 3
    assert all(isinstance(entry, Group) for entry in entries)
    world.tables += [to_table([entry]) for entry in entries]
    for entry in entries:
        assert isinstance(entry, Group)
        for one in entry.entries:
            if isinstance(one, Publishes):
                world.rows.update({one.first + row: (one, row) for row in range(len(one))})
    told = world.contents(queue)
    assert told == [body(8, 0), body(9, 1), body(10, 2)]
    assert world.folded() == canonical(world.core.durable_state())
    for cut in range(len(entries) + 1):
        crashed = World()
        crashed.tables, crashed.rows = [*before, *(to_table([entry]) for entry in entries[:cut])], world.rows
        crashed.restart(clean=False)
        there = crashed.contents(crashed.core.queue("/", "q"))
        keys = [one.split(b'"id": ')[1][:1] for one in there]
        assert len(set(keys)) == len(keys), there
        crashed.publish("q", body(20, 1))
        assert sum(one.split(b'"id": ')[1][:1] == b"1" for one in crashed.contents(crashed.core.queue("/", "q"))) == 1


@pytest.mark.usefixtures("small_groups")
def test_what_a_large_batch_pushes_out_goes_in_one_group_with_what_pushed_it() -> None:
    world = World()
    queue = world.declare("q", max_length=2)
    published = world.core.publish(
        world.now, Publishes(world.core.topic("/", "", "q"), DURABLE, [body(number, 0) for number in range(8)])
    )
    assert published.stored == 8
    entries = world.core.take_journal()
    assert len([entry for entry in entries if isinstance(entry, Group)]) > 2
    for cut in range(1, len(entries) + 1):
        crashed = World()
        crashed.tables = [*world.tables, *(to_table([entry]) for entry in entries[:cut])]
        state = DurableState.decode(crashed.folded().encode())
        assert Core.restore(state, origin=7, now=world.now).queue("/", "q").ready <= 2  # no start has trimmed it yet
    assert queue.ready == 2


class Copied(list[int]):
    """Rows that count how many of them are copied."""

    rows = 0

    def __add__(self, other: Any) -> Copied:
        Copied.rows += len(self) + len(other)
        return Copied([*self, *other])

    def __iadd__(self, other: Any) -> Self:
        Copied.rows += len(other)
        self.extend(other)
        return self


def test_rows_of_very_many_topics_are_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each topic had all rows before it copied: for a queue that takes 100,000 topics those of a batch took seconds."""
    found = storing.by_topic
    monkeypatch.setattr(
        storing, "by_topic", lambda *given: {topic: Copied(rows) for topic, rows in found(*given).items()}
    )
    monkeypatch.setattr(Copied, "rows", 0)
    world, count = World(), 1000
    queue = world.declare("q")
    world.core.bind(world.now, "/", "amq.topic", "q", "queue", "#")
    topics = [world.core.topic("/", "amq.topic", f"k{n}") for n in range(count // 2)] * 2
    bodies = [b"%d" % n for n in range(count)]
    world.core.publish(world.now, Publishes(topics, DURABLE, bodies))
    world.turn()
    assert world.contents(queue) == bodies
    assert Copied.rows < 3 * count
