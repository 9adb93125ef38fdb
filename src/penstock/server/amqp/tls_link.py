"""The link of a session over TLS.

asyncio's TLS hands over up to 256 KiB at once whatever was asked for, so what a door wants at a time is cut here, and
the rest waits for the next turn of the loop; bytes that wait below TLS count as unsent too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from penstock.server.amqp.door import AmqpLink
from penstock.server.tls.peer import peer_of

if TYPE_CHECKING:
    from penstock.server.amqp.door import AmqpDoor
    from penstock.server.guard.strangers import Stranger


class TlsLink(AmqpLink):
    """The asyncio transport of one session over TLS."""

    def __init__(self, door: AmqpDoor, stranger: Stranger) -> None:
        super().__init__(door, stranger)
        self._below: asyncio.Transport | None = None  # the socket's
        self._rest = bytearray()  # read and not handed over
        self._stopped = False  # by the session
        self._due = False  # `_hand_over` is on its way
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: the handshake is over."""
        self._tls = peer_of(transport)
        below: Any = getattr(cast("Any", transport), "_ssl_protocol", None)
        self._below = getattr(below, "_transport", None)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes came."""
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
