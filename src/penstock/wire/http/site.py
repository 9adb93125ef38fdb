"""The dashboard's files: one page at `/` and what it is made of under `/dashboard/`, from the package as they are.

They hold no data, so they ask for no login: the page asks for one and sends it with each request to `/api`.  Nothing
else is ever loaded: the content security policy allows what this server sends and nothing inline, and with trusted
types no text becomes markup.  Source: W3C Content Security Policy Level 3; Trusted Types.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.records.dataclass import dataclass

TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

PAGE = "index.html"

SECURITY: Mapping[str, str] = {
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


def read_parts() -> dict[str, Part]:
    """Every file of the dashboard by its path."""
    found: dict[str, Part] = {}
    for one in (files("penstock") / "dashboard").iterdir():
        kind = TYPES.get(one.name.rpartition(".")[2])
        if kind is not None:
            content = one.read_bytes()
            path = "/" if one.name == PAGE else f"/dashboard/{one.name}"
            found[path] = Part(content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return found


class Site:
    """The files, kept in memory."""

    def __init__(self) -> None:
        self.parts = read_parts()

    def routes(self) -> list[Route]:
        return [Route(path, self.serve, methods=["GET"]) for path in self.parts]  # HEAD comes with it

    async def serve(self, request: Request) -> Response:
        """The file, or 304 for who has it."""
        part = self.parts[request.url.path]
        headers = {**SECURITY, "etag": part.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == part.tag:
            return Response(status_code=304, headers=headers)
        return Response(part.content, headers=headers, media_type=part.type)
