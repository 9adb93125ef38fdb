"""Arrivals beside a plain dict: what they give is right, what they count is true, and the oldest are parted first."""

from __future__ import annotations

import gc
import tracemalloc

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.memory.arrived_batches import BATCH_OVERHEAD, Arrivals, batch_cost
from penstock.memory.slab import HEADER_OVERHEAD, ROW_OVERHEAD
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes, Topic
from penstock.records.message_bodies import PackedBodies

TOPICS = (Topic("/", "", "a"), Topic("/", "", "b"))


class ArrivalsMachine(RuleBasedStateMachine):
    """The real thing, and a dict of all that was ever published by LSN."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals = Arrivals()
        self.rows: dict[int, tuple[Topic, bytes, bytes]] = {}
        self.batches: list[Publishes] = []
        self.durable = 0
        self.next = 1

    @rule(
        sizes=st.lists(st.integers(0, 90), min_size=1, max_size=8),
        gap=st.integers(0, 3),
        uniform=st.booleans(),
        packed=st.booleans(),
        queues=st.integers(0, 2),
    )
    def publish(self, sizes: list[int], gap: int, uniform: bool, packed: bool, queues: int) -> None:
        first = self.next + gap
        bodies = [b"%d:" % (first + i) + b"x" * size for i, size in enumerate(sizes)]
        topics = [TOPICS[i % 2] for i in range(len(sizes))]
        headers = [b"h%d" % (i % 3) for i in range(len(sizes))]
        batch = Publishes(
            TOPICS[0] if uniform else topics, b"h0" if uniform else headers,
            PackedBodies.of(bodies) if packed else bodies, first, wanted=queues * len(sizes),
        )  # fmt: skip
        for i, body in enumerate(bodies):
            self.rows[first + i] = (batch.topic_of(i), batch.properties_of(i), body)
        self.next = first + len(sizes)
        self.batches.append(batch)
        self.arrivals.add(batch)

    @rule(commits=st.integers(1, 3))
    def commit(self, commits: int) -> None:
        waiting = [batch for batch in self.batches if batch.first > self.durable][:commits]
        if waiting:
            self.durable = waiting[-1].first + len(waiting[-1]) - 1
            self.arrivals.set_durable(self.durable)

    @rule()
    def part(self) -> None:
        held = [batch for batch in self.batches if self.arrivals.peek(batch.first) is batch]
        parted = self.arrivals.part()
        durable = [batch for batch in held if batch.first <= self.durable]
        assert parted is (durable[0] if durable else None)
        if parted is not None:
            assert self.arrivals.lacking == parted.first + len(parted) - 1

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        lsns = sorted(self.rows)
        low = data.draw(st.integers(0, len(lsns) - 1))
        chosen = lsns[low : low + data.draw(st.integers(1, 20))]
        if data.draw(st.booleans()):
            chosen = [lsn for lsn in chosen if data.draw(st.booleans())] or chosen[:1]
        chunk = as_chunk(chosen)
        absent = set(self.arrivals.absent(chunk))
        seen = list[int]()
        for piece in self.arrivals.pieces(chunk):
            assert len(piece.chunk)
            seen += piece.chunk
            if piece.bodies is None:
                assert all(lsn <= self.durable for lsn in piece.chunk), "what the log does not have is in memory"
                assert absent.issuperset(piece.chunk)
                continue
            assert len(piece.bodies) == len(piece.chunk)
            assert absent.isdisjoint(piece.chunk)
            for i, lsn in enumerate(piece.chunk):
                topic = piece.topics[i] if isinstance(piece.topics, list) else piece.topics
                header = piece.properties[i] if isinstance(piece.properties, list) else piece.properties
                assert (topic, header, piece.bodies[i]) == self.rows[lsn]
        assert seen == chosen

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def deliver_one(self, data: st.DataObject) -> None:
        lsn = data.draw(st.sampled_from([*sorted(self.rows), 0, self.next]))
        here = self.arrivals.peek(lsn) is not None
        assert self.arrivals.row(lsn) == (self.rows[lsn] if here else None)

    @precondition(lambda self: any(batch is not None for batch in self.arrivals.batches))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Some messages leave undelivered; the others are needed as long as they are here."""
        here = [lsn for lsn in self.rows if self.arrivals.peek(lsn) is not None]
        left = set(data.draw(st.lists(st.sampled_from(here), max_size=20)))
        unasked = data.draw(st.booleans())
        batches = {id(batch) for batch in self.arrivals.batches}

        def needed(batch: Publishes) -> list[Chunk] | None:
            assert id(batch) in batches
            stays = [lsn for lsn in range(batch.first, batch.first + len(batch)) if lsn not in left]
            return None if unasked else [as_chunk(stays), as_chunk(stays[1:])] if len(stays) > 1 else [as_chunk(stays)]

        self.arrivals.left([end for lsn in left for end in (lsn, lsn + 1)])
        self.arrivals.thin(needed, lambda: False)
        if not unasked:
            assert left.issuperset(lsn for lsn in here if self.arrivals.peek(lsn) is None)
        self.batches = [batch for batch in self.arrivals.batches if batch is not None]

    @invariant()
    def it_counts_what_it_holds(self) -> None:
        held = [batch for batch in self.batches if self.arrivals.peek(batch.first) is batch]
        assert len(self.arrivals) == len(held)
        assert self.arrivals.bytes == sum(map(batch_cost, held))

    @invariant()
    def what_is_not_durable_stays(self) -> None:
        for batch in self.batches:
            if batch.first > self.durable:
                assert self.arrivals.peek(batch.first) is batch


