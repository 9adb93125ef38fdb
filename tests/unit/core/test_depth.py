"""Many queues and deep ones: what they cost, and that looking after them comes in steps."""

from __future__ import annotations

import gc
import tracemalloc
from unittest.mock import Mock

import pyarrow as pa
import pytest

from penstock.core.commands import life
from penstock.core.effects import Verb
from penstock.core.links.ownership import Claim
from penstock.core.links.sharing import Site
from penstock.core.queue import dedup, staging
from penstock.core.queue.explaining import where
from penstock.core.queue.groups import Groups
from penstock.core.queue.order import ranks, runs
from penstock.core.queue.places import standing
from penstock.core.queue.tenants import Tenant
from penstock.core.state.capture import BREATH
from penstock.core.state.durable import DurableState, canonical
from penstock.core.state.fold import Fold
from penstock.records.entries import Publishes
from penstock.records.queue_settings import QueueSettings
from unit.core.world import World, header


def test_an_idle_queue_costs_the_core_600_bytes_at_most() -> None:
    """The budget of the whole process is a kibibyte."""
    world = World()
    world.declare("first")  # what is made with the first of a process
    tracemalloc.start()
    for number in range(2_000):
        world.core.declare_queue(world.now, "/", f"queue-{number}", QueueSettings())
        world.core.take_journal()
        world.core.next_deadline()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used / 2_000 < 600


def test_the_floor_is_the_oldest_message_that_lives_anywhere() -> None:
    world = World()
    queues = [world.declare(f"q{number}") for number in range(3)]
    firsts = [world.publish(f"q{number}", b"1", b"2").first for number in (0, 1)]
    assert world.core.floor() == firsts[0]
    holder = world.subscribe(queues[0])
    assert world.core.floor() == firsts[0]
    world.core.settle(world.now, queues[0], [range(firsts[0], firsts[0] + 2)], Verb.ACK, by=holder)
    assert world.core.floor() == firsts[1]
    late = world.publish("q2", b"3")
    world.core.purge_queue(world.now, queues[1])
    assert world.core.floor() == late.first
    world.core.delete_queue(world.now, queues[2])
    assert world.core.floor() == world.core.next_lsn


KNOWN: dict[str, dict[str, object]] = {
    "groups": {"group_key": "/g"}, "tenants": {"fairness_key": "/g"}, "both": {"group_key": "/g", "fairness_key": "/t"},
    "last values": {"last_value_key": "/g"}, "ranks": {"priority_expression": "/g"},
    "unique": {"dedup_key": "/id", "unique": True},
}  # fmt: skip


