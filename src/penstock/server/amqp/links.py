"""The transports of AMQP sessions, plain and with TLS, and how much they read at a time; the way between door and core.

What a read brings is acted on before others have their turn.  256 KiB of publishes to one queue take 2 ms, as acks of
one message each 30 ms, and as declares 200 ms: the size is halved while that is long, and doubled again while full ones
are short.  For more than 128 KiB the system maps memory anew each time, however few come: that is asked for only of who
has just filled as much.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from penstock.server.strangers import Stranger
    from penstock.server.tls import Peer

SEND_MOST = 1 << 20
"""Bytes that wait for a peer beyond which nothing more is delivered to it."""

SEND_FREE = 64 << 10
"""Bytes that may wait for any peer, however short the budget is; more only as long as that has room."""

MOST = 256 << 10
FREE = 128 << 10
LEAST = 4 << 10
FIRST = 32 << 10
"""Bytes."""

LONG_US = 8_000
SHORT_US = 3_000
"""Between the two the size stays."""


class Appetite:
    """How many bytes the next read of one connection may bring."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = FIRST  # bytes of the next read

    def took(self, size: int, micros: int) -> bool:
        """So many bytes took so long; whether `size` is now another."""
        before = self.size
        if micros > LONG_US:
            self.size = max(LEAST, min(before, size) // 2)
        elif micros < SHORT_US and size >= before:
            self.size = min(MOST, 2 * before)
        elif before > FREE > size:
            self.size = FREE
        return self.size != before


class Link(Protocol):
    """One connection's bytes: out through here, in as calls of `Session.receive`."""

    def write(self, data: bytes) -> None:
        """Send, or buffer and call `pause_writing`."""
        ...

    def close(self) -> None:
        """Send what is buffered, then close."""
        ...

    def abort(self) -> None:
        """Close at once: what the peer has not read by now it never gets."""
        ...

    def end_writing(self) -> None:
        """Send what is buffered, then say that nothing follows, where the transport can say that; read on."""
        ...

    def buffered(self) -> int:
        """Bytes written and not yet taken by the kernel."""
        ...

    def keep_below(self, size: int) -> None:
        """Call `pause_writing` beyond so many buffered bytes from now on, and at once if there are more."""
        ...

    def pause_reading(self) -> None:
        """No `receive` is called any more, until reading resumes."""
        ...

    def resume_reading(self) -> None:
        """`receive` is called again for what comes."""
        ...


class Conversing(Protocol):
    """A session, as its link knows it."""

    def receive(self, data: bytes) -> int:
        """Handle what one read brought; microseconds that this took."""
        ...

    def pause_writing(self) -> None:
        """The peer does not read."""
        ...

    def resume_writing(self) -> None:
        """What was held back for the peer may be written: it reads again."""
        ...

    def connection_lost(self) -> None:
        """The link is gone, and nothing that was written later arrives."""
        ...


class Connect(Protocol):
    """Begins the session of a link."""

    def __call__(self, link: Link, peer: str, local: str, tls: Peer | None, stranger: Stranger, /) -> Conversing:
        """peer, local: addresses with ports."""
        ...


class AmqpLink(asyncio.Protocol):
    """The asyncio transport of one session."""

    def __init__(self, connect: Connect, stranger: Stranger) -> None:
        self.transport: asyncio.Transport
        self.write: Callable[[bytes], None]  # bytes for the peer, in the order of the calls
        self.session: Conversing
        self._connect = connect
        self._stranger = stranger
        self._tls: Peer | None = None
        self._appetite = Appetite()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: a client connected, and its session begins."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by class
        self.write = self.transport.write
        self.keep_below(SEND_MOST)
        self._read_at_most(self._appetite.size)
        stranger, here = self._stranger, self.transport.get_extra_info("sockname")[:2]
        peer = f"{stranger.host}:{stranger.port}"
        self.session = self._connect(cast("Link", self), peer, f"{here[0]}:{here[1]}", self._tls, stranger)
        stranger.close, stranger.doing = self.transport.abort, ""

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes came, at most as many as `Appetite` asked for."""
        if self._stranger.counted:
            self._stranger.heard(len(data))
        if self._appetite.took(len(data), self.session.receive(data)):
            self._read_at_most(self._appetite.size)

    def _read_at_most(self, size: int) -> None:
        """What asyncio asks of the socket at once: an attribute that all its socket transports have."""
        cast("Any", self.transport).max_size = size

    def pause_writing(self) -> None:
        """asyncio's: the peer does not read."""
        self.session.pause_writing()

    def resume_writing(self) -> None:
        """asyncio's: the buffer is below its low mark, since the peer reads again."""
        self.session.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the link is gone."""
        self._stranger.gone()
        self.session.connection_lost()

    def buffered(self) -> int:
        """Bytes that the kernel has not taken."""
        return self.transport.get_write_buffer_size()

    def keep_below(self, size: int) -> None:
        """How much may wait until the session is told to pause; it goes on at a quarter."""
        self.transport.set_write_buffer_limits(high=size, low=size // 4)

    def close(self) -> None:
        """Send what is buffered, then close.  Once: of one that closes asyncio's TLS makes one that nobody can ask."""
        if not self.transport.is_closing():
            self.transport.close()

    def abort(self) -> None:
        """Close at once: a peer that does not read would keep what is buffered, and its link with it, for ever."""
        self.transport.abort()

    def end_writing(self) -> None:
        """Send what is buffered, then say that nothing follows, which TLS of asyncio cannot; read on."""
        if self.transport.can_write_eof():
            with suppress(OSError):  # the peer has gone already, which asyncio tells by itself
                self.transport.write_eof()

    def pause_reading(self) -> None:
        """Let the kernel hold the peer back."""
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        self.transport.resume_reading()


class TlsLink(AmqpLink):
    """The asyncio transport of one session over TLS.

    asyncio's TLS hands over up to 256 KiB at once whatever was asked for, so what is wanted at a time is cut here, and
    the rest waits for the next turn of the loop; bytes that wait below TLS count as unsent too.
    """

    def __init__(self, connect: Connect, stranger: Stranger) -> None:
        super().__init__(connect, stranger)
        self._below: asyncio.Transport | None = None  # the socket's
        self._rest = bytearray()  # read and not handed over
        self._stopped = False  # by the session
        self._due = False  # `_hand_over` is on its way
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: the handshake is over."""
        from penstock.server.tls import peer_of  # for those who have TLS

        self._tls = peer_of(transport)
        below: Any = getattr(cast("Any", transport), "_ssl_protocol", None)
        self._below = getattr(below, "_transport", None)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes came, at most as many as `Appetite` asked for."""
        if self._rest:
            self._rest += data
        elif len(data) <= self._appetite.size and not self._stopped:
            super().data_received(data)
        else:
            self._rest += data
            self.transport.pause_reading()
            self._hand_over()

    def _hand_over(self) -> None:
        """As much as is wanted at once; the rest in the next turn."""
        self._due = False
        if self._stopped or not self._rest:
            return
        size = self._appetite.size
        piece = bytes(self._rest[:size])
        del self._rest[:size]
        super().data_received(piece)
        if self._rest:
            self._go_on()
        else:
            self._read_on()

    def _read_on(self) -> None:
        if not self._stopped and not self._lost:
            self.transport.resume_reading()

    def _go_on(self) -> None:
        if not self._due and not self._lost:
            self._due = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the link is gone; what was read before is handed over first."""
        self._lost = True
        while self._rest and not self._stopped:
            self._hand_over()
        self._rest.clear()
        super().connection_lost(exc)

    def pause_reading(self) -> None:
        """Hand over nothing, and let TLS and the kernel hold the peer back."""
        self._stopped = True
        if not self._rest:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on, with what is here first."""
        self._stopped = False
        if self._rest:
            self._go_on()
        else:
            self.transport.resume_reading()

    def buffered(self) -> int:
        """Bytes that the kernel has not taken, above TLS and below."""
        below = self._below
        return self.transport.get_write_buffer_size() + (below.get_write_buffer_size() if below is not None else 0)


WAY_READ = 128 << 10
"""Bytes of one read of a way; for more the system maps memory anew each time."""

WAY_BUFFER = 1 << 20
"""Bytes of its buffers in the kernel that are asked for; it may give less."""


class WayLink(asyncio.Protocol):
    """One side of the socket between door and core."""

    def __init__(
        self, receive: Callable[[bytes], None], lost: Callable[[], None], writable: Callable[[bool], None]
    ) -> None:
        """writable: told whether the other side reads."""
        self.transport: asyncio.Transport
        self._receive = receive
        self._lost = lost
        self._writable = writable

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        self.transport = cast("asyncio.Transport", transport)
        cast("Any", transport).max_size = WAY_READ
        self.transport.set_write_buffer_limits(high=WAY_BUFFER)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WAY_BUFFER)

    def data_received(self, data: bytes) -> None:
        """asyncio's."""
        self._receive(data)

    def pause_writing(self) -> None:
        """asyncio's."""
        self._writable(False)

    def resume_writing(self) -> None:
        """asyncio's."""
        self._writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's."""
        self._lost()
