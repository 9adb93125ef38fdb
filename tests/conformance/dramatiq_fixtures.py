"""What dramatiq's own tests ask for and its source archive lacks: fixtures, and the names of who logs in.

Copied beside these tests by `test_suites`, which stay as they came.  They know port 5672 alone; pika is told another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import dramatiq  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
import pika
import pytest
from dramatiq.brokers.rabbitmq import (  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
    RabbitmqBroker,
)

RABBITMQ_USERNAME = RABBITMQ_PASSWORD = "guest"
RABBITMQ_CREDENTIALS = pika.PlainCredentials(RABBITMQ_USERNAME, RABBITMQ_PASSWORD)

# the suite asks for a mark of this name: here nothing is skipped, so a server that is not there fails its tests
skip_unless_rabbit_mq = pytest.mark.skipif(False, reason="it is there")

pika.connection.Parameters.DEFAULT_PORT = int(os.environ.get("RABBITMQ_PORT", "5672"))


@pytest.fixture
def rabbitmq_broker() -> Iterator[Any]:
    broker = RabbitmqBroker(host="127.0.0.1", max_priority=10, credentials=RABBITMQ_CREDENTIALS)
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture
def rabbitmq_worker(rabbitmq_broker: Any) -> Iterator[Any]:
    worker = dramatiq.Worker(rabbitmq_broker, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()
