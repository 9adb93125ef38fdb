"""The machine's clock is set while a broker runs, or is wrong at its start: time goes on for all that waits for it."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError
from penstock.server.alarms import Alarms
from penstock.testing import Broker
from penstock.testing.instance import FakeClock

MINUTE, HOUR, DAY = 60, 3600, 86_400
CAUGHT_UP = 10 / 9
"""So much longer takes what waits for a time while the machine's clock is behind."""

QUEUES = [
    {"name": "ttl", "message_ttl": "30s"},
    {"name": "expiring", "expiration": "30s"},
    {"name": "plain"},
    {"name": "failing", "lease_period": "10s", "max_deliveries": 3, "retry": {"initial": "30s", "jitter": 0.0}},
    {"name": "once", "dedup_key": "/id", "dedup_window": "30s"},
]


class SetClock(FakeClock):
    """One that somebody sets."""

    def set(self, seconds: float) -> None:
        """So much later, or earlier, than it was."""
        self._wall += round(seconds * 1_000_000)


def make(clock: SetClock) -> Broker:
    return Broker({"queue": QUEUES}, clock=clock)


def ready(broker: Broker, queue: str) -> object:
    return broker.stats(queue)["ready"]


def again(broker: Broker, clock: SetClock, how: str, step: float) -> None:
    """The clock is set while the broker runs, while it is stopped, or after a crash."""
    if how == "crash":
        broker.crash()
    elif how == "stop":
        broker.close()
    clock.set(step)
    if how != "runs":
        broker.restart()


@pytest.mark.parametrize("how", ["runs", "stop", "crash"])
@pytest.mark.parametrize("step", [-HOUR, -50 * 365 * DAY])
def test_nothing_waits_for_a_clock_that_was_set_back(how: str, step: float) -> None:
    clock = SetClock()
    with make(clock) as broker:
        for queue in ("ttl", "expiring"):
            broker.publish(queue, b"before")
        broker.publish("plain", b"later", delay=30)
        broker.publish("once", b'{"id": 1}')
        again(broker, clock, how, step)
        for queue in ("ttl", "expiring"):
            broker.publish(queue, b"after")
        broker.publish("plain", b"later still", delay=40)
        broker.advance(29)
        assert [ready(broker, queue) for queue in ("ttl", "expiring", "plain")] == [2, 2, 0]
        broker.publish("once", b'{"id": 1}')
        assert ready(broker, "once") == 1
        broker.advance(30 * CAUGHT_UP - 28)
        assert [ready(broker, queue) for queue in ("ttl", "expiring", "plain")] == [0, 0, 1]
        broker.publish("once", b'{"id": 1}')
        assert ready(broker, "once") == 2
        broker.advance(10 * CAUGHT_UP)
        assert ready(broker, "plain") == 2


def test_times_of_records_never_decrease() -> None:
    clock = SetClock()
    with make(clock) as broker:
        for how in ("runs", "stop", "crash", "stop"):
            broker.publish("plain", how.encode())
            again(broker, clock, how, -HOUR)
            broker.advance(1)
        broker.publish("plain", b"last")
        assert broker.instance is not None
        log = broker.instance.log
        times = [
            time for batch in log.batches(1, log.durable + 1, ["time"]) for time in batch.column("time").to_pylist()
        ]
        assert len(times) > 8
        assert times == sorted(times)
        assert (times[-1] - times[0]).total_seconds() < MINUTE


def test_the_log_is_an_hour_ahead_no_longer_than_ten() -> None:
    clock = SetClock()
    with make(clock) as broker:
        instance = broker.instance
        assert instance is not None
        alarms = Alarms(instance.engine, lambda: 0)
        alarms.beat()
        assert not alarms.now
        clock.set(-HOUR)
        alarms.beat()
        assert "3600 s behind the log" in alarms.now["clock"]
        for behind in (1800, 0):
            for _ in range(5 * HOUR // MINUTE):
                broker.advance(MINUTE)
                alarms.beat()
            assert (f"{behind} s behind the log" in alarms.now.get("clock", "")) == bool(behind)
        assert instance.engine.clock.wall() == clock.wall()


def test_a_clock_that_is_set_forward_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """What that time ends is over at once, and nobody was told why."""
    clock = SetClock()
    with make(clock) as broker:
        assert broker.instance is not None
        alarms = Alarms(broker.instance.engine, lambda: 0)
        for step, seconds in ((0, 1), (0, DAY), (HOUR, 1), (0, 1), (-HOUR, 1), (HOUR, 1), (0.2, 1)):
            clock.set(step)
            alarms.beat()
            broker.advance(seconds)
            alarms.beat()
        lines = [one.getMessage() for one in caplog.records if "set forward" in one.getMessage()]
        assert lines == [
            "the machine's clock was set forward by 3600 s, or it slept: what expires or is due by then is so now"
        ]


@pytest.mark.parametrize("step", [-HOUR, DAY])
def test_a_lease_takes_no_notice_of_the_clock(step: float) -> None:
    clock = SetClock()
    with make(clock) as broker:
        broker.publish("failing", b"work")
        consumer = broker.subscribe("failing")
        assert len(consumer.take()) == 1
        clock.set(step)
        broker.advance(9)
        assert broker.stats("failing")["leased"] == 1
        broker.advance(1)
        assert broker.stats("failing")["leased"] == 0


def test_a_back_off_ends_though_the_clock_was_set_back() -> None:
    clock = SetClock()
    with make(clock) as broker:
        broker.publish("failing", b"work")
        [message] = broker.subscribe("failing").take()
        message.cancel()
        clock.set(-DAY)
        broker.advance(29)
        assert ready(broker, "failing") == 0
        broker.advance(30 * CAUGHT_UP - 28)
        assert broker.stats("failing")["delayed"] == 0


def test_a_day_forward_ends_what_a_day_ends_and_nothing_else() -> None:
    clock = SetClock()
    with make(clock) as broker:
        broker.publish("ttl", b"short")
        broker.publish("plain", b"for ever")
        broker.publish("plain", b"in two days", delay=2 * DAY)
        clock.set(DAY)
        broker.advance(1)
        assert (ready(broker, "ttl"), ready(broker, "plain")) == (0, 1)
        clock.set(-DAY)  # somebody has seen his mistake
        broker.publish("ttl", b"short")
        broker.advance(29)
        assert ready(broker, "ttl") == 1
        broker.advance(30 * CAUGHT_UP - 28)
        assert ready(broker, "ttl") == 0


def test_a_broker_begins_in_1970() -> None:
    clock = SetClock(1)
    with make(clock) as broker:
        broker.publish("ttl", b"short")
        broker.publish("plain", b"later", delay=30)
        broker.advance(31)
        assert (ready(broker, "ttl"), ready(broker, "plain")) == (0, 1)
        broker.publish("plain", b"soon", delay=DAY)
        clock.set(56 * 365 * DAY)  # NTP has answered
        broker.advance(1)
        assert ready(broker, "plain") == 2
        with pytest.raises(PenstockError):
            broker.publish("plain", b"never", delay=1e13)
