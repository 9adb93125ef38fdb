"""Paths: a table of rows, found by the parts of the path as it was sent, so that `%2F` stays inside its part.

Starlette would decode the path first, and then a vhost `/` is a slash like any other.  A row says what the path is for,
which right it takes and which fields its body has: the dispatcher has the right judged, `/api/openapi.json` is written
from it.  Users without a tag of the management API are let into none of them, as in RabbitMQ.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias, cast
from urllib.parse import unquote

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.records.rights import MANAGEMENT, Level, Right
from penstock.units import format_size
from penstock.wire.fields import Lenient, kind_of, shown
from penstock.wire.http.lists import listed, not_found, refusal

BODY_MOST = 1 << 20
"""Bytes of a request's body where a path says nothing else."""

LARGE_MOST = 20_000_000
"""Bytes of a body that holds a message or definitions: what RabbitMQ allows by default."""


class Access(Protocol):
    def tags(self, user: str) -> Sequence[str]:
        """What else a user may do."""
        ...

    def judge(self, user: str, right: Right, names: Mapping[str, str], what: str) -> None:
        """AccessRefused unless the user may; NotFound for a vhost that is not there, if he may know."""
        ...

    def has(self, user: str, vhost: str, everywhere: Level | None) -> bool:
        """Whether a vhost is the user's to use or, with that level, to see."""
        ...


@dataclass(slots=True)
class Ask:
    """One request: who asks, for what."""

    request: Request
    user: str
    access: Access
    right: Right  # what the path asks
    names: Mapping[str, str]  # variables of the path, decoded

    @property
    def query(self) -> Mapping[str, str]:
        """What follows the question mark."""
        return self.request.query_params

    def may(self, level: Level) -> bool:
        """Whether the user's tags are that far."""
        return level.holds(self.access.tags(self.user))

    async def listed(self, items: Iterable[dict[str, object]]) -> Response:
        """The answer to a list's query; where its right says so, of each vhost that the user may not see nothing."""
        if self.right.each:
            known = dict[object, bool]()

            def shown(vhost: object) -> bool:
                if vhost not in known:
                    known[vhost] = self.access.has(self.user, str(vhost), self.right.everywhere)
                return known[vhost]

            items = (one for one in items if shown(one["vhost"]))
        return await listed(items, self.query)

    async def fields(self, most: int = BODY_MOST, *, once: bool = False) -> Lenient:
        """The body, a JSON object.  Raises InvalidArgument; with `once` for a key that is there twice, too."""
        body, read = await read_body(self.request, most), read_once if once else read_object
        return Lenient(read(body) if len(body) <= AT_ONCE else await asyncio.to_thread(read, body))

    def flag(self, name: str) -> bool:
        """Whether the query has it as `true`."""
        return self.query.get(name, "").lower() == "true"


RABBITMQ_VERSION = "3.13.0"
"""What tools that look at `rabbitmq_version` are told: the version whose behaviour they will meet."""

DEFAULT_NAME = "amq.default"
"""What paths call the default exchange, which has no name."""

AT_ONCE = 256 * 1024
"""A longer body is read beside the loop: 20 MB take seconds."""

Handler: TypeAlias = "Callable[[Ask], Awaitable[Response]]"


class Row(NamedTuple):
    """One method of one path."""

    method: str
    path: str  # "/api/queues/{vhost}/{name}"
    handler: Handler
    summary: str
    right: Right  # that the user needs, beside a tag that lets him in here at all
    body: str = ""  # fields of the body, with spaces between
    many: bool = False  # a list, with the query of lists
    names: Mapping[str, str] = {}  # what its right calls a variable of the path, where that is another name
    operation: str = ""  # that it carries out, of those that other doors have too

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))


class _Node:
    """What paths have in common up to one of their parts; "" leads on where any part may be."""

    def __init__(self) -> None:
        self.inner = dict[str, _Node]()
        self.methods = dict[str, Row]()

    def find(self, parts: Sequence[str], at: int) -> Mapping[str, Row]:
        """The rows of a path; none for an unknown one."""
        if at == len(parts):
            return self.methods
        for part in (parts[at], ""):
            if part in self.inner and (found := self.inner[part].find(parts, at + 1)):
                return found
        return {}


