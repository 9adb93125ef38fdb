"""Queues without duplicates against a model of a few lines: any batches, times, leases, limits and restarts."""

from __future__ import annotations

from array import array
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choices import examples
from penstock.core.effects import Verb
from penstock.core.queue import dedup
from penstock.core.queue.dedup import Window
from penstock.core.queue.last_values import key_of
from penstock.core.state.durable import canonical
from unit.core.world import SECOND, World

STEPS = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.integers(0, 4), min_size=1, max_size=8)),
    st.tuples(st.just("advance"), st.integers(1, 8)),
    st.tuples(st.just("take"), st.integers(1, 3)),
    st.tuples(st.just("restart"), st.booleans()),
)


class Model:
    """One queue, a message at a time: what it has, oldest first, and when each key was taken."""

    def __init__(self, window: int, unique: bool, length: int | None, rejects: bool) -> None:
        self.window, self.unique, self.length, self.rejects = window, unique, length, rejects
        self.has = list[bytes]()
        self.taken = dict[bytes, int]()
        self.duplicates = 0

    def publish(self, key: bytes, time: int) -> None:
        late = self.window and key in self.taken and time - self.taken[key] < self.window
        if late or (self.unique and key in self.has):
            self.duplicates += 1
        elif self.length is None or len(self.has) < self.length:
            self.has.append(key)
            self.taken[key] = time
        elif not self.rejects:
            self.has = [*self.has, key][-self.length :]
            self.taken[key] = time


@settings(max_examples=examples(150, 6))
@given(
    st.sampled_from([(10, False), (0, True), (10, True)]), st.sampled_from([None, 1, 3]), st.booleans(),
    st.lists(STEPS, max_size=20),
)  # fmt: skip
def test_any_history_agrees_with_the_model(
    which: tuple[int, bool], length: int | None, rejects: bool, steps: list[tuple[str, object]]
) -> None:
    world = World()
    window, unique = which[0] * SECOND, which[1]
    queue = world.declare(
        "q", dedup_key="/id", dedup_window=window, unique=unique, max_length=length,
        overflow="reject-publish" if rejects else "drop-head",
    )  # fmt: skip
    model = Model(window, unique, length, rejects)
    for verb, value in steps:
        if verb == "publish":
            bodies = [b'{"id": %d}' % number for number in cast("list[int]", value)]
            before = model.duplicates
            for body in bodies:
                model.publish(body, world.wall)
            published = world.publish("q", *bodies)
            assert published.duplicates == model.duplicates - before
            assert published.stored + published.duplicates + len(published.refused) == len(bodies)
        elif verb == "advance":
            assert isinstance(value, int)
            world.advance(value)
        elif verb == "take":
            assert isinstance(value, int)
            consumer = world.subscribe(queue, max_backlog=value)
            got = list(world.inbox[consumer])
            world.core.settle(world.now, queue, [array("q", got)], Verb.ACK, by=consumer)
            world.core.unsubscribe(world.now, consumer, requeue=True)
            world.turn()
            model.has = model.has[len(got) :]
        else:
            world.restart(clean=bool(value))
            queue = world.core.queue("/", "q")
        assert world.contents(queue) == model.has
        assert world.folded() == canonical(world.core.durable_state())
    assert world.folded() == world.folded(3)


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), max_size=300))
def test_a_packed_window_has_what_a_table_has(taken: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup, "YOUNG", 4)
        patch.setattr(dedup, "BLOCK", 16)
        packed, table, time = Window(), dict[int, int](), 1
        for number, later in taken:
            time += later
            key = key_of(number)
            held = time - table.get(key, -100) < 20
            assert packed.has(key, time, 20) == held
            if not held:
                packed.take([key], time, 20)
                table[key] = time
        last = max(table.values(), default=0)
        flat = packed.dump(20)
        assert dict(zip(flat[::2], flat[1::2], strict=True)) == {k: t for k, t in table.items() if last - t < 20}
        assert Window.loaded(flat).dump(20) == flat


def test_a_window_holds_so_many_keys_and_few_bytes_each() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup, "KEYS_MOST", 100_000)
        packed = Window()
        for start in range(1, 400_001, 1000):
            packed.take(range(start, start + 1000), start, 1 << 40)
        assert len(packed) <= 100_000 + dedup.BLOCK + dedup.YOUNG
        assert packed.nbytes <= 17 * len(packed) + 160 * dedup.YOUNG
        flat = packed.dump(1 << 40)
        assert len(flat) == 200_000
        assert list(flat[:2]) == [300_001, 300_001]
        assert packed.has(400_000, 400_001, 1 << 40)


@settings(max_examples=examples(100))
@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=7), max_size=6), st.integers(1, 3), st.booleans())
def test_a_batch_is_decided_as_its_messages_one_by_one(batches: list[list[int]], length: int, ring: bool) -> None:
    worlds = World(), World()
    most, size = (None, length) if ring else (length, -1)
    for world in worlds:
        world.declare("a", underlying_topic="t", dedup_key="/id", dedup_window=10 * SECOND)
        world.declare("b", underlying_topic="t", dedup_key="/id", unique=True, max_length=most, ring_size=size)
    for numbers in batches:
        bodies = [b'{"id": %d}' % number for number in numbers]
        worlds[0].publish("t", *bodies)
        for body in bodies:
            worlds[1].publish("t", body)
        for world in worlds:
            world.advance(4)
        for name in ("a", "b"):
            whole, single = (world.contents(world.core.queue("/", name)) for world in worlds)
            assert whole == single
