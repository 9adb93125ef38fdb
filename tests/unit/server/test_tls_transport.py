"""TLS of one connection: what is handed over and when, how it ends, and what a peer that goes half way costs."""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.server.amqp.links import FIRST, LEAST, AmqpLink
from penstock.server.sockets import tls_transport
from penstock.server.sockets.listening import patient, why
from penstock.server.sockets.tls_transport import TlsTransport, farewell, read_buffer
from tls_lab import Files

GOODBYE_S = 5.0
BUFFER = read_buffer()


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server and of its client."""
    files = Files(Path(tmp_path_factory.mktemp("tls")))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    return server, ssl.create_default_context(cafile=files.ca)


class Socket(asyncio.Transport):
    """The transport of a socket."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent = bytearray()
        self.waiting = 0
        self.reading = True
        self.closed = self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def get_protocol(self) -> asyncio.BaseProtocol:
        """It is not lost."""
        return asyncio.Protocol()


class Door(asyncio.Protocol):
    """What a door's protocol hears."""

    def __init__(self) -> None:
        self.heard = list[bytes]()
        self.ends = list[str]()
        self.pause_after: int | None = None
        self.transport: TlsTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)
        if len(self.heard) == self.pause_after:
            self.transport.pause_reading()

    def eof_received(self) -> None:
        self.ends.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append("lost")


class Linked:
    """A client, the transport and a door's protocol; bytes go between them by hand."""

    def __init__(self, contexts: tuple[ssl.SSLContext, ssl.SSLContext], *, greet: bool = True) -> None:
        self.socket, self.door = Socket(), Door()
        self.transport = TlsTransport(contexts[0], lambda: self.door, BUFFER, GOODBYE_S)
        self.transport.connection_made(self.socket)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = contexts[1].wrap_bio(self._in, self._out, server_hostname="localhost")
        if greet:
            self.greet()

    def greet(self) -> None:
        for _ in range(3):
            self.tried(self.client.do_handshake)
        assert self.transport.greeted.done()

    def tried(self, act: Callable[[], Any]) -> None:
        """What the client does, with what the server has to say first."""
        self.hear()
        try:
            act()
        except ssl.SSLWantReadError:
            pass
        self.bring(self._out.read())

    def bring(self, data: bytes) -> None:
        """Bytes come at the server's socket, as many at a time as it asks for."""
        while data and self.socket.reading:
            into = self.transport.get_buffer(-1)
            size = min(len(into), len(data))
            into[:size] = data[:size]
            data = data[size:]
            self.transport.buffer_updated(size)
        self.left = data

    def say(self, data: bytes) -> None:
        self.client.write(data)
        self.bring(self._out.read())

    def hear(self) -> None:
        self._in.write(bytes(self.socket.sent))
        self.socket.sent.clear()

    def read(self) -> bytes:
        """All that the client has now."""
        self.hear()
        found = b""
        try:
            while piece := self.client.read(1 << 20):
                found += piece
        except ssl.SSLWantReadError:
            pass
        return found

    async def turns(self, count: int = 40) -> None:
        """Of the loop; what the kernel holds is read where it is wanted."""
        for _ in range(count):
            await asyncio.sleep(0)
            self.bring(self.left)


Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


async def test_both_sides_are_heard(contexts: Contexts) -> None:
    one = Linked(contexts)
    await one.transport.greeted
    one.say(b"hello")
    one.transport.write(b"wel")
    one.transport.writelines([b"", b"come", bytes(100_000)])
    assert one.door.heard == [b"hello"]
    assert one.read() == b"welcome" + bytes(100_000)
    assert one.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
    assert one.transport.get_extra_info("peername") == ("127.0.0.1", 1)


async def test_no_more_is_handed_over_at_once_than_is_wanted_and_nothing_is_read_meanwhile(contexts: Contexts) -> None:
    one = Linked(contexts)
    one.transport.max_size = 20_000
    data = bytes(range(256)) * 1000
    one.say(data)
    assert not one.socket.reading
    await one.turns()
    assert b"".join(one.door.heard) == data
    assert max(map(len, one.door.heard)) == 20_000
    assert one.socket.reading


async def test_a_protocol_that_pauses_gets_no_more_until_it_goes_on(contexts: Contexts) -> None:
    one = Linked(contexts)
    one.transport.max_size = 20_000
    one.door.pause_after = 2
    data = bytes(range(256)) * 1000
    one.say(data)
    await one.turns()
    assert len(one.door.heard) == 2
    assert not one.transport.is_reading()
    one.transport.resume_reading()
    one.transport.resume_reading()  # twice does no harm
    await one.turns()
    assert b"".join(one.door.heard) == data


