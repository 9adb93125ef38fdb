"""What a consumer rejects is durable when it is told so: with the dead letter, whose body may have to be read first."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from flight_house import FlightHouse
from penstock.client.consumer import Consumer
from penstock.core.effects import Fetch
from waiting import eventually


class Slow:
    """Bodies that are read when the test says so."""

    def __init__(self, house: FlightHouse) -> None:
        self._house = house
        self._fetch = house.engine.fetches._fetch
        self._kept = list[Fetch]()
        self.asked = threading.Event()
        house.engine.fetches._fetch = self._keep

    def _keep(self, effect: Fetch) -> None:
        self._kept.append(effect)
        self.asked.set()

    def read(self) -> None:
        def all_of_them() -> None:
            kept, self._kept = self._kept, []
            for effect in kept:
                self._fetch(effect)
            self._house.engine.arm()

        self._house.run(all_of_them)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path) as house:
        yield house


@pytest.fixture
def client(house: FlightHouse) -> Iterator[penstock.Client]:
    with penstock.connect(house.url) as client:
        client.declare("failed", max_length=1, overflow="reject-publish")
        client.declare("q", dead_letter_exchange="", dead_letter_routing_key="failed")
        client.publish("q", b"x")
        yield client


def rejected(consumer: Consumer[object]) -> None:
    next(iter(consumer)).reject("why")


@pytest.mark.parametrize("way", ["flush", "close"])
def test_a_reject_is_durable_with_its_dead_letter(house: FlightHouse, client: penstock.Client, way: str) -> None:
    slow = Slow(house)
    consumer = client.consume("q", timeout=60).__enter__()
    with ThreadPoolExecutor() as threads:
        rejected(consumer)
        told: Future[object] = threads.submit(_of(consumer, way))
        assert slow.asked.wait(60)
        assert [client.health() for _ in range(20)]
        assert not told.done()
        assert client.queue("failed")["ready"] == 0
        slow.read()
        told.result(60)
        assert client.queue("failed")["ready"] == 1
    consumer.close()


def test_a_letter_that_a_full_queue_refuses_is_not_waited_for(client: penstock.Client) -> None:
    client.publish("failed", b"full")
    with client.consume("q", timeout=60) as consumer:
        rejected(consumer)
        consumer.flush()
    assert client.queue("q")["dying"] == 1


def test_nor_is_one_of_a_queue_that_goes(house: FlightHouse, client: penstock.Client) -> None:
    slow = Slow(house)
    consumer = client.consume("q", timeout=60).__enter__()
    rejected(consumer)
    consumer._exchange.flush()
    assert slow.asked.wait(60)
    client.delete("q")
    consumer.close()


def test_who_ends_gives_back_what_he_has_at_once(house: FlightHouse, client: penstock.Client) -> None:
    """Also when he goes away before the letter is written."""
    client.publish("q", b"y")
    slow = Slow(house)
    consumer = client.consume("q", timeout=60).__enter__()
    rejected(consumer)
    consumer._exchange.flush()
    assert slow.asked.wait(60)
    eventually(lambda: client.queue("q")["leased"] == 1)
    consumer._exchange._writer.done_writing()
    eventually(lambda: client.queue("q")["leased"] == 0)
    slow.read()
    consumer._exchange.close()
    consumer.close()
    assert client.queue("q")["ready"] == client.queue("failed")["ready"] == 1


def _of(consumer: Consumer[object], way: str) -> Callable[[], object]:
    return consumer.flush if way == "flush" else consumer.close


@pytest.mark.parametrize("way", ["ack", "ack_filter"])
def test_what_is_settled_by_name_is_answered_with_its_dead_letters(
    house: FlightHouse, client: penstock.Client, way: str
) -> None:
    slow = Slow(house)
    settled = {
        "ack": lambda: client.ack("q", client.peek("q")[0].bookmark, option="expire"),
        "ack_filter": lambda: client.ack_filter("q", "TRUE", option="expire"),
    }[way]
    with ThreadPoolExecutor() as threads:
        told: Future[int] = threads.submit(settled)
        assert slow.asked.wait(60)
        assert [client.health() for _ in range(20)]
        assert not told.done()
        slow.read()
        assert told.result(60) == 1
        assert client.queue("failed")["ready"] == 1
