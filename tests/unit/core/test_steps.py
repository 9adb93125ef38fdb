"""What is very much at once happens in steps: nothing is lost, counted twice or out of its place between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.commands import common_parts
from penstock.core.effects import Verb
from penstock.core.queue import contents, delays, expiry, timetable
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.queue import Queue
from penstock.core.queue.settling import leases
from penstock.core.state.durable import canonical
from penstock.records.chunks import as_chunk
from unit.core.world import SECOND, World, header


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (leases, contents, delays):
        monkeypatch.setattr(module, "STEP_MOST", 10)
    monkeypatch.setattr(delays, "STEP_TIMES", 5)
    monkeypatch.setattr(leases, "GATHERED_MOST", 4)


def holding(world: World, queue: Queue, count: int) -> tuple[Consumer, list[int]]:
    """A consumer that holds every second message of so many, and which those are."""
    consumer = world.subscribe(queue)
    for _ in range(count // 4):
        world.publish(queue.name, b"1", b"2", b"3", b"4")
    lsns = world.inbox[consumer]
    for lsn in lsns[::2]:
        world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.ACK, by=consumer)
    world.turn()
    return consumer, lsns[1::2]


def step(world: World, queue: Queue, look: Callable[[], None] = lambda: None) -> int:
    """Ticks until nothing is due; after each the queue is whole and the log says the same.  How many there were."""
    steps = 0
    while queue.is_due(world.now):
        world.core.tick(world.now)
        world.turn()
        queue.check()
        assert world.folded(100) == canonical(world.core.durable_state())
        look()
        steps += 1
        assert steps < 1000
    return steps


@pytest.mark.parametrize("lost", [True, False])
def test_of_a_consumer_that_goes_only_the_oldest_message_counts(lost: bool) -> None:
    world = World()
    queue = world.declare("q", max_deliveries=5)
    consumer, held = holding(world, queue, 96)
    world.core.unsubscribe(world.now, consumer, requeue=True, lost=lost)
    world.turn()
    assert 0 < queue.ready < len(held), "a step, not all"
    assert queue.ready + queue.leased == len(held)
    assert step(world, queue) >= 3
    assert (queue.ready, queue.leased, queue.outstanding) == (len(held), 0, 0)
    failures = {lsn: run.tally.failures for run in queue.returned.runs() for lsn in run.chunk}
    assert sorted(failures) == held
    assert [lsn for lsn, count in failures.items() if count] == (held[:1] if lost else [])
    again = world.subscribe(queue)
    assert world.inbox[again] == held


def test_a_message_that_waits_to_go_back_can_be_acknowledged_by_others_and_its_lease_ends_uncounted() -> None:
    world = World()
    queue = world.declare("q", lease_period=5 * SECOND, leasing="sublet")
    consumer, held = holding(world, queue, 96)
    world.core.unsubscribe(world.now, consumer, requeue=True)
    world.turn()
    world.core.settle(world.now, queue, [range(held[-1], held[-1] + 1)], Verb.ACK)
    world.mono += 10 * SECOND
    step(world, queue)
    assert queue.so_far.expired_leases == 0
    assert queue.ready == len(held) - 1
    assert all(run.tally.failures == 0 for run in queue.returned.runs())


def test_what_waits_to_go_back_goes_with_its_queue_and_comes_back_after_a_crash() -> None:
    world = World()
    for name in ("gone", "kept"):
        queue = world.declare(name)
        consumer, held = holding(world, queue, 96)
        world.core.unsubscribe(world.now, consumer, requeue=True, lost=True)
        world.turn()
        assert queue.leased
    world.core.delete_queue(world.now, world.core.queue("/", "gone"))
    world.turn()
    assert world.core.next_deadline()[1] == 0
    world.restart(clean=False)
    queue = world.core.queue("/", "kept")
    assert queue.ready == len(held)
    assert world.inbox[world.subscribe(queue)] == held


def test_leases_that_end_together_end_in_steps_and_all_count() -> None:
    world = World()
    queue = world.declare("q", lease_period=5 * SECOND)
    consumer, held = holding(world, queue, 96)
    world.core.choke(consumer)
    world.wall += 5 * SECOND
    world.mono += 5 * SECOND
    assert step(world, queue) >= 4
    assert queue.so_far.expired_leases == len(held) == queue.ready
    assert all((run.tally.deliveries, run.tally.failures) == (1, 1) for run in queue.returned.runs())
    world.core.unchoke_all(world.now, (consumer,))
    world.turn()
    assert world.inbox[consumer][-len(held) :] == held


def test_scheduled_messages_become_ready_in_steps_by_time_and_then_by_age() -> None:
    world = World()
    queue = world.declare("q")
    times = [(7 * n) % 23 for n in range(60)]
    lsns = [world.publish("q", b"later", properties=header(headers={"x-delay": 1000 + time})).first for time in times]
    assert queue.delayed == 60
    world.wall += 60 * SECOND
    assert step(world, queue) >= 5
    consumer = world.subscribe(queue)
    assert world.inbox[consumer] == [lsn for _, lsn in sorted(zip(times, lsns, strict=True))]


def test_scheduled_messages_of_one_moment_become_ready_in_steps() -> None:
    world = World()
    queue = world.declare("q")
    late = header(headers={"x-delay": 1000})
    lsns = [world.publish("q", b"later", properties=late).first for _ in range(60)]
    world.wall += 60 * SECOND
    step(world, queue)
    assert world.inbox[world.subscribe(queue)] == lsns


def test_back_off_that_ends_for_many_ends_in_steps() -> None:
    world = World()
    queue = world.declare("q")
    consumer = world.subscribe(queue)
    world.publish("q", *[b"1"] * 60)
    held = world.inbox[consumer]
    world.core.choke(consumer)
    for lsn in held:
        world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.CANCEL, by=consumer, delay=SECOND)
    assert queue.delayed == 60
    world.wall += 2 * SECOND
    assert step(world, queue) >= 6
    assert queue.ready == 60


def test_many_in_back_off_have_round_times_and_the_log_says_them() -> None:
    world = World()
    queue = world.declare("q")
    consumer = world.subscribe(queue)
    world.publish("q", *[b"1"] * 1100)
    for lsn in list(world.inbox[consumer]):
        world.wall += 1
        world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.CANCEL, by=consumer, delay=SECOND)
    world.turn()
    queue.check()
    assert world.folded(5000) == canonical(world.core.durable_state())
    ends = sorted(run.deadline for run in queue.delays.retries.runs() for _ in run.chunk)
    assert len(set(ends)) < 1024 + 10
    assert ends[-1] <= world.wall + SECOND + 10_000


def test_what_comes_back_one_by_one_keeps_order_and_tally_and_costs_little() -> None:
    world = World()
    queue = world.declare("q")
    consumer = world.subscribe(queue)
    world.publish("q", *[b"1"] * 5000)
    world.advance(0)
    held = list(world.inbox[consumer])
    world.core.choke(consumer)
    order = [held[(n * 2_741) % len(held)] for n in range(len(held))]
    for lsn in order:
        world.core.settle(world.now, queue, [as_chunk([lsn])], Verb.CANCEL, by=consumer)
    world.turn()
    queue.check()
    assert sum(1 for _ in queue.returned.runs()) < 1100
    assert {run.tally.cancels for run in queue.returned.runs()} == {1}
    world.core.unchoke_all(world.now, (consumer,))
    world.advance(0)
    assert world.inbox[consumer][5000:] == held


@pytest.mark.parametrize("own", [False, True])
def test_what_expires_together_goes_in_steps_and_nobody_gets_it_meanwhile(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "SPAN_MOST", 10)
    monkeypatch.setattr(expiry, "BLOCKS_MOST", 1)
    monkeypatch.setattr(timetable, "PIECE", 8)
    world = World()
    queue = world.declare("q", **({} if own else {"message_ttl": 10 * SECOND}))
    for n in range(60):
        world.wall += 1
        world.publish("q", b"1", properties=header(expiration=str(10_000 - n) if own else None))
    last = world.publish("q", b"last", properties=header(expiration="60000")).first if own else 0
    world.wall += 10 * SECOND
    consumer = world.subscribe(queue)
    assert queue.ready > 1, "a step, not all"
    assert world.inbox[consumer] == []
    assert world.core.next_deadline()[0] == 0
    assert step(world, queue, lambda: world.inbox[consumer] in ([], [last]) or pytest.fail("got what had expired")) > 3
    assert queue.ready == 0
    assert world.inbox[consumer] == ([last] if own else [])


def test_what_is_looked_up_by_key_goes_back_in_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "STEP_MOST", 4 * contents.OF_KEYS)
    world, steps = World(), list[int]()
    for name, key in (("plain", None), ("keyed", "/k")):
        queue = world.declare(name, fairness_key=key)
        consumer, held = holding(world, queue, 96)
        world.core.unsubscribe(world.now, consumer, requeue=True)
        steps.append(step(world, queue))
        assert queue.ready == len(held)
    assert steps[0] == 0, "at once"
    assert steps[1] >= 10


@pytest.mark.parametrize("what", ["lease_period", "message_ttl", "queue_expires", "x-delay"])
def test_what_falls_due_in_many_queues_at_once_goes_by_a_few_queues_a_turn(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common_parts, "DUE_MOST", 4)
    world = World()
    queues = [world.declare(f"q{n}", **({} if what == "x-delay" else {what: 5 * SECOND})) for n in range(11)]
    for queue in queues if what != "queue_expires" else ():
        world.publish(queue.name, b"1", properties=header(headers={"x-delay": 5000} if what == "x-delay" else None))
        if what == "lease_period":
            world.core.choke(world.subscribe(queue))
    world.wall += 5 * SECOND
    world.mono += 5 * SECOND

    def done(queue: Queue) -> bool:
        if what == "queue_expires":
            return world.core.find_queue("/", queue.name) is None
        return queue.ready == (what != "message_ttl")

    so_far = [0]
    while so_far[-1] < len(queues):
        wall, mono = world.core.next_deadline()
        assert mono == world.mono or (wall is not None and wall <= world.wall)
        world.core.tick(world.now)
        world.turn()
        so_far.append(sum(map(done, queues)))
    assert so_far == [0, 4, 8, 11]
    assert world.core.next_deadline() == (None, None)


def test_a_queue_whose_turn_comes_again_stands_behind_those_that_had_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_parts, "DUE_MOST", 2)
    world = World()
    deep = [world.declare(f"deep{n}", lease_period=5 * SECOND) for n in range(3)]
    for queue in deep:
        consumer, _ = holding(world, queue, 96)
        world.core.choke(consumer)
    last = world.declare("last", lease_period=5 * SECOND)
    world.publish("last", b"1")
    world.core.choke(world.subscribe(last))
    world.wall += 5 * SECOND
    world.mono += 5 * SECOND
    for _ in range(2):
        world.core.tick(world.now)
        world.turn()
    assert last.so_far.expired_leases == 1
    assert all(queue.is_due(world.now) for queue in deep)
