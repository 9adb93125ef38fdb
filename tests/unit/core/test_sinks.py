"""Sinks: a batch is taken whole or not at all, and queries are remembered within a bound."""

from __future__ import annotations

import pytest

from penstock.core.state.durable import canonical, decode
from penstock.core.state.pending import DecidedPart
from penstock.core.streams import sinks
from penstock.core.streams.sinks import Batch
from penstock.errors import NotFound, PreconditionFailed, QueueFull
from penstock.records.entries import Control, Publishes
from penstock.records.kinds import Kind
from penstock.records.properties import PERSISTENT, Properties, encode
from unit.core.world import DURABLE, World


@pytest.fixture
def world() -> World:
    world = World()
    world.declare("full", max_length=3, overflow="reject-publish")
    world.declare("free")
    return world


def rows(world: World, topic: str, *bodies: bytes, properties: bytes = DURABLE) -> Publishes:
    return Publishes(world.core.topic("/", "", topic), properties, list(bodies))


def contents(world: World, queue: str) -> list[bytes]:
    return world.contents(world.core.queue("/", queue))


def test_a_full_queue_refuses_the_whole_batch(world: World) -> None:
    world.publish("full", b"1", b"2")
    world.turn()
    before = world.core.last_lsn
    outputs = [rows(world, "free", b"x"), rows(world, "full", b"3", b"4")]
    with pytest.raises(QueueFull, match=r"nothing of batch 0 of query 'q' is visible: queue 'full' .* max_length is 3"):
        world.core.sink_commit(world.now, Batch("q", 0), outputs)
    assert world.core.last_lsn == before
    assert world.core.sink_state("q") is None
    assert world.core.sink_commit(world.now, Batch("q", 0), outputs[:1] + [rows(world, "full", b"3")]).stored == 2
    world.turn()
    assert contents(world, "full") == [b"1", b"2", b"3"]
    assert contents(world, "free") == [b"x"]
    assert canonical(world.core.durable_state()) == world.folded()


def test_more_than_a_queue_may_ever_hold_is_another_sentence(world: World) -> None:
    outputs = [rows(world, "full", b"1", b"2"), rows(world, "full", b"3", b"4")]
    with pytest.raises(PreconditionFailed, match="brings 4 messages to queue 'full'.*may never hold.*max_length is 3"):
        world.core.sink_commit(world.now, Batch("q", 0), outputs)
    world.declare("small", max_length_bytes=10, overflow="reject-publish")
    with pytest.raises(PreconditionFailed, match="max_length_bytes is 10; raise the limit, or make batches smaller"):
        world.core.sink_commit(world.now, Batch("q", 0), [rows(world, "small", b"12345", b"678901")])


def test_a_row_that_is_refused_for_itself_refuses_its_batch(world: World) -> None:
    bad = encode(Properties(delivery_mode=PERSISTENT, headers={"x-dedup-key": True}))
    outputs = [rows(world, "free", b"1", b"2"), rows(world, "free", b"3", properties=bad)]
    with pytest.raises(PreconditionFailed, match="its message 3 is refused: invalid header 'x-dedup-key'"):
        world.core.sink_commit(world.now, Batch("q", 0), outputs)
    assert contents(world, "free") == []


def test_a_topic_that_nobody_keeps(world: World) -> None:
    nobody = [rows(world, "free", b"1"), rows(world, "nobody", b"2")]
    with pytest.raises(NotFound, match="no queue takes topic 'nobody' in vhost '/'.*would be lost"):
        world.core.sink_commit(world.now, Batch("q", 0, mandatory=True), nobody)
    assert world.core.sink_commit(world.now, Batch("q", 0), nobody).stored == 1


def test_what_is_decided_goes_over_a_limit(world: World) -> None:
    """A batch that had room when it was looked at: others may have come in meanwhile, and nothing of it is lost."""
    whole = world.core.sink_whole("q", 0)
    for bodies in ((b"1", b"2"), (b"3",)):
        world.core.sink_look(world.now, whole, [rows(world, "full", *bodies)])
    whole.room()
    world.core.sink_decide(world.now, Batch("q", 0), [DecidedPart("0" * 32, 3, 300, 1, "full", "", "/")])
    world.publish("full", b"meanwhile")
    world.core.sink_copy(world.now, "q", 3, [rows(world, "full", b"1", b"2", b"3")])
    world.turn()
    assert contents(world, "full") == [b"meanwhile", b"1", b"2", b"3"]
    again = world.core.sink_whole("q", 1)
    world.core.sink_look(world.now, again, [rows(world, "full", b"4")])
    with pytest.raises(QueueFull, match="batch 1 of query 'q'"):
        again.room()


def forgotten(world: World) -> list[str]:
    entries = [one for entry in world.core.journal for one in getattr(entry, "entries", [entry])]
    return [one.header.decode() for one in entries if isinstance(one, Control) and one.kind is Kind.SINK_FORGET]


