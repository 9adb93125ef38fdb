"""Statements that run: how many at once and for how long, their tables fed by the server's reads, their rows given out.

Everything here happens in the thread of the call that asked.  The loop says what names stand for and where a queue's
messages are; the rows come from the bulk child.  A statement ends when its call does, and its child with it.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
import pyarrow as pa

from penstock.errors import AccessRefused, InvalidArgument, PenstockError, ResourceExhausted, Unavailable
from penstock.records.dataclass import dataclass
from penstock.server.base.allowed import Machine, begin
from penstock.server.base.faults import reports
from penstock.server.doors.line import Broken, Ended, Frame, Kind, handed, plain
from penstock.server.flight.handover import Abandoned, Handover
from penstock.server.people.access import THINGS, Shares
from penstock.server.sql import FOLDER
from penstock.server.sql.children import Child, Children
from penstock.server.sql.statement import COMPLETE, WORDS_MOST, Found, Statement, Use, find, missing, names
from penstock.server.sql.value_types import PIECE_BYTES, ROW_BYTES_MOST
from penstock.wire.flight.failures import error_from

if TYPE_CHECKING:
    from penstock.server.engine import Engine
    from penstock.server.flight.calls import Caller
    from penstock.server.people.entitlements import Rights
    from penstock.wire.flight.commands import Get

Rows = tuple[pa.Schema, Iterator[pa.RecordBatch]]
Read = Callable[["Caller", "Get"], Rows]
"""A read with the caller's rights."""


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """What statements may take.  Bytes and seconds."""

    memory: int = 256 << 20  # of one statement
    spill: int = 10 << 30  # of one statement, on disk
    at_once: int = 2
    timeout_s: float = 300.0


ROOM_LEAST = 1 << 20
"""With less than so many bytes to put aside a statement keeps to its memory."""

ROWS_MOST = ROW_BYTES_MOST + PIECE_BYTES
"""Bytes of a piece of the result."""

LOOK_S = 0.05
"""How often it is looked whether a statement may go on whose rows come at once: looks at each batch took two thirds of
the rows a second."""

OVER_S = 1.0
"""So much later than it should have ended a statement is ended whose reader stands still."""


