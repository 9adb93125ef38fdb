"""The SQL process: `python -m penstock.server.sql.child FD`, one statement after another.

    in   {"sql", "memory", "spill", "folder", "threads"}
    out  {"statement": ...}                     the tables it names
    in   {"tables": [[schema, name, times]]}    and then one socket a table, with an Arrow stream and `COMPLETE`
    out  {"schema": true} + schema, batches, {"end": {}}; or {"error": ...} at any time

Instead of tables there may be {"enough": true}.  Each statement has a database of its own, which goes with it.  The
process ends when the server closes the socket.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.server.bulk import frames
from penstock.server.sql.engine import Bounds, Engine, told
from penstock.server.sql.statement import COMPLETE, TABLES_MAX, Use


class Cut(Exception):
    """A table's stream ended early: the server knows why."""


def main() -> None:
    """Answer statements; never returns."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # they reach the server too, and its end is ours
    os.nice(5)
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        while True:
            try:
                serve(sock)
            except frames.Ended:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, whoever asked is told
                frames.send(sock, {"error": encoded(error)})
    except frames.Ended:
        os._exit(0)  # nobody waits any more


def encoded(error: Exception) -> dict[str, object]:
    """An error for the head of a frame."""
    import orjson

    from penstock.wire.flight.failures import encode_error

    if isinstance(error, Cut):
        return {"cut": True}
    return dict(orjson.loads(encode_error(told(error))[1]))


def serve(sock: socket.socket) -> None:
    """One statement from its text to its last row."""
    head, _ = frames.receive(sock)
    if head is None:
        raise frames.Ended
    bounds = Bounds(head["memory"], head["spill"], Path(head["folder"]), head["threads"])
    engine = Engine(bounds)
    try:
        answer_to(sock, engine, head["sql"])
    finally:
        engine.close()


def answer_to(sock: socket.socket, engine: Engine, sql: str) -> None:
    """The tables, and then the rows."""
    statement = engine.examine(sql)
    frames.send(sock, {"statement": statement.plain()})
    answer, _ = frames.receive(sock)
    if answer is None:
        raise frames.Ended
    if "enough" in answer:
        return
    fed = [socket.socket(fileno=fd) for fd in received(sock, len(answer["tables"]))]
    for named, stream in zip(answer["tables"], fed, strict=True):
        schema, batches = table(stream)
        engine.table(Use(*named), statement, schema, batches)
    schema, rows = engine.run(sql)
    frames.send(sock, {"schema": True}, memoryview(schema.serialize()))
    for batch in rows:
        frames.send(sock, None, memoryview(batch.serialize()))
    frames.send(sock, {"end": {}})


def received(sock: socket.socket, count: int) -> list[int]:
    """So many descriptors."""
    out: list[int] = []
    while len(out) < count:
        message, fds, _, _ = socket.recv_fds(sock, 1, TABLES_MAX)
        if not message:
            raise frames.Ended
        out += fds
    return out


def table(stream: socket.socket) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema of a table and its batches.  Cut when it ends before it is whole."""
    file: Any = stream.makefile("rb", buffering=1 << 20)
    try:
        reader = pa.ipc.open_stream(file)
    except (pa.ArrowException, OSError, EOFError):
        raise Cut from None

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except (pa.ArrowException, OSError):
            raise Cut from None
        if file.read(1) != COMPLETE:
            raise Cut
        file.close()
        stream.close()

    return reader.schema, batches()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    main()
