"""The HTTP door: uvicorn on the server's own loop, and clients over TLS handed to it when their handshake is over."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.errors import Unavailable
from penstock.server.http.events import Events
from penstock.server.http.facts import Facts
from penstock.server.http.rows import rows_of
from penstock.server.opening.listening import bind
from penstock.wire.http.app import create_app

if TYPE_CHECKING:
    from penstock.server.app import Server
    from penstock.server.opening.progress import Progress
    from penstock.server.tls.handshakes import Handshakes
    from penstock.server.tls.keeping import Keeper


class LinkedProtocol(H11Protocol):
    """uvicorn's protocol; a request finds its connection's transport under `state`, as `transport`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: a client connected."""
        super().connection_made(cast("asyncio.Transport", transport))
        self.app_state = {**self.app_state, "transport": transport}


class HttpDoor:
    """uvicorn without its own signal handling, on our loop."""

    def __init__(self, server: Server, version: str, progress: Progress | None = None) -> None:
        facts = Facts(server, version, progress)
        self._events = Events(server, facts)
        config = uvicorn.Config(
            create_app(facts, rows_of(server, facts, self._events)),
            log_level="warning",
            access_log=False,
            lifespan="off",
            http=LinkedProtocol,
            timeout_graceful_shutdown=1,
        )
        self._uvicorn = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None
        self._handshakes: Handshakes | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Bind and serve; returns the address that was bound."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=128)
        bound = listener.getsockname()
        await self._begin(listener)
        return bound[0], bound[1]

    async def listen_tls(self, host: str, port: int, keeper: Keeper) -> tuple[str, int]:
        """The same over TLS; after `listen`, if there is that, too."""
        from penstock.server.tls.handshakes import Handshakes

        sockets = bind(host, port)
        if self._task is None:
            await self._begin()
        self._handshakes = Handshakes("https", keeper.current, self._protocol)
        return self._handshakes.open(sockets)

    def _protocol(self) -> asyncio.Protocol:
        """What uvicorn makes for a connection it has accepted itself."""
        served = self._uvicorn
        make = cast("Callable[..., asyncio.Protocol]", served.config.http_protocol_class)
        return make(config=served.config, server_state=served.server_state, app_state=served.lifespan.state)

    async def _begin(self, *listeners: socket.socket) -> None:
        self._task = asyncio.get_running_loop().create_task(self._serve(listeners))
        while not self._uvicorn.started:
            if self._task.done():
                raise Unavailable("the HTTP door did not open") from self._task.exception()
            await asyncio.sleep(0)
        self._events.begin()

    async def _serve(self, listeners: Sequence[socket.socket]) -> None:
        with contextlib.ExitStack() as open_:
            for listener in listeners:
                open_.enter_context(contextlib.closing(listener))
            await self._uvicorn._serve(list(listeners))  # pyright: ignore[reportPrivateUsage]  # `serve` takes signals

    async def close(self) -> None:
        """Finish what is being answered, then stop."""
        if self._handshakes is not None:
            self._handshakes.close()
        self._events.close()
        self._uvicorn.should_exit = True
        if self._task is not None:
            await self._task
