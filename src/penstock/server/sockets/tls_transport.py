"""TLS of one connection, between the transport of its socket and the protocol of a door.

    socket --bytes--> TlsTransport --what was said--> the door's protocol
           <--------               <-----------------

The ssl module does TLS; here is what goes in and out of it, and when.  asyncio's own has 256 KiB for the reads of each
connection from its first byte on, and so four hundred strangers in their handshakes took 130 MiB; it hands over as
much at once as there is, and what is buffered below it can be asked by nobody.  Here a loop's connections read into one
buffer, which is empty again before the next one reads, and what is wanted at a time (`max_size`) is all that is handed
over; the rest waits for the next turn of the loop, and the socket is not read meanwhile.

A connection that ends, whoever began with that, has a bound of time for what is unsent and for the peer's answer.

Of asyncio's own transports nothing waits for a collection when their connection is lost (`parted`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from time import time as wall
from typing import Any, cast

GOODBYE_S = 5.0
"""For what a client that says nothing more has not read, and for its answer to the end of TLS."""


def cut_off(transport: asyncio.WriteTransport) -> None:
    """Close it at once, if that is not over: asyncio's fails then, where it had been sending to its end."""
    if isinstance(transport, TlsTransport) or cast("object", transport.get_protocol()) is not None:
        transport.abort()


def farewell(transport: asyncio.Transport) -> None:
    """Its peer says nothing more, so asyncio closes it, once all is sent: to one that does not read, for ever."""
    if transport.get_write_buffer_size():
        asyncio.get_running_loop().call_later(GOODBYE_S, partial(cut_off, transport))


def parted(transport: asyncio.BaseTransport) -> None:
    """Its connection is lost: asyncio's has one of its own methods among its attributes, a cycle of garbage."""
    if "_read_ready_cb" in vars(transport):
        vars(transport)["_read_ready_cb"] = None


def refuse_ended(tls: ssl.SSLObject) -> None:
    """SSLCertVerificationError for a session that goes on with a client's certificate that has ended meanwhile.

    OpenSSL looks at a certificate once, and sessions are taken up again for hours.
    """
    shown = tls.getpeercert() if tls.session_reused else None
    if shown and ssl.cert_time_to_seconds(str(shown["notAfter"])) < wall():
        error = ssl.SSLCertVerificationError("the certificate of a session that goes on has ended")
        error.verify_message = "certificate has expired"  # as OpenSSL says it
        raise error


READ_MOST = 256 << 10
"""Bytes of one read of a socket."""

RECORD = 16 << 10
"""Bytes of a record of TLS, at most (RFC 8446, 5.1)."""