async def test_what_was_read_before_the_end_counts(contexts: Contexts) -> None:
    one = Linked(contexts)
    one.transport.max_size = 20_000
    one.say(data := bytes(60_000))
    one.transport.connection_lost(None)
    assert b"".join(one.door.heard) == data[: len(data) - len(one.left)]
    assert len(one.door.heard) > 1
    assert one.door.ends == ["lost"]
    await one.turns(3)
    assert one.door.ends == ["lost"]


async def test_who_closes_says_so_and_waits_for_the_answer(contexts: Contexts) -> None:
    one = Linked(contexts)
    one.transport.write(b"last")
    one.transport.close()
    one.transport.close()
    one.transport.write(b"too late")
    assert one.read() == b"last"
    assert not one.socket.closed
    one.tried(one.client.unwrap)
    assert one.socket.closed
    assert not one.socket.aborted


@pytest.mark.parametrize("how", ["words before its answer", "no answer"])
async def test_a_peer_that_does_not_answer_the_end_is_waited_for_so_long(contexts: Contexts, how: str) -> None:
    one = Linked(contexts)
    bound = later(one.transport)
    one.transport.close()
    if how != "no answer":
        one.say(b"still talking")
        one.say(b"and talking")
        assert one.door.heard == []
    assert (one.socket.closed, one.socket.aborted) == (False, False)
    bound()
    assert one.socket.aborted


def later(transport: TlsTransport) -> Callable[[], None]:
    """Runs what waits for the time of an end."""
    loop, found = asyncio.get_running_loop(), list[Callable[[], object]]()
    before = loop.call_later

    def call_later(delay: float, act: Callable[[], object]) -> asyncio.TimerHandle:
        assert delay == GOODBYE_S
        found.append(act)
        return before(3600, lambda: None)

    loop.call_later = call_later  # type: ignore[assignment, method-assign]

    def run() -> None:
        loop.call_later = before  # type: ignore[method-assign]
        [act] = found
        act()

    return run


@pytest.mark.parametrize("how", ["of TLS", "of the socket"])
async def test_a_peer_that_says_nothing_more_and_reads_nothing_is_waited_for_so_long(
    contexts: Contexts, how: str
) -> None:
    one = Linked(contexts)
    bound = later(one.transport)
    one.transport.write(b"unread")
    one.socket.waiting = 1000
    if how == "of TLS":
        try:
            one.client.unwrap()
        except ssl.SSLWantReadError:
            one.bring(one._out.read())
    else:
        assert one.transport.eof_received()
    assert one.door.ends == ["eof"]
    assert one.transport.is_closing()
    assert one.socket.closed
    one.transport.write(b"nobody hears this")
    bound()
    assert one.socket.aborted


@pytest.mark.parametrize("waiting", [0, 10])
async def test_the_same_without_tls(waiting: int) -> None:
    socket, told = Socket(), list[float]()
    socket.waiting = waiting
    loop = asyncio.get_running_loop()
    before, loop.call_later = loop.call_later, lambda delay, act: told.append(delay)  # type: ignore[assignment, method-assign, misc]
    try:
        farewell(socket)
    finally:
        loop.call_later = before  # type: ignore[method-assign]
    assert told == [GOODBYE_S] * bool(waiting)


async def test_a_handshake_that_fails_is_told_of_and_the_peer_hears_why(contexts: Contexts) -> None:
    one = Linked(contexts, greet=False)
    one.bring(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(ssl.SSLError, match="HTTP_REQUEST"):
        await one.transport.greeted
    assert one.socket.closed
    one.bring(b"more of it")
    assert not hasattr(one.door, "transport")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=str)
@pytest.mark.parametrize("verify", [ssl.CERT_NONE, ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED], ids=str)
async def test_a_session_ends_with_the_certificate_of_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: ssl.TLSVersion, verify: ssl.VerifyMode
) -> None:
    """Whoever came once with it came for two hours more, and logged in by it (SASL EXTERNAL)."""
    files = Files(tmp_path)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=files.ca)
    server.load_cert_chain(files.certificate, files.key)
    server.load_verify_locations(files.ca)
    server.verify_mode = verify
    client.load_cert_chain(*files.client("shop"))
    client.maximum_version = version
    first = Linked((server, client))
    first.say(b"hello")
    first.read()
    for ended in (False, True) if verify else (False,):
        if ended:
            monkeypatch.setattr(tls_transport, "wall", lambda: time.time() + 10 * 366 * 86_400)
        again = Linked((server, client), greet=False)
        again.client.session = first.client.session
        again.greet()
        assert again.client.session_reused
        if ended:
            with pytest.raises(ssl.SSLCertVerificationError) as refused:
                await again.transport.greeted
            assert why(refused.value) == "its certificate is not accepted: certificate has expired"
            assert not hasattr(again.door, "transport")
        else:
            await again.transport.greeted


