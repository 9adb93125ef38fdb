"""Exchanges that remember: the last messages (`x-recent-history`), and keys that came (`x-message-deduplication`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core.audit_log import Audit
from penstock.core.commands import queues
from penstock.core.effects import Fetch, Fetched, Verb
from penstock.core.publishing.published import Published
from penstock.core.state.durable import canonical
from penstock.core.topology.topology import CACHE_MOST, HISTORY_MOST
from penstock.errors import AccessRefused, InvalidArgument, QueueFull
from penstock.records.entries import Publishes
from penstock.records.field_tables import FieldValue
from unit.core.world import World, header


@pytest.fixture
def world() -> World:
    return World()


def remembering(world: World, **arguments: object) -> None:
    """An exchange `x` with a history."""
    table = {f"x-recent-history-{name}": value for name, value in arguments.items()}
    world.core.declare_exchange(world.now, "/", "x", "x-recent-history", arguments=table)
    world.turn()


def deduplicating(world: World, **arguments: object) -> None:
    """An exchange `x` that keeps duplicates out."""
    table = {f"x-cache-{name}": value for name, value in {"size": 100, **arguments}.items()}
    world.core.declare_exchange(world.now, "/", "x", "x-message-deduplication", arguments=table)
    world.turn()


def bind(world: World, source: str, name: str, key: str = "", kind: str = "queue") -> None:
    world.core.bind(world.now, "/", source, name, kind, key)
    world.turn()


def send(world: World, *texts: str, **headers: FieldValue) -> list[Published]:
    return [
        world.publish("k", text.encode(), exchange="x", properties=header(headers=headers or None)) for text in texts
    ]


def keyed(world: World, text: str, key: FieldValue, exchange: str = "x") -> Published:
    properties = header(headers={"x-deduplication-header": key})
    return world.publish("k", text.encode(), exchange=exchange, properties=properties)


def has(world: World, name: str) -> list[bytes]:
    found = world.core.find_queue("/", name)
    assert found is not None
    return world.contents(found)


# -- recent history


def test_a_queue_that_is_bound_gets_the_last_messages_and_then_the_new_ones(world: World) -> None:
    remembering(world, length=2)
    world.declare("q")
    send(world, "1", "2", "3")
    bind(world, "x", "q", "any")
    assert has(world, "q") == [b"2", b"3"]
    send(world, "4")
    assert has(world, "q") == [b"2", b"3", b"4"]


def test_twenty_are_remembered_where_nothing_else_is_said(world: World) -> None:
    remembering(world)
    world.declare("q")
    send(world, *map(str, range(25)))
    bind(world, "x", "q")
    assert has(world, "q") == [str(number).encode() for number in range(5, 25)]


def test_the_same_binding_again_brings_nothing_and_another_one_only_what_the_queue_has_not(world: World) -> None:
    remembering(world)
    queue = world.declare("q")
    send(world, "1")
    bind(world, "x", "q", "a")
    bind(world, "x", "q", "a")
    bind(world, "x", "q", "b")
    assert has(world, "q") == [b"1"]
    queue.check()


def test_who_worked_it_off_and_binds_anew_gets_it_again(world: World) -> None:
    remembering(world)
    queue = world.declare("q")
    send(world, "1", "2")
    bind(world, "x", "q")
    consumer = world.subscribe(queue, no_ack=True)
    assert len(world.inbox[consumer]) == 2
    world.core.unsubscribe(world.now, consumer, requeue=True)
    world.core.unbind(world.now, "/", "x", "q", "queue", "")
    bind(world, "x", "q")
    assert has(world, "q") == [b"1", b"2"]
    world.restart(clean=True)
    assert has(world, "q") == [b"1", b"2"]


def test_what_says_no_store_is_delivered_and_not_remembered(world: World) -> None:
    remembering(world)
    world.declare("old")
    bind(world, "x", "old")
    send(world, "kept")
    send(world, "not", **{"x-recent-history-no-store": True})
    send(world, "said no", **{"x-recent-history-no-store": False})
    world.declare("new")
    bind(world, "x", "new")
    assert has(world, "old") == [b"kept", b"not", b"said no"]
    assert has(world, "new") == [b"kept", b"said no"]


def test_what_nobody_is_bound_to_take_is_remembered_and_told_as_unroutable(world: World) -> None:
    remembering(world)
    [told] = send(world, "1")
    assert (list(told.unroutable), list(told.kept), told.stored, told.lost()) == ([0], [0], 1, set())


def test_a_batch_in_which_some_are_for_nobody_is_told_row_by_row(world: World) -> None:
    remembering(world)
    world.declare("q")
    topics = [world.core.topic("/", exchange, "q") for exchange in ("x", "", "amq.direct")]
    told = world.core.publish(world.now, Publishes(topics, [header()] * 3, [b"a", b"b", b"c"]))
    world.turn()
    assert (list(told.unroutable), list(told.kept), told.stored) == ([0, 2], [0], 2)
    assert told.lost() == {2}
    assert has(world, "q") == [b"b"]
    assert has(world, "amq.recent.x") == [b"a"]


def test_an_alternate_exchange_gets_what_only_the_history_takes(world: World) -> None:
    world.core.declare_exchange(world.now, "/", "x", "x-recent-history", arguments={"alternate-exchange": "amq.fanout"})
    world.declare("q")
    bind(world, "amq.fanout", "q")
    [told] = send(world, "1")
    assert (list(told.unroutable), has(world, "q")) == ([], [b"1"])


def test_a_full_queue_lets_go_of_the_oldest_when_history_comes(world: World) -> None:
    remembering(world)
    queue = world.declare("q", max_length=2)
    send(world, "1", "2", "3")
    bind(world, "x", "q")
    assert has(world, "q") == [b"2", b"3"]
    queue.check()


@pytest.mark.parametrize("more", [{"fairness_key": "/k"}, {"priority_expression": "/k"}, {"target_queue_depth": 1}])
def test_history_takes_its_place_in_an_order_that_says_more(world: World, more: dict[str, object]) -> None:
    remembering(world)
    queue = world.declare("q", **more)
    send(world, '{"k": 1}', '{"k": 3}', '{"k": 1}')
    bind(world, "x", "q")
    queue.check()
    assert len(has(world, "q")) == 3
    consumer = world.subscribe(queue, no_ack=True)
    assert len(world.inbox[consumer]) == 3
    if "priority_expression" in more:
        assert world.read(world.inbox[consumer]).bodies[0] == b'{"k": 3}'


def test_a_queue_with_a_filter_takes_what_passes_it(world: World) -> None:
    remembering(world, length=3)
    queue = world.declare("q", filter="/k = 1")
    send(world, '{"k": 1, "old": 0}', '{"k": 1}', '{"k": 2}', '{"k": 1, "n": 3}')
    bind(world, "x", "q")
    assert has(world, "q") == [b'{"k": 1}', b'{"k": 1, "n": 3}']
    send(world, '{"k": 1, "n": 4}', '{"k": 2}')
    assert has(world, "q") == [b'{"k": 1}', b'{"k": 1, "n": 3}', b'{"k": 1, "n": 4}']
    queue.check()
    world.restart(clean=False)
    assert has(world, "q") == [b'{"k": 1}', b'{"k": 1, "n": 3}', b'{"k": 1, "n": 4}']
    assert canonical(world.folded()) == canonical(world.core.durable_state())


@pytest.mark.parametrize("more", [{}, {"filter": "/k > 0"}])
def test_barriers_of_a_history_hold_up_what_is_behind_them(world: World, more: dict[str, object]) -> None:
    remembering(world)
    queue = world.declare("q", barrier_expression="/b = 1", **more)
    send(world, '{"k": 1}', '{"k": 2, "b": 1}', '{"k": 3}')
    bind(world, "x", "q")
    queue.check()
    assert len(has(world, "q")) == 3
    consumer = world.subscribe(queue)
    assert world.read(world.inbox[consumer]).bodies == [b'{"k": 1}']
    for lsn in list(world.inbox[consumer]):
        world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.ACK, by=consumer)
    world.turn()
    assert len(world.inbox[consumer]) > 1


def test_a_filter_that_changes_while_it_looks_is_asked_anew(world: World) -> None:
    remembering(world)
    queue = world.declare("q", filter="/k = 1")
    send(world, '{"k": 1}', '{"k": 2}')
    world.core.bind(world.now, "/", "x", "q", "queue", "")
    world.core.alter_queue(world.now, queue, replace(queue.settings, filter="/k = 2"))
    world.turn()
    assert has(world, "q") == [b'{"k": 2}']


def test_an_exchange_that_is_bound_gives_the_history_to_whom_its_own_bindings_say(world: World) -> None:
    remembering(world)
    for name, more in (("one", {}), ("two", {}), ("some", {"filter": "/k = 1"})):
        world.declare(name, **more)
    world.core.declare_exchange(world.now, "/", "further", "direct")
    bind(world, "amq.topic", "one", "a.*")
    bind(world, "amq.topic", "further", "#", kind="exchange")
    bind(world, "further", "two", "b.1")
    bind(world, "further", "some", "b.1")
    for key, text in (("a.1", '{"k": 1}'), ("b.1", '{"k": 2}'), ("b.1", '{"k": 1, "n": 3}'), ("c", "nobody's")):
        world.publish(key, text.encode(), exchange="x")
    bind(world, "x", "amq.topic", kind="exchange")
    assert has(world, "one") == [b'{"k": 1}']
    assert has(world, "two") == [b'{"k": 2}', b'{"k": 1, "n": 3}']
    assert has(world, "some") == [b'{"k": 1, "n": 3}']
    bind(world, "x", "amq.topic", kind="exchange")
    assert len(has(world, "two")) == 2, "the same binding again brings nothing"
    world.restart(clean=False)
    assert len(has(world, "two")) == 2
    assert canonical(world.folded()) == canonical(world.core.durable_state())


def test_headers_and_further_keys_say_where_the_history_goes(world: World) -> None:
    remembering(world)
    for name in ("by header", "by CC"):
        world.declare(name)
    world.core.bind(world.now, "/", "amq.headers", "by header", "queue", "", {"x-match": "all", "kind": "a"})
    bind(world, "amq.direct", "by CC", "copy")
    send(world, "a", kind="a")
    send(world, "b", kind="b", CC=["copy"])
    for name in ("amq.headers", "amq.direct"):
        bind(world, "x", name, kind="exchange")
    assert (has(world, "by header"), has(world, "by CC")) == ([b"a"], [b"b"])


def test_one_with_a_history_that_is_bound_remembers_it_and_one_that_keeps_duplicates_out_gets_none(
    world: World,
) -> None:
    remembering(world)
    for name, kind, more in (("y", "x-recent-history", {}), ("z", "x-message-deduplication", {"x-cache-size": 9})):
        world.core.declare_exchange(world.now, "/", name, kind, arguments=more)
        world.declare(f"of {name}")
        bind(world, name, f"of {name}")
    world.publish("k", b"1", exchange="x", properties=header(headers={"x-deduplication-header": "a"}))
    for name in "yz":
        bind(world, "x", name, kind="exchange")
        bind(world, name, "x", kind="exchange")
    assert (has(world, "of y"), has(world, "amq.recent.y")) == ([b"1"], [b"1"])
    assert (has(world, "of z"), has(world, "amq.seen.z")) == ([], [])
    assert has(world, "amq.recent.x") == [b"1"]


def test_a_history_that_is_read_in_parts_comes_whole(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    remembering(world)
    asked = list[int]()

    def partly(effect: Fetch) -> None:
        asked.append(len(effect.chunk))
        part = effect.chunk[:2]
        world.core.answered(world.now, Fetched(effect.token, world.read(part), part[-1]))

    monkeypatch.setattr(queues, "READ_AT_ONCE", 3)
    monkeypatch.setattr(world, "fetch", partly)
    queue = world.declare("q")
    bind(world, "amq.fanout", "q")
    send(world, *map(str, range(7)))
    bind(world, "x", "amq.fanout", kind="exchange")
    assert has(world, "q") == [str(number).encode() for number in range(7)]
    assert asked == [3, 3, 3, 1]
    queue.check()


@pytest.mark.parametrize("gone", ["q", "x"])
def test_who_is_gone_before_the_history_was_looked_at_gets_none(world: World, gone: str) -> None:
    remembering(world)
    queue = world.declare("q", filter="/k = 1")
    send(world, '{"k": 1}')
    world.core.bind(world.now, "/", "x", "q", "queue", "")
    if gone == "q":
        world.core.delete_queue(world.now, queue)
        world.declare("q", filter="/k = 1")
    else:
        world.core.delete_exchange(world.now, "/", "x")
    world.turn()
    assert has(world, "q") == []
    assert world.core._histories == {}


def test_what_has_expired_is_no_history(world: World) -> None:
    remembering(world)
    world.declare("q")
    world.publish("k", b"short", exchange="x", properties=header(expiration="1000"))
    world.publish("k", b"long", exchange="x", properties=header(expiration="9000"))
    world.advance(2)
    queue = world.declare("later")
    bind(world, "x", "later")
    assert has(world, "later") == [b"long"]
    world.advance(8)
    assert queue.ready == 0


@pytest.mark.parametrize("clean", [True, False])
def test_history_and_what_was_taken_of_it_outlive_the_server(world: World, clean: bool) -> None:
    remembering(world, length=3)
    world.declare("q")
    send(world, "1", "2", "3", "4")
    bind(world, "x", "q")
    world.restart(clean=clean)
    assert has(world, "q") == [b"2", b"3", b"4"]
    world.declare("r")
    bind(world, "x", "r")
    assert has(world, "r") == [b"2", b"3", b"4"]
    assert canonical(world.folded()) == canonical(world.core.durable_state())


def test_what_comes_by_a_binding_between_exchanges_is_remembered_too(world: World) -> None:
    remembering(world)
    world.core.bind(world.now, "/", "amq.topic", "x", "exchange", "k.*")
    world.publish("k.1", b"1", exchange="amq.topic")
    world.declare("q")
    bind(world, "x", "q")
    assert has(world, "q") == [b"1"]


@pytest.mark.parametrize("length", [0, -1, "5", True, 1.5, HISTORY_MOST + 1])
def test_the_length_of_a_history_is_a_number_above_0(world: World, length: object) -> None:
    with pytest.raises(InvalidArgument, match="'x-recent-history-length' must be a positive integer"):
        remembering(world, length=length)
    assert world.core.find_queue("/", "amq.recent.x") is None


def test_the_audit_finds_nothing_wrong_with_what_is_taken_of_a_history(world: World) -> None:
    remembering(world, length=3)
    queue = world.declare("q")
    for at in range(4):
        send(world, *(f"{at}.{number}" for number in range(3)))
        bind(world, "x", "q", str(at))
        consumer = world.subscribe(queue, max_backlog=2)
        taken = [range(lsn, lsn + 1) for lsn in world.inbox[consumer]]
        world.core.settle(world.now, queue, taken, Verb.ACK, by=consumer)
        world.core.unsubscribe(world.now, consumer, requeue=True)
        world.turn()
    world.restart(clean=False)
    queue = world.core.queue("/", "q")
    world.core.unbind(world.now, "/", "x", "q", "queue", "0")
    bind(world, "x", "q", "0")
    world.subscribe(queue, no_ack=True)
    audit = Audit()
    for table in world.tables:
        for batch in table.to_batches():
            audit.feed(batch)
    report = audit.finish(world.folded())
    assert not report.findings
    assert canonical(world.folded()) == canonical(world.core.durable_state())


# -- duplicates


def test_one_of_each_key_is_routed_and_what_says_none_always(world: World) -> None:
    deduplicating(world)
    for name in "ab":
        world.declare(name)
        bind(world, "x", name)
    told = [keyed(world, text, key) for text, key in [("1", "k"), ("2", "k"), ("3", "other"), ("4", 7), ("5", 7)]]
    send(world, "6", "6")
    for name in "ab":
        assert has(world, name) == [b"1", b"3", b"4", b"6", b"6"]
    assert [(one.stored, one.duplicates, list(one.unroutable)) for one in told] == [
        (1, 0, []), (0, 1, []), (1, 0, []), (1, 0, []), (0, 1, [])
    ]  # fmt: skip
    assert has(world, "amq.seen.x") == [b"1", b"3", b"4"]


def test_it_is_a_duplicate_too_when_its_message_was_worked_off(world: World) -> None:
    deduplicating(world)
    queue = world.declare("q")
    bind(world, "x", "q")
    keyed(world, "1", "k")
    world.subscribe(queue, no_ack=True)
    keyed(world, "2", "k")
    assert queue.ready == 0
    assert len(world.deliveries) == 1


def test_duplicates_within_a_batch(world: World) -> None:
    deduplicating(world)
    world.declare("q")
    bind(world, "x", "q")
    topic = world.core.topic("/", "x", "k")
    headers = [header(headers={"x-deduplication-header": key}) for key in "aabcb"]
    told = world.core.publish(world.now, Publishes(topic, headers, [b"1", b"2", b"3", b"4", b"5"]))
    world.turn()
    assert (told.stored, told.duplicates) == (3, 2)
    assert has(world, "q") == [b"1", b"3", b"4"]


def test_so_many_keys_are_known_as_the_cache_has_room_for(world: World) -> None:
    deduplicating(world, size=2)
    world.declare("q")
    bind(world, "x", "q")
    for key in "abcbac":
        keyed(world, key, key)
    assert has(world, "q") == [b"a", b"b", b"c", b"a"]  # c made it forget a, then a made it forget b


def test_a_key_is_known_for_so_long(world: World) -> None:
    deduplicating(world, ttl="1500")
    world.declare("q")
    bind(world, "x", "q")
    keyed(world, "1", "k")
    world.advance(1.4)
    keyed(world, "2", "k")
    world.advance(0.2)
    keyed(world, "3", "k")
    assert has(world, "q") == [b"1", b"3"]


@pytest.mark.parametrize("clean", [True, False])
def test_keys_outlive_the_server(world: World, clean: bool) -> None:
    deduplicating(world, persistence="disk")
    world.declare("q")
    bind(world, "x", "q")
    keyed(world, "1", "k")
    world.restart(clean=clean)
    keyed(world, "2", "k")
    assert has(world, "q") == [b"1"]
    assert canonical(world.folded()) == canonical(world.core.durable_state())


def test_a_duplicate_goes_on_by_ways_that_do_not_lead_there(world: World) -> None:
    deduplicating(world)
    for name in ("by x", "beside", "both"):
        world.declare(name)
    bind(world, "x", "by x")
    bind(world, "x", "both")
    bind(world, "amq.fanout", "x", kind="exchange")
    bind(world, "amq.fanout", "beside")
    bind(world, "amq.fanout", "both")
    keyed(world, "1", "k", "amq.fanout")
    told = keyed(world, "2", "k", "amq.fanout")
    assert (has(world, "by x"), has(world, "beside"), has(world, "both")) == (
        [b"1"], [b"1", b"2"], [b"1", b"2"]
    )  # fmt: skip
    assert (told.stored, told.duplicates) == (1, 0)


def test_a_topic_that_is_declared_keeps_no_duplicate(world: World) -> None:
    deduplicating(world)
    world.core.declare_topic(world.now, "/", "x", "k")
    assert [keyed(world, text, "k").stored for text in "12"] == [1, 0]


def test_who_sends_again_what_was_refused_is_heard(world: World) -> None:
    deduplicating(world)
    queue = world.declare("q", max_length=1, overflow="reject-publish")
    bind(world, "x", "q")
    keyed(world, "1", "a")
    refused = keyed(world, "2", "b")
    assert isinstance(refused.refused[0][1], QueueFull)
    world.subscribe(queue, no_ack=True)
    assert keyed(world, "2", "b").stored == 1
    assert [world.read([lsn]).bodies[0] for one in world.deliveries for lsn in one.chunk] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"size": 0}, "'x-cache-size' must be an integer greater than 0"),
        ({"size": None}, "'x-cache-size' must be an integer greater than 0"),
        ({"size": "many"}, "'x-cache-size' must be an integer greater than 0"),
        ({"size": CACHE_MOST + 1}, "at most"),
        ({"ttl": 0}, "'x-cache-ttl' must be an integer greater than 0"),
        ({"persistence": "tape"}, "must be either 'disk' or 'memory'"),
    ],
)
def test_arguments_of_the_cache(world: World, arguments: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        deduplicating(world, **arguments)


# -- the queues


@pytest.mark.parametrize(("declare", "name"), [(remembering, "amq.recent.x"), (deduplicating, "amq.seen.x")])
def test_such_a_queue_is_the_exchanges_alone_and_goes_with_it(world: World, declare: object, name: str) -> None:
    declare(world)  # type: ignore[operator]
    queue = world.core.queue("/", name)
    assert queue.exchange == "x"
    for refused in (
        lambda: world.subscribe(queue),
        lambda: world.core.delete_queue(world.now, queue),
        lambda: bind(world, "amq.fanout", name),
    ):
        with pytest.raises(AccessRefused, match="belongs to exchange 'x'"):
            refused()
    assert world.publish(name).stored == 0
    world.core.delete_exchange(world.now, "/", "x")
    assert world.core.find_queue("/", name) is None


def test_the_name_of_such_an_exchange_leaves_room_for_its_queues(world: World) -> None:
    with pytest.raises(InvalidArgument, match="has a history has at most 244 bytes"):
        world.core.declare_exchange(world.now, "/", "n" * 245, "x-recent-history")


def test_one_that_delays_may_remember_what_is_due(world: World) -> None:
    arguments = {"x-delayed-type": "x-recent-history"}
    world.core.declare_exchange(world.now, "/", "x", "x-delayed-message", arguments=arguments)
    send(world, "late", **{"x-delay": 1000})
    send(world, "now")
    world.declare("q")
    world.advance(2)
    bind(world, "x", "q")
    assert has(world, "q") == [b"now", b"late"]
