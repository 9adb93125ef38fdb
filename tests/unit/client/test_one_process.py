"""What belongs to a connection: its name, that it stays in its process, and that what is settled is told so."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.errors import PreconditionFailed
from penstock.testing import Broker

CONFIG = {"queue": [{"name": "jobs"}]}
NOT_PICKLED = "belongs to a connection of this process, and is neither pickled nor copied"
COPIES: list[Callable[[object], object]] = [pickle.dumps, copy.deepcopy]


@pytest.mark.parametrize("copied", COPIES)
def test_what_a_connection_has_stays_in_its_process(copied: Callable[[object], object]) -> None:
    """As arguments of a process pool, and what a function closes over that Spark sends to others."""
    with Broker(CONFIG) as broker, penstock.connect(broker.flight_url) as client:
        for body in (b"1", b"2", b"3"):
            client.publish("jobs", body)
        with client.consume("jobs") as consumer, client.replay("jobs", follow=True) as replay:
            message = consumer.take()
            assert message is not None
            found = client.query("SELECT 1")
            for one in (client, consumer, replay, message, consumer.batch_of(message), client.transaction(), found):
                with pytest.raises(TypeError, match=f"^a {type(one).__name__} {NOT_PICKLED}"):
                    copied(one)
        asyncio.run(_of_asyncio(broker.flight_url, copied))


async def _of_asyncio(url: str, copied: Callable[[object], object]) -> None:
    client = await penstock.aio.connect(url)
    async with client, client.consume("jobs") as consumer, client.replay("jobs", follow=True) as replay:
        message = await consumer.take()
        batch = await consumer.take_batch()
        for one in (client, consumer, replay, message, batch, client.transaction()):
            with pytest.raises(TypeError, match=f"^a {type(one).__name__} {NOT_PICKLED}"):
                copied(one)


def test_a_client_is_called_by_its_address_without_its_password() -> None:
    with Broker(CONFIG) as broker, penstock.connect(broker.flight_url) as client:
        assert repr(client) == f"Client('{broker.flight_url.replace('guest:guest@', 'guest@')}/')"

        async def of_asyncio() -> str:
            async with penstock.aio.connect(broker.flight_url) as other:
                return repr(other)

        assert asyncio.run(of_asyncio()) == repr(client)


@pytest.mark.parametrize("verb", ["ack", "release", "retry", "reject"])
def test_what_is_settled_is_not_held_longer(verb: str) -> None:
    """It was told that it was held, and was not."""
    with Broker(CONFIG) as broker, penstock.connect(broker.flight_url) as client:
        client.publish("jobs", b"1")
        client.publish("jobs", b"2")
        with client.consume("jobs") as consumer:
            message: Any = consumer.take()
            assert message.extend("1m")
            getattr(message, verb)()
            with pytest.raises(PreconditionFailed, match=f"was settled already: {verb}"):
                message.extend("1m")
