"""A batch that comes to nothing again and again: narrowed to the row to blame, and never once somebody may have it."""

from __future__ import annotations

from array import array

import pytest

from penstock.core.effects import Verb
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import canonical
from penstock.core.streams import Link, Resumed
from penstock.core.streams.sinks import Batch
from penstock.errors import Fenced, NotFound, PreconditionFailed
from penstock.records.causes import death_reason
from penstock.records.entries import Publishes
from unit.core.world import DURABLE, World, header


class Reader:
    """A query over queue `q` that dies of one body, as Spark runs it: a new reader with each start."""

    def __init__(self, world: World, poison: tuple[bytes, ...], *, limit: int = 3, rows: int = 1000) -> None:
        self.world, self.poison, self.limit, self.rows = world, poison, limit, rows
        self.logged = self.done = 0  # Spark's offset log, and its commit log
        self.out: list[bytes] = []
        self.failures = 0
        self.sizes: list[int] = []

    @property
    def queue(self) -> Queue:
        return self.world.core.queue("/", "q")

    def run(self) -> bool:
        """One start, to its failure or until nothing is ready: whether it came to the end."""
        streams, now = self.world.core.streams, self.world.now
        epoch = streams.open(now, "s", self.queue).epoch
        while True:
            if self.logged == self.done:
                answer = streams.plan(now, "s", epoch, self.done, self.rows)
                if answer.batch == self.done:
                    self.world.turn()
                    return True
                self.logged = answer.batch
                revision = answer.revision
            else:
                resumed = streams.poison.resume(now, "s", epoch, self.logged, self.limit)
                assert (
                    resumed == streams.poison.resume(now, "s", epoch, self.logged, self.limit)
                    or resumed.link is not None
                )
                revision = resumed.revision
            chunks = streams.poison.read("s", self.logged, revision, Link(self.logged, "query", self.logged))
            self.world.turn()
            bodies = [self.world.rows[lsn][0].bodies[self.world.rows[lsn][1]] for chunk in chunks for lsn in chunk]
            self.sizes.append(len(bodies))
            assert canonical(self.world.core.durable_state()) == self.world.folded()
            if any(body in self.poison for body in bodies):
                self.failures += 1
                return False
            self.out += bodies
            self.done = self.logged


@pytest.fixture
def world() -> World:
    world = World()
    world.declare("dead")
    world.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead", max_deliveries=2)
    return world


@pytest.mark.parametrize("poison", [(0,), (299,), (150,), (17, 18, 250)])
def test_the_row_to_blame_is_put_aside_and_the_others_come_once(world: World, poison: tuple[int, ...]) -> None:
    bad = tuple(b"%d" % n for n in poison)
    world.publish("q", *(b"%d" % n for n in range(300)))
    reader = Reader(world, bad)
    while not reader.run():
        assert reader.failures < 40
    assert sorted(reader.out + list(bad)) == sorted(b"%d" % n for n in range(300))
    if len(poison) == 1:
        assert reader.failures in (3 + 1 + 3, 3 + 2 + 3)  # the batch, then 19 (or the last 15) and 2 rows, then the row
        assert reader.out == [b"%d" % n for n in range(300) if n not in poison], "in order"
    dead = world.core.queue("/", "dead")
    assert world.contents(dead) == sorted(bad)
    assert {death_reason(world.headers(lsn)) for chunk in dead.snapshot()[0] for lsn in chunk} == {"poison"}
    assert world.headers(world.core.queue("/", "dead").main.after(0, 1)[0])["x-first-death-reason"] == "rejected"
    assert (reader.queue.ready, reader.queue.leased, reader.queue.so_far.acked) == (0, 0, 300 - len(bad))
    world.publish("q", *(b"new" for _ in range(300)))
    assert reader.run()
    assert reader.sizes[-1] == 300, "batches are as large as before"
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(50)


