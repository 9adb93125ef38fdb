"""The HTTP application: paths, logins and status codes.

`/healthz`, `/readyz` and `/metrics` ask for no login: probes and scrapers have none, and they show counts only.
Everything under `/api` asks for basic authentication.  An unknown object is 404 in RabbitMQ's shape, an unusable query
400 with a reason.  While the server recovers all of `/api` that asks for queues is 503.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from typing import TypeVar, cast
from urllib.parse import unquote

import orjson
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import Unavailable
from penstock.wire.http.consumers import consumer_item
from penstock.wire.http.facts import Metrics, ServerFacts
from penstock.wire.http.metrics import exposition
from penstock.wire.http.queues import BadQuery, choose, only_columns, order, queue_item

T = TypeVar("T")

REALM = "Penstock"

STEP_S = 0.004
"""What a list of everything may do at once, in seconds, before others have their turn."""

SLICE = 256
"""Queues that are sorted, or encoded, before others have their turn."""

HEADER_LIMIT = 4096
"""Bytes of an Authorization header; a longer one is no login."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

RABBITMQ_VERSION = "3.13.0"
"""What tools that look at `rabbitmq_version` are told: the version whose behaviour they will meet."""


def create_app(facts: ServerFacts) -> Starlette:
    """The application: an ASGI app for uvicorn, or for a test client."""
    doors = _Doors(facts)
    routes = [
        Route("/healthz", doors.health),
        Route("/readyz", doors.ready),
        Route("/metrics", doors.metrics),
        Route("/metrics/per-object", doors.metrics_per_object),
        Route("/api/overview", doors.overview),
        Route("/api/whoami", doors.whoami),
        Route("/api/vhosts", doors.vhosts),
        Route("/api/queues", doors.queues),
        Route("/api/consumers", doors.consumers),
        Route("/api/consumers/{rest:path}", doors.consumers),
        # Starlette sees the path decoded, where `%2F` is a slash like any other: these two take the raw one apart.
        Route("/api/queues/{rest:path}", doors.queue_or_vhost),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _told, BadQuery: _bad_query, Unavailable: _not_yet},  # pyright: ignore[reportArgumentType] - each handler takes its own exception
    )
    app.add_middleware(_Login, facts=facts)
    return app


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON; bytes become text with what is no UTF-8 replaced."""
    return json_bytes(orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS), status, headers)


def json_bytes(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON that is encoded."""
    given = {"cache-control": "no-cache", "x-content-type-options": "nosniff", **(headers or {})}
    return Response(content, status, given, media_type="application/json")


