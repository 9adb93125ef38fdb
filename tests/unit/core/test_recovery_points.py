"""Recovery points: what a queue takes of a log that was there before it, and what it does not take again."""

from __future__ import annotations

import pytest

from penstock.core.effects import Verb
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import canonical
from penstock.errors import PreconditionFailed
from penstock.records.chunks import as_chunk
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings, parse_recovery_point
from unit.core.walking import walk
from unit.core.world import START, World, header

HERE = "20231114T221320Z"
"""The world's first second."""


def numbers(*values: int) -> list[bytes]:
    return [b'{"n": %d}' % value for value in values]


def world_of(*values: int) -> World:
    """A world whose queue "old" took some messages."""
    world = World()
    world.declare("old")
    if values:
        world.publish("old", *numbers(*values))
    return world


def world_with(*values: int, **settings: object) -> tuple[World, Queue]:
    """The same, and a new queue over the same topic, its pass done."""
    world = world_of(*values)
    return world, over(world, **settings)


def over(world: World, name: str = "new", **settings: object) -> Queue:
    queue = world.declare(name, underlying_topic="old", default_publish_target="old", **settings)
    while walk(world):
        pass
    queue.check()
    return queue


def same_after_restart(world: World, queue: Queue) -> Queue:
    """The queue after a start: the fold says what living through it said."""
    before = world.contents(queue), queue.ready, queue.held, queue.delayed
    world.restart(clean=True)
    again = world.core.queue("/", queue.name)
    again.check()
    assert (world.contents(again), again.ready, again.held, again.delayed) == before
    return again


def test_epoch_takes_all_and_now_nothing() -> None:
    world, queue = world_with(1, 2, 3, recovery_point="epoch")
    assert world.contents(queue) == numbers(1, 2, 3)
    assert world.contents(over(world, "now")) == []
    assert world.contents(over(world, "creation", recovery_point="creation")) == []
    same_after_restart(world, queue)


def test_a_bookmark_is_where_the_queue_begins() -> None:
    world = world_of(1, 2, 3)
    first = min(world.rows)
    assert world.contents(over(world, "at it", recovery_point=f"7|{first + 1}|")) == numbers(2, 3)
    assert world.contents(over(world, "before the log", recovery_point="7|0|")) == numbers(1, 2, 3)
    assert world.contents(over(world, "to come", recovery_point=f"7|{first + 1000}|")) == []


def test_a_bookmark_of_another_log_is_refused_and_nothing_happens() -> None:
    world = world_of(1)
    with pytest.raises(PreconditionFailed, match="of the log 8, and this is the log 7"):
        over(world, "wrong", recovery_point="8|1|")
    assert world.core.find_queue("/", "wrong") is None
    assert not world.core.journal


def test_a_time_is_when_it_was_published() -> None:
    world = world_of(1)
    world.advance(1)
    world.publish("old", *numbers(2))
    assert world.contents(over(world, "all", recovery_point=HERE)) == numbers(1, 2)
    assert world.contents(over(world, "late", recovery_point="20231114T221320.5Z")) == numbers(2)
    assert parse_recovery_point(HERE).time == START


def test_only_what_matches_its_filter_and_its_topics_in_its_exchange() -> None:
    world = World()
    world.declare("old")
    world.core.declare_topic(world.now, "/", "amq.topic", "old", {})
    world.publish("old", *numbers(1, 2, 3))
    world.publish("old", b"elsewhere", exchange="amq.topic")
    assert world.contents(over(world, recovery_point="epoch", filter="/n > 1")) == numbers(2, 3)
    assert world.contents(over(world, "other", recovery_point="epoch", exchange="amq.topic")) == [b"elsewhere"]


def test_several_queues_share_a_pass() -> None:
    world = world_of(*range(9))
    queues = [world.declare(f"q{n}", underlying_topic="old", recovery_point="epoch") for n in range(3)]
    assert walk(world)
    assert not walk(world)
    assert [queue.ready for queue in queues] == [9, 9, 9]


def test_publishes_go_on_meanwhile_and_all_stand_in_order() -> None:
    world = world_of()
    for n in range(4):
        world.publish("old", *numbers(2 * n, 2 * n + 1))
    queue = world.declare("new", underlying_topic="old", recovery_point="epoch")
    for n in range(4):
        world.publish("old", *numbers(100 + n))
        walk(world, whole=False)
        queue.check()
    while walk(world):
        pass
    worker = world.subscribe(queue)
    got = [world.rows[lsn][0].bodies[world.rows[lsn][1]] for lsn in world.inbox[worker]]
    assert got == numbers(*range(8), 100, 101, 102, 103)


