"""The HTTP door: uvicorn on the server's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import uvicorn

from penstock.errors import Unavailable
from penstock.server.http.facts import Facts
from penstock.server.http.rows import rows_of
from penstock.wire.http.app import create_app

if TYPE_CHECKING:
    from penstock.server.app import Server
    from penstock.server.opening.progress import Progress


class HttpDoor:
    """uvicorn without its own signal handling, on our loop."""

    def __init__(self, server: Server, version: str, progress: Progress | None = None) -> None:
        facts = Facts(server, version, progress)
        config = uvicorn.Config(
            create_app(facts, rows_of(server, facts)),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._uvicorn = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Bind and serve; returns the address that was bound."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=128)
        bound = listener.getsockname()
        self._task = asyncio.get_running_loop().create_task(self._serve(listener))
        while not self._uvicorn.started:
            if self._task.done():
                raise Unavailable(f"the HTTP door did not open on {host}:{port}") from self._task.exception()
            await asyncio.sleep(0)
        return bound[0], bound[1]

    async def _serve(self, listener: socket.socket) -> None:
        with contextlib.closing(listener):
            await self._uvicorn._serve([listener])  # pyright: ignore[reportPrivateUsage]  # `serve` takes over signals

    async def close(self) -> None:
        """Finish what is being answered, then stop."""
        self._uvicorn.should_exit = True
        if self._task is not None:
            await self._task
