"""What comes first of a request: who is said to ask, for whom proxies speak; bodies that wait until they are whole."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from penstock.errors import InvalidArgument, Unavailable
from penstock.server.http.reception import OPEN, Reception
from penstock.wire.http import bodies
from penstock.wire.http.bodies import AT_ONCE, LARGE_MOST, SLOWEST, Reading, Receive, Room, read_object


async def asked(
    headers: list[tuple[bytes, bytes]], trusted: tuple[str, ...] = (), host: str = "127.0.0.1", path: str = "/healthz"
) -> Any:
    """The scope that the application behind it sees; None: it was answered before."""
    seen = list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    async def nothing(*_: object) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "client": (host, 7)}
    await Reception(app, OPEN, trusted)(scope, nothing, nothing)
    return seen[0] if seen else None


def forwarded(*values: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"x-forwarded-for", value) for value in values]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.0.0.7"])
async def test_nobody_is_believed_who_says_for_whom_he_asks(host: str) -> None:
    """Also from the server's own machine: else whoever is there gets round what is counted by address."""
    headers = [*forwarded(b"192.0.2.1"), (b"forwarded", b"for=192.0.2.1"), (b"x-real-ip", b"192.0.2.1")]
    assert (await asked(headers, host=host))["client"] == (host, 7)


@pytest.mark.parametrize(("values", "client"), [
    ([b"192.0.2.1"], ("192.0.2.1", 0)),
    ([b"203.0.113.9, 192.0.2.1"], ("192.0.2.1", 0)),  # what stands before is what a client has written himself
    ([b"203.0.113.9", b"192.0.2.1, 10.1.2.3"], ("192.0.2.1", 0)),
    ([b"2001:db8::1"], ("2001:db8::1", 0)),
    ([b"[2001:db8::1]"], ("2001:db8::1", 0)),
    ([b"10.1.2.3"], ("10.1.2.3", 0)),
    ([b"127.0.0.1, nobody"], ("10.0.0.7", 7)),
    ([b"127.0.0.1, 192.0.2.1\r\nroot"], ("10.0.0.7", 7)),
    ([b""], ("10.0.0.7", 7)),
    ([b"\xff"], ("10.0.0.7", 7)),
    ([], ("10.0.0.7", 7)),
])  # fmt: skip
async def test_a_proxy_that_the_settings_name_says_who_asks(values: list[bytes], client: tuple[str, int]) -> None:
    """The last one that it names which is no such proxy itself; what is no address is nobody."""
    assert (await asked(forwarded(*values), ("10.0.0.0/8", "::1"), "10.0.0.7"))["client"] == client


async def test_others_than_such_a_proxy_are_not_believed() -> None:
    assert (await asked(forwarded(b"127.0.0.1"), ("10.0.0.7",), "10.0.0.8"))["client"] == ("10.0.0.8", 7)
    assert (await asked(forwarded(b"127.0.0.1"), ("10.0.0.7",), "not-an-address"))["client"] == ("not-an-address", 7)


async def test_who_shows_no_login_does_not_come_to_the_application() -> None:
    assert await asked([], path="/api/overview") is None
    assert await asked([(b"authorization", b"Basic !")], path="/api/overview") is None
    basic = [(b"authorization", b"Basic YW5uOnM="), (b"authorization", b"Basic Ym9iOnM=")]
    assert (await asked(basic, path="/api/overview"))["login"] == ("ann", "s")
    assert (await asked(basic))["login"] is None  # nobody asks for it there


def sent(body: bytes, ends: asyncio.Event | None = None) -> Any:
    """ASGI's receive: the body in pieces, the last one when `ends` says so."""
    pieces = [body[at : at + 65_536] for at in range(0, len(body), 65_536)]

    async def receive() -> dict[str, object]:
        piece = pieces.pop(0)
        if not pieces and ends is not None:
            await ends.wait()
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    return receive


async def test_large_bodies_have_a_bound_for_all_and_for_each_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends slowly holds no more than his share, and what is read or given up makes room again."""
    monkeypatch.setattr(bodies, "HELD_MOST", 5 * AT_ONCE)
    monkeypatch.setattr(bodies, "HELD_OF_USER", 3 * AT_ONCE)
    room, ends = Room(), asyncio.Event()
    body = orjson.dumps({"x": "x" * (2 * AT_ONCE)})
    slow = asyncio.ensure_future(room.read("ann", "", sent(body, ends), Reading(LARGE_MOST)))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="user 'ann'"):
        await room.read("ann", "", sent(body), Reading(LARGE_MOST))
    assert await room.read("ann", "", sent(b'{"a":1}'), Reading()) == {"a": 1}
    assert (await room.read("bob", "", sent(body), Reading(LARGE_MOST))).keys() == {"x"}
    bobs = asyncio.ensure_future(room.read("bob", "", sent(body, ends), Reading(LARGE_MOST)))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await room.read("eve", "", sent(body), Reading(LARGE_MOST))
    ends.set()
    await asyncio.gather(slow, bobs)
    assert (await room.read("eve", "", sent(body), Reading(LARGE_MOST))).keys() == {"x"}
    with pytest.raises(InvalidArgument):
        await room.read("eve", "", sent(body[:-1]), Reading(LARGE_MOST))
    assert not room._held
    assert not room._all


async def test_a_body_has_its_time_and_more_the_more_of_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte a second kept a request under way for good: two users who began 128 each left none to others."""
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    def dripping(size: int, pieces: int) -> Receive:
        async def receive() -> Mapping[str, Any]:
            nonlocal pieces, now
            now, pieces = now + 1, pieces - 1
            for _ in range(3):  # who waits for a time is told, and ends this
                await asyncio.sleep(0)
            return {"type": "http.request", "body": b" " * size, "more_body": pieces > 0}

        return receive

    room = Room()
    with pytest.raises(InvalidArgument, match=r"20 bytes of the request's body came in 21 s: it has 20 s, and one"):
        await room.read("ann", "", dripping(1, 1000), Reading())
    assert await room.read("ann", "", dripping(SLOWEST // 2, 38), Reading()) == {}
    with pytest.raises(InvalidArgument, match=r"came in 39 s"):
        await room.read("ann", "", dripping(SLOWEST // 2, 40), Reading())
    assert not room._held


def test_a_document_has_a_bound_of_values_and_texts_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones are large as objects: 20 MB of empty lists were 500 MB."""
    monkeypatch.setattr(bodies, "VALUES_MOST", 100)
    with pytest.raises(InvalidArgument, match="values or more, 100 are allowed"):
        read_object(b'{"x":[' + b",".join([b"[]"] * 60) + b"]}")
    text = ",:[{" * 200 + '\\"'
    assert read_object(orjson.dumps({"x": text})) == {"x": text}


def test_a_document_takes_little_memory_until_it_is_known_to_be_no_bomb() -> None:
    """Neither one text of many commas nor many short ones: both took hundreds of MiB to be looked at."""
    texts = b'{"x":[' + b'"a",' * 300_000 + b"1]}"
    one = b'{"x":"' + b",[{" * 250_000 + b'"}'
    for body in (texts, one):
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        values = bodies.values_of(body, 100_000)
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        assert (values > 100_000) is (body is texts)
        assert peak < 1 << 20
