"""Queries with a projection are gathered beside the loop, and few of them at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

import penstock
from penstock.core.sow.index import Snapshot
from penstock.server.flight import doget
from penstock.testing import Broker
from waiting import eventually

CLIENTS, KEYS = 8, 30


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker({"topic": [{"name": "orders", "key": ["/id"]}], "queue": [{"name": "jobs"}]}) as broker:
        for number in range(KEYS):
            for name in ("orders", "jobs"):
                broker.publish(name, orjson.dumps({"id": number, "group": number % 3}))
        yield broker


def grouped(url: str, source: str) -> list[dict[str, Any]]:
    with penstock.connect(url) as client:
        return sorted(
            (row.json() for row in client.sow(source, projection="/group, COUNT(/id) AS /n", grouping="/group")),
            key=lambda row: row["group"],
        )


@pytest.mark.parametrize("source", ["orders", "jobs"])
def test_a_crowd_of_queries_is_gathered_a_few_at_a_time_and_each_is_answered(
    broker: Broker, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads at work keep the interpreter from the loop, each a little."""
    lock, go, running, most = threading.Lock(), threading.Event(), [0], [0]
    gather = doget.gather

    def counted(*args: Any) -> Any:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        assert go.wait(30)
        try:
            return gather(*args)
        finally:
            with lock:
                running[0] -= 1

    monkeypatch.setattr(doget, "gather", counted)
    url = broker.flight_url
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = [pool.submit(grouped, url, source) for _ in range(CLIENTS)]
        eventually(lambda: running[0] == doget.GATHERED_AT_ONCE)
        go.set()
        expected = [{"group": number, "n": KEYS // 3} for number in range(3)]
        assert [one.result(30) for one in answers] == [expected] * CLIENTS
    assert most[0] == doget.GATHERED_AT_ONCE


def test_the_records_of_a_topic_are_put_in_order_beside_the_loop(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, arrays = set[str](), Snapshot.arrays

    def noted(snapshot: Snapshot) -> Any:
        threads.add(threading.current_thread().name)
        return arrays(snapshot)

    monkeypatch.setattr(Snapshot, "arrays", noted)
    loop = set[str]()
    calls = doget.positions
    monkeypatch.setattr(doget, "positions", lambda *args: (loop.add(threading.current_thread().name), calls(*args))[1])
    assert len(grouped(broker.flight_url, "orders")) == 3
    assert loop
    assert threads
    assert threads.isdisjoint(loop)
