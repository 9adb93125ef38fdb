"""`penstock.faststream` as its users write it, run by `test_faststream_broker` where FastStream is; prints JSON."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from itertools import chain
from typing import Any

from faststream import BaseMiddleware, FastStream  # type: ignore[import-not-found]
from faststream.exceptions import SetupError  # type: ignore[import-not-found]
from faststream.middlewares import AckPolicy  # type: ignore[import-not-found]
from faststream.specification import AsyncAPI  # type: ignore[import-not-found]
from pydantic import BaseModel, ValidationError

from penstock.errors import ExpressionError, InvalidArgument
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


class Load(BaseModel):
    """What may be none of JSON's numbers."""

    load: float


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
    answers = [await broker.request(n, "fs-double", timeout=60) for n in (21, 4)]
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
    message = await late.get_one(timeout=60)
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


async def endings(url: str) -> None:
    """Handlers that end in odd ways: their subscribers go on, and nothing stays with them."""
    broker = PenstockBroker(url, logger=None)
    app = FastStream(broker, logger=None)
    got: dict[str, list[str]] = {}
    odd = {"cancelled": asyncio.CancelledError(), "group": BaseExceptionGroup("odd", [asyncio.CancelledError()])}
    workers = {"one": 1, "many": 3}

    def subscribe(kind: str, many: str) -> None:
        @broker.subscriber(f"fs-{kind}-{many}", max_workers=workers[many])
        async def work(text: str, message: PenstockMessage) -> None:
            got.setdefault(f"{kind}-{many}", []).append(text)
            if text == "odd" and message.raw_message.attempt == 1:
                if kind == "raw":
                    await message.raw_message.ack(publish=[("fs-group-one", b"with it")])
                    return
                raise odd[kind]

    for kind in (*odd, "raw"):
        for many in workers:
            subscribe(kind, many)

    @broker.subscriber("fs-exit")
    async def leaving(text: str) -> None:
        raise SystemExit

    running = asyncio.create_task(app.run())
    async with asyncio.timeout(30):
        while not broker.running:  # noqa: ASYNC110 - FastStream says so nowhere else
            await asyncio.sleep(0.01)
        names = [f"{kind}-{many}" for kind in (*odd, "raw") for many in workers]
        for name in names:
            for text in ("first", "odd", "last"):
                await broker.publish(text, f"fs-{name}")
        await until(lambda: all("last" in got.get(name, ()) for name in names))
        await until(lambda: all(got[f"cancelled-{many}"].count("odd") == 2 for many in workers))
        await until(lambda: got["group-one"].count("with it") == 2)
        said["left"] = names
        while said["left"]:  # what a handler has begun with is settled a moment later
            told = {name: await broker.client.queue(f"fs-{name}") for name in names}
            said["left"] = [name for name, one in told.items() if one["ready"] or one["leased"]]
        await broker.publish("leave", "fs-exit")
        await running


async def together(url: str) -> None:
    """What is said of a batch is said of its messages, and what is refused of it is an error."""
    broker = PenstockBroker(url, logger=None)
    handed: list[Any] = []

    @broker.subscriber("fs-several")
    @broker.publisher("fs-full", batch=True)
    async def several(text: str) -> list[str]:
        handed.append(text)
        return ["a", "b", "c"]

    async with broker:
        await broker.client.declare("fs-said", max_priority=9)
        await broker.client.declare("fs-full", max_length=1, overflow="reject-publish")
        await broker.client.declare("fs-several", dead_letter_exchange="", dead_letter_routing_key="fs-dead")
        await broker.client.declare("fs-dead")
        publisher = broker.publisher("fs-said", batch=True, priority=7, expiration="1h")
        await publisher.publish(["a", "b"])
        said["priorities"] = [one.priority for one in await broker.client.peek("fs-said")]
        try:
            await publisher.publish(["a"], colour="red")
        except TypeError as error:
            said["option"] = "colour" in str(error)
        await broker.start()
        await broker.publish("x", "fs-several")
        await until(lambda: handed)
        dead = broker.client.consume("fs-dead", timeout=30)
        said["dead"] = await anext(one.text() async for one in dead)


