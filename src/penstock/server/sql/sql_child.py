"""The SQL process: `python -m penstock.server.sql.sql_child LINE TABLES`, one statement after another (`doors.line`).

    in   CALL {"sql", "memory", "spill", "by_disk", "folder", "threads"}
    out  CONTROL         the tables it names
    in   CONTROL {"tables": [[schema, name, message type]]}   and then, over the other socket, one socket a table, with
                         an Arrow stream and `COMPLETE`
    out  SCHEMA, BATCH, DONE; or FAILED at any time

Instead of tables there may be {"enough": true}.  Each statement has a database of its own, which goes with it.  The
process ends when the server closes the line.

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
import orjson
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.server.base.allocator import give_back, keep_close
from penstock.server.base.loading import beside_a_server
from penstock.server.doors.line import Ended, Kind, Line, plain
from penstock.server.sql.duckdb_engine import Bounds, Engine, made, told
from penstock.server.sql.statement import COMPLETE, TABLES_MAX, WORDS_MOST, Use
from penstock.wire.flight.failures import encode_error

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
    """Answer statements, one after another, until the line ends; never returns."""
    beside_a_server()
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    keep_close(0)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    own, sockets = (socket.socket(fileno=int(one)) for one in sys.argv[1:3])
    line = Line(own)
    ceiling = Ceiling()
    try:
        while True:
            attend(line, sockets, ceiling)
            give_back()
    except Ended:
        os._exit(0)  # nobody waits any more


def attend(line: Line, sockets: socket.socket, ceiling: Ceiling) -> None:
    """One statement, whatever becomes of it.  Ended when nobody asks any more, and after a mistake of ours."""
    try:
        serve(line, sockets, ceiling)
    except Ended:
        raise
    except Exception as error:
        line.send(Kind.FAILED, 0, encoded(error))
        if not isinstance(error, (*KNOWN, Cut)):
            raise Ended from error  # another process is begun for the next


def encoded(error: Exception) -> bytes:
    """The payload of FAILED."""
    if isinstance(error, Cut):
        return orjson.dumps({"cut": True})
    if not isinstance(error, KNOWN):
        logger.error("a statement failed", exc_info=error)
        error = PenstockError(f"the SQL process failed: {type(error).__name__}: {str(error)[:300]}")
    return encode_error(told(error))[1]


def serve(line: Line, sockets: socket.socket, ceiling: Ceiling) -> None:
    """One statement from its text to its last row.  Its database is made while nobody waits for it."""
    database = ahead()
    head = plain(line.receive({Kind.CALL: WORDS_MOST}).payload)
    bounds = Bounds(head["memory"], head["spill"], Path(head["folder"]), head["threads"], head.get("by_disk", False))
    engine = Engine(bounds, database)
    try:
        ceiling.set(head["memory"])
        answer_to(line, sockets, engine, head["sql"])
    finally:
        end(engine)


def ahead() -> Any:
    """A database for the next statement.  None where none can be made: nobody has asked yet who could be told why."""
    try:
        return made()
    except Exception:  # noqa: BLE001 - the statement makes its own then, and tells what is wrong
        return None


def end(engine: Engine) -> None:
    """Let a database go.  Ended where that fails: whoever asked has all, and the next would get a word about it."""
    try:
        engine.close()
    except Exception as error:
        logger.exception("a database did not end")
        raise Ended from error


def answer_to(line: Line, sockets: socket.socket, engine: Engine, sql: str) -> None:
    """The tables, and then the rows."""
    statement = engine.examine(sql)
    line.send(Kind.CONTROL, 0, orjson.dumps(statement.plain()))
    answer = plain(line.receive({Kind.CONTROL: WORDS_MOST}).payload)
    if "enough" in answer:
        return
    fed = [socket.socket(fileno=fd) for fd in received(sockets, len(answer["tables"]))]
    for named, stream in zip(answer["tables"], fed, strict=True):
        schema, batches = table(stream)
        engine.table(Use(*named[:2]), statement, schema, batches, named[2])
    schema, rows = engine.run(sql)
    line.send(Kind.SCHEMA, 0, schema.serialize())
    for batch in rows:
        line.send(Kind.BATCH, 0, batch.serialize())
    line.send(Kind.DONE, 0)


def received(sockets: socket.socket, count: int) -> list[int]:
    """So many descriptors, each sent beside one byte."""
    out: list[int] = []
    while len(out) < count:
        message, fds, _, _ = socket.recv_fds(sockets, 1, TABLES_MAX)
        if not message:
            raise Ended
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
