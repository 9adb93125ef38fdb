"""An app at work on a broker: outcomes, leases, timeouts, results, stop, and a server that goes away."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated

import pytest

import penstock
from penstock.errors import ExpressionError, InvalidArgument, NotFound
from penstock.testing import Broker
from penstock.worker.running import Held
from penstock.worker.worker import Counts

PATIENCE_S = 20


@dataclass
class Order:
    """A body."""

    id: int


def broker(**settings: object) -> Broker:
    return Broker({"queue": [{"name": "q", "dead_letter_exchange": "", "dead_letter_routing_key": "dead", **settings},
                             {"name": "dead"}, {"name": "out"}]})  # fmt: skip


def run(app: penstock.App, server: Broker) -> Counts:
    return next(iter(app.run(url=server.flight_url, burst=True).values()))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  the broker has no event for it
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("way", ["worker", "result", "block", "batch"])
def test_a_failure_whose_text_is_no_utf8_is_told_and_takes_nothing_else_along(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that quotes a file's name which `os.fsdecode` made of other bytes."""
    caplog.set_level(logging.CRITICAL, "penstock")  # what is kept of the log goes to another process, as UTF-8
    app = penstock.App()

    @app.worker("q", publish="out" if way == "result" else None)
    def one(body: bytes) -> str:
        if body == b"1" and way == "worker":
            raise ValueError("a\udcff")
        return "a\udcff" if body == b"1" else "fine"

    with broker(max_deliveries=1) as server:
        bookmarks = [server.publish("q", b"%d" % number) for number in range(3)]
        if way in ("worker", "result"):
            run(app, server)
        else:
            with penstock.connect(server.flight_url) as client, client.consume("q", backlog=1) as consumer:
                for _ in range(3):
                    message = consumer.take(PATIENCE_S)
                    assert message is not None
                    with suppress(ValueError), consumer.batch_of(message) if way == "batch" else message:
                        if message.body == b"1":
                            raise ValueError("a\udcff")
        stats = server.stats("q")
        assert (stats["acked"], stats["ready"], stats["leased"]) == (2, 0, 0)
        told = [str(text) for event in server.story(bookmarks[1]) for text in event.details.values()]
        assert any("a\\udcff" in text for text in told), told


def test_a_function_of_two_queues_counts_the_messages_of_both() -> None:
    app = penstock.App()

    @app.worker("q")
    @app.worker("out")
    def both(body: bytes) -> None:
        pass

    with broker() as server:
        for queue in ("q", "q", "out"):
            server.publish(queue, b"")
        counts = run(app, server)
        assert (counts.done, counts.connections) == (3, 2)


def test_messages_are_worked_on_and_acknowledged_by_coroutines_and_threads() -> None:
    app, seen = penstock.App(), list[object]()

    @app.worker("q", concurrency=3)
    async def one(order: Order, message: penstock.Message) -> None:
        seen.append((order.id, message.attempt))

    @app.worker("out")
    def other(body: str) -> None:
        seen.append((body, threading.current_thread() is threading.main_thread()))

    with broker() as server:
        for number in range(5):
            server.publish("q", b'{"id": %d}' % number)
        server.publish("out", b"text")
        counts = app.run(url=server.flight_url, burst=True)
        assert sorted(seen, key=str) == sorted([*((number, 1) for number in range(5)), ("text", False)], key=str)
        assert [one.done for one in counts.values()] == [5, 1]
        assert server.stats("q")["acked"] == 5
        assert server.stats("q")["leased"] == server.stats("q")["ready"] == 0
    assert inspect.iscoroutinefunction(one)  # it is still the function


