"""Typed bodies, blocking and async; settles and batches."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from dataclasses import dataclass
from typing import Any, assert_type

import pyarrow as pa

import penstock


@dataclass
class Order:
    """What the bodies are."""

    id: int
    total: float


def consume(client: penstock.Client) -> None:
    """A dataclass."""
    for message in client.consume("orders", type=Order, backlog=10, reconnect="1m"):
        with message:
            assert_type(message.value, Order)
            assert_type(message.value.total, float)
            message.value.totle  # type: ignore[attr-defined]  # noqa: B018
        assert_type(message.reject("why"), bool)
    for anything in client.consume("orders"):
        assert_type(anything.value, Any)
        anything.ack(pubish=[])  # type: ignore[call-arg]
    client.consume("orders", backlok=3)  # type: ignore[call-arg]
    with client.consume("orders", type=list[int]) as consumer:
        found = consumer.take(1.0)
        if found is not None:
            assert_type(found.value, list[int])


def batches(client: penstock.Client) -> None:
    """One ack for all, or row by row."""
    for batch in client.consume("orders", type=Order).batches():
        with batch:
            assert_type(batch.arrow, pa.RecordBatch)
            batch.reject([row for row, one in enumerate(batch) if one.value.total < 0], reason="negative")
            assert_type(batch.ack(), bool)


async def asynchronously() -> None:
    """The same names."""
    async with penstock.aio.connect() as client:
        async for message in client.consume("orders", type=Order):
            async with message:
                assert_type(message.value, Order)
        async for batch in client.consume("orders", type=Order).batches():
            assert_type(batch[0].value, Order)
            await batch.ack()


def handed_on(message: penstock.Message[Order], other: penstock.Message) -> float:
    """In annotations, with a type and without."""
    assert_type(other.value, Any)
    return message.value.total
