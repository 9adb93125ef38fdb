"""User guide, "Startup and recovery", and RecoveryPoint of the reference: where a queue begins after a start."""

from __future__ import annotations

from datetime import UTC, datetime

from scenario import bodies, broker_of, waiting

TOPIC = {"name": "Work"}
QUEUE = {"name": "q", "underlying_topic": "Work"}


def test_what_was_not_acknowledged_is_there_again() -> None:
    with broker_of(QUEUE) as broker:
        for n in range(4):
            broker.publish("Work", f"{n}")
        held = broker.subscribe("q", max_backlog=3).take()
        held[0].ack()
        held[2].ack()
        for _ in range(2):
            broker.crash()
            broker.restart()
            assert waiting(broker, "q") == [b"1", b"3"]


def test_a_new_queue_begins_where_its_recovery_point_says() -> None:
    points = {"epoch": [b"old", b"new"], "now": [b"new"]}
    for point, expected in points.items():
        with broker_of(topic=[TOPIC]) as broker:
            broker.publish("Work", b"old")
            broker.restart({"topic": [TOPIC], "queue": [{**QUEUE, "recovery_point": point}]})
            broker.publish("Work", b"new")
            assert waiting(broker, "q") == expected, point


def test_a_new_queue_begins_at_a_bookmark() -> None:
    with broker_of(topic=[TOPIC]) as broker:
        marks = [broker.publish("Work", f"{n}") for n in range(4)]
        broker.restart({"topic": [TOPIC], "queue": [{**QUEUE, "recovery_point": marks[2]}]})
        assert waiting(broker, "q") == [b"2", b"3"]  # at it, while a replay begins behind it


def test_a_new_queue_begins_at_a_time() -> None:
    with broker_of(topic=[TOPIC]) as broker:
        broker.publish("Work", b"yesterday")
        broker.advance(86_400)
        today = broker.clock.wall() // 1_000_000
        broker.advance(1)
        broker.publish("Work", b"today")
        text = datetime.fromtimestamp(today, UTC).strftime("%Y%m%dT%H%M%SZ")
        broker.restart({"topic": [TOPIC], "queue": [{**QUEUE, "recovery_point": text}]})
        assert waiting(broker, "q") == [b"today"]


def test_a_point_that_has_not_changed_does_not_count_again() -> None:
    with broker_of(topic=[TOPIC]) as broker:
        broker.publish("Work", b"0")
        settings = {"topic": [TOPIC], "queue": [{**QUEUE, "recovery_point": "epoch"}]}
        broker.restart(settings)
        [message] = broker.subscribe("q").take()
        message.ack()
        broker.restart(settings)
        assert waiting(broker, "q") == []  # from where everything before is acknowledged


def test_a_point_that_has_changed_counts() -> None:
    with broker_of(topic=[TOPIC]) as broker:
        broker.publish("Work", b"0")
        broker.restart({"topic": [TOPIC], "queue": [{**QUEUE, "recovery_point": "now"}]})
        broker.publish("Work", b"1")
        assert waiting(broker, "q") == [b"1"]
        broker.restart({"topic": [TOPIC], "queue": [{**QUEUE, "recovery_point": "epoch"}]})
        assert waiting(broker, "q") == [b"0", b"1"]


def test_several_queues_recover_each_from_its_own_point() -> None:
    queues = [{"name": name, "underlying_topic": "Work"} for name in ("slow", "quick")]
    with broker_of(*queues) as broker:
        for n in range(3):
            broker.publish("Work", f"{n}")
        for message in broker.subscribe("quick", max_backlog=3).take()[:2]:
            message.ack()
        broker.crash()
        broker.restart()
        assert waiting(broker, "slow") == [b"0", b"1", b"2"]
        assert waiting(broker, "quick") == [b"2"]
        assert bodies(broker.subscribe("quick", max_backlog=3).take()) == [b"2"]