def test_without_a_limit_a_batch_stays_what_it_is(world: World) -> None:
    world.publish("q", *(b"%d" % n for n in range(30)))
    reader = Reader(world, (b"3",), limit=0)
    for _ in range(10):
        assert not reader.run()
    assert set(reader.sizes) == {30}
    assert world.core.streams.state("s").doubt.tries == 9


def test_a_batch_that_a_sink_has_committed_stays_what_it_is(world: World) -> None:
    """Its output is out; a kill before Spark's own commit, however often, must not change what it was made of."""
    world.publish("q", *(b"%d" % n for n in range(30)))
    reader = Reader(world, (b"3",))
    assert not reader.run()
    world.core.sink_commit(world.now, Batch("query", 1), [])
    for _ in range(10):
        assert not reader.run()
    assert set(reader.sizes) == {30}


def test_nothing_is_narrowed_while_nobody_knows_whose_batch_it_is(world: World) -> None:
    world.publish("q", *(b"%d" % n for n in range(30)))
    streams = world.core.streams
    streams.plan(world.now, "s", streams.open(world.now, "s", world.core.queue("/", "q")).epoch, 0, 100)
    for tries in range(1, 7):
        epoch = streams.open(world.now, "s", world.core.queue("/", "q")).epoch
        assert streams.poison.resume(world.now, "s", epoch, 1, 3) == Resumed(30, 0, tries)
        streams.poison.read("s", 1, 0)
    streams.poison.read("s", 1, 0, Link(1, "query", 0))
    world.turn()
    world.restart(clean=False)
    streams = world.core.streams
    epoch = streams.open(world.now, "s", world.core.queue("/", "q")).epoch
    assert streams.poison.resume(world.now, "s", epoch, 1, 3) == Resumed(30, 0, 7), (
        "tries are durable, whose it was is not"
    )


def test_a_reader_of_what_was_before_is_refused(world: World) -> None:
    world.publish("q", *(b"%d" % n for n in range(32)))
    reader = Reader(world, (b"1",), limit=1)
    assert not reader.run()
    assert not reader.run()
    assert reader.sizes == [32, 2]
    with pytest.raises(Fenced, match="stream 's' batch 1 was narrowed, because it failed"):
        world.core.streams.poison.read("s", 1, 0)


def test_a_fenced_reader_of_a_batch_that_is_gone_is_told_of_the_fence(world: World) -> None:
    """Its tasks may be the first that notice, and a lost batch may be taken for an empty one."""
    world.publish("q", *(b"%d" % n for n in range(30)))
    streams = world.core.streams
    queue = world.core.queue("/", "q")
    old = streams.open(world.now, "s", queue).epoch
    assert streams.plan(world.now, "s", old, 0, 5).batch == 1
    new = streams.open(world.now, "s", queue, "another").epoch
    assert sum(map(len, streams.poison.read("s", 1, 0, epoch=old))) == 5, "what is known may be read"
    for batch in range(5):
        streams.plan(world.now, "s", new, batch, 5)
    with pytest.raises(Fenced, match="stream 's' is now read by another under epoch 2; epoch 1 is over"):
        streams.poison.read("s", 1, 0, epoch=old)
    with pytest.raises(NotFound, match="stream 's' knows no batch 1"):
        streams.poison.read("s", 1, 0, epoch=new)


def test_a_batch_that_another_query_reads_is_committed_by_that_one_alone(world: World) -> None:
    """Two queries with one stream and no fence between them: what both have read comes out once."""
    world.publish("q", *(b"%d" % n for n in range(5)))
    out, queue = world.declare("out"), world.core.queue("/", "q")
    topic, streams = world.core.topic("/", "", "out"), world.core.streams
    epoch = streams.open(world.now, "s", queue).epoch
    assert streams.plan(world.now, "s", epoch, 0, 5).batch == 1
    for query in ("first", "second"):
        streams.poison.read("s", 1, 0, Link(1, query, 0))
    world.turn()
    told = "batch 1 of stream 's' is now read by query second, not by first"
    with pytest.raises(Fenced, match=told):
        world.core.sink_commit(world.now, Batch("first", 0, [("s", epoch, 1)]), [Publishes(topic, DURABLE, [b"x"])])
    world.turn()
    assert (queue.leased, streams.state("s").floor, out.ready) == (5, 0, 0), "nothing of it is done"
    world.core.sink_commit(world.now, Batch("second", 0, [("s", epoch, 1)]), [Publishes(topic, DURABLE, [b"x"])])
    world.turn()
    assert (queue.leased, streams.state("s").floor, out.ready) == (0, 1, 1)


