"""Reads in the child: the same code as in a Flight thread, over what the server listed."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.history.history import Batches, History, Limits
from penstock.log.record_batches import column
from penstock.records.schema import COLUMNS
from penstock.server.bulk.requests import GivenUp, Request
from penstock.server.flight.queue_rows import content as content_rows
from penstock.server.flight.queue_rows import planned, unpack
from penstock.wire.flight.commands import LogRange, Plan, QueueContent, Replay, Sow

ROWS_AT_ONCE = 16_384

ORDERED_AT_ONCE, LOOK_S = 4, 0.1
"""Reads whose rows are put in order at a time, and how often one that waits looks whether it is still wanted."""

_PLACES = threading.BoundedSemaphore(ORDERED_AT_ONCE)


def _history(request: Request) -> History:
    return History(request.view, request.gone, request.most)


def records(request: Request, command: dict[str, Any]) -> tuple[pa.Schema, Batches]:
    """A range of the log."""
    return _history(request).records(LogRange(**command))


def archived(
    request: Request, start: int, end: int, topics: Sequence[str] | None, most: int
) -> tuple[pa.Schema, Batches]:
    """Archived rows of all kinds with LSNs in [start, end), until there are about `most` bytes.

    topics: only messages of these matter; None: all.  The note `upto` says below which LSN all was given.
    """
    archive = request.view.archive
    if archive is None:
        raise InvalidArgument("there is no archive")
    wanted = None if topics is None else frozenset(topics).__contains__

    def rows() -> Batches:
        left = most
        for batch in archive.batches(start, end, None, wanted):
            for at in range(0, batch.num_rows, ROWS_AT_ONCE):
                part = batch.slice(at, ROWS_AT_ONCE)
                yield part
                left -= part.nbytes
                if left <= 0:
                    request.notes["upto"] = int(column(part, "lsn", "<i8")[-1]) + 1
                    return
        request.notes["upto"] = end

    return COLUMNS, rows()


def replay(request: Request, command: dict[str, Any], start: int, end: int) -> tuple[pa.Schema, Batches]:
    """Messages of topics with LSNs in [start, end)."""
    return _history(request).replay_between(Replay(**command), start, end)


def content(
    request: Request, command: dict[str, Any], parts: Sequence[Any], **packed: Any
) -> tuple[pa.Schema, Batches]:
    """The messages of a snapshot of a queue."""
    return content_rows(QueueContent(**command), unpack(parts, packed), _history(request))


def plan(request: Request, command: dict[str, Any], parts: Sequence[Any], **packed: Any) -> tuple[pa.Schema, Batches]:
    """One part of a planned batch of a stream."""
    chunks = [part.chunk for part in unpack(parts, packed)]
    return planned(Plan(**command), chunks, _history(request))


def measured(
    request: Request, command: dict[str, Any], start: int, end: int, rows: int, bytes: int, parts: int
) -> dict[str, object]:
    """How far so many messages or bytes of a replay reach."""
    return asdict(_history(request).measure(Replay(**command), start, end, Limits(rows, bytes, parts)))


@contextmanager
def _ordering(request: Request) -> Generator[None]:
    """While rows are put in order, by few at a time: 32 of one user took all memory, and everybody's reads failed."""
    while not _PLACES.acquire(timeout=LOOK_S):
        if request.gone():
            raise GivenUp
    try:
        yield
    finally:
        _PLACES.release()


def sow(
    request: Request, command: dict[str, Any], keyed: bool, given: bool, numbers: bytes, lsns: bytes
) -> tuple[pa.Schema, Batches]:
    """Records of a SOW topic; numbers and lsns: packed, of the index as of one moment."""
    from penstock.server.flight.record_rows import Held  # far more code than what goes through the log
    from penstock.server.flight.record_rows import records as records_of
    from penstock.server.views.record_query import Counts

    values: dict[str, Any] = {**command, "order_by": tuple(command["order_by"])}
    counts = Counts()
    held = Held(np.frombuffer(numbers, np.uint64), np.frombuffer(lsns, np.int64), keyed, given)
    schema, rows = records_of(Sow(**values), held, _history(request), counts)

    def noted() -> Batches:
        if command["order_by"]:
            with _ordering(request):
                first = next(rows, None)
            if first is not None:
                yield first
        yield from rows
        request.notes.update(counts.plain())

    return schema, noted()
