"""Expressions over what waits, off the loop: which messages a filter wants, and their ranks and keys.

Durable rows are read from the log as Arrow batches, in a thread that hands the interpreter over every half millisecond;
rows that are in memory alone are evaluated there from memory.  A scan stops when its time is up and answers for what it
has seen.  Without somewhere off the loop (`off`), as in tests, it runs in place on a few rows.  Damaged batches are
passed over: no filter matches what cannot be read (`log.reader`).

`Backfills` bring priorities and keys of messages that wait already: after a start those that no checkpoint knows, after
a change of the expression all of them, and those of batches that were too large. Bodies are read as for anybody else;
the expressions run off the loop.

It knows the log, the cache of bodies and expressions; queues and their lists are the core's.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from penstock.core.effects import Key, Keyed, Rate, Rated, Scan, Scanned
from penstock.core.queue.order.ranks import LOWEST, Levels, Ranking
from penstock.core.queue.staging import Told
from penstock.expr import FilterSet, Matcher, Value, compile_filter
from penstock.expr.context import LOOP_BODY
from penstock.log.record_batches import Joining
from penstock.records.chunks import Chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Rows
from penstock.server.asking.judging import Ask, Judges, breathe, look, made_of, spent

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.server.base.runtime import Off, Runtime


IN_PLACE = 500
"""Rows of a scan that has to run on the loop."""

SCAN_US = 100_000
"""A scan that has taken this long answers for what it has seen."""

JOIN_ROWS = 8_192
JOIN_MOST = 2 * 2**20
JOIN_SHARE = 64
"""Small batches of the log are looked through together: so many bytes, but no more than this share of the budget."""

FOUND_MOST = 10_000
"""Matches of each filter beyond which a scan need not go on: nobody has room for more."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a scan found: by filter the LSNs, ascending, and how far it looked."""

    found: list[list[int]]
    upto: int


class Scans:
    """The scans of an engine.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.after: list[Callable[[], None]] = []  # each run once, soon after the core was told of a scan
        self.off: Off | None = None
        self.ask: Ask | None = None  # the bulk child, if there is one
        self._running: dict[int, Chunk] = {}  # by serial: what it looks through
        self._serial = 0
        self._join = min(JOIN_MOST, runtime.bodies.budget.limit // JOIN_SHARE)
        runtime.deliverers.append(self._running.values)
        self._holds = runtime.bodies.budget.account("scanning")  # what the one under way may: batches, what joins them

    def start(self, effect: Scan) -> None:
        """Look; the core is told, at once or later."""
        if self.off is None:
            self._in_place(effect)
            return
        runtime, chunk = self.runtime, effect.chunk
        durable = bisect_right(chunk, runtime.log.durable)
        work: Callable[[], Seen]
        if durable:
            rows, mono = chunk[:durable], runtime.clock.mono
            work = partial(look_at_log, runtime.log, rows, effect.filters, mono, self.ask, join=self._join)
        else:
            work = partial(look_at_memory, self._pieces(chunk), effect.filters, chunk[-1], self.ask)
        self._serial += 1
        serial = self._serial
        self._running[serial] = chunk
        self._holds.bytes = 2 * self._join  # one runs at a time

        def done(seen: Seen) -> None:
            del self._running[serial]
            if not self._running:
                self._holds.bytes = 0
            self._tell(effect, seen)

        self.off(work, done)

    def _tell(self, effect: Scan, seen: Seen) -> None:
        self.runtime.answer(Scanned(effect.token, seen.found, seen.upto))
        after, self.after = self.after, []
        for hook in after:
            self.runtime.call_soon(hook)

    def _in_place(self, effect: Scan) -> None:
        chunk = effect.chunk[:IN_PLACE]

        def answer(rows: Rows) -> None:
            self._tell(effect, Seen(matching(effect.filters, rows), chunk[-1]))

        self.runtime.read_rows(chunk, answer)

    def _pieces(self, chunk: Chunk) -> list[tuple[Publishes, Sequence[int]]]:
        """Batches in memory with the rows that are in the chunk; what is not there is lost, or no message."""
        out = list[tuple[Publishes, Sequence[int]]]()
        at, n = 0, len(chunk)
        while at < n:
            batch = self.runtime.bodies.peek(chunk[at])
            if batch is None:
                at += 1
                continue
            stop = bisect_left(chunk, batch.first + len(batch.bodies), at)
            first = batch.first
            if chunk[stop - 1] - chunk[at] == stop - 1 - at:
                out.append((batch, range(chunk[at] - first, chunk[stop - 1] + 1 - first)))
            else:
                out.append((batch, [lsn - first for lsn in chunk[at:stop]]))
            at = stop
        return out


def warm_up() -> None:
    """Load what the first filter needs, 150 ms of work, before it comes.  Any thread."""
    import_module("pyarrow.compute")  # a start does without (`records.compute`); the loop should not be its first user
    from penstock.expr.scan import Scan as Scanner

    Scanner([compile_filter("/x = 'y'")], lambda vias, names: [], spent)


def matching(filters: Sequence[Matcher], rows: Rows) -> list[list[int]]:
    """For each filter the LSNs of the rows that it matches."""
    found = FilterSet(filters).matches(*rows.messages)
    return [sorted(rows.lsns[row] for row in found.get(slot, ())) for slot in range(len(filters))]


def look_at_memory(
    pieces: Sequence[tuple[Publishes, Sequence[int]]], filters: Sequence[Matcher], upto: int, ask: Ask | None
) -> Seen:
    """Look through batches that are in memory.  Any thread."""
    out: list[list[int]] = [[] for _ in filters]
    for batch, rows in pieces:
        for some, places in zip(out, look(filters, batch.messages.some(rows), ask), strict=True):
            some += [batch.first + rows[place] for place in places]
    return Seen(out, upto)


def look_at_log(
    log: Log,
    chunk: Chunk,
    filters: Sequence[Matcher],
    mono: Callable[[], int],
    ask: Ask | None = None,
    *,
    join: int = JOIN_MOST,
) -> Seen:
    """Look through durable messages, ascending LSNs, for as long as there is time.  Any thread.

    join: bytes of small batches that are looked through together.
    """
    from penstock.expr.scan import Scan as Scanner  # for the first scan: `warm_up` has had it loaded

    end = mono() + SCAN_US
    scanner = Scanner(filters, log.vias.topics, spent, body_most=LOOP_BODY, breathe=breathe)
    out: list[list[int]] = [[] for _ in filters]
    upto = chunk[0] - 1
    wanted = None if isinstance(chunk, range) else np.frombuffer(chunk, np.int64)
    for batch in _joined(log.batches(chunk[0], chunk[-1] + 1, around=True), join):
        lsns = cast("Any", batch.column("lsn")).to_numpy()
        rows: Any = None
        if wanted is not None:
            low, high = np.searchsorted(wanted, (lsns[0], lsns[-1] + 1))
            rows = np.searchsorted(lsns, wanted[low:high])
            rows = rows[lsns[rows] == wanted[low:high]]
        if wanted is None or len(rows):
            found, large = scanner.run(batch, rows)
            for lsn in large:
                for some, more in zip(found, _large(log, lsn, filters, ask), strict=True):
                    some += more
            for some, more in zip(out, found, strict=True):
                some += sorted(more) if large else more
        upto = int(lsns[-1])
        if mono() > end or any(len(some) > FOUND_MOST for some in out):
            break
    else:
        upto = chunk[-1]
    return Seen(out, min(upto, chunk[-1]))


def _large(log: Log, lsn: int, filters: Sequence[Matcher], ask: Ask | None) -> list[list[int]]:
    """By filter whether it matches one message with a large body, as a list of its LSN or nothing."""
    rows = log.read([lsn], around=True)
    return [[lsn for _ in places] for places in look(filters, rows.messages, ask)]


def _joined(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches of about `most` bytes, where they are small."""
    held, rows, size = Joining(), 0, 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= JOIN_ROWS or size >= most:
            yield held.whole()
            held, rows, size = Joining(), 0, 0
    if held:
        yield held.whole()