def test_what_goes_back_belongs_to_everybody(world: World) -> None:
    """A worker may take what was narrowed away, at its first delivery; the stream goes on with what is left."""
    world.publish("q", *(b"%d" % n for n in range(32)))
    reader = Reader(world, (b"0",), limit=1)
    reader.run()
    streams = world.core.streams
    epoch = streams.open(world.now, "s", reader.queue).epoch
    assert streams.poison.resume(world.now, "s", epoch, 1, 1).left == 30
    world.turn()
    worker = world.subscribe(reader.queue, max_backlog=10)
    world.turn()
    taken = list(world.inbox[worker])
    assert len(taken) == 10
    world.core.settle(world.now, reader.queue, [array("q", taken)], Verb.ACK, by=worker)
    world.core.unsubscribe(world.now, worker, requeue=True)
    world.turn()
    while not reader.run():
        pass
    assert len(reader.out) == 32 - 10 - 1
    assert reader.queue.ready == reader.queue.leased == 0


def test_when_every_row_fails_it_is_the_code(world: World) -> None:
    world.publish("q", *(b"same" for _ in range(40)))
    reader = Reader(world, (b"same",), limit=1)
    for _ in range(100):
        assert not reader.run()
    assert world.core.queue("/", "dead").ready == 10
    assert world.core.streams.state("s").doubt.poisoned == 10


def test_release_forgets_what_was_doubted(world: World) -> None:
    world.publish("q", *(b"%d" % n for n in range(32)))
    reader = Reader(world, (b"1",), limit=1)
    reader.run()
    reader.run()
    world.core.streams.release(world.now, "s")
    world.turn()
    assert world.core.streams.state("s").doubt.levels == []
    assert reader.queue.ready == 32
    assert canonical(world.core.durable_state()) == world.folded()


def test_a_batch_of_a_queue_with_priorities_is_in_the_order_of_the_log(world: World) -> None:
    world.declare("ranked", max_priority=9)
    for priority in (1, 5, 1, 9):
        world.publish("ranked", b"%d" % priority, properties=header(priority=priority))
    streams = world.core.streams
    epoch = streams.open(world.now, "r", world.core.queue("/", "ranked")).epoch
    lsns = [lsn for chunk in streams.plan(world.now, "r", epoch, 0, 3).chunks for lsn in chunk]
    assert lsns == sorted(lsns)
    assert [world.rows[lsn][0].bodies[world.rows[lsn][1]] for lsn in lsns].count(b"1") == 1


def test_a_query_that_counts_anew_gets_no_rows_that_its_sink_would_drop(world: World) -> None:
    """Its checkpoint has lost its first entries and kept its id: sinks know its batch 0 already."""
    world.publish("q", *(b"%d" % n for n in range(8)))
    streams, now = world.core.streams, world.now
    epoch = streams.open(now, "s", world.core.queue("/", "q")).epoch
    streams.plan(now, "s", epoch, 0, 4)
    streams.poison.read("s", 1, 0, Link(1, "query", 0))
    streams.plan(now, "s", epoch, 1, 4)
    world.turn()
    world.restart(clean=False)
    streams = world.core.streams
    with pytest.raises(PreconditionFailed, match="batch 2 of stream 's' would be batch 0 of query query"):
        streams.poison.read("s", 2, 0, Link(2, "query", 0))
    streams.poison.read("s", 2, 0, Link(2, "query", 1))
    streams.poison.read("s", 2, 0, Link(2, "another", 0))


