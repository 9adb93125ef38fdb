"""What a message says of itself is the same in whatever way it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from flight_house import FlightHouse
from penstock.client.messages import Values

READ: dict[str, Callable[[penstock.Client], Iterator[Values]]] = {
    "peek": lambda client: iter(client.peek("orders")),
    "replay": lambda client: client.replay("orders"),
    "replay that goes on": lambda client: client.replay("orders", follow=True),
    "sow": lambda client: client.sow("records"),
    "sow of a queue": lambda client: client.sow("orders"),
    "sow_and_subscribe": lambda client: client.sow_and_subscribe("records"),
    "consume": lambda client: iter(client.consume("orders")),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Client]:
    folder: Path = tmp_path_factory.mktemp("said")
    with FlightHouse(folder) as house, penstock.connect(house.url) as client:
        client.declare("orders", max_priority=9)
        client.declare_topic("records", key=["/id"])
        for topic in ("orders", "records"):
            client.publish(
                topic, {"id": 1}, headers={"a": 1}, priority=7, message_id="m", correlation_id="c", reply_to="r"
            )
        yield client


@pytest.mark.parametrize("way", READ)
def test_it_is_the_same_in_every_way(client: penstock.Client, way: str) -> None:
    message = next(READ[way](client))
    assert (message.body, message.headers) == (b'{"id":1}', {"a": "1"})
    said = (message.content_type, message.priority, message.message_id, message.correlation_id, message.reply_to)
    assert said == ("application/json", 7, "m", "c", "r")
