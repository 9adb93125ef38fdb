"""Select lists, options of durability and time, conflation without a key, counts of a query: through every door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker
from pyarrow import flight

import penstock
from flight_house import FlightHouse
from forked import penstock as command
from penstock.errors import InvalidArgument, NotFound
from penstock.server.bulk.process import Bulk
from penstock.server.bulk.relay import Relay
from penstock.testing import Broker

CONFIG: dict[str, Any] = {
    "topic": [{"name": "orders", "key": ["/id"]}, {"name": "plain"}],
    "queue": [{"name": "q", "underlying_topic": "orders"}],
    "view": [{"name": "v", "source": "orders", "select": "/kind, COUNT(/id) AS /n", "group_by": ["/kind"]}],
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(CONFIG) as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[penstock.Client]:
    with penstock.connect(broker.flight_url) as made:
        yield made


def order(id: int, **more: object) -> dict[str, object]:
    return {"id": id, "kind": "ab"[id % 2], "total": id, **more}


def test_the_client_gets_the_fields_that_it_asks_for(client: penstock.Client) -> None:
    for id in (1, 2, 3):
        client.publish("orders", order(id))
    asked: dict[str, Any] = {"filter": "/total > 1", "select": ["-/", "+/id"]}
    assert sorted(one.json()["id"] for one in client.sow("orders", **asked)) == [2, 3]
    assert all(list(one.json()) == ["id"] for one in client.sow("orders", **asked))
    assert [one.json() for one in client.sow("q", **asked)] == [{"id": 2}, {"id": 3}]
    assert [one.json() for one in client.sow("v", order_by="/kind", select="-/kind")] == [{"n": 1}, {"n": 2}]
    [table] = client.sow_batches("orders", select="-/,+/id", columns=["body"], filter="/id = 1")
    assert table.to_pylist() == [{"body": b'{"id":1}'}]
    with client.replay("orders", "EPOCH", select="-/,+/id", follow=True, timeout="20s") as replay:
        assert [next(replay).json() for _ in range(3)] == [{"id": 1}, {"id": 2}, {"id": 3}]
        client.publish("orders", order(4))
        assert next(replay).json() == {"id": 4}
    [rows] = client.replay_batches("orders", select="-/,+/id", limit=1)
    assert rows.column("body").to_pylist() == [b'{"id":1}']
    with pytest.raises(InvalidArgument, match="is no part of a list"):
        list(client.sow("orders", select="id"))
    with pytest.raises(InvalidArgument, match="select does not go with projection"):
        list(client.sow("q", projection="COUNT(1) AS /n", grouping=[], select="-/n"))


def test_a_subscription_of_the_client(client: penstock.Client) -> None:
    client.publish("orders", order(1))
    with (
        client.sow_and_subscribe("orders", filter="/total > 0", oof=True, select="-/total", timeout="20s") as watch,
        client.delta_subscribe("orders", no_empties=True, select="-/,+/total", timeout="20s") as deltas,
    ):
        assert next(watch).json() == {"id": 1, "kind": "b"}
        totals = iter(range(5, 1000))
        first = asyncio.run(_after(deltas, lambda: client.publish("orders", order(1, total=next(totals)))))
        assert sorted(first.json()) == ["id", "total"]
        client.publish("orders", order(1, total=0))
        gone = next(one for one in watch if one.event == "oof")
        assert (gone.reason, gone.json()) == ("match", {"id": 1, "kind": "b"})


async def _after(messages: Iterator[Any], work: Any) -> Any:
    """The next message, which is asked for before `work` is done."""
    loop = asyncio.get_running_loop()
    found = loop.run_in_executor(None, next, messages)
    done = asyncio.Event()

    async def again() -> None:
        while not done.is_set():
            await loop.run_in_executor(None, work)
            await asyncio.wait([found], timeout=0.2)

    task = asyncio.create_task(again())
    try:
        return await found
    finally:
        done.set()
        await task


def test_what_is_published_within_the_block_comes(broker: Broker, client: penstock.Client) -> None:
    """Whoever follows has begun when the block does, and not with the first message that is asked for."""
    asked: dict[str, Any] = {"bookmark": "NOW", "follow": True, "timeout": "20s"}
    with client.sow_and_subscribe("plain", timeout="20s") as live, client.replay("plain", **asked) as replay:
        client.publish("plain", {"n": 1})
        assert [one.json() for one in (live.take(), replay.take()) if one is not None] == [{"n": 1}] * 2

    async def follow() -> None:
        async with (
            penstock.aio.connect(broker.flight_url) as mine,
            mine.replay("plain", **asked) as replay,
        ):
            client.publish("plain", {"n": 2})
            taken = await replay.take()
        assert taken is not None
        assert taken.json() == {"n": 2}

    asyncio.run(follow())


def test_what_is_refused_comes_with_the_first_message(client: penstock.Client) -> None:
    with client.replay("nobody-keeps-this", "NOW", follow=True) as replay, pytest.raises(NotFound):
        replay.take()


def test_a_topic_without_a_key(client: penstock.Client, broker: Broker) -> None:
    with client.sow_and_subscribe("plain", timeout="20s") as live:
        assert asyncio.run(_after(live, lambda: client.publish("plain", {"k": 1}))).json() == {"k": 1}
        assert live.completed
    with client.sow_and_subscribe("plain", conflation="1s", conflation_key="/k", select="-/k", timeout="20s") as watch:

        def twice() -> None:
            for n in (2, 3):
                client.publish("plain", {"k": 1, "n": n})
            broker.advance(1.1)

        told = asyncio.run(_after(watch, twice))
        assert (told.event, told.json(), told.sow_key) == ("publish", {"n": 3}, None)
    for topic, asked, problem in (
        ("plain", {"conflation": "1s"}, "name a conflation_key"),
        ("plain", {"top_n": 5}, "no pages of it"),
        ("q", {}, "is a queue: look at it with sow"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            client.sow_and_subscribe(topic, **asked).take()


def test_options_of_durability_and_time(client: penstock.Client) -> None:
    client.publish("plain", "1")
    with client.replay("plain", fully_durable=True) as replay:
        assert next(replay).time.tzinfo is not None
    with pytest.raises(InvalidArgument, match="of a topic only what is durable is told"):
        client.replay("plain", live=True).take()
    with pytest.raises(InvalidArgument, match="of a topic only what is durable is told"):
        client.sow_and_subscribe("orders", live=True).take()
    for asked, columns in (({}, ["lsn"]), ({"timestamp": True}, ["lsn", "time"])):
        ticket = {"replay": {"topic": "plain", "columns": ["lsn"], **asked}}
        with flight_of(client) as raw:
            assert raw.do_get(flight.Ticket(json.dumps(ticket)), client._link.options).schema.names == columns


def flight_of(client: penstock.Client) -> Any:
    return flight.FlightClient(client._link.address.location)


def test_a_query_counts(client: penstock.Client) -> None:
    for id in range(5):
        client.publish("orders", order(id))
    for name in ("orders", "q"):
        told: list[dict[str, int]] = []
        assert len(list(client.sow(name, filter="/total > 1", order_by="/id", top_n=2, stats=told.append))) == 2
        assert told == [{"topic_matches": 5, "matches": 3, "records_returned": 2}]
    of_view: list[dict[str, int]] = []
    assert len(list(client.sow("v", filter="/n > 0", top_n=1, stats=of_view.append))) == 1
    assert of_view == [{"topic_matches": 2, "matches": 2, "records_returned": 1}]
    assert client.queue("q")["ready"] == 5, "nothing is leased"


def test_counts_of_a_query_that_another_process_answers(tmp_path: Path) -> None:
    bulk = Bulk(tmp_path)
    with FlightHouse(tmp_path, bulk=bulk) as house, penstock.connect(house.url) as client:
        relay = house.door.reads.relay = Relay(bulk, house.log, large=1, large_filtered=1)
        client.declare_topic("orders", key=["/id"])
        for id in range(5):
            client.publish("orders", order(id))
        told: list[dict[str, int]] = []
        found = list(client.sow("orders", filter="/total > 1", select="-/,+/id", stats=told.append))
        assert sorted(one.json()["id"] for one in found) == [2, 3, 4]
        assert all(list(one.json()) == ["id"] for one in found)
        assert told == [{"topic_matches": 5, "matches": 3, "records_returned": 3}]
        assert relay.relayed == 1


def test_the_same_for_asyncio(broker: Broker) -> None:
    async def run() -> None:
        async with penstock.aio.connect(broker.flight_url) as client:
            await client.publish("orders", order(1))
            assert [one.json() async for one in client.sow("orders", select="-/,+/id")] == [{"id": 1}]
            batches = [one async for one in client.replay_batches("orders", select="-/,+/id")]
            assert [body for one in batches for body in one.column("body").to_pylist()] == [b'{"id":1}']
            async with client.sow_and_subscribe("orders", oof=True, select="-/total", timeout="20s") as watch:
                first = await watch.take()
                assert first is not None
                assert (first.event, first.json()) == ("sow", {"id": 1, "kind": "b"})
                await client.publish("orders", order(2))
                second = await watch.take()
                assert second is not None
                assert (second.event, second.json()) == ("publish", {"id": 2, "kind": "a"})
            async with client.delta_subscribe("orders", timeout="20s") as deltas:
                waiting = asyncio.create_task(deltas.take())
                total = 10
                while not waiting.done():
                    total += 1
                    await client.publish("orders", order(2, total=total))
                    await asyncio.wait([waiting], timeout=0.2)
                told = await waiting
                assert told is not None
                assert sorted(told.json()) == ["id", "total"]
            with pytest.raises(InvalidArgument, match="no pages of it"):
                await client.sow_and_subscribe("plain", top_n=1).take()

    asyncio.run(run())


def test_amqp_reads_topics_with_the_same_options(broker: Broker) -> None:
    for id in (1, 2):
        broker.publish("orders", json.dumps(order(id)))
    at = broker.now() * 1000
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        asked = {"x-bookmark": "EPOCH", "x-select": "-/,+/id", "x-timestamp": True, "x-fully-durable": True}
        messages = channel.consume("orders", arguments=asked, auto_ack=True, inactivity_timeout=20)
        for id in (1, 2):
            _, properties, body = next(messages)
            assert json.loads(body) == {"id": id}
            assert properties.headers["x-timestamp"] == pytest.approx(at, abs=60_000)
            assert "x-bookmark" not in properties.headers
        broker.publish("orders", json.dumps(order(3)))
        assert next(messages)[2] == b'{"id":3}'
        channel.cancel()
        end = {"x-bookmark": "[EPOCH:NOW]", "x-select": "-/,+/id"}
        tag = channel.basic_consume("orders", lambda *_: got.append(_[3]), arguments=end, auto_ack=True)
        got: list[bytes] = []
        cancelled: list[str] = []
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        for _ in range(200):
            if cancelled:
                break
            connection.process_data_events(0.1)
        assert (got, cancelled) == ([b'{"id":1}', b'{"id":2}', b'{"id":3}'], [tag]), "the end comes behind the last"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"x-select": "-/a"}, "x-select goes with x-bookmark: work of a queue comes whole"),
        ({"x-live": True}, 'x-live goes with x-bookmark: a queue has deliver = "early"'),
        ({"x-fully-durable": True}, 'x-fully-durable goes with x-bookmark: a queue has deliver = "durable"'),
        ({"x-timestamp": True}, "x-timestamp goes with x-bookmark"),
        ({"x-bookmark": "NOW", "x-live": True}, "of a topic only what is durable is told"),
        ({"x-bookmark": "NOW", "x-select": "a"}, "is no part of a list"),
        ({"x-bookmark": "NOW", "x-timestamp": 1}, "x-timestamp is 1, not true or false"),
    ],
)
def test_amqp_says_what_does_not_go_together(broker: Broker, arguments: dict[str, Any], problem: str) -> None:
    with (
        pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection,
        pytest.raises(ChannelClosedByBroker, match=problem),
    ):
        connection.channel().basic_consume("q", lambda *_: None, arguments=arguments)


def test_the_command_line(broker: Broker) -> None:
    def penstock_(*arguments: str) -> tuple[str, str]:
        done = command(*arguments, "--url", broker.flight_url)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, done.stderr

    for id in (1, 2):
        broker.publish("orders", json.dumps(order(id)))
    shown, noted = penstock_("sow", "orders", "--filter", "/id = 2", "--fields", "-/,+/id", "--stats")
    assert (shown, noted.strip()) == ('{"id":2}\n', "2 compared, 1 matched, 1 shown")
    assert '{"id":1}' in penstock_("replay", "orders", "--fields", "-/,+/id")[0]


def test_a_key_domain_is_declared_and_shown(client: penstock.Client) -> None:
    client.declare_topic("bids", key=["/symbol"], key_domain="symbols")
    client.declare_topic("asks", key=["/symbol"], key_domain="symbols")
    for name in ("bids", "asks"):
        client.publish(name, {"symbol": "A"})
    [bid], [ask] = client.sow("bids"), client.sow("asks")
    assert bid.sow_key == ask.sow_key
    assert client.topic("asks")["key_domain"] == "symbols"
    with pytest.raises(InvalidArgument, match="keys that come from the fields"):
        client.declare_topic("given", key_from="publisher", key_domain="symbols")
