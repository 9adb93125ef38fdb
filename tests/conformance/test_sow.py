"""Topics with keys through AMQP, Flight and the command line, and over a kill."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError

import penstock
from forked import penstock as command
from penstock.errors import InvalidArgument, NotFound
from penstock.server.flight import handover
from penstock.testing import Broker
from penstock.testing.process import ServerProcess

CONFIG: dict[str, object] = {
    "topic": [{"name": "orders", "key": ["/id"]}, {"name": "given", "key_from": "publisher"}],
    "queue": [{"name": "q", "underlying_topic": "orders"}],
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(CONFIG) as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[penstock.Client]:
    with penstock.connect(broker.flight_url) as made:
        yield made


def header(**headers: object) -> pika.BasicProperties:
    return pika.BasicProperties(delivery_mode=2, headers=headers or None)


def test_amqp_publishes_deltas_and_keys_in_headers(broker: Broker) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b'{"id": 1, "a": 1, "o": {"x": 1}}', header())
    broker.crash()
    broker.restart()  # so that the record has to be read
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for body in (b'{"id": 1, "o": {"y": 2}}', b'{"id": 1, "a": 2}', b'{"id": 2}'):
            channel.basic_publish("", "orders", body, header(**{"x-delta": True}))
        channel.basic_publish("", "given", b"any", header(**{"x-sow-key": "k"}))
        _, _, _first = channel.basic_get("q", auto_ack=True)
        _, _, second = channel.basic_get("q", auto_ack=True)
        assert second == b'{"id":1,"a":1,"o":{"x":1,"y":2}}'
    assert [one.body for one in broker.sow("orders", order_by="/id")] == [
        b'{"id":1,"a":2,"o":{"x":1,"y":2}}',
        b'{"id":2}',
    ]
    assert [(one.key, one.body) for one in broker.sow("given")] == [("k", b"any")]


def test_amqp_refuses_a_message_without_its_key(broker: Broker) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(NackError):
            channel.basic_publish("", "orders", b'{"a": 1}', header())
        channel.basic_publish("", "orders", b'{"id": 1}', header())
        quiet = connection.channel()
        quiet.basic_publish("", "orders", b'{"a": 1}', header())
        with pytest.raises(ChannelClosedByBroker, match="key field /id is null or missing"):
            quiet.basic_get("q")


def test_flight_refuses_rows_without_their_key_and_stores_the_others(client: penstock.Client) -> None:
    receipt = client.publish_table("orders", pa.table({"id": [1, None, 2]}))
    assert (receipt.stored, receipt.refused_rows, receipt.refused[0].row) == (2, 1, 1)
    with pytest.raises(InvalidArgument, match="/id is null or missing"):
        client.publish("orders", {"x": 1})
    client.publish("given", "[1]", headers={"x-sow-key": "k"})
    with pytest.raises(InvalidArgument, match="the present record is no JSON object"):
        client.delta_publish("given", {"a": 1}, headers={"x-sow-key": "k"})


def test_a_large_upload_keys_each_row(client: penstock.Client) -> None:
    bodies = [b'{"id": %d, "v": %d}' % (n % 700, n) for n in range(3000)]
    assert client.publish_table("orders", pa.table({"body": bodies})).stored == 3000
    found = {one.json()["id"]: one.json()["v"] for one in client.sow("orders")}
    assert found == {n % 700: n for n in range(3000)}
    assert client.topic("orders")["records"] == 700
    batches = list(client.sow_batches("orders", batch_size=100, order_by="/v DESC", columns=["sow_key", "body"]))
    assert [batch.num_rows for batch in batches] == [100] * 7
    assert batches[0].column("body")[0].as_py() == bodies[-1]


def test_many_deltas_of_one_upload_are_merged_in_their_order(client: penstock.Client) -> None:
    client.publish_table("orders", pa.table({"body": [b'{"id": %d, "v": [0]}' % n for n in range(1200)]}))
    bodies = [b'{"id": %d, "f%d": %d}' % (n % 1000, n // 1000, n) for n in range(2000)]
    bodies[700] = b'{"f": "without a key"}'
    receipt = client.publish_table("orders", pa.table({"body": bodies}), delta=True)
    assert (receipt.stored, receipt.refused_rows, receipt.refused[0].row) == (1999, 1, 700)
    found = {one.json()["id"]: one.json() for one in client.sow("orders")}
    assert found == {
        n: {"id": n, "v": [0], **({"f0": n} if n != 700 else {}), "f1": n + 1000} if n < 1000 else {"id": n, "v": [0]}
        for n in range(1200)
    }


def test_large_bodies_are_read_off_the_loop(tmp_path: Path) -> None:
    """Keys and deltas of bodies that would hold the loop up are worked out in a thread of the server."""
    (tmp_path / "p.toml").write_text('[[topic]]\nname = "t"\nkey = ["/id"]\n')
    pad = "x" * 400_000
    with ServerProcess(tmp_path / "data", config=tmp_path / "p.toml") as server:
        with penstock.connect(server.flight_url) as client:
            client.publish("t", {"id": 1, "pad": pad})
            client.delta_publish("t", {"id": 1, "a": 1})
            client.delta_publish("t", {"id": 1, "more": pad})
            with pytest.raises(InvalidArgument, match="/id is null or missing"):
                client.publish("t", {"pad": pad})
            with pytest.raises(InvalidArgument, match="/id is null or missing"):
                client.delta_publish("t", {"pad": pad})
            with pika.BlockingConnection(pika.URLParameters(server.amqp_url)) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                body = json.dumps({"id": 1, "b": 2, "pad": "y" * 300_000}).encode()
                channel.basic_publish("", "t", body, header(**{"x-delta": True}))
                channel.basic_publish("", "t", json.dumps({"id": 2, "pad": pad}).encode(), header())
                with pytest.raises(NackError):
                    channel.basic_publish("", "t", json.dumps({"pad": pad}).encode(), header())
            found = {one.json()["id"]: one.json() for one in client.sow("t")}
        assert found == {
            1: {"id": 1, "pad": "y" * 300_000, "a": 1, "more": pad, "b": 2},
            2: {"id": 2, "pad": pad},
        }


def test_a_subscription_begins_with_what_is_there(client: penstock.Client) -> None:
    for n in range(3):
        client.publish("orders", {"id": n, "a": n})
    with client.sow_and_subscribe("orders", filter="/a > 0", oof=True, delta=True, timeout="60s") as told:
        first: Any = [told.take(), told.take()]
        assert [(one.event, one.json()) for one in first] == [("sow", {"id": 1, "a": 1}), ("sow", {"id": 2, "a": 2})]
        client.publish("orders", {"id": 1, "a": 5})
        client.publish("orders", {"id": 1, "a": 0})
        client.sow_delete("orders", filter="/id = 2")
        rest: Any = [told.take() for _ in range(3)]
        assert told.completed
    assert [(one.event, one.reason, one.json()) for one in rest] == [
        ("publish", None, {"id": 1, "a": 5}),
        ("oof", "match", {"id": 1, "a": 0}),
        ("oof", "deleted", {"id": 2, "a": 2}),
    ]
    with pytest.raises(NotFound, match="no SOW topic"):
        client.delta_subscribe("nowhere").take()
    with pytest.raises(NotFound, match="no SOW topic"):
        client.sow_delete("nowhere", filter="1=1")
    client.declare("work", underlying_topic="orders")
    for what in ({"filter": "1=1"}, {"data": b"{}"}):
        with pytest.raises(InvalidArgument, match="'work' in vhost '/' is a queue, .* by ack and ack_filter"):
            client.sow_delete("work", **what)


def test_a_slow_reader_gets_all_records_and_what_comes_after_them(
    client: penstock.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "QUEUED_MOST", 20_000)
    rows = range(1500)
    client.publish_table("orders", pa.table({"body": [b'{"id": %d, "v": 0}' % n for n in rows]}))
    with client.sow_and_subscribe("orders", oof=True, timeout="20s") as told:
        kept = dict[str | None, bytes]()
        removed = 0
        for count, message in enumerate(told, 1):
            if count == 10:
                client.publish_table("orders", pa.table({"body": [b'{"id": %d, "v": 1}' % n for n in rows if n % 3]}))
                removed = client.sow_delete("orders", filter="/v = 1 AND /id < 300")
            if message.event == "oof":
                assert kept.pop(message.sow_key) == message.body
            else:
                kept[message.sow_key] = message.body
            if count >= 10 and count == 1500 + sum(1 for n in rows if n % 3) + removed:
                break
    assert removed == 200
    assert kept == {one.sow_key: one.body for one in client.sow("orders")}


def test_topics_are_declared_shown_and_deleted(client: penstock.Client) -> None:
    client.declare_topic("new", key=["/a", "/b"], expiration="5s")
    client.publish("new", {"a": 1, "b": 2})
    client.declare_topic("new")  # as it is
    shown = client.topic("new")
    assert (shown["key"], shown["expiration"], shown["records"]) == (["/a", "/b"], "5s", 1)
    assert [one["topic"] for one in client.topics()] == ["given", "new", "orders"]
    client.delete_topic("new")
    with pytest.raises(NotFound):
        client.topic("new")
    with pytest.raises(InvalidArgument, match="is no path"):
        client.declare_topic("bad", key=["a"])


def test_the_same_for_asyncio(broker: Broker) -> None:
    async def run() -> list[object]:
        async with penstock.aio.connect(broker.flight_url) as client:
            await client.publish("orders", {"id": 1, "a": 1})
            await client.delta_publish("orders", {"id": 1, "b": 2})
            found = [one.json() async for one in client.sow("orders")]
            assert await client.sow_delete("orders", keys=[one.key for one in broker.sow("orders") if one.key]) == 1
            return found

    assert asyncio.run(run()) == [{"id": 1, "a": 1, "b": 2}]


def test_the_command_line(broker: Broker) -> None:
    def penstock_(*arguments: str, given: str = "") -> str:
        done = command(*arguments, "--url", broker.flight_url, given=given)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    penstock_("publish", "orders", given='{"id": 1, "t": 5}\n{"id": 2, "t": 9}\n{"id": 1, "t": 7}\n')
    assert penstock_("sow", "orders", "--order-by", "/t DESC").splitlines() == [
        '{"id": 2, "t": 9}',
        '{"id": 1, "t": 7}',
    ]
    assert (
        json.loads(penstock_("sow", "orders", "--top", "1", "--order-by", "/t", "--json"))["body"]
        == '{"id": 1, "t": 7}'
    )
    [topic] = [one for one in json.loads(penstock_("topic", "list", "--json")) if one["topic"] == "orders"]
    assert (topic["records"], topic["key"]) == (2, ["/id"])
    assert "/id" in penstock_("topic", "show", "orders")
    assert "1 record removed" in penstock_("sow", "orders", "--filter", "/id = 2", "--delete", "--yes")


@pytest.mark.crash
def test_what_was_confirmed_survives_a_kill(tmp_path: Path, effort: int) -> None:
    chance = random.Random(3)
    settings = tmp_path / "penstock.toml"
    settings.write_text('[[topic]]\nname = "t"\nkey = ["/id"]\n')
    model: dict[int, dict[str, object]] = {}
    for _ in range(2 if effort == 1 else 3):
        with ServerProcess(tmp_path / "data", config=settings) as server:
            with penstock.connect(server.flight_url) as client:
                assert {one.json()["id"]: one.json() for one in client.sow("t")} == model
                for n in range(60):
                    key = chance.randrange(12)
                    match chance.randrange(4):
                        case 0:
                            client.sow_delete("t", data=json.dumps({"id": key}))
                            model.pop(key, None)
                        case 1:
                            client.delta_publish("t", {"id": key, f"f{n % 3}": n})
                            model[key] = {**model.get(key, {"id": key}), f"f{n % 3}": n}
                        case _:
                            client.publish("t", {"id": key, "n": n})
                            model[key] = {"id": key, "n": n}
            server.kill()
