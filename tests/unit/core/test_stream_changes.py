"""Mode `changes`: what came and what went, by differences that add up to what is available."""

from __future__ import annotations

import random

import pytest

from penstock.core.effects import Verb
from penstock.core.state.durable import canonical
from penstock.core.streams.stream_table import Difference, available, difference
from penstock.errors import Fenced, PreconditionFailed
from unit.core.world import World

NAME = "view"


def opened(world: World, *, anew: bool = False) -> int:
    queue = world.core.queue("/", "q")
    epoch = world.core.streams.open(world.now, NAME, queue, "driver", "changes", anew=anew).epoch
    world.turn()
    return epoch


def ready(world: World) -> set[int]:
    queue = world.core.queue("/", "q")
    runs = [run.chunk for run in queue.returned.runs()]
    return {lsn for chunk in (*queue.main.chunks(), *runs) for lsn in chunk}


def plan(world: World, epoch: int, start: int, rows: int = 1000) -> int:
    changes, queue = world.core.streams.changes, world.core.queue("/", "q")
    chunks = [*queue.main.chunks(), *(run.chunk for run in queue.returned.runs())]
    found = difference(changes.counted(NAME), available(chunks), rows)
    end = changes.plan(world.now, NAME, epoch, start, queue.id, found)
    world.turn()
    return end


def batch(world: World, number: int) -> set[int]:
    return {lsn for chunk in world.core.streams.batch(NAME, number) for lsn in chunk}


@pytest.fixture
def world() -> World:
    world = World()
    world.declare("q", lease_period=1_000_000_000, max_deliveries=100)
    return world


def test_differences_add_up(world: World) -> None:
    """Random publishes, leases, acks and returns; what was counted is what is available at each plan."""
    rng = random.Random(7)
    epoch, at, counted, held = opened(world), 0, set[int](), list[int]()
    queue = world.core.queue("/", "q")
    consumer = None
    for _ in range(150):
        match rng.randrange(5):
            case 0 | 1:
                world.publish("q", *(b"%d" % n for n in range(rng.randrange(1, 9))))
            case 2:
                if consumer is None:
                    consumer = world.subscribe(queue, max_backlog=5)
                    world.turn()
                held = [lsn for run in consumer.leases.runs for lsn in run.chunk]
            case 3 if held:
                some = sorted(rng.sample(held, rng.randrange(1, len(held) + 1)))
                verb = rng.choice((Verb.ACK, Verb.RELEASE, Verb.CANCEL))
                world.core.settle(world.now, queue, [range(lsn, lsn + 1) for lsn in some], verb)
                world.turn()
                held = []
            case _:
                limit = rng.choice((3, 1000))
                end = plan(world, epoch, at, limit)
                if end != at:
                    went, came = batch(world, at + 1), batch(world, at + 2)
                    assert went <= counted
                    assert not came & counted
                    assert len(went) + len(came) <= limit
                    counted = (counted - went) | came
                    assert plan(world, epoch, at, 1) == end  # asked again
                    at = end
                if limit == 1000:
                    assert counted == ready(world)
    assert at > 20
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(100)


def test_an_old_checkpoint_and_a_fenced_reader(world: World) -> None:
    epoch = opened(world)
    world.publish("q", b"1")
    at = plan(world, epoch, 0)
    world.publish("q", b"2")
    assert plan(world, epoch, at) == at + 2
    assert plan(world, epoch, 0) == at  # the last two are known
    world.publish("q", b"3")
    plan(world, epoch, at + 2)
    with pytest.raises(PreconditionFailed, match="one of them is an old copy; delete the checkpoint"):
        plan(world, epoch, 0)
    with pytest.raises(PreconditionFailed, match="one of them is an old copy"):
        plan(world, epoch, 99)
    opened(world)
    with pytest.raises(Fenced):
        plan(world, epoch, at + 4)


def test_anew_counts_everything_again(world: World) -> None:
    epoch = opened(world)
    world.publish("q", b"1", b"2")
    plan(world, epoch, 0)
    epoch = opened(world, anew=True)
    assert plan(world, epoch, 0) == 2
    assert batch(world, 2) == ready(world)
    assert batch(world, 1) == set()
    world.core.streams.release(world.now, NAME)
    world.turn()
    epoch = opened(world)
    with pytest.raises(PreconditionFailed, match="delete the checkpoint to count everything anew"):
        plan(world, epoch, 2)
    assert plan(world, epoch, 0) == 2
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(100)


def test_a_deleted_queue_takes_everything_away(world: World) -> None:
    epoch = opened(world)
    world.publish("q", b"1", b"2")
    at = plan(world, epoch, 0)
    gone = ready(world)
    world.core.delete_queue(world.now, world.core.queue("/", "q"))
    world.turn()
    none: Difference = difference(world.core.streams.changes.counted(NAME), available([]), 10)
    assert world.core.streams.changes.plan(world.now, NAME, epoch, at, 0, none) == at + 2
    world.turn()
    assert batch(world, at + 1) == gone
    world.declare("q")
    world.publish("q", b"3")
    opened(world)
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(100)
