"""`binding.deleted` for each binding that goes with its queue or exchange, in the order of RabbitMQ 3.10.8."""

from __future__ import annotations

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
            else:
                out.append((one.method.routing_key, headers["name"]))
    return out


def test_with_a_queue_go_its_bindings() -> None:
    life, client = listening()
    client.method(m.QueueDelete(queue="q1"))
    life.run()
    assert told(client) == [
        ("a", "q1", "queue", "1"), ("auto", "q1", "queue", "x"), ("b", "q1", "queue", "y"),
        ("queue.deleted", "q1"), ("exchange.deleted", "auto"),
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
