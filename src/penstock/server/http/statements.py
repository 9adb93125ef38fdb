"""`POST /api/query`: a SELECT over queues, topics and views.

{"sql": "SELECT ...", "vhost": "/"}
-> {"columns": [{"name", "type"}], "rows": [[...]], "row_count": n}
-> with `accept: application/vnd.apache.arrow.stream`: an Arrow IPC stream

A statement has a thread, and ends when nobody waits.
"""

from __future__ import annotations

import asyncio
import io
import logging
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response, StreamingResponse

from penstock.errors import InvalidArgument, PenstockError
from penstock.records.rights import LOGIN
from penstock.server.doors.line import Ended
from penstock.server.http.messages import Commands
from penstock.server.http.routes import Ask, Row, while_asked
from penstock.server.people.access import open_vhost
from penstock.wire.http.lists import HEADERS, json_bytes

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from penstock.server.sql.queries import Rows as Result

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


logger = logging.getLogger(__name__)

T = TypeVar("T")

Aside = Callable[[Callable[[], Any]], "asyncio.Future[Any]"]
"""Runs work beside the loop."""

ARROW = "application/vnd.apache.arrow.stream"


ROWS_MOST = 100_000
BYTES_MOST = 64 << 20
"""Of an answer in JSON, which is made whole in memory."""

STEP_ROWS = 1000
"""Rows that are encoded at once: others have the interpreter in between."""


class Querying(Commands):
    """The Flight door runs them; here they get another form."""

    def rows_of_table(self) -> Sequence[Row]:
        text = "A SELECT over queues, topics and views"
        return (Row("POST", "/api/query", self.query, text, LOGIN, "sql vhost", own=True),)

    async def query(self, ask: Ask) -> Response:
        """As the `accept` header says."""
        fields = await ask.fields()
        for name in fields.values:
            if name not in ("sql", "vhost"):
                raise InvalidArgument(f"unknown field {name!r}, not one of sql, vhost")
        sql, vhost = fields.text("sql"), fields.text("vhost", "/")
        open_vhost(ask.who, vhost, None, self.facts.vhosts)  # the body names it, so that no row of the table judges it
        if ARROW in ask.request.headers.get("accept", ""):
            return await while_asked(ask.request, self.stream(ask.user, vhost, sql))
        found = self.rows(ask.user, vhost, sql, ROWS_MOST, BYTES_MOST)
        return json_bytes(await while_asked(ask.request, found))

    async def rows(self, user: str, vhost: str, sql: str, most: int, bytes_most: int) -> bytes:
        """The result as JSON, made beside the loop."""
        gone = threading.Event()
        try:
            return await self._aside(lambda: encoded_rows(self._begun(user, vhost, sql, gone), most, bytes_most))
        finally:
            gone.set()

    async def stream(self, user: str, vhost: str, sql: str) -> Pieces:
        """The result as an Arrow stream."""
        gone = threading.Event()
        begun = self._aside(lambda: self._begun(user, vhost, sql, gone))
        try:
            found = await asyncio.shield(begun)
        except BaseException:
            gone.set()
            begun.add_done_callback(self._leave)
            raise
        return Pieces(found, gone, self._aside, self.server.flight.queries.limits.timeout_s)

    def _leave(self, begun: asyncio.Future[Result]) -> None:
        """It began as its client left: nobody has the result, so it ends here."""
        if not begun.cancelled() and begun.exception() is None:
            self.server.pools.querying.submit(_end, begun.result()[1])

    def _aside(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """In threads of their own: those that wait for a place would take the common ones from everybody."""
        loop, threads = asyncio.get_running_loop(), self.server.pools.querying
        return loop.run_in_executor(threads, work)

    def _begun(self, user: str, vhost: str, sql: str, gone: threading.Event) -> Result:
        from penstock.server.flight.calls import Caller

        self.facts.refuse_early()
        self.vhost(vhost)
        who = self.server.users.who
        caller = Caller(who(user), f"http/{user}", gone.is_set, partial(who, user))
        return self.server.flight.queries.run(caller, vhost, sql)


class Pieces(StreamingResponse):
    """A result as the bytes of an Arrow stream.

    Its statement ends with it, whether it is read to its end, left, or not read in time.
    """

    def __init__(self, result: Result, gone: threading.Event, aside: Aside, timeout_s: float) -> None:
        super().__init__(self._read(), headers=HEADERS, media_type=ARROW)
        self._batches = result[1]
        self._pieces = encoded(result)
        self._gone = gone
        self._aside = aside
        self._timeout_s = timeout_s
        self._steps = threading.Lock()  # who ends it waits for the step that is under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's.  Ended, which closes the connection: a result that stops is never taken for a whole one."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await super().__call__(scope, receive, send)
        except (PenstockError, TimeoutError) as error:
            why = str(error) or f"it was not read within {self._timeout_s:g} s, which is sql.timeout"
            logger.info("a statement's result over HTTP stopped: %s", why)
            raise Ended from None
        finally:
            self._gone.set()
            await asyncio.shield(self._aside(self._end))

    async def _read(self) -> AsyncIterator[bytes]:
        while piece := await self._aside(self._next):
            yield piece

    def _next(self) -> bytes:
        with self._steps:
            return next(self._pieces, b"")

    def _end(self) -> None:
        with self._steps, ended(self._batches):
            self._pieces.close()


@contextmanager
def ended(batches: Iterator[object]) -> Generator[None]:
    """End the statement of a result, also where it is not read to its end: an error may keep what its frames held."""
    try:
        yield
    finally:
        _end(batches)


def _end(batches: Iterator[object]) -> None:
    closing = getattr(batches, "close", None)
    if closing is not None:
        closing()


def encoded_rows(result: Result, most: int, bytes_most: int) -> bytes:
    """A result as JSON.  InvalidArgument for more rows or bytes than that, and for values that JSON has not."""
    from penstock.server.sql.value_types import to_json, values

    schema, batches = result
    columns = to_json([{"name": one.name, "type": str(one.type)} for one in schema])
    pieces, rows, size = list[bytes](), 0, 0
    with ended(batches):
        for batch in batches:
            for start in range(0, batch.num_rows, STEP_ROWS):
                step = batch.slice(start, STEP_ROWS)
                piece = to_json(list(zip(*values(step), strict=True)))[1:-1]
                pieces.append(piece)
                rows, size = rows + step.num_rows, size + len(piece)
                for what, count, bound in (("rows", rows, most), ("bytes", size, bytes_most)):
                    if count > bound:
                        raise InvalidArgument(
                            f"the result has more than {bound} {what}: add a LIMIT, or ask for "
                            "application/vnd.apache.arrow.stream"
                        )
    return b'{"columns":%b,"rows":[%b],"row_count":%d}' % (columns, b",".join(pieces), rows)


def encoded(result: Result) -> Generator[bytes]:
    """A result as an Arrow IPC stream, a piece for each batch."""
    import pyarrow as pa

    schema, batches = result
    sink = _Sink()
    with ended(batches), pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield sink.taken()
    yield sink.taken()


class _Sink(io.BytesIO):
    """A file whose bytes are taken away as they come."""

    def taken(self) -> bytes:
        data = self.getvalue()
        self.seek(0)
        self.truncate()
        return data
