"""Our own paths, which RabbitMQ has not.

GET /api/queues/{vhost}/{name}/peek | leases                touch nothing
GET /api/pipelines, /api/pipelines/{name}                   how each Spark pipeline is
POST /api/query                                             a SELECT over queues, topics and views

{"sql": "SELECT ...", "vhost": "/"}
-> {"columns": [{"name", "type"}], "rows": [[...]], "row_count": n}
-> with `accept: application/vnd.apache.arrow.stream`: an Arrow IPC stream
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.errors import InvalidArgument, Unavailable
from penstock.records.dataclass import dataclass
from penstock.records.rights import USES, WATCHES, uses
from penstock.wire.fields import Lenient
from penstock.wire.http.lists import HEADERS, json_bytes, json_response, not_found
from penstock.wire.http.queues import Got, message_item
from penstock.wire.http.routes import Ask, Row

PEEK_MOST = 1000

LOOKED = "x-looked-at"
"""Header of a peek: at how many messages it looked, of which a filter may have chosen some."""


@dataclass(frozen=True, slots=True)
class Seen(Got):
    """One message that was looked at."""

    attempt: int  # how often it was delivered
    bookmark: str
    time: int  # of its publish, in microseconds since the epoch


class Own(Protocol):
    """What these paths ask of the server.  All raise what is refused."""

    async def peek(
        self, user: str, vhost: str, name: str, count: int, filter: str | None
    ) -> tuple[Sequence[Seen], int]:
        """The first messages that are ready, which stay, of those that a filter matches; how many were looked at."""
        ...

    def leases(self, user: str, vhost: str, name: str, most: int) -> Sequence[Mapping[str, object]]: ...


def rows(own: Own) -> Sequence[Row]:
    doors, path = _Own(own), "/api/queues/{vhost}/{name}"
    return (
        Row(
            "GET",
            f"{path}/peek",
            doors.peek,
            "The first messages (count=, filter=, truncate=)",
            uses(("read", "queue", "name")),
        ),
        Row("GET", f"{path}/leases", doors.leases, "Who holds which messages", uses(("read all", "queue", "name"))),
    )


class _Own:
    def __init__(self, own: Own) -> None:
        self._own = own

    async def peek(self, ask: Ask) -> Response:
        """As a get shows them, with bookmark and time."""
        fields = Lenient(ask.query)
        count, wanted = fields.count("count", 10, 1, PEEK_MOST), fields.text("filter", "")
        truncate = fields.count("truncate", -1, -1, 1 << 31)
        found, looked = await self._own.peek(ask.user, ask.names["vhost"], ask.names["name"], count, wanted or None)
        items = [
            {
                "bookmark": one.bookmark,
                "time": one.time / 1e6,
                "attempt": one.attempt,
                **message_item(one, "auto", truncate),
            }
            for one in found
        ]
        return json_response(items, headers={LOOKED: str(looked)})

    async def leases(self, ask: Ask) -> Response:
        most = Lenient(ask.query).count("count", PEEK_MOST, 1, PEEK_MOST)
        return json_response(self._own.leases(ask.user, ask.names["vhost"], ask.names["name"], most))


Pipelines: TypeAlias = Callable[[], Sequence[Mapping[str, object]]]
"""Every pipeline by name, each with the key `pipeline`."""


def pipeline_rows(pipelines: Pipelines) -> Sequence[Row]:
    doors = _Doors(pipelines)
    return (
        Row(
            "GET",
            "/api/pipelines",
            doors.list,
            "Spark pipelines: state, rows a second, lag, last error",
            WATCHES,
            operation="pipeline_status",
        ),
        Row("GET", "/api/pipelines/{name}", doors.show, "One Spark pipeline", WATCHES),
    )


class _Doors:
    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines = pipelines

    async def list(self, ask: Ask) -> Response:
        return json_response(list(self._pipelines()))

    async def show(self, ask: Ask) -> Response:
        wanted = ask.names["name"]
        found = next((one for one in self._pipelines() if one["pipeline"] == wanted), None)
        return not_found() if found is None else json_response(found)


ARROW = "application/vnd.apache.arrow.stream"

T = TypeVar("T")

LOOK_S = 0.25
"""How often a wait looks whether the client still waits."""

ROWS_MOST = 100_000
BYTES_MOST = 64 << 20
"""Of an answer in JSON, which is made whole in memory."""


class Querying(Protocol):
    """What these paths ask of the server.  Both raise what is refused."""

    async def rows(self, user: str, vhost: str, sql: str, most: int, bytes_most: int) -> bytes:
        """`columns`, `rows` and `row_count` of a statement, in JSON.  InvalidArgument for more rows or bytes."""
        ...

    async def stream(self, user: str, vhost: str, sql: str) -> Iterator[bytes]:
        """The result as an Arrow IPC stream; it is read in a thread."""
        ...


def query_rows(querying: Querying) -> Sequence[Row]:
    doors = _Querying(querying)
    return (Row("POST", "/api/query", doors.query, "A SELECT over queues, topics and views", USES, "sql vhost"),)


class _Querying:
    def __init__(self, querying: Querying) -> None:
        self._querying = querying

    async def query(self, ask: Ask) -> Response:
        """As the `accept` header says."""
        fields = await ask.fields()
        for name in fields.values:
            if name not in ("sql", "vhost"):
                raise InvalidArgument(f"unknown field {name!r}, not one of sql, vhost")
        sql, vhost = fields.text("sql"), fields.text("vhost", "/")
        if ARROW in ask.request.headers.get("accept", ""):
            pieces = await while_asked(ask.request, self._querying.stream(ask.user, vhost, sql))
            return StreamingResponse(pieces, headers=HEADERS, media_type=ARROW)
        found = self._querying.rows(ask.user, vhost, sql, ROWS_MOST, BYTES_MOST)
        return json_bytes(await while_asked(ask.request, found))


async def while_asked(request: Request, work: Coroutine[object, object, T]) -> T:
    """The result of a work that may be long; it is cancelled when the client goes, which a handler is not told."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
            if await request.is_disconnected():
                raise Unavailable("the client is gone")
        return task.result()
    finally:
        task.cancel()