class Queries:
    """All statements of a server.  Thread-safe."""

    def __init__(
        self,
        handover: Handover,
        read: Read,
        folder: str | os.PathLike[str] | None,
        limits: SqlLimits,
        shares: Shares | None = None,
    ) -> None:
        """folder: where `sql.tmp` is made; None: each statement has a folder of the system's for temporary files."""
        self.limits = limits
        self.children = Children()
        self.running = 0
        self.total = 0
        self._handover = handover
        self.read = read  # a table's rows, as far as the caller may see them
        self._folder = None if folder is None else Path(folder).absolute() / FOLDER
        shares = shares or Shares()
        self._room, self._waiting = shares.of("sql_statements"), shares.of("sql_waiting")
        self._room.bound(limits.at_once)
        self._under_way = weakref.WeakSet[Query]()  # whose result nobody has ends when it is collected
        self._noting = threading.Lock()

    def run(self, caller: Caller, vhost: str, sql: str) -> Rows:
        """Schema and rows of the result.

        Errors: InvalidArgument, NotFound, AccessRefused; ResourceExhausted when it takes too long, Unavailable when too
        many wait, or it waits as long.
        """
        timeout_s = self.limits.timeout_s
        with self._waiting.held(caller.who):
            if not self._room.wait(caller.who, time.monotonic() + timeout_s, lambda: not caller.gone()):
                if caller.gone():
                    raise Abandoned
                raise self._room.refusal(caller.who) or Unavailable("SQL statements run: try again later")
        query: Query | None = None
        try:
            query = Query(self, caller, vhost, sql, time.monotonic() + timeout_s)
            with self._noting:
                self._under_way.add(query)
            schema = query.begin()
            return schema, query
        except BaseException:
            if query is None:
                self.left(caller)
            else:
                query.close()
            raise

    def resolve(self, caller: Caller, vhost: str, statement: Statement) -> list[Found]:
        """The reads of all tables.  NotFound names the first that is nothing."""
        engine, rights = self._handover.engine, caller.rights
        for use in statement.uses:
            if rights is not None and not _may_read(rights, vhost, use):
                raise AccessRefused(f"access to '{use.name}' in vhost '{vhost}' refused for user '{caller.user}'")

        def work() -> list[Found | Use]:
            return [find(engine, vhost, use, statement) or use for use in statement.uses]

        found = self._handover.call(work, caller.gone, durable=False)
        for one in found:
            if isinstance(one, Use):
                raise self.refuse(caller, vhost, one)
        return [one for one in found if isinstance(one, Found)]

    def refuse(self, caller: Caller, vhost: str, use: Use) -> PenstockError:
        """The error for a name that is nothing: it names others that the caller may read."""
        return missing(vhost, use, [name for _, name in self.tables(caller, vhost)])

    def tables(self, caller: Caller, vhost: str) -> list[tuple[str, str]]:
        """The tables that the caller may read, by schema and name."""
        engine: Engine = self._handover.engine
        found = self._handover.call(lambda: names(engine, vhost), caller.gone, durable=False)
        rights = caller.rights
        return found if rights is None else [one for one in found if _readable(rights, vhost, *one)]

    def scratch(self) -> Path:
        """A new folder for one statement."""
        if self._folder is None:
            return Path(tempfile.mkdtemp(prefix="penstock-sql-"))
        folder = self._folder / uuid4().hex
        folder.mkdir(parents=True)
        return folder

    def may_put_aside(self) -> tuple[int, bool]:
        """Bytes that a statement which begins may put aside, and whether the disk sets that bound.

        Each of those that may run at once gets its part of what is free beyond what the log keeps, so that all of them
        together never take more.
        """
        log = self._handover.engine.log
        room = (log.disk.free() - log.kept_free) // (self.limits.at_once + THINGS["sql_statements"].kept)
        room = room if room >= ROOM_LEAST else 0
        return (room, True) if room < self.limits.spill else (self.limits.spill, False)

    def short(self) -> bool:
        """Whether the disk has no more than what the log keeps for itself: the log, or others, took the rest since."""
        log = self._handover.engine.log
        return bool(log.kept_free) and log.disk.free() < log.kept_free

    def left(self, caller: Caller) -> None:
        """A statement of this caller's has ended."""
        self._room.give(caller.user)

    def beat(self) -> None:
        """Once a second, on the loop: what nobody reads on ends in its time, too, and a thread waits until it has."""
        late = time.monotonic() - OVER_S
        with self._noting:
            over = [one for one in self._under_way if one.until < late]
        for query in over:
            if query.runs:
                with suppress(OSError):  # at the next beat, then
                    begin(threading.Thread(target=query.close, name="penstock-sql-late", daemon=True))
        self.children.beat()

    def close(self) -> None:
        """No statement begins any more: there are no more children."""
        self.children.close()


def _readable(rights: Rights, vhost: str, schema: str, name: str) -> bool:
    if schema == "queue":
        return rights.reads_queue(vhost, name) is not False
    exchange, slash, key = name.partition("/")
    return rights.reads_topic(vhost, exchange if slash else "", key if slash else name) is not False


def _may_read(rights: Rights, vhost: str, use: Use) -> bool:
    """Whether a name means something that may be read, if it means anything: what is there is not looked at."""
    kinds = (use.schema.lower(),) if use.schema else ("queue", "topic")
    whole = any(_readable(rights, vhost, kind, use.name) for kind in kinds)
    return whole or (kinds != ("queue",) and rights.reads_topic(vhost, "", use.name) is not False)


