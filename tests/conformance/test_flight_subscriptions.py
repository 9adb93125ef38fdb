"""Subscriptions and settling by name through Flight, SDK and command line, at the real ports of a broker."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from forked import penstock as command
from penstock.client.link import Link
from penstock.client.messages import Message
from penstock.errors import AccessRefused, ExpressionError, InvalidArgument, NotFound
from penstock.server.bulk.process import Bulk
from penstock.testing import Broker

CONFIG = {
    "queue": [
        {"name": "jobs.a", "lease_period": "30s"},
        {"name": "jobs.b", "max_per_subscription_backlog": 3},
        {"name": "strict", "leasing": "strict"},
    ]
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(CONFIG) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[penstock.Client]:
    with penstock.connect(broker.flight_url) as client:
        yield client


def take(consumer: object, count: int) -> list[Message]:
    messages = [consumer.take(60.0) for _ in range(count)]  # type: ignore[attr-defined]
    assert all(message is not None for message in messages)
    return messages


def test_the_effective_backlog_is_told(client: penstock.Client) -> None:
    with client.consume("jobs.b", backlog=10) as consumer:
        assert (consumer.effective_backlog, consumer.queues) == (3, ["jobs.b"])
    with client.consume("jobs.a", backlog=10) as consumer:
        assert consumer.effective_backlog == 10
    with client.consume("jobs.a", backlog=0) as consumer:
        assert consumer.effective_backlog is None
    with client.consume("jobs.a", max_backlog=0) as consumer:
        assert consumer.effective_backlog == 0
    with client.consume("nothing") as consumer, pytest.raises(NotFound):
        consumer.effective_backlog  # noqa: B018 - it waits for the server's word


def beats(writer: Any) -> None:
    for _ in range(10_000_000):
        writer.write_metadata(b'{"heartbeat":true}')


def test_a_refusal_is_told_to_who_takes_however_soon_it_came(
    client: penstock.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Link.exchange

    def refused(link: Link, command: bytes) -> tuple[Any, Any]:
        writer, reader = begun(link, command)
        with pytest.raises(pa.ArrowException, match="no queue"):
            beats(writer)  # what is written until it has come is read by nobody
        return writer, reader

    monkeypatch.setattr(Link, "exchange", refused)
    for look in (methodcaller("take"), attrgetter("queues")):
        with client.consume("nothing") as consumer, pytest.raises(NotFound):
            look(consumer)


def test_several_queues_have_one_backlog(broker: Broker, client: penstock.Client) -> None:
    for name in ("jobs.a", "jobs.b"):
        for number in range(3):
            client.publish(name, b"%s %d" % (name[-1].encode(), number))
    with client.consume("^jobs", backlog=10) as consumer:
        assert (consumer.effective_backlog, consumer.queues) == (3, ["jobs.a", "jobs.b"])
        seen = list[str]()
        for _ in range(6):
            [message] = take(consumer, 1)
            assert message.queue == "jobs." + message.text()[0]
            assert (message.lease_until is not None) == (message.queue == "jobs.a")
            seen.append(message.text())
            message.ack()
        consumer.flush()
        assert sorted(seen) == ["a 0", "a 1", "a 2", "b 0", "b 1", "b 2"]
        client.declare("jobs.c")
        client.publish("jobs.c", b"c 0")
        [late] = take(consumer, 1)
        assert late.queue == "jobs.c"
        late.extend("1m")
        client.delete("jobs.c")
        client.publish("jobs.a", b"a 3")
        [more] = take(consumer, 1)
        assert more.text() == "a 3"
        more.retry(error="once more")
        [again] = take(consumer, 1)
        assert (again.text(), again.attempt) == ("a 3", 2)
    assert broker.stats("jobs.a")["leased"] == 0


def test_replacing_keeps_leases(broker: Broker, client: penstock.Client) -> None:
    for number in range(6):
        client.publish("jobs.a", b'{"n": %d}' % number)
    client.publish("jobs.b", b'{"n": 9}')
    with client.consume("jobs.a", filter="/n < 3", backlog=2) as consumer:
        held = take(consumer, 2)
        assert [message.json()["n"] for message in held] == [0, 1]
        consumer.replace(filter="/n > 4", max_backlog=3)
        assert consumer.effective_backlog == 3
        [other] = take(consumer, 1)
        assert other.json()["n"] == 5
        consumer.replace(queue="jobs.b", filter="")
        assert (consumer.effective_backlog, consumer.queues) == (3, ["jobs.b"])
        held[0].ack()
        [moved] = take(consumer, 1)
        assert (moved.json()["n"], moved.queue) == (9, "jobs.b")
        for message in (held[1], other, moved):
            message.ack()
        consumer.flush()
        assert consumer.stale == 0
        with pytest.raises(ExpressionError):
            consumer.replace(filter="/n >")
        with pytest.raises(NotFound):
            consumer.replace(queue="nothing")
        assert consumer.queues == ["jobs.b"]
    assert (broker.stats("jobs.a")["ready"], broker.stats("jobs.b")["ready"]) == (3, 0)


def test_settling_by_name(broker: Broker, client: penstock.Client) -> None:
    marks = [client.publish("strict", b'{"n": %d}' % number).bookmark for number in range(6)]
    with client.consume("strict", backlog=2, name="holder") as consumer:
        take(consumer, 2)
        assert client.ack("strict", marks[:3]) == 1
        assert client.ack("strict", ",".join(marks[:1]), by="holder") == 1
        take(consumer, 1)
        assert client.ack_filter("strict", "/n IN (1, 4)") == 1
        assert client.ack_filter("strict", "/n = 1", by="holder", option="expire") == 1
        origin = marks[0].split("|")[0]
        with pytest.raises(InvalidArgument, match="was given out"):
            client.ack("strict", [f"{origin}|999999|"])
        with pytest.raises(InvalidArgument, match="option"):
            client.ack("strict", marks, option="nack")
        assert client.ack("strict", ["77|5|"]) == 0
        assert client.stats("strict")["deferred_acks"] == 1
    broker.crash()
    broker.restart()
    assert (broker.stats("strict")["ready"], broker.stats("strict")["deferred_acks"]) == (2, 1)


def test_the_same_with_asyncio(broker: Broker) -> None:
    async def run() -> None:
        async with penstock.aio.connect(broker.flight_url) as client:
            marks = [(await client.publish("jobs.b", b'{"n": %d}' % number)).bookmark for number in range(5)]
            async with client.consume("^jobs", backlog=9) as consumer:
                assert await consumer.effective_backlog() == 3
                first = await consumer.take(60)
                assert first is not None
                assert first.queue == "jobs.b"
                await consumer.replace(filter="/n > 100")
                assert await client.ack("jobs.b", marks[:2]) == 2
            assert await client.ack_filter("jobs.b", "/n >= 3") == 2

    asyncio.run(run())
    assert broker.stats("jobs.b")["ready"] == 1


def held(house: FlightHouse) -> tuple[threading.Event, threading.Event]:
    """Whether the server has begun to go through a queue, beside its loop, and what has it go on."""
    begun, goes_on, off = threading.Event(), threading.Event(), house.engine.scans.off
    assert off is not None

    def later(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        begun.set()
        off(lambda: goes_on.wait(60) and work(), done)

    house.engine.scans.off = later
    return begun, goes_on


def test_a_deep_queue_is_gone_through_while_publishes_go_on(tmp_path: Path) -> None:
    with (
        FlightHouse(tmp_path, bulk=Bulk(tmp_path)) as house,
        penstock.connect(house.url) as client,
        penstock.connect(house.url) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        client.declare("q")
        for first in range(0, 60_000, 20_000):
            numbers = range(first, first + 20_000)
            client.publish_table("q", pa.table({"body": [b'{"n":%d}' % number for number in numbers]}))
        with other.consume("q", backlog=100, name="holder") as consumer:
            take(consumer, 100)
            begun, goes_on = held(house)
            asked = pool.submit(client.ack_filter, "q", "/n % 2 = 0")
            assert begun.wait(60)
            late = 0
            while not asked.done():
                other.publish("q", b'{"n":0}')
                late += 1
                if late == 2:
                    goes_on.set()
            early = asked.result() - 30_000  # what was published before the command reached the server
        assert 0 <= early <= 1 < late
        assert client.ack_filter("q", "/n = 0") == late - early
        assert client.stats("q")["ready"] == 30_000


def said(*arguments: str, status: int = 0) -> str:
    done = command(*arguments)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout.strip()


def test_the_command_line_settles_by_name(broker: Broker, client: penstock.Client) -> None:
    marks = [client.publish("jobs.a", b'{"n": %d}' % number).bookmark for number in range(4)]
    ack = ("queue", "ack", "--url", broker.flight_url, "jobs.a")
    assert said(*ack, *marks[:2]) == "2 messages of queue jobs.a"
    assert json.loads(said(*ack, "--filter", "/n = 2", "--option", "expire", "--yes", "--json"))["affected"] == 1
    said(*ack, status=2)
    said(*ack, "--filter", "/n = 3", status=2)  # nobody to ask
    assert client.stats("jobs.a")["ready"] == 1


def test_rights_narrow_what_is_settled_and_which_queues_a_pattern_reaches() -> None:
    config = {
        "user": [{"name": "guest", "password": "guest", "tags": ["administrator"]}, {"name": "ann", "password": "ann"}],
        "queue": [{"name": "jobs.a"}, {"name": "jobs.b"}, {"name": "jobs.c"}],
        "entitlement": [
            {"tag": "administrator", "read": True, "write": True},
            {"user": "ann", "queue": "jobs.a", "read": "/n > 1"},
            {"user": "ann", "queue": "jobs.b", "read": True},
        ],
    }
    with Broker(config) as broker:
        marks = [broker.publish("jobs.a", b'{"n": %d}' % number) for number in range(4)]
        for name in ("jobs.b", "jobs.c"):
            broker.publish(name, b'{"n": 0}')
        with penstock.connect(f"penstock://ann:ann@{broker.flight_url.rpartition('@')[2]}") as ann:
            with ann.consume("^jobs", backlog=9) as consumer:
                assert consumer.queues == ["jobs.a", "jobs.b"]
                seen = sorted((str(message.queue), message.json()["n"]) for message in take(consumer, 3))
                assert seen == [("jobs.a", 2), ("jobs.a", 3), ("jobs.b", 0)]
                consumer.replace(filter="/n < 3")
            with pytest.raises(AccessRefused, match="read all of queue"):
                ann.ack("jobs.a", marks)
            with pytest.raises(AccessRefused):
                ann.ack_filter("jobs.c", "/n >= 0")
            assert ann.ack_filter("jobs.a", "/n >= 0") == 2
        assert broker.stats("jobs.a")["ready"] == 2
