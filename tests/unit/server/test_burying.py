"""What HTTP and administration settle is durable when it is told so: with dead letters whose bodies have to be read."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.core.effects import Fetch
from penstock.core.publishing.dead_letters import DeadLetters
from penstock.core.queue.queue import Queue
from penstock.server.engine import Engine
from unit.server.test_faults_http import Scene

REJECT = {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"}


class Slow:
    """Bodies that are read when the test says so."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._fetch = engine.fetches._fetch
        self._kept = list[Fetch]()
        self.asked = asyncio.Event()
        engine.fetches._fetch = self._keep

    def _keep(self, effect: Fetch) -> None:
        self._kept.append(effect)
        self.asked.set()

    def read(self) -> None:
        kept, self._kept = self._kept, []
        for effect in kept:
            self._fetch(effect)
        self._engine.arm()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    await made.start()
    to_failed = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
    await made.ask("PUT", "/api/queues/%2F/q", {"durable": True, "arguments": to_failed})
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    await made.ask("PUT", "/api/queues/%2F/failed", {"durable": True, "arguments": full})
    await published(made, "q")
    yield made
    await made.stop()


async def published(scene: Scene, key: str) -> None:
    body: dict[str, object] = {"routing_key": key, "payload": "x", "payload_encoding": "string", "properties": {}}
    assert (await scene.ask("POST", "/api/exchanges/%2F/amq.default/publish", body)).json() == {"routed": True}


async def ready(scene: Scene, name: str) -> int:
    found: Mapping[str, int] = (await scene.ask("GET", f"/api/queues/%2F/{name}", None)).json()
    return found["messages_ready"]


async def test_a_get_that_rejects_is_answered_with_its_dead_letter(scene: Scene) -> None:
    slow = Slow(scene.server.engine)
    got = asyncio.ensure_future(scene.ask("POST", "/api/queues/%2F/q/get", REJECT))
    async with asyncio.timeout(60):
        await slow.asked.wait()
        for _ in range(20):
            assert await ready(scene, "failed") == 0
        assert not got.done()
        slow.read()
        assert [one["payload"] for one in (await got).json()] == ["x"]
    assert await ready(scene, "failed") == 1


async def test_a_letter_that_a_full_queue_refuses_is_not_waited_for(scene: Scene) -> None:
    await published(scene, "failed")
    async with asyncio.timeout(60):
        assert len((await scene.ask("POST", "/api/queues/%2F/q/get", REJECT)).json()) == 1
    assert scene.server.engine.core.queue("/", "q").dying == 1


async def test_nor_is_one_of_a_queue_that_goes(scene: Scene) -> None:
    slow = Slow(scene.server.engine)
    got = asyncio.ensure_future(scene.ask("POST", "/api/queues/%2F/q/get", REJECT))
    async with asyncio.timeout(60):
        await slow.asked.wait()
        assert (await scene.ask("DELETE", "/api/queues/%2F/q", None)).status_code == 204
        assert len((await got).json()) == 1


async def test_who_waits_for_one_of_a_queue_that_a_fault_stops_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scene.server.engine
    slow, tick = Slow(engine), Queue.tick

    def planted(queue: Queue, *what: Any) -> None:
        if queue.name == "q":
            raise ArithmeticError
        tick(queue, *what)

    got = asyncio.ensure_future(scene.ask("POST", "/api/queues/%2F/q/get", REJECT))
    async with asyncio.timeout(60):
        await slow.asked.wait()
        monkeypatch.setattr(Queue, "tick", planted)
        engine.core._tick(engine.now(), engine.core.queue("/", "q"))
        engine.arm()
        answer = await got
    assert answer.status_code == 503
    assert "queue 'q' in vhost '/' was stopped" in answer.text
    assert not engine.burying
    slow.read()
    assert await ready(scene, "failed") == 0, "the message comes again after a start, so it has no letter"
    assert engine.core.queue("/", "q").dying == 1
    assert engine.faults.fatal is None


async def test_a_fault_on_the_way_of_a_letter_stops_its_queue_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(*_: object) -> None:
        raise ArithmeticError

    monkeypatch.setattr(DeadLetters, "prepare", planted)
    async with asyncio.timeout(60):
        answer = await scene.ask("POST", "/api/queues/%2F/q/get", REJECT)
    assert answer.status_code == 503
    engine = scene.server.engine
    assert engine.faults.fatal is None
    assert [one.name for one in engine.core.stopped] == ["q"]
    assert not engine.burying
    await published(scene, "failed")


async def test_nor_is_one_that_a_broken_log_will_never_have(scene: Scene) -> None:
    from penstock.errors import LogBroken

    slow = Slow(scene.server.engine)
    got = asyncio.ensure_future(scene.ask("POST", "/api/queues/%2F/q/get", REJECT))
    async with asyncio.timeout(60):
        await slow.asked.wait()
        scene.server.engine.break_down(LogBroken("a test breaks it"))
        assert (await got).status_code == 503
