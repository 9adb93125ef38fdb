"""The core from end to end: declare, publish, consume, settle, restart."""

from __future__ import annotations

import pytest

from penstock.core.effects import Verb
from penstock.core.state.durable import canonical
from penstock.core.topology.register import ROUTE_LAST
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind
from penstock.records.message_bodies import PackedBodies
from penstock.records.queue_settings import QueueSettings
from unit.core.world import DURABLE, START, World, header


@pytest.fixture
def world() -> World:
    return World()


def test_publish_consume_ack(world: World) -> None:
    queue = world.declare("q")
    consumer = world.subscribe(queue, max_backlog=2)
    published = world.publish("q", b"1", b"2", b"3")
    assert published.stored == 3
    assert published.last == published.first + 2
    assert world.inbox[consumer] == [published.first, published.first + 1]
    world.core.settle(world.now, queue, [range(published.first, published.first + 2)], Verb.ACK, by=consumer)
    world.turn()
    assert world.inbox[consumer] == list(range(published.first, published.first + 3))
    assert world.core.stats(queue, world.now)["acked"] == 2
    assert canonical(world.core.durable_state()) == world.folded()


def test_unroutable_rows_are_named_and_not_stored(world: World) -> None:
    queue = world.declare("q")
    here, nowhere = world.core.topic("/", "", "q"), world.core.topic("/", "", "none")
    before = world.core.last_lsn
    published = world.publish_all((nowhere, DURABLE, b"a"), (here, DURABLE, b"b"), (nowhere, DURABLE, b"c"))
    assert list(published.unroutable) == [0, 2]
    assert published.stored == 1
    assert world.contents(queue) == [b"b"]
    nothing = world.publish("none", b"x")
    assert nothing.stored == 0
    assert list(nothing.unroutable) == [0]
    assert nothing.last == world.core.last_lsn
    assert world.core.last_lsn > before


def test_a_declared_topic_keeps_what_no_queue_takes(world: World) -> None:
    world.core.declare_topic(world.now, "/", "", "kept")
    published = world.publish("kept", b"x")
    assert published.stored == 1
    assert not published.unroutable
    assert world.folded().topics == {("/", "", "kept"): {}}
    world.core.delete_topic(world.now, "/", "", "kept")
    assert list(world.publish("kept", b"x").unroutable) == [0]


def test_refusals_by_row(world: World) -> None:
    queue = world.declare("q")
    topic = world.core.topic("/", "", "q")
    published = world.publish_all(
        (topic, header(expiration="abc"), b"a"), (topic, DURABLE, b"b"), (topic, header(headers={"CC": "bare"}), b"c")
    )
    assert [row for row, _ in published.refused] == [0, 2]
    assert str(published.refused[0][1]) == "invalid expiration 'abc': no_integer"
    assert world.contents(queue) == [b"b"]
    reason = PreconditionFailed("no")
    everything = world.core.publish(world.now, Publishes(topic, DURABLE, [b"x"] * 3), refuse=reason)
    assert [row for row, _ in everything.refused] == [0, 1, 2]
    assert len(world.core.judge(Publishes(topic, [DURABLE, header(expiration="-1")], [b"a", b"b"]))) == 1


def test_carbon_copies(world: World) -> None:
    queues = [world.declare(name) for name in ("a", "b", "c")]
    published = world.publish("a", b"x", properties=header(headers={"CC": ["b", "a"], "BCC": ["c"], "other": 1}))
    assert published.stored == 1
    assert [world.contents(queue) for queue in queues] == [[b"x"]] * 3
    assert world.headers(published.first) == {"CC": ["b", "a"], "other": 1}


