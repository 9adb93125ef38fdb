"""Declaring and deleting: what is equal, what is refused, and with which words."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from penstock.core.state.durable import canonical
from penstock.errors import AccessRefused, InvalidArgument, NotFound, PreconditionFailed, Refused, ResourceLocked
from penstock.records.declared_types import EXCHANGE_TYPES
from penstock.records.queue_settings import QueueSettings
from unit.core.world import World, header


@pytest.fixture
def world() -> World:
    world = World()
    world.declare("q", arguments={"x-max-length": 10, "x-single": True})
    world.core.declare_exchange(world.now, "/", "x", "direct")
    return world


Command = Callable[[World], object]


def declare(name: str = "q", **options: object) -> Command:
    return lambda w: w.core.declare_queue(w.now, "/", name, QueueSettings(), **options)  # type: ignore[arg-type]


def exchange(name: str, type: str = "direct", **options: object) -> Command:
    return lambda w: w.core.declare_exchange(w.now, "/", name, type, **options)  # type: ignore[arg-type]


LOCKED = (
    "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally declared on another "
    "connection or the exclusive property value does not match that of the original declaration."
)
DIFFERS = "inequivalent arg '{}' for queue 'q' in vhost '/': received {}"
SAME = {"x-max-length": 10, "x-single": True}

REFUSALS: list[tuple[Command, type[Refused], str]] = [
    (lambda w: w.core.queue("/", "none"), NotFound, "no queue 'none' in vhost '/'"),
    (declare("none", passive=True), NotFound, "no queue 'none' in vhost '/'"),
    (exchange("none", passive=True), NotFound, "no exchange 'none' in vhost '/'"),
    (lambda w: w.core.bind(w.now, "/", "none", "q", "queue", ""), NotFound, "no exchange 'none' in vhost '/'"),
    (lambda w: w.core.bind(w.now, "/", "x", "none", "queue", ""), NotFound, "no queue 'none' in vhost '/'"),
    (lambda w: w.core.bind(w.now, "/", "x", "none", "exchange", ""), NotFound, "no exchange 'none' in vhost '/'"),
    (lambda w: w.core.bind(w.now, "/", "none", "none", "queue", ""), NotFound, "no exchange 'none' in vhost '/'"),
    (lambda w: w.core.bind(w.now, "/", "", "none", "queue", ""), AccessRefused,
     "operation not permitted on the default exchange"),
    (declare("amq.foo"), AccessRefused, "queue name 'amq.foo' contains reserved prefix 'amq.*'"),
    (exchange("amq.foo"), AccessRefused, "exchange name 'amq.foo' contains reserved prefix 'amq.*'"),
    (exchange(""), AccessRefused, "operation not permitted on the default exchange"),
    (lambda w: w.core.bind(w.now, "/", "", "q", "queue", ""), AccessRefused,
     "operation not permitted on the default exchange"),
    (lambda w: w.core.delete_exchange(w.now, "/", ""), AccessRefused,
     "operation not permitted on the default exchange"),
    (lambda w: w.core.delete_exchange(w.now, "/", "amq.direct"), AccessRefused,
     "deletion of system exchange 'amq.direct' in vhost '/' not allowed"),
    (exchange("y", "topicc"), InvalidArgument, "unknown exchange type 'topicc'; did you mean 'topic'?"),
    (exchange("y", "foo"), InvalidArgument,
     f"unknown exchange type 'foo'; there are {', '.join(EXCHANGE_TYPES)}"),
    (exchange("x", "fanout"), PreconditionFailed,
     "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'fanout' but current is 'direct'"),
    (exchange("x", durable=False), PreconditionFailed,
     "inequivalent arg 'durable' for exchange 'x' in vhost '/': received 'false' but current is 'true'"),
    (declare(durable=False, arguments=SAME), PreconditionFailed,
     "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"),
    (declare(auto_delete=True, arguments=SAME), PreconditionFailed,
     "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'true' but current is 'false'"),
    (declare(arguments={**SAME, "x-max-length": 20}), PreconditionFailed,
     "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received '20' but current is '10'"),
    (declare(arguments={"x-single": True}), PreconditionFailed,
     DIFFERS.format("x-max-length", "none but current is the value '10' of type 'signedint'")),
    (declare(arguments={**SAME, "x-overflow": "text"}), PreconditionFailed,
     DIFFERS.format("x-overflow", "the value 'text' of type 'longstr' but current is none")),
    (declare(arguments={"x-lease-period": "5s", "x-message-ttl": 5, "x-dead-letter-exchange": ""}), PreconditionFailed,
     DIFFERS.format("x-message-ttl", "the value '5' of type 'signedint' but current is none")),
    (declare(arguments={**SAME, "x-lease-period": "5s"}), PreconditionFailed,
     DIFFERS.format("x-lease-period", "the value '5s' of type 'longstr' but current is none")),
    (declare(arguments={**SAME, "x-max-length": 10.0}), PreconditionFailed,
     "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received '10.0' but current is '10'"),
    (declare(exclusive_to=object(), arguments=SAME), ResourceLocked, LOCKED),
    (declare("n" * 256), InvalidArgument, "a queue name has 1 to 255 bytes, not 256"),
    (lambda w: w.core.declare_queue(w.now, "/", "d", QueueSettings(dead_letter_routing_key="k")), InvalidArgument,
     "invalid arg 'dead_letter_routing_key' for queue 'd' in vhost '/': routing_key_but_no_dlx_defined"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "error", "text"), REFUSALS)
def test_refusals_name_the_thing_and_change_nothing(
    world: World, command: Command, error: type[Refused], text: str
) -> None:
    before = world.core.last_lsn
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        command(world)
    assert world.core.last_lsn == before


def test_equal_declares_are_one(world: World) -> None:
    before = world.core.last_lsn
    assert declare(arguments=SAME)(world) is world.core.queue("/", "q")
    assert declare(passive=True)(world) is world.core.queue("/", "q")
    exchange("x")(world)
    exchange("amq.direct")(world)
    exchange("amq.topic", "topic", passive=True)(world)
    assert world.core.last_lsn == before
    assert declare("amq.gen-1", server_named=True)(world) is not None


def test_locked_queues(world: World) -> None:
    me = object()
    queue = declare("mine", exclusive_to=me)(world)
    assert world.core.queue("/", "mine", by=me) is queue
    assert declare("mine", exclusive_to=me, by=me)(world) is queue
    with pytest.raises(ResourceLocked):
        world.core.queue("/", "mine", by=object())
    with pytest.raises(ResourceLocked):
        declare("mine", passive=True, by=object())(world)
    with pytest.raises(ResourceLocked):
        world.core.bind(world.now, "/", "x", "mine", "queue", "", by=object())


def test_deleting(world: World) -> None:
    queue = world.core.queue("/", "q")
    world.publish("q", b"1", b"2")
    with pytest.raises(PreconditionFailed, match="^queue 'q' in vhost '/' not empty$"):
        world.core.delete_queue(world.now, queue, if_empty=True)
    consumer = world.subscribe(queue)
    with pytest.raises(PreconditionFailed, match="^queue 'q' in vhost '/' in use$"):
        world.core.delete_queue(world.now, queue, if_unused=True)
    world.core.unsubscribe(world.now, consumer, requeue=True)
    assert world.core.delete_queue(world.now, queue, if_unused=True) == 2
    world.core.bind(world.now, "/", "x", "amq.fanout", "exchange", "k")
    with pytest.raises(PreconditionFailed, match="^exchange 'x' in vhost '/' in use$"):
        world.core.delete_exchange(world.now, "/", "x", if_unused=True)
    world.core.unbind(world.now, "/", "x", "amq.fanout", "exchange", "other")
    world.core.unbind(world.now, "/", "x", "amq.fanout", "exchange", "k")
    world.core.delete_exchange(world.now, "/", "x", if_unused=True)
    world.core.delete_exchange(world.now, "/", "x")


def test_purge_returns_what_was_ready(world: World) -> None:
    queue = world.core.queue("/", "q")
    world.subscribe(queue, max_backlog=1)
    world.publish("q", b"1", b"2", b"3")
    assert world.core.purge_queue(world.now, queue) == 2
    assert queue.leased == 1


def test_auto_delete_exchanges_go_with_their_last_binding_and_take_others_along(world: World) -> None:
    for name in ("outer", "inner", "unused"):
        exchange(name, "fanout", auto_delete=True)(world)
    world.core.bind(world.now, "/", "outer", "inner", "exchange", "")
    world.core.bind(world.now, "/", "inner", "q", "queue", "")
    world.core.delete_queue(world.now, world.core.queue("/", "q"))
    world.turn()
    assert set(world.folded().exchanges) == {("/", "x"), ("/", "unused")}
    assert world.core.durable_state().exchanges == world.folded().exchanges


def test_binding_identity(world: World) -> None:
    for arguments in ({}, {"a": 1}, {"a": "1"}, {"a": 1, "b": 2}, {"b": 2, "a": 1}):
        world.core.bind(world.now, "/", "x", "q", "queue", "k", arguments)
        world.core.bind(world.now, "/", "x", "q", "queue", "k", arguments)
    assert len(world.core.durable_state().bindings) == 4


def test_deleted_and_declared_again_is_another_queue(world: World) -> None:
    old = world.core.queue("/", "q")
    consumer = world.subscribe(old)
    lsn = world.publish("q", b"x").first
    world.core.delete_queue(world.now, old)
    new = world.declare("q")
    world.publish("q", b"y")
    assert new.id != old.id
    assert world.cancelled == [consumer]
    assert world.contents(new) == [b"y"]
    world.core.unsubscribe(world.now, consumer, requeue=True)
    world.turn()
    assert lsn not in [x for chunk in world.folded().queues[new.id].waiting for x in chunk]


def test_an_argument_that_nobody_knows_is_kept_and_no_second_declare_is_asked_for_it(world: World) -> None:
    first = world.declare("odd", arguments={"x-odd": 5})
    for arguments in ({}, {"x-odd": 6}, {"x-other": "text"}):
        assert world.declare("odd", arguments=arguments) is first
    assert first.arguments == {"x-odd": 5}


def test_what_came_in_a_vhost_that_is_gone_is_of_none_that_has_its_name() -> None:
    """Told by records, so a start and whoever follows the log know it; numbers of its publishers are free again."""
    world = World()

    def numbered(number: int) -> bytes:
        return header(headers={"x-publisher": "p", "x-sequence": number})

    for vhost in ("gone", "there"):
        world.declare("q", vhost)
        world.publish("q", vhost=vhost, properties=numbered(7))
    before = dict(world.core._interning._vias)
    world.core.delete_queue(world.now, world.core.queue("gone", "q"))
    steps = 0
    while world.core.forget_vhost(world.now, "gone"):
        steps += 1
    world.turn()
    assert steps == 1
    after = world.core._interning._vias
    assert before["there", "", ()] == after["there", "", ()]
    assert ("gone", "", ()) not in after
    assert sorted(after.values()) == sorted(before.values()), "its number is nobody else's"
    world.declare("q", "gone")
    assert world.publish("q", vhost="gone", properties=numbered(1)).stored == 1
    assert world.publish("q", vhost="there", properties=numbered(1)).stored == 0
    assert world.core._interning._vias["gone", "", ()] not in before.values()
    assert canonical(world.core.durable_state()) == world.folded() == world.folded(100)
