"""What waits in a client until its lease has ended is somebody else's, and is not handed out; under `strict` leasing
what was taken is then not settled either, and who tries is told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest

import penstock
from penstock.client import consumer, messages
from penstock.client.client import Client
from penstock.client.consumer import Consumer
from penstock.testing import Broker


class Clock:
    """The time of a client whose clock is the broker's, `past` seconds later than it was."""

    def __init__(self, broker: Broker) -> None:
        self.past = 0.0
        self.skew = 0.0
        self._broker = broker

    def monotonic(self) -> float:
        return time.monotonic() + self.past

    def time(self) -> float:
        return self._broker.now() + self.skew


House: TypeAlias = "tuple[Broker, Clock, Client]"


@contextmanager
def house(
    monkeypatch: pytest.MonkeyPatch, lease: str | None = "30s", leasing: str = "sublet", *more: dict[str, Any]
) -> Generator[House]:
    settings = {"name": "q", "leasing": leasing} | ({} if lease is None else {"lease_period": lease})
    with Broker({"queue": [settings, *more]}) as broker:
        clock = Clock(broker)
        for module in (consumer, messages):
            monkeypatch.setattr(module, "time", clock)
        with penstock.connect(broker.flight_url) as client:
            for number in range(3):
                broker.publish("q", b"%d" % number)
            yield broker, clock, client


def pass_time(broker: Broker, clock: Clock, seconds: float) -> None:
    clock.past += seconds
    broker.advance(seconds)


def taken(consumer: Consumer[Any]) -> tuple[bytes, int]:
    message = consumer.take(60.0)
    assert message is not None
    return message.body, message.attempt


def test_what_waited_for_longer_than_its_lease_comes_anew_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with house(monkeypatch) as (broker, clock, client), client.consume("q", backlog=3) as slow:
        held = slow.take(60.0)
        assert held is not None
        assert (held.body, held.attempt) == (b"0", 1)
        slow.catch_up()
        with client.consume("q", backlog=3) as other, caplog.at_level(logging.DEBUG, "penstock.client"):
            assert other.effective_backlog == 3
            pass_time(broker, clock, 31)
            assert [taken(other) for _ in range(3)] == [(b"0", 2), (b"1", 2), (b"2", 2)]
            assert slow.take(0.0) is None
            told = [record.levelname for record in caplog.records if "lease of a message ended" in record.getMessage()]
            assert told == ["WARNING", "DEBUG"]


def test_with_nobody_else_it_is_handed_out_as_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with house(monkeypatch) as (broker, clock, client), client.consume("q", backlog=3) as slow:
        assert taken(slow) == (b"0", 1)
        slow.catch_up()
        pass_time(broker, clock, 31)
        assert [taken(slow) for _ in range(3)] == [(b"0", 2), (b"1", 2), (b"2", 2)]


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_a_clock_that_is_wrong_takes_no_living_lease_away(monkeypatch: pytest.MonkeyPatch, skew: float) -> None:
    with house(monkeypatch) as (broker, clock, client), client.consume("q", backlog=3) as slow:
        clock.skew = skew
        assert taken(slow) == (b"0", 1)
        slow.catch_up()
        pass_time(broker, clock, 29)
        assert [taken(slow) for _ in range(2)] == [(b"1", 1), (b"2", 1)]


def test_a_lease_that_is_longer_than_was_known_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with house(monkeypatch) as (broker, clock, client), client.consume("q", backlog=3) as slow:
        for _ in range(3):
            message = slow.take(60.0)
            assert message is not None
            assert message.ack()
        client.alter("q", lease_period="1h")
        for number in range(3, 6):
            broker.publish("q", b"%d" % number)
        assert (taken(slow), slow.lease_period) == ((b"3", 1), 30.0)
        slow.flush()
        assert broker.stats("q")["leased"] == 3
        pass_time(broker, clock, 31)
        assert [taken(slow) for _ in range(2)] == [(b"4", 1), (b"5", 1)]


