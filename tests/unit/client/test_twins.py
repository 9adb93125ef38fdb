"""What the blocking client has under a public name the one for asyncio has, too, and with the same arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import penstock.aio
from penstock.client import aio, batches, client, consumer, messages, replay, results, transactions
from penstock.client.aio import stream
from penstock.errors import PreconditionFailed
from penstock.testing import Broker

TWINS: tuple[tuple[type[Any], type[Any]], ...] = (
    (client.Client, aio.Client), (consumer.Consumer, stream.Consumer), (batches.Batch, stream.Batch),
    (messages.Message, stream.Message), (replay.Replay, stream.Replay), (results.Task, aio.Task),
    (transactions.Transaction, aio.Transaction),
)  # fmt: skip

BETWEEN_OURS: dict[type[Any], frozenset[str]] = {
    client.Client: frozenset({"forget", "heard", "open_transaction"}),
    consumer.Consumer: frozenset({"batch_of", "catch_up", "give_back", "over", "take_ready", "untake"}),
    messages.Message: frozenset({"begin", "check_unsettled", "end", "holder", "leave"}),
    replay.Replay: frozenset({"begin", "over"}),
    results.Task: frozenset({"late"}),
}  # fmt: skip
"""What parts of the client ask of each other."""


def public(one: type[Any]) -> set[str]:
    return {name for name in dir(one) if not name.startswith("_")}


@pytest.mark.parametrize(("ours", "twin"), TWINS, ids=[ours.__name__ for ours, _ in TWINS])
def test_names(ours: type[Any], twin: type[Any]) -> None:
    between = BETWEEN_OURS.get(ours, frozenset())
    assert between <= public(ours)
    assert public(ours) - between <= public(twin)


def shared() -> Iterator[tuple[str, Any, Any]]:
    for ours, twin in TWINS:
        for name in sorted(public(ours) & public(twin)):
            one, other = getattr(ours, name), getattr(twin, name)
            if inspect.isfunction(one) and inspect.isfunction(other):
                yield f"{ours.__name__}.{name}", one, other


@pytest.mark.parametrize(("one", "other"), [pytest.param(*case[1:], id=case[0]) for case in shared()])
def test_arguments(one: Any, other: Any) -> None:
    asked = [parameter.replace(annotation="") for parameter in inspect.signature(other).parameters.values()]
    asked = [parameter for parameter in asked[1:] if parameter.kind is not parameter.VAR_POSITIONAL]
    mine = [parameter.replace(annotation="") for parameter in inspect.signature(one).parameters.values()][1:]
    if asked and asked[-1].kind is asked[-1].VAR_KEYWORD:  # it hands on whatever it is given
        del mine[len(asked) - 1 :], asked[-1]
    assert [(one.name, one.kind, one.default) for one in mine] == [(one.name, one.kind, one.default) for one in asked]


@pytest.mark.asyncio
async def test_a_consumer_of_asyncio_tells_what_it_consumes() -> None:
    with Broker({"queue": [{"name": "jobs", "lease_period": "30s"}]}) as broker:
        async with penstock.aio.connect(broker.flight_url) as one, one.consume("jobs", backlog=3) as jobs:
            assert (await jobs.queues(), await jobs.lease_period(), jobs.stale) == (["jobs"], 30.0, 0)
            assert (await jobs.tag(), await jobs.effective_backlog()) == (await jobs.tag(), 3)
            assert await one.vhost() == "/"
            assert str(await one.origin()) in broker.publish("jobs", b"1")
            assert str((await one.address()).port) in broker.flight_url
            assert [rows.num_rows async for rows in one.queue_batches("jobs", states=("ready", "leased"))] == [1]
            await jobs.flush(20)


@pytest.mark.asyncio
async def test_a_transaction_of_asyncio_is_over_once() -> None:
    with Broker({"queue": [{"name": "jobs"}]}) as broker:
        async with penstock.aio.connect(broker.flight_url) as one:
            async with one.transaction() as undone:
                undone.publish("jobs", b"1")
                await undone.rollback()
            done = one.transaction()
            done.publish("jobs", b"2")
            assert [receipt.outcome for receipt in await done.commit()] == ["stored"]
            for transaction in (undone, done):
                with pytest.raises(PreconditionFailed, match="over"):
                    transaction.publish("jobs", b"3")
                with pytest.raises(PreconditionFailed, match="over"):
                    await transaction.commit()
            with pytest.raises(ZeroDivisionError):
                async with one.transaction() as failed:
                    failed.publish("jobs", b"%d" % (1 // 0))
        assert [message.body for message in broker.subscribe("jobs", max_backlog=9).take()] == [b"2"]