def test_a_failure_for_which_no_row_is_to_blame_changes_nothing(world: World) -> None:
    world.publish("q", b"a", b"b")
    streams, now = world.core.streams, world.now
    epoch = streams.open(now, "s", world.core.queue("/", "q")).epoch
    plan = streams.plan(now, "s", epoch, 0, 10)
    streams.poison.read("s", 1, plan.revision, Link(1, "query", 1))
    for _ in range(5):
        epoch = streams.open(now, "s", world.core.queue("/", "q")).epoch
        assert streams.poison.resume(now, "s", epoch, 1, 1, blame=False) == Resumed(2, 0, 0)
    epoch = streams.open(now, "s", world.core.queue("/", "q")).epoch
    assert streams.poison.resume(now, "s", epoch, 1, 1).rows == 1


@pytest.mark.parametrize("meanwhile", ["opened", "read", "committed", "released", "restarted"])
def test_a_batch_is_in_one_commit_whoever_has_read_it(meanwhile: str) -> None:
    """A driver that was taken for dead commits the batch that another one reads, or has done, by now: not both do."""
    world = World()
    world.declare("q")
    world.declare("out")
    world.publish("q", b"1", b"2")

    def began(query: str, *, reads: bool = True) -> int:
        streams = world.core.streams
        epoch = streams.open(world.now, "s", world.core.queue("/", "q")).epoch
        assert streams.plan(world.now, "s", epoch, 0, 10).batch == 1
        if reads:
            streams.poison.read("s", 1, 0, Link(1, query, 0, epoch), epoch)
        return epoch

    def committed(query: str) -> bool:
        """As the door does it, by the epoch that the stream has."""
        epoch = world.core.streams.state("s").epoch
        rows = Publishes(world.core.topic("/", "", "out"), DURABLE, [b"1", b"2"])
        try:
            return not world.core.sink_commit(world.now, Batch(query, 0, [("s", epoch, 1)]), [rows]).already
        except (Fenced, PreconditionFailed):
            return False
        finally:
            world.turn()

    began("first")
    world.turn()
    if meanwhile == "released":
        world.core.streams.release(world.now, "s")
    else:
        if meanwhile == "restarted":
            world.restart(clean=False)  # and with it goes what was known of who has read what
        began("second", reads=meanwhile != "opened")
    done = {query: committed(query) for query in ("second", "first")} if meanwhile == "committed" else {}
    done = done or {"first": committed("first")}
    world.turn()
    assert done["first"] is False
    if meanwhile == "released":
        assert (world.core.queue("/", "q").ready, world.core.queue("/", "out").ready) == (2, 0)
        return
    if meanwhile == "opened":
        began("second")
    assert meanwhile == "committed" or committed("second")
    assert (world.core.queue("/", "q").so_far.acked, world.core.queue("/", "out").ready) == (2, 2)
    assert canonical(world.core.durable_state()) == world.folded()


def test_a_query_is_told_that_another_one_has_done_its_batch() -> None:
    """Nobody knows any more who has read what: the one that commits first has it."""
    world = World()
    world.declare("q")
    out = world.declare("out")
    world.publish("q", b"1")
    streams = world.core.streams
    epoch = streams.open(world.now, "s", world.core.queue("/", "q")).epoch
    streams.plan(world.now, "s", epoch, 0, 10)
    rows = Publishes(world.core.topic("/", "", "out"), DURABLE, [b"1"])
    world.core.sink_commit(world.now, Batch("first", 0, [("s", epoch, 1)]), [rows])
    world.restart(clean=False)
    with pytest.raises(PreconditionFailed, match="settled by query first, and query second brings it again"):
        world.core.sink_commit(world.now, Batch("second", 0, [("s", epoch, 1)]), [rows])
    assert world.core.sink_commit(world.now, Batch("first", 0, [("s", epoch, 1)]), [rows]).already
    assert out is not None
