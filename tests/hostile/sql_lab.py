"""A process of statements by itself: what it is asked and answers, and how much memory it took, seen from outside."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
import pyarrow as pa

from penstock.errors import PenstockError, ResourceExhausted
from penstock.records.message_types import JSON
from penstock.server.doors.line import Ended, Frame, Kind, plain
from penstock.server.sql.children import Child
from penstock.server.sql.queries import Feed
from penstock.wire.flight.failures import error_from

MIB = 2**20
SAMPLE_S = 0.002


class Peak:
    """The most memory that a process had of its own, sampled; pages of files can be dropped, and do not count."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self.bytes = 0

    def __enter__(self) -> Self:
        self.look()
        self.before = self.bytes
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._sampler.join()
        self.look()

    @property
    def risen(self) -> int:
        """Bytes above what it was."""
        return self.bytes - self.before

    def look(self) -> None:
        try:
            lines = self._status.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return
        self.bytes = max(self.bytes, *(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), 0)

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.look()


@dataclass
class Lab:
    """Asks one child after the other, as the server does: who ran out of memory, or died, is not asked again."""

    folder: Path
    memory: int = 256 * MIB
    spill: int = 10 << 30
    threads: int = 2
    child: Child | None = None
    risen: int = 0  # bytes, by the statement before
    put_aside: int = 0  # bytes of files, at its end

    def ask(self, sql: str, tables: Mapping[str, tuple[pa.Schema, Iterator[pa.RecordBatch]]] | None = None) -> pa.Table:
        """The result.  Raises what the child says; Died when it says nothing."""
        child = self.child if self.child is not None and self.child.lives else Child()
        self.child = child
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        head = {
            "sql": sql, "memory": self.memory, "spill": self.spill, "folder": str(scratch), "threads": self.threads
        }  # fmt: skip
        try:
            if child.line.sock.gettimeout() is None:  # a new one: what it loads is its own
                self._rows(child, {**head, "sql": "SELECT 1"}, {})
                child.line.sock.settimeout(120)
            with Peak(child.pid) as peak:
                try:
                    return self._rows(child, head, tables or {})
                finally:
                    self.put_aside = sum(one.stat().st_size for one in scratch.iterdir())
        except Ended:
            raise Died(child.fate()) from None
        except ResourceExhausted:
            self.close()
            raise
        finally:
            self.risen = peak.risen if "peak" in locals() else 0
            shutil.rmtree(scratch)

    def _rows(self, child: Child, head: Mapping[str, Any], tables: Mapping[str, Any]) -> pa.Table:
        child.line.send(Kind.CALL, 0, orjson.dumps(head))
        told(child)
        child.line.send(Kind.CONTROL, 0, orjson.dumps({"tables": [["", name, JSON] for name in tables]}))
        feeds = list[Feed]()
        for schema, rows in tables.values():
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(child.sockets, [b"t"], [theirs.fileno()])
            feeds.append(Feed(ours, schema, rows))
            feeds[-1].start()
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(told(child).payload))
            batches = list[pa.RecordBatch]()
            while (frame := told(child)).kind is Kind.BATCH:
                batches.append(pa.ipc.read_record_batch(pa.py_buffer(frame.payload), schema))
            return pa.Table.from_batches(batches, schema)
        finally:
            for feed in feeds:
                feed.close()

    def close(self) -> None:
        """End the child."""
        if self.child is not None:
            self.child.end()
            self.child = None


class Died(Exception):
    """The child ended without an answer."""


def told(child: Child) -> Frame:
    """What the child says next.  Raises its error."""
    frame = child.line.receive(dict.fromkeys(Kind, 1 << 31))
    if frame.kind is Kind.FAILED:
        error: PenstockError = error_from(plain(frame.payload))
        raise error
    return frame