def read_buffer() -> memoryview:
    """What all TLS connections of one loop read into: the loop takes what one has read before it reads the next."""
    return memoryview(bytearray(READ_MOST))


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The protocol of a socket's transport, and the transport of a door's protocol.  For the thread of its loop."""

    def __init__(
        self, context: ssl.SSLContext, protocol: Callable[[], asyncio.BaseProtocol], buffer: memoryview, goodbye: float
    ) -> None:
        """protocol: makes the door's once the handshake is over.  buffer: the loop's `read_buffer`.

        goodbye: seconds for the end.
        """
        super().__init__()
        self.max_size = READ_MOST  # bytes that are handed over at once
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the handshake is over
        self.greeted.add_done_callback(_seen)
        self._protocol: Callable[[], asyncio.BaseProtocol] | None = protocol
        self._buffer = buffer
        self._goodbye_s = goodbye
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._below: asyncio.Transport
        self._above: asyncio.Protocol | asyncio.BufferedProtocol | None = None
        self._unsent = bytearray()  # what TLS does not take before it has read more
        self._closing = False
        self._deaf = False  # nothing of what comes is read any more
        self._stopped = False  # the protocol reads nothing now
        self._rest = False  # something was read and is not handed over
        self._due = False  # the rest is on its way
        self._bound: asyncio.TimerHandle | None = None  # of the end

    # -- the socket's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: the handshake begins with the peer's first bytes."""
        self._below = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio's: for one read; while little is wanted at a time little is read."""
        return self._buffer[: max(self.max_size, RECORD)]

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio's: so many bytes were read."""
        if self._deaf:
            return
        self._in.write(self._buffer[:nbytes])
        if self._closing:
            self._part()
        elif self._above is None:
            self._shake_hands()
        else:
            self._hand_over()

    def eof_received(self) -> bool:
        """asyncio's: the peer says nothing more."""
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionResetError("the peer left in its TLS handshake"))
        self._heard_all()
        return True  # nothing is closed here that is not closed already

    def pause_writing(self) -> None:
        """asyncio's: the peer does not read."""
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        """asyncio's: it reads again."""
        if self._above is not None:
            self._above.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the socket is closed; what was read before is handed over first."""
        if self._bound is not None:
            self._bound.cancel()
        if not self.greeted.done():
            self.greeted.set_exception(exc or ConnectionResetError("the peer left in its TLS handshake"))
        while self._rest and not self._stopped and not self._closing:
            self._hand_over()
        self._closing = self._deaf = True
        self._protocol = None  # who would have made one may know of this transport
        if (above := self._above) is not None:
            self._above = None  # they are not each other's garbage
            above.connection_lost(exc)
        parted(self._below)

    # -- TLS

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
            refuse_ended(self._tls)
        except ssl.SSLWantReadError:
            self._send()
            return
        except ssl.SSLError as error:
            self._fail()
            if not self.greeted.done():
                self.greeted.set_exception(error.with_traceback(None))  # whose frames have this transport: a cycle
            return
        self._send()
        assert self._protocol is not None
        self._above, self._protocol = cast("asyncio.Protocol | asyncio.BufferedProtocol", self._protocol()), None
        self._above.connection_made(self)
        if not self.greeted.done():
            self.greeted.set_result(None)
        self._hand_over()

    def _hand_over(self) -> None:
        """What is wanted at once of what was read; the rest in the next turn."""
        self._due = False
        if self._stopped or self._closing:
            self._rest = True
            return
        self._rest = False
        above, over = self._above, False
        try:
            over = self._fill(above) if isinstance(above, asyncio.BufferedProtocol) else self._feed(above)
        except ssl.SSLError:
            self._fail()
            return
        if over:
            self._heard_all()
        else:
            self._go_on_reading()

    def _feed(self, above: asyncio.Protocol | None) -> bool:
        """Hand over what was said; whether it was the last."""
        pieces, size, over = list[bytes](), 0, False
        try:
            while size < self.max_size:
                piece = self._tls.read(self.max_size - size)
                if not piece:
                    over = True
                    break
                pieces.append(piece)
                size += len(piece)
            else:
                self._rest = bool(self._tls.pending() or self._in.pending)
        except ssl.SSLWantReadError:
            pass
        self._go_on_writing()
        if size and above is not None:
            above.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return over

    def _fill(self, above: asyncio.BufferedProtocol) -> bool:
        """The same where the protocol has a buffer."""
        into, size, over = memoryview(above.get_buffer(-1)), 0, False
        try:
            while size < len(into):
                count = cast("int", self._tls.read(len(into) - size, into[size:]))
                if not count:
                    over = True
                    break
                size += count
            else:
                self._rest = bool(self._tls.pending() or self._in.pending)
        except ssl.SSLWantReadError:
            pass
        self._go_on_writing()
        if size:
            above.buffer_updated(size)
        return over

    def _go_on_writing(self) -> None:
        """What TLS itself has to answer, and what it had not taken."""
        if self._out.pending:
            self._send()
        if self._unsent:
            unsent, self._unsent = self._unsent, bytearray()
            self.write(unsent)

    def _go_on_reading(self) -> None:
        """The rest, then the socket."""
        if self._stopped or self._closing:
            return
        if not self._rest:
            self._below.resume_reading()
        elif not self._due:
            self._due = True
            self._below.pause_reading()
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _send(self) -> None:
        if data := self._out.read():
            self._below.write(data)

    def _heard_all(self) -> None:
        """The peer says nothing more: the protocol is told, and the connection ends when it has what is unsent."""
        if self._above is not None and not self._closing:
            self._above.eof_received()
        self.close()
        self._below.close()

    def _fail(self) -> None:
        """What came is no TLS: the peer hears why, if it reads that soon."""
        self._send()
        self._closing = self._deaf = True
        self._end_soon()
        self._below.close()

    def _end_soon(self) -> None:
        if self._bound is None:
            self._bound = asyncio.get_running_loop().call_later(self._goodbye_s, partial(cut_off, self._below))

    def _part(self) -> None:
        """Say that nothing follows, or hear that from the peer."""
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            self._send()
        except ssl.SSLError:  # it goes on with what it had to say
            self._send()
            self._deaf = True
        else:
            self._send()
            self._below.close()

    # -- the door's transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """asyncio's.  Of a connection that ends nothing more goes out."""
        if self._closing:
            return
        if self._unsent:
            self._unsent += data
            return
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left) :]
        except ssl.SSLWantReadError:
            self._unsent += left
        except ssl.SSLError:
            self._fail()
            return
        self._send()

    def close(self) -> None:
        """asyncio's: send what is buffered and that nothing follows; then the peer has some time to answer."""
        if self._closing:
            return
        self._closing = True
        self._end_soon()
        self._below.resume_reading()
        self._part()

    def abort(self) -> None:
        """asyncio's: close at once."""
        self._closing = self._deaf = True
        cut_off(self._below)

    def is_closing(self) -> bool:
        """asyncio's."""
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """asyncio's: of TLS `ssl_object` and `sslcontext`, else the socket's."""
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return self._below.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """asyncio's: hand over nothing; the kernel holds the peer back."""
        self._stopped = True
        if not self._closing:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        """asyncio's: go on, with what is here first."""
        if self._stopped:
            self._stopped = False
            self._go_on_reading()

    def is_reading(self) -> bool:
        """asyncio's."""
        return not self._stopped and not self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """asyncio's."""
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """asyncio's: bytes that the kernel has not taken."""
        return self._below.get_write_buffer_size() + len(self._unsent)

    def can_write_eof(self) -> bool:
        """asyncio's: with TLS the end of one side is the end of both."""
        return False


def _seen(greeted: asyncio.Future[None]) -> None:
    """Where nobody waits for a handshake any more its end is no error of the loop's."""
    if not greeted.cancelled():
        greeted.exception()
