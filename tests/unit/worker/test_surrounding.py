"""Middlewares of an app, and what its functions depend on."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

import penstock
from penstock import Depends
from penstock.testing import Broker

said: list[str] = []


@pytest.fixture(autouse=True)
def silence() -> None:
    said.clear()


@pytest.fixture
def server() -> Iterator[Broker]:
    dead = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead", "max_deliveries": 1}
    with Broker({"queue": [{"name": "q", **dead}, {"name": "dead"}, {"name": "out"}]}) as broker:
        yield broker


def settings() -> str:
    """Depends on nothing, and is no coroutine."""
    said.append(f"settings off the loop: {threading.current_thread() is not threading.main_thread()}")
    return "db"


async def connection(place: Annotated[str, Depends(settings)], message: penstock.Message) -> AsyncIterator[str]:
    """A generator that depends on another and on the message."""
    try:
        yield f"{place} for {message.body.decode()}"
        said.append("committed")
    except ValueError:
        said.append("rolled back")
        raise


def cursor(place: Annotated[str, Depends(settings)]) -> Iterator[str]:
    """A generator that is no coroutine."""
    yield f"cursor of {place}"
    said.append("closed")


def test_dependencies_are_made_once_a_message_and_left_with_its_outcome(server: Broker) -> None:
    app = penstock.App()

    @app.worker("q")
    async def work(body: str, db: Annotated[str, Depends(connection)], rows: Annotated[str, Depends(cursor)]) -> None:
        said.append(f"{body}: {db}, {rows}")
        if body == "bad":
            raise ValueError("bad")

    for body in (b"good", b"bad"):
        server.publish("q", body)
    counts = next(iter(app.run(url=server.flight_url, burst=True).values()))
    assert (counts.done, counts.retried) == (1, 1)
    made = "settings off the loop: True"
    assert said == [made, "good: db for good, cursor of db", "closed", "committed",
                    made, "bad: db for bad, cursor of db", "rolled back"]  # fmt: skip


def test_threads_have_them_too(server: Broker) -> None:
    app = penstock.App()

    @app.worker("q", publish="out")
    def work(message: penstock.Message, rows: Annotated[str, Depends(cursor)]) -> str:
        return f"{message.body.decode()} {rows}"

    server.publish("q", b"x")
    app.run(url=server.flight_url, burst=True)
    assert [one.body for one in server.sow("out")] == [b"x cursor of db"]
    assert said[-1] == "closed"


def lenient() -> Iterator[None]:
    """Forgives its function."""
    try:
        yield
    except (ValueError, SystemExit) as error:
        said.append(f"forgiven: {type(error).__name__}")


async def lenient_too() -> AsyncIterator[None]:
    """The same as a coroutine."""
    try:
        yield
    except (ValueError, SystemExit) as error:
        said.append(f"forgiven: {type(error).__name__}")


@pytest.mark.parametrize("forgiving", [lenient, lenient_too])
def test_what_has_failed_is_a_failure_whatever_a_dependency_makes_of_it(server: Broker, forgiving: Any) -> None:
    app = penstock.App()

    def work(body: bytes, _: Any) -> None:
        raise ValueError("bad") if body == b"bad" else SystemExit

    work.__annotations__["_"] = Annotated[None, Depends(forgiving)]
    app.worker("q")(work)
    for body in (b"bad", b"exit"):
        server.publish("q", body)
    [counts] = app.run(url=server.flight_url, burst=True).values()
    assert (counts.done, counts.retried) == (0, 2)
    assert said == ["forgiven: ValueError", "forgiven: SystemExit"]


def test_middlewares_surround_every_function(server: Broker) -> None:
    app = penstock.App()

    @app.middleware
    async def outer(message: penstock.aio.Message, call_next: Any) -> object:
        said.append(f"outer {message.body.decode()}")
        try:
            return await call_next()
        except ValueError as error:
            said.append(f"saw {error}")
            raise

    @app.middleware
    async def inner(message: penstock.aio.Message, call_next: Any) -> object:
        if message.body == b"skip":
            await message.reject("not wanted")
            return None
        return f"<{await call_next()}>"

    @app.worker("q", publish="out")
    def work(body: str) -> str:
        if body == "bad":
            raise ValueError("bad")
        return body

    for body in (b"a", b"skip", b"bad"):
        server.publish("q", body)
    counts = next(iter(app.run(url=server.flight_url, burst=True).values()))
    assert (counts.done, counts.rejected, counts.retried) == (1, 1, 1)
    assert [one.body for one in server.sow("out")] == [b"<a>"]
    assert said == ["outer a", "outer skip", "outer bad", "saw bad"]


def lost(where: str) -> None:
    """Nobody knows where."""


def test_mistakes_are_told_when_they_are_declared() -> None:
    app = penstock.App()
    with pytest.raises(penstock.InvalidArgument, match="no coroutine function"):
        app.middleware(lambda message, call_next: call_next())

    def work(body: str, one: Annotated[None, Depends(lost)]) -> None: ...

    with pytest.raises(penstock.InvalidArgument, match="lost: nothing is given to its argument 'where'"):
        app.worker("q")(work)
