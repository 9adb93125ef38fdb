"""`binding.deleted` for each binding that goes with its queue or exchange, in the order of RabbitMQ 3.10.8."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.log.simdisk import SimDisk
from penstock.server import notices
from penstock.wire.amqp import methods as m
from sim.serverkit import Client, Content, Life, clock


def listening() -> tuple[Life, Client]:
    """Two exchanges, one that goes with its last binding, two queues, and whoever hears of their ends."""
    life = Life(SimDisk(), clock())
    life.declare("heard", "q1", "q2")
    client = life.client()
    for name, auto in (("a", False), ("b", False), ("auto", True)):
        client.method(m.ExchangeDeclare(exchange=name, type="topic", auto_delete=auto))
    for queue, source, key in (("q1", "a", "1"), ("q2", "a", "2"), ("q1", "auto", "x"), ("q1", "b", "y")):
        client.method(m.QueueBind(queue=queue, exchange=source, routing_key=key))
    client.method(m.ExchangeBind(destination="a", source="b", routing_key="r"))
    client.method(m.ExchangeBind(destination="b", source="a", routing_key="s"))
    client.method(m.QueueBind(queue="heard", exchange="amq.rabbitmq.event", routing_key="*.deleted"))
    client.consume("heard", no_ack=True)
    life.run()
    client.take_all()
    return life, client


def told(client: Client) -> list[tuple[object, ...]]:
    out: list[tuple[object, ...]] = []
    for one in client.take_all():
        if isinstance(one, Content):
            assert isinstance(one.method, m.BasicDeliver)
            headers = one.properties.headers or {}
            if one.method.routing_key == "binding.deleted":
                names = ("source_name", "destination_name", "destination_kind", "routing_key")
                out.append(tuple(headers[name] for name in names))
                assert headers["source_kind"] == "exchange"
            elif one.method.routing_key != "consumer.deleted":
                out.append((one.method.routing_key, headers["name"]))
    return out


def test_with_a_queue_go_its_bindings() -> None:
    life, client = listening()
    client.method(m.QueueDelete(queue="q1"))
    life.run()
    assert told(client) == [
        ("exchange.deleted", "auto"), ("auto", "q1", "queue", "x"),
        ("a", "q1", "queue", "1"), ("b", "q1", "queue", "y"), ("queue.deleted", "q1"),
    ]  # fmt: skip


def test_with_an_exchange_go_those_to_it_and_those_from_it() -> None:
    life, client = listening()
    client.method(m.ExchangeDelete(exchange="a"))
    life.run()
    assert told(client) == [
        ("b", "a", "exchange", "r"), ("exchange.deleted", "a"),
        ("a", "q1", "queue", "1"), ("a", "q2", "queue", "2"), ("a", "b", "exchange", "s"),
    ]  # fmt: skip


def test_a_binding_of_an_exchange_to_itself_goes_once() -> None:
    life, client = listening()
    client.method(m.ExchangeDeclare(exchange="own", type="topic"))
    client.method(m.ExchangeBind(destination="own", source="own", routing_key="k"))
    client.method(m.ExchangeDelete(exchange="own"))
    life.run()
    assert told(client) == [("own", "own", "exchange", "k"), ("exchange.deleted", "own")]
    assert life.core.topology.went == {}


def test_queues_that_go_by_themselves_take_theirs_along() -> None:
    life, client = listening()
    other = life.client()
    other.method(m.QueueDeclare(queue="mine", exclusive=True))
    other.method(m.QueueBind(queue="mine", exchange="a", routing_key="m"))
    life.run()
    other.lose()
    life.run()
    assert told(client)[:2] == [("a", "mine", "queue", "m"), ("queue.deleted", "mine")]


def test_of_very_many_the_last_are_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MANY", {**notices.MANY, notices.Kind.UNBIND: (3, "bindings.deleted")})
    life, client = listening()
    for n in range(5):
        client.method(m.QueueBind(queue="q2", exchange="b", routing_key=str(n)))
    life.run()
    client.take_all()
    before = life.engine.notices.feed.last
    client.method(m.QueueDelete(queue="q2"))
    life.run()
    names = [one.name for one in life.engine.notices.feed.since(before, 100)]
    assert names == ["binding.deleted"] * 3 + ["queue.deleted", "bindings.deleted"]
    assert life.engine.notices.feed.since(before, 100)[-1].fields == {"count": 3}
    assert len(told(client)) == 4


def chained(queue: Client, **how: object) -> None:
    """A queue `q` with two bindings from an exchange that goes with them, and takes along one that is bound to it."""
    for name, auto in (("stays", False), ("goes", True), ("up", True)):
        queue.method(m.ExchangeDeclare(exchange=name, type="topic", auto_delete=auto))
    queue.method(m.QueueDeclare(queue="q", **how))  # type: ignore[arg-type]
    for source, key in (("stays", "s"), ("goes", "g1"), ("goes", "g2")):
        queue.method(m.QueueBind(queue="q", exchange=source, routing_key=key))
    for source in ("up", "stays"):
        queue.method(m.ExchangeBind(destination="goes", source=source, routing_key="c"))


WAYS: dict[str, tuple[dict[str, object], Callable[[Life, Client], object]]] = {
    "delete": ({}, lambda _, client: client.method(m.QueueDelete(queue="q"))),
    "expires": ({"arguments": {"x-expires": 1000}}, lambda life, _: life.advance(2_000_000)),
    "its connection ends": ({"exclusive": True}, lambda _, client: client.lose()),
    "its last consumer leaves": ({"auto_delete": True}, lambda _, client: client.method(m.BasicCancel("t"))),
    "its last consumer is lost": ({"auto_delete": True}, lambda _, client: client.lose()),
}


@pytest.mark.parametrize("way", WAYS)
def test_however_a_queue_ends_what_goes_with_it_is_told_before(way: str) -> None:
    """An exchange before its bindings, all of them before the queue."""
    life, client = listening()
    how, end = WAYS[way]
    other = life.client()
    chained(other, **how)
    if "auto_delete" in how:
        other.method(m.BasicConsume(queue="q", consumer_tag="t"))
    life.run()
    client.take_all()
    end(life, other)
    life.run()
    assert told(client) == [
        ("exchange.deleted", "goes"), ("goes", "q", "queue", "g1"), ("goes", "q", "queue", "g2"),
        ("exchange.deleted", "up"), ("up", "goes", "exchange", "c"),
        ("stays", "q", "queue", "s"), ("stays", "goes", "exchange", "c"), ("queue.deleted", "q"),
    ]  # fmt: skip


def test_with_the_last_binding_its_exchange_is_told_before_it() -> None:
    life, client = listening()
    other = life.client()
    chained(other)
    other.method(m.QueueUnbind(queue="q", exchange="goes", routing_key="g1"))
    life.run()
    assert told(client) == [("goes", "q", "queue", "g1")]
    other.method(m.QueueUnbind(queue="q", exchange="goes", routing_key="g2"))
    life.run()
    assert told(client) == [
        ("exchange.deleted", "goes"), ("exchange.deleted", "up"), ("up", "goes", "exchange", "c"),
        ("stays", "goes", "exchange", "c"), ("goes", "q", "queue", "g2"),
    ]  # fmt: skip


def test_of_an_exchange_those_to_a_queue_of_its_name_come_behind_it() -> None:
    life, client = listening()
    client.method(m.QueueDeclare(queue="b"))
    client.method(m.QueueBind(queue="b", exchange="b", routing_key="n"))
    client.method(m.ExchangeDelete(exchange="b"))
    life.run()
    assert [one for one in told(client) if one in {("exchange.deleted", "b"), ("b", "b", "queue", "n")}] == [
        ("exchange.deleted", "b"), ("b", "b", "queue", "n")
    ]  # fmt: skip
