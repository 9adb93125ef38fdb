"""The HTTP door: the table of all paths that command the server, and where strangers' requests are read.

apart       in a process of its own (`front`), which hands on what it has read (`doorway`); a server's own way
not apart   on the server's own loop (`connections`): `[server] doors = 0`, and brokers in a test

Behind it is the application: logins, probes, and the table of paths under `/api`.  `/healthz`, `/readyz` and `/metrics`
ask for no login: probes and scrapers have none, and they show counts and no name of anything that users have.
Everything else asks for a login, which `reception` has found in the request, here or in the door's process;
`/metrics/per-object`, for users with the tag monitoring, may be opened by the settings.  An unknown object is 404 in
RabbitMQ's shape, an unusable query or body 400 with a reason.  While the server recovers all of `/api` that asks for
queues is 503; of a member that follows it is 421, and who leads.

`/api/openapi.json` is what the table of paths says of itself, in the words of OpenAPI 3.1.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.operations import OPERATIONS
from penstock.records.rights import ADMINISTRATOR, LOGIN, MANAGEMENT
from penstock.server.base.faults import TOLD, Told, reports
from penstock.server.doors.line import Broken, Ended
from penstock.server.http import overview, topology
from penstock.server.http.administration import of_links, of_people, of_pipelines, of_policies, of_vhosts
from penstock.server.http.definitions import Definitions
from penstock.server.http.events import Events
from penstock.server.http.facts import Facts
from penstock.server.http.messages import Messages, message_rows
from penstock.server.http.overview import KEPT_S, Probe, Probes
from penstock.server.http.peeking import Peeking
from penstock.server.http.reception import Reception, bare, open_paths, unknown
from penstock.server.http.routes import Ask, Deriving, Row, Table
from penstock.server.http.statements import Pieces, Querying
from penstock.server.http.topology import of_bindings, of_exchanges, of_queues, of_super_streams
from penstock.server.http.totals import VhostDoors
from penstock.server.operating import Operating, Waits
from penstock.server.people.access import ACTING, NOBODY
from penstock.server.people.logins import Derive
from penstock.server.sockets.listening import Entry, Listener, bind
from penstock.wire.http.bodies import SLOWEST, Reading, Room
from penstock.wire.http.events import EventStream
from penstock.wire.http.lists import LIST_QUERY, BadQuery, json_response, not_found, of_error, refusal

if TYPE_CHECKING:
    from penstock.server.base.progress import Progress
    from penstock.server.http.connections import HttpServer
    from penstock.server.http.doorway import HttpDoors
    from penstock.server.services import Server
    from penstock.server.sockets.tls import Identity, Keeper


UNREAD_S = 30.0
"""A piece of an answer has so many seconds to be read, and one more for each `SLOWEST` bytes: until then its request is
one of those that its user may have under way.
"""

METHODS = ("GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD")

Contain: TypeAlias = "Callable[[Exception], None]"
Heard: TypeAlias = "Callable[[], Awaitable[None]]"


def _told(error: Exception) -> None:
    reports.tell(error, "http")


async def _at_once() -> None:
    """Nothing else takes time."""


class Visitor(Protocol):
    """A connection, to whoever counts those that have not logged in."""

    derive: Derive | None
    """Who makes a digest of its password; None: nobody but this process."""

    def known(self) -> None: ...


class Application:
    """ASGI's, behind the reception: each request has `login` in its scope.  For the loop's thread."""

    def __init__(
        self,
        facts: Facts,
        rows: Sequence[Row] = (),
        kept_s: float = KEPT_S,
        contain: Contain | None = None,
        heard: Heard | None = None,
    ) -> None:
        """rows: paths beside those that the facts answer.  kept_s: how long metrics that were rendered are good.

        contain: raises a fault again that may be answered with 500 only in a server that ends.  heard: returns when
        there is time for a request.
        """
        self._facts = facts
        self._contain = contain or _told
        self._heard = heard or _at_once
        self._room = Room()  # where this process reads bodies
        own = (*overview.rows(facts), *topology.rows(facts), *topology.consumer_rows(facts))
        self.open: AbstractSet[str] = open_paths(metrics=facts.open_metrics())
        self.table = Table(facts.vhosts, (*own, *rows))
        self.probes = Probes(facts, kept_s).paths()
        _describe(self.table, self.probes, facts.version, self.open)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        visitor: Visitor | None = scope.get("state", {}).get("visitor")
        await self._heard()
        with ExitStack() as stack:
            try:
                answer = await self._answered(Request(scope, receive), visitor, stack)
            except BadQuery as error:
                answer = refusal(400, "bad_request", str(error))
            except PenstockError as error:
                answer = of_error(error)
            except (Ended, Broken):  # of the door that took the request
                raise
            except Exception as error:  # noqa: BLE001 - the border of one request
                self._contain(error)
                answer = refusal(500, "internal_error", TOLD)
            timed = isinstance(answer, EventStream | Pieces)  # it has a time of its own
            await answer(scope, receive, send if timed else partial(_taken, send))

    async def _answered(self, request: Request, visitor: Visitor | None, stack: ExitStack) -> Response:
        """Raises PenstockError and BadQuery.  stack: what is the request's until its answer is out."""
        scope, facts = request.scope, self._facts
        path, user, who = str(scope["path"]), "", NOBODY
        if bare(path) not in self.open:
            login: tuple[str, str] | None = scope["login"]
            client: tuple[str, int] | None = scope.get("client")
            host, derive = client[0] if client else "", None if visitor is None else visitor.derive
            wait_s = await facts.login(*login, host, derive) if login is not None else 0.0
            if login is None or wait_s is not None:
                return _refused_login(tried=login is not None, wait_s=wait_s or 0.0)
            user, who = login[0], facts.users.who(login[0])
            ACTING.set(who.user)  # of the task of this request
            stack.enter_context(facts.working(who))  # else its connection stays a stranger's
            if visitor is not None:
                visitor.known()
        allowed: Sequence[str] = METHODS
        if path.startswith("/api/"):
            if request.method in METHODS:
                return await self.table.answer(request, user, who, self._read, stack)
        elif (probe := self.probes.get(bare(path))) is None:
            return not_found()
        elif request.method in (allowed := ("GET", "HEAD")):
            return await probe.handler(request, who)
        return refusal(405, "method_not_allowed", "Method Not Allowed", {"allow": ", ".join(allowed)})

    async def _read(self, request: Request, user: str, wanted: Reading) -> Any:
        """What was wanted of a body: by the door, where there is one, which brings it later."""
        visitor = request.scope.get("state", {}).get("visitor")
        read = getattr(visitor, "read", None)
        if read is not None:
            return await read(wanted)
        return await self._room.read(user, request.headers.get("content-length", ""), request.receive, wanted)


