"""What a sink commits beside its rows: what they were made of, where they went, and records that go with them."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from penstock.core.sow.holding import Cut
from penstock.core.state.durable import canonical
from penstock.core.state.pending import DecidedPart
from penstock.core.streams.sinks import Batch
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind
from unit.core.world import DURABLE, World

OF = {"pipeline": "p", "inputs": [{"stream": "p", "queue": "q", "batches": [1]}]}


def told(world: World) -> list[dict[str, object]]:
    """The headers of all LINEAGE records."""
    found = (row for table in world.tables for row in table.select(["kind", "properties"]).to_pylist())
    return [orjson.loads(row["properties"]) for row in found if row["kind"] == Kind.LINEAGE]


def rows(world: World, *names: str) -> Publishes:
    topics = [world.core.topic("/", "", name) for name in names]
    return Publishes(topics, DURABLE, [b'{"k": %d}' % n for n in range(len(names))])


def test_a_commit_says_where_its_rows_went() -> None:
    world = World()
    world.declare("a")
    world.declare("b")
    committed = world.core.sink_commit(world.now, Batch("query", 0, lineage=OF), [rows(world, "a", "b", "nobody", "a")])
    world.turn()
    [header] = told(world)
    assert header["of"] == OF
    assert header["batch"] == 0
    a, b = header["outputs"]  # type: ignore[misc]  # JSON
    assert a == ["/", "", "a", a[3], a[3] + 2, 2]
    assert b == ["/", "", "b", a[3] + 1, a[3] + 1, 1]
    assert [list(one) for one in committed.told] == [a, b]
    assert world.core.sink_commit(world.now, Batch("query", 0, lineage=OF), []).already
    world.core.sink_commit(world.now, Batch("query", 1), [rows(world, "a")])
    world.turn()
    assert len(told(world)) == 1
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(100)


def test_a_decided_batch_says_it_chunk_by_chunk() -> None:
    world = World()
    world.declare("a")
    part = DecidedPart("s", 3, 10, 0, "a", "", "/")
    world.core.sink_decide(world.now, Batch("query", 0, lineage=OF), [part])
    world.turn()
    world.core.sink_copy(world.now, "query", 2, [rows(world, "a", "a")])
    world.core.sink_copy(world.now, "query", 1, [rows(world, "a")])
    world.turn()
    first, *chunks = told(world)
    assert first == {"batch": 0, "of": OF}
    assert [one["chunk"] for one in chunks] == [1, 2]
    assert [out[5] for one in chunks for out in one["outputs"]] == [2, 1]  # type: ignore[attr-defined]
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(100)


def test_records_go_with_a_commit() -> None:
    world = World()
    world.core.declare_topic(world.now, "/", "", "v", {"key": ["/k"]})
    world.turn()
    world.core.sink_commit(world.now, Batch("query", 0), [rows(world, "v", "v", "v")])
    world.turn()
    sow = world.core.sow("/", "", "v")
    numbers, _ = sow.index.snapshot().arrays()
    assert len(numbers) == 3
    world.core.sink_commit(world.now, Batch("query", 1), [], drop=(sow, Cut(numbers[:1])))
    world.turn()
    assert sow.index.count == 2
    world.core.sink_commit(world.now, Batch("query", 2), [rows(world, "v")], drop=(sow, Cut()))
    world.turn()
    assert sow.index.count == 1
    world.core.sink_commit(world.now, Batch("query", 2), [], drop=(sow, Cut()))  # it is done already
    world.turn()
    assert sow.index.count == 1
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(100)


def test_very_many_records_go_with_a_commit_as_records_of_some_thousands() -> None:
    world = World()
    world.core.declare_topic(world.now, "/", "", "v", {"key": ["/k"]})
    world.turn()
    for query, (low, high) in enumerate([(0, 15_000), (15_000, 30_000)]):
        bodies = [b'{"k": %d}' % n for n in range(low, high)]
        world.core.sink_commit(
            world.now, Batch(str(query), 0), [Publishes(world.core.topic("/", "", "v"), DURABLE, bodies)]
        )
        world.turn()
    sow = world.core.sow("/", "", "v")
    watcher = Watcher()
    sow.watchers.append(watcher)
    numbers, lsns = sow.index.snapshot().arrays()
    world.core.sink_commit(world.now, Batch("query", 1), [rows(world, "v")], drop=(sow, Cut(numbers[:25_000])))
    world.turn()
    assert watcher.told == dict(zip(numbers[:25_000].tolist(), lsns[:25_000].tolist(), strict=True))
    assert 3 <= watcher.records <= 8
    assert sow.index.count in (5000, 5001)  # the one row's key may have been among them
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(100)
    world.core.sink_commit(world.now, Batch("query", 2), [rows(world, "v")], drop=(sow, Cut()))
    world.turn()
    assert sow.index.count == 1
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(100)


class Watcher:
    """Of a topic's records."""

    def __init__(self) -> None:
        self.told: dict[int, int] = {}
        self.records = 0

    def dropped(self, lsn: int, numbers: Sequence[int], lsns: Sequence[int], reason: str) -> None:
        assert reason == "deleted"
        self.told.update(zip(numbers, lsns, strict=True))
        self.records += 1
