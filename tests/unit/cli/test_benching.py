"""`penstock bench`: what it measures adds up, and it leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from penstock.cli import benching
from penstock.cli.benching import figures, share
from penstock.testing import Broker

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(
        {"queue": [{"name": "mine"}, {"name": "small", "max_length": 3, "overflow": "reject-publish"}]}
    ) as broker:
        yield broker


def test_shares_are_by_nearest_rank() -> None:
    ordered = [one / 1000 for one in range(1, 101)]
    assert (share(ordered, 0.5), share(ordered, 0.99), share(ordered, 1.0)) == (50.0, 99.0, 100.0)
    assert share([0.25], 0.5) == 250.0
    found = figures("publish", 1000, 100, 0.5, confirm=[0.001, 0.003])
    assert (found["per_second"], found["confirm_ms"]) == (2000.0, {"p50": 1.0, "p99": 3.0, "max": 3.0})


def test_each_bench_uses_a_queue_of_its_own_that_goes(broker: Broker, run: Run) -> None:
    for words, keys in (
        (("publish", "--count", "250", "--batch", "100"), {"confirm_ms"}),
        (("consume", "--count", "250", "--size", "20"), set[str]()),
        (("both", "--count", "250", "--batch", "50"), {"confirm_ms", "delivered_ms"}),
        (("ping", "--count", "5", "--set", "lease_period=1m"), {"confirm_ms", "delivered_ms"}),
    ):
        status, out, err = run("bench", *words, "--json", "--url", broker.flight_url)
        assert (status, err) == (0, ""), words
        found = json.loads(out)
        assert found["messages"] == int(words[2])
        assert found["bytes"] == (20 if "--size" in words else 100)
        assert found["per_second"] == pytest.approx(found["messages"] / found["seconds"], rel=0.01)
        assert {name for name in found if name.endswith("_ms")} == keys
        assert all(found[name]["p50"] <= found[name]["p99"] <= found[name]["max"] for name in keys)
        left = json.loads(run("queue", "list", "--json", "--url", broker.flight_url)[1])
        assert [one["queue"] for one in left] == ["mine", "small"]


def test_a_queue_that_is_there_is_filled_and_emptied(broker: Broker, run: Run) -> None:
    url = ("--url", broker.flight_url)
    status, out, _ = run("bench", "publish", "--count", "30", "--queue", "mine", *url)
    assert (status, "messages/s" in out, "p99" in out) == (0, True, True)
    assert broker.stats("mine")["ready"] == 30
    status, _, err = run("bench", "consume", "--count", "20", "--queue", "mine", *url)
    assert (status, "mine has 30 ready messages: take and acknowledge 20 of them?" in err) == (2, True)
    assert (
        json.loads(run("bench", "consume", "--count", "20", "--queue", "mine", "--yes", "--json", *url)[1])["bytes"]
        == 100
    )
    assert (broker.stats("mine")["ready"], broker.stats("mine")["acked"]) == (10, 20)
    status, _, err = run("bench", "publish", "--queue", "none", *url)
    assert (status, "none" in err) == (1, True)


def test_what_the_server_refuses_ends_it(broker: Broker, run: Run) -> None:
    status, _, err = run("bench", "publish", "--count", "10", "--queue", "small", "--url", broker.flight_url)
    assert (status, "of 10 messages the server stored 3" in err) == (1, True)


def test_a_deep_queue_is_filled_before_anything_is_taken(broker: Broker, run: Run) -> None:
    url = ("--url", broker.flight_url)
    status, out, err = run("bench", "deep", "--count", "25000", "--size", "20", "--json", *url)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["messages"], found["bytes"]) == (25000, 20)
    assert found["fill_per_second"] == pytest.approx(25000 / found["fill_seconds"], rel=0.01)
    assert found["drain_per_second"] == pytest.approx(25000 / found["drain_seconds"], rel=0.01)
    assert 0 < found["first_delivery_ms"] <= found["drain_seconds"] * 1e3
    memory = found["memory"]
    assert min(memory.values()) > 1 << 20
    assert found["memory_a_message"] == pytest.approx((memory["full"] - memory["before"]) / 25000, abs=0.06)
    status, out, _ = run("bench", "deep", "--count", "10", *url)
    assert (status, "first delivery" in out, "server memory before" in out) == (0, True, True)
    assert [one["queue"] for one in json.loads(run("queue", "list", "--json", *url)[1])] == ["mine", "small"]


def test_without_pyspark_a_bench_of_spark_says_what_it_needs(
    broker: Broker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benching, "find_spec", lambda _: None)
    status, out, err = run("bench", "spark", "--url", broker.flight_url)
    assert (status, out) == (2, "")
    assert err.splitlines()[0] == f"penstock: {benching.MISSING}"
    assert "pip install 'penstock[spark]'" in benching.MISSING