class Backfills:
    """Has messages judged for their queues.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime, judges: Judges) -> None:
        self.off: Off | None = None
        self._runtime = runtime
        self._judges = judges

    def start(self, ask: Rate | Key) -> None:
        """Read and evaluate; the core is told, at once or later."""
        self._runtime.read_rows(ask.chunk, partial(self._evaluate, ask))

    def _evaluate(self, ask: Rate | Key, rows: Rows) -> None:
        last = rows.lsns[-1] if rows.lsns else ask.chunk[-1]
        part = ask.chunk if last >= ask.chunk[-1] else ask.chunk[: bisect_right(ask.chunk, last)]  # as a read brings
        work = partial(answer_to, ask, part, rows, self._judges.ask)
        if self.off is None:
            self._runtime.answer(work())
        else:
            self.off(work, self._runtime.answer)


def answer_to(ask: Rate | Key, chunk: Chunk, rows: Rows, child: Ask | None) -> Rated | Keyed:
    """What the messages of a chunk have by the ask's expressions.  Any thread."""
    if isinstance(ask, Rate):
        return Rated(ask.token, chunk, ranks_of(ask.value, chunk, rows, child))
    return Keyed(ask.token, chunk, keys_of(ask.values, chunk, rows, child))


def keys_of(values: tuple[Value, ...], chunk: Chunk, rows: Rows, ask: Ask | None = None) -> list[Told]:
    """The keys of each message of a chunk; those without a row have none.  Any thread."""
    columns = made_of(values, "text", rows.messages, ask)
    found = dict(zip(rows.lsns, zip(*columns, strict=True), strict=True))
    nothing = (None,) * len(values)
    return [found.get(lsn, nothing) for lsn in chunk]


def ranks_of(value: Ranking, chunk: Chunk, rows: Rows, ask: Ask | None = None) -> list[int]:
    """The rank of each message of a chunk; those without a row have the lowest.  Any thread."""
    if isinstance(value, Levels):
        ranks = value.ranks(rows.properties, len(rows), rows.times)
    else:
        [ranks] = made_of([value], "rank", rows.messages, ask)
    found = dict(zip(rows.lsns, ranks, strict=True))
    return [found.get(lsn, LOWEST) for lsn in chunk]