async def _taken(send: Send, message: Message) -> None:
    """Have a piece of an answer taken.  Ended, which closes the connection, where its client does not read it."""
    try:
        async with asyncio.timeout(UNREAD_S + len(message.get("body", b"")) / SLOWEST):
            await send(message)
    except TimeoutError:
        raise Ended from None


def _refused_login(*, tried: bool, wait_s: float) -> Response:
    if wait_s:
        seconds = max(1, math.ceil(wait_s))
        reason = f"too many wrong logins came from this address: try again in {seconds} s"
        return refusal(429, "too_many_requests", reason, {"retry-after": str(seconds)})
    told, headers = unknown(tried=tried)
    return json_response(told, 401, headers)


def _describe(table: Table, probes: Mapping[str, Probe], version: str, open_: Container[str]) -> None:
    """Put the path into the table that it describes."""

    async def describe(_: Ask) -> Response:
        return json_response(described(table, probes, version, open_))

    table.add(Row("GET", "/api/openapi.json", describe, "This description", LOGIN, own=True))


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
        self._server = server
        self.application = Application(
            facts, rows_of(server, facts, self._events), kept_s, self._contain, self._has_time
        )
        trusted = server.settings.server.trusted_proxies
        self.app = Reception(self.application, self.application.open, trusted)
        self._head_most = server.settings.before_login.bytes
        self._entry = entry
        self._doors = doors
        self._here: HttpServer | None = None
        self._listeners: list[Listener] = []
        self._began = False

    def _contain(self, error: Exception) -> None:
        if self._server.serving:
            self._server.engine.faults.contain(error, Told("http"))
        else:
            _told(error)

    async def _has_time(self) -> None:
        """What comes at once shares what there is in a turn, whoever sent it, and through which door."""
        if self._server.serving:
            await self._server.engine.turns.heard(self._server.engine.arm)

    async def listen(self, host: str, port: int, keeper: Keeper | None = None) -> tuple[str, int]:
        """Bind and serve; returns the address that was bound.

        keeper: of TLS, where there is some, with the identity that is the keeper's at the time.
        """
        if self._doors is not None:
            bound = await self._listen_apart(self._doors, host, port, keeper)
        else:
            sockets = bind(host, port)
            here = await self._begun()
            name, identity = ("http", None) if keeper is None else ("https", keeper.current)
            listener = here.listener(self._entry, name, identity)
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
        *VhostDoors(house, facts).rows(),
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


