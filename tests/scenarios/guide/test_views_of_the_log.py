"""User guide, introduction, "Getting started", "Understanding queuing": what queue and log keep."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.testing import Broker
from scenario import bodies, broker_of, waiting

WORK: dict[str, Any] = {"name": "WorkToDo", "underlying_topic": "Work"}


def places(broker: Broker, queue: str = "WorkToDo") -> tuple[object, object, object]:
    """How many messages the queue tracks, how many of them wait, how many are leased."""
    stats = broker.stats(queue)
    return stats["queue_depth"], stats["ready"], stats["leased"]


def test_a_queue_that_comes_later_is_made_of_what_the_log_has() -> None:
    with broker_of(WORK) as broker:
        for n in range(3):
            broker.publish("Work", f"{n}")
        [message] = broker.subscribe("WorkToDo", max_backlog=1).take()
        message.ack()
        later = {"name": "Audit", "underlying_topic": "Work", "recovery_point": "epoch"}
        broker.restart({"queue": [WORK, later]})
        assert waiting(broker, "Audit") == [b"0", b"1", b"2"]
        assert waiting(broker, "WorkToDo") == [b"1", b"2"]


@pytest.mark.parametrize("queues", [1, 5])
def test_the_log_has_a_message_once_under_its_topic_whoever_shows_it(queues: int) -> None:
    body = random.Random(7).randbytes(10_000)  # nothing to compress
    with broker_of(*({"name": f"q{n}", "underlying_topic": "Work"} for n in range(queues))) as broker:
        broker.publish("Work", body)
        for n in range(queues):
            [message] = broker.subscribe(f"q{n}").take()
            assert (message.topic, message.body) == ("Work", body)
            assert message.ack()
        broker.advance(1)  # beyond `ack_sync`
        broker.restart()
        assert sum(content.count(body) for content in broker.disk.files().values()) == 1
        [replayed] = broker.subscribe("Work", bookmark="EPOCH").take()
        assert (replayed.topic, replayed.body) == ("Work", body)


def test_a_message_for_many_receivers_goes_to_all_who_subscribe_to_the_topic() -> None:
    with broker_of(WORK) as broker:
        readers = [broker.subscribe("Work", name=f"reader {n}") for n in range(3)]
        workers = [broker.subscribe("WorkToDo", name=f"worker {n}") for n in range(3)]
        broker.publish("Work", b"news")
        assert [bodies(reader.take()) for reader in readers] == [[b"news"]] * 3
        assert sorted(bodies(worker.take()) for worker in workers) == [[], [], [b"news"]]


def test_every_message_of_its_topic_is_in_the_queue_and_none_of_another() -> None:
    with broker_of({"name": "Jobs"}, WORK) as broker:
        for topic in ("Jobs", "Work", "Jobs2", "Job", "jobs", "Work", "Jobs"):
            broker.publish(topic, topic)
        assert waiting(broker, "Jobs") == [b"Jobs", b"Jobs"]  # of its own name: no `underlying_topic`
        assert waiting(broker, "WorkToDo") == [b"Work", b"Work"]


def test_a_delivered_message_is_marked_and_a_processed_one_is_tracked_no_longer() -> None:
    with broker_of(WORK) as broker:
        for n in range(3):
            broker.publish("Work", f"{n}")
        assert places(broker) == (3, 3, 0)
        first, second = broker.subscribe("WorkToDo", max_backlog=2).take()
        assert places(broker) == (3, 1, 2)
        assert [record.body for record in broker.sow("WorkToDo")] == [b"2"]  # the marked ones are not offered
        first.ack()
        assert places(broker) == (2, 0, 2)  # 2 has the place of 0
        second.ack()
        assert places(broker) == (1, 0, 1)
        assert broker.ack("WorkToDo", [first.bookmark]) == 0  # the queue does not know it any more


def test_the_next_message_goes_to_the_next_subscriber() -> None:
    with broker_of(WORK) as broker:
        workers = [broker.subscribe("WorkToDo", name=f"worker {n}") for n in range(3)]
        for n in range(3):
            broker.publish("Work", f"{n}")
            assert [bodies(worker.take()) for worker in workers] == [[b"%d" % n] if at == n else [] for at in range(3)]


def test_everything_that_happens_to_a_message_is_in_the_log() -> None:
    with broker_of({**WORK, "lease_period": "10s"}) as broker:
        mark = broker.publish("Work", b"job")
        worker = broker.subscribe("WorkToDo")
        worker.take()
        broker.advance(10)
        [again] = worker.take()
        again.ack()
        told = [(event.event, event.queue) for event in broker.story(mark)]
        assert told == [
            ("published", ""),
            ("leased", "WorkToDo"),
            ("returned", "WorkToDo"),
            ("leased", "WorkToDo"),
            ("settled", "WorkToDo"),
        ]