def test_delays_and_expiration_come_from_the_header(world: World) -> None:
    queue = world.declare("q")
    consumer = world.subscribe(queue)
    published = world.publish("q", b"later", properties=header(headers={"x-delay": 5000}))
    at = world.publish("q", b"at", properties=header(headers={"x-deliver-at": START // 1000 + 2000}))
    assert world.inbox[consumer] == []
    world.advance(2)
    assert world.inbox[consumer] == [at.first]
    world.advance(3)
    assert world.inbox[consumer] == [at.first, published.first]
    world.core.unsubscribe(world.now, consumer, requeue=True)
    short = world.declare("short")
    world.publish("short", b"x", properties=header(expiration="1000"))
    assert short.ready == 1
    world.advance(1)
    assert short.ready == 0
    assert canonical(world.core.durable_state()) == world.folded()


def test_content_filters_part_a_batch(world: World) -> None:
    all_ = world.declare("all", underlying_topic="orders")
    large = world.declare("large", underlying_topic="orders", filter="/total > 5")
    assert world.core.topic("/", "", "large").name == "orders"
    published = world.publish("large", b'{"total": 1}', b'{"total": 9}', b"no json")
    assert published.stored == 3
    assert len(world.contents(all_)) == 3
    assert world.contents(large) == [b'{"total": 9}']
    only = world.declare("only", underlying_topic="bills", filter="/total > 5")
    published = world.publish("bills", b'{"total": 1}', b'{"total": 9}')
    assert list(published.unroutable) == [0]
    assert world.contents(only) == [b'{"total": 9}']
    assert canonical(world.core.durable_state()) == world.folded(100)


def test_views_by_pattern_and_default_publish_target(world: World) -> None:
    view = world.declare("view", underlying_topic="^orders-", default_publish_target="orders-new")
    world.publish("orders-eu", b"1")
    world.publish("view", b"2")
    assert world.contents(view) == [b"1", b"2"]
    assert world.rows[world.core.last_lsn][0].topic_of(0).name == "orders-new"
    with pytest.raises(InvalidArgument, match="default_publish_target"):
        world.declare("bad", underlying_topic="^orders-")
    with pytest.raises(InvalidArgument, match="not among its underlying topics"):
        world.declare("bad", underlying_topic="^orders-", default_publish_target="bills")
    with pytest.raises(InvalidArgument, match="underlying_topic"):
        world.declare("bad", underlying_topic="(?=x)", default_publish_target="x")


def test_vhosts_are_apart(world: World) -> None:
    here, there = world.declare("q"), world.declare("q", vhost="other")
    world.publish("q", b"1")
    world.publish("q", b"2", vhost="other")
    assert (world.contents(here), world.contents(there)) == ([b"1"], [b"2"])
    assert world.rows[world.core.last_lsn][0].topic_of(0).via >= 0


def test_publisher_sequences(world: World) -> None:
    queue = world.declare("q")
    topic = world.core.topic("/", "", "q")

    def send(sequence: int, *bodies: bytes) -> tuple[int, int]:
        batch = Publishes(topic, DURABLE, list(bodies))
        published = world.core.publish(world.now, batch, publisher="p", sequence=sequence)
        world.turn()
        return published.stored, published.duplicates

    assert send(1, b"1", b"2") == (2, 0)
    assert send(2, b"2", b"3") == (1, 1)
    assert send(1, b"1") == (0, 1)
    assert world.contents(queue) == [b"1", b"2", b"3"]
    world.restart(clean=False)
    topic = world.core.topic("/", "", "q")
    assert send(3, b"3", b"4") == (1, 1)
    with pytest.raises(InvalidArgument):
        world.core.publish(world.now, Publishes(topic, DURABLE, [b""]), publisher="p")


@pytest.mark.parametrize("said", ["of the batch", "row by row"])
def test_a_publishers_name_is_another_one_in_each_vhost(world: World, said: str) -> None:
    """Whoever could publish in some vhost had what others publish in another one taken for duplicates."""

    def send(vhost: str, sequence: int, name: str = "p") -> tuple[int, int]:
        world.core.declare_queue(world.now, vhost, "q", QueueSettings())
        topic, numbered = world.core.topic(vhost, "", "q"), {"x-publisher": name, "x-sequence": sequence}
        if said == "row by row":
            published = world.core.publish(world.now, Publishes(topic, header(headers=numbered), [b"x"]))
        else:
            batch = Publishes(topic, DURABLE, [b"x"])
            published = world.core.publish(world.now, batch, publisher=name, sequence=sequence)
        world.turn()
        return published.stored, published.duplicates

    assert [send("/", 1), send("v", 10), send("/", 2), send("w", 1), send("v", 9)] == [(1, 0)] * 4 + [(0, 1)]
    assert [world.core.highest_of(vhost, "p") for vhost in ("/", "v", "w", "x")] == [2, 10, 1, 0]
    world.restart(clean=False)
    assert [send("/", 2), send("v", 10), send("w", 2)] == [(0, 1), (0, 1), (1, 0)]
    if said == "row by row":
        refused = header(headers={"x-publisher": "p\0v", "x-sequence": 11})
        topic = world.core.topic("/", "", "q")
        assert "zero byte" in str(world.core.publish(world.now, Publishes(topic, refused, [b"x"])).refused[0][1])


def test_packed_bodies_go_every_way_that_a_list_goes(world: World) -> None:
    orders = world.declare("orders")
    large = world.declare("large", underlying_topic="orders", filter="/total > 5")
    also = world.declare("also", underlying_topic="orders", filter="/total < 3")
    topic, bodies = world.core.topic("/", "", "orders"), [b'{"total": %d}' % total for total in range(10)]
    packed = Publishes(topic, DURABLE, PackedBodies.of(bodies))
    world.core.publish(world.now, packed, publisher="p", sequence=1)
    world.turn()
    assert world.contents(orders) == bodies
    assert (world.contents(large), world.contents(also)) == (bodies[6:], bodies[:3])
    again = world.core.publish(
        world.now, Publishes(topic, DURABLE, PackedBodies.of([*bodies[8:], b'{"total": 7}'])), publisher="p", sequence=9
    )
    world.turn()
    assert (again.duplicates, again.stored) == (2, 1)
    assert world.contents(orders)[10:] == [b'{"total": 7}']


def test_boot_ends_what_belongs_to_a_process(world: World) -> None:
    me = object()
    world.declare("mine", exclusive_to=me)
    world.declare("fleeting", durable=False)
    queue = world.declare("q")
    world.core.declare_exchange(world.now, "/", "x", "fanout", durable=False)
    world.core.declare_exchange(world.now, "/", "y", "fanout")
    world.core.bind(world.now, "/", "x", "q", "queue", "")
    world.core.bind(world.now, "/", "y", "mine", "queue", "")
    world.core.bind(world.now, "/", "y", "q", "queue", "")
    world.publish("q", b"stays")
    world.publish("q", b"goes", properties=header(delivery_mode=1))
    world.subscribe(queue)
    world.restart(clean=False)
    assert [queue.name for queue in world.core.queues()] == ["q"]
    queue = world.core.queue("/", "q")
    assert world.contents(queue) == [b"stays"]
    state = world.core.durable_state()
    assert set(state.exchanges) == {("/", "y")}
    assert len(state.bindings) == 1
    assert canonical(state) == world.folded(100) == world.folded()
    world.subscribe(queue)
    assert world.deliveries[0].redelivered
    assert world.deliveries[0].attempt == 2
    assert world.core.last_lsn > 2**32


def test_redelivered_after_an_unclean_stop_though_the_grant_was_lost(world: World) -> None:
    world.declare("q")
    world.publish("q", b"x")
    world.restart(clean=False)
    world.subscribe(world.core.queue("/", "q"))
    assert world.deliveries[0].redelivered
    world.restart(clean=True)
    assert world.core.durable_state().unclean > 0


def test_a_group_is_one_entry(world: World) -> None:
    queue = world.declare("q")
    consumer = world.subscribe(queue)
    first = world.publish("q", b"in").first
    with world.core.group():
        world.core.settle(world.now, queue, [range(first, first + 1)], Verb.ACK, by=consumer)
        world.core.publish(world.now, Publishes(world.core.topic("/", "", "q"), DURABLE, [b"out"]))
    journal = world.core.take_journal()
    assert len(journal) == 1
    assert len(journal[0]) >= 2


def test_auto_delete(world: World) -> None:
    queue = world.declare("q", auto_delete=True)
    getter = world.subscribe(queue, passive=True)
    world.core.unsubscribe(world.now, getter, requeue=True)
    assert world.core.queue("/", "q") is queue
    one, two = world.subscribe(queue, "1"), world.subscribe(queue, "2")
    world.core.unsubscribe(world.now, one, requeue=False)
    assert world.core.queue("/", "q") is queue
    world.core.unsubscribe(world.now, two, requeue=False)
    assert world.core.queues() == []


def test_exclusive_queues_end_with_their_connection(world: World) -> None:
    me = object()
    queue = world.declare("mine", exclusive_to=me)
    world.core.bind(world.now, "/", "amq.fanout", "mine", "queue", "")
    consumer = world.subscribe(queue)
    world.core.end_exclusive(world.now, me, 100)
    world.turn()
    assert world.cancelled == [consumer]
    assert world.core.queues() == []
    assert world.folded().bindings == set()
    assert world.core.settle(world.now, queue, [range(1, 5)], Verb.ACK) == 0


def test_more_routes_than_the_table_holds(world: World) -> None:
    world.core._interning._routes_max = 1
    a, b = world.declare("a"), world.declare("b")
    world.publish("a", b"1")
    first = world.publish("b", b"2", b"3").first
    ta, tb = world.core.topic("/", "", "a"), world.core.topic("/", "", "b")
    world.publish_all((ta, DURABLE, b"4"), (tb, DURABLE, b"5"), (ta, DURABLE, b"6"))
    assert any(getattr(entry, "kind", None) is Kind.TOOK for entry in world.entries)
    assert world.contents(b) == [b"2", b"3", b"5"]
    assert world.contents(a) == [b"1", b"4", b"6"]
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(100)
    assert first in world.folded().queues[b.id].waiting[0]


def test_more_routes_than_their_column_has_numbers(world: World) -> None:
    world.core._interning._next_route = ROUTE_LAST
    for name in "ab":
        world.declare(name)
        world.publish(name, b"1")
    assert world.tables[-1].column("route").null_count
    for _ in range(2):
        assert [world.contents(queue) for queue in world.core.queues()] == [[b"1"], [b"1"]]
        assert world.folded() == canonical(world.core.durable_state())
        world.restart(clean=False)


def test_a_combination_of_many_queues_is_hashed_as_often_as_one_of_few(world: World) -> None:
    class Told(tuple[int, ...]):
        __slots__ = ()
        hashed = 0

        def __hash__(self) -> int:
            Told.hashed += 1
            return super().__hash__()

    table, taken = world.core._interning, list[int]()
    for count in (2, 2000):
        ids = Told([world.declare(f"{count} {i}").id for i in range(count)])
        number = table.route(ids)
        assert table.queues_of(number) == ids
        table.forget_queue(ids[0])
        assert table.queues_of(number) == ()
        assert all(number not in some for some in table._by_queue.values())
        taken.append(Told.hashed - sum(taken))
    assert taken[0] == taken[1]


def test_an_lsn_is_never_given_twice(world: World) -> None:
    with pytest.raises(InvalidArgument, match="was given before"):
        world.core.boot(world.now, clean=True, next_lsn=1)


def test_a_refused_newcomer_s_bcc_keys_are_remembered_within_their_bound_and_it_goes_to_them_all_the_same(
    world: World,
) -> None:
    world.core._interning._blind_room = 3_000
    world.declare("q", max_length=0, overflow="reject-publish-dlx", dead_letter_exchange="amq.topic")
    letters = world.declare("letters")
    world.core.bind(world.now, "/", "amq.topic", "letters", "queue", "k.#")
    for number in range(20):
        world.publish("q", b"x", properties=header(headers={"BCC": [f"k.{number}"]}))
    assert letters.ready == 20
    assert 0 <= world.core._interning._blind_room < 300
    topics = [batch.topic_of(row) for batch, row in world.rows.values()]
    assert {bool(topic.blind) for topic in topics} == {True, False}
    assert [topic.blind for topic in topics] == [world.core._interning.named(topic.via)[2] for topic in topics]
