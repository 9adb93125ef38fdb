"""Portions on their way from what is followed, on the loop, to the thread that sends them as Arrow batches."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sized
from typing import Generic, TypeAlias, TypeVar

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.server.flight.handover import Abandoned, Bell

QUEUED_MOST = 2 << 20
"""Bytes that wait for a client to read them."""

BATCH_ROWS = 10_000
BEAT_S = 5.0
POLL_S = 0.1
"""How often a waiting thread asks whether its client is still there."""

Piece: TypeAlias = "tuple[pa.RecordBatch, bytes] | pa.RecordBatch"

T = TypeVar("T", bound=Sized)


class Outlet(ABC, Generic[T]):
    """A taker whose portions another thread sends."""

    def __init__(self, origin: int) -> None:
        self._origin = origin
        self._bell = Bell()  # rung when there is something to send
        self._guard = threading.Lock()
        self._out: deque[T | bytes] = deque()  # portions, and what is told beside an empty batch between two of them
        self._starved = False  # the loop found no room since the thread had it go on
        self._over = False
        self._error: PenstockError | None = None
        self.queued = 0  # bytes that wait; changed under `_guard`

    # -- for each kind of portion

    @abstractmethod
    def cost(self, portion: T) -> int:
        """Bytes of memory, about."""

    @abstractmethod
    def batch(self, portions: list[T], schema: pa.Schema) -> pa.RecordBatch: ...

    @abstractmethod
    def completed(self, *, last: bool) -> bytes:
        """What the client is told when all there was has come; last: nothing follows."""

    # -- loop: a taker

    def room(self) -> int:
        self._starved = True  # before it is looked: the thread sends meanwhile, and looks at this after it has counted
        if self.queued > QUEUED_MOST or self._over:
            return 0
        self._starved = False
        return BATCH_ROWS

    def take(self, portion: T) -> None:
        self._out.append(portion)
        self._count(self.cost(portion))
        self._bell.ring()

    def level(self) -> None:
        self._out.append(self.completed(last=False))
        self._bell.ring()

    def ended(self, error: PenstockError | None) -> None:
        """Tell the client, after what it was sent."""
        if error is None and not self._over:
            self._out.append(self.completed(last=True))
        self._error = self._error or error
        self._over = True
        self._bell.ring()

    def drop(self) -> None:
        self._out.clear()
        self._count(-self.queued)

    def _count(self, size: int) -> None:
        with self._guard:
            self.queued += size

    # -- the thread that sends

    def batches(self, schema: pa.Schema, gone: Callable[[], bool], go_on: Callable[[], None]) -> Iterator[Piece]:
        """What was queued, until the end; go_on: there is room again."""
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        said = time.monotonic()
        while True:
            over = self._over  # what was queued before that is out when nothing is left
            portions, told = self._some()
            if portions:
                said = time.monotonic()
                yield self.batch(portions, schema)
                self._count(-sum(map(self.cost, portions)))
                if self._starved:
                    self._starved = False
                    go_on()
            if told is not None:
                yield empty, told
            if portions or told is not None:
                continue
            if over:
                if self._error is not None:
                    raise self._error
                return
            if not self._bell.wait(POLL_S):
                if gone():
                    raise Abandoned
                if time.monotonic() - said > BEAT_S:
                    said = time.monotonic()
                    yield empty, b'{"heartbeat": true}'

    def _some(self) -> tuple[list[T], bytes | None]:
        """Portions for one batch, and what is to be told after them."""
        portions, rows = list[T](), 0
        while self._out and rows < BATCH_ROWS:
            one = self._out.popleft()
            if isinstance(one, bytes):
                return portions, one
            portions.append(one)
            rows += len(one)
        return portions, None
