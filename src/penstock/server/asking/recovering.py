"""Passes over the log beside the loop: for queues that ask for what was published before them, one walk for all of them
together, and for how many messages lie before each stream in log mode.

The walk reads durable rows in a thread, a stretch at a time, and tells the core what each queue takes of it.  New
publishes go on meanwhile: a pass ends where it began to be wanted, and what comes later reaches the queue as ever.
What a pass may still read is held against retention.  Damaged batches are passed over, as by every scan.  It knows the
log and filters; what a queue does with what was found is the core's.

LSNs say how far a stream's reader is behind without reading anything; how many of those are messages of its topic only
reading tells.  So it is counted while somebody asks (`look`: metrics and lists), each piece of the log once, and again
the one in which the reader is.  A stream's filter is not asked: it would cost as much as the reader's own work.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.effects import Came, Found, Pass, Recovered
from penstock.core.state.encoding import load
from penstock.core.state.lsns import lengths, whole
from penstock.errors import PenstockError
from penstock.expr import TopicPattern, compile_filter
from penstock.expr.context import LOOP_BODY
from penstock.history.history import History, Limits, names_wanted
from penstock.records.chunks import LSN_LIMIT
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.records.kinds import NO_ROUTE, Kind
from penstock.server.asking.judging import Ask, breathe, look, spent
from penstock.wire.flight.commands import Replay

if TYPE_CHECKING:
    from penstock.core.state.streams import Asked
    from penstock.expr.scan import Scan as Scanner
    from penstock.log.log import Log
    from penstock.records.queue_settings import QueueSettings
    from penstock.server.base.runtime import Off, Runtime


STEP_US = 100_000
"""A stretch is over when it has taken this long,"""

STEP_FOUND = 8_192
"""or so much was found for one queue."""

SILENT_STEPS = 100
"""So many steps in which nothing was found for a queue may be lost in a crash: no record tells of them."""

Ints = npt.NDArray[np.int64]
Step = tuple[list[Found], int]


@dataclass(frozen=True, slots=True)
class _Silence:
    """Steps in which nothing was found for a queue."""

    since: tuple[int, int]  # where the pass stands for the core, and where it ends
    settings: QueueSettings
    upto: int
    steps: int


@dataclass(frozen=True, slots=True)
class _Around:
    """A log in which damaged batches are passed over."""

    origin: int
    durable: int
    first_lsn: int
    log: Log

    def batches(self, a: int, b: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Durable rows with LSNs in [a, b)."""
        return self.log.batches(a, b, columns, around=True)


def lsn_at(log: Log, time: int) -> int:
    """The first LSN of a log whose record is not older than this time (microseconds).  Any thread."""
    from penstock.history.spans import lsn_at

    return lsn_at(_Around(log.origin, log.durable, log.first_lsn, log), time)