class Table:
    def __init__(self, rows: Iterable[Row] = ()) -> None:
        """ValueError for two rows of one path and method."""
        self.rows = list[Row]()
        self._tree = _Node()
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """One more; a literal part of a path comes before a variable in the same place."""
        node = self._tree
        for part in row.parts:
            node = node.inner.setdefault("" if part.startswith("{") else part, _Node())
        if row.method in node.methods:
            raise ValueError(f"{row.method} {row.path} has two rows")
        node.methods[row.method] = row
        self.rows.append(row)

    def find(self, parts: Sequence[str]) -> tuple[Mapping[str, Row], Mapping[str, str]] | None:
        """The rows of a path by their method, and its variables; None for an unknown path."""
        methods = self._tree.find(parts, 0)
        if not methods:
            return None
        row = next(iter(methods.values()))
        return methods, {want[1:-1]: part for want, part in zip(row.parts, parts, strict=True) if want[0] == "{"}

    async def answer(self, request: Request, user: str, access: Access) -> Response:
        """Find the row, judge its right, and carry it out."""
        if not MANAGEMENT.holds(access.tags(user)):
            return refusal(401, "not_authorized", "Not management user")
        found = self.find(raw_parts(request))
        if found is None:
            return not_found()
        methods, names = found
        row = methods.get("GET" if request.method == "HEAD" else request.method)
        if row is None:
            allowed = {"allow": ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])}
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=allowed)
            return refusal(405, "method_not_allowed", "Method Not Allowed", allowed)
        judged = {**names, **{row.names[one]: names[one] for one in row.names}} if row.names else names
        access.judge(user, row.right, judged, row.summary)
        return await row.handler(Ask(request, user, access, row.right, names))


def exchange_name(part: str) -> str:
    """The exchange that a part of a path names."""
    return "" if part == DEFAULT_NAME else part


def raw_parts(request: Request) -> list[str]:
    """Parts of the path as it was sent, each decoded by itself; a slash at the end says nothing."""
    raw: bytes | None = request.scope.get("raw_path")
    path = raw.decode("ascii", "replace") if raw is not None else request.url.path
    return [unquote(part) for part in path.partition("?")[0].removeprefix("/").removesuffix("/").split("/")]


async def read_body(request: Request, most: int) -> bytes:
    """The body.  InvalidArgument when it is longer; no more than the bound is ever held."""
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and len(announced) < 20 and int(announced) > most:
        raise too_long(int(announced), most)
    parts, size = list[bytes](), 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise too_long(size, most)
            parts.append(part)
    except ClientDisconnect:
        raise InvalidArgument("the body ended before its announced length") from None
    return b"".join(parts)


def too_long(size: int, most: int) -> InvalidArgument:
    return InvalidArgument(f"the request's body has {size} bytes or more, {format_size(most)} are allowed")


def read_object(body: bytes, what: str = "the request's body") -> Mapping[str, object]:
    """A JSON object; an empty body and `null` are an empty one; a byte order mark is tolerated."""
    text = body.removeprefix(b"\xef\xbb\xbf").strip()
    if text in {b"", b"null", b"undefined"}:
        return {}
    try:
        value: object = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{what} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is {kind_of(value)}, not a JSON object")
    return cast("dict[str, object]", value)


def read_once(body: bytes) -> Mapping[str, object]:
    """The same, where a key that is there twice is no mistake to pass over: the second would silently win."""
    values = read_object(body)
    if values:
        try:
            json.loads(body.removeprefix(b"\xef\xbb\xbf"), object_pairs_hook=_once)
        except (RecursionError, ValueError) as error:  # it goes less deep, and takes fewer digits
            raise InvalidArgument(f"the request's body is not JSON that can be read: {error}") from None
    return values


def _once(pairs: list[tuple[str, object]]) -> None:
    seen = set[str]()
    for name, _ in pairs:
        if name in seen:
            raise InvalidArgument(f"the key {shown(name)} is there twice")
        seen.add(name)
