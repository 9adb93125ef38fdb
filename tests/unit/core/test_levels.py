"""Two levels of priorities in queues of the type quorum: from 5 on a message is of the high one, two for each other."""

from __future__ import annotations

import pytest

from penstock.core.queue.queue import Queue
from penstock.core.state.durable import canonical
from penstock.errors import PreconditionFailed
from penstock.expr import compile_filter
from penstock.records.entries import Publishes
from unit.core.world import World, header


@pytest.fixture
def world() -> World:
    return World()


def quorum(world: World, name: str = "q", **settings: object) -> Queue:
    return world.declare(name, queue_type="quorum", durable=True, **settings)


def fill(world: World, *texts: str) -> None:
    """Messages by their names: `h…` is of the high level, `n…` of the other, in turn without a priority and with 4."""
    for at, text in enumerate(texts):
        said = {"priority": 5 + 4 * at} if text[0] == "h" else {"priority": 4} if at % 2 else {}
        world.publish("q", text.encode(), properties=header(**said))


def order(world: World, queue: Queue) -> str:
    """What a consumer is sent, in order."""
    consumer = world.subscribe(queue, no_ack=True)
    found = world.read(world.inbox[consumer]).bodies
    return " ".join(bytes(body).decode() for body in found)


def test_of_the_high_level_two_go_for_one_other(world: World) -> None:
    queue = quorum(world)
    fill(world, "n1", "n2", "n3", "n4", "h1", "h2", "h3", "h4")
    assert order(world, queue) == "n1 h1 h2 n2 h3 h4 n3 n4"
    queue.check()


def test_what_came_before_the_first_high_one_and_after_it_stands_in_its_level(world: World) -> None:
    queue = quorum(world)
    fill(world, "n1", "h1", "n2", "h2", "n3", "h3")
    assert order(world, queue) == "n1 h1 h2 n2 h3 n3"


def test_without_a_high_one_nothing_is_other_than_in_any_queue(world: World) -> None:
    queue = quorum(world)
    fill(world, "n1", "n2", "n3")
    assert queue.settings.fairness_key is None
    assert order(world, queue) == "n1 n2 n3"


@pytest.mark.parametrize("clean", [True, False])
def test_the_levels_outlive_the_server(world: World, clean: bool) -> None:
    quorum(world)
    fill(world, "n1", "n2", "h1", "h2", "h3")
    world.restart(clean=clean)
    fill(world, "n3", "h4")
    assert order(world, world.core.queue("/", "q")) == "n1 h1 h2 n2 h3 h4 n3"
    assert canonical(world.folded()) == canonical(world.core.durable_state())


def test_a_batch_and_a_numbered_one(world: World) -> None:
    queue = quorum(world)
    topic = world.core.topic("/", "", "q")
    headers = [header(priority=one) for one in (0, 9, 1, 9)]
    world.core.publish(world.now, Publishes(topic, headers, [b"n1", b"h1", b"n2", b"h2"]), publisher="p", sequence=1)
    world.turn()
    assert order(world, queue) == "n1 h1 h2 n2"


def test_a_declare_with_the_same_arguments_finds_it(world: World) -> None:
    quorum(world)
    fill(world, "h1")
    assert quorum(world) is world.core.queue("/", "q")


@pytest.mark.parametrize("settings", [{"fairness_key": "/tenant"}, {"target_queue_depth": 3}, {"group_key": "/k"}])
def test_a_queue_that_has_an_order_of_its_own_keeps_it(world: World, settings: dict[str, object]) -> None:
    queue = quorum(world, **settings)
    fill(world, "n1", "h1")
    assert queue.settings.fairness_key == settings.get("fairness_key")


def test_a_consumer_with_a_filter_and_levels_exclude_each_other(world: World) -> None:
    queue = quorum(world)
    consumer = world.subscribe(queue, filter=compile_filter("/k = 1"))
    fill(world, "h1")
    assert queue.settings.fairness_key is None
    world.core.unsubscribe(world.now, consumer, requeue=True)
    fill(world, "h2")
    assert queue.settings.fairness_key is not None
    with pytest.raises(PreconditionFailed, match="fairness_key"):
        world.subscribe(queue, filter=compile_filter("/k = 1"))


def test_a_classic_queue_knows_no_levels(world: World) -> None:
    queue = world.declare("q")
    fill(world, "n1", "h1", "h2")
    assert order(world, queue) == "n1 h1 h2"
