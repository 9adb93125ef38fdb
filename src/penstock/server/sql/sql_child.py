"""The SQL process: `python -m penstock.server.sql.sql_child FD`, one statement after another.

    in   {"sql", "memory", "spill", "by_disk", "folder", "threads"}
    out  {"statement": ...}             the tables it names
    in   {"tables": [[schema, name, message type]]}   and then one socket a table, with an Arrow stream and `COMPLETE`
    out  {"schema": true} + schema, batches, {"end": {}}; or {"error": ...} at any time

Instead of tables there may be {"enough": true}.  Each statement has a database of its own, which goes with it.  The
process ends when the server closes the socket.

DuckDB counts a part of what a statement takes and not the rest: one call of `repeat` took a gigabyte of its own.  So
the system bounds the memory of this process, and what goes beyond fails where it is asked for.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.server.base.allocator import give_back, keep_close
from penstock.server.base.loading import beside_a_server
from penstock.server.bulk import requests
from penstock.server.sql.duckdb_engine import Bounds, Engine, told
from penstock.server.sql.statement import COMPLETE, TABLES_MAX, Use

STACKS = 64 << 20
"""Bytes beside `sql.memory`, for stacks of threads that come later: the system counts them whole, used or not."""


KNOWN = (PenstockError, duckdb.Error, pa.ArrowException, OSError, MemoryError)
"""What a statement may end with; anything else is a mistake of ours."""

logger = logging.getLogger("penstock.sql")


class Cut(Exception):
    """A table's stream ended early: the server knows why."""


class Ceiling:
    """The memory of this process: what it has without a statement, and so much more."""

    def __init__(self) -> None:
        self._own: int | None = None

    def set(self, memory: int) -> None:
        """Bound it, for a statement that begins.  What an earlier one left free is used again, so it does not rise."""
        now = private_bytes()
        self._own = now if self._own is None else min(self._own, now)
        most = self._own + memory + STACKS
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def private_bytes() -> int:
    """What the system counts against RLIMIT_DATA."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmData:")) << 10


def main() -> None:
    """Answer statements, one after another, until the socket ends; never returns."""
    beside_a_server()
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    keep_close(0)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    sock = socket.socket(fileno=int(sys.argv[1]))
    ceiling = Ceiling()
    try:
        while True:
            attend(sock, ceiling)
            give_back()
    except requests.Ended:
        os._exit(0)  # nobody waits any more


def attend(sock: socket.socket, ceiling: Ceiling) -> None:
    """One statement, whatever becomes of it.  Ended when nobody asks any more, and after a mistake of ours."""
    try:
        serve(sock, ceiling)
    except requests.Ended:
        raise
    except Exception as error:
        requests.send(sock, {"error": encoded(error)})
        if not isinstance(error, (*KNOWN, Cut)):
            raise requests.Ended from error  # another process is begun for the next


def encoded(error: Exception) -> dict[str, object]:
    """An error for the head of a frame."""
    import orjson

    from penstock.wire.flight.failures import encode_error

    if isinstance(error, Cut):
        return {"cut": True}
    if not isinstance(error, KNOWN):
        logger.error("a statement failed", exc_info=error)
        error = PenstockError(f"the SQL process failed: {type(error).__name__}: {str(error)[:300]}")
    return dict(orjson.loads(encode_error(told(error))[1]))


def serve(sock: socket.socket, ceiling: Ceiling) -> None:
    """One statement from its text to its last row."""
    head, _ = requests.receive(sock)
    if head is None:
        raise requests.Ended
    bounds = Bounds(head["memory"], head["spill"], Path(head["folder"]), head["threads"], head.get("by_disk", False))
    engine = Engine(bounds)
    try:
        ceiling.set(head["memory"])
        answer_to(sock, engine, head["sql"])
    finally:
        end(engine)


def end(engine: Engine) -> None:
    """Let a database go.  Ended where that fails: whoever asked has all, and the next would get a word about it."""
    try:
        engine.close()
    except Exception as error:
        logger.exception("a database did not end")
        raise requests.Ended from error


def answer_to(sock: socket.socket, engine: Engine, sql: str) -> None:
    """The tables, and then the rows."""
    statement = engine.examine(sql)
    requests.send(sock, {"statement": statement.plain()})
    answer, _ = requests.receive(sock)
    if answer is None:
        raise requests.Ended
    if "enough" in answer:
        return
    fed = [socket.socket(fileno=fd) for fd in received(sock, len(answer["tables"]))]
    for named, stream in zip(answer["tables"], fed, strict=True):
        schema, batches = table(stream)
        engine.table(Use(*named[:2]), statement, schema, batches, named[2])
    schema, rows = engine.run(sql)
    requests.send(sock, {"schema": True}, memoryview(schema.serialize()))
    for batch in rows:
        requests.send(sock, None, memoryview(batch.serialize()))
    requests.send(sock, {"end": {}})


def received(sock: socket.socket, count: int) -> list[int]:
    """So many descriptors, sent over the socket beside one byte."""
    out: list[int] = []
    while len(out) < count:
        message, fds, _, _ = socket.recv_fds(sock, 1, TABLES_MAX)
        if not message:
            raise requests.Ended
        out += fds
    return out


def table(stream: socket.socket) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema of a table and its batches.  Cut when it ends before it is whole."""
    file: Any = stream.makefile("rb", buffering=1 << 20)
    try:
        reader = pa.ipc.open_stream(file)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, EOFError):
        raise Cut from None

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except MemoryError:
            raise  # pyarrow's is an ArrowException too
        except (pa.ArrowException, OSError):
            raise Cut from None
        if file.read(1) != COMPLETE:
            raise Cut
        file.close()
        stream.close()

    return reader.schema, batches()


if __name__ == "__main__":
    main()
