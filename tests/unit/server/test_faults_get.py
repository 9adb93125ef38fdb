"""A fault at the end of a get over HTTP, or on the way of what it takes, leaves nobody with a lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.broker import Core
from penstock.server.http.messages import Getter
from planting import Planted
from unit.server.test_faults_http import ACTS, TAKE, Scene

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