@pytest.mark.parametrize("what", KNOWN)
def test_what_is_known_of_newcomers_stays_while_that_of_gone_messages_is_forgotten(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that had had 65,536 messages gave out no more of a group, or stopped at one that came to be delayed."""
    monkeypatch.setattr(dedup, "YOUNG", 4)
    monkeypatch.setattr(ranks, "DEAD_MOST", 8)
    monkeypatch.setattr(ranks, "PIECE", 4)
    world = World()
    queue, late, number = world.declare("q", **KNOWN[what]), header(headers={"x-delay": 60_000}), 0
    consumer, topic = world.subscribe(queue), world.core.topic("/", "", "q")
    for _ in range(40):
        some = range(number, number := number + 6)
        bodies = [b'{"g": %d, "t": %d, "id": %d}' % (one % 3, one % 2, one) for one in some]
        world.publish_all(
            *((topic, header() if one % 6 else late, body) for one, body in zip(some, bodies, strict=True))
        )
        while world.inbox[consumer]:
            got, world.inbox[consumer] = sorted(world.inbox[consumer]), []
            for lsn in got:
                world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.ACK, by=consumer)
            world.turn()
        queue.check()
        assert (queue.ready, queue.leased, queue.stopped) == (0, 0, False)
        assert queue.delayed


@pytest.mark.parametrize("where", ["inactive", "foreign"])
def test_keys_of_messages_that_wait_anywhere_are_not_looked_through_for_those_of_gone_ones(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup, "YOUNG", 4)
    monkeypatch.setattr(ranks, "DEAD_MOST", 8)
    world, looks = World(origin=7), list[object]()
    monkeypatch.setattr(dedup.Keys, "load", lambda *told: looks.append(told))
    depth = 1 if where == "inactive" else 0
    queue = world.declare("q", dedup_key="/id", unique=True, target_queue_depth=depth)
    first, *_, last = [world.publish("q", b'{"id": %d}' % number).first for number in range(40)]
    if where == "foreign":
        for name, origin in (("a", 7), ("b", 8)):
            world.core.meet(world.now, Site(name, origin, "east"))
        world.core.own(world.now, queue, [(first, last + 1)], Claim("b", 1, "transfer"))
    for number in range(40, 60):
        world.publish("q", b'{"id": %d}' % number)
    assert (queue.inactive, queue.foreign_count) == ((59, 0) if depth else (0, 40))
    assert not looks


@pytest.mark.parametrize("keys", [7, 1000], ids=["seven keys", "each its own"])
@pytest.mark.parametrize("what", ["groups", "tenants", "both"])
def test_a_purge_looks_at_no_message_and_at_no_key_by_itself(
    what: str, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    queue = world.declare("q", **KNOWN[what])
    for number in range(0, 1000, 10):
        numbers = [n % keys for n in range(number, number + 10)]
        world.publish("q", *(b'{"g": "%d", "t": "%d"}' % (n, n) for n in numbers))
    worker = world.subscribe(queue, max_backlog=9)
    held = len(world.inbox[worker])
    of, front, clear = staging.Keys.of, Groups.front, Tenant.clear
    looks = Mock()
    monkeypatch.setattr(staging.Keys, "of", lambda *told: [looks(), of(*told)][1])
    monkeypatch.setattr(Groups, "front", lambda *told: [looks(), front(*told)][1])
    monkeypatch.setattr(Tenant, "clear", lambda *told: [looks(), clear(*told)][1])
    assert world.core.purge_queue(world.now, queue) == 1000 - held
    assert looks.call_count < 100
    queue.check()
    world.publish("q", *(b'{"g": "%d", "t": "%d"}' % (n % 7, n % 5) for n in range(35)))
    for lsn in world.inbox[worker]:  # grows while what it holds is acknowledged
        world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.ACK, by=worker)
        world.turn()
    queue.check()
    assert len(world.inbox[worker]) == held + 35
    assert (queue.ready, queue.leased) == (0, 0)


@pytest.mark.parametrize("what", [None, *KNOWN])
def test_a_look_at_a_few_messages_is_no_look_at_each_that_came_back_or_is_out(
    what: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    queue = world.declare("q", **KNOWN.get(what or "", {}))
    topic = world.core.topic("/", "", "q")
    for number in range(0, 600, 2):  # each becomes due in its own moment, and some are leased one by one
        bodies = [b'{"g": "%d", "t": "%d", "id": %d}' % (n % 7, n % 5, n) for n in (number, number + 1)]
        due = [world.wall + 1_000_000 + 7 * n for n in (number + 1, number)]
        world.core.publish(world.now, Publishes(topic, header(), bodies, not_before=due))
        world.turn()
    world.advance(2)
    worker = world.subscribe(queue, max_backlog=200)
    lsns = sorted(lsn for chunk in queue.chunks() for lsn in chunk)
    looks, sift = Mock(), runs.sift
    monkeypatch.setattr(runs, "sift", lambda *told: [looks(), sift(*told)][1])
    assert queue.lives(lsns[0])
    assert not queue.lives(lsns[-1] + 1)
    assert where(queue, lsns[-1], world.now)
    assert len(list(standing(queue, most=5))) < 60
    assert looks.call_count < 60
    assert worker.outstanding


def test_the_floor_is_looked_up_a_few_queues_at_a_time() -> None:
    world = World()
    for number in range(10):
        world.declare(f"q{number}")
        world.publish(f"q{number}")
    while world.core.look_for_floor(100):
        pass
    for queue in world.core.queues()[:9]:
        world.core.purge_queue(world.now, queue)
    steps = 1
    while world.core.look_for_floor(4):
        steps += 1
    assert steps == 3
    assert world.core.floor() == world.core.queues()[9].floor()


def test_a_state_taken_in_steps_and_the_records_after_its_cut_give_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(life, "CAPTURE_MOST", 1_000)
    for number in range(600):
        world.declare(f"q{number}")
    world.publish("q599", b"before", b"gone")
    done = len(world.tables)
    snapshot = world.core.snapshot()
    steps = 0
    for _ in world.core.capture(snapshot):
        steps += 1
        world.publish("q0", b"after")
        world.publish("q599", b"between")
        queue = world.core.queue("/", "q599")
        consumer = world.subscribe(queue, max_backlog=2)
        world.core.settle(world.now, queue, [range(world.inbox[consumer][0], world.core.next_lsn)], Verb.CANCEL)
        world.core.unsubscribe(world.now, consumer, requeue=True, lost=True)
        if steps == 1:
            world.core.delete_queue(world.now, world.core.queue("/", "q598"))
        world.turn()
    assert steps >= 2
    saved = snapshot.encode()
    world.core.captured(snapshot)
    fold = Fold(DurableState.decode(saved))
    fold.feed(pa.concat_tables(world.tables[done:]))
    assert fold.finish() == canonical(world.core.durable_state()) == world.folded(1_000)


def test_a_checkpoint_of_many_idle_queues_takes_few_bytes_for_each_while_it_is_made() -> None:
    world = World()
    count = 2_000
    for number in range(count):
        world.declare(f"q{number}")
    world.core.durable_state().encode()  # what the first of everything costs
    gc.collect()
    tracemalloc.start()
    try:
        snapshot = world.core.snapshot()
        for _ in world.core.capture(snapshot):
            pass
        captured = tracemalloc.get_traced_memory()[0]
        saved = snapshot.encode()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert captured < 170 * count
    assert peak - captured < 3 * len(saved) + 200_000  # pieces, and joined; of the queues some are objects at a time
    assert len(saved) < 80 * count


def test_whoever_encodes_many_queues_lets_others_in_now_and_then() -> None:
    world = World()
    for number in range(3 * BREATH + 1):
        world.declare(f"q{number}")
    breaths: list[bool] = []
    snapshot = world.core.snapshot()
    for _ in world.core.capture(snapshot):
        pass
    assert DurableState.decode(snapshot.encode(lambda: breaths.append(True))) == canonical(world.core.durable_state())
    assert len(breaths) == 3


def test_exclusive_queues_end_with_their_connection_alone() -> None:
    world = World()
    mine, other = object(), object()
    for number in range(4):
        holder = (mine, other)[number % 2]
        world.core.declare_queue(world.now, "/", f"q{number}", QueueSettings(), exclusive_to=holder)
    world.core.end_exclusive(world.now, mine, 100)
    world.core.end_exclusive(world.now, mine, 100)
    assert [queue.name for queue in world.core.queues()] == ["q1", "q3"]