def test_a_restart_in_the_middle_goes_on() -> None:
    world = world_of()
    for n in range(6):
        world.publish("old", *numbers(n))
    world.declare("new", underlying_topic="old", recovery_point="epoch", barrier_expression="/n = 3")
    for _ in range(5):
        walk(world, whole=False)
    assert 0 < len(world.contents(world.core.queue("/", "new"))) < 6
    world.restart(clean=False)
    queue = world.core.queue("/", "new")
    while walk(world):
        pass
    queue.check()
    assert world.contents(queue) == numbers(*range(6))
    assert (queue.ready, queue.held) == (3, 3)


def test_nothing_goes_out_while_older_barriers_may_be_found() -> None:
    world = world_of()
    for n in range(4):
        world.publish("old", *numbers(n))
    queue = world.declare("new", underlying_topic="old", recovery_point="epoch", barrier_expression="/n = 2")
    worker = world.subscribe(queue, max_backlog=10)
    world.publish("old", *numbers(4))
    walk(world, whole=False)
    assert world.inbox[worker] == []
    while walk(world):
        pass
    lsns = world.inbox[worker]
    assert len(lsns) == 2
    world.core.settle(world.now, queue, [range(lsns[0], lsns[1] + 1)], Verb.ACK, by=worker)
    world.turn()
    assert [world.rows[lsn][0].bodies[world.rows[lsn][1]] for lsn in lsns] == numbers(0, 1, 2, 3, 4)


@pytest.mark.parametrize("settings", [{"target_queue_depth": 1_000}, {"priority_expression": "/n"}])
def test_an_order_of_its_own_is_kept(settings: dict[str, object]) -> None:
    world, queue = world_with(*range(8), recovery_point="epoch", **settings)
    assert world.contents(queue) == numbers(*range(8))
    assert queue.older is None


def test_times_are_those_of_the_publish() -> None:
    world = World()
    world.declare("old")
    world.publish("old", *numbers(1), properties=header(expiration="5000"))
    world.publish("old", *numbers(2), properties=header(expiration="500"))
    world.publish("old", *numbers(3), properties=header(headers={"x-delay": 3_000}))
    world.advance(1)
    queue = over(world, recovery_point="epoch")
    assert world.contents(queue) == numbers(1, 3)
    assert (queue.ready, queue.delayed) == (1, 1)
    queue = same_after_restart(world, queue)
    world.advance(2)
    assert queue.ready == 2
    world.advance(2)
    assert world.contents(queue) == numbers(3)


def test_transient_messages_are_there_until_the_next_start() -> None:
    world = world_of()
    world.publish("old", *numbers(1), properties=header(delivery_mode=1))
    world.restart(clean=True)
    world.publish("old", *numbers(2), properties=header(delivery_mode=1))
    world.publish("old", *numbers(3))
    reader = world.subscribe(world.core.queue("/", "old"))
    world.core.settle(world.now, reader.queue, [as_chunk(world.inbox[reader])], Verb.ACK, by=reader)
    world.core.durable_state()  # nobody needs to know any more that 2 is transient
    queue = over(world, recovery_point="epoch")
    assert world.contents(queue) == numbers(2, 3)
    assert world.folded() == canonical(world.core.durable_state())
    world.restart(clean=True)
    assert world.contents(world.core.queue("/", "new")) == numbers(3)


def test_what_it_has_settled_is_not_taken_again_when_the_point_moves() -> None:
    world, queue = world_with(1, 2, recovery_point="now")
    world.publish("old", *numbers(3, 4))
    worker = world.subscribe(queue)
    settled = world.inbox[worker][:1]
    world.core.settle(world.now, queue, [range(settled[0], settled[0] + 1)], Verb.ACK, by=worker)
    moved(world, queue, "epoch")
    assert world.contents(queue) == numbers(1, 2, 4)
    for lsn in world.inbox[worker]:
        world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.ACK, by=worker)
    assert world.contents(queue) == []
    moved(world, queue, "now")
    moved(world, queue, HERE)
    assert world.contents(queue) == []
    same_after_restart(world, queue)


def moved(world: World, queue: Queue, point: str) -> None:
    settings = QueueSettings(underlying_topic="old", default_publish_target="old", recovery_point=point)
    world.core.alter_queue(world.now, queue, settings)
    while walk(world):
        pass
    queue.check()