class Query(Iterator[pa.RecordBatch]):
    """One statement: its child, the threads that feed it, and its rows."""

    def __init__(self, queries: Queries, caller: Caller, vhost: str, sql: str, until: float) -> None:
        self.until = until  # by the clock that runs evenly
        self._child: Child | None = None
        self._ending = threading.Lock()
        self._queries = queries
        self._caller = caller
        self._vhost = vhost
        self._sql = sql
        self._feeds: list[Feed] = []
        self._waits = False  # the child wants to know its tables
        self._done = False  # the child can take another statement
        self._look = 0.0  # when it is looked again whether it may go on
        self._short = False  # ended for the sake of the disk
        self._cut = False  # ended before its end
        self._schema: pa.Schema | None = None
        self._listed: Iterator[pa.RecordBatch] = iter(())
        self._scratch = queries.scratch()
        try:
            self._child = queries.children.take()
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        queries.running += 1
        queries.total += 1

    @property
    def runs(self) -> bool:
        """Whether it has a child still."""
        return self._child is not None

    def begin(self) -> pa.Schema:
        """Feed the tables; the schema of the result."""
        child, limits = self._living(), self._queries.limits
        spill, by_disk = self._queries.may_put_aside()
        request: dict[str, object] = {
            "sql": self._sql,
            "memory": limits.memory,
            "spill": spill,
            "by_disk": by_disk,
            "folder": str(self._scratch),
            "threads": max(1, Machine().cores() // 2),
        }
        self._send(child, Kind.CALL, request)
        statement = Statement.of(plain(self._frame({Kind.CONTROL: WORDS_MOST}).payload))
        self._waits = True
        if statement.lists_tables:
            return self._listing()
        found = self._queries.resolve(self._caller, self._vhost, statement)
        tables = [self._rows(one) for one in found]
        self._waits = False
        self._send(child, Kind.CONTROL, {"tables": [[one.use.schema, one.use.name, one.message_type] for one in found]})
        for schema, rows in tables:
            ours = handed(child.sockets)
            feed = Feed(ours, schema, rows)
            try:
                begin(feed)
            except OSError as error:
                ours.close()
                raise Unavailable(f"this statement cannot be run now: {error.strerror}") from error
            self._feeds.append(feed)
        self._schema = pa.ipc.read_schema(pa.py_buffer(self._frame({Kind.SCHEMA: ROWS_MOST}).payload))
        return self._schema

    def _listing(self) -> pa.Schema:
        """SHOW TABLES: what names there are."""
        found = self._queries.tables(self._caller, self._vhost)
        columns = [pa.array([row[place] for row in found], pa.string()) for place in (0, 1)]
        batch = pa.RecordBatch.from_arrays(columns, names=["kind", "name"])
        self.close()
        self._listed = iter([batch])
        return batch.schema

    def _rows(self, found: Found) -> Rows:
        schema, rows = self._queries.read(self._caller, found.read)
        if found.sure:
            return schema, rows
        first = next((batch for batch in rows if batch.num_rows), None)
        if first is None:
            raise self._queries.refuse(self._caller, self._vhost, found.use)
        return schema, chain([first], rows)

    def __next__(self) -> pa.RecordBatch:
        if self._child is None:
            if self._cut:  # never taken for the end
                raise self._why()
            return next(self._listed)
        try:
            frame = self._frame({Kind.BATCH: ROWS_MOST, Kind.DONE: 0})
        except BaseException:
            self.close()
            raise
        if frame.kind is Kind.BATCH:
            assert self._schema is not None
            return pa.ipc.read_record_batch(pa.py_buffer(frame.payload), self._schema)
        self._done = True
        self.close()
        raise StopIteration

    def _frame(self, may: dict[Kind, int]) -> Frame:
        """What the child says next.  Raises what went wrong: with a table, with the statement, or with the child."""
        if (now := time.monotonic()) >= self._look:  # what comes at once is not waited for
            self._look = now + LOOK_S
            if not self._wanted():
                raise self._why()
        try:
            frame = self._living().line.receive({**may, Kind.FAILED: WORDS_MOST}, self._wanted)
        except Broken as broken:
            raise ResourceExhausted(f"the process of the statement answers with more than it may: {broken}") from None
        except Ended:
            raise self._why() from None
        if frame.kind is Kind.FAILED:
            told = plain(frame.payload)
            error = self._why() if "cut" in told else error_from(told)
            failed = reports.tell_if_a_fault(error, "sql")
            self._done = not failed and not isinstance(error, ResourceExhausted)  # who failed so starts anew
            raise error
        return frame

    def _wanted(self) -> bool:
        self._short = self._scratch.exists() and any(self._scratch.iterdir()) and self._queries.short()
        return not self._short and not self._caller.gone() and time.monotonic() < self.until

    def _why(self) -> BaseException:
        for feed in self._feeds:
            if feed.error is not None:
                return feed.error
        if self._caller.gone():
            return Abandoned()
        if self._short:
            return ResourceExhausted(
                "the statement was ended: with what it has put aside the disk has no more than the log needs; read "
                "less, allow it more sql.memory, or free space there"
            )
        if time.monotonic() >= self.until:
            seconds = self._queries.limits.timeout_s
            return ResourceExhausted(f"the statement took longer than {seconds:g} s, which is sql.timeout")
        fate = "its process has gone" if self._child is None else f"its process ended ({self._child.fate()})"
        limit = self._queries.limits.memory >> 20
        return ResourceExhausted(
            f"the statement did not come to its end: {fate}.  It may have needed more than sql.memory, which is "
            f"{limit} MiB: read less, ask in several steps, or allow more in the settings"
        )

    def _send(self, child: Child, kind: Kind, told: dict[str, object]) -> None:
        try:
            child.line.send(kind, 0, orjson.dumps(told))
        except Ended:
            raise self._why() from None

    def _living(self) -> Child:
        if self._child is None:
            raise InvalidArgument("the statement has ended")
        return self._child

    def close(self) -> None:
        """End it, whether it has come to its end or not; twice does no harm."""
        with self._ending:
            self._cut = self._cut or (self._child is not None and not self._done and not self._waits)
            child, self._child = self._child, None  # behind that: a reader finds the one or the other
        if child is None:
            return
        for feed in self._feeds:
            feed.close()
        if self._waits:  # for tables, which will not come
            try:
                child.line.send(Kind.CONTROL, 0, b'{"enough":true}')
                self._done = True
            except Ended:
                pass  # it has died, and goes below
        if self._done:
            self._queries.children.back(child)
        else:
            self._queries.children.end(child)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._queries.running -= 1
        self._queries.left(self._caller)

    def __del__(self) -> None:
        """A result that nobody read."""
        self.close()


class Feed(threading.Thread):
    """Gives one table to the child."""

    def __init__(self, sock: socket.socket, schema: pa.Schema, rows: Sequence[pa.RecordBatch] | Iterator[Any]) -> None:
        super().__init__(name="penstock-sql-feed", daemon=True)
        self.error: BaseException | None = None
        self._sock = sock
        self._schema = schema
        self._rows = rows

    def run(self) -> None:
        """All rows, and the mark that they are all."""
        try:
            with self._sock, self._sock.makefile("wb", buffering=1 << 20) as file:
                with pa.ipc.new_stream(file, self._schema) as writer:
                    for batch in self._rows:
                        writer.write_batch(batch)
                file.write(COMPLETE)
        except OSError:
            return  # the child has gone, and whoever reads its answers sees that
        except BaseException as error:  # noqa: BLE001 - told to whoever asked for the statement
            self.error = error
        finally:
            closing = getattr(self._rows, "close", None)
            if closing is not None:
                closing()

    def close(self) -> None:
        """The child needs no more: a write that waits for it fails."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already
