"""The HTTP application: logins, probes, and the table of paths under `/api`.

`/healthz`, `/readyz` and `/metrics` ask for no login: probes and scrapers have none, and they show counts only.
Everything else asks for basic authentication.  An unknown object is 404 in RabbitMQ's shape, an unusable query or body
400 with a reason.  While the server recovers all of `/api` that asks for queues is 503.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.wire.http import consumers, openapi, overview, queues
from penstock.wire.http.answers import json_response, not_found, of_error, refusal
from penstock.wire.http.facts import ServerFacts
from penstock.wire.http.lists import BadQuery
from penstock.wire.http.metrics import exposition
from penstock.wire.http.routes import Row, Table
from penstock.wire.http.site import Site

REALM = "Penstock"

HEADER_LIMIT = 4096
"""Bytes of an Authorization header; a longer one is no login."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

METHODS = ["GET", "PUT", "POST", "DELETE", "OPTIONS"]


def create_app(facts: ServerFacts, rows: Sequence[Row] = ()) -> Starlette:
    """The application: an ASGI app for uvicorn, or for a test client.

    rows: paths beside those that the facts answer.
    """
    table = Table([*overview.rows(facts), *queues.rows(facts), *consumers.rows(facts), *rows])
    openapi.add(table, facts)
    probes, site = _Probes(facts), Site()

    async def api(request: Request) -> Response:
        user = str(request.scope["penstock_user"])
        return await table.answer(request, user, facts.tags(user))

    app = Starlette(
        routes=[
            Route("/healthz", probes.health),
            Route("/readyz", probes.ready),
            Route("/metrics", probes.metrics),
            Route("/metrics/per-object", probes.metrics_per_object),
            Route("/api/{rest:path}", api, methods=METHODS),
            *site.routes(),
        ],
        exception_handlers={HTTPException: _told, BadQuery: _bad_query, PenstockError: _refused},  # pyright: ignore[reportArgumentType] - each handler takes its own exception
    )
    app.add_middleware(_Login, facts=facts, open_paths=UNGUARDED | site.parts.keys())
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


class _Login:
    """Asks for basic authentication."""

    def __init__(self, app: ASGIApp, facts: ServerFacts, open_paths: AbstractSet[str]) -> None:
        """open_paths: exceptions, so that a new path is guarded."""
        self._app = app
        self._facts = facts
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or str(scope["path"]) in self._open:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["method"] not in SAFE and from_another_site(headers):
            reason = "a page of another site may change nothing here"
            await refusal(403, "forbidden", reason)(scope, receive, send)
            return
        login = credentials(headers.get("authorization", ""))
        client: tuple[str, int] | None = scope.get("client")
        if login is None or not self._facts.check_login(*login, client[0] if client else ""):
            reason = "Login failed" if login is not None else "Authorisation failed"
            challenge = {"www-authenticate": f'Basic realm="{REALM}"'}
            await refusal(401, "not_authorized", reason, challenge)(scope, receive, send)
            return
        scope["penstock_user"] = login[0]
        await self._app(scope, receive, send)


UNGUARDED = frozenset({"/healthz", "/readyz", "/metrics", "/metrics/per-object"})

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def from_another_site(headers: Headers) -> bool:
    """Whether a browser says that a page of another origin made it ask, with a login that it remembers.

    Source: W3C Fetch Metadata; browsers without it say the origin.  Who is no browser says neither.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"same-origin", "none"}
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host", "")


def credentials(header: str) -> tuple[str, str] | None:
    """User and password of an Authorization header, or None.  Source: RFC 7617."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic" or len(header) > HEADER_LIMIT:
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    user, colon, password = text.partition(":")
    return (user, password) if colon else None


class _Probes:
    """The paths without a login."""

    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts

    async def health(self, _: Request) -> Response:
        """200 while the server can keep what it is given or is on the way to that, 503 when a restart is needed."""
        facts = self._facts.health()
        return json_response(facts, 200 if facts.get("status") in {"ok", "draining", "recovering"} else 503)

    async def ready(self, _: Request) -> Response:
        """200 once the doors are open and publishes are taken."""
        ready = self._facts.ready()
        return json_response({"ready": ready}, 200 if ready else 503)

    async def metrics(self, _: Request) -> Response:
        """Sums over queues."""
        return await self._scrape(per_object=False)

    async def metrics_per_object(self, _: Request) -> Response:
        """A line for each queue."""
        return await self._scrape(per_object=True)

    async def _scrape(self, *, per_object: bool) -> Response:
        metrics = await overview.all_metrics(self._facts)
        content = await asyncio.to_thread(exposition, metrics, per_object=per_object)
        self._facts.scraped()
        return Response(content, media_type=METRICS_TYPE)
