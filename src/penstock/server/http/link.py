"""One HTTP connection: uvicorn's protocol, under the guard until it has logged in, and strict in what it reads.

    bytes -> StrictConnection -> uvicorn -> the application
                 '-> no HTTP/1.1: an answer with the reason, and the connection ends

A connection is a stranger (`server.guard.strangers`) until a request of it has logged in, and once more when it begins
a request and does not come to its end.  What a connection does wrong costs that connection: no error leaves the methods
that the loop calls, for whatever leaves them counts as a bug that stops the server.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.wire.http.strict import StrictConnection

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle
    from uvicorn.server import ServerState

    from penstock.server.guard.strangers import Stranger

logger = logging.getLogger("penstock.server.http")

REASON_MOST = 160
"""Characters of a reason that may quote a stranger."""


class HttpLink(H11Protocol):
    """A request finds its connection's `transport`, and this as `visitor`, in its scope under `state`."""

    def __init__(
        self, stranger: Stranger, *, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        super().__init__(config, server_state, app_state)
        assert config.h11_max_incomplete_event_size is not None
        self.conn: StrictConnection = StrictConnection(config.h11_max_incomplete_event_size)
        self._stranger = stranger
        self._deaf = False  # it was answered before its body was read, and nothing more is

    def known(self) -> None:
        """The application's: a request has logged in.  If it has a body that is read now."""
        self._stranger.known()
        if not self.conn.trusted:
            self.conn.trusted = True
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._deaf and not self.transport.is_closing():
            self.flow.resume_reading()
            with self._bounded():
                self.handle_events()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: a client connected."""
        own = cast("asyncio.Transport", transport)
        self._stranger.close, self._stranger.doing = own.abort, ""
        super().connection_made(own)
        self.app_state = {**self.app_state, "transport": own, "visitor": self}

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: it is gone."""
        self._stranger.gone()
        with self._bounded():
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes came."""
        stranger = self._stranger
        if stranger.idle:
            stranger.again()
        stranger.heard(len(data))
        if self._deaf or self.transport.is_closing():
            return
        with self._bounded():
            super().data_received(data)
        if self.conn.withheld:
            self.flow.pause_reading()
        if self.conn.begun and not stranger.counted and not self.transport.is_closing():
            stranger.again()

    def on_response_complete(self) -> None:
        """uvicorn's: an answer is on its way."""
        if self._stranger.counted:
            self._deaf = self.conn.withheld
            self._stranger.again(idle=not self._deaf)
        with self._bounded():  # the next request may be here already
            super().on_response_complete()
        if self._deaf and self.transport.can_write_eof():
            with suppress(OSError):  # it has gone already
                self.transport.write_eof()  # so that it hears the answer, and no reset while it sends

    def timeout_keep_alive_handler(self) -> None:
        """uvicorn's: nothing came for a while."""
        with self._bounded():
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """uvicorn's: the server stops."""
        with self._bounded():
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's, from within the handling of what h11 has raised: the peer does not speak HTTP/1.1 as one may."""
        error = sys.exception()
        why = str(error or msg)[:REASON_MOST]
        self._stranger.tell(why)
        cycle = cast("RequestResponseCycle | None", self.cycle)  # there is none before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # the application has nobody to answer any more
            cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:  # by hand: h11 may take it for the answer to a HEAD
            status = HTTPStatus(getattr(error, "error_status_hint", 400))
            body = orjson.dumps({"error": "bad_request", "reason": why})
            head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        self.transport.close()

    @contextmanager
    def _bounded(self) -> Generator[None]:
        """What goes wrong ends this connection and no more."""
        try:
            yield
        except h11.ProtocolError as error:  # of ours: it did what cannot be answered any more
            self._stranger.tell(str(error)[:REASON_MOST])
            self.transport.abort()
        except Exception as error:  # the border of one connection: nothing else is touched behind it
            logger.error("a connection of %s ended by a bug", self._stranger.host, exc_info=error)
            self.transport.abort()
