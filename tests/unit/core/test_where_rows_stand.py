"""Which LSN each row of a batch has, whatever kept others of it out: whoever tells more of a row goes by that."""

from __future__ import annotations

import pytest

from penstock.core.commands.transactions import Transaction
from penstock.core.links.sharing import Site
from penstock.core.streams.sinks import outputs_of
from penstock.records.entries import Publishes
from unit.core.world import SECOND, World, header

WAITS = header(headers={"x-delay": 1000})


@pytest.fixture
def world() -> World:
    world = World()
    world.core.declare_exchange(world.now, "/", "later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    world.declare("once", dedup_key="/k", dedup_window=3600 * SECOND)
    world.declare("small", max_length=1, overflow="drop-newest")
    world.declare("plain")
    world.core.bind(world.now, "/", "later", "once", "queue", "")
    return world


def mixed(world: World) -> Publishes:
    """Rows that are stored, wait, repeat another one, find no room, and interest nobody."""
    core = world.core
    once, small, plain, nobody = (core.topic("/", "", name) for name in ("once", "small", "plain", "nobody"))
    later, plain_header = core.topic("/", "later", "k"), header()
    rows = [
        (once, plain_header, b'{"k": 1}'), (plain, plain_header, b"a"), (once, plain_header, b'{"k": 1}'),
        (later, WAITS, b'{"k": 2}'), (small, plain_header, b"b"), (small, plain_header, b"c"),
        (nobody, plain_header, b"d"), (later, plain_header, b'{"k": 3}'), (later, WAITS, b'{"k": 2}'),
        (plain, plain_header, b"e"),
    ]  # fmt: skip
    topics, headers, bodies = (list(column) for column in zip(*rows, strict=True))
    return Publishes(topics, headers, bodies)  # type: ignore[arg-type]


STORED = [0, 1, 3, 4, 7, 8, 9]


def check(world: World, batch: Publishes, lsns: list[int]) -> None:
    assert [row for row, lsn in enumerate(lsns) if lsn] == STORED
    assert [world.read([lsns[row]]).bodies[0] for row in STORED] == [batch.bodies[row] for row in STORED]


def test_each_row_has_the_lsn_of_its_body(world: World) -> None:
    batch = mixed(world)
    told = world.core.publish(world.now, batch)
    world.turn()
    check(world, batch, list(told.lsns_by_row(len(batch))))
    assert (list(told.repeats), list(told.dropped), list(told.unroutable)) == ([2], [5], [6])


def test_rows_of_a_transaction(world: World) -> None:
    batch = mixed(world)
    told = world.core.transact(world.now, Transaction(batch, [])).published
    world.turn()
    assert told is not None
    check(world, batch, list(told.lsns_by_row(len(batch))))


def test_what_waited_may_repeat_what_came_before(world: World) -> None:
    """Both are due together; the second one's key is known by then."""
    world.publish("k", b'{"k": 2, "n": 1}', b'{"k": 2, "n": 2}', b'{"k": 4}', exchange="later", properties=WAITS)
    world.advance(2)
    assert world.contents(world.core.queue("/", "once")) == [b'{"k": 2, "n": 1}', b'{"k": 4}']
    waiting = next(queue for queue in world.core.queues() if queue.onward is not None)
    assert not world.contents(waiting)


def test_where_the_rows_of_a_sink_went(world: World) -> None:
    batch = mixed(world)
    told = world.core.publish(world.now, batch)
    world.turn()
    ends = {name: (first, last, rows) for _, _, name, first, last, rows in outputs_of([batch], [told])}
    lsns = told.lsns_by_row(len(batch))
    assert ends == {
        "once": (lsns[0], lsns[0], 1), "plain": (lsns[1], lsns[9], 2), "small": (lsns[4], lsns[4], 1),
        "k": (lsns[3], lsns[7], 3),
    }  # fmt: skip


def test_rows_of_another_site(world: World) -> None:
    """What is not stored here keeps none of the others from being known by its own number."""
    for name, origin in (("a", world.origin), ("b", 8)):
        world.core.meet(world.now, Site(name, origin, "east"))
    batch = mixed(world)
    there = [100 + 10 * row for row in range(len(batch))]
    assert world.core.carry(world.now, [8], batch, there, {}) == len(STORED)
    world.turn()
    (numbers,) = world.core.carried.values()
    for row in STORED:
        [(first, stop)] = numbers.here(there[row], there[row] + 1)
        assert stop == first + 1
        assert world.read([first]).bodies == [batch.bodies[row]]


def test_numbered_rows(world: World) -> None:
    """Other sites are told which number of its publisher each has, and where it stands."""
    found: dict[int, int] = {}
    for name, origin in (("a", world.origin), ("b", 8)):
        world.core.meet(world.now, Site(name, origin, "east"))
    batch = mixed(world)
    told = world.core.publish(world.now, batch, publisher="p", sequence=5)
    world.turn()
    for one in world.core.sequences:
        found |= {one.sequence + n: one.lsn + n for n in range(one.size)}
    lsns = told.lsns_by_row(len(batch))
    assert found == {5 + row: lsns[row] for row in STORED}
