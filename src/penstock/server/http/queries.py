"""Statements over HTTP, as `wire.http.query` asks for them: each in a thread of its own, ended when nobody waits."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument
from penstock.server.http.commands import Commands

if TYPE_CHECKING:
    from penstock.server.sql.queries import Rows


class Querying(Commands):
    """The Flight door runs them; here they get another form."""

    async def rows(self, user: str, vhost: str, sql: str, most: int) -> Mapping[str, object]:
        """The result as plain values."""

        def take(result: Rows) -> Mapping[str, object]:
            schema, batches = result
            out: list[list[object]] = []
            with ended(batches):
                for batch in batches:
                    columns = [column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns]
                    out += map(list, zip(*columns, strict=True))
                    if len(out) > most:
                        raise InvalidArgument(
                            f"the result has more than {most} rows: add a LIMIT, or ask for "
                            "application/vnd.apache.arrow.stream"
                        )
            columns_told = [{"name": one.name, "type": str(one.type)} for one in schema]
            return {"columns": columns_told, "rows": out, "row_count": len(out)}

        gone = threading.Event()
        try:
            return await asyncio.to_thread(lambda: take(self._begun(user, vhost, sql, gone)))
        finally:
            gone.set()

    async def stream(self, user: str, vhost: str, sql: str) -> Iterator[bytes]:
        """The result as the bytes of an Arrow stream."""
        gone = threading.Event()
        try:
            return encoded(await asyncio.to_thread(lambda: self._begun(user, vhost, sql, gone)))
        except BaseException:
            gone.set()
            raise

    def _begun(self, user: str, vhost: str, sql: str, gone: threading.Event) -> Rows:
        from penstock.server.flight.calls import Caller

        self.facts.refuse_early()
        self.vhost(vhost)
        caller = Caller(user, f"http/{user}", gone.is_set, tuple(self.facts.tags(user)), self.rights(user))
        return self.server.flight.queries.run(caller, vhost, sql)


@contextmanager
def ended(batches: Iterator[object]) -> Generator[None]:
    """End the statement of a result, also where it is not read to its end: an error may keep what its frames held."""
    try:
        yield
    finally:
        closing = getattr(batches, "close", None)
        if closing is not None:
            closing()


def encoded(result: Rows) -> Iterator[bytes]:
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