async def test_of_a_handshake_that_fails_nothing_waits_for_a_collection(contexts: Contexts) -> None:
    """What OpenSSL has of it is 50 KiB, of which the collector knows nothing: thousands of strangers left 500 MB."""
    gc.disable()
    try:
        for wrong in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(400), b"\x15\x03\x01\x00\x02\x02\x28"):
            one = Linked(contexts, greet=False)
            one.bring(wrong)
            one.transport.connection_lost(None)
            gone = weakref.ref(one.transport)
            del one
            await asyncio.sleep(0)
            assert gone() is None
    finally:
        gc.enable()


async def test_a_peer_that_leaves_in_its_handshake_is_no_error_of_tls(contexts: Contexts) -> None:
    one = Linked(contexts, greet=False)
    one.transport.eof_received()
    with pytest.raises(ConnectionResetError):
        await one.transport.greeted
    assert one.socket.closed


async def test_a_handshake_that_nobody_waits_for_ends_without_a_word_to_the_loop(contexts: Contexts) -> None:
    """A process of a cluster ends with whatever its loop is told of."""
    told = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    for error in (None, TimeoutError("the network was away")):
        tls = TlsTransport(contexts[0], Door, BUFFER, GOODBYE_S)
        tls.connection_made(Socket())
        tls.connection_lost(error)
        del tls
    gc.collect()
    assert not told


async def test_what_is_no_tls_ends_a_connection(contexts: Contexts) -> None:
    one = Linked(contexts)
    one.bring(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert one.socket.closed
    one.transport.connection_lost(None)
    assert (one.door.heard, one.door.ends) == ([], ["lost"])


async def test_a_link_reads_as_much_at_once_as_its_appetite_says(contexts: Contexts) -> None:
    heard = list[bytes]()

    class Session:
        def receive(self, data: bytes) -> int:
            heard.append(data)
            return 100_000  # microseconds: so much at once is too much

    one = Linked(contexts, greet=False)
    guards = patient(asyncio.get_running_loop()).guards
    link = AmqpLink(lambda *_: Session(), guards.of("amqps").enter("127.0.0.1", 5000, print))  # type: ignore[arg-type, return-value]
    one.door = link  # type: ignore[assignment]
    one.greet()
    one.say(data := bytes(FIRST * 4))
    await one.turns()
    assert b"".join(heard) == data
    assert max(map(len, heard)) <= FIRST
    assert [len(piece) for piece in heard[3:6]] == [LEAST] * 3
    one.socket.waiting = 42
    assert link.buffered() == 42


async def test_that_nothing_follows_is_not_told_to_a_peer_that_has_gone() -> None:
    """It may have reset the connection in this very round of the loop: asyncio tells of that later."""
    guards = patient(asyncio.get_running_loop()).guards
    plain = AmqpLink(lambda *_: None, guards.of("amqp").enter("127.0.0.1", 5000, print))  # type: ignore[arg-type, return-value]
    told, socket = list[str](), Socket()
    plain.connection_made(socket)

    def write_eof() -> None:
        told.append("asked")
        raise OSError(107, "Transport endpoint is not connected")

    socket.can_write_eof = lambda: True  # type: ignore[method-assign]
    socket.write_eof = write_eof  # type: ignore[method-assign]
    plain.end_writing()
    assert told == ["asked"]


async def test_a_peer_in_its_handshake_costs_less_than_100_kib(contexts: Contexts) -> None:
    """Most of it OpenSSL's.  asyncio's own has 256 KiB more."""
    hello = Linked(contexts, greet=False)
    hello.tried(hello.client.do_handshake)
    made, before = list[TlsTransport](), resident()
    for _ in range(200):
        made.append(TlsTransport(contexts[0], lambda: hello.door, BUFFER, GOODBYE_S))
        made[-1].connection_made(Socket())
        for piece in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", bytes(200)):
            made[-1].get_buffer(-1)[: len(piece)] = piece
            made[-1].buffer_updated(len(piece))
    assert (resident() - before) / len(made) < 100 << 10


def resident() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