def test_a_coroutine_that_a_plain_function_gives_back_is_run_and_a_generator_is_a_failure() -> None:
    seen = list[object]()

    async def work(body: bytes) -> bytes:
        await asyncio.sleep(0)
        seen.append(body)
        return body

    def logged(function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def call(*given: object) -> object:
            return function(*given)

        return call

    app = penstock.App()
    app.worker("q", publish="out")(logged(work))
    with broker() as server:
        server.publish("q", b"1")
        assert run(app, server).done == 1
        assert [one.body for one in server.sow("out")] == [b"1"]
    assert seen == [b"1"]

    app = penstock.App()

    @app.worker("q")
    def lazy(body: bytes) -> object:
        return (seen.append(body) for _ in range(1))

    with broker(max_deliveries=1) as server, penstock.connect(server.flight_url) as client:
        server.publish("q", b"2")
        run(app, server)
        [letter] = client.peek("dead")
        assert letter.reason is not None
        assert "lazy gave back a generator, which nobody runs" in letter.reason


def test_a_coroutine_whose_own_task_is_cancelled_has_failed() -> None:
    app = penstock.App()

    @app.worker("q")
    async def work(body: bytes) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(PATIENCE_S))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    with broker(max_deliveries=2) as server, penstock.connect(server.flight_url) as client:
        server.publish("q", b"1")
        counts = run(app, server)
        assert (counts.retried, counts.released) == (2, 0)
        assert [letter.reason for letter in client.peek("dead")] == ["CancelledError"]


