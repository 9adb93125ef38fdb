"""Scheduled and delayed messages: a side buffer ordered by time, counted apart, durable, at any horizon."""

from __future__ import annotations

from datetime import UTC, datetime

import pika
import pika.exceptions
import pyarrow as pa
import pytest

import penstock
from penstock.errors import InvalidArgument
from penstock.testing import Broker
from penstock.testing.instance import FakeClock
from scenario import amqp, bodies, broker_of, get

YEAR = 365.25 * 86_400


def headers(**values: object) -> pika.BasicProperties:
    return pika.BasicProperties(
        delivery_mode=2, headers={name.replace("__", "-"): value for name, value in values.items()}
    )


@pytest.mark.parametrize("name", ["x-deliver-at", "_AMQ_SCHED_DELIVERY"])
def test_a_time_in_milliseconds_since_the_epoch_by_either_name(name: str) -> None:
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        due = int(broker.now() * 1000) + 60_000
        channel.basic_publish("", "q", b"x", pika.BasicProperties(headers={name: due}))
        assert (broker.stats("q")["delayed"], broker.stats("q")["ready"]) == (1, 0)
        broker.advance(59)
        assert get(channel, "q") is None
        broker.advance(1)
        assert get(channel, "q") == b"x"


def test_x_delay_counts_from_the_publish_on_any_exchange() -> None:
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        channel.basic_publish("", "q", b"x", headers(x__delay=1500))
        broker.advance(1.4)
        assert get(channel, "q") is None
        broker.advance(0.1)
        assert get(channel, "q") == b"x"


def test_a_delay_of_nothing_and_a_time_that_is_over_mean_at_once() -> None:
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        for values in ({"x__delay": 0}, {"x__delay": -5}, {"x__deliver__at": 1}):
            channel.basic_publish("", "q", b"x", headers(**values))
            assert get(channel, "q") == b"x"


@pytest.mark.parametrize("value", ["5000", True, [1], 2**43])
def test_anything_but_a_sensible_whole_number_is_refused(value: object) -> None:
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="invalid header 'x-delay'") as caught:
            channel.basic_publish("", "q", b"x", headers(x__delay=value))
        assert caught.value.reply_code == 406


def test_any_horizon_years_ahead_over_restarts() -> None:
    with broker_of({"name": "q"}) as broker:
        broker.publish("q", "far", delay=90 * YEAR)
        broker.publish("q", "near", delay=3 * YEAR)
        broker.restart()
        broker.advance(3 * YEAR)
        broker.crash()
        broker.restart()
        subscription = broker.subscribe("q", max_backlog=5)
        assert bodies(subscription.take()) == [b"near"]
        broker.advance(87 * YEAR)
        assert bodies(subscription.take()) == [b"far"]


def test_ordered_by_due_time_and_by_sending_for_equal_times() -> None:
    with broker_of({"name": "q"}) as broker:
        for text, delay in (("c", 3), ("a1", 1), ("b", 2), ("a2", 1), ("a3", 1)):
            broker.publish("q", text, delay=delay)
        broker.advance(10)
        assert bodies(broker.subscribe("q", max_backlog=9).take()) == [b"a1", b"a2", b"a3", b"b", b"c"]


def test_when_due_it_takes_the_place_of_that_moment() -> None:
    with broker_of({"name": "q"}) as broker:
        broker.publish("q", "late", delay=5)
        broker.publish("q", "before")
        broker.advance(5)
        broker.publish("q", "after")
        assert bodies(broker.subscribe("q", max_backlog=9).take()) == [b"before", b"late", b"after"]


def test_delayed_messages_are_counted_apart_and_hold_nobody_up() -> None:
    with broker_of({"name": "q", "max_backlog": 1}) as broker:
        broker.publish("q", "late", delay=5)
        broker.publish("q", "now")
        [message] = broker.subscribe("q").take()
        assert message.body == b"now"
        stats = broker.stats("q")
        assert (stats["ready"], stats["leased"], stats["delayed"], stats["queue_depth"]) == (0, 1, 1, 2)


def test_by_sdk_flight_column_and_header_alike() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker, penstock.connect(broker.flight_url) as client:
        client.publish("q", b"by duration", delay="10s")
        due = datetime.fromtimestamp(broker.now() + 10, UTC)
        table = pa.table({"body": [b"by column"], "not_before": pa.array([due], pa.timestamp("us", tz="UTC"))})
        client.publish_table("q", table)
        assert client.queue("q")["delayed"] == 2
        broker.advance(9.999)
        assert client.queue("q")["ready"] == 0
        broker.advance(0.001)
        assert client.queue("q")["ready"] == 2


@pytest.mark.parametrize("wall", [1_000_000_000_000_000, 4_000_000_000_000_000])
def test_durations_count_by_the_clock_of_the_server_however_wrong_that_of_the_client_is(wall: int) -> None:
    with (
        Broker({"queue": [{"name": "q"}]}, clock=FakeClock(wall)) as broker,
        penstock.connect(broker.flight_url) as client,
    ):
        assert client.publish("q", b"waits", delay="10s", expiration="20s").outcome == "stored"
        with client.transaction() as transaction:
            transaction.publish("q", b"in a transaction", delay="10s")
            transaction.publish("q", b"at once", expiration="5s")
        both = pa.table({"body": [b"waits in a table", b"now"], "delay": [10_000_000, None]})
        client.publish_table("q", both)
        assert (client.queue("q")["delayed"], client.queue("q")["ready"]) == (3, 2)
        broker.advance(5)
        assert client.queue("q")["ready"] == 1  # one is over
        broker.advance(4.999_999)
        assert client.queue("q")["ready"] == 1
        broker.advance(0.000_001)
        assert client.queue("q")["ready"] == 4
        broker.advance(10)
        assert (client.queue("q")["delayed"], client.queue("q")["ready"]) == (0, 3)


def test_a_row_has_a_time_or_a_duration() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker, penstock.connect(broker.flight_url) as client:
        with pytest.raises(InvalidArgument, match="delay and not_before|not_before and delay"):
            client.publish("q", b"x", delay=1, not_before=5)
        at = pa.array([None, 5], pa.timestamp("us", tz="UTC"))
        with pytest.raises(InvalidArgument, match="row 1 has both not_before and delay"):
            client.publish_table("q", pa.table({"body": [b"1", b"2"], "not_before": at, "delay": [5, 5]}))
        with pytest.raises(InvalidArgument, match="expiration is -1 us"):
            client.publish_table("q", pa.table({"body": [b"1"], "expiration": [-1]}))
        assert client.queue("q")["ready"] == client.queue("q")["delayed"] == 0


def test_an_expiry_before_the_time_is_the_end_of_it() -> None:
    with broker_of({"name": "q"}) as broker:
        mark = broker.publish("q", "x", delay=10, expiration=5)
        broker.advance(5.1)
        assert broker.stats("q")["delayed"] == 0
        assert broker.story(mark)[-1].details["reason"] == "time_limit"


def test_a_time_that_was_over_is_no_delay_after_a_crash_either() -> None:
    with broker_of({"name": "q"}) as broker:
        with penstock.connect(broker.flight_url) as client:
            receipt = client.publish("q", "past", not_before=int((broker.now() - 5) * 1e6))
        assert bodies(broker.subscribe("q").take()) == [b"past"]
        broker.advance(1)
        broker.crash()
        broker.restart()
        with penstock.connect(broker.flight_url) as client:
            events = [event["event"] for event in client.story(receipt.bookmark)["events"]]
        assert bodies(broker.subscribe("q").take()) == [b"past"]
    assert "delayed" not in " ".join(events)
    assert "due" not in " ".join(events), events
