"""Streams and sinks: the same answer to the same question, whatever crashed in between."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import pytest

from penstock.core.effects import Verb
from penstock.core.state.durable import canonical
from penstock.core.state.pending import DecidedPart
from penstock.core.streams import Plan
from penstock.core.streams.sinks import Batch
from penstock.errors import Fenced, InvalidArgument, LogDamaged, NotFound, PreconditionFailed
from penstock.records.entries import Control, Group, Publishes
from penstock.records.kinds import Kind
from unit.core.world import DURABLE, World, to_table


@pytest.fixture
def world() -> World:
    world = World()
    world.declare("q", lease_period=1_000_000, max_deliveries=3)
    world.publish("q", *(b"%d" % n for n in range(10)))
    return world


def opened(world: World, name: str = "s") -> int:
    return world.core.streams.open(world.now, name, world.core.queue("/", "q"), "driver-1").epoch


def plan(world: World, epoch: int, start: int, rows: int = 4, name: str = "s") -> Plan:
    answer = world.core.streams.plan(world.now, name, epoch, start, rows)
    world.turn()
    return answer


def bodies(world: World, answer: Plan) -> list[bytes]:
    return [world.rows[lsn][0].bodies[world.rows[lsn][1]] for chunk in answer.chunks for lsn in chunk]


def test_plan_settles_and_grants(world: World) -> None:
    epoch = opened(world)
    first = plan(world, epoch, 0)
    assert first.batch == 1
    assert bodies(world, first) == [b"0", b"1", b"2", b"3"]
    queue = world.core.queue("/", "q")
    assert (queue.ready, queue.leased) == (6, 4)
    second = plan(world, epoch, 1)
    assert second.batch == 2
    assert bodies(world, second) == [b"4", b"5", b"6", b"7"]
    assert (queue.ready, queue.leased, queue.so_far.acked) == (2, 4, 4)
    assert world.deliveries == []
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(100)


def test_planned_twice_is_the_same_whatever_the_limit(world: World) -> None:
    epoch = opened(world)
    assert plan(world, epoch, 0, 4) == plan(world, epoch, 0, 1) == plan(world, epoch, 0, 100)


def test_nobody_else_settles_what_a_stream_holds(world: World) -> None:
    """A stream's grants are strict whatever `leasing` says: Spark may be reading them."""
    held = plan(world, opened(world), 0)
    queue = world.core.queue("/", "q")
    assert queue.settings.leasing == "sublet"
    for verb in (Verb.ACK, Verb.EXPIRE, Verb.CANCEL):
        assert world.core.settle(world.now, queue, list(held.chunks), verb, client="somebody") == 0
    assert (queue.ready, queue.leased) == (6, 4)


def test_a_settled_batch_is_still_known_for_a_replay(world: World) -> None:
    epoch = opened(world)
    first, second = plan(world, epoch, 0), plan(world, epoch, 1)
    assert plan(world, epoch, 0) == first
    assert world.core.streams.batch("s", 1) == first.chunks
    assert plan(world, epoch, 1) == second


def test_nothing_ready_gives_the_start_again(world: World) -> None:
    epoch = opened(world)
    assert plan(world, epoch, 0, 100).batch == 1
    empty = plan(world, epoch, 1)
    assert empty == Plan(1, ())
    assert world.core.streams.state("s").floor == 1
    world.publish("q", b"new")
    assert bodies(world, plan(world, epoch, 1)) == [b"new"]


def test_an_older_epoch_is_fenced(world: World) -> None:
    old = opened(world)
    new = opened(world)
    with pytest.raises(Fenced, match="stream 's' is now read by driver-1 under epoch 2; epoch 1 is over"):
        plan(world, old, 0)
    plan(world, new, 0)
    with pytest.raises(Fenced):
        world.core.streams.settle(world.now, "s", old, 1)


def test_a_start_beyond_what_was_planned_settles_nothing(world: World) -> None:
    epoch = opened(world)
    plan(world, epoch, 0)
    before = world.core.last_lsn
    with pytest.raises(PreconditionFailed, match="has planned 1 batches, and was asked to go on after batch 2"):
        plan(world, epoch, 2)
    with pytest.raises(PreconditionFailed, match="batch 2 cannot be settled"):
        world.core.streams.settle(world.now, "s", epoch, 2)
    assert world.core.last_lsn == before
    assert world.core.streams.state("s").floor == 0


