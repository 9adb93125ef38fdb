"""The HTTP application: logins, probes, and the table of paths under `/api`.

`/healthz`, `/readyz` and `/metrics` ask for no login: probes and scrapers have none, and they show counts and no name
of anything that users have.  Everything else asks for basic authentication; `/metrics/per-object`, for users with the
tag monitoring, may be opened by the settings.  An unknown object is 404 in RabbitMQ's shape, an unusable query or body
400 with a reason.  While the server recovers all of `/api` that asks for queues is 503; of a member that follows it is
421, and who leads.

`/api/openapi.json` is what the table of paths says of itself, in the words of OpenAPI 3.1.

The dashboard is one page at `/` and what it is made of under `/dashboard/`, from the package as it is; with it comes
`/cli/rabbitmqadmin`.  It holds no
data, so it asks for no login: the page asks for one and sends it with each request to `/api`.  Nothing else is ever
loaded: the content security policy allows what this server sends and nothing inline, and with trusted types no text
becomes markup.  Source: W3C Content Security Policy Level 3; Trusted Types.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from importlib.resources import files
from typing import Protocol

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import PenstockError, Unavailable
from penstock.records.dataclass import dataclass
from penstock.records.rights import ADMINISTRATOR, LOGIN, MANAGEMENT, MONITORS
from penstock.server.http import overview, topology
from penstock.server.http.calls import credentials
from penstock.server.http.exposition import detailed, exposition
from penstock.server.http.facts import Facts
from penstock.server.logins import Derive
from penstock.wire.http.lists import BadQuery, json_response, not_found, of_error, refusal
from penstock.wire.http.routes import Ask, Row, Table

TOOL = "rabbitmqadmin"
"""A command line for this API in one file of Python, which RabbitMQ's users fetch from their server."""

