"""remoulade: actors with priorities, one for later, one that fails until it is put aside."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter

import remoulade
from remoulade import Worker
from remoulade.brokers.rabbitmq import RabbitmqBroker

COUNT = 30


def main(url: str) -> None:
    broker = RabbitmqBroker(url=url, confirm_delivery=True, max_priority=10)
    remoulade.set_broker(broker)
    added, tries, late, over = list[int](), Counter[str](), list[float](), threading.Event()

    def look() -> None:
        if len(added) >= COUNT and tries["fails"] >= 3 and late:
            over.set()

    @remoulade.actor(queue_name="remoulade", priority=5)
    def add(one: int, other: int) -> None:
        added.append(one + other)
        look()

    @remoulade.actor(queue_name="remoulade", max_retries=2, min_backoff=50, max_backoff=100)
    def fails() -> None:
        tries["fails"] += 1
        look()
        raise ValueError("no")

    @remoulade.actor(queue_name="remoulade")
    def later() -> None:
        late.append(time.monotonic() - began)
        look()

    for actor in (add, fails, later):
        broker.declare_actor(actor)
    worker = Worker(broker, worker_threads=4, worker_timeout=100)
    worker.start()
    began = time.monotonic()
    later.send_with_options(delay=1500)
    for n in range(COUNT):
        add.send(n, n)
    fails.send()
    over.wait(30)
    broker.join("remoulade", timeout=30_000)
    worker.stop()
    print(json.dumps({"added": sorted(added), "tries": tries["fails"], "in time": 1.4 < late[0] < 10}))


if __name__ == "__main__":
    main(f"amqp://guest:guest@127.0.0.1:{sys.argv[1]}/")