def _plain(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def refusal(status: int, error: str, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """RabbitMQ's shape of an error."""
    return json_response({"error": error, "reason": reason}, status, headers)


def not_found() -> Response:
    """An object, or a path, that does not exist."""
    return refusal(404, "Object Not Found", "Not Found")


async def _told(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return not_found()
    return refusal(error.status_code, error.detail.lower().replace(" ", "_"), error.detail, error.headers)


async def _bad_query(_: Request, error: Exception) -> Response:
    return refusal(400, "bad_request", str(error))


async def _not_yet(_: Request, error: Exception) -> Response:
    return refusal(503, "service_unavailable", str(error), {"retry-after": "1"})


class _Login:
    """Asks for basic authentication under `/api`."""

    def __init__(self, app: ASGIApp, facts: ServerFacts) -> None:
        self._app = app
        self._facts = facts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_guarded(str(scope["path"])):
            await self._app(scope, receive, send)
            return
        login = credentials(Headers(scope=scope).get("authorization", ""))
        client: tuple[str, int] | None = scope.get("client")
        if login is None or not self._facts.check_login(*login, client[0] if client else ""):
            reason = "Login failed" if login is not None else "Authorisation failed"
            challenge = {"www-authenticate": f'Basic realm="{REALM}"'}
            await refusal(401, "not_authorized", reason, challenge)(scope, receive, send)
            return
        scope["penstock_user"] = login[0]
        await self._app(scope, receive, send)


def is_guarded(path: str) -> bool:
    """Whether a path asks for a login; written as a list of exceptions, so that a new path is guarded."""
    return path not in {"/healthz", "/readyz", "/metrics", "/metrics/per-object"}


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


class _Doors:
    """The handlers."""

    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts

    async def health(self, _: Request) -> Response:
        """200 while the server can keep what it is given or is on the way to that, 503 when a restart is needed."""
        facts = self._facts.health()
        return json_response(facts, 200 if facts.get("status") in {"ok", "recovering"} else 503)

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

    async def _metrics(self) -> Metrics:
        queues = await gathered(self._facts.queue_metrics())
        return replace(self._facts.metrics(), queues=queues, consumers=sum([queue.consumers for queue in queues]))

    async def _scrape(self, *, per_object: bool) -> Response:
        metrics = await self._metrics()
        content = await asyncio.to_thread(exposition, metrics, per_object=per_object)
        self._facts.scraped()
        return Response(content, media_type=METRICS_TYPE)

    async def overview(self, _: Request) -> Response:
        """Totals, and the settings in force."""
        numbers = await self._metrics()
        ready = sum(queue.ready for queue in numbers.queues)
        leased = sum(queue.leased for queue in numbers.queues)
        delayed = sum(queue.delayed for queue in numbers.queues)
        return json_response(
            {
                "product_name": "Penstock",
                "product_version": numbers.version,
                "rabbitmq_version": RABBITMQ_VERSION,
                "management_version": RABBITMQ_VERSION,
                "cluster_name": numbers.node,
                "node": numbers.node,
                "object_totals": {
                    "connections": numbers.connections,
                    "channels": numbers.channels,
                    "consumers": numbers.consumers,
                    "queues": len(numbers.queues),
                },
                "queue_totals": {
                    "messages": ready + leased + delayed,
                    "messages_ready": ready,
                    "messages_unacknowledged": leased,
                },
                "message_stats": {
                    "publish": numbers.published,
                    "confirm": numbers.confirmed,
                    "deliver_get": numbers.delivered,
                    "redeliver": numbers.redelivered,
                    "ack": numbers.acknowledged,
                    "return_unroutable": numbers.unroutable_returned,
                    "drop_unroutable": numbers.unroutable_dropped,
                },
                "penstock": dict(self._facts.overview()),
            }
        )

    async def whoami(self, request: Request) -> Response:
        """The user that is asking."""
        user = str(request.scope["penstock_user"])
        return json_response({"name": user, "tags": list(self._facts.tags(user))})

    async def vhosts(self, _: Request) -> Response:
        """Names of the vhosts."""
        return json_response([{"name": name} for name in self._facts.vhosts()])

    async def queues(self, request: Request) -> Response:
        """Every queue."""
        return await self._listed(request, None)

    async def queue_or_vhost(self, request: Request) -> Response:
        """`/api/queues/{vhost}` and `/api/queues/{vhost}/{name}`."""
        parts = raw_parts(request)[2:]
        if len(parts) == 1 and parts[0]:
            return await self._listed(request, parts[0]) if parts[0] in self._facts.vhosts() else not_found()
        if len(parts) != 2:
            return not_found()
        found = self._facts.queue(parts[0], parts[1], _user(request))
        if found is None:
            return not_found()
        node = self._node()
        consumers = self._facts.consumers(_user(request), parts[0], parts[1])
        details = await gathered(consumer_item(one, node) for one in consumers)
        item = {**queue_item(found, node), "consumer_details": details}
        return json_response(only_columns(item, request.query_params))

    async def consumers(self, request: Request) -> Response:
        """`/api/consumers` and `/api/consumers/{vhost}`."""
        parts = raw_parts(request)[2:]
        if len(parts) > 1 or (parts and parts[0] not in self._facts.vhosts()):
            return not_found()
        node, consumers = self._node(), self._facts.consumers(_user(request), parts[0] if parts else None)
        return await _json_list([*await gathered(consumer_item(one, node) for one in consumers)])

    def _node(self) -> str:
        return str(self._facts.health().get("name", ""))

    async def _listed(self, request: Request, vhost: str | None) -> Response:
        node, queues = self._node(), self._facts.queues(_user(request))
        items = await gathered(queue_item(queue, node) for queue in queues if vhost in {None, queue.get("vhost", "/")})
        query = request.query_params
        chosen = await asyncio.to_thread(choose, await _in_order(items, query), query)
        if isinstance(chosen, list):
            return await _json_list(cast("list[object]", chosen))
        return json_response(chosen)


def _user(request: Request) -> str:
    """Who asks; the login has been checked."""
    return str(request.scope["penstock_user"])


async def gathered(items: Iterable[T]) -> list[T]:
    """All of them; others have their turn after every few milliseconds."""
    out = list[T]()
    clock = asyncio.get_running_loop().time
    until = clock() + STEP_S
    for item in items:
        out.append(item)
        if clock() > until:
            await asyncio.sleep(0)
            until = clock() + STEP_S
    return out


async def _in_order(items: list[dict[str, object]], query: Mapping[str, str]) -> Sequence[Mapping[str, object]]:
    """Sorted as a query asks for, a slice at a time: a sort of everything holds the interpreter throughout."""
    asked = order(query)
    if asked is None:
        return items
    key, reverse = asked
    starts = range(0, len(items), SLICE)
    slices = await gathered(sorted(items[start : start + SLICE], key=key, reverse=reverse) for start in starts)
    return await gathered(merge(*slices, key=key, reverse=reverse))


async def _json_list(items: list[object]) -> Response:
    """A long list as JSON, encoded a slice at a time."""
    parts = list[bytes]()
    for start in range(0, len(items), SLICE):
        parts.append(bytes(json_response(items[start : start + SLICE]).body)[1:-1])
        await asyncio.sleep(0)
    return json_bytes(b"[" + b",".join(parts) + b"]")


def raw_parts(request: Request) -> list[str]:
    """Parts of the path as it was sent, each decoded by itself, so that `%2F` stays inside its part."""
    raw: bytes | None = request.scope.get("raw_path")
    path = raw.decode("ascii", "replace") if raw is not None else request.url.path
    return [unquote(part) for part in path.partition("?")[0].strip("/").split("/")]
