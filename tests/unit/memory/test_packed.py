"""Packed bodies in the caches: they move from store to store as they came, and cost what they hold."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from penstock.memory.arrived_batches import batch_cost
from penstock.memory.caches import Caches
from penstock.memory.slab import Slab
from penstock.records.chunks import as_chunk
from penstock.records.entries import Publishes, Topic
from penstock.records.message_bodies import FEW, PackedBodies, held_by, listed, picked
from unit.memory.world import World

TOPIC = Topic("/", "", "t")


def test_a_batch_that_moves_to_the_head_of_a_queue_makes_no_object_of_a_row_and_costs_no_more() -> None:
    """Found by resident memory after a save of 5 million rows: each came to cost half as much again, in one turn."""
    budget, rows, size = 4 << 20, 1000, 100
    world = World(budget)
    caches: Caches = world.caches
    highest = [0]
    put = caches.heads.put

    def looked(queue: int, slab: Slab) -> None:
        put(queue, slab)
        highest[0] = max(highest[0], caches.budget.used)

    caches.heads.put = looked  # type: ignore[method-assign]
    batches = 2 * budget // (rows * size)
    bodies = [PackedBodies.of([bytes([number % 256]) * size] * rows) for number in range(batches)]
    blocks = sys.getallocatedblocks()
    for number, packed in enumerate(bodies):
        first = number * rows + 1
        batch = Publishes(TOPIC, b"h", packed, first, wanted=rows, routes=0)
        world.routes = [(1,)]
        world.queue().main.extend(range(first, first + rows))
        caches.add(batch)
        caches.set_durable(first + rows - 1)
        assert caches.budget.over <= 0
    assert caches.heads.account.bytes > budget // 2
    assert highest[0] <= budget
    assert sys.getallocatedblocks() - blocks < 1.2 * rows * batches  # one is the model's own number
    shelf = caches.heads.shelves[1]
    assert all(isinstance(slab.bodies, PackedBodies) for slab in shelf.slabs)
    piece = next(caches.pieces(range(1, 11), None, 1))
    assert piece.bodies == [bytes(size)] * 10


@given(st.integers(1, 3 * FEW), st.sampled_from([3, 2000]), st.booleans(), st.data())
def test_any_rows_of_a_packed_batch_are_what_they_were(
    rows: int, size: int, several: bool, data: st.DataObject
) -> None:
    given_ = [b"%d" % row * size for row in range(rows)]
    headers: bytes | list[bytes] = [b"h%d" % row for row in range(rows)] if several else b"h"
    batch = Publishes(TOPIC, headers, PackedBodies.of([b"before", *given_, b"after"]).part(1, rows + 1), 10)
    where = sorted(data.draw(st.sets(st.integers(0, rows - 1), min_size=1)))
    some = picked(batch.bodies, where)
    assert listed(some) == [given_[row] for row in where]
    low = data.draw(st.integers(0, rows - 1))
    high = data.draw(st.integers(low + 1, rows))
    near = picked(batch.bodies, slice(low, high))
    assert listed(near) == given_[low:high]
    for one in (some, near):
        if isinstance(one, PackedBodies):
            assert held_by(one.array) <= (one.size + 4 * (len(one) + 1)) * 9 // 8 + 128
    whole = Slab.of_batch(batch, range(10, 10 + rows))
    assert size * rows < whole.cost <= batch_cost(batch)
    slab = Slab.of_batch(batch, as_chunk([10 + row for row in where]))
    assert slab.piece(slab.chunk, slice(0, len(where))).bodies == [given_[row] for row in where]
    assert listed(whole.part(low, high).bodies) == given_[low:high]
