"""`POST /api/query`: a SELECT over queues, topics and views, answered as JSON or as an Arrow stream.

{"sql": "SELECT ...", "vhost": "/"}
-> {"columns": [{"name", "type"}], "rows": [[...]], "row_count": n}
-> with `accept: application/vnd.apache.arrow.stream`: an Arrow IPC stream
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.errors import InvalidArgument, Unavailable
from penstock.records.rights import USES
from penstock.wire.http.answers import HEADERS, json_bytes
from penstock.wire.http.routes import Ask, Row

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


def rows(querying: Querying) -> Sequence[Row]:
    """The path."""
    doors = _Querying(querying)
    return (Row("POST", "/api/query", doors.query, "A SELECT over queues, topics and views", USES, "sql vhost"),)


class _Querying:
    """The handler."""

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