class Textless(Exception):
    """One that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Foreign(BaseException):
    """As some libraries have it."""


@dataclass
class Fussy:
    """A body whose own code fails."""

    id: int

    def __post_init__(self) -> None:
        raise LookupError("not found")


ODD = {
    "SystemExit: 3": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "StopIteration": StopIteration(1),
    "GeneratorExit": GeneratorExit(),
    "BaseExceptionGroup: odd (1 sub-exception)": BaseExceptionGroup("odd", [KeyboardInterrupt()]),
    "Foreign: 1": Foreign(1),
    "Textless": Textless(),
}
"""What functions raise that is no usual exception, by a part of what is told of it."""


def odd(message: penstock.Message) -> None:
    if message.body != b"fine":
        raise ODD[message.text()]


@pytest.mark.parametrize("way", ["thread", "coroutine", "dependency"])
def test_whatever_a_function_raises_is_a_failure_and_the_worker_goes_on(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")  # what is kept of the log goes to another process
    app, done = penstock.App(), list[bytes]()

    if way == "coroutine":

        @app.worker("q")
        async def one(body: bytes, message: penstock.aio.Message) -> None:
            odd(message.blocking)
            done.append(body)

    elif way == "dependency":

        @app.worker("q")
        def other(body: bytes, _: Annotated[None, penstock.Depends(odd)]) -> None:
            done.append(body)

    else:

        @app.worker("q")
        def third(body: bytes, message: penstock.Message) -> None:
            odd(message)
            done.append(body)

    with broker(max_deliveries=1) as server, penstock.connect(server.flight_url) as client:
        for name in [*ODD, "fine"]:
            server.publish("q", name.encode())
        counts = run(app, server)
        assert (done, counts.done, counts.retried, counts.lost) == ([b"fine"], 1, len(ODD), 0)
        stats = server.stats("q")
        assert (stats["ready"], stats["leased"]) == (0, 0)
        for letter in client.peek("dead"):
            assert letter.text() in (letter.reason or "")


def test_code_of_a_body_that_fails_is_a_failure_of_its_message() -> None:
    app = penstock.App()

    @app.worker("q")
    def one(body: Fussy) -> None: ...

    with broker(max_deliveries=1) as server, penstock.connect(server.flight_url) as client:
        server.publish("q", b'{"id": 1}')
        assert run(app, server).retried == 1
        [letter] = client.peek("dead")
        assert "LookupError: not found" in (letter.reason or "")


def test_what_goes_on_failing_waits_longer_and_longer() -> None:
    app, tries = penstock.App(), list[int]()

    @app.worker("q")
    def fail(message: penstock.Message) -> None:
        tries.append(message.attempt)
        raise ValueError("always")

    with broker() as server:
        server.publish("q", b"{}")
        run(app, server)
        assert tries == [1, 2, 3, 4, 5, 6]
        assert server.stats("q")["delayed"] == 1
        for seconds, more in ((0.09, []), (0.02, [7]), (0.19, []), (0.02, [8]), (60, [9]), (60, [10])):
            server.advance(seconds)
            tries.clear()
            run(app, server)
            assert tries == more


def test_an_exception_is_a_retry_and_what_does_not_fit_a_dead_letter() -> None:
    app, tries = penstock.App(), list[int]()

    @app.worker("q")
    def fails_once(order: Order, message: penstock.Message) -> None:
        tries.append(message.attempt)
        if message.attempt == 1:
            raise RuntimeError("no connection to the shop")

    with broker() as server:
        mark = server.publish("q", b'{"id": 1}')
        server.publish("q", b"not an order")
        counts = run(app, server)
        assert (counts.done, counts.retried, counts.rejected, tries) == (1, 1, 1, [1, 2])
        assert server.stats("dead")["ready"] == 1
        assert "RuntimeError: no connection to the shop" in str([one.details for one in server.story(mark)])


def test_a_function_may_settle_the_message_itself() -> None:
    app = penstock.App()

    @app.worker("q", concurrency=2)
    async def decides(body: bytes, message: penstock.aio.Message) -> None:
        if body == b"bad":
            await message.reject(reason="not wanted")
            raise RuntimeError("this changes nothing")
        await message.ack()

    with broker() as server:
        for body in (b"good", b"bad", b"good"):
            server.publish("q", body)
        counts = run(app, server)
        assert (counts.done, counts.rejected, counts.retried) == (2, 1, 0)
        assert server.stats("dead")["ready"] == 1


def test_what_it_returns_is_published_with_the_acknowledgement() -> None:
    app = penstock.App()

    @app.worker("q", publish="out")
    async def doubles(order: Order) -> dict[str, int] | None:
        return {"id": order.id * 2} if order.id else None

    with broker() as server:
        for number in (0, 1, 2):
            server.publish("q", b'{"id": %d}' % number)
        assert run(app, server).done == 3
        assert [one.body for one in server.sow("out")] == [b'{"id":2}', b'{"id":4}']
        assert server.stats("q")["acked"] == 3


def test_a_burst_ends_when_what_is_left_is_not_for_it() -> None:
    app, seen = penstock.App(), list[bytes]()

    @app.worker("q", filter="/total > 5")
    def large(body: bytes) -> None:
        seen.append(body)

    with broker() as server:
        for total in (3, 9, 4, 7):
            server.publish("q", b'{"total": %d}' % total)
        assert run(app, server).done == 2
        assert seen == [b'{"total": 9}', b'{"total": 7}']
        assert server.stats("q")["ready"] == 2


def test_a_burst_does_not_wait_for_a_paused_queue() -> None:
    app, seen = penstock.App(), list[bytes]()

    @app.worker("^(q|out)$")
    def any_of_them(body: bytes) -> None:
        seen.append(body)

    with broker() as server, penstock.connect(server.flight_url) as client:
        server.publish("q", b"later")
        server.publish("out", b"now")
        client.pause("q")
        assert run(app, server).done == 1
        assert (seen, server.stats("q")["ready"]) == ([b"now"], 1)


async def test_leases_are_extended_for_as_long_as_messages_are_held() -> None:
    asked, beats = list[float](), asyncio.Queue[None]()

    async def sleep(seconds: float) -> None:
        asked.append(seconds)
        await beats.get()

    with (
        broker(lease_period="300ms") as server,
        penstock.connect(server.flight_url) as client,
        client.consume("q", backlog=3) as consumer,
    ):
        for _ in range(3):
            server.publish("q", b"x")
        held = Held(consumer.lease_period, sleep)
        for _ in range(3):
            message = consumer.take(PATIENCE_S)
            assert message is not None
            held.add(message)
        keeping = asyncio.create_task(held.keep(asyncio.to_thread))
        for beat in range(1, 6):  # two leases' time in all
            await until(lambda beat=beat: len(asked) == beat)  # type: ignore[misc]
            consumer.flush()
            server.advance(0.12)
            beats.put_nowait(None)
        assert asked == [pytest.approx(0.1)] * 5
        assert (server.stats("q")["leased"], server.stats("q")["expired_leases"]) == (3, 0)
        await until(lambda: len(asked) == 6)
        keeping.cancel()
        server.advance(0.31)
        assert (server.stats("q")["leased"], server.stats("q")["expired_leases"]) == (3, 3)  # and leased again


def test_what_takes_too_long_is_retried_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    app, cancelled, ended = penstock.App(), list[int](), threading.Event()

    @app.worker("q", timeout="100ms")
    async def hangs_once(message: penstock.Message) -> None:
        if message.attempt == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(1)
                raise

    @app.worker("out", timeout="2s")  # the second attempt takes less, also on a machine that does much else
    def hangs_in_a_thread(message: penstock.Message) -> None:
        if message.attempt == 1:
            assert ended.wait(60)

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "cannot be stopped" in record.getMessage():
                ended.set()

    logger, handler = logging.getLogger("penstock.worker"), Told()
    monkeypatch.setattr(logger, "handlers", [*logger.handlers, handler])
    with broker() as server:
        mark = server.publish("q", b"x")
        server.publish("out", b"y")
        counts = app.run(url=server.flight_url, burst=True)
        assert [(one.done, one.retried) for one in counts.values()] == [(1, 1), (1, 1)]
        assert cancelled == [1]
        assert "took longer than 0.1 s" in str([one.details for one in server.story(mark)])


async def test_a_stop_lets_what_runs_end_and_gives_the_rest_back() -> None:
    app, at_work, go_on = penstock.App(), asyncio.Event(), asyncio.Event()

    @app.worker("q", backlog=5)
    async def slow(body: bytes) -> None:
        at_work.set()
        await go_on.wait()

    with broker() as server:
        for _ in range(8):
            server.publish("q", b"x")
        url = server.flight_url
        serving = asyncio.create_task(app.serve(url=url))
        await at_work.wait()
        app.stop()
        await until(lambda: server.stats("q")["leased"] == 1)  # what it had not begun is back
        go_on.set()
        counts = await asyncio.wait_for(serving, PATIENCE_S)
        assert next(iter(counts.values())).done == 1
        assert (server.stats("q")["ready"], server.stats("q")["leased"], server.stats("q")["cancelled"]) == (7, 0, 0)


async def test_what_does_not_end_within_the_grace_is_interrupted_and_given_back() -> None:
    app, at_work = penstock.App(grace="50ms"), asyncio.Event()

    @app.worker("q")
    async def endless(body: bytes) -> None:
        at_work.set()
        await asyncio.Event().wait()

    with broker() as server:
        server.publish("q", b"x")
        url = server.flight_url
        serving = asyncio.create_task(app.serve(url=url))
        await at_work.wait()
        app.stop()
        counts = next(iter((await asyncio.wait_for(serving, PATIENCE_S)).values()))
        assert (counts.done, counts.released) == (0, 1)
        assert (server.stats("q")["ready"], server.stats("q")["leased"]) == (1, 0)


async def test_a_serve_that_is_cancelled_ends_as_one_that_is_stopped() -> None:
    """What was taken and not begun counted as delivered: after some it was a dead letter that nobody had seen."""
    seen = list[bytes]()
    with broker(max_deliveries=2) as server:
        url = server.flight_url
        for number in range(6):
            server.publish("q", b"%d" % number)
        for number in range(4):
            app, at_work, go_on = penstock.App(grace="20s"), asyncio.Event(), asyncio.Event()

            @app.worker("q", backlog=6)
            async def work(body: bytes, at_work: asyncio.Event = at_work, go_on: asyncio.Event = go_on) -> None:
                seen.append(body)
                at_work.set()
                await go_on.wait()

            serving = asyncio.create_task(app.serve(url=url))
            await asyncio.wait_for(at_work.wait(), PATIENCE_S)
            await until(lambda: server.stats("q")["leased"] >= 2)
            serving.cancel()
            await until(lambda: server.stats("q")["leased"] == 1)  # what it had not begun is back
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(serving, PATIENCE_S)
            assert next(iter(app.counts.values())).done == 1, "what ran was settled"
            assert (server.stats("q")["ready"], server.stats("q")["leased"]) == (5 - number, 0)
        assert seen == [b"0", b"1", b"2", b"3"]
        assert server.stats("dead")["ready"] == 0


async def test_who_is_cancelled_when_the_server_is_gone_leaves_no_error_to_the_loop() -> None:
    app, at_work, told = penstock.App(grace="10ms"), asyncio.Event(), list[object]()

    @app.worker("q", backlog=4)
    async def endless(body: bytes) -> None:
        at_work.set()
        await asyncio.Event().wait()

    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    with broker() as server:
        for _ in range(4):
            server.publish("q", b"x")
        serving = asyncio.create_task(app.serve(url=server.flight_url))
        await asyncio.wait_for(at_work.wait(), PATIENCE_S)
        await asyncio.to_thread(server.crash)
        await until(lambda: "_take_all" not in [one.get_coro().__name__ for one in asyncio.all_tasks()])  # type: ignore[union-attr]
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(serving, PATIENCE_S)
        gc.collect()
    assert told == []


async def test_a_server_that_went_away_is_waited_for() -> None:
    app, seen = penstock.App(), list[bytes]()

    @app.worker("q")
    async def one(body: bytes) -> None:
        seen.append(body)

    with broker() as server:
        server.publish("q", b"before")
        url = server.flight_url
        serving = asyncio.create_task(app.serve(url=url))
        await until(lambda: seen == [b"before"])
        await asyncio.to_thread(server.crash)
        await asyncio.to_thread(server.restart)
        assert server.flight_url == url
        server.publish("q", b"after")
        await until(lambda: b"after" in seen)
        app.stop()
        await asyncio.wait_for(serving, PATIENCE_S)
        assert next(iter(app.counts.values())).connections >= 2


async def test_what_the_server_says_no_to_ends_the_app_and_all_its_workers() -> None:
    for queue, filter, error in (("missing", None, NotFound), ("q", "/a =", ExpressionError)):
        app = penstock.App()

        @app.worker("out")
        async def fine(body: bytes) -> None: ...

        @app.worker(queue, filter=filter)
        async def wrong(body: bytes) -> None: ...

        with broker() as server:
            url = server.flight_url
            with pytest.raises(error):
                await asyncio.wait_for(app.serve(url=url), PATIENCE_S)


async def test_of_several_failures_the_others_are_told_too(caplog: pytest.LogCaptureFixture) -> None:
    app = penstock.App()
    for queue in ("missing", "gone"):

        @app.worker(queue)
        async def wrong(body: bytes) -> None: ...

    with broker() as server:
        url = server.flight_url
        with pytest.raises(NotFound, match="'missing'"):
            await asyncio.wait_for(app.serve(url=url), PATIENCE_S)
    assert "no queue 'gone'" in caplog.text


async def test_the_lifespan_surrounds_the_work() -> None:
    told = list[str]()

    @asynccontextmanager
    async def lifespan(app: penstock.App) -> AsyncGenerator[None]:
        told.append("open")
        yield
        told.append("close")

    app = penstock.App(lifespan=lifespan)

    @app.worker("q", filter="/id > 1")
    async def one(order: Order) -> None:
        told.append(str(order.id))

    with broker() as server:
        server.publish("q", b'{"id": 2}')
        url = server.flight_url
        await asyncio.wait_for(app.serve(url=url, burst=True), PATIENCE_S)
    assert told == ["open", "2", "close"]
    with pytest.raises(InvalidArgument, match="no workers"):
        await penstock.App().serve()


def test_a_burst_does_not_end_while_a_message_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    app, seen, told = penstock.App(), list[bytes](), penstock.Client.queue

    @app.worker("q")
    async def one(body: bytes) -> None:
        seen.append(body)

    def counts(client: penstock.Client, queue: str) -> Mapping[str, object]:
        """What comes as the worker looks whether anything is ready is leased to it already."""
        if not seen:
            client.publish("q", b"work")
        found = told(client, queue)
        assert found["ready"] == 0
        return found

    monkeypatch.setattr(penstock.Client, "queue", counts)
    with broker() as server:
        counted = run(app, server)
        assert (counted.done, counted.released, set(seen)) == (len(seen), 0, {b"work"})
        assert server.stats("q")["queue_depth"] == 0


def test_an_app_runs_in_another_thread_until_it_is_stopped_from_here() -> None:
    app = penstock.App(results="results")

    @app.worker("q")
    def double(number: int) -> int:
        return number * 2

    with broker() as server, penstock.connect(server.flight_url) as client:
        for _ in range(2):  # once more, after it has ended
            working = threading.Thread(target=app.run, kwargs={"url": server.flight_url})
            working.start()
            assert client.submit("q", 21).get(timeout="20s") == 42
            app.stop()
            working.join(PATIENCE_S)
            assert not working.is_alive()
        app.stop()
    assert [one.done for one in app.counts.values()] == [1]
