"""User guide, "Handling unprocessed messages": the file of the example, `Jobs` and `FailedJobs`, limit by limit."""

from __future__ import annotations

from pathlib import Path

from penstock.testing import Broker
from scenario import Worker, amqp, bodies, get, publish, waiting

FILE = Path(__file__).resolve().parents[1] / "amps" / "dead-letters.xml"


def test_the_tenth_delivery_of_a_job_is_its_last() -> None:
    with Broker(FILE) as broker:
        broker.publish("Jobs", b'{"id": 1}')
        for n in range(10):
            worker = broker.subscribe("Jobs", name=f"worker {n}")
            assert bodies(worker.take()) == [b'{"id": 1}']
            broker.disconnect(f"worker {n}")  # each of them crashes
        assert waiting(broker, "Jobs") == []
        assert waiting(broker, "FailedJobs") == [b'{ "message": {"id": 1}, "reason": "max_deliveries" }']


def test_a_job_that_cannot_be_read_is_refused_at_once() -> None:
    with Broker(FILE) as broker:
        broker.publish("Jobs", b'{"id": 2}')
        [job] = broker.subscribe("Jobs").take()
        job.expire()
        assert waiting(broker, "FailedJobs") == [b'{ "message": {"id": 2}, "reason": "forced_expire" }']


def test_a_job_that_is_done_is_no_failure() -> None:
    with Broker(FILE) as broker:
        broker.publish("Jobs", b'{"id": 3}')
        worker = broker.subscribe("Jobs")
        [job] = worker.take()
        job.cancel()
        [job] = worker.take()
        job.ack()
        assert waiting(broker, "FailedJobs") == []


def test_the_tenth_delivery_over_amqp() -> None:
    with Broker(FILE) as broker:
        with amqp(broker) as channel:
            publish(channel, "Jobs", '{"id": 1}')
        for n in range(10):
            with amqp(broker) as channel:  # its connection goes without an ack
                [(method, body)] = Worker(channel, "Jobs").take(1)
                assert (method.redelivered, body) == (n > 0, b'{"id": 1}')
        with amqp(broker) as channel:
            assert get(channel, "Jobs") is None
            [(_, failed)] = Worker(channel, "FailedJobs").take(1)
            assert failed == b'{ "message": {"id": 1}, "reason": "max_deliveries" }'
