"""What streams hold, what lets go of it, and streams in log mode: the same range, the same parts, the same filter."""

from __future__ import annotations

import pytest

from penstock.core.state.capture import held_from
from penstock.core.state.durable import canonical, decode, encode
from penstock.core.streams.stream_table import GRACE_US
from penstock.errors import Fenced, NotFound, PreconditionFailed
from penstock.records.chunks import LSN_LIMIT
from unit.core.world import World

DAY = 86_400_000_000


@pytest.fixture
def world() -> World:
    world = World()
    world.declare("q")
    world.publish("q", *(b"%d" % n for n in range(10)))
    return world


def same(world: World) -> None:
    """Folding gives what lives, and its bytes give it back."""
    state = canonical(world.core.durable_state())
    assert state == world.folded() == world.folded(100)
    assert canonical(decode(encode(state))) == state


def opened(world: World, filter: str | None = None, **more: int) -> int:
    asked: dict[str, object] = {"topic": "q", **({} if filter is None else {"filter": filter})}
    epoch = world.core.streams.open(world.now, "s", None, "driver", "log", asked=asked, **more).epoch
    world.turn()
    return epoch


def test_where_a_stream_begins_is_found_once(world: World) -> None:
    epoch = opened(world)
    ranges = world.core.streams.ranges
    assert ranges.begin(world.now, "s", epoch, "NOW", 12) == 12
    assert ranges.begin(world.now, "s", epoch, "NOW", 900) == 12
    world.turn()
    same(world)
    assert world.core.floor() <= 12
    assert held_from(world.core.durable_state()) == 12
    world.restart(clean=False)
    epoch = opened(world)
    assert world.core.streams.ranges.begin(world.now, "s", epoch, "NOW", 900) == 12
    assert world.core.streams.ranges.begin(world.now, "s", epoch, "EPOCH", 1) == 1, "other words, another place"
    world.turn()
    same(world)


def test_a_range_keeps_its_parts_and_its_filter(world: World) -> None:
    epoch = opened(world, "/a = 1")
    first = world.core.streams.ranges.plan(world.now, "s", epoch, [(1, 4), (4, 9)])
    assert world.core.streams.ranges.plan(world.now, "s", epoch, [(1, 3)]) == first
    epoch = opened(world, "/a = 2")
    second = world.core.streams.ranges.plan(world.now, "s", epoch, [(9, 11)])
    world.turn()
    same(world)
    world.restart(clean=False)
    ranges = world.core.streams.ranges
    assert ranges.known(world.now, "s", epoch, 1) == first
    assert first.asked["filter"] == "/a = 1"
    assert ranges.known(world.now, "s", epoch, 9) == second
    assert second.asked["filter"] == "/a = 2"
    ranges.plan(world.now, "s", epoch, [(11, 12)])
    assert ranges.known(world.now, "s", epoch, 1) is None
    assert world.core.streams.state("s").before == []
    world.turn()
    same(world)


def test_a_stream_reads_one_topic(world: World) -> None:
    opened(world)
    with pytest.raises(PreconditionFailed, match="reads topic 'q' in vhost '/', and is asked to read pattern '.'"):
        world.core.streams.open(world.now, "s", None, mode="log", asked={"pattern": "."})


def test_a_dropped_stream_holds_nothing_and_fences_its_reader(world: World) -> None:
    epoch = opened(world)
    world.core.streams.ranges.plan(world.now, "s", epoch, [(1, 4)])
    assert held_from(world.core.durable_state()) == 1
    world.core.streams.release(world.now, "s", drop=True)
    world.turn()
    same(world)
    assert held_from(world.core.durable_state()) == LSN_LIMIT
    with pytest.raises(NotFound, match="no stream 's'"):
        world.core.streams.ranges.known(world.now, "s", epoch, 1)
    again = opened(world)
    with pytest.raises(Fenced):
        world.core.streams.ranges.known(world.now, "s", epoch, 1)
    assert world.core.streams.ranges.known(world.now, "s", again, 1) is None
    same(world)


def test_a_released_stream_may_come_back(world: World) -> None:
    epoch = opened(world)
    world.core.streams.ranges.plan(world.now, "s", epoch, [(1, 4)])
    world.core.streams.release(world.now, "s")
    world.turn()
    same(world)
    assert held_from(world.core.durable_state()) == LSN_LIMIT
    with pytest.raises(Fenced):
        world.core.streams.ranges.known(world.now, "s", epoch, 1)
    opened(world)
    assert held_from(world.core.durable_state()) == 1
    same(world)


def test_nobody_reads_it_for_so_long(world: World) -> None:
    epoch = opened(world, abandon_after=DAY)
    world.core.streams.ranges.plan(world.now, "s", epoch, [(1, 4)])
    world.turn()
    keeping = world.core.streams.keeping
    assert keeping.due() == world.now.wall + DAY
    for _ in range(4):
        world.advance(DAY // 2)
        world.core.streams.ranges.known(world.now, "s", epoch, 1)  # it is read, so it holds
        world.turn()
    assert held_from(world.core.durable_state()) == 1
    same(world)
    # A start remembers when it was read, but for a tenth of the time; readers may come back first.
    read = world.core.streams.state("s").read
    world.restart(clean=False)
    keeping = world.core.streams.keeping
    assert keeping.due() == max(read + DAY, world.now.wall + GRACE_US)
    world.advance(DAY)
    assert world.core.streams.state("s").abandoned
    assert held_from(world.core.durable_state()) == LSN_LIMIT
    assert keeping.due() is None
    same(world)
    # Its reader was away and comes back: it holds again, and the range is the same.
    known = world.core.streams.ranges.known(world.now, "s", epoch, 1)
    assert known is not None
    assert known.parts == ((1, 4),)
    world.turn()
    assert held_from(world.core.durable_state()) == 1
    same(world)


def test_an_abandoned_stream_of_a_queue_gives_its_messages_back(world: World) -> None:
    queue = world.core.queue("/", "q")
    epoch = world.core.streams.open(world.now, "r", queue, abandon_after=DAY).epoch
    world.core.streams.plan(world.now, "r", epoch, 0, 4)
    world.turn()
    assert (queue.ready, queue.leased) == (6, 4)
    world.advance(DAY)
    assert (queue.ready, queue.leased) == (10, 0)
    assert world.core.streams.state("r").abandoned
    with pytest.raises(Fenced):
        world.core.streams.plan(world.now, "r", epoch, 0, 4)
    same(world)