def test_an_old_checkpoint_is_told_where_to_go_on(world: World) -> None:
    epoch = opened(world)
    for start in range(4):
        plan(world, epoch, start, 2)
    with pytest.raises(PreconditionFailed, match="is at batch 0, the stream at 3.*to go on at 4"):
        plan(world, epoch, 0)
    with pytest.raises(NotFound, match="knows no batch 1"):
        world.core.streams.batch("s", 1)
    with pytest.raises(
        NotFound,
        match="knows no batch 9; it has planned 4: .*earlier queue.*delete it to go on at 4; a pipeline.*reset",
    ):
        world.core.streams.batch("s", 9)


def test_planned_batches_have_no_deadline(world: World) -> None:
    epoch = opened(world)
    first = plan(world, epoch, 0)
    world.advance(3600)
    assert world.core.queue("/", "q").leased == 4
    assert plan(world, epoch, 0) == first


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_holds_what_was_planned(world: World, clean: bool) -> None:
    epoch = opened(world)
    first = plan(world, epoch, 0)
    world.restart(clean=clean)
    queue = world.core.queue("/", "q")
    assert (queue.ready, queue.leased) == (6, 4)
    queue.check()
    competitor = world.subscribe(queue)
    assert not set(world.inbox[competitor]) & {lsn for chunk in first.chunks for lsn in chunk}
    assert world.core.streams.plan(world.now, "s", epoch, 0, 1) == first
    world.core.streams.settle(world.now, "s", epoch, 1)
    world.turn()
    assert queue.leased == 6
    assert canonical(world.core.durable_state()) == world.folded()


def test_release_gives_back_and_fences(world: World) -> None:
    epoch = opened(world)
    plan(world, epoch, 0)
    assert world.core.streams.release(world.now, "s") == 4
    world.turn()
    queue = world.core.queue("/", "q")
    assert (queue.ready, queue.leased) == (10, 0)
    with pytest.raises(Fenced):
        plan(world, epoch, 0)
    again = plan(world, opened(world), 0)
    assert again.batch == 2
    assert bodies(world, again) == [b"0", b"1", b"2", b"3"]
    assert world.core.streams.batch("s", 1) == ()
    assert canonical(world.core.durable_state()) == world.folded()


def test_competitors_share_the_queue(world: World) -> None:
    queue = world.core.queue("/", "q")
    consumer = world.subscribe(queue, max_backlog=3)
    epoch = opened(world)
    assert bodies(world, plan(world, epoch, 0)) == [b"3", b"4", b"5", b"6"]
    world.core.settle(
        world.now, queue, [range(world.inbox[consumer][0], world.inbox[consumer][0] + 1)], Verb.CANCEL, by=consumer
    )
    world.turn()
    queue.check()


def test_a_stream_belongs_to_one_queue_and_ends_with_it(world: World) -> None:
    plan(world, opened(world), 0)
    other = world.declare("other")
    with pytest.raises(PreconditionFailed, match="stream 's' reads queue 'q'"):
        world.core.streams.open(world.now, "s", other)
    world.core.delete_queue(world.now, world.core.queue("/", "q"))
    world.turn()
    with pytest.raises(NotFound, match="stream 's' ended with its queue 'q', which was deleted"):
        world.core.streams.state("s")
    assert world.folded().streams == {}
    assert world.cancelled == [], "nobody waits for what a stream's silent consumer hears"
    with pytest.raises(InvalidArgument):
        world.core.streams.open(world.now, "", other)


def test_log_mode_answers_the_same_end(world: World) -> None:
    streams = world.core.streams
    epoch = streams.open(world.now, "log", None, mode="log").epoch
    assert streams.ranges.plan_range(world.now, "log", epoch, 0, 100) == 100
    assert streams.ranges.plan_range(world.now, "log", epoch, 0, 250) == 100
    assert streams.ranges.plan_range(world.now, "log", epoch, 100, 100) == 100
    for start in range(100, 1000, 100):
        assert streams.ranges.plan_range(world.now, "log", epoch, start, start + 100) == start + 100
    assert len(streams.state("log").plans) == 2
    world.turn()
    world.restart(clean=False)
    assert world.core.streams.ranges.plan_range(world.now, "log", epoch, 900, 5000) == 1000
    with pytest.raises(InvalidArgument, match="is read in mode 'log'"):
        world.core.streams.plan(world.now, "log", epoch, 0, 1)


# sinks


def commit(world: World, batch: int, *rows: bytes, settle: Sequence[tuple[str, int, int]] = ()) -> bool:
    topic = world.core.topic("/", "", "out")
    answer = world.core.sink_commit(world.now, Batch("query", batch, settle), [Publishes(topic, DURABLE, list(rows))])
    world.turn()
    return answer.already


