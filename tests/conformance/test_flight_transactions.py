"""Transactions of the Python client against a real server: settle these and publish those, all or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from penstock.wire.flight.commands import PUBLISH
from penstock.wire.flight.tickets import command

pytestmark = pytest.mark.conformance


@pytest.fixture
def client(house: FlightHouse) -> Iterator[penstock.Client]:
    with penstock.connect(house.url) as client:
        client.declare("in", lease_period="30s", dead_letter_exchange="", dead_letter_routing_key="dead")
        client.declare("out")
        client.declare("dead")
        yield client


def take(consumer: Any, count: int) -> list[penstock.Message]:
    out = [consumer.take(60) for _ in range(count)]
    assert None not in out
    return out


def ready(client: penstock.Client, *names: str) -> list[object]:
    return [client.queue(name)["ready"] for name in names]


def test_settle_and_publish(client: penstock.Client) -> None:
    for n in range(3):
        client.publish("in", {"n": n})
    client.declare_exchange("fan", "fanout")
    client.bind("out", "fan")
    with client.consume("in") as consumer:
        one, two, three = take(consumer, 3)
        with client.transaction() as transaction:
            transaction.ack(one)
            transaction.reject(two, reason="broken")
            transaction.publish("out", {"made": "of 0"}, headers={"k": "v"}, priority=3)
            transaction.publish("nobody", b"lost", mandatory=False)
            transaction.publish("", b"all", exchange="fan")
        assert [one.outcome, two.outcome, three.outcome] == ["ack", "reject", None]
        first, lost, fan = transaction.receipts
        assert (first.outcome, lost.outcome, fan.outcome) == ("stored", "unroutable", "stored")
        assert ready(client, "in", "out", "dead") == [0, 2, 1]
        out = client.peek("out")
        assert [(message.lsn, message.body) for message in out] == [(first.lsn, b'{"made":"of 0"}'), (fan.lsn, b"all")]
        assert out[0].headers == {"k": "v"}
        with pytest.raises(penstock.PreconditionFailed, match="settled already"):
            one.ack()
        three.release()
    assert ready(client, "in") == [1]


def test_a_receipt_is_of_its_own_message(client: penstock.Client) -> None:
    """Whatever becomes of the others."""
    client.declare("once", dedup_key="/k", dedup_window="1h")
    client.declare("small", max_length=1, overflow="drop-newest")
    with client.transaction() as transaction:
        for topic, body in (
            ("once", {"k": 1}), ("once", {"k": 1}), ("small", {"n": 1}), ("small", {"n": 2}), ("nobody", {"n": 3}),
            ("out", {"n": 4}),
        ):  # fmt: skip
            transaction.publish(topic, body, mandatory=False)
    told = transaction.receipts
    assert [one.outcome for one in told] == ["stored", "duplicate", "stored", "dropped", "unroutable", "stored"]
    assert [client.peek(queue)[0].bookmark for queue in ("once", "small", "out")] == [
        told[row].bookmark for row in (0, 2, 5)
    ]
    assert {(one.lsn, one.bookmark) for one in told if one.outcome != "stored"} == {(0, "")}


def test_an_ack_with_what_follows_from_it(client: penstock.Client) -> None:
    client.publish("in", b"1")
    with client.consume("in") as consumer:
        [message] = take(consumer, 1)
        with message:
            message.ack(publish=[("out", {"made": "of 1"}), ("out", b"later", {"delay": "1h"})])
        assert message.outcome == "ack"
    stats = client.queue("out")
    assert (stats["ready"], stats["delayed"]) == (1, 1)


def test_a_stale_message_refuses_the_whole_and_is_named(client: penstock.Client) -> None:
    client.publish("in", b"1")
    client.publish("in", b"2")
    with client.consume("in") as consumer:
        one, two = take(consumer, 2)
        client.ack("in", [one.bookmark], by="somebody")
        transaction = client.transaction()
        transaction.ack(one)
        transaction.ack(two)
        transaction.publish("out", b"made of both")
        with pytest.raises(penstock.Fenced, match="no longer held") as refused:
            transaction.commit()
        assert one.bookmark in str(refused.value)
        assert two.bookmark not in str(refused.value)
        assert (two.outcome, ready(client, "out")) == (None, [0])
        two.ack()
    assert ready(client, "in") == [0]


def test_a_closed_consumer_holds_nothing(client: penstock.Client) -> None:
    client.publish("in", b"1")
    with client.consume("in") as consumer:
        [message] = take(consumer, 1)
    transaction = client.transaction()
    transaction.publish("out", b"2")
    transaction.ack(message)
    with pytest.raises(penstock.PenstockError, match="closed"):
        transaction.commit()
    assert ready(client, "in", "out") == [1, 0]


def test_messages_of_two_consumers_and_a_pattern_of_queues(client: penstock.Client) -> None:
    client.declare("many-1")
    client.declare("many-2")
    for name in ("in", "many-1", "many-2"):
        client.publish(name, name.encode())
    with client.consume("in") as one, client.consume("^many") as two:
        messages = [*take(one, 1), *take(two, 2)]
        with client.transaction() as transaction:
            for message in messages:
                transaction.ack(message)
    assert ready(client, "in", "many-1", "many-2") == [0, 0, 0]
    assert [client.queue(name)["acked"] for name in ("in", "many-1", "many-2")] == [1, 1, 1]


def test_an_exchange_that_is_not_there_leaves_nothing(client: penstock.Client) -> None:
    transaction = client.transaction()
    transaction.publish("out", b"1")
    transaction.publish("out", b"2", exchange="absent")
    with pytest.raises(penstock.NotFound, match="absent"):
        transaction.commit()
    assert ready(client, "out") == [0]


def put(house: FlightHouse, client: penstock.Client, *metadata: bytes, rows: int = 1) -> Any:
    """A client that says what it likes."""
    writer, reader = client.open_transaction(command("transact"), PUBLISH)
    values = {"body": b"x", "topic": "out"}
    columns: list[Any] = [pa.array([values.get(field.name)] * rows, field.type) for field in PUBLISH]
    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=PUBLISH))
    for one in metadata:
        writer.write_metadata(one)
    writer.done_writing()
    return writer, reader


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ([], "ended without its commit"),
        ([b'{"commit":{"rows":2}}'], "says 2 rows and 1 came"),
        ([b'{"commit":{"rows":1,"settles":[["x",null,1,1,"forget",null,null]]}}'], "verb 'forget' is unknown"),
        ([b'{"commit":{"rows":1,"settles":[["x",null,1,1,"ack",null,null]]}}'], "held by a consumer that is closed"),
        ([b'{"commit":{"rows":1,"settles":[1]}}'], "is no settle"),
        ([b'{"commit":{"rows":1,"settles":7}}'], "not a list"),
        ([b'{"come":1}'], "unknown field 'come'"),
    ],
)
def test_what_does_not_end_well_leaves_nothing(
    house: FlightHouse, client: penstock.Client, metadata: list[bytes], text: str
) -> None:
    writer, reader = put(house, client, *metadata)
    assert reader.read() is None
    with pytest.raises(pa.ArrowException, match=text):
        writer.close()
    assert ready(client, "out") == [0]


def test_the_last_word_alone_commits(house: FlightHouse, client: penstock.Client) -> None:
    writer, reader = put(house, client, b'{"commit":{"rows":3}}', rows=3)
    said = orjson.loads(reader.read().to_pybytes())
    writer.close()
    assert (said["stored"], said["unroutable"], said["ended"]) == (3, [], 0)
    assert ready(client, "out") == [3]


def test_too_many_bytes_are_refused(client: penstock.Client) -> None:
    transaction = client.transaction()
    for _ in range(5):
        transaction.publish("out", b"x" * (15 << 20))
    too_many = r"a transaction may have 67108864 bytes|open transactions (of user 'guest' )?may have"
    with pytest.raises(penstock.PenstockError, match=too_many):
        transaction.commit()
    assert ready(client, "out") == [0]


async def test_the_same_with_asyncio(house: FlightHouse) -> None:
    async with penstock.aio.connect(house.url) as client:
        await client.declare("in")
        await client.declare("out")
        for n in range(2):
            await client.publish("in", {"n": n})
        async with client.consume("in") as consumer:
            one, two = [await consumer.take(60) for _ in range(2)]
            assert one is not None
            assert two is not None
            async with client.transaction() as transaction:
                transaction.publish("out", {"made": "of 0"})
                transaction.ack(one)
            assert [receipt.outcome for receipt in transaction.receipts] == ["stored"]
            await two.ack(publish=[("out", b"made of 1")])
        assert (await client.queue("out"))["ready"] == 2
        assert (await client.queue("in"))["acked"] == 2