class Recoveries:
    """The walk of an engine.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.off: Off | None = None
        self.ask: Ask | None = None  # the bulk child, if there is one
        self._walking = False
        self._silent = dict[int, _Silence]()  # by queue: beyond what the core knows
        runtime.readers.append(self.floor)

    def floor(self) -> int | None:
        """The lowest LSN that a pass may still ask for."""
        floor = self.runtime.core.passing_floor()
        return None if floor == LSN_LIMIT else floor

    def lsn_at(self, time: int) -> int:
        """The first LSN that was published at this time (microseconds) or later.  Reads the log; any thread."""
        return lsn_at(self.runtime.log, time)

    def start(self) -> None:
        """Some queue asks; the walk begins when all it may read is durable."""
        until = max((one.until for one in self.runtime.core.passes()), default=0)
        self.runtime.when_durable(until - 1, self._walk)

    def _walk(self) -> None:
        if self._walking or self.runtime.broken is not None:
            return
        passes = self.runtime.core.passes()
        if not passes:
            self._silent.clear()
            return
        self._walking = True
        there = [self._further(one) for one in passes]
        work = partial(look_for, self.runtime.log, there, self.runtime.clock.mono, self.ask)
        if self.off is None:
            self._done(passes, there, work())
        else:
            self.off(work, partial(self._done, passes, there))

    def _further(self, one: Pass) -> Pass:
        """The pass from where nothing was found before."""
        silence = self._silent.get(one.queue)
        if silence is None or silence.since != (one.at, one.until) or silence.settings is not one.settings:
            return one
        return replace(one, at=silence.upto)

    def _done(self, passes: Sequence[Pass], there: Sequence[Pass], step: Step) -> None:
        self._walking = False
        found, upto = step
        for one, further, some in zip(passes, there, found, strict=True):
            if upto <= further.at:
                continue
            silence = self._silent.pop(one.queue, None)
            steps = silence.steps + 1 if silence is not None and further is not one else 1
            if len(some.lsns) or upto >= one.until or steps >= SILENT_STEPS:
                self.runtime.answer(Recovered(one, some, upto))
            else:
                self._silent[one.queue] = _Silence((one.at, one.until), one.settings, upto, steps)
        self.runtime.arm()
        if self.runtime.core.passes():
            self.runtime.call_soon(self._walk)


def look_for(log: Log, passes: Sequence[Pass], mono: Callable[[], int], ask: Ask | None = None) -> Step:
    """One stretch, from where the last of the passes stands: what each finds, and below which LSN.  Any thread."""
    end = mono() + STEP_US
    start = min(one.at for one in passes)
    stop = max(one.until for one in passes)
    seekers = [_Seeker(one, log) for one in passes]
    upto = stop
    for batch in log.batches(max(start, 1), stop, around=True):
        for seeker in seekers:
            seeker.look(batch, ask)
        breathe()
        if mono() > end or any(seeker.count > STEP_FOUND for seeker in seekers):
            upto = int(cast("Any", batch.column("lsn")).to_numpy()[-1]) + 1
            break
    return [seeker.found() for seeker in seekers], upto


class _Seeker:
    """What one queue takes of the batches it is shown."""

    def __init__(self, one: Pass, log: Log) -> None:
        settings = one.settings
        self._pass = one
        self._log = log
        self._pattern = TopicPattern(settings.underlying_topic) if settings.underlying_topic else None
        texts = (settings.reading("filter"), settings.reading("barrier_expression"))
        self._filters = [compile_filter(text) for text in texts if text is not None]
        self._filtered = bool(settings.filter)
        self._scanner: Scanner | None = None
        if self._filters:
            from penstock.expr.scan import Scan  # not before there is something to recover

            self._scanner = Scan(self._filters, log.vias.topics, spent, body_most=LOOP_BODY, breathe=breathe)
        self._topics = dict[Topic, bool]()
        self._parts = list[tuple[Ints, ...]]()
        self._barriers = list[int]()
        self._transient = list[int]()
        self._ways = list[Came]()
        self.count = 0

    def look(self, batch: pa.RecordBatch, ask: Ask | None) -> None:
        """Take what is to be taken of one batch."""
        rows = self._on_topic(batch, self._wanted(batch))
        if not len(rows):
            return
        lsns = _numbers(batch, "lsn")
        if self._scanner is not None:
            matching = self._matching(self._scanner, batch, rows, ask)
            if self._filtered:
                rows = rows[np.isin(lsns[rows], np.array(matching.pop(0), dtype=np.int64))]
            if matching:
                self._barriers += matching[0]
        if not len(rows):
            return
        columns = [_numbers(batch, name)[rows] for name in ("lsn", "time", "expires_at", "not_before")]
        self._parts.append((*columns, lengths(whole(batch), "body")[rows]))
        passing = _numbers(batch, "kind")[rows] == int(Kind.PUBLISH_TRANSIENT)
        self._transient += columns[0][passing].tolist()
        self._ways += _ways(batch, columns[0])
        self.count += len(rows)

    def found(self) -> Found:
        if not self._parts:
            nothing = np.zeros(0, dtype=np.int64)
            return Found(nothing, nothing, nothing, nothing, nothing)
        lsns, times, ends, later, sizes = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        return Found(lsns, times, ends, later, sizes, sorted(self._barriers), self._transient, self._ways)

    def _wanted(self, batch: pa.RecordBatch) -> Ints:
        """Places of the messages that were never offered to the queue."""
        one = self._pass
        lsns = _numbers(batch, "lsn")
        kinds = _numbers(batch, "kind")
        mask = (kinds == int(Kind.PUBLISH)) | ((kinds == int(Kind.PUBLISH_TRANSIENT)) & (lsns > one.booted))
        mask &= (lsns >= one.at) & (lsns < one.until)
        if one.time:
            mask &= _numbers(batch, "time") >= one.time
        for low, high in one.skip:
            mask &= (lsns < low) | (lsns >= high)
        if mask.any() and int(lsns[-1]) >= one.offered:
            routes = _numbers(batch, "route", NO_ROUTE)
            others = np.isin(routes, np.array(sorted(one.others), dtype=np.int64))
            mask &= (lsns < one.offered) | others | ((routes == NO_ROUTE) & (lsns > one.beside))
        return np.flatnonzero(mask)

    def _matching(self, scanner: Scanner, batch: pa.RecordBatch, rows: Ints, ask: Ask | None) -> list[list[int]]:
        """By filter the LSNs of the rows that it matches."""
        found, large = scanner.run(batch, rows)
        for lsn in large:
            one = self._log.read([lsn], around=True)
            for some, here in zip(found, look(self._filters, one.messages, ask), strict=True):
                some += [lsn for _ in here]
        return found

    def _on_topic(self, batch: pa.RecordBatch, rows: Ints) -> Ints:
        if not len(rows):
            return rows
        taken: Any = cast("Any", batch).select(["name", "via"]).take(rows)
        names = cast("list[str]", taken.column("name").to_pylist())
        vias = cast("list[int | None]", taken.column("via").to_pylist())
        known = self._topics
        mask = list[bool]()
        for topic in self._log.vias.topics(vias, names):
            shown = known.get(topic)
            if shown is None:
                shown = known[topic] = self._shows(topic)
            mask.append(shown)
        kept: Ints = rows[np.array(mask, dtype=bool)]
        return kept

    def _shows(self, topic: Topic) -> bool:
        one = self._pass
        if topic.vhost != one.vhost or topic.exchange != one.settings.exchange:
            return False
        return topic.name == one.name if self._pattern is None else self._pattern.matches(topic.name)


def _ways(batch: pa.RecordBatch, found: Ints) -> Iterator[Came]:
    """How those of the messages found in a batch came that other sites published: the log says so in their group."""
    for row in np.flatnonzero(_numbers(batch, "kind") == int(Kind.CARRIED)).tolist():
        said = load(cast("bytes", batch.column("properties")[row].as_py()))
        runs = np.frombuffer(cast("bytes", batch.column("body")[row].as_py()), dtype="<i8").reshape(-1, 3)
        lows, highs = (np.searchsorted(found, ends) for ends in (runs[:, 0], runs[:, 0] + runs[:, 2]))
        for here, there, count in runs[highs > lows].tolist():
            yield Came(here, there, count, cast("int", said["peer"]), cast("list[int]", said["path"])[-1])


def _numbers(batch: pa.RecordBatch, name: str, absent: int = 0) -> Ints:
    column: Any = batch.column(name)
    if column.type != pa.int64():
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(absent)
    return cast("Ints", column.to_numpy())


PIECE_ROWS = 100_000
"""About how many records are looked at in one go."""

PIECES_MOST = 200
"""Pieces after one question, of all streams; the next question goes on."""


@dataclass
class Piece:
    """A count of messages in [start, end)."""

    start: int
    end: int
    messages: int


class Count:
    """What is known of one stream: pieces side by side from `at` to `upto`."""

    def __init__(self, asked: Asked, at: int) -> None:
        self.asked = asked
        self.at = self.upto = at
        self.pieces = deque[Piece]()
        self.total = 0

    def move(self, at: int) -> None:
        """The reader has come to this LSN."""
        while self.pieces and self.pieces[0].end <= at:
            self.total -= self.pieces.popleft().messages
        self.at = at
        self.upto = max(self.upto, at)

    @property
    def torn(self) -> Piece | None:
        """The piece that the reader is in the middle of."""
        return self.pieces[0] if self.pieces and self.pieces[0].start < self.at else None

    def found(self, start: int, end: int, messages: int) -> None:
        """Add what was counted: the rest of the torn piece, or what follows the last."""
        torn = self.torn
        if torn is not None and torn.end == end and torn.start < start:
            self.total += messages - torn.messages
            torn.start, torn.messages = start, messages
        elif start == self.upto:
            self.total += messages
            self.upto = end
            if messages:
                self.pieces.append(Piece(start, end, messages))


class Ahead:
    """The counts of one server.  All methods belong to the loop, but `_read`."""

    def __init__(self, runtime: Runtime, walked: Walked) -> None:
        self._runtime = runtime
        self._walked = walked
        self._counts: dict[str, Count] = {}
        self._left = 0  # pieces that may be looked at until somebody asks again
        self._busy = False
        self.off: Off | None = None  # runs work in a thread; None: there are none, and nothing is counted

    def look(self) -> dict[str, int]:
        """Messages before each stream in log mode, where that is known; what is not is counted for the next time."""
        found: dict[str, int] = {}
        if self.off is None:
            return found
        states = self._runtime.core.streams.states
        for name in self._counts.keys() - states.keys():
            del self._counts[name]
        for name, state in states.items():
            if state.mode != "log" or state.position is None or not state.asked:
                continue
            count = self._counts.get(name)
            at = max(self._walked.begin(name, state.position), self._runtime.past.first_lsn)
            if count is None or count.asked != state.asked or at < count.at:
                count = self._counts[name] = Count(state.asked, at)
            count.move(at)
            if count.upto > self._runtime.log.durable:
                found[name] = count.total
            elif count.upto > at and self._runtime.log.durable - count.upto < PIECE_ROWS:
                found[name] = count.total  # what came in the last moment is not in it
        self._left = PIECES_MOST
        self._go_on()
        return found

    def _go_on(self) -> None:
        """Hand the next piece to a thread."""
        if self._busy or self.off is None or not self._left:
            return
        durable = self._runtime.log.durable
        for name, count in self._counts.items():
            torn = count.torn
            if torn is None and count.upto > durable:
                continue
            start, end = (count.at, torn.end) if torn is not None else (count.upto, durable + 1)
            self._left -= 1
            self._busy = True
            work: Callable[[], tuple[int, int] | None] = partial(self._read, count.asked, start, end)
            self.off(work, partial(self._done, name, count, start))
            return

    def _read(self, asked: Asked, start: int, end: int) -> tuple[int, int] | None:
        """In a thread: where the piece ends, and its messages.  None when it cannot be read."""
        fields: dict[str, Any] = {"topic": None, **{key: one for key, one in asked.items() if key != "filter"}}
        command = Replay(**fields)
        history = History(self._runtime.past, lambda: False)
        try:
            rows = 0
            for one in self._runtime.past.spans(start, end, names_wanted(command)):
                rows += one.rows
                if rows >= PIECE_ROWS:
                    end = max(one.end, start + 1)
                    break
            return end, history.measure(command, start, end, Limits()).rows
        except (PenstockError, OSError):
            return None  # retention has passed it, or it is damaged: whoever reads it is told

    def _done(self, name: str, count: Count, start: int, read: tuple[int, int] | None) -> None:
        self._busy = False
        if read is None:
            self._counts.pop(name, None)
            self._left = 0
        elif self._counts.get(name) is count:
            count.found(start, *read)
        self._go_on()


class Walked:
    """How far readers in log mode have looked, when they were level, and how much is before them.

    Of this process alone, and of the loop.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.ahead = Ahead(runtime, self)
        self._upto = dict[str, tuple[int, int]]()  # start of the question, up to where it found nothing
        self._level = dict[
            str, int
        ]()  # microseconds since the epoch: it had everything then, or up to a message of then

    def looked(self, name: str, start: int, upto: int) -> None:
        """Note that nothing for this stream lies in [start, upto)."""
        self._upto[name] = (start, upto)

    def begin(self, name: str, start: int) -> int:
        """From which LSN on to look for what follows `start`."""
        asked, upto = self._upto.get(name, (start, start))
        return upto if asked == start else start

    def level(self, name: str, time: int) -> None:
        """Nothing older than `time` is left for it."""
        self._level[name] = max(time, self._level.get(name, 0))

    def since(self, name: str) -> int | None:
        return self._level.get(name)