TestArrivals = ArrivalsMachine.TestCase


def test_bodies_of_a_batch_that_nobody_measured_are_counted() -> None:
    """Batches of the AMQP door come without a size: 100 kB of body once counted for 49 bytes."""
    arrivals = Arrivals()
    arrivals.add(Publishes(TOPICS[0], b"header", [b"x" * 100_000], 1, wanted=1))
    assert arrivals.bytes == BATCH_OVERHEAD + 100_000 + 6 + ROW_OVERHEAD
    arrivals.add(Publishes(TOPICS[0], [b"a", b"bc"], [b"x", b"yz"], 2, wanted=2))
    rows = 100_000 + 6 + ROW_OVERHEAD + 6 + 2 * (ROW_OVERHEAD + HEADER_OVERHEAD)
    assert arrivals.bytes == 2 * BATCH_OVERHEAD + rows


def test_messages_that_come_one_by_one_count_what_they_take() -> None:
    """A batch of one small message takes four times its row: it once counted for the row alone."""
    arrivals = Arrivals()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for lsn in range(1000, 6000):
            body, header = b"%0100d" % lsn, bytes(bytearray(b"\x10\0\x02"))
            arrivals.add(Publishes(TOPICS[0], header, [body], lsn, 10**15 + lsn, wanted=1))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.9 * taken <= arrivals.bytes <= 1.1 * taken


def test_packed_bodies_count_what_they_hold() -> None:
    arrivals = Arrivals()
    bodies = [b"x" * 100] * 10
    arrivals.add(Publishes(TOPICS[0], b"h", PackedBodies.of(bodies), 1, wanted=10, size=1010))
    assert arrivals.bytes == BATCH_OVERHEAD + 1010 + 4 * 10
    assert [piece.bodies for piece in arrivals.pieces(range(3, 5))] == [bodies[:2]]
    assert [piece.bodies for piece in arrivals.pieces(range(1, 11, 3))] == [bodies[:4]]
    arrivals.add(Publishes(TOPICS[0], [b"h"] * 10, PackedBodies.of(bodies), 11, wanted=10, size=1010))
    assert arrivals.bytes == 2 * (BATCH_OVERHEAD + 1010) + 4 * 10 + (12 + HEADER_OVERHEAD) * 10
    assert [piece.bodies for piece in arrivals.pieces(range(11, 21))] == [bodies]
    arrivals.set_durable(20)
    assert arrivals.bytes == BATCH_OVERHEAD + 1010 + 4 * 10


def test_a_batch_whose_bodies_were_unpacked_meanwhile_is_uncounted_as_it_was_counted() -> None:
    arrivals = Arrivals()
    batch = Publishes(TOPICS[0], b"h", PackedBodies.of([b"x" * 100] * 10), 1, wanted=10, size=1010)
    arrivals.add(batch)
    batch.bodies = [b"x" * 100] * 10  # a filter wanted them as objects
    list(arrivals.pieces(range(1, 11)))
    arrivals.set_durable(10)
    assert arrivals.bytes == 0


def test_what_nobody_wants_any_more_goes_when_it_is_durable() -> None:
    arrivals = Arrivals()
    arrivals.add(Publishes(TOPICS[0], b"", [b"a", b"b"], 1, wanted=2, size=2))
    assert [piece.bodies for piece in arrivals.pieces(range(1, 3))] == [[b"a", b"b"]]
    assert len(arrivals) == 1
    arrivals.set_durable(2)
    assert (len(arrivals), arrivals.bytes) == (0, 0)


def test_many_small_batches_leave_no_litter() -> None:
    arrivals = Arrivals()
    for lsn in range(1, 2001):
        arrivals.add(Publishes(TOPICS[0], b"", [b"a"], lsn, wanted=1, size=1))
        list(arrivals.pieces(range(lsn, lsn + 1)))
        arrivals.set_durable(lsn)
    assert len(arrivals.batches) < 200


def test_a_batch_of_which_half_has_left_is_cut_to_what_is_needed() -> None:
    arrivals = Arrivals()
    headers = [b"h%d" % lsn for lsn in range(1, 101)]
    arrivals.add(Publishes(TOPICS[0], headers, [b"%d" % lsn * 1000 for lsn in range(1, 101)], 1, wanted=100))
    arrivals.add(Publishes(TOPICS[0], b"", [b"a"], 101, wanted=1))
    arrivals.set_durable(101)
    asked: list[int] = []

    def needed(batch: Publishes) -> list[Chunk]:
        asked.append(batch.first)
        return [range(60, 63), as_chunk([62, 90])]

    arrivals.left([1, 50])
    arrivals.thin(needed, lambda: False)
    assert asked == []  # less than half: a look is not paid for yet
    arrivals.left([50, 60, 63, 90, 91, 101])
    arrivals.thin(needed, lambda: False)
    assert asked == [1]
    assert [batch and (batch.first, len(batch), batch.wanted) for batch in arrivals.batches] == [
        (60, 3, 4), (90, 1, 1), (101, 1, 1)
    ]  # fmt: skip
    assert arrivals.row(90) == (TOPICS[0], b"h90", b"90" * 1000)
    assert arrivals.bytes == sum(batch_cost(batch) for batch in arrivals.batches if batch is not None)
    assert [lsn for lsn in range(1, 102) if arrivals.peek(lsn) is not None] == [60, 61, 62, 101]
