"""Rows whose headers are known to ask for nothing go a shorter way where no option is asked: with the same log."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from penstock.config.queue_arguments import queue_settings, read_policy
from penstock.core.state.durable import canonical
from penstock.records.entries import Publishes
from penstock.records.queue_settings import QueueSettings
from unit.core.world import World, header

PERSISTENT, TRANSIENT = header(delivery_mode=2), header(delivery_mode=1)
BODIES = [b'{"n": 1, "kind": "barrier", "g": 1}', b'{"n": -1}', b'{"n": 2, "g": 1}']

OPTIONS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "limited": {"x-max-length": 2},
    "rejecting": {"x-max-length": 2, "x-overflow": "reject-publish"},
    "dropping newest": {"x-max-length": 2, "x-overflow": "drop-newest"},
    "a ring": {"x-ring-size": 1},
    "filtered": {"x-filter": "/n > 0"},
    "with barriers": {"x-barrier-expression": "/kind = 'barrier'"},
    "last values": {"x-last-value-key": "/g"},
    "without duplicates": {"x-dedup-key": "/g", "x-dedup-window": 3_600_000},
    "with priorities": {"x-priority-expression": "/n"},
    "with levels": {"x-max-priority": 3},
    "quorum": {"x-queue-type": "quorum"},
    "expiring": {"x-message-ttl": 60_000},
    "of groups": {"x-group-key": "/g"},
}


def both(prepare: Callable[[World], None], *, then: Callable[[World], None] | None = None) -> World:
    """The same commands in two worlds, of which one is not told what headers ask for; one of them.

    then: what changes between two publishes.
    """
    worlds = World(), World()
    for world, known in zip(worlds, (True, False), strict=True):
        prepare(world)
        for step in range(2):
            for mode, data in ((2, PERSISTENT), (1, TRANSIENT)):
                topic = world.core.topic("/", "", "q")
                world.core.publish(world.now, Publishes(topic, data, BODIES[:], plain=mode if known else -1))
                world.turn()
            if then is not None and not step:
                then(world)
    told, untold = worlds
    assert [table.to_pylist() for table in told.tables] == [table.to_pylist() for table in untold.tables]
    assert canonical(told.core.durable_state()) == canonical(untold.core.durable_state())
    assert [queue.ready for queue in told.core.queues()] == [queue.ready for queue in untold.core.queues()]
    return told


def settings(**arguments: object) -> QueueSettings:
    return queue_settings(arguments)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_that_newcomers_concern_is_asked(name: str) -> None:
    def prepare(world: World) -> None:
        world.core.declare_queue(world.now, "/", "q", settings(**OPTIONS[name]))
        world.turn()

    both(prepare)


@pytest.mark.parametrize("consumes", [False, True])
def test_several_queues_and_a_topic_of_its_own(consumes: bool) -> None:
    def prepare(world: World) -> None:
        world.core.declare_topic(world.now, "/", "", "q")
        for name in ("one", "two"):
            queue = world.declare(name, underlying_topic="q")
            if consumes:
                world.subscribe(queue, max_backlog=2)

    both(prepare)


def test_a_topic_alone_keeps_what_no_queue_takes() -> None:
    world = both(lambda world: world.core.declare_topic(world.now, "/", "", "q"))
    assert sum(len(one) for one in world.entries if isinstance(one, Publishes)) == 4 * len(BODIES)


def with_queue(world: World) -> None:
    world.declare("q")


def limit(world: World) -> None:
    world.core.set_policy(world.now, read_policy("/", "p", "q", {"max-length": 1}, priority=0, apply_to="all"))
    world.turn()


def test_a_limit_that_comes_later_is_asked() -> None:
    world = both(with_queue, then=limit)
    assert next(iter(world.core.queues())).ready == 1


def test_a_queue_and_a_schema_that_come_later_are_asked() -> None:
    def more(world: World) -> None:
        world.declare("view", underlying_topic="q", filter="/n > 0")
        schema = '{"type": "object", "required": ["g"]}'
        world.core.declare_topic(world.now, "/", "", "q", {"json_schema": schema, "json_schema_check": "reject"})
        world.turn()

    both(with_queue, then=more)


LARGE = b'{"n": 1, "x": "' + b"x" * 10_000 + b'"}'


@pytest.mark.parametrize("known", [2, -1], ids=["told", "untold"])
@pytest.mark.parametrize("exchange", ["", "e"])
@pytest.mark.parametrize("vhost", ["/", "other"])
@pytest.mark.parametrize("asked", ["unjudged", "unwanted", "nothing"])
def test_a_row_says_where_it_was_published_whatever_was_asked_about_it_before(
    vhost: str, exchange: str, asked: str, known: int
) -> None:
    """Whoever had asked whether a large body is to be judged had its route at hand, and the log lacked the exchange."""
    world = World()
    if exchange:
        world.core.declare_exchange(world.now, vhost, exchange, "direct")
    world.core.declare_queue(world.now, vhost, "q", settings())
    world.core.declare_queue(world.now, "/", "far", settings(**{"x-filter": "/n > 0"}))
    if exchange:
        world.core.bind(world.now, vhost, exchange, "q", "queue", "q")
    world.turn()
    topic = world.core.topic(vhost, exchange, "q")
    for body in (LARGE, b"small"):
        batch = Publishes(topic, PERSISTENT, [body], plain=known, size=len(body))
        if asked == "unjudged":
            assert not world.core.unjudged(batch)
        elif asked == "unwanted":
            assert not world.core._publisher.unwanted(batch)
        world.core.publish(world.now, batch)
        world.turn()
    rows = [row["via"] for table in world.tables for row in table.to_pylist() if row["body"] in {LARGE, b"small"}]
    assert rows == [None if (vhost, exchange) == ("/", "") else topic.via] * 2
    assert (topic.via >= 0) == ((vhost, exchange) != ("/", ""))
