"""How many messages lie before a stream of a topic: exact once counted, whoever else publishes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from flight_house import FlightHouse
from penstock.server.asking.recovering import Count


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    with FlightHouse(tmp_path) as house, penstock.connect(house.url) as client:
        yield client


def lag(client: Any, stream: str) -> Any:
    return next(one["lag_messages"] for one in client.streams() if one["stream"] == stream)


def until(client: Any, stream: str, wanted: int) -> None:
    event, deadline = threading.Event(), time.monotonic() + 20
    while (found := lag(client, stream)) != wanted:
        assert time.monotonic() < deadline, found
        event.wait(0.01)


def test_messages_of_its_topic_are_counted(client: Any) -> None:
    client.declare_topic("mine")
    client.declare_topic("others")

    def publish(topic: str, count: int) -> None:
        for n in range(count):
            client.publish(topic, {"n": n})

    publish("mine", 30)
    publish("others", 50)
    epoch = client.action("stream_open", stream="s", topic="mine")["epoch"]
    start = client.action("stream_begin", stream="s", epoch=epoch, bookmark="EPOCH")["start"]
    until(client, "s", 30)
    first = client.action("plan_range", stream="s", epoch=epoch, start=start, max_rows=12)
    until(client, "s", 18)
    publish("others", 5)
    publish("mine", 7)
    until(client, "s", 25)
    second = client.action("plan_range", stream="s", epoch=epoch, start=first["end"])
    until(client, "s", 0)
    assert client.action("plan_range", stream="s", epoch=epoch, start=second["end"])["end"] == second["end"]
    publish("others", 5)
    until(client, "s", 0)
    [stream] = client.streams()
    assert (stream["lag"] > 0, stream["age_seconds"]) == (True, 0), "it is level: what it has not read is not for it"
    publish("mine", 1)
    until(client, "s", 1)
    assert client.streams()[0]["age_seconds"] > 0
    assert client.action("stream_lag", with_vhost=False, stream="s")["messages"] == 1


def test_a_piece_that_the_reader_is_in_is_counted_again() -> None:
    count = Count({"topic": "t"}, 10)
    count.found(10, 110, 40)
    count.found(110, 210, 60)
    assert (count.total, count.torn) == (100, None)
    count.move(30)
    assert count.torn is not None
    assert count.torn.end == 110
    count.found(30, 110, 25)
    assert (count.total, count.torn) == (85, None)
    count.found(20, 110, 99)  # of before the move: too late
    count.found(110, 210, 99)
    assert count.total == 85
    count.move(400)
    assert (count.total, count.upto) == (0, 400)
