"""The asyncio client against a real server."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse

pytestmark = pytest.mark.conformance


async def test_publish_consume_and_look(house: FlightHouse) -> None:
    async with penstock.aio.connect(house.url) as client:
        await client.declare("q", lease_period="30s")
        receipt = await client.publish("q", {"n": 0})
        assert receipt.outcome == "stored"
        await client.publish_table("q", pa.table({"n": [1, 2]}))
        seen: list[int] = []
        async for message in client.consume("q"):
            async with message:
                seen.append(message.json()["n"])
            if len(seen) == 3:
                break
        assert seen == [0, 1, 2]
        assert [m.json()["n"] async for m in client.replay("q")] == [0, 1, 2]
        assert (await client.queue("q"))["consumers"] in (0, 1)
        await client.alter("q", max_deliveries=9)
        assert (await client.action("sink", query="x"))["batch"] is None


async def test_settling_is_awaited(house: FlightHouse) -> None:
    client = await penstock.aio.connect(house.url)
    await client.declare("q")
    await client.publish_table("q", pa.table({"body": ["a", "b", "c"]}))
    async with client.consume("q") as consumer:
        got = {m.body: m for m in [await consumer.take(60) for _ in range(3)] if m is not None}
        await got[b"a"].ack()
        await got[b"b"].retry()
        with pytest.raises(ZeroDivisionError):
            async with got[b"c"]:
                _ = 1 / 0
        assert got[b"c"].outcome == "retry"
        again = [m.body for m in [await consumer.take(60) for _ in range(2)] if m is not None]
        assert sorted(again) == [b"b", b"c"]
    assert (await client.queue("q"))["acked"] == 1
    await client.close()


async def test_what_comes_for_a_cancelled_taker_is_the_next_ones(house: FlightHouse) -> None:
    async with penstock.aio.connect(house.url) as client:
        await client.declare("q")
        async with client.consume("q", backlog=1) as consumer, client.replay("q", "EPOCH", follow=True) as replay:
            for stream in (consumer, replay):
                for _ in range(3):  # as many as there are threads would leave none for acks
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(stream.take(), 0.01)
            assert await consumer.take(0.01) is None
            await client.publish_table("q", pa.table({"body": ["a", "b"]}))
            for body in (b"a", b"b"):
                message, told = await consumer.take(60), await replay.take()
                assert message is not None
                assert told is not None
                assert (message.body, told.body) == (body, body)
                await message.ack()
        assert (await client.queue("q"))["acked"] == 2


async def test_a_settle_goes_through_though_who_waits_for_it_is_cancelled(house: FlightHouse) -> None:
    """Else the message would stay with a consumer that has nothing to do with it any more."""
    async with penstock.aio.connect(house.url) as client:
        await client.declare("cut-short")
        await client.publish_table("cut-short", pa.table({"body": [str(number) for number in range(50)]}))

        async def work(message: penstock.aio.Message) -> None:
            async with message:
                pass

        async with client.consume("cut-short", backlog=50) as consumer:
            messages = [await consumer.take(30) for _ in range(50)]
            held = [one for one in messages if one is not None]
            tasks = [asyncio.create_task(work(one)) for one in held]
            await asyncio.sleep(0)  # each waits for its ack
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            async with asyncio.timeout(30):
                while any(one.outcome is None for one in held):  # noqa: ASYNC110 - threads of ours settle them
                    await asyncio.sleep(0.005)
            await consumer.flush()
            queue = await client.queue("cut-short")
            assert (queue["ready"], queue["leased"], len(held)) == (0, 0, 50)


async def test_too_late_is_told(house: FlightHouse) -> None:
    async with penstock.aio.connect(house.url) as client:
        await client.declare("q")
        await client.publish("q", "a")
        consumer = client.consume("q")
        message = await consumer.take(60)
        assert message is not None
        await consumer.close()
        with pytest.raises(penstock.Unavailable, match=r"end of its loop .*; the server has given the message back"):
            await message.ack()
        assert await consumer.take() is None
        never = client.consume("q")
        await never.close()
        assert await never.take() is None
        with pytest.raises(penstock.Unavailable, match="closed before it was opened"):
            await never.effective_backlog()


async def test_many_take_from_one_consumer(house: FlightHouse) -> None:
    async with penstock.aio.connect(house.url) as client:
        await client.declare("q")
        consumer = client.consume("q", backlog=1)
        got = list[bytes]()

        async def work() -> None:
            while (message := await consumer.take(60)) is not None:
                got.append(message.body)
                await message.ack()
                if len(got) == 20:
                    await consumer.close()

        workers = [asyncio.create_task(work()) for _ in range(5)]
        await client.publish_table("q", pa.table({"body": [f"{n:02}" for n in range(20)]}))
        await asyncio.wait_for(asyncio.gather(*workers), 30)
        assert got == [f"{n:02}".encode() for n in range(20)]
        found = await client.queue("q")
        assert (found["acked"], found["consumers"]) == (20, 0)


async def test_many_at_once(house: FlightHouse) -> None:
    async with penstock.aio.connect(house.url) as client:
        await client.declare("q")
        receipts = await asyncio.gather(*(client.publish("q", str(n)) for n in range(50)))
        assert len({receipt.lsn for receipt in receipts}) == 50


async def test_errors_are_ours(house: FlightHouse) -> None:
    async with penstock.aio.connect(house.url) as client:
        with pytest.raises(penstock.NotFound):
            await client.queue("none")
        with pytest.raises(penstock.NotFound):
            async for _ in client.consume("none"):
                pass
    with pytest.raises(penstock.Unavailable):
        await penstock.aio.connect("penstock://127.0.0.1:1", timeout=2)