async def as_held(url: str) -> None:
    """What the test broker gives is settled as what the server gives."""
    broker = PenstockBroker(url, logger=None)
    seen: list[Any] = []

    @broker.subscriber("fs-pairs", batch=True)
    async def pairs(texts: list[str], message: PenstockBatchMessage) -> None:
        batch = message.raw_message
        await batch.extend("1m")
        await batch.release([0])
        seen.extend([batch.arrow.num_rows, batch.unsettled])

    @broker.subscriber("fs-with")
    async def with_it(text: str, message: PenstockMessage) -> None:
        await message.raw_message.ack(publish=[("fs-after", text)])
        seen.append(message.raw_message.outcome)

    @broker.subscriber("fs-after")
    async def after(text: str) -> None:
        seen.append(text)

    async with TestPenstockBroker(broker) as tested:
        await tested.publish_batch("a", "b", topic="fs-pairs")
        await tested.publish("x", "fs-with")
        try:
            await tested.publish("x", "fs-after", delay="soon")
        except InvalidArgument as error:
            seen.append(str(error).split(":", maxsplit=1)[0])
    said["as held"] = seen


async def refused(call: Any) -> str:
    """The words of what a call raises."""
    try:
        result = call()
        if asyncio.iscoroutine(result):
            await result
    except (ExpressionError, InvalidArgument, SetupError) as error:
        return str(error)
    return "taken"


async def asked(broker: PenstockBroker) -> list[str]:
    """What one publishes that nobody takes."""
    body: dict[str, Any] = {"topic": "fs-asked"}
    calls: list[dict[str, Any]] = [
        {"topic": None}, {"priority": 999}, {"priority": -1}, {"priority": "high"}, {"correlation_id": "x" * 300},
        {"headers": {"x" * 300: 1}}, {"mandatory": "no"}, {"message": b"x" * (17 << 20)},
        {"message": {"load": float("nan")}}, {"message": Load(load=float("-inf"))},
        {"message": "\ud800"},
    ]  # fmt: skip
    return [await refused(lambda one=one: broker.publish(**{"message": "x", **body, **one})) for one in calls]


def declared(url: str, *names: Any, **options: Any) -> PenstockBroker:
    broker = PenstockBroker(url, logger=None)
    broker.subscriber(*names, **options)
    return broker


async def wrong(url: str) -> None:
    """The test broker refuses what the server refuses, in its words; what is declared is looked at where it is."""
    said["declared"] = [
        await refused(lambda one=one, options=options: declared(url, one, **options))
        for one, options in [
            (None, {}), (5, {}), ("q", {"batch": "yes"}), ("q", {"backlog": "x"}), ("q", {"max_workers": "x"}),
            ("q", {"filter": 5}), ("q", {"ack_policy": "x"}),
        ]
    ]  # fmt: skip
    said["queues"] = [await refused(lambda one=one: PenstockQueue(*one)) for one in [(None,), ("",), ("q", 5)]]
    broker = PenstockBroker(url, logger=None)

    @broker.subscriber("fs-asked")
    async def heard(text: str) -> None:
        """Whoever hears it."""

    async with TestPenstockBroker(broker) as tested:
        said["asked of the double"] = await asked(tested)


async def wrong_there(url: str) -> None:
    """The same of the server; and of a queue that is there with other settings."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.Logger("told")  # noqa: LOG001 - of this test alone
    logger.addHandler(handler)
    async with PenstockBroker(url, logger=None) as broker:
        await broker.client.declare("fs-asked", max_deliveries=2)
        said["asked"] = await asked(broker)
    told = logging.getLogger("penstock.client")
    told.addHandler(handler)
    for settings in ({"max_deliveries": 2}, {"max_deliveries": 5}):
        broker = PenstockBroker(url, logger=logger)
        broker.subscriber(PenstockQueue("fs-asked", settings))
        async with broker:
            await broker.start()
    broker = declared(url, "fs-asked", filter="/a =")
    said["filter"] = "ends where" in await refused(broker.start)
    await broker.stop()
    del broker
    gc.collect()
    said["told"] = [one for one in lines if "fs-asked" in one]


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(wrong("penstock://nowhere"), 30))
    asyncio.run(asyncio.wait_for(as_held("penstock://nowhere"), 30))
    asyncio.run(asyncio.wait_for(test_broker("penstock://nowhere"), 30))
    if len(sys.argv) > 1:
        for part in (real, endings, together, wrong_there):
            asyncio.run(asyncio.wait_for(part(sys.argv[1]), 60))
    print(json.dumps(said))