def test_queries_beyond_the_bound_are_forgotten_oldest_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "KEPT", 10)
    monkeypatch.setattr(sinks, "AT_ONCE", 15)
    for number in range(12):
        world.core.sink_commit(world.now, Batch(f"q{number}", 5), [])
    world.core.sink_decide(world.now, Batch("q0", 6), [DecidedPart("0" * 32, 1, 100, 1, "free", "", "/")])
    world.core.sink_commit(world.now, Batch("q1", 6), [])
    world.turn()
    assert len(world.core.sinks.batches) == 12
    world.core.sink_commit(world.now, Batch("new", 0, name="orders"), [])
    assert forgotten(world) == ['{"queries":["q2","q3","q4"]}']
    world.turn()
    assert sorted(world.core.sinks.batches) == ["new", "q0", "q1", "q10", "q11", "q5", "q6", "q7", "q8", "q9"]
    state = world.core.durable_state()
    assert canonical(state) == world.folded() == decode(canonical(state).encode())
    world.restart(clean=False)
    assert world.core.sinks.marks["new"].name == "orders"
    assert world.core.sink_commit(world.now, Batch("q11", 5), []).already is True


def test_a_batch_write_is_remembered_for_a_day(world: World) -> None:
    world.core.sink_commit(world.now, Batch("write-1", 0, once=True), [rows(world, "free", b"1")])
    world.turn()
    world.advance(86_000)
    assert world.core.sink_commit(world.now, Batch("write-1", 0, once=True), []).already is True
    world.restart(clean=True)
    world.core.sink_commit(world.now, Batch("write-2", 0, once=True), [])
    world.turn()
    world.advance(86_401)
    world.core.sink_commit(world.now, Batch("write-3", 0, once=True), [])
    world.turn()
    assert set(world.core.sinks.batches) == {"write-3"}
    assert canonical(world.core.durable_state()) == world.folded()


def test_beyond_the_bound_a_batch_write_is_remembered_for_an_hour(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "WRITES_KEPT", 10)
    monkeypatch.setattr(sinks, "AT_ONCE", 15)
    for number in range(20):
        world.core.sink_commit(world.now, Batch(f"w{number:02}", 0, once=True), [])
        world.turn()
        world.advance(60)
    world.core.sink_decide(world.now, Batch("w00", 1, once=True), [DecidedPart("0" * 32, 1, 100, 1, "free", "", "/")])
    world.turn()
    assert len(world.core.sinks.batches) == 20  # somebody may ask for each of them
    world.advance(2700)  # an hour since the first five
    world.core.sink_commit(world.now, Batch("w20", 0, once=True), [])
    assert forgotten(world) == ['{"queries":["w01","w02","w03","w04","w05"]}']
    world.turn()
    world.advance(3600)
    world.core.sink_commit(world.now, Batch("w21", 0, once=True), [])
    world.turn()
    world.core.sink_commit(world.now, Batch("w22", 0, once=True), [])
    world.turn()
    assert sorted(world.core.sinks.batches) == ["w00", *(f"w{number:02}" for number in range(13, 23))]
    assert canonical(world.core.durable_state()) == world.folded()
    world.restart(clean=True)
    assert world.core.sink_commit(world.now, Batch("w22", 0, once=True), []).already is True


def test_versions_that_may_come_late_are_skipped(world: World) -> None:
    """Also while a higher one is decided, and after a start; elsewhere a lower number is a mistake and told."""

    def commit(number: int, *, skip_late: bool = True) -> bool:
        output = [rows(world, "free", str(number).encode())]
        return world.core.sink_commit(world.now, Batch("app", number, skip_late=skip_late), output).already

    assert [commit(number) for number in (7, 7, 3, 9)] == [False, True, True, False]
    with pytest.raises(PreconditionFailed, match="has committed batch 9; batch 3 comes too late"):
        commit(3, skip_late=False)
    part = DecidedPart("0" * 32, 1, 100, 1, "free", "", "/")
    assert world.core.sink_decide(world.now, Batch("app", 12, skip_late=True), [part]).already is False
    assert world.core.sink_decide(world.now, Batch("app", 11, skip_late=True), [part]).already is True
    world.core.sink_copy(world.now, "app", 1, [rows(world, "free", b"12")])
    assert commit(2**63 - 1) is False
    world.turn()
    world.restart(clean=False)
    assert [commit(number) for number in (2**63 - 1, 12)] == [True, True]
    assert contents(world, "free") == [b"7", b"9", b"12", str(2**63 - 1).encode()]


@pytest.mark.parametrize("clean", [True, False])
def test_a_batch_that_was_committed_elsewhere_is_not_taken_for_done(world: World, clean: bool) -> None:
    """Of two queries with one checkpoint the second one would go on without its rows, and its target have none."""

    def commit(number: int, target: str = "") -> bool:
        return world.core.sink_commit(world.now, Batch("q", number, target=target), [rows(world, "free", b"x")]).already

    assert [commit(4, "here"), commit(4, "here"), commit(4)] == [False, True, True]
    world.turn()
    world.restart(clean=clean)
    with pytest.raises(
        PreconditionFailed, match="has committed batch 4 to here, and now it goes to there: two queries"
    ):
        commit(4, "there")
    assert commit(4, "here") is True
    assert commit(5, "there") is False, "the target was changed between two batches"
    with pytest.raises(PreconditionFailed, match="committed batch 5 to there, and now it goes to here"):
        commit(5, "here")
    part = DecidedPart("0" * 32, 1, 100, 1, "free", "", "/")
    assert world.core.sink_decide(world.now, Batch("q", 6, target="here"), [part]).already is False
    world.core.sink_copy(world.now, "q", 1, [rows(world, "free", b"6")])
    with pytest.raises(PreconditionFailed, match="committed batch 6 to here"):
        world.core.sink_decide(world.now, Batch("q", 6, target="there"), [part])
