"""FastStream as its users write it, run by `test_frameworks` in an environment of its own; prints what came as JSON."""

from __future__ import annotations

import asyncio
import json
import sys

from faststream import FastStream
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitMessage, RabbitQueue

COUNT = 50


async def main(url: str) -> None:
    broker = RabbitBroker(url)
    app = FastStream(broker)
    orders = RabbitExchange("fs-orders", type=ExchangeType.TOPIC, durable=True)
    got, passed_on, tries = list[int](), list[int](), list[bool]()
    done, twice = asyncio.Event(), asyncio.Event()

    @broker.subscriber(RabbitQueue("fs-new", durable=True, routing_key="orders.*"), orders)
    @broker.publisher("fs-done")
    async def handle(n: int) -> int:
        got.append(n)
        return n * 2

    @broker.subscriber("fs-done")
    async def passed(n: int) -> None:
        passed_on.append(n)
        if len(passed_on) == COUNT:
            done.set()

    @broker.subscriber("fs-again")
    async def again(body: str, message: RabbitMessage) -> None:
        tries.append(bool(message.raw_message.redelivered))
        if len(tries) > 1:
            await message.ack()
            twice.set()
        else:
            await message.nack()

    @broker.subscriber("fs-double")
    async def double(n: int) -> int:
        return 2 * n

    await app.start()
    for n in range(COUNT):
        await broker.publish(n, exchange=orders, routing_key="orders.new", persist=True)
    await broker.publish("x", queue="fs-again")
    answer = await broker.request(21, queue="fs-double", timeout=10)  # over direct reply-to
    await asyncio.wait_for(done.wait(), 30)
    await asyncio.wait_for(twice.wait(), 30)
    await app.stop()
    said = {"got": sorted(got), "passed_on": sorted(passed_on), "tries": tries, "answer": await answer.decode()}
    print(json.dumps(said))


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(f"amqp://guest:guest@127.0.0.1:{sys.argv[1]}/"), 60))