# -- what the tables of paths say of themselves

_ANSWERS: Mapping[str, str] = {
    "400": "what was sent cannot be used; the reason names it",
    "401": "not logged in, or not allowed",
    "404": "no such object",
    "503": "the server starts, or cannot store anything",
}


def described(table: Table, probes: Mapping[str, Probe], version: str, open_: Container[str]) -> dict[str, object]:
    """All paths.  open_: those that ask for no login."""
    paths = {path: {"get": _probing(path, probe, is_open=path in open_)} for path, probe in probes.items()}
    for row in table.rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version, "description": "RabbitMQ's management paths and our own."},
        "components": {"securitySchemes": {"basic": {"type": "http", "scheme": "basic"}}},
        "security": [{"basic": []}],
        "paths": paths,
    }


_TEXT = {"type": "string"}


def _queried(names: Iterable[str]) -> list[dict[str, object]]:
    """Parameters of a query, as OpenAPI has them."""
    said: Mapping[str, Mapping[str, object]] = {name: {"description": text} for name, text in LIST_QUERY.items()}
    return [{"name": name, "in": "query", **said.get(name, {}), "schema": _TEXT} for name in names]


def _probing(path: str, probe: Probe, *, is_open: bool) -> dict[str, object]:
    """is_open: nobody has to log in."""
    answers: dict[str, object] = {"200": {"description": probe.summary, "content": {probe.content: {}}}}
    if not is_open:
        answers["401"] = {"description": _ANSWERS["401"]}
    if probe.content == "application/json":
        answers["503"] = {"description": "it is not so"}
    return {
        "summary": probe.summary,
        "operationId": f"get{path.replace('/', '_').replace('-', '_')}",
        "tags": ["probes"],
        "parameters": _queried(probe.query.split()),
        "responses": answers,
        **({"security": []} if is_open else {}),
    }


def _operation(row: Row) -> dict[str, object]:
    variables = [part[1:-1] for part in row.parts if part.startswith("{")]
    parameters: list[dict[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in variables
    ]
    parameters += _queried(row.parameters)
    good = {"GET": "200", "POST": "200", "PUT": "201", "DELETE": "204"}[row.method]
    answers = {good: {"description": row.summary}, **{code: {"description": what} for code, what in _ANSWERS.items()}}
    if row.method == "PUT":
        answers["204"] = {"description": "it was there, and is as asked"}
    operation: dict[str, object] = {
        "summary": row.summary,
        "operationId": f"{row.method.lower()}_{'_'.join(part.strip('{}').replace('-', '_') for part in row.parts[1:])}",
        "tags": [row.parts[1]],
        "parameters": parameters,
        "responses": answers,
    }
    level = row.right.level if row.right.level.tags else MANAGEMENT
    operation["description"] = f"For users with the tag '{level.name}'" + (
        "." if level is ADMINISTRATOR else ", or one that includes it."
    )
    if row.body:
        properties: dict[str, object] = {name: {} for name in row.body.split()}
        schema = {"type": "object", "properties": properties}
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation
