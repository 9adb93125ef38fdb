"""The link over TLS: what a read brings goes in piece by piece, held back when the session says so."""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from types import SimpleNamespace
from typing import Any, cast

from penstock.server.amqp.links import FIRST, AmqpLink, TlsLink
from penstock.server.listening import patient


class Transport(asyncio.Transport):
    """Says whether it is read."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.reading = True
        self._ssl_protocol = SimpleNamespace(_transport=SimpleNamespace(get_write_buffer_size=lambda: 40))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 2


class Session:
    """What a session hears."""

    def __init__(self) -> None:
        self.heard = list[bytes]()
        self.pause_after: int | None = None
        self.link: TlsLink
        self.lost = False

    def receive(self, data: bytes) -> int:
        self.heard.append(data)
        if len(self.heard) == self.pause_after:
            self.link.pause_reading()
        return 0

    def connection_lost(self) -> None:
        self.lost = True


def linked() -> tuple[TlsLink, Transport, Session]:
    session, transport = Session(), Transport()
    guards = patient(asyncio.get_running_loop()).guards
    link = session.link = TlsLink(lambda *_: session, guards.of("amqps").enter("127.0.0.1", 5000, print))
    link.connection_made(transport)
    return link, transport, session


async def test_that_nothing_follows_is_not_told_to_a_peer_that_has_gone() -> None:
    """It may have reset the connection in this very round of the loop: asyncio tells of that later."""
    _, transport, session = linked()
    guards = patient(asyncio.get_running_loop()).guards
    plain = AmqpLink(lambda *_: session, guards.of("amqp").enter("127.0.0.1", 5000, print))
    plain.connection_made(transport)
    told = list[str]()

    def write_eof() -> None:
        told.append("asked")
        raise OSError(107, "Transport endpoint is not connected")

    transport.can_write_eof = lambda: True  # type: ignore[method-assign]
    transport.write_eof = write_eof  # type: ignore[method-assign]
    plain.end_writing()
    assert told == ["asked"]


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_small_read_goes_straight_in() -> None:
    link, transport, session = linked()
    link.data_received(b"abc")
    assert (session.heard, transport.reading) == ([b"abc"], True)


async def test_a_large_read_takes_several_turns_and_nothing_more_is_read_meanwhile() -> None:
    link, transport, session = linked()
    data = bytes(range(256)) * 1000
    link.data_received(data)
    assert len(session.heard[0]) == FIRST
    assert not transport.reading
    link.data_received(b"behind")  # was on its way
    await turns()
    assert b"".join(session.heard) == data + b"behind"
    assert len(session.heard) > 2
    assert transport.reading


async def test_a_session_that_pauses_gets_no_more_until_it_goes_on() -> None:
    link, transport, session = linked()
    session.pause_after = 2
    data = bytes(range(256)) * 1000
    link.data_received(data)
    await turns()
    assert len(session.heard) == 2
    link.resume_reading()
    link.resume_reading()  # twice does no harm
    await turns()
    assert b"".join(session.heard) == data
    assert transport.reading
    link.pause_reading()
    assert not transport.reading
    link.data_received(b"late")
    assert session.heard[-1] != b"late"
    link.resume_reading()
    await turns()
    assert session.heard[-1] == b"late"


async def test_what_was_read_before_the_end_counts() -> None:
    link, _, session = linked()
    data = bytes(range(256)) * 1000
    link.data_received(data)
    link.connection_lost(None)
    assert b"".join(session.heard) == data
    assert session.lost


async def test_what_waits_below_tls_counts() -> None:
    assert linked()[0].buffered() == 42


class Shutting:
    """asyncio's TLS of a connection, as far as its transport asks it."""

    def _start_shutdown(self) -> None: ...

    def _get_write_buffer_size(self) -> int:
        return 7

    def _set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def _control_app_writing(self) -> None: ...


def test_a_link_that_is_closed_twice_can_still_be_asked() -> None:
    """asyncio's transport forgot its TLS then, and whoever asked it failed: the look at all clients' hearts."""
    link = TlsLink(cast("Any", None), cast("Any", None))
    link.transport = sslproto._SSLProtocolTransport(cast("Any", None), cast("Any", Shutting()))  # type: ignore[attr-defined]
    link.close()
    link.close()
    assert link.buffered() == 7
    link.keep_below(100)