def test_a_batch_is_committed_once(world: World) -> None:
    out = world.declare("out")
    assert commit(world, 0, b"a") is False
    assert commit(world, 0, b"a") is True
    assert commit(world, 1, b"b") is False
    with pytest.raises(PreconditionFailed, match="query 'query' has committed batch 1; batch 0 comes too late"):
        commit(world, 0, b"a")
    world.restart(clean=False)
    assert commit(world, 1, b"b") is True
    assert world.contents(world.core.queue("/", "out")) == [b"a", b"b"]
    assert out is not None


def test_outputs_and_settlement_are_one_group(world: World) -> None:
    world.declare("out")
    epoch = opened(world)
    plan(world, epoch, 0)
    topics = [world.core.topic("/", "", name) for name in ("out", "q")]
    outputs = [Publishes(topic, DURABLE, [b"x", b"y"]) for topic in topics]
    answer = world.core.sink_commit(world.now, Batch("query", 0, [("s", epoch, 1)]), outputs)
    assert (answer.already, answer.stored) == (False, 4)
    [group] = world.core.journal
    assert isinstance(group, Group)
    kinds = [entry.kind for entry in group.entries if not isinstance(entry, Publishes)]
    assert {Kind.SINK_COMMIT, Kind.PLAN_SETTLE, Kind.SETTLE} <= set(kinds)
    world.turn()
    assert world.core.queue("/", "q").leased == 0
    assert canonical(world.core.durable_state()) == world.folded()


def test_a_refused_settlement_leaves_nothing_of_the_commit(world: World) -> None:
    world.declare("out")
    epoch = opened(world)
    before = world.core.last_lsn
    with pytest.raises(Fenced):
        commit(world, 0, b"x", settle=[("s", epoch - 1, 0)])
    with pytest.raises(PreconditionFailed):
        commit(world, 0, b"x", settle=[("s", epoch, 0), ("s", epoch, 1)])
    assert world.core.last_lsn == before
    assert world.core.sink_state("query") is None


def test_several_inputs_are_settled_in_the_group_or_none_of_them(world: World) -> None:
    world.declare("out")
    epoch = opened(world)
    plan(world, epoch, 0)
    other = world.declare("other")
    world.publish("other", b"1", b"2")
    epochs = {"s": epoch, "t": world.core.streams.open(world.now, "t", other).epoch}
    world.core.streams.plan(world.now, "t", epochs["t"], 0, 10)
    with pytest.raises(PreconditionFailed, match="stream 't' has planned 1 batches; batch 2 cannot be settled"):
        commit(world, 0, b"x", settle=[("s", epoch, 1), ("t", epochs["t"], 2)])
    assert (world.core.queue("/", "q").leased > 0, other.leased) == (True, 2)
    assert commit(world, 0, b"x", settle=[(name, epochs[name], 1) for name in epochs]) is False
    assert (world.core.queue("/", "q").leased, other.leased) == (0, 0)
    assert canonical(world.core.durable_state()) == world.folded()


# decided batches


def parts(*rows: int) -> list[DecidedPart]:
    return [DecidedPart(f"{i:032x}", count, 100 * count, i, "out", "", "/") for i, count in enumerate(rows)]


def copied(world: World, *rows: bytes) -> int:
    topic = world.core.topic("/", "", "out")
    answer = world.core.sink_copy(world.now, "query", len(rows), [Publishes(topic, DURABLE, list(rows))])
    world.turn()
    return answer.stored


def test_a_decided_batch_is_committed_and_its_rows_follow(world: World) -> None:
    world.declare("out")
    epoch = opened(world)
    plan(world, epoch, 0)
    assert world.core.sink_decide(world.now, Batch("query", 3, [("s", epoch, 1)]), parts(2, 0, 1)).already is False
    [group] = world.core.journal
    assert isinstance(group, Group)
    kinds = [entry.kind for entry in group.entries if not isinstance(entry, Publishes)]
    assert kinds[0] is Kind.DECIDED
    assert {Kind.PLAN_SETTLE, Kind.SETTLE} <= set(kinds)
    world.turn()
    assert world.core.queue("/", "q").leased == 0
    assert world.core.sink_state("query") == 3
    assert world.contents(world.core.queue("/", "out")) == []
    assert copied(world, b"1") == 1
    world.restart(clean=False)
    assert [(state.batch, state.chunks, state.rows) for state in world.core.decided.values()] == [(3, 1, 1)]
    assert world.core.decided["query"].settle == (("s", 1),)
    assert copied(world, b"2", b"3") == 2
    assert world.core.decided == {}
    assert canonical(world.core.durable_state()) == world.folded()
    assert world.contents(world.core.queue("/", "out")) == [b"1", b"2", b"3"]


