"""What the demo's processes share: where the server is, counters in shared memory, and the files they leave.

A counter has one writer, so nothing here has a lock, and a process may die at any moment without harm to the others.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

PATIENCE_S = 60.0
"""How long a client looks for a server that has gone away."""

RESULT = np.dtype(
    [("id", "<u4"), ("attempt", "u1"), ("redelivered", "u1"), ("worked", "u1"), ("pad", "u1"), ("delay", "<i4"),
     ("waited", "<f4"), ("at", "<f8")]
)  # fmt: skip
"""One line in a worker's book.  `waited`: seconds from the server's storing to the worker's hands, NaN if unknown."""

_LINE = struct.Struct("<IBBBxifd")


@dataclass(frozen=True)
class World:
    """Everything a process needs to know; sent to it when it starts."""

    folder: Path
    amqp: tuple[str, int]
    url: str
    counters: Any  # RawArray of counts, one slot for each writer
    orders: Any  # RawArray: see the names below

    @property
    def table(self) -> Path:
        """The flights."""
        return self.folder / "flights.arrow"

    @property
    def over(self) -> bool:
        """The workers are to go home."""
        return bool(self.orders[OVER])


OVER, ALLOWED, RATE = 0, 1, 2
"""Orders: stop; how many rows the Flight publisher may have sent by now, and how many a second."""


def counters(count: int) -> Any:
    """So many counts, all zero."""
    return RawArray("q", count)


class Book:
    """What one worker has done, line by line in a file that outlives it.

    A line is written before its message is acknowledged, so that a crash in between repeats work and never loses it.
    """

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(exist_ok=True)
        self._file = os.open(folder / f"{name}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, lines: Iterable[tuple[int, int, int, int, int, float, float]]) -> None:
        """Lines of (id, attempt, redelivered, worked, delay, waited, at), in one system call."""
        os.write(self._file, b"".join(_LINE.pack(*line) for line in lines))


def read_books(folder: Path) -> Any:
    """All lines of all books, as a numpy array of RESULT."""
    parts = [np.fromfile(path, RESULT) for path in sorted(folder.glob("*"))]
    return np.concatenate(parts) if parts else np.zeros(0, RESULT)


def again(work: Callable[[], T], broken: tuple[type[BaseException], ...]) -> T:
    """The result of `work`, begun again while the server is away; the last error when it stays away."""
    until = time.monotonic() + PATIENCE_S
    while True:
        started = time.monotonic()
        try:
            return work()
        except broken:
            if started > until:
                raise
            if time.monotonic() - started > 1:  # it had worked for a while
                until = time.monotonic() + PATIENCE_S
            time.sleep(0.1)


def parts(count: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, length) of pieces of at most `size`."""
    for start in range(0, count, size):
        yield start, min(size, count - start)
