"""Statements over HTTP: one that is not read to its end ends all the same, whoever still holds the error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pyarrow as pa
import pytest

from penstock.errors import InvalidArgument
from penstock.server.http.statements import Querying, encoded

BATCH = pa.record_batch({"n": pa.array(range(10), pa.int64())})


class Result(Iterator[pa.RecordBatch]):
    """Three batches, and whether somebody has closed it."""

    def __init__(self) -> None:
        self.left, self.closed = 3, 0

    def __next__(self) -> pa.RecordBatch:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return BATCH

    def close(self) -> None:
        self.closed += 1


class Doors(Querying):
    def __init__(self) -> None:
        self.result = Result()

    async def _aside(self, work: Any) -> Any:
        return work()

    def _begun(self, user: str, vhost: str, sql: str, gone: object) -> Any:
        return BATCH.schema, self.result


@pytest.mark.parametrize(("most", "wanted"), [(30, 30), (15, None), (5, None)])
def test_a_statement_ends_with_its_answer(most: int, wanted: int | None) -> None:
    doors = Doors()
    if wanted is None:
        with pytest.raises(InvalidArgument, match=f"more than {most} rows"):
            asyncio.run(doors.rows("u", "/", "s", most, 1 << 20))
    else:
        answer = orjson.loads(asyncio.run(doors.rows("u", "/", "s", most, 1 << 20)))
        assert answer["columns"] == [{"name": "n", "type": "int64"}]
        assert len(answer["rows"]) == answer["row_count"] == wanted
    assert doors.result.closed == 1


@pytest.mark.parametrize("pieces", [1, 2, 9])
def test_a_stream_that_nobody_reads_on_ends(pieces: int) -> None:
    result = Result()
    stream = cast("Any", encoded((BATCH.schema, result)))
    for _, piece in zip(range(pieces), stream, strict=False):
        assert piece
    stream.close()
    assert result.closed == 1


class Late(Querying):
    """A statement begins when it may."""

    def __init__(self) -> None:
        self.result, self.may = Result(), threading.Event()
        self.server = cast("Any", SimpleNamespace(pools=SimpleNamespace(querying=ThreadPoolExecutor(2))))

    def _begun(self, user: str, vhost: str, sql: str, gone: object) -> Any:
        self.may.wait(60)
        return BATCH.schema, self.result


def test_a_statement_that_begins_as_its_client_leaves_ends() -> None:
    doors = Late()

    async def leave() -> None:
        asking = asyncio.ensure_future(doors.stream("u", "/", "s"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        doors.may.set()
        async with asyncio.timeout(60):
            while not doors.result.closed:  # noqa: ASYNC110 - a thread closes it
                await asyncio.sleep(0.001)

    asyncio.run(leave())
