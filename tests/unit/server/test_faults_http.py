"""A fault at any call of what HTTP is asked for: the request is answered with 500, or the server ends; nothing is lost.

As `test_faults_planted` does for AMQP.  What a request leads to is what `Application` calls until it has its answer.

A fault at the end of a get over HTTP, or on the way of what it takes, leaves nobody with a lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import chain, count
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

from choices import stride
from penstock.core.broker import Core
from penstock.server.app import App
from penstock.server.base import faults as faults_module
from penstock.server.base.faults import Reports
from penstock.server.http.messages import Getter
from penstock.testing.process import load
from planting import Plant, Planted

STRIDE = stride(121)
"""A fault is planted at the first call of a request, and at every so many after another one; 1: at every call."""

CONFIG = """
[server]
data = "{folder}"
sync = "off"
doors = 0
[listen]
amqp = "off"
flight = "off"
http = "127.0.0.1:0"
[[queue]]
name = "kept"
"""

PUBLISH = {"routing_key": "kept", "payload": "x", "payload_encoding": "string", "properties": {"delivery_mode": 2}}
TAKE = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
POLICY = {"pattern": "^k", "definition": {"max-length": 1000}, "apply-to": "queues"}
PERMISSION = {"configure": ".*", "write": ".*", "read": ".*"}

ACTS: Mapping[str, tuple[str, str, object]] = {
    "overview": ("GET", "/api/overview", None),
    "nodes": ("GET", "/api/nodes", None),
    "health": ("GET", "/healthz", None),
    "metrics": ("GET", "/metrics", None),
    "metrics of each": ("GET", "/metrics/per-object", None),
    "queues": ("GET", "/api/queues", None),
    "queue": ("GET", "/api/queues/%2F/kept", None),
    "definitions": ("GET", "/api/definitions", None),
    "publish": ("POST", "/api/exchanges/%2F/amq.default/publish", PUBLISH),
    "take": ("POST", "/api/queues/%2F/kept/get", TAKE),
    "look": ("POST", "/api/queues/%2F/kept/get", {**TAKE, "ackmode": "ack_requeue_true"}),
    "declare": ("PUT", "/api/queues/%2F/new", {"durable": True}),
    "delete": ("DELETE", "/api/queues/%2F/gone", None),
    "purge": ("DELETE", "/api/queues/%2F/gone/contents", None),
    "exchange": ("PUT", "/api/exchanges/%2F/e", {"type": "topic", "durable": True}),
    "bind": ("POST", "/api/bindings/%2F/e/amq.topic/q/gone", {"routing_key": "k"}),
    "policy": ("PUT", "/api/policies/%2F/p", POLICY),
    "vhost": ("PUT", "/api/vhosts/v", dict[str, object]()),
    "user": ("PUT", "/api/users/u", {"password": "p", "tags": ""}),
    "permission": ("PUT", "/api/permissions/%2F/guest", PERMISSION),
    "upload": (
        "POST",
        "/api/definitions",
        {"queues": [{"name": "d", "vhost": "/", "durable": True, "arguments": dict[str, object]()}]},
    ),
}


def asked(frame: FrameType | None) -> bool:
    """Whether it is called on behalf of a request, and tells of no fault."""
    if frame is not None and str(frame.f_globals.get("__name__", "")).endswith(".faults"):
        return False
    while frame is not None:
        if frame.f_code.co_qualname == "Application._answered":
            return True
        frame = frame.f_back
    return False


class Scene:
    """A server of this process, and who asks."""

    def __init__(self, folder: Path) -> None:
        self.server = App(load(CONFIG.format(folder=folder)), lambda text: None)

    async def start(self) -> None:
        await self.server.start()
        assert self.server.http is not None
        transport = httpx.ASGITransport(app=self.server.http.app, raise_app_exceptions=False)  # type: ignore[arg-type]
        self.client = httpx.AsyncClient(transport=transport, base_url="http://penstock", auth=("guest", "guest"))
        await self.ask("PUT", "/api/queues/%2F/gone", {"durable": True})

    async def ask(self, method: str, path: str, body: object) -> httpx.Response:
        more: dict[str, Any] = {} if body is None else {"json": body}
        return await self.client.request(method, path, **more)

    async def publish(self) -> None:
        answer = await self.ask(*ACTS["publish"])
        assert answer.json() == {"routed": True}

    async def stop(self) -> None:
        await self.client.aclose()
        await self.server.stop()


@pytest.mark.parametrize("name", sorted(ACTS))
async def test_a_fault_at_any_call_is_answered_with_500_or_ends_the_server(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path)
    await scene.start()
    kept = 2  # messages that were confirmed
    for _ in range(kept):
        await scene.publish()
    for at in chain([1], count(2 + sorted(ACTS).index(name) % STRIDE, STRIDE)):
        monkeypatch.setattr(faults_module, "reports", told := Reports())
        caplog.clear()
        plant, faults = Plant(at, "penstock.", asked), scene.server.engine.faults
        if name in {"delete", "purge"}:
            await scene.ask("PUT", "/api/queues/%2F/gone", {"durable": True})
        with plant.there():
            answer = await scene.ask(*ACTS[name])
        if not plant.hit:
            break
        if faults.fatal is not None:
            await scene.stop()
            scene = Scene(tmp_path)
            await scene.start()
        else:
            assert answer.status_code == 500, f"{plant.hit}: {answer.status_code} {answer.text[:200]}"
            assert told.counts == {"http": 1}, plant.hit
            lines = [one for one in caplog.records if one.levelno == logging.ERROR]
            assert len(lines) == 1, plant.hit
            assert lines[0].exc_info is not None, plant.hit
            stopped = {one.name for one in scene.server.engine.core.stopped}
            assert stopped <= {"kept", "gone", "new", "d"}, plant.hit
            for queue in scene.server.engine.core.queues():
                if not queue.stopped:
                    queue.check()
            if stopped:
                await scene.stop()
                scene = Scene(tmp_path)
                await scene.start()
        depth = scene.server.engine.core.queue("/", "kept").ready
        assert depth >= kept - (name == "take"), f"{plant.hit}: what was confirmed is gone"
        await scene.publish()
        kept = depth + 1
    else:
        raise AssertionError("it has no end")
    await scene.stop()


LOOK = {**TAKE, "ackmode": "ack_requeue_true"}
PATH = "/api/queues/%2F/kept/get"


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    await made.start()
    assert (await made.ask(*ACTS["publish"])).json() == {"routed": True}
    yield made
    await made.stop()


@pytest.mark.parametrize("place", ["its end", "what it is given", "the end of its wait"])
async def test_a_fault_in_a_get_gives_its_lease_back(place: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name = {
        "its end": (Core, "unsubscribe"), "what it is given": (Getter, "deliver"),
        "the end of its wait": (Getter, "pull"),
    }[place]  # fmt: skip
    before: Callable[..., Any] = getattr(owner, name)
    raised = 0

    def planted(self: object, *what: Any, **named: Any) -> Any:
        nonlocal raised
        if not raised:
            raised += 1
            raise Planted
        return before(self, *what, **named)

    async def planted_step(self: object, *what: Any) -> Any:
        found = await before(self, *what)
        raise Planted(found)

    monkeypatch.setattr(owner, name, planted_step if name == "pull" else planted)
    async with asyncio.timeout(60):
        answer = await scene.ask("POST", PATH, LOOK)
    assert answer.status_code == 500
    engine = scene.server.engine
    queue = engine.core.queue("/", "kept")
    assert engine.faults.fatal is None
    assert (queue.leased, len(queue.consumers), queue.ready) == (0, 0, 1)
    queue.check()
    monkeypatch.undo()
    taken = await scene.ask("POST", PATH, TAKE)
    assert [one["payload"] for one in taken.json()] == ["x"]
