"""Which queues a message reaches: the rules of each exchange type, of exchanges bound together, of alternates."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock.core.publishing.published import HEADER_KEPT
from penstock.core.publishing.routed import FEW
from penstock.core.state.durable import canonical
from penstock.core.topology.exchange_types import murmur3
from penstock.core.topology.searching import KeyTrie
from penstock.errors import AccessRefused, InvalidArgument, NotFound
from penstock.records.declared_types import EXCHANGE_TYPES
from penstock.records.field_tables import FieldValue
from unit.core.world import World, header


@pytest.fixture
def world() -> World:
    return World()


def bind(world: World, source: str, name: str, key: str = "", kind: str = "queue", **arguments: object) -> None:
    table = {argument.replace("_", "-"): value for argument, value in arguments.items()}
    world.core.bind(world.now, "/", source, name, kind, key, table)


def reached(world: World, exchange: str, key: str, headers: dict[str, FieldValue] | None = None) -> set[str]:
    """Names of the queues that take one message."""
    before = {queue.name: queue.ready for queue in world.core.queues()}
    world.publish(key, b"x", exchange=exchange, properties=header(headers=headers) if headers is not None else header())
    return {queue.name for queue in world.core.queues() if queue.ready > before[queue.name]}


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("#", ["", "a", "a.b", "..."], []),
        ("*", ["a"], ["", "a.b"]),
        ("*.*", ["a.b", "a."], ["a", "a.b.c"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b"], ["a", "b", "a.b.c"]),
        ("a.*.b", ["a.x.b", "a..b"], ["a.b", "a.x.y.b"]),
        ("#.b", ["b", "a.b", "x.y.b"], ["b.a", ""]),
        ("a.#", ["a", "a.b.c"], ["b", "", "ab"]),
        ("simply#carrots", ["simply#carrots"], ["simply", "simply.x.carrots", "simplyxcarrots"]),
        ("a*", ["a*"], ["ab"]),
        ("#.#", ["", "a", "a.b"], []),
        ("#.*.#", ["a", "a.b"], [""]),
        ("A", ["A"], ["a"]),
    ],
)
def test_topic_patterns(world: World, pattern: str, matching: list[str], other: list[str]) -> None:
    world.declare("q")
    bind(world, "amq.topic", "q", pattern)
    for key in matching:
        assert reached(world, "amq.topic", key) == {"q"}, key
    for key in other:
        assert reached(world, "amq.topic", key) == set(), key


def test_a_binding_of_many_hashes_takes_little_more_than_its_words_times_those_of_a_key() -> None:
    """It took words times the square of these: 0.3 s for each short message with a key of its own."""
    trie, began = KeyTrie(), time.thread_time()
    trie.add("#." * 127 + "#", ("queue", "all"))
    trie.add("#.a." * 63 + "#.b", ("queue", "some"))
    for n in range(4):
        assert list(trie.find("a." * 127 + str(n))) == [("queue", "all")]
    assert set(trie.find("a." * 127 + "b")) == {("queue", "all"), ("queue", "some")}
    assert time.thread_time() - began < 0.6


def test_many_hashes_do_not_explode(world: World) -> None:
    world.declare("q")
    bind(world, "amq.topic", "q", ".".join(["#"] * 20) + ".end")
    assert reached(world, "amq.topic", ".".join(["a"] * 60)) == set()


def test_direct_and_fanout(world: World) -> None:
    for name in ("a", "b", "c"):
        world.declare(name)
        bind(world, "amq.fanout", name, "ignored")
    bind(world, "amq.direct", "a", "k")
    bind(world, "amq.direct", "b", "k")
    bind(world, "amq.direct", "c", "K")
    assert reached(world, "amq.fanout", "any") == {"a", "b", "c"}
    assert reached(world, "amq.direct", "k") == {"a", "b"}
    assert reached(world, "amq.direct", "none") == set()


def test_however_many_bindings_match_a_queue_takes_a_message_once(world: World) -> None:
    queue = world.declare("q")
    for key in ("a.*", "#", "a.b"):
        bind(world, "amq.topic", "q", key)
    assert reached(world, "amq.topic", "a.b") == {"q"}
    assert queue.ready == 1


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 2}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
        ({"x-match": "any", "a": 1}, {"a": 2}, False),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "all", "a": 1}, {"a": "1"}, False),
        ({"x-match": "all", "a": 1}, {"a": True}, False),
        ({"x-match": "all", "a": None}, {"a": "whatever"}, True),
        ({"x-match": "all", "a": None}, {"b": 1}, False),
        ({"x-match": "all", "x-ignored": 1}, {}, True),
        ({"x-match": "any", "x-ignored": 1}, {"x-ignored": 1}, False),
        ({"x-match": "all-with-x", "x-kept": 1}, {}, False),
        ({"x-match": "any-with-x", "x-kept": 1}, {"x-kept": 1}, True),
    ],
)
def test_headers(world: World, arguments: dict[str, object], headers: dict[str, FieldValue], expected: bool) -> None:
    world.declare("q")
    world.core.bind(world.now, "/", "amq.headers", "q", "queue", "", arguments)
    assert (reached(world, "amq.headers", "k", headers) == {"q"}) is expected


def test_what_is_remembered_under_a_header_is_bounded_in_bytes(world: World) -> None:
    world.declare("q")
    world.core.bind(world.now, "/", "amq.headers", "q", "queue", "", {"a": 1})
    for fill in ("", "x" * 100_000):
        assert reached(world, "amq.headers", "k", {"a": 1, "fill": fill}) == {"q"}
    kept = [data for _, data, _ in world.core._publisher._rows._plans] + list(world.core._publisher.traits)
    assert kept
    assert max(map(len, kept)) <= HEADER_KEPT


def test_headers_part_a_batch_of_one_topic(world: World) -> None:
    even, odd = world.declare("even"), world.declare("odd")
    bind(world, "amq.match", "even", x_match="all", parity=0)
    bind(world, "amq.match", "odd", x_match="all", parity=1)
    topic = world.core.topic("/", "amq.match", "k")
    world.publish_all(*((topic, header(headers={"parity": n % 2}), b"%d" % n) for n in range(6)))
    assert world.contents(even) == [b"0", b"2", b"4"]
    assert world.contents(odd) == [b"1", b"3", b"5"]
    assert canonical(world.core.durable_state()) == world.folded()


def test_a_wrong_x_match_is_refused(world: World) -> None:
    world.declare("q")
    with pytest.raises(InvalidArgument, match="x-match"):
        bind(world, "amq.headers", "q", x_match="most")


def test_exchanges_bound_to_exchanges_with_a_cycle(world: World) -> None:
    for name in ("x", "y", "z"):
        world.core.declare_exchange(world.now, "/", name, "fanout")
    for source, destination in (("x", "y"), ("y", "z"), ("z", "x")):
        bind(world, source, destination, kind="exchange")
    for name in ("a", "b"):
        world.declare(name)
    bind(world, "y", "a")
    bind(world, "z", "b")
    bind(world, "z", "a")
    assert reached(world, "x", "k") == reached(world, "z", "k") == {"a", "b"}
    world.core.unbind(world.now, "/", "y", "z", "exchange", "")
    assert reached(world, "x", "k") == {"a"}


def test_alternate_exchanges_chain_and_do_not_loop(world: World) -> None:
    def declare(name: str, alternate: str) -> None:
        world.core.declare_exchange(world.now, "/", name, "direct", arguments={"alternate-exchange": alternate})

    declare("first", "second")
    declare("second", "third")
    declare("third", "first")
    declare("lost", "missing")
    for name in ("a", "b"):
        world.declare(name)
    bind(world, "first", "a", "a")
    bind(world, "third", "b", "b")
    assert reached(world, "first", "a") == {"a"}
    assert reached(world, "first", "b") == {"b"}
    assert reached(world, "first", "c") == set()
    assert reached(world, "lost", "a") == set()


def exchange(world: World, name: str, kind: str, alternate: str = "") -> None:
    arguments = {"alternate-exchange": alternate} if alternate else {}
    world.core.declare_exchange(world.now, "/", name, kind, arguments=arguments)


def test_a_way_that_leads_nowhere_is_one_and_no_alternate_is_asked(world: World) -> None:
    """An exchange that is bound, and takes it no further; as RabbitMQ has it."""
    world.declare("rest")
    bind(world, "amq.fanout", "rest")
    exchange(world, "x", "fanout", "amq.fanout")
    exchange(world, "far", "direct")
    assert reached(world, "x", "k") == {"rest"}
    bind(world, "x", "x", kind="exchange")  # to itself
    assert reached(world, "x", "k") == set()
    exchange(world, "y", "fanout", "amq.fanout")
    bind(world, "y", "far", kind="exchange")
    assert reached(world, "y", "k") == set()


def test_each_exchange_on_the_way_asks_its_own_alternate(world: World) -> None:
    """Found by walks beside RabbitMQ: that of an exchange that is bound to another was never asked."""
    for name in ("rest", "near"):
        world.declare(name)
    bind(world, "amq.fanout", "rest")
    exchange(world, "x", "fanout")
    exchange(world, "far", "direct", "amq.fanout")
    bind(world, "x", "far", kind="exchange")
    assert reached(world, "x", "k") == {"rest"}
    bind(world, "x", "near")
    assert reached(world, "x", "k") == {"near", "rest"}
    bind(world, "far", "near", "k")
    assert reached(world, "x", "k") == {"near"}
    assert reached(world, "x", "other") == {"near", "rest"}


def test_an_alternate_is_asked_where_no_key_has_a_way(world: World) -> None:
    """A message with several keys (CC, BCC) is one."""
    main, rest = world.declare("main"), world.declare("rest")
    bind(world, "amq.fanout", "rest")
    exchange(world, "x", "direct", "amq.fanout")
    bind(world, "x", "main", "a")
    topic = world.core.topic("/", "x", "z")
    world.publish_all((topic, header(headers={"CC": ["a"]}), b"1"), (topic, header(headers={"CC": ["y"]}), b"2"))
    assert world.contents(main) == [b"1"]
    assert world.contents(rest) == [b"2"]


def test_an_alternate_is_used_for_those_messages_only_that_found_nothing(world: World) -> None:
    arguments = {"alternate-exchange": "amq.fanout"}
    world.core.declare_exchange(world.now, "/", "x", "headers", arguments=arguments)
    main, rest = world.declare("main"), world.declare("rest")
    bind(world, "x", "main", x_match="all", good=1)
    bind(world, "amq.fanout", "rest")
    topic = world.core.topic("/", "x", "k")
    world.publish_all((topic, header(headers={"good": 1}), b"1"), (topic, header(), b"2"))
    assert world.contents(main) == [b"1"]
    assert world.contents(rest) == [b"2"]


def test_the_default_exchange_follows_queues(world: World) -> None:
    assert reached(world, "", "q") == set()
    queue = world.declare("q")
    assert reached(world, "", "q") == {"q"}
    world.core.delete_queue(world.now, queue)
    assert reached(world, "", "q") == set()


def test_a_view_of_another_exchange(world: World) -> None:
    view = world.declare("view", underlying_topic="eu\\..*", exchange="amq.topic", default_publish_target="eu.x")
    assert reached(world, "amq.topic", "eu.de") == {"view"}
    assert reached(world, "", "eu.de") == set()
    bind(world, "amq.topic", "view", "#")
    assert reached(world, "amq.topic", "eu.de") == {"view"}
    world.core.alter_queue(world.now, view, type(view.settings)(underlying_topic="us", exchange="amq.topic"))
    world.core.unbind(world.now, "/", "amq.topic", "view", "queue", "#")
    assert reached(world, "amq.topic", "eu.de") == set()
    assert reached(world, "amq.topic", "us") == {"view"}


def test_a_view_of_an_exchange_that_is_declared_later(world: World) -> None:
    """As a dead-letter exchange may be; who publishes to one that is not there is refused, so nothing is lost."""
    world.declare("view", underlying_topic="eu", exchange="later")
    with pytest.raises(NotFound, match="no exchange 'later' in vhost '/'"):
        reached(world, "later", "eu")
    world.core.declare_exchange(world.now, "/", "later", "topic")
    assert reached(world, "later", "eu") == {"view"}


def test_missing_and_internal_exchanges(world: World) -> None:
    with pytest.raises(NotFound, match="no exchange 'none' in vhost '/'"):
        world.core.topic("/", "none", "k")
    world.core.declare_exchange(world.now, "/", "inner", "fanout", internal=True)
    with pytest.raises(AccessRefused, match="internal exchange 'inner'"):
        world.core.topic("/", "inner", "k")
    world.declare("q")
    bind(world, "inner", "q")
    bind(world, "amq.fanout", "inner", kind="exchange")
    assert reached(world, "amq.fanout", "k") == {"q"}


def test_a_cached_topic_follows_the_topology(world: World) -> None:
    topic = world.core.topic("/", "amq.direct", "k")
    version = world.core.topology_version
    a = world.declare("a")
    assert world.core.topology_version != version
    bind(world, "amq.direct", "a", "k")
    world.publish_all((topic, header(), b"1"))
    world.core.unbind(world.now, "/", "amq.direct", "a", "queue", "k")
    world.publish_all((topic, header(), b"2"))
    assert world.contents(a) == [b"1"]


def shared(world: World, name: str, kind: str = "x-consistent-hash", /, **weights: str) -> None:
    """An exchange that gives each message to one of these queues."""
    world.core.declare_exchange(world.now, "/", name, kind)
    for queue, weight in weights.items():
        world.declare(queue)
        bind(world, name, queue, weight)


def ways(world: World, exchange: str, count: int = 400) -> list[str]:
    """Who takes each of so many keys; one queue each."""
    taken = [reached(world, exchange, f"order.{i}") for i in range(count)]
    assert {len(one) for one in taken} == {1}
    return [one.pop() for one in taken]


def test_a_consistent_hash_gives_each_key_to_one_queue_in_shares_of_the_weights(world: World) -> None:
    shared(world, "h", a="1", b="1", c="2")
    taken = ways(world, "h")
    assert ways(world, "h") == taken
    counts = {queue: taken.count(queue) for queue in "abc"}
    assert 60 < counts["a"] < 140
    assert 60 < counts["b"] < 140
    assert 160 < counts["c"] < 240
    other = World()
    shared(other, "elsewhere", c="2", b="1", a="1")  # whatever is declared first
    assert ways(other, "elsewhere") == taken


def test_who_comes_and_goes_takes_and_leaves_no_more_than_its_share(world: World) -> None:
    shared(world, "h", a="1", b="1", c="1")
    before = ways(world, "h")
    world.declare("d")
    bind(world, "h", "d", "1")
    more = ways(world, "h")
    assert {new for old, new in zip(before, more, strict=True) if old != new} == {"d"}
    assert 60 < more.count("d") < 140
    world.core.unbind(world.now, "/", "h", "d", "queue", "1", {})
    assert ways(world, "h") == before


def test_a_header_may_stand_for_the_key(world: World) -> None:
    world.core.declare_exchange(world.now, "/", "h", "x-consistent-hash", arguments={"hash-header": "tenant"})
    for queue in "ab":
        world.declare(queue)
        bind(world, "h", queue, "1")
    taken = [reached(world, "h", f"k{i}", {"tenant": f"t{i % 20}"}) for i in range(60)]
    assert taken[:20] == taken[20:40] == taken[40:]
    assert {len(one) for one in taken} == {1}
    assert {one for some in taken for one in some} == {"a", "b"}
    assert len({tuple(reached(world, "h", f"k{i}", {})) for i in range(20)}) == 1  # none has it: all the same


def test_a_modulus_hash_asks_no_weight_and_a_delayed_exchange_may_share(world: World) -> None:
    shared(world, "m", "x-modulus-hash", a="", b="any", c="")
    assert set(ways(world, "m", 60)) == {"a", "b", "c"}
    inner = {"x-delayed-type": "x-consistent-hash"}
    world.core.declare_exchange(world.now, "/", "d", "x-delayed-message", arguments=inner)
    for queue in "ab":
        bind(world, "d", queue, "1")
    assert set(ways(world, "d", 60)) == {"a", "b"}


def test_an_exchange_bound_to_one_that_shares_is_one_of_its_ends(world: World) -> None:
    shared(world, "h", a="1")
    world.declare("far")
    bind(world, "amq.fanout", "far")
    bind(world, "h", "amq.fanout", "1", kind="exchange")
    assert set(ways(world, "h", 60)) == {"a", "far"}


@pytest.mark.parametrize(("weight", "why"), [("", "integer: ''"), ("x", "integer: 'x'"), ("-1", "greater than 0"),
                                             ("0", "greater than 0"), ("9" * 10, "999999999 at most")])  # fmt: skip
def test_the_key_of_a_binding_to_a_consistent_hash_is_a_weight(world: World, weight: str, why: str) -> None:
    shared(world, "h", a="1")
    with pytest.raises(InvalidArgument, match=why):
        bind(world, "h", "a", weight)
    with pytest.raises(InvalidArgument, match=why):
        bind(world, "h", "amq.fanout", weight, kind="exchange")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"hash-header": 5}, "5 is not text"),
        ({"hash-property": "app_id"}, "Unsupported property: 'app_id'"),
        ({"hash-header": "h", "hash-property": "message_id"}, "mutually exclusive"),
    ],
)
def test_what_a_hash_is_not_taken_of(world: World, arguments: dict[str, object], why: str) -> None:
    for kind in ("x-consistent-hash", "x-modulus-hash"):
        with pytest.raises(InvalidArgument, match=why):
            world.core.declare_exchange(world.now, "/", "h", kind, arguments=arguments)


@pytest.mark.parametrize("name", ["correlation_id", "message_id", "timestamp"])
def test_a_hash_of_a_property(world: World, name: str) -> None:
    world.core.declare_exchange(world.now, "/", "h", "x-consistent-hash", arguments={"hash-property": name})
    for queue in "abc":
        world.declare(queue)
        bind(world, "h", queue, "1")

    def way(i: int, key: str) -> str:
        value: Any = i if name == "timestamp" else str(i)
        before = {queue: world.core.queue("/", queue).ready for queue in "abc"}
        world.publish(key, b"x", exchange="h", properties=header(**{name: value}))
        [taken] = [queue for queue in "abc" if world.core.queue("/", queue).ready > before[queue]]
        return taken

    first = [way(i, "some key") for i in range(60)]
    assert set(first) == {"a", "b", "c"}
    assert [way(i, f"another {i}") for i in range(60)] == first
    assert len({way(-1, f"{i}") if name != "timestamp" else way(0, f"{i}") for i in range(9)}) == 1


def test_chance_gives_each_message_to_one_of_all(world: World) -> None:
    world.core.declare_exchange(world.now, "/", "r", "x-random")
    for queue in "abc":
        world.declare(queue)
        bind(world, "r", queue, "of no meaning")
    world.publish("k", *[b"same"] * 300, exchange="r")
    counts = [world.core.queue("/", queue).ready for queue in "abc"]
    assert sum(counts) == 300
    assert min(counts) > 60
    for _ in range(60):
        world.publish("k", b"same", exchange="r")
    more = [world.core.queue("/", queue).ready for queue in "abc"]
    assert all(after > before + 5 for after, before in zip(more, counts, strict=True))
    world.restart(clean=False)
    assert [world.core.queue("/", queue).ready for queue in "abc"] == more


def test_chance_and_duplicates(world: World) -> None:
    """Where a message goes is drawn once, however often its batch is looked at."""
    world.core.declare_exchange(world.now, "/", "r", "x-random")
    for queue in "ab":
        world.declare(queue, dedup_key="/n", unique=True)
        bind(world, "r", queue)
    for _ in range(20):
        world.publish("k", *[b'{"n": %d}' % i for i in range(40)], exchange="r")
    for queue in "ab":
        assert world.core.queue("/", queue).ready == 40, "each number once in each"


@pytest.mark.parametrize(
    ("data", "seed", "value"),
    [(b"", 0, 0), (b"", 1, 0x514E28B7), (b"test", 0, 0xBA6BD213), (b"Hello, world!", 1234, 0xFAF6CDB3),
     (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD)],
)  # fmt: skip
def test_the_hash_of_the_stream_protocols_clients(data: bytes, seed: int, value: int) -> None:
    assert murmur3(data, seed) == value


def test_a_super_stream_has_its_partitions_by_number(world: World) -> None:
    world.core.declare_exchange(world.now, "/", "s", "x-super-stream")
    for number, queue in enumerate("abc"):
        world.declare(queue)
        bind(world, "s", queue, str(number))
    with pytest.raises(InvalidArgument, match="must be an integer: 'x'"):
        bind(world, "s", "a", "x")
    found = ["abc".index(reached(world, "s", f"key {i}").pop()) for i in range(60)]
    assert found == [murmur3(b"key %d" % i, 104729) % 3 for i in range(60)]


def test_every_type_that_may_be_declared_routes(world: World) -> None:
    for kind in EXCHANGE_TYPES:
        arguments = {"x-delayed-type": "direct", "x-cache-size": 10}
        world.core.declare_exchange(world.now, "/", kind, kind, arguments=arguments)
        world.declare(f"of {kind}")
        key = "0" if kind == "x-super-stream" else "1"
        bind(world, kind, f"of {kind}", key)
        assert reached(world, kind, key, {}) - {"amq.recent.x-recent-history"} == {f"of {kind}"}


def test_what_was_shared_comes_out_as_it_was_after_a_restart(world: World) -> None:
    shared(world, "h", a="1", b="3")
    before = ways(world, "h", 60)
    world.restart(clean=False)
    assert ways(world, "h", 60) == before
    assert world.folded() == canonical(world.core.durable_state())


@pytest.mark.parametrize("where", ["here", "behind an exchange", "at the alternate"])
def test_a_way_of_its_own_is_dear_where_many_bindings_may_have_a_say_in_it(world: World, where: str) -> None:
    """Who publishes to few of them is not looked after message by message."""
    far = "amq.headers" if where == "here" else "far"
    world.declare("q")
    world.core.declare_exchange(world.now, "/", "far", "headers")
    world.core.declare_exchange(world.now, "/", "near", "headers", arguments={"alternate-exchange": "far"})
    near = {"here": far, "behind an exchange": "amq.headers", "at the alternate": "near"}[where]
    if where == "behind an exchange":
        bind(world, near, far, kind="exchange", x=1)
    bind(world, near, "q", a=1)
    for number in range(FEW - 2):
        bind(world, far, "q", a=number, b=1)
    topic = world.core.topic("/", near, "k")
    assert not world.core.dear(topic)
    for number in range(3):
        bind(world, far, "q", c=number)
    assert world.core.dear(topic)
