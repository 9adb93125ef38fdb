"""The HTTP door: uvicorn on the server's own loop, and clients handed to it when the guard has taken them;
and the table of all paths that command the server.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import uvicorn

from penstock.errors import Unavailable
from penstock.operations.table import OPERATIONS
from penstock.server.guard.listening import bind
from penstock.server.http.administration import of_links, of_people, of_policies, of_vhosts
from penstock.server.http.definitions import Definitions
from penstock.server.http.deriving import Deriving
from penstock.server.http.events import Events
from penstock.server.http.facts import Facts
from penstock.server.http.link import HttpLink
from penstock.server.http.messages import Messages, Peeking
from penstock.server.http.queries import Querying
from penstock.server.http.topology import of_bindings, of_exchanges, of_queues
from penstock.server.operating import Operating, Waits
from penstock.wire.http import (
    definitions,
    events,
    health,
    messages,
    own,
)  # fmt: skip
from penstock.wire.http.app import KEPT_S, create_app

if TYPE_CHECKING:
    from penstock.server.guard.listening import Entry, Listener
    from penstock.server.guard.strangers import Stranger
    from penstock.server.http.events import Events
    from penstock.server.http.facts import Facts
    from penstock.server.opening.progress import Progress
    from penstock.server.services import Server
    from penstock.server.tls.keeping import Keeper
    from penstock.wire.http.routes import Row


class HttpDoor:
    """uvicorn without its own sockets and signals, on our loop."""

    def __init__(
        self, server: Server, version: str, entry: Entry, progress: Progress | None = None, kept_s: float = KEPT_S
    ) -> None:
        """entry: how clients are taken.  kept_s: how long metrics that were rendered are good."""
        facts = Facts(server, version, progress)
        self._events = Events(server, facts)
        config = uvicorn.Config(
            create_app(facts, rows_of(server, facts, self._events), kept_s),
            log_level="error",  # what strangers send is told by the guard, which counts the lines
            access_log=False,
            lifespan="off",
            http=HttpLink,
            h11_max_incomplete_event_size=server.settings.before_login.bytes,
            timeout_graceful_shutdown=1,
        )
        self._uvicorn = uvicorn.Server(config)
        self._entry = entry
        self._task: asyncio.Task[None] | None = None
        self._listeners: list[Listener] = []

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Bind and serve; returns the address that was bound."""
        sockets = bind(host, port)
        await self._begin()
        return self._open(self._entry.listener("http", self._link)).open(sockets)

    async def listen_tls(self, host: str, port: int, keeper: Keeper) -> tuple[str, int]:
        sockets = bind(host, port)
        await self._begin()
        return self._open(self._entry.listener("https", self._link, keeper.current)).open(sockets)

    def _open(self, listener: Listener) -> Listener:
        self._listeners.append(listener)
        return listener

    def _link(self, stranger: Stranger) -> asyncio.Protocol:
        """What uvicorn would make for a connection that it has accepted itself."""
        served = self._uvicorn
        state = served.lifespan.state
        return HttpLink(stranger, config=served.config, server_state=served.server_state, app_state=state)

    async def _begin(self) -> None:
        if self._task is not None:
            return
        self._task = asyncio.get_running_loop().create_task(self._serve())
        while not self._uvicorn.started:
            if self._task.done():
                raise Unavailable("the HTTP door did not open") from self._task.exception()
            await asyncio.sleep(0)
        self._events.begin()

    async def _serve(self) -> None:
        await self._uvicorn._serve([])  # pyright: ignore[reportPrivateUsage]  # `serve` takes signals

    async def close(self) -> None:
        """Finish what is being answered, then stop."""
        for listener in self._listeners:
            listener.close()
        self._events.close()
        self._uvicorn.should_exit = True
        if self._task is not None:
            await self._task


def rows_of(server: Server, facts: Facts, watching: Events) -> list[Row]:
    """The paths beside those that the facts answer."""
    waits = Waits()
    house = Operating(server, facts.refuse_early, waits)
    of, own_paths = Deriving(house), Deriving(house, names=True)
    talk = Messages(server, facts, waits)
    return [
        *(own_paths.plain(one, one.path) for one in OPERATIONS.values() if one.path is not None),
        *of_queues(own_paths),
        *of_exchanges(of, own_paths),
        *of_bindings(of, house),
        *of_people(of, house),
        *of_vhosts(of),
        *messages.rows(talk),
        *of_links(of, house),
        *of_policies(of, house),
        *definitions.rows(facts, Definitions(server, facts, waits)),
        *own.pipeline_rows(facts.pipelines),
        *own.rows(Peeking(server, facts, waits)),
        *own.query_rows(Querying(server, facts, waits)),
        *events.rows(watching),
        *health.rows(facts, house.declare, talk),
    ]