def test_a_chunk_and_its_record_are_one_group(world: World) -> None:
    world.declare("out")
    world.core.sink_decide(world.now, Batch("query", 0), parts(2))
    world.turn()
    topic = world.core.topic("/", "", "out")
    world.core.sink_copy(world.now, "query", 2, [Publishes(topic, DURABLE, [b"1", b"2"])])
    [group] = world.core.journal
    assert isinstance(group, Group)
    assert [entry.kind if not isinstance(entry, Publishes) else len(entry) for entry in group.entries][::2] == [
        Kind.CHUNK,
        2,
    ]


def test_while_a_batch_is_copied_its_query_commits_no_other(world: World) -> None:
    world.declare("out")
    world.core.sink_decide(world.now, Batch("query", 1), parts(3))
    assert copied(world, b"a") == 1
    assert commit(world, 1, b"again") is True
    assert world.core.sink_decide(world.now, Batch("query", 1), parts(9)).already is True
    before = world.core.last_lsn
    with pytest.raises(PreconditionFailed, match="has decided batch 1, and 1 of its 3 rows are written; batch 2"):
        commit(world, 2, b"b")
    with pytest.raises(PreconditionFailed, match="batch 2 comes after them"):
        world.core.sink_decide(world.now, Batch("query", 2), parts(1))
    with pytest.raises(PreconditionFailed, match="comes too late"):
        world.core.sink_decide(world.now, Batch("query", 0), parts(1))
    with pytest.raises(InvalidArgument, match="no rows"):
        world.core.sink_decide(world.now, Batch("other", 0), parts(0))
    assert world.core.last_lsn == before
    copied(world, b"b", b"c")
    assert commit(world, 2, b"d") is False
    assert world.contents(world.core.queue("/", "out")) == [b"a", b"b", b"c", b"d"]


def test_a_refused_settlement_decides_nothing(world: World) -> None:
    epoch = opened(world)
    before = world.core.last_lsn
    with pytest.raises(Fenced):
        world.core.sink_decide(world.now, Batch("query", 0, [("s", epoch - 1, 0)]), parts(1))
    assert world.core.last_lsn == before
    assert world.core.decided == {}
    assert world.core.sink_state("query") is None


def test_a_chunk_counts_every_row_and_stores_what_somebody_wants(world: World) -> None:
    world.core.sink_decide(world.now, Batch("query", 0), parts(2, 2))
    assert copied(world, b"nobody", b"wants", b"these") == 0
    world.declare("out")
    with pytest.raises(ValueError, match="chunk 2 of batch 0 up to row 5 follows chunk 1 of batch 0 up to row 3 of 4"):
        copied(world, b"x", b"one too many")
    assert copied(world, b"x") == 1
    assert world.contents(world.core.queue("/", "out")) == [b"x"]


@pytest.mark.parametrize("header", [
    {"batch": 0, "chunk": 2, "rows": 1}, {"batch": 1, "chunk": 1, "rows": 1}, {"batch": 0, "chunk": 1, "rows": 4},
    {"batch": 0, "chunk": 1, "rows": 0},
])  # fmt: skip
def test_a_chunk_that_does_not_follow_is_damage(world: World, header: dict[str, int]) -> None:
    world.core.sink_decide(world.now, Batch("query", 0), parts(3))
    world.turn()
    lsn = world.core.last_lsn + 1
    world.tables.append(to_table([Control(Kind.CHUNK, "query", orjson.dumps(header), b"", lsn)]))
    with pytest.raises(LogDamaged, match=f"the CHUNK record at LSN {lsn} cannot be read"):
        world.folded()


def test_a_commit_that_no_group_can_hold_is_refused_before_anything_is_written(world: World) -> None:
    topic = world.core.topic("/", "", "out")
    huge = Publishes(topic, DURABLE, [b"as it says"], size=(1 << 30) + 1)
    before = world.core.last_lsn
    with pytest.raises(InvalidArgument, match="has 1073741825 bytes, a group at most 1073741824"):
        world.core.sink_commit(world.now, Batch("query", 0), [huge])
    with pytest.raises(InvalidArgument, match="a batch has 1073741825 bytes"):
        world.core.publish(world.now, huge, publisher="p", sequence=1)
    assert world.core.last_lsn == before
    assert world.core.sink_state("query") is None
    assert world.core.publishers == {}
