"""What comes first of a request, wherever that is read: who says that he asks, from which site, the dashboard's files.

It stands before the application (`app`) where the server reads HTTP itself, and before the way to it (`front`) in the
door's process.  It knows nobody's rights: a login that it finds is a name and a password, and no more.

The dashboard is one page at `/` and what it is made of under `/dashboard/`, from the package as it is; with it comes
`/cli/rabbitmqadmin`.  It holds no
data, so it asks for no login: the page asks for one and sends it with each request to `/api`.  Nothing else is ever
loaded: the content security policy allows what this server sends and nothing inline, and with trusted types no text
becomes markup.  Source: W3C Content Security Policy Level 3; Trusted Types.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

import orjson

from penstock.records.tokens import login_of

Scope: TypeAlias = "dict[str, Any]"
Send: TypeAlias = "Callable[[dict[str, Any]], Awaitable[None]]"
App: TypeAlias = "Callable[[Any, Any, Any], Awaitable[None]]"
"""ASGI's."""

OPEN = frozenset({"/healthz", "/readyz", "/metrics", "/leader", "/replica"})
"""Paths that ask for no login."""

PER_OBJECT, DETAILED = "/metrics/per-object", "/metrics/detailed"
"""They do, unless the settings say that they do not."""


def open_paths(*, metrics: bool) -> AbstractSet[str]:
    """Those that ask for no login.  metrics: of each object, too."""
    return OPEN | {PER_OBJECT, DETAILED} if metrics else OPEN


def bare(path: str) -> str:
    """A path without a slash at its end, which says nothing."""
    return path.removesuffix("/")


HEADER_LIMIT = 4096
"""Bytes of an Authorization header; a longer one is no login."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

_REALM = "Penstock"

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


class Part(NamedTuple):
    """A file of the dashboard."""

    content: bytes
    type: str
    tag: str  # its ETag


def read_parts() -> dict[str, Part]:
    """Every file of the dashboard by its path."""
    found: dict[str, Part] = {}
    for one in (files("penstock") / "dashboard").iterdir():
        kind = _TYPES.get(one.name.rpartition(".")[2])
        if kind is not None:
            content = one.read_bytes()
            path = _PLACES.get(one.name, f"/dashboard/{one.name}")
            found[path] = Part(content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return found


class Reception:
    """ASGI's application before another one, which finds in a scope the `login`: a user and a password, or None."""

    def __init__(self, app: App, open_paths: AbstractSet[str], trusted: Sequence[str] = ()) -> None:
        """open_paths: exceptions, so that a new path is guarded.  trusted: proxies that say whom they speak for."""
        self.app = app
        self._open = open_paths
        self._trusted = [ipaddress.ip_network(one, strict=False) for one in trusted]
        self.pages = read_parts()

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Judge a request before anything else does: who sends it, from where, and whether another site had it sent."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = first_of(scope["headers"])
        if self._trusted:
            scope["client"] = self._client(scope)
        path, method = str(scope["path"]), str(scope["method"])
        if (part := self.pages.get(bare(path) or path)) is not None:
            await _serve(part, method, headers, send)
            return
        scope["login"] = None
        if bare(path) not in self._open:
            if method not in _SAFE and from_another_site(headers):
                reason = "a page of another site may change nothing here"
                await answer(send, 403, {"error": "forbidden", "reason": reason})
                return
            scope["login"] = credentials(headers.get(b"authorization", b"").decode("latin-1"))
            if scope["login"] is None:
                await answer(send, 401, *unknown(tried=False))
                return
        await self.app(scope, receive, send)

    def _client(self, scope: Scope) -> tuple[str, int] | None:
        """Who asks: the last one that a proxy names which is none itself, where proxies are believed."""
        client: tuple[str, int] | None = scope.get("client")
        if client is None or not self._believed(client[0]):
            return client
        named = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for").decode("latin-1")
        found = client[0]
        for one in reversed([one.strip() for one in named.split(",")] if named else []):
            try:
                found = str(ipaddress.ip_address(one.removeprefix("[").removesuffix("]")))
            except ValueError:
                break  # what stands before that was written by nobody who is believed
            if not self._believed(found):
                break
        return found, client[1] if found == client[0] else 0

    def _believed(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._trusted if network.version == address.version)


def first_of(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """By name; of one that is there twice the first."""
    return dict(reversed(headers))


async def _serve(part: Part, method: str, headers: Mapping[bytes, bytes], send: Send) -> None:
    """The file, or 304 for who has it."""
    if method not in ("GET", "HEAD"):
        allow = {"allow": "GET, HEAD"}
        await answer(send, 405, {"error": "method_not_allowed", "reason": "Method Not Allowed"}, allow)
        return
    told = {**_SECURITY, "etag": part.tag, "cache-control": "no-cache"}
    if headers.get(b"if-none-match", b"").decode("latin-1") == part.tag:
        await _send(send, 304, told, b"")
    else:
        told |= {"content-length": str(len(part.content)), "content-type": part.type}
        await _send(send, 200, told, part.content)


async def answer(send: Send, status: int, told: Mapping[str, str], headers: Mapping[str, str] | None = None) -> None:
    """RabbitMQ's shape of an error, as `wire.http.lists` has it for whoever carries out what is asked."""
    body = orjson.dumps(told)
    all_headers = {
        "cache-control": "no-cache", "x-content-type-options": "nosniff", **(headers or {}),
        "content-length": str(len(body)), "content-type": "application/json",
    }  # fmt: skip
    await _send(send, status, all_headers, body)


async def _send(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    coded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": coded})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def unknown(*, tried: bool) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """What an answer of 401 says, and its headers."""
    reason = "Login failed" if tried else "Authorisation failed"
    return {"error": "not_authorized", "reason": reason}, {"www-authenticate": f'Basic realm="{_REALM}"'}


def from_another_site(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser says that a page of another origin made it ask, with a login that it remembers.

    Source: W3C Fetch Metadata; browsers without it say the origin.  Who is no browser says neither.
    """
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in {b"same-origin", b"none"}
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2] != headers.get(b"host", b"")


def credentials(header: str) -> tuple[str, str] | None:
    """User and password of an Authorization header, or None.  Source: RFC 7617."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() == "bearer" and len(header) <= HEADER_LIMIT:  # RFC 6750
        return login_of(encoded)
    if scheme.lower() != "basic" or len(header) > HEADER_LIMIT:
        return None
    try:
        told = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    user, colon, password = told.partition(":")
    return (user, password) if colon else None
