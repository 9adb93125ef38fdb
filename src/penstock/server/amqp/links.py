"""The transports of AMQP sessions, plain and with TLS, and how much they read at a time; the way between door and core.

What a read brings is acted on before others have their turn.  256 KiB of publishes to one queue take 2 ms, as acks of
one message each 30 ms, and as declares 200 ms: the size is halved while that is long, and doubled again while full ones
are short.  For more than 128 KiB the system maps memory anew each time, however few come: that is asked for only of who
has just filled as much.

What a session knows of its client and says to him is the port, the same wherever the client's bytes are read.  A client
whose bytes come to this process has a wire machine, `session.Outgoing` and a link; one at a door that is a process has
`far.Far` in place of all three.  A session knows these shapes alone.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from penstock.server.sockets.tls_transport import cut_off, farewell, parted
from penstock.units import format_address

if TYPE_CHECKING:
    from penstock.records.entries import Topic
    from penstock.records.field_tables import FieldValue
    from penstock.server.people.logins import Derive
    from penstock.server.sockets.strangers import Stranger
    from penstock.server.sockets.tls import Peer
    from penstock.wire.amqp.deliver import DeliveryEncoder
    from penstock.wire.amqp.frames import Bytes
    from penstock.wire.amqp.methods import Method

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

    def close(self) -> None:
        """Send what is buffered, then close."""

    def abort(self) -> None:
        """Close at once: what the peer has not read by now it never gets."""

    def end_writing(self) -> None:
        """Send what is buffered, then say that nothing follows, where the transport can say that; read on."""

    def buffered(self) -> int:
        """Bytes written and not yet taken by the kernel."""
        ...

    def keep_below(self, size: int) -> None:
        """Call `pause_writing` beyond so many buffered bytes from now on, and at once if there are more."""

    def pause_reading(self) -> None:
        """No `receive` is called any more, until reading resumes."""

    def resume_reading(self) -> None:
        """`receive` is called again for what comes."""


class Guarded(Protocol):
    """What whoever guards a door knows of a client until it has logged in."""

    @property
    def held(self) -> bool:
        """Whether it waits for us."""
        ...

    @held.setter
    def held(self, held: bool, /) -> None: ...

    @property
    def derive(self) -> Derive | None:
        """Who makes a digest of its password; None: this process does."""
        ...

    def known(self) -> None:
        """It has logged in, so that the bounds of strangers end."""

    def tell(self, why: str, /) -> None:
        """A line in the log: it was sent away."""


class Came(NamedTuple):
    """Who has come, before anybody knows more of him."""

    link: Link
    peer: str  # his address with its port
    local: str = ""  # ours
    tls: Peer | None = None  # what he showed in his handshake; None without TLS
    stranger: Guarded | None = None  # what he is to the guard until he has logged in; None: nobody guards


class Conversing(Protocol):
    """A session, as its link knows it."""

    def receive(self, data: bytes) -> int:
        """Handle what one read brought; microseconds that this took."""
        ...

    def pause_writing(self) -> None:
        """The peer does not read."""

    def resume_writing(self) -> None:
        """What was held back for the peer may be written: it reads again."""

    def connection_lost(self) -> None:
        """The link is gone, and nothing that was written later arrives."""


class Connect(Protocol):
    """Begins the session of a link."""

    def __call__(self, came: Came, /) -> Conversing: ...


class Unheard:
    """In place of a session that a fault has kept from beginning: its link is being closed."""

    def receive(self, data: bytes) -> int:
        """Nobody hears it."""
        return 0

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self) -> None: ...


class AmqpLink(asyncio.Protocol):
    """The asyncio transport of one session."""

    def __init__(self, connect: Connect, stranger: Stranger) -> None:
        self.transport: asyncio.Transport
        self.write: Callable[[bytes], None]  # bytes for the peer, in the order of the calls
        self.session: Conversing
        self._connect = connect
        self._stranger = stranger
        self._appetite = Appetite()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: a client connected, and its session begins."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by class
        self.write = self.transport.write
        self.keep_below(SEND_MOST)
        self._read_at_most(self._appetite.size)
        stranger, here = self._stranger, self.transport.get_extra_info("sockname")[:2]
        peer, tls = format_address(stranger.host, stranger.port), None
        if transport.get_extra_info("ssl_object") is not None:
            from penstock.server.sockets.tls import peer_of  # for those who have TLS

            tls = peer_of(transport)
        self.session = self._connect(Came(cast("Link", self), peer, format_address(*here), tls, stranger))
        stranger.close, stranger.doing = partial(cut_off, self.transport), ""

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes came, at most as many as `Appetite` asked for."""
        if self._stranger.counted:
            self._stranger.heard(len(data))
        if self._appetite.took(len(data), self.session.receive(data)):
            self._read_at_most(self._appetite.size)

    def _read_at_most(self, size: int) -> None:
        """What is asked of the socket at once: an attribute that asyncio's socket transports have, and our TLS's."""
        cast("Any", self.transport).max_size = size

    def pause_writing(self) -> None:
        """asyncio's: the peer does not read."""
        self.session.pause_writing()

    def resume_writing(self) -> None:
        """asyncio's: the buffer is below its low mark, since the peer reads again."""
        self.session.resume_writing()

    def eof_received(self) -> None:
        """asyncio's: the peer says nothing more."""
        farewell(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the link is gone."""
        self._stranger.gone()
        self.session.connection_lost()
        del self.session  # they are not each other's garbage
        parted(self.transport)

    def buffered(self) -> int:
        """Bytes that the kernel has not taken."""
        return self.transport.get_write_buffer_size()

    def keep_below(self, size: int) -> None:
        """How much may wait until the session is told to pause; it goes on at a quarter."""
        self.transport.set_write_buffer_limits(high=size, low=size // 4)

    def close(self) -> None:
        """Send what is buffered, then close."""
        self.transport.close()

    def abort(self) -> None:
        """Close at once: a peer that does not read would keep what is buffered, and its link with it, for ever."""
        cut_off(self.transport)

    def end_writing(self) -> None:
        """Send what is buffered, then say that nothing follows, which TLS cannot; read on."""
        if self.transport.can_write_eof():
            with suppress(OSError):  # the peer has gone already, which asyncio tells by itself
                self.transport.write_eof()

    def pause_reading(self) -> None:
        """Let the kernel hold the peer back."""
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        self.transport.resume_reading()


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


class Client(Protocol):
    """What was negotiated, and what is said; what the client could not hear any more is dropped."""

    mechanism: str
    frame_max: int
    channel_max: int
    heartbeat: int
    partial_size: int
    """Bytes of bodies that were announced and are not complete."""
    client_capabilities: frozenset[str]

    @property
    def client_properties(self) -> Mapping[str, FieldValue]:
        """As its client has told them."""
        ...

    def largest_partial(self) -> int:
        """The channel with the largest body that is not complete; only where there is one."""
        ...

    def accept_login(self) -> None:
        """The credentials are good: tune the connection."""

    def refuse_login(self) -> None:
        """The credentials are not good: close with ACCESS_REFUSED."""

    def accept_open(self) -> None:
        """The vhost may be used."""

    def send(self, channel: int, method: Method, /) -> None:
        """Send a method on a channel."""

    def send_pieces(self, channel: int, pieces: Iterable[Bytes], /) -> None:
        """Encoded frames of a channel."""

    def confirm(self, channel: int, tag: int, /, *, multiple: bool = False) -> None:
        """A publish is durable, with `multiple` all up to it."""

    def refuse(self, channel: int, tag: int, /, *, multiple: bool = False) -> None:
        """A publish is refused: basic.nack."""

    def fail_channel(self, channel: int, code: int, text: str, method: type[Method] | None = None, /) -> None:
        """Close a channel with a code and a text."""

    def fail_connection(self, code: int, text: str, method: type[Method] | None = None, /) -> None:
        """Close the connection with a code and a text."""


class Sending(Protocol):
    """What goes out to one client, in order, and how much of it waits."""

    blocked: bool
    """The client does not read."""
    unsent: int
    """Bytes of deliveries of this turn, about."""
    sent_at: int
    sent: int
    writes: int

    @property
    def taken(self) -> int:
        """Of the bytes sent, those that the kernel has taken."""
        ...

    @property
    def full(self) -> bool:
        """Whether as much waits for the client as may."""
        ...

    def deliver(self, channel: int, pieces: Sequence[Bytes], size: int, /) -> None:
        """Encoded deliveries of a channel, with about so many bytes of messages."""

    def deliver_one(
        self, channel: int, encoder: DeliveryEncoder, tag: int, again: bool, topic: Topic, header: bytes, body: bytes, /
    ) -> None:
        """One delivery of a channel."""

    def send(self, channel: int, method: Method, /) -> None:
        """A method frame, in order with deliveries."""

    def confirm_up_to(self, channel: int, sequence: int, /) -> None:
        """Everything that was published up to a number is durable."""

    def take_machine_output(self) -> None:
        """What the machine has to say goes behind the deliveries so far."""

    def mark_dirty(self) -> None:
        """See that it leaves at the end of the turn."""

    def speak(self) -> None:
        """The same, whatever became of it before."""

    def count_unsent(self) -> None:
        """Charge what waits to the budget."""

    def end(self) -> None:
        """The link is gone: nothing is written any more, and nothing waits."""

    def part(self) -> None:
        """The session is over, and is not held by what comes late."""


class Apart(Client, Sending, Guarded, Link, Protocol):
    """A client whose bytes another process reads: all of it in one."""
