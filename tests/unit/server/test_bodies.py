"""The cache of bodies beside a plain dict: what it gives is right, what it counts is true, and the budget holds."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.memory import BodyCache
from penstock.memory.bodies import ROW_OVERHEAD
from penstock.records.chunks import as_chunk
from penstock.records.entries import Publishes, Topic

TOPICS = (Topic("/", "", "a"), Topic("/", "", "b"))
BUDGET = 1200


class Bodies(RuleBasedStateMachine):
    """The real cache, and a dict of all that was ever published by LSN."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = BodyCache(BUDGET)
        self.rows: dict[int, tuple[Topic, bytes, bytes]] = {}
        self.batches: list[Publishes] = []
        self.durable = 0
        self.next = 1

    @rule(
        sizes=st.lists(st.integers(0, 90), min_size=1, max_size=8),
        gap=st.integers(0, 3),
        uniform=st.booleans(),
        queues=st.integers(0, 2),
    )
    def publish(self, sizes: list[int], gap: int, uniform: bool, queues: int) -> None:
        first = self.next + gap
        bodies = [b"%d:" % (first + i) + b"x" * size for i, size in enumerate(sizes)]
        topics = [TOPICS[i % 2] for i in range(len(sizes))]
        headers = [b"h%d" % (i % 3) for i in range(len(sizes))]
        batch = Publishes(
            TOPICS[0] if uniform else topics, b"h0" if uniform else headers, bodies, first,
            wanted=queues * len(sizes), size=sum(map(len, bodies)) + 2 * len(sizes),
        )  # fmt: skip
        for i, body in enumerate(bodies):
            self.rows[first + i] = (batch.topic_of(i), batch.properties_of(i), body)
        self.next = first + len(sizes)
        self.batches.append(batch)
        self.cache.add(batch)

    @rule(commits=st.integers(1, 3))
    def commit(self, commits: int) -> None:
        waiting = [batch for batch in self.batches if batch.first > self.durable][:commits]
        if waiting:
            self.durable = waiting[-1].first + len(waiting[-1]) - 1
            self.cache.set_durable(self.durable)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        lsns = sorted(self.rows)
        low = data.draw(st.integers(0, len(lsns) - 1))
        chosen = lsns[low : low + data.draw(st.integers(1, 20))]
        if data.draw(st.booleans()):
            chosen = [lsn for lsn in chosen if data.draw(st.booleans())] or chosen[:1]
        chunk = as_chunk(chosen)
        seen = list[int]()
        for piece in self.cache.pieces(chunk):
            assert len(piece.chunk)
            seen += piece.chunk
            if piece.bodies is None:
                assert all(lsn <= self.durable for lsn in piece.chunk), "what the log does not have is in memory"
                continue
            assert len(piece.bodies) == len(piece.chunk)
            for i, lsn in enumerate(piece.chunk):
                topic = piece.topics[i] if isinstance(piece.topics, list) else piece.topics
                header = piece.properties[i] if isinstance(piece.properties, list) else piece.properties
                assert (topic, header, piece.bodies[i]) == self.rows[lsn]
        assert seen == chosen

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def peek(self, data: st.DataObject) -> None:
        lsn = data.draw(st.integers(0, self.next + 2))
        batch = self.cache.peek(lsn)
        if batch is not None:
            assert batch.bodies[lsn - batch.first] == self.rows[lsn][2]
        else:
            assert lsn not in self.rows or lsn <= self.durable

    @invariant()
    def it_counts_what_it_holds(self) -> None:
        held = [batch for batch in self.batches if self.cache.peek(batch.first) is batch]
        assert len(self.cache) == len(held)
        assert self.cache.used == sum(batch.size + ROW_OVERHEAD * len(batch) for batch in held)

    @invariant()
    def what_is_not_durable_stays_and_the_rest_keeps_to_the_budget(self) -> None:
        for batch in self.batches:
            if batch.first > self.durable:
                assert self.cache.peek(batch.first) is batch

    @rule()
    def budget_holds_after_a_commit(self) -> None:
        self.cache.set_durable(self.durable)
        young = sum(BodyCache.cost(batch) for batch in self.batches if batch.first > self.durable)
        assert self.cache.used <= max(BUDGET, young)


TestBodies = Bodies.TestCase


def test_the_newest_goes_first() -> None:
    cache = BodyCache(2 * (100 + ROW_OVERHEAD))
    for lsn in (1, 2, 3):
        cache.add(Publishes(TOPICS[0], b"", [b"x" * 100], lsn, wanted=1, size=100))
    cache.set_durable(3)
    assert [cache.peek(lsn) is not None for lsn in (1, 2, 3)] == [True, True, False]


def test_what_nobody_wants_any_more_goes_when_it_is_durable() -> None:
    cache = BodyCache(1 << 20)
    cache.add(Publishes(TOPICS[0], b"", [b"a", b"b"], 1, wanted=2, size=2))
    assert [piece.bodies for piece in cache.pieces(range(1, 3))] == [[b"a", b"b"]]
    assert len(cache) == 1
    cache.set_durable(2)
    assert (len(cache), cache.used) == (0, 0)


def test_many_small_batches_leave_no_litter() -> None:
    cache = BodyCache(1 << 20)
    for lsn in range(1, 2001):
        cache.add(Publishes(TOPICS[0], b"", [b"a"], lsn, wanted=1, size=1))
        list(cache.pieces(range(lsn, lsn + 1)))
        cache.set_durable(lsn)
    assert len(cache._batches) < 200
