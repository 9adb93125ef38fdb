"""Pages of a replay on their way from a follower, on the loop, to the thread that sends them as Arrow batches."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast

import numpy as np
import orjson
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.records.entries import Topic
from penstock.records.schema import TIMESTAMP
from penstock.server.flight.handover import Abandoned, Bell
from penstock.server.replaying.page import Page
from penstock.wire.flight.codec import bookmark_column, constant, lsn_column, message_batch, text_column

QUEUED_MOST = 2 << 20
"""Bytes of pages that wait for a client to read them."""

BATCH_ROWS = 10_000
BEAT_S = 5.0
POLL_S = 0.1
"""How often a waiting thread asks whether its client is still there."""

Piece: TypeAlias = "tuple[pa.RecordBatch, bytes] | pa.RecordBatch"


class Outlet:
    """Pages on their way from a follower to the thread that sends them."""

    def __init__(self, origin: int) -> None:
        self._origin = origin
        self._bell = Bell()  # rung when there is something to send
        self._guard = threading.Lock()
        self._pages: deque[Page | dict[str, object]] = deque()
        self.queued = 0  # bytes that wait; changed under `_guard`
        self._over = False
        self._error: PenstockError | None = None

    # -- loop: a receiver

    def room(self) -> int:
        """Until enough is queued."""
        return 0 if self.queued > QUEUED_MOST or self._over else 1 << 30

    def take(self, page: Page) -> None:
        """Queue it."""
        self._pages.append(page)
        self._count(page.size)
        self._bell.ring()

    def completed(self, *, last: bool) -> None:
        """Tell the client."""
        self._pages.append({"completed": True, "last": last})
        self._over = self._over or last
        self._bell.ring()

    def ended(self, error: PenstockError) -> None:
        """Tell the client, after what it was sent."""
        self._error = self._error or error
        self._over = True
        self._bell.ring()

    def drop(self) -> None:
        """Nobody reads any more."""
        self._pages.clear()
        self._count(-self.queued)

    def _count(self, size: int) -> None:
        with self._guard:
            self.queued += size

    # -- the thread that sends

    def batches(
        self, schema: pa.Schema, gone: Callable[[], bool], go_on: Callable[[], None], empty: pa.RecordBatch
    ) -> Iterator[Piece]:
        """What was queued, until the end."""
        said = time.monotonic()
        while True:
            full = self.room() == 0
            pages, told = self._some()
            if pages:
                said = time.monotonic()
                yield _batch(pages, schema, self._origin)
                self._count(-sum(page.size for page in pages))
                if full and not self._over:
                    go_on()
            if told is not None:
                yield empty, orjson.dumps(told)
                if told.get("last"):
                    return
            if pages or told is not None:
                continue
            if self._over and self._error is not None:
                raise self._error
            if not self._bell.wait(POLL_S):
                if gone():
                    raise Abandoned
                if time.monotonic() - said > BEAT_S:
                    said = time.monotonic()
                    yield empty, b'{"heartbeat": true}'

    def _some(self) -> tuple[list[Page], dict[str, object] | None]:
        """Pages for one batch, and what is to be told after them."""
        pages = list[Page]()
        rows = 0
        while self._pages and rows < BATCH_ROWS:
            page = self._pages[0]
            if isinstance(page, dict):
                self._pages.popleft()
                return pages, page
            pages.append(page)
            rows += len(page)
            self._pages.popleft()
        return pages, None


def _batch(pages: list[Page], schema: pa.Schema, origin: int) -> pa.RecordBatch:
    """Pages as one batch."""
    bodies = [body for page in pages for body in page.bodies]
    rows = len(bodies)
    lsns = [lsn_column(page.lsns) for page in pages]
    lsn: Any = lsns[0] if len(lsns) == 1 else pa.concat_arrays(lsns)
    first = pages[0]
    alike = all(page.topics is first.topics for page in pages) and isinstance(first.topics, Topic)
    names: str | list[str]
    exchanges: str | list[str]
    if alike:
        names, exchanges = cast("Topic", first.topics).name, cast("Topic", first.topics).exchange
    else:
        topics = [page.topic_of(row) for page in pages for row in range(len(page))]
        names, exchanges = [topic.name for topic in topics], [topic.exchange for topic in topics]
    properties: bytes | list[bytes]
    if isinstance(first.properties, bytes) and all(page.properties == first.properties for page in pages):
        properties = first.properties
    else:
        properties = [page.properties_of(row) for page in pages for row in range(len(page))]
    times = np.array([page.time_of(row) for page in pages for row in range(len(page))], np.int64)
    return message_batch(
        schema,
        rows,
        properties,
        {
            "lsn": lambda: lsn,
            "bookmark": lambda: bookmark_column(origin, lsn),
            "topic": lambda: text_column(names, rows),
            "exchange": lambda: text_column(exchanges, rows),
            "time": lambda: cast("pa.Array[Any]", pa.array(times).cast(TIMESTAMP)),
            "properties": lambda: (
                constant(pa.binary(), properties, rows)
                if isinstance(properties, bytes)
                else cast("pa.Array[Any]", pa.array(properties, pa.binary()))
            ),
            "body": lambda: cast("pa.Array[Any]", pa.array(bodies, pa.binary())),
        },
    )