@pytest.mark.parametrize("since", ["full", "room again", "a start"])
def test_what_it_took_while_the_table_of_routes_was_full_is_not_taken_again(since: str) -> None:
    world = World()
    world.core._interning._routes_max = 1
    world.declare("a")
    world.publish("a", b"it has the only number")
    queue = world.declare("q", underlying_topic="old", default_publish_target="old")
    world.publish("old", *numbers(1, 2, 3))
    worker = world.subscribe(queue)
    world.core.settle(world.now, queue, [as_chunk(world.inbox[worker][:2])], Verb.ACK, by=worker)
    if since != "full":
        world.core.delete_queue(world.now, world.core.queue("/", "a"))
    world.core.declare_topic(world.now, "/", "", "kept", {})
    world.publish("kept", *numbers(4))  # nobody's, and so without a route, too
    if since == "a start":
        world.restart(clean=False)
    queue = world.core.queue("/", "q")
    settings = QueueSettings(underlying_topic="(old|kept)", default_publish_target="old", recovery_point="epoch")
    world.core.alter_queue(world.now, queue, settings)
    while walk(world):
        pass
    assert world.contents(queue) == numbers(3, 4)


def test_a_pass_finds_what_others_took_while_the_table_of_routes_is_full() -> None:
    world = World()
    world.core._interning._routes_max = 1
    world.declare("old")
    queue = world.declare("q", underlying_topic="other", default_publish_target="other")
    world.publish("old", *numbers(1))
    world.publish("other", *numbers(2))
    moved(world, queue, "epoch")
    assert world.contents(queue) == numbers(1, 2)


def test_a_wider_filter_and_a_moved_point_bring_what_it_has_not_had() -> None:
    world, queue = world_with(1, filter="/n > 2")
    world.publish("old", *numbers(2, 3))
    moved(world, queue, "epoch")  # without the filter
    assert world.contents(queue) == numbers(1, 2, 3)


def test_a_point_moved_to_now_ends_a_pass() -> None:
    world = world_of(1, 2)
    queue = world.declare("new", underlying_topic="old", recovery_point="epoch", barrier_expression="/n = 9")
    assert world.core.passing_floor() == 0
    moved(world, queue, "now")
    assert (world.contents(queue), world.core.passes(), queue.older) == ([], [], None)


def test_a_step_whose_queue_has_changed_meanwhile_does_not_count() -> None:
    world = world_of(1, 2)
    queue = world.declare("new", underlying_topic="old", recovery_point="epoch")
    [before] = world.core.passes()
    world.core.alter_queue(
        world.now, queue, QueueSettings(underlying_topic="old", recovery_point="epoch", filter="/n = 2")
    )
    [one] = world.core.passes()
    assert one.settings is not before.settings
    while walk(world):
        pass
    assert world.contents(queue) == numbers(2)
    gone = world.declare("gone", underlying_topic="old", recovery_point="epoch")
    world.core.delete_queue(world.now, gone)
    assert not walk(world)


def test_a_checkpoint_meanwhile_does_not_forget_what_a_dead_letter_is() -> None:
    world = World()
    world.declare("old")
    queue = world.declare("jobs", dead_letter_exchange="", dead_letter_routing_key="old")
    world.publish("jobs", *numbers(1))
    worker = world.subscribe(queue)
    world.core.settle(world.now, queue, [as_chunk(world.inbox[worker])], Verb.EXPIRE, by=worker)
    world.turn()
    reader = world.subscribe(world.core.queue("/", "old"))
    world.core.settle(world.now, reader.queue, [as_chunk(world.inbox[reader])], Verb.ACK, by=reader)
    world.turn()
    snapshot = world.core.snapshot()
    for _ in world.core.capture(snapshot):
        pass
    over(world, recovery_point="epoch")
    snapshot.encode()
    world.core.captured(snapshot)
    assert world.folded() == canonical(world.core.durable_state())


def test_the_declare_and_the_pass_are_one_group() -> None:
    world = world_of(1)
    world.core.declare_queue(world.now, "/", "q", QueueSettings(recovery_point="epoch"))
    [group] = world.core.take_journal()
    assert [entry.kind for entry in group.entries] == [Kind.QUEUE_DECLARE, Kind.RECOVER]  # type: ignore[union-attr]


# -- a point that moves forward


def narrowed(world: World, queue: Queue, point: str, **settings: object) -> int:
    """Move the point as somebody who says so; how many messages left."""
    own = QueueSettings(underlying_topic="old", recovery_point=point, **settings)  # type: ignore[arg-type]
    left = world.core.alter_queue(world.now, queue, own, {"recovery_point"})
    world.turn()
    queue.check()
    return left


