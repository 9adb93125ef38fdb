"""The HTTP door: the table of all paths that command the server, and where strangers' requests are read.

apart       in a process of its own (`front`), which hands on what it has read (`doorway`); a server's own way
not apart   on the server's own loop (`connections`): `[server] doors = 0`, and brokers in a test
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from penstock.operations.acts import OPERATIONS
from penstock.server.http import overview
from penstock.server.http.administration import of_links, of_people, of_pipelines, of_policies, of_vhosts
from penstock.server.http.app import KEPT_S, Application
from penstock.server.http.definitions import Definitions
from penstock.server.http.events import Events
from penstock.server.http.facts import Facts
from penstock.server.http.messages import Messages, Peeking, message_rows
from penstock.server.http.reception import Reception
from penstock.server.http.routes import Deriving
from penstock.server.http.statements import Querying
from penstock.server.http.topology import of_bindings, of_exchanges, of_queues, of_super_streams
from penstock.server.listening import bind
from penstock.server.operating import Operating, Waits

if TYPE_CHECKING:
    from penstock.server.http.connections import HttpServer
    from penstock.server.http.doorway import HttpDoors
    from penstock.server.http.routes import Row
    from penstock.server.listening import Entry, Listener
    from penstock.server.progress import Progress
    from penstock.server.services import Server
    from penstock.server.tls import Identity, Keeper


class HttpDoor:
    """HTTP and HTTPS of one server.  For the loop's thread."""

    def __init__(
        self,
        server: Server,
        version: str,
        entry: Entry,
        progress: Progress | None = None,
        kept_s: float = KEPT_S,
        doors: HttpDoors | None = None,
    ) -> None:
        """entry: how clients are taken here.  kept_s: how long metrics that were rendered are good.

        doors: the process that takes them instead.
        """
        facts = Facts(server, version, progress)
        self._events = Events(server, facts)
        self.application = Application(facts, rows_of(server, facts, self._events), kept_s)
        trusted = server.settings.server.trusted_proxies
        self.app = Reception(self.application, self.application.open, trusted)
        self._head_most = server.settings.before_login.bytes
        self._entry = entry
        self._doors = doors
        self._here: HttpServer | None = None
        self._listeners: list[Listener] = []
        self._began = False

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Bind and serve; returns the address that was bound."""
        return await self._listen("http", host, port)

    async def listen_tls(self, host: str, port: int, keeper: Keeper) -> tuple[str, int]:
        """The same with TLS, with the identity that is the keeper's at the time."""
        return await self._listen("https", host, port, keeper)

    async def _listen(self, name: str, host: str, port: int, keeper: Keeper | None = None) -> tuple[str, int]:
        if self._doors is not None:
            bound = await self._listen_apart(self._doors, host, port, keeper)
        else:
            sockets = bind(host, port)
            here = await self._begun()
            listener = here.listener(self._entry, name, None if keeper is None else keeper.current)
            self._listeners.append(listener)
            bound = listener.open(sockets)
        if not self._began:
            self._began = True
            self._events.begin()
        return bound

    async def _listen_apart(self, doors: HttpDoors, host: str, port: int, keeper: Keeper | None) -> tuple[str, int]:
        doors.app = self.application
        loop = asyncio.get_running_loop()
        listen = doors.listen if keeper is None else partial(doors.listen, identity=keeper.identity)
        bound = await loop.run_in_executor(None, listen, host, port)
        await loop.run_in_executor(None, doors.let_in)
        return bound

    async def _begun(self) -> HttpServer:
        if self._here is None:
            from penstock.server.http.connections import HttpServer  # a server whose door is apart reads no HTTP

            self._here = HttpServer(self.app, self._head_most)
        await self._here.begin()
        return self._here

    def renew(self, identity: Identity) -> None:
        """Show another certificate from now on.  A thread may do this."""
        if self._doors is not None:
            self._doors.renew(identity)

    async def close(self) -> None:
        """Finish what is being answered, then stop."""
        for listener in self._listeners:
            listener.close()
        self._events.close()
        if self._doors is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._doors.close)
        if self._here is not None:
            self._here.stop()
            await self._here.ended()


def rows_of(server: Server, facts: Facts, watching: Events) -> list[Row]:
    """The paths beside those that the facts answer."""
    waits = Waits()
    house = Operating(server, facts.refuse_early, waits)
    of, own_paths = Deriving(house), Deriving(house, tells=True)
    talk = Messages(server, facts, waits)
    return [
        *(own_paths.plain(one, one.path) for one in OPERATIONS.values() if one.path is not None),
        *of_queues(own_paths),
        *of_exchanges(of, own_paths),
        *of_bindings(of, house),
        *of_super_streams(house),
        *of_people(of, house),
        *of_vhosts(of),
        *message_rows(talk),
        *of_links(of, house),
        *of_policies(of, house),
        *Definitions(server, facts, waits).rows(),
        *of_pipelines(of),
        *Peeking(server, facts, waits).rows(),
        *Querying(server, facts, waits).rows_of_table(),
        *watching.rows(),
        *overview.health_rows(facts, talk),
    ]
