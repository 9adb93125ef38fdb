"""`penstock.faststream` as its users write it, run by `test_faststream_broker` where FastStream is; prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import chain
from typing import Any

from faststream import BaseMiddleware, FastStream  # type: ignore[import-not-found]
from faststream.middlewares import AckPolicy  # type: ignore[import-not-found]
from faststream.specification import AsyncAPI  # type: ignore[import-not-found]
from pydantic import BaseModel, ValidationError

from penstock.faststream import (
    PenstockBatchMessage,
    PenstockBroker,
    PenstockMessage,
    PenstockQueue,
    PenstockResponse,
    PenstockRouter,
    TestPenstockBroker,
)

COUNT = 20
said: dict[str, Any] = {}


class Order(BaseModel):
    """What comes."""

    id: int


class Counting(BaseMiddleware):  # type: ignore[misc]
    """Sees what goes in and out."""

    seen: list[str] = []  # noqa: RUF012

    async def on_receive(self) -> Any:
        self.seen.append("in")
        return await super().on_receive()

    async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
        self.seen.append(f"out {cmd.destination}")
        cmd.add_headers({"by": "middleware"})
        return await call_next(cmd)


async def until(holds: Any) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - of several threads and handlers
            await asyncio.sleep(0.01)


def made(url: str) -> tuple[PenstockBroker, dict[str, list[Any]]]:
    broker = PenstockBroker(url, middlewares=[Counting])
    got: dict[str, list[Any]] = {}

    def keep(name: str, what: Any) -> None:
        got.setdefault(name, []).append(what)

    @broker.subscriber(PenstockQueue("fs-orders", {"max_deliveries": 3}), title="orders")
    @broker.publisher("fs-bills")
    async def bill(order: Order) -> Any:
        keep("orders", order.id)
        return PenstockResponse({"bill": order.id}, headers={"kind": "bill"}, priority=3)

    @broker.subscriber("fs-bills")
    async def billed(body: dict[str, int], message: PenstockMessage) -> None:
        keep("bills", body["bill"])
        keep("headers", [message.headers["kind"], message.headers["by"]])

    @broker.subscriber("fs-batch", batch=True)
    async def together(numbers: list[int], message: PenstockBatchMessage) -> None:
        keep("batch", numbers)

    @broker.subscriber("fs-work", max_workers=4)
    async def concurrent(n: int) -> None:
        keep("running", n)
        await until(lambda: len(got["running"]) >= 4)

    @broker.subscriber("fs-again", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def again(text: str, message: PenstockMessage) -> None:
        keep("tries", message.raw_message.attempt)
        if len(got["tries"]) < 2:
            raise ValueError("not yet")

    @broker.subscriber("fs-filtered", filter="/n > 5")
    async def filtered(body: dict[str, int]) -> None:
        keep("filtered", body["n"])

    @broker.subscriber("^fs-late-[0-9]$")
    async def matched(text: str) -> None:
        keep("matched", text)

    router = PenstockRouter("fs-")

    @router.subscriber("double")
    async def double(n: int) -> int:
        return 2 * n

    broker.include_router(router)
    return broker, got


async def real(url: str) -> None:
    broker, got = made(url)
    app = FastStream(broker)
    await app.start()
    assert await broker.ping()
    for n in range(COUNT):
        await broker.publish(Order(id=n), "fs-orders")
    await broker.publish_batch(*range(10), topic="fs-batch")
    for n in range(4):
        await broker.publish(n, "fs-work")
    await broker.publish("x", "fs-again")
    for n in (1, 9):
        await broker.publish({"n": n}, "fs-filtered")
    answers = [await broker.request(n, "fs-double", timeout=10) for n in (21, 4)]
    said["answers"] = [await one.decode() for one in answers]
    await until(lambda: len(got.get("bills", [])) == COUNT and sum(map(len, got.get("batch", []))) == 10)
    await until(lambda: len(got.get("running", [])) == 4 and len(got.get("tries", [])) == 2 and "filtered" in got)
    try:
        await broker.request("no number", "fs-double", timeout=0.2)
    except TimeoutError as error:
        said["unanswered"] = str(error)
    own = broker.publisher("fs-late")
    await broker.client.declare("fs-late")
    await own.publish({"late": True})
    late = broker.subscriber("fs-late")
    await late.start()
    message = await late.get_one(timeout=5)
    said["late"] = await message.decode()
    await message.ack()
    await app.stop()
    said["got"] = {**got, "headers": got["headers"][0], "batch": sorted(chain(*got["batch"]))}
    said["running"] = sorted(said["got"].pop("running"))
    said["orders"] = sorted(said["got"].pop("orders"))
    said["bills"] = sorted(said["got"].pop("bills"))
    said["middleware"] = [Counting.seen.count("out fs-bills"), "in" in Counting.seen]
    document = AsyncAPI(broker, schema_version="3.0.0").to_specification().to_jsonable()
    said["asyncapi"] = {
        "protocol": next(iter(document["servers"].values()))["protocol"],
        "channels": sorted(channel["address"] for channel in document["channels"].values()),
    }


async def test_broker(url: str) -> None:
    broker, got = made(url)
    async with TestPenstockBroker(broker) as tested:
        await tested.publish(Order(id=1), "fs-orders")
        await tested.publish_batch(1, 2, topic="fs-batch")
        for n in (3, 9):
            await tested.publish({"n": n}, "fs-filtered")
        await tested.publish("one", "fs-late-1")
        answer = await tested.request(5, "fs-double")
        try:
            await tested.publish({"id": "x"}, "fs-orders")
            refused = False
        except ValidationError:
            refused = True
        said["tested"] = {"orders": got["orders"], "bills": got["bills"], "batch": got["batch"],
                          "filtered": got.get("filtered"), "matched": got.get("matched"),
                          "answer": await answer.decode(), "refused": refused}  # fmt: skip


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(test_broker("penstock://nowhere"), 30))
    if len(sys.argv) > 1:
        asyncio.run(asyncio.wait_for(real(sys.argv[1]), 60))
    print(json.dumps(said))