def test_without_a_period_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with house(monkeypatch, lease=None) as (broker, clock, client), client.consume("q", backlog=3) as slow:
        assert taken(slow) == (b"0", 1)
        pass_time(broker, clock, 86_400)
        assert [taken(slow) for _ in range(2)] == [(b"1", 1), (b"2", 1)]


def test_under_strict_leasing_a_settle_after_the_end_of_a_lease_says_that_it_has_no_effect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with house(monkeypatch, "30s", "strict") as (broker, clock, client), client.consume("q", backlog=3) as slow:
        first, second, third = (slow.take(60.0) for _ in range(3))
        assert first is not None
        assert second is not None
        assert third is not None
        pass_time(broker, clock, 29)
        assert first.ack()
        slow.flush()
        pass_time(broker, clock, 2)
        with caplog.at_level(logging.WARNING, "penstock.client"):
            assert not second.ack()
            with third:
                pass
        assert [one.outcome for one in (first, second, third)] == ["ack", "lost", "lost"]
        assert [record.getMessage() for record in caplog.records if "lease" in record.getMessage()] == [
            f"ack of {second!r} has no effect: its lease had ended, and it comes again"
        ]
        slow.flush()
        assert slow.stale == 2
        assert sorted(taken(slow) for _ in range(2)) == [(b"1", 2), (b"2", 2)]


def test_a_batch_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with house(monkeypatch, "30s", "strict") as (broker, clock, client), client.consume("q", backlog=3) as slow:
        slow.catch_up()
        batch = slow.take_batch(60.0)
        assert batch is not None
        pass_time(broker, clock, 31)
        assert not batch.ack()
        assert [one.outcome for one in batch] == ["lost"] * len(batch)
        assert slow.stale == len(batch)


@pytest.mark.parametrize("whole", [False, True])
def test_a_lease_that_was_extended_is_the_servers_to_judge(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    with house(monkeypatch, "30s", "strict") as (broker, clock, client), client.consume("q", backlog=3) as slow:
        slow.catch_up()
        batch = slow.take_batch(60.0)
        assert batch is not None
        assert all([batch.extend("1h")] if whole else [one.extend("1h") for one in batch])
        slow.flush()
        pass_time(broker, clock, 3_000)
        assert batch.ack()
        slow.flush()
        assert (slow.stale, broker.stats("q")["acked"]) == (0, len(batch))


@pytest.mark.parametrize("leasing", ["sublet", "strict"])
def test_what_somebody_may_still_settle_is_told_to_the_server(monkeypatch: pytest.MonkeyPatch, leasing: str) -> None:
    other = {"name": "q2", "lease_period": "30s", "leasing": "sublet"}
    pattern = house(monkeypatch, "30s", leasing, other)
    with pattern as (broker, clock, client), client.consume("q[2]?$", backlog=3) as slow:
        message = slow.take(60.0)
        assert message is not None
        pass_time(broker, clock, 31)
        assert message.ack()
        slow.flush()
        assert slow.stale == (leasing == "strict")


def test_threads_take_turns_at_one_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that took at once each made a connection after an outage, and nothing came any more."""
    held, goes_on = threading.Event(), threading.Event()
    outlived = messages.Rows.outlived

    def slow(rows: Any, row: int, period: float) -> bool:
        if not held.is_set():
            held.set()
            goes_on.wait(20)
        return outlived(rows, row, period)

    with house(monkeypatch) as (_, _, client), client.consume("q", backlog=3) as shared, ThreadPoolExecutor() as pool:
        monkeypatch.setattr(messages.Rows, "outlived", slow)
        first = pool.submit(taken, shared)
        assert held.wait(20)
        assert (shared.take(0.01), shared.take_batch(0.01)) == (None, None), "it is another's turn"
        second = pool.submit(taken, shared)
        goes_on.set()
        assert {first.result(20), second.result(20)} == {(b"0", 1), (b"1", 1)}
        batch = shared.take_batch(60.0)
        assert batch is not None
        assert [message.body for message in batch] == [b"2"]
