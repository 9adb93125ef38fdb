"""A connection is cut off whatever has become of it: who ends it cannot know whether it is over already."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.server.sockets import tls_transport
from penstock.server.sockets.tls_transport import cut_off, farewell

MUCH = bytes(16 << 20)
"""More than the kernel takes of what nobody reads."""


class Speaker(asyncio.Protocol):
    """Has more to say than its peer reads at first."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(MUCH)

    def eof_received(self) -> None:
        farewell(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Speaker, socket.socket, list[str]]]:
    """A speaker, its peer, and what the loop was told of."""
    loop, told = asyncio.get_running_loop(), list[str]()
    loop.set_exception_handler(lambda _, context: told.append(str(context)))
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _, speaker = await loop.create_connection(Speaker, sock=ours)
    yield speaker, theirs, told
    theirs.close()
    cut_off(speaker.transport)
    await speaker.lost.wait()
    assert told == []


async def test_who_says_nothing_more_and_reads_to_the_end_is_not_cut_off_behind_it(
    pair: tuple[Speaker, socket.socket, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio's own abort fails then, which ended the server: anybody who may log in could do that."""
    speaker, peer, _ = pair
    loop, due = asyncio.get_running_loop(), list[Callable[[], object]]()
    monkeypatch.setattr(loop, "call_later", lambda delay, act: due.append(act))
    read = 0
    async with asyncio.timeout(20):
        peer.shutdown(socket.SHUT_WR)
        while some := await loop.sock_recv(peer, 1 << 20):
            read += len(some)
        await speaker.lost.wait()
    assert read == len(MUCH)
    [late] = due
    late()


async def test_who_says_nothing_more_and_reads_nothing_is_cut_off(
    pair: tuple[Speaker, socket.socket, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    speaker, peer, _ = pair
    monkeypatch.setattr(tls_transport, "GOODBYE_S", 0.01)
    peer.shutdown(socket.SHUT_WR)
    async with asyncio.timeout(20):
        await speaker.lost.wait()


async def test_a_connection_is_cut_off_twice(pair: tuple[Speaker, socket.socket, list[str]]) -> None:
    speaker, _, _ = pair
    cut_off(speaker.transport)
    async with asyncio.timeout(20):
        await speaker.lost.wait()
    cut_off(speaker.transport)
