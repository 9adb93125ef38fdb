"""Consumers whose messages have a type, and Arrow batches of them, against a real door."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock
from flight_house import FlightHouse

pytestmark = pytest.mark.conformance


@dataclass
class Order:
    """What bodies are."""

    id: int


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path_factory.mktemp("house")) as house:
        yield house


@pytest.fixture
def client(house: FlightHouse) -> Iterator[penstock.Client]:
    with penstock.connect(house.url) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest, client: penstock.Client) -> str:
    client.declare("dead")
    client.purge("dead")
    client.declare(request.node.name, dead_letter_exchange="", dead_letter_routing_key="dead", lease_period="30s")
    return request.node.name


def counts(client: penstock.Client, name: str) -> tuple[int, int, int]:
    """Acknowledged, ready, dead."""
    told = client.queue(name)
    return told["acked"], told["ready"], client.queue("dead")["ready"]


def test_values_and_what_does_not_fit(client: penstock.Client, name: str) -> None:
    for body in ({"id": 1}, {"id": "x"}, {"id": 3}):
        client.publish(name, body)
    got, outcomes = list[int](), list[str | None]()
    with client.consume(name, type=Order, timeout=30) as consumer:
        for _ in range(3):
            message = consumer.take()
            assert message is not None
            with suppress(penstock.InvalidBody), message:
                got.append(message.value.id)
            outcomes.append(message.outcome)
        consumer.flush()
        assert (got, outcomes, counts(client, name)) == ([1, 3], ["ack", "reject", "ack"], (2, 0, 1))
    [dead] = client.peek("dead")
    assert f"in queue {name!r} is no Order: id: " in (dead.reason or "")
    with pytest.raises(penstock.InvalidArgument, match="consume .*: bodies cannot become"):
        client.consume(name, type=type("Odd", (), {}))


def test_a_reason_needs_no_name(client: penstock.Client, name: str) -> None:
    client.publish(name, b"x")
    with client.consume(name, timeout=30) as consumer:
        message = consumer.take()
        assert message is not None
        assert message.reject("too late for that")
    assert [one.reason for one in client.peek("dead")] == ["too late for that"]


def test_a_batch_knows_what_its_messages_were_settled_by(client: penstock.Client, name: str) -> None:
    client.declare(f"{name}-full", max_length=1, overflow="reject-publish")
    client.declare(f"{name}-after")
    client.publish(f"{name}-full", b"there")
    client.publish_table(name, pa.table({"id": list(range(5))}))
    with client.consume(name, backlog=5, timeout=30) as consumer:
        first = consumer.take()
        rest = consumer.take_batch()
        assert first is not None
        assert rest is not None
        with pytest.raises(penstock.errors.QueueFull):
            rest[0].ack(publish=[(f"{name}-full", b"refused")])
        assert (rest.unsettled, rest[0].outcome) == ([0, 1, 2, 3], None)  # is held as before
        with rest[1] as row:
            row.ack(publish=[(f"{name}-after", b"with it")])
        with client.transaction() as transaction:
            transaction.ack(rest[2])
            with pytest.raises(penstock.PreconditionFailed, match="settled twice in one transaction"):
                transaction.reject(rest[2])
        again = client.transaction()
        with pytest.raises(penstock.PreconditionFailed, match="settled already: ack"):
            again.ack(rest[2])
        assert rest.unsettled == [0, 3]
        with suppress(ValueError), rest:
            raise ValueError("odd")
        assert [one.outcome for one in rest] == ["retry", "ack", "ack", "retry"]
        first.ack()
        consumer.flush()
        assert consumer.stale == 0
        again_there = [consumer.take() for _ in range(2)]
        assert [(one.attempt, one.value["id"]) for one in again_there if one is not None] == [(2, 1), (2, 4)]


def test_a_batch_is_settled_at_once_or_row_by_row(client: penstock.Client, name: str) -> None:
    client.publish_table(name, pa.table({"id": list(range(10))}))
    with client.consume(name, type=Order, backlog=0, timeout=30) as consumer:
        first = consumer.take()
        batch = consumer.take_batch()
        assert first is not None
        assert batch is not None
        assert (first.value.id, [one.value.id for one in batch]) == (0, list(range(1, 10)))
        assert len(batch) == batch.arrow.num_rows == 9
        assert pc.min_max(batch.arrow.column("attempt")).as_py() == {"min": 1, "max": 1}
        with batch:
            assert batch[-1].ack()
            assert batch.reject([0, 2], reason="odd")
            assert batch.extend("1m")
            with pytest.raises(penstock.PreconditionFailed, match="row 2 was settled already"):
                batch.ack([1, 2])
            with pytest.raises(penstock.PreconditionFailed, match="row 9: the batch has 9"):
                batch.ack([9])
            with pytest.raises(penstock.PreconditionFailed, match="was settled already"):
                batch[0].ack()
            assert batch.unsettled == [1, 3, 4, 5, 6, 7]
        assert batch.unsettled == []
        first.ack()
        consumer.flush()
        assert counts(client, name) == (8, 0, 2)
        assert consumer.stale == 0


def test_an_exception_puts_back_what_is_left(client: penstock.Client, name: str) -> None:
    client.publish_table(name, pa.table({"id": list(range(4))}))
    attempts = list[list[int]]()

    def work() -> None:
        for batch in client.consume(name, backlog=4, timeout=30).batches():
            with batch:
                attempts.append([message.attempt for message in batch])
                batch.ack([0])
                if len(attempts) == 1:
                    raise ZeroDivisionError
            return

    with pytest.raises(ZeroDivisionError):
        work()
    assert counts(client, name)[:2] == (1, 3)
    work()
    assert attempts == [[1, 1, 1, 1], [2, 2, 2]]
    assert counts(client, name)[:2] == (4, 0)


def test_a_batch_with_what_follows_from_one_of_it(client: penstock.Client, name: str) -> None:
    client.declare("next")
    client.publish_table(name, pa.table({"id": [1, 2]}))
    with client.consume(name, timeout=30) as consumer:
        batch = consumer.take_batch()
        assert batch is not None
        batch[1].ack(publish=[("next", b"2")])
        assert batch.unsettled == [0]
        batch.ack()
        assert batch.ack(), "nothing is left, and that is fine"
    assert (client.queue("next")["ready"], counts(client, name)[:2]) == (1, (2, 0))


async def test_the_same_for_asyncio(house: FlightHouse, client: penstock.Client, name: str) -> None:
    client.publish_table(name, pa.table({"id": list(range(6))}))
    async with penstock.aio.connect(house.url) as own, own.consume(name, type=Order, timeout=30) as consumer:
        message = await asyncio.wait_for(consumer.take(), 30)
        assert message is not None
        assert message.value == Order(0)
        assert await message.ack()
        async for batch in consumer.batches():
            async with batch:
                assert [one.value.id for one in batch] == [1, 2, 3, 4, 5]
                assert await batch[0].retry(delay="1h")
                assert await batch.reject([1], reason="no")
                assert await batch.release([2])
                assert await batch.extend("1m")
            break
        await consumer.flush()
    assert counts(client, name) == (3, 1, 1)
