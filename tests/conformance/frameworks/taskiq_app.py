"""taskiq over taskiq-aio-pika: tasks, one for later, one that fails and is tried again, and what has had its tries."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter

from aio_pika import ExchangeType
from taskiq import SimpleRetryMiddleware
from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue

COUNT = 30


async def main(url: str) -> None:
    exchange = Exchange(name="taskiq-tasks", type=ExchangeType.TOPIC)
    broker = AioPikaBroker(
        url, exchange=exchange, task_queues=[Queue(name="taskiq-tasks", max_priority=None)],
        dead_letter_queue=Queue(name="taskiq-dead"), delay_queue=Queue(name="taskiq-delay"), qos=10,
    ).with_middlewares(SimpleRetryMiddleware(default_retry_count=3))  # fmt: skip
    added, tries, late, over = list[int](), Counter[str](), list[float](), asyncio.Event()

    def look() -> None:
        if len(added) >= COUNT and tries["fails"] >= 3 and late:
            over.set()

    @broker.task
    async def add(one: int, other: int) -> None:
        added.append(one + other)
        look()

    @broker.task(retry_on_error=True, max_retries=3)
    async def fails() -> None:
        tries["fails"] += 1
        look()
        raise ValueError("no")

    @broker.task
    async def later() -> None:
        late.append(asyncio.get_running_loop().time() - began)
        look()

    broker.is_worker_process = True
    await broker.startup()
    receiver = asyncio.create_task(run_receiver_task(broker))
    began = asyncio.get_running_loop().time()
    await later.kicker().with_labels(delay=1.5).kiq()
    for n in range(COUNT):
        await add.kiq(n, n)
    await fails.kiq()
    await asyncio.wait_for(over.wait(), 30)
    receiver.cancel()
    await asyncio.gather(receiver, return_exceptions=True)
    await broker.shutdown()
    said = {"added": sorted(added), "tries": tries["fails"], "in time": 1.4 < late[0] < 10}
    print(json.dumps(said))


if __name__ == "__main__":
    asyncio.run(main(f"amqp://guest:guest@127.0.0.1:{sys.argv[1]}/"))
