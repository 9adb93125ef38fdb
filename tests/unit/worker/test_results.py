"""What functions come to is kept for whoever submitted their messages: done, failed for good, or not there yet."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import pytest

import penstock
from penstock.errors import InvalidArgument, WorkFailed
from penstock.testing import Broker


@dataclass
class Order:
    """A body."""

    id: int
    total: float = 0.0


def broker() -> Broker:
    dead = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    return Broker({"queue": [
        {"name": "q", "max_deliveries": 2, **dead}, {"name": "r", "retry": {"initial": "1ms", "attempts": 2}, **dead},
        {"name": "out"}, {"name": "dead"},
    ]})  # fmt: skip


def billing(**options: object) -> penstock.App:
    app = penstock.App(results="results", **options)  # type: ignore[arg-type]

    @app.worker("q", publish="out")
    def bill(order: Order) -> Order:
        if order.total < 0:
            raise ValueError("less than nothing")
        return Order(order.id, order.total * 2)

    return app


def test_a_result_is_waited_for_and_looked_up() -> None:
    with broker() as server, penstock.connect(server.flight_url) as client:
        task = client.submit("q", {"id": 1, "total": 4}, headers={"h": "x"})
        assert task.record() is None
        with pytest.raises(
            TimeoutError, match=f"no result of task {task.id} within 0.1s: there is none in topic 'results'"
        ):
            task.get(timeout="0.1s")
        billing().run(url=server.flight_url, burst=True)
        assert task.get() == {"id": 1, "total": 8.0}
        assert client.task(task.id).record() == {"id": task.id, "state": "done", "value": {"id": 1, "total": 8.0}}
        assert [one.body for one in server.sow("out")] == [b'{"id":1,"total":8.0}']
        assert client.peek("out")[0].headers == {}
        named = client.submit("q", {"id": 2}, message_id="it's \\ mine")
        client.publish("q", {"id": 3})  # nobody wants its result
        billing().run(url=server.flight_url, burst=True)
        assert named.id == "it's \\ mine"
        assert named.get()["id"] == 2
        assert len(list(client.sow("results"))) == 2


def test_who_waits_is_told_at_once() -> None:
    app = billing()
    with broker() as server, penstock.connect(server.flight_url) as client:
        app.run(url=server.flight_url, burst=True)  # the topic is there
        task, got = client.submit("q", {"id": 1, "total": 4}), list[object]()
        waiting = threading.Thread(target=lambda: got.append(task.get(timeout="20s")))
        waiting.start()
        app.run(url=server.flight_url, burst=True)
        waiting.join(20)
        assert got == [{"id": 1, "total": 8.0}]


@pytest.mark.parametrize("publish", ["nowhere", None])
def test_what_comes_to_something_that_cannot_be_published_has_failed(publish: str | None) -> None:
    app = penstock.App(results="results")

    @app.worker("q", publish=publish)
    def work(body: bytes) -> object:
        return {"of": object()} if publish is None else 1

    with broker() as server, penstock.connect(server.flight_url) as client:
        task = client.submit("q", b"x")
        app.run(url=server.flight_url, burst=True)
        with pytest.raises(WorkFailed, match="no text of its own" if publish is None else "for 'nowhere'"):
            task.get(timeout="5s")
        assert server.stats("dead")["ready"] == 1


def test_many_coroutines_wait_for_results_and_hold_up_no_other_call() -> None:
    async def work(url: str) -> list[object]:
        async with penstock.aio.connect(url) as client:
            tasks = [await client.submit("q", {"id": number, "total": 1}) for number in range(3 * 8)]
            waiting = [asyncio.create_task(task.get(timeout="60s")) for task in tasks]
            left = asyncio.create_task((await client.submit("r", 1)).get(timeout="1h"))
            with pytest.raises(TimeoutError, match="within 0.1s"):
                await (await client.task("none")).get(timeout="0.1s")
            assert (await client.queue("q"))["ready"] == len(tasks)
            left.cancel()
            await asyncio.to_thread(app.run, url=url, burst=True)
            return await asyncio.gather(*waiting)

    app = billing()
    with broker() as server:
        app.run(url=server.flight_url, burst=True)  # the topic is there
        values = asyncio.run(asyncio.wait_for(work(server.flight_url), 60))
    assert values == [{"id": number, "total": 2.0} for number in range(len(values))]


@pytest.mark.parametrize("queue", ["q", "r"])
def test_a_failure_counts_when_it_is_the_last(queue: str) -> None:
    app, tries = penstock.App(results="results"), list[int]()

    @app.worker(queue)
    def fail(order: Order, message: penstock.Message) -> None:
        tries.append(message.attempt)
        raise ValueError("no")

    with broker() as server, penstock.connect(server.flight_url) as client:
        task = client.submit(queue, {"id": 1})
        while len(tries) < 2:
            assert task.record() is None
            app.run(url=server.flight_url, burst=True)
            server.advance(1)
        with pytest.raises(WorkFailed, match="ValueError: no"):
            task.get()
        assert tries == [1, 2]
        assert [one.body for one in server.sow("dead")] == [b'{"id":1}']


@pytest.mark.parametrize("queue", ["q", "r"])
async def test_who_is_interrupted_at_the_last_delivery_has_failed(queue: str) -> None:
    """What is given back counts for `max_deliveries`: the message was a dead letter, and nobody told who waited."""
    app, at_work = penstock.App(grace="1us", results="results"), asyncio.Event()

    @app.worker(queue)
    async def work(order: Order) -> None:
        at_work.set()
        await asyncio.sleep(3600)

    with broker() as server, penstock.connect(server.flight_url) as client:
        task = await asyncio.to_thread(client.submit, queue, {"id": 1})
        for number in range(2):
            assert await asyncio.to_thread(task.record) is None, number
            serving = asyncio.create_task(app.serve(url=server.flight_url))
            await asyncio.wait_for(at_work.wait(), 20)
            at_work.clear()
            app.stop()
            await serving
        dead = [one.body for one in server.sow("dead")]
        if queue == "r":
            assert (dead, await asyncio.to_thread(task.record)) == ([], None)
            return
        assert dead == [b'{"id":1}']
        with pytest.raises(WorkFailed, match="interrupted at its last delivery, for its worker stopped"):
            await asyncio.to_thread(task.get, "5s")


def test_a_body_that_does_not_fit_has_failed() -> None:
    with broker() as server, penstock.connect(server.flight_url) as client:
        wrong = client.submit("q", {"id": "x"})
        billing().run(url=server.flight_url, burst=True)
        with pytest.raises(WorkFailed, match="the body is no Order: id"):
            wrong.get()
        assert [one.body for one in server.sow("dead")] == [b'{"id":"x"}']
    with pytest.raises(InvalidArgument, match="results: name a topic"):
        penstock.App(results="")


def test_results_expire() -> None:
    with broker() as server, penstock.connect(server.flight_url) as client:
        task = client.submit("q", {"id": 1, "total": 4})
        billing(results_for="1m").run(url=server.flight_url, burst=True)
        assert task.get() == {"id": 1, "total": 8.0}
        server.advance(61)
        assert task.record() is None


async def test_from_a_coroutine() -> None:
    with broker() as server:
        async with penstock.aio.connect(server.flight_url) as client:
            task = await client.submit("q", {"id": 1, "total": 4})
            await billing().serve(url=server.flight_url, burst=True)
            assert await task.get(timeout="30s") == {"id": 1, "total": 8.0}
            assert await (await client.task(task.id)).record() is not None
