"""Steps that look: `query_sow` takes the first message that matches, `delete_sow` removes the records that do.

Both walk through messages a few at a time, about so many bytes whatever their size, with everybody else's turns in
between.  What is walked through is as it was when the walk began; nothing is leased or moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.actions.rules import Deleting, Happening, Querying
from penstock.core.asks import Question
from penstock.core.publishing.evaluating import answers_of
from penstock.core.queue.places import AVAILABLE
from penstock.errors import NotFound
from penstock.expr import Filter
from penstock.expr.meter import LOOP_BODY, LOOP_BYTES
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes, Rows

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue
    from penstock.core.sow.holding import Sow
    from penstock.server.filters.judging import Judges
    from penstock.server.runtime import Runtime


LOOKED = 256
"""Messages of a chunk."""

Found = Callable[[Rows, list[bool]], bool]
"""Rows, and which of them match; whether the walk is over."""


class Walk:
    """One walk.  `found` is told of each portion, `done` of the end."""

    def __init__(
        self,
        runtime: Runtime,
        judges: Judges,
        chunks: Iterator[Chunk],
        chosen: Filter | None,
        found: Found,
        done: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._judges = judges
        self._chunks = chunks
        self._filter = chosen
        self._found = found
        self._done = done
        self._portion = Portion()
        self._left: Chunk = range(0)

    def start(self) -> None:
        """Begin; it ends in a later turn."""
        self._runtime.call_soon(self._next)

    def _next(self) -> None:
        if not len(self._left):
            self._left = next(self._chunks, range(0))
        if not len(self._left):
            self._done()
            return
        chunk = self._left[: self._portion.rows]
        self._left = self._left[len(chunk) :]
        self._runtime.read_rows(chunk, self._read)

    def _read(self, rows: Rows) -> None:
        chosen, bodies = self._filter, rows.bodies
        self._portion.read(sum(map(len, bodies)), len(rows))
        if chosen is not None and (max(map(len, bodies), default=0) > LOOP_BODY or sum(map(len, bodies)) > LOOP_BYTES):
            batch = Publishes(rows.topics, rows.properties, bodies)
            then = partial(self._judged, rows, batch)
            self._judges.evaluate(batch, [Question(chosen, list(range(len(rows))))], then)
        elif chosen is not None:
            self._tell(rows, chosen.matches(bodies, rows.properties, rows.topics, lsns=rows.lsns, times=rows.times))
        else:
            self._tell(rows, [True] * len(rows))

    def _judged(self, rows: Rows, batch: Publishes) -> None:
        assert self._filter is not None
        answers = answers_of(batch, self._filter)
        self._tell(rows, [bool(answers[row]) for row in range(len(rows))])

    def _tell(self, rows: Rows, hits: list[bool]) -> None:
        if self._found(rows, hits):
            self._done()
        else:
            self._runtime.call_soon(self._next)  # the others have their turn


def available_chunks(queue: Queue) -> Iterator[Chunk]:
    """What is available in a queue, the oldest first."""
    chunks = sorted(queue.chunks(*AVAILABLE), key=_first_of)
    if all(a[-1] < b[0] for a, b in pairwise(chunks)):
        return (chunk[start : start + LOOKED] for chunk in chunks for start in range(0, len(chunk), LOOKED))
    return _portions(merge(*chunks))


def _first_of(chunk: Chunk) -> int:
    return chunk[0]


def _portions(lsns: Iterator[int]) -> Iterator[Chunk]:
    while some := list(islice(lsns, LOOKED)):
        yield as_chunk(some)


def record_chunks(sow: Sow) -> tuple[Iterator[Chunk], dict[int, int]]:
    """The records of a topic, the oldest first, and the key of each by its LSN."""
    numbers, lsns = sow.index.snapshot().arrays()
    order = np.argsort(lsns, kind="stable")
    ascending = lsns[order].tolist()
    keys = dict(zip(ascending, numbers[order].tolist(), strict=True))
    return (as_chunk(ascending[start : start + LOOKED]) for start in range(0, len(ascending), LOOKED)), keys


def at_most(chunks: Iterator[Chunk], most: int) -> Iterator[Chunk]:
    """The first so many messages."""
    for chunk in chunks:
        if most <= 0:
            return
        yield chunk[:most]
        most -= len(chunk)


BYTES = 4 << 20
MOST = 256
FIRST = 8


class Portion:
    """Learns from what came.  It begins with few, and grows while they are small."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows = FIRST

    def read(self, size: int, rows: int) -> None:
        """So many bytes came in so many rows."""
        if rows:
            self.rows = max(1, min(BYTES * rows // max(size, 1), 2 * self.rows, MOST))


LOOKED_MOST = 100_000
"""Messages that one query looks through; beyond these it has found nothing."""


def query(runtime: Runtime, judges: Judges, step: Querying, happening: Happening, then: Callable[[], None]) -> None:
    """Put the first message into the variable, then call `then`.  Raises NotFound for a name that is neither.

    The records of a SOW topic are meant before a queue of the same name; the oldest comes first.
    """
    vhost, name = step.step.vhost, step.topic.render(happening).decode(errors="replace")
    sow = runtime.core.sows.by_name.get((vhost, "", name))
    if sow is not None:
        chunks, _ = record_chunks(sow)
    elif (queue := runtime.core.find_queue(vhost, name)) is not None:
        chunks = available_chunks(queue)
    else:
        raise NotFound(f"no queue and no SOW topic '{name}' in vhost '{vhost}'")
    happening.added[step.step.capture] = step.default.render(happening)

    def found(rows: Rows, hits: list[bool]) -> bool:
        for body, hit in zip(rows.bodies, hits, strict=True):
            if hit:
                happening.added[step.step.capture] = body
                return True
        return False

    Walk(runtime, judges, at_most(chunks, LOOKED_MOST), step.filter, found, then).start()


def delete(runtime: Runtime, judges: Judges, step: Deleting, happening: Happening, then: Callable[[], None]) -> None:
    """Remove the records that match, then call `then`.  One that has changed meanwhile stays.  Raises NotFound."""
    vhost, name = step.step.vhost, step.topic.render(happening).decode(errors="replace")
    sow: Sow = runtime.core.sow(vhost, "", name)
    chunks, keys = record_chunks(sow)

    def found(rows: Rows, hits: list[bool]) -> bool:
        lsns = [lsn for lsn, hit in zip(rows.lsns, hits, strict=True) if hit]
        if lsns:
            runtime.core.sow_delete(runtime.now(), sow, [keys[lsn] for lsn in lsns], lsns=lsns, by="action")
            runtime.arm()
        return False

    Walk(runtime, judges, chunks, step.filter, found, then).start()