def test_a_point_that_moves_forward_takes_out_what_is_older() -> None:
    world, queue = world_with(1, 2, 3, recovery_point="epoch")
    worker = world.subscribe(queue, max_backlog=2)
    first = world.inbox[worker][0]
    assert narrowed(world, queue, f"7|{first + 1}|") == 1
    assert world.contents(queue) == numbers(2, 3)
    assert narrowed(world, queue, "now") == 2
    assert world.contents(queue) == []
    assert world.core.settle(world.now, queue, [as_chunk(world.inbox[worker])], Verb.ACK, by=worker) == 0
    world.publish("old", *numbers(4))
    assert world.contents(queue) == numbers(4)
    assert world.core.stats(queue, world.now)["expirations"] == {"recovery_point": 3}
    world.core.unsubscribe(world.now, worker, requeue=True)
    same_after_restart(world, queue)


def test_what_left_does_not_come_back_with_a_wider_point() -> None:
    world, queue = world_with(1, 2, recovery_point="epoch")
    narrowed(world, queue, "now")
    narrowed(world, queue, "epoch")
    while walk(world):
        pass
    assert world.contents(queue) == []


def test_a_point_that_nobody_gives_takes_nothing_away() -> None:
    world, queue = world_with(1, 2, recovery_point="epoch")
    assert world.core.alter_queue(world.now, queue, QueueSettings(underlying_topic="old"), ()) == 0
    assert queue.settings.recovery_point == "now"
    assert world.contents(queue) == numbers(1, 2)
    queue = same_after_restart(world, queue)
    [(_, count)] = world.core.cancel_messages(world.now, [queue], range(1, 1_000))
    assert count == 2  # it has them, though they are older than itself and its point is now


def test_creation_is_the_declare_of_the_queue() -> None:
    world, queue = world_with(1, 2, recovery_point="epoch")
    world.publish("old", *numbers(3))
    assert narrowed(world, queue, "creation") == 2
    assert world.contents(queue) == numbers(3)
    assert narrowed(world, queue, "now") == 1


def test_a_point_that_moves_forward_while_a_pass_is_under_way() -> None:
    world = world_of()
    for n in range(6):
        world.publish("old", *numbers(n))
    queue = world.declare("new", underlying_topic="old", recovery_point="epoch", barrier_expression="/n = 9")
    for _ in range(5):
        walk(world, whole=False)
    found = len(world.contents(queue))
    assert 0 < found < 6
    at = sorted(world.rows)[2]
    assert narrowed(world, queue, f"7|{at}|", barrier_expression="/n = 9") == min(found, 2)
    while walk(world):
        pass
    queue.check()
    assert world.contents(queue) == numbers(2, 3, 4, 5)
    assert queue.older is None
    same_after_restart(world, queue)


def test_what_waits_beyond_a_target_depth_is_older_too() -> None:
    world, queue = world_with(*range(8), recovery_point="epoch", target_queue_depth=3)
    assert queue.tail.count == 5
    at = sorted(world.rows)[6]
    assert narrowed(world, queue, f"7|{at}|", target_queue_depth=3) == 6
    assert world.contents(queue) == numbers(6, 7)
    assert queue.tail.count == 0


def test_what_a_stream_has_planned_stays_with_its_batch() -> None:
    world, queue = world_with(*range(6), recovery_point="epoch")
    opened = world.core.streams.open(world.now, "s", queue)
    plan = world.core.streams.plan(world.now, "s", opened.epoch, 0, 2)
    world.turn()
    assert narrowed(world, queue, "now") == 4
    assert world.contents(queue) == numbers(0, 1)
    world.restart(clean=False)
    queue = world.core.queue("/", "new")
    opened = world.core.streams.open(world.now, "s", queue)
    assert world.core.streams.plan(world.now, "s", opened.epoch, 0, 2).chunks == plan.chunks
    world.core.streams.settle(world.now, "s", opened.epoch, 1)
    world.turn()
    assert world.contents(queue) == []


def test_a_letter_to_be_written_is_written() -> None:
    world = World()
    world.declare("graves")
    full = world.declare("full", max_length=1, overflow="reject-publish")
    world.publish("full", b"0")
    world.declare("old")
    world.publish("old", *numbers(1, 2))
    queue = over(world, recovery_point="epoch", dead_letter_exchange="", dead_letter_routing_key="full")
    worker = world.subscribe(queue, max_backlog=1)
    world.core.settle(world.now, queue, [as_chunk(world.inbox[worker])], Verb.EXPIRE, by=worker)
    world.turn()
    assert queue.dying == 1
    letters = {"dead_letter_exchange": "", "dead_letter_routing_key": "full"}
    assert narrowed(world, queue, "now", **letters) == 1
    assert queue.dying == 1
    world.core.purge_queue(world.now, full)
    world.turn()
    world.advance(120)
    assert (queue.dying, full.ready) == (0, 1)