_TYPES: Mapping[str, str] = {
    TOOL: "text/plain; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

_PLACES: Mapping[str, str] = {"index.html": "/", TOOL: f"/cli/{TOOL}"}
"""Files that are not below `/dashboard/`."""

_SECURITY: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class Part:
    content: bytes
    type: str
    tag: str  # its ETag


def _read_parts() -> dict[str, Part]:
    """Every file of the dashboard by its path."""
    found: dict[str, Part] = {}
    for one in (files("penstock") / "dashboard").iterdir():
        kind = _TYPES.get(one.name.rpartition(".")[2])
        if kind is not None:
            content = one.read_bytes()
            path = _PLACES.get(one.name, f"/dashboard/{one.name}")
            found[path] = Part(content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return found


class Site:
    """The files, kept in memory."""

    def __init__(self) -> None:
        self.parts = _read_parts()

    def routes(self) -> list[Route]:
        return [Route(path, self.serve, methods=["GET"]) for path in self.parts]  # HEAD comes with it

    async def serve(self, request: Request) -> Response:
        """The file, or 304 for who has it."""
        part = self.parts[request.url.path]
        headers = {**_SECURITY, "etag": part.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == part.tag:
            return Response(status_code=304, headers=headers)
        return Response(part.content, headers=headers, media_type=part.type)


_REALM = "Penstock"

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

KEPT_S = 1.0
"""For so long who scrapes gets what was rendered for somebody before: it takes seconds where there are many queues."""

METHODS = ["GET", "PUT", "POST", "DELETE", "OPTIONS"]


def create_app(facts: Facts, rows: Sequence[Row] = (), kept_s: float = KEPT_S) -> Starlette:
    """The application: an ASGI app for uvicorn, or for a test client.

    rows: paths beside those that the facts answer.  kept_s: how long metrics that were rendered are good.
    """
    table = Table([*overview.rows(facts), *topology.rows(facts), *topology.consumer_rows(facts), *rows])
    _describe(table, facts)
    probes, site = _Probes(facts, kept_s), Site()

    async def api(request: Request) -> Response:
        user = str(request.scope["penstock_user"])
        return await table.answer(request, user, facts)

    app = Starlette(
        routes=[
            Route("/healthz", probes.health),
            Route("/readyz", probes.ready),
            Route("/leader", probes.leader),
            Route("/replica", probes.replica),
            Route("/metrics", probes.metrics),
            Route(_PER_OBJECT, probes.metrics_per_object),
            Route(_DETAILED, probes.metrics_detailed),
            Route("/api/{rest:path}", api, methods=METHODS),
            *site.routes(),
        ],
        exception_handlers={HTTPException: _told, BadQuery: _bad_query, PenstockError: _refused},  # pyright: ignore[reportArgumentType] - each handler takes its own exception
    )
    opened = _UNGUARDED | {_PER_OBJECT, _DETAILED} if facts.open_metrics() else _UNGUARDED
    app.add_middleware(_Login, facts=facts, open_paths=opened | site.parts.keys())
    app.state.table = table
    return app


async def _told(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return not_found()
    return refusal(error.status_code, error.detail.lower().replace(" ", "_"), error.detail, error.headers)


async def _bad_query(_: Request, error: Exception) -> Response:
    return refusal(400, "bad_request", str(error))


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    return of_error(error)


class Visitor(Protocol):
    """A connection, to whoever counts those that have not logged in."""

    derive: Derive | None
    """Who makes a digest of its password; None: nobody but this process."""

    def known(self) -> None: ...


class _Login:
    def __init__(self, app: ASGIApp, facts: Facts, open_paths: AbstractSet[str]) -> None:
        """open_paths: exceptions, so that a new path is guarded."""
        self._app = app
        self._facts = facts
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or str(scope["path"]) in self._open:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["method"] not in _SAFE and from_another_site(headers):
            reason = "a page of another site may change nothing here"
            await refusal(403, "forbidden", reason)(scope, receive, send)
            return
        login = credentials(headers.get("authorization", ""))
        client: tuple[str, int] | None = scope.get("client")
        visitor: Visitor | None = scope.get("state", {}).get("visitor")
        host, derive = client[0] if client else "", None if visitor is None else visitor.derive
        wait_s = await self._facts.login(*login, host, derive) if login is not None else 0.0
        if login is None or wait_s is not None:
            await _refused_login(tried=login is not None, wait_s=wait_s or 0.0)(scope, receive, send)
            return
        scope["penstock_user"] = login[0]
        with ExitStack() as stack:
            try:
                stack.enter_context(self._facts.working(login[0]))
            except Unavailable as error:  # its connection stays a stranger's
                await of_error(error)(scope, receive, send)
                return
            if visitor is not None:
                visitor.known()
            await self._app(scope, receive, send)


def _refused_login(*, tried: bool, wait_s: float) -> Response:
    if wait_s:
        seconds = max(1, math.ceil(wait_s))
        reason = f"too many wrong logins came from this address: try again in {seconds} s"
        return refusal(429, "too_many_requests", reason, {"retry-after": str(seconds)})
    reason = "Login failed" if tried else "Authorisation failed"
    return refusal(401, "not_authorized", reason, {"www-authenticate": f'Basic realm="{_REALM}"'})


_UNGUARDED = frozenset({"/healthz", "/readyz", "/metrics", "/leader", "/replica"})

_HEALTHY = frozenset({"ok", "draining", "recovering", "following", "degraded"})

_PER_OBJECT, _DETAILED = "/metrics/per-object", "/metrics/detailed"

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def from_another_site(headers: Headers) -> bool:
    """Whether a browser says that a page of another origin made it ask, with a login that it remembers.

    Source: W3C Fetch Metadata; browsers without it say the origin.  Who is no browser says neither.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"same-origin", "none"}
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host", "")


class _Probes:
    """The paths beside those of the table: for whoever watches the server."""

    def __init__(self, facts: Facts, kept_s: float) -> None:
        self._facts = facts
        self._kept_s = kept_s
        self._rendering = asyncio.Lock()
        self._kept = dict[bool, tuple[float, bytes]]()  # of each object or not -> until when, what was rendered

    async def health(self, _: Request) -> Response:
        """200 while the server can keep what it is given or is on the way to that, 503 when a restart is needed."""
        facts = self._facts.health()
        return json_response(facts, 200 if facts.get("status") in _HEALTHY else 503)

    async def ready(self, _: Request) -> Response:
        """200 once the doors are open, publishes are taken, and other sites have told what happened meanwhile."""
        told: dict[str, object] = {"ready": self._facts.ready()}
        if behind := self._facts.behind:
            told["behind"] = behind
        if leader := self._facts.membership().get("leader_name"):
            told["leader"] = leader
        return json_response(told, 200 if told["ready"] else 503)

    async def leader(self, _: Request) -> Response:
        """For load balancers: 200 where clients are served, 503 elsewhere."""
        role = self._facts.role()
        return json_response({"role": role}, 200 if role == "leading" else 503)

    async def replica(self, _: Request) -> Response:
        """200 where a copy is kept that may lead one day, 503 elsewhere."""
        role = self._facts.role()
        return json_response({"role": role}, 200 if role == "following" else 503)

    async def metrics(self, _: Request) -> Response:
        return await self._scrape(per_object=False)

    async def metrics_per_object(self, request: Request) -> Response:
        """A line for each queue."""
        self._judge(request)
        return await self._scrape(per_object=True)

    async def metrics_detailed(self, request: Request) -> Response:
        """The families that the query names."""
        self._judge(request)
        asked, there = request.query_params, self._facts.vhosts()
        async with self._rendering:
            metrics = await overview.all_metrics(self._facts)
            families, vhosts = asked.getlist("family"), set(asked.getlist("vhost"))
            content = await asyncio.to_thread(detailed, metrics, families, vhosts, there)
        return Response(content, media_type=_METRICS_TYPE)

    def _judge(self, request: Request) -> None:
        if not self._facts.open_metrics():
            self._facts.judge(str(request.scope["penstock_user"]), MONITORS, {}, "Metrics of each queue")

    async def _scrape(self, *, per_object: bool) -> Response:
        """One rendering at a time, whoever asks."""
        async with self._rendering:
            until, content = self._kept.get(per_object, (0.0, b""))
            if time.monotonic() >= until:
                metrics = await overview.all_metrics(self._facts)
                known, links = self._facts.membership(), self._facts.links()
                content = await asyncio.to_thread(
                    exposition, metrics, per_object=per_object, membership=known, links=links
                )
                self._facts.scraped()
                if not metrics["penstock_recovering"]:  # those are few, and another word in a moment
                    self._kept[per_object] = time.monotonic() + self._kept_s, content
                    asyncio.get_running_loop().call_later(self._kept_s, self._kept.pop, per_object, None)
        return Response(content, media_type=_METRICS_TYPE)


_LIST_QUERY: Mapping[str, str] = {
    "sort": "field to sort by",
    "sort_reverse": "true: backwards",
    "columns": "fields to show, with commas between",
    "name": "part of a name, or a pattern with use_regex",
    "use_regex": "true: name is a regular expression (RE2)",
    "page": "number of the page, from 1; the answer is then wrapped",
    "page_size": "items of a page, at most 500; 100 without",
}

_ANSWERS: Mapping[str, str] = {
    "400": "what was sent cannot be used; the reason names it",
    "401": "not logged in, or not allowed",
    "404": "no such object",
    "503": "the server starts, or cannot store anything",
}


def _describe(table: Table, facts: Facts) -> None:
    """Put the path into the table that it describes."""

    async def describe(_: Ask) -> Response:
        return json_response(described(table, facts.version))

    table.add(Row("GET", "/api/openapi.json", describe, "This description", LOGIN))


def described(table: Table, version: str) -> dict[str, object]:
    paths = dict[str, dict[str, object]]()
    for row in table.rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version, "description": "RabbitMQ's management paths and our own."},
        "components": {"securitySchemes": {"basic": {"type": "http", "scheme": "basic"}}},
        "security": [{"basic": []}],
        "paths": paths,
    }


def _operation(row: Row) -> dict[str, object]:
    variables = [part[1:-1] for part in row.parts if part.startswith("{")]
    text: dict[str, object] = {"type": "string"}
    parameters: list[Mapping[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in variables
    ]
    if row.many:
        parameters += [
            {"name": name, "in": "query", "description": sentence, "schema": text}
            for name, sentence in _LIST_QUERY.items()
        ]
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
