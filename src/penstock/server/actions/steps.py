"""The steps of an action, one after another: publish, look, count, tell, run a program.

A step that has to wait (for rows of the log, for a filter that is evaluated off the loop, for a program) keeps its
action where it is; the next action begins when this one has ended.  Programs run without a shell and without input, a
minute at most, one after the other.  What actions did is counted by name; of many failures one a second is logged.

Steps that look: `query_sow` takes the first message that matches, `delete_sow` removes the records that do. Both walk
through messages a few at a time, about so many bytes whatever their size, with everybody else's turns in between. What
is walked through is as it was when the walk began; nothing is leased or moved.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from penstock.core.acted import HOPS_MOST, too_many
from penstock.core.action_rules import Happening, Prepared
from penstock.core.effects import Question
from penstock.core.publishing.evaluating import answers_of
from penstock.core.queue.places import AVAILABLE
from penstock.errors import DiskFull, NotFound, PenstockError, Refused, printable
from penstock.expr import Filter
from penstock.expr.bodies import heavy
from penstock.expr.context import LOOP_BODY
from penstock.records import properties as header_codec
from penstock.records.chunks import Chunk, as_chunk, ascend
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Rows
from penstock.records.event_actions import (
    SAID,
    DeleteStep,
    DowngradeStep,
    EchoStep,
    ExecuteStep,
    ExtractStep,
    IncrementStep,
    ProxyStep,
    PublishStep,
    QueryStep,
    UpgradeStep,
)
from penstock.records.schema import GROUP_BYTES_MAX
from penstock.server.actions.triggers import EMPTY, Ledger, Run

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue
    from penstock.core.sow.holding import Sow
    from penstock.ports import Clock
    from penstock.server.asking.judging import Judges
    from penstock.server.base.runtime import Runtime


LOOKED = 256
"""Messages of a chunk."""

Found = Callable[[Rows, list[bool]], bool]
"""Rows, and which of them match; whether the walk is over."""


@dataclass(eq=False)
class Walk:
    """One walk.  `found` is told of each portion, `done` of the end."""

    _runtime: Runtime
    _judges: Judges
    _chunks: Iterator[Chunk]
    _filter: Filter | None
    _found: Found
    _done: Callable[[], None]
    _portion: Portion = field(default_factory=lambda: Portion(), init=False)
    _left: Chunk = field(default=range(0), init=False)

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
        if chosen is not None and heavy(chosen.message_type, list(map(len, bodies))):
            batch = Publishes(rows.topics, rows.properties, bodies)
            then = partial(self._judged, rows, batch)
            self._judges.evaluate(batch, [Question(chosen, list(range(len(rows))))], then)
        elif chosen is not None:
            self._tell(rows, chosen.matches(*rows.messages))
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
    if ascend(chunks):
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


def query(
    runtime: Runtime, judges: Judges, one: Prepared, step: QueryStep, happening: Happening, then: Callable[[], None]
) -> None:
    """Put the first message into the variable, then call `then`.  Raises NotFound for a name that is neither.

    The records of a SOW topic are meant before a queue of the same name; the oldest comes first.
    """
    vhost, name = step.vhost, one.name("topic", happening)
    sow = runtime.core.sows.by_name.get((vhost, "", name))
    if sow is not None:
        chunks, _ = record_chunks(sow)
    elif (queue := runtime.core.find_queue(vhost, name)) is not None:
        chunks = available_chunks(queue)
    else:
        raise NotFound(f"no queue and no SOW topic '{name}' in vhost '{vhost}'")
    happening.added[step.capture] = one.texts["default"].render(happening)

    def found(rows: Rows, hits: list[bool]) -> bool:
        for body, hit in zip(rows.bodies, hits, strict=True):
            if hit:
                happening.added[step.capture] = body
                return True
        return False

    Walk(runtime, judges, at_most(chunks, LOOKED_MOST), one.filter, found, then).start()


def delete(
    runtime: Runtime, judges: Judges, one: Prepared, step: DeleteStep, happening: Happening, then: Callable[[], None]
) -> None:
    """Remove the records that match, then call `then`.  One that has changed meanwhile stays.  Raises NotFound."""
    sow: Sow = runtime.core.sow(step.vhost, "", one.name("topic", happening))
    chunks, keys = record_chunks(sow)

    def found(rows: Rows, hits: list[bool]) -> bool:
        lsns = [lsn for lsn, hit in zip(rows.lsns, hits, strict=True) if hit]
        if lsns:
            runtime.core.sow_delete(runtime.now(), sow, [keys[lsn] for lsn in lsns], lsns=lsns, by="action")
            runtime.arm()
        return False

    Walk(runtime, judges, chunks, one.filter, found, then).start()


LONGEST_S = 60.0

SHOWN = 300
"""Characters of what a program said, in a message about its failure."""


class Programs:
    """Runs them, in whatever thread calls; `stop` ends the one that runs."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None
        self.stopped = False  # the server stops: what ends now is not to be told as its end
        self._lock = threading.Lock()

    def run(self, words: Sequence[bytes]) -> str:
        """Run one to its end; empty, or why it failed."""
        name = os.fsdecode(words[0])
        if any(b"\0" in word for word in words):
            return f"executing: an argument of {name!r} holds a zero byte"
        try:
            with self._lock:
                if self.stopped:
                    return f"executing: {name!r} is not run any more"
                program = self._running = subprocess.Popen(
                    list(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
        except OSError as error:
            return f"executing: {name!r}: {error.strerror or error}"
        with program:
            try:
                _, complaint = program.communicate(timeout=LONGEST_S)
            except subprocess.TimeoutExpired:
                program.kill()
                return f"executing: {name!r} was ended after {LONGEST_S:.0f} s"
            finally:
                with self._lock:
                    self._running = None
        if program.returncode:
            said = complaint.decode(errors="replace").strip()[:SHOWN]
            return f"executing: {name!r} ended with {program.returncode}{f': {said}' if said else ''}"
        return ""

    def stop(self) -> None:
        """End the one that runs, and run none any more."""
        with self._lock:
            self.stopped = True
            if self._running is not None:
                self._running.kill()


logger = logging.getLogger("penstock.actions")

QUIET_US = 1_000_000
"""Between two lines about failures of one action."""


@dataclass(slots=True)
class Tally:
    """What one action did since the start."""

    runs: int = 0
    failures: int = 0
    reasons: dict[str, int] = field(default_factory=dict[str, int])  # the same by reason
    told: int = 0  # failures that a line was written about, or that the next one will tell of
    told_at: int | None = None  # monotonic


class Counts:
    """All actions, and the counters that they keep."""

    def __init__(self, clock: Clock) -> None:
        self.by_name: dict[str, Tally] = {}
        self.counters: dict[str, int] = {}
        self._clock = clock

    def of(self, name: str) -> Tally:
        return self.by_name.setdefault(name, Tally())

    def failed(self, name: str, why: str, count: int = 1, reason: str = "publish") -> None:
        """An action did not come to its end.  reason: one of the few words that metrics know."""
        tally, now = self.of(name), self._clock.mono()
        tally.failures += count
        tally.reasons[reason] = tally.reasons.get(reason, 0) + count
        if tally.told_at is not None and now - tally.told_at < QUIET_US:
            return
        more = tally.failures - tally.told - count
        since = f" ({more} more since the last line)" if more else ""
        tally.told, tally.told_at = tally.failures, now
        logger.error("action %r failed: %s%s", name, why, since)


logger = logging.getLogger("penstock.actions")

HEADER = header_codec.encode(header_codec.Properties(delivery_mode=header_codec.PERSISTENT))

Off: TypeAlias = "Callable[[Callable[[], str], Callable[[str], None]], None]"

ECHO_MOST = 4096
"""Characters of one line that an action writes to the server's log."""


TOGETHER_MOST = GROUP_BYTES_MAX // 2
"""Bytes of messages that lie in one group with the record that an action is done; more come again after a crash."""


class Steps:
    """Does them.  `off`, `acting`: run work off the loop; without them it runs in place."""

    def __init__(self, runtime: Runtime, judges: Judges, counts: Counts, ledger: Ledger) -> None:
        self._runtime, self._judges, self._counts, self._ledger = runtime, judges, counts, ledger
        self.allow_execute = False
        self.say: Callable[[str], object] = logger.info
        self.off: Off | None = None
        self.acting: Off | None = None  # of programs, which may take a minute
        self.programs = Programs()

    def run(self, run: Run, done: Callable[[Run], None]) -> None:
        """From its step to its end; `done` is told, perhaps before this returns."""
        run.inline = True
        self._go(run, done)
        run.inline = False

    def _go(self, run: Run, done: Callable[[Run], None]) -> None:
        steps = run.rule.steps
        while run.step < len(steps):
            then = partial(self._answered, run, done)
            try:
                waits = self._do(run, then) if run.happening is not EMPTY else self._store(run, run.together(), then)
            except PenstockError as error:
                run.failed = f"{SAID[type(steps[run.step].step)].doing}: {error}"
                break
            if waits:
                return
            run.step += 1
        done(run)

    def _answered(self, run: Run, done: Callable[[Run], None], failed: str = "", again: bool = False) -> None:
        """A step that waited has its answer.  `again`: it is tried once more."""
        if failed:
            run.failed = failed
            done(run)
            return
        if not again:
            run.step += 1
        self._go(run, done)
        self._runtime.arm()

    def _do(self, run: Run, then: Callable[..., None]) -> bool:
        """One step; whether it waits for an answer, which `then` is told."""
        one, happening = run.rule.steps[run.step], run.happening
        if run.step < run.begins and not isinstance(one.step, ExtractStep):
            return False
        match one.step:
            case PublishStep() as step:
                return self._publish(run, one, step, then)
            case ExtractStep():
                return self._extract(one, happening, then)
            case QueryStep() as step:
                query(self._runtime, self._judges, one, step, happening, then)
                return True
            case DeleteStep() as step:
                delete(self._runtime, self._judges, one, step, happening, then)
                return True
            case IncrementStep() as step:
                name = one.name("counter", happening)
                counters = self._counts.counters
                counters[name] = counters.get(name, 0) + 1
                happening.added[step.capture] = b"%d" % counters[name]
            case EchoStep():
                self.say(f"{run.rule.name}: {_line(one.texts['message'].render(happening))}")
            case ExecuteStep():
                return self._execute(one, happening, then)
            case ProxyStep() as step:
                self._proxy(run.rule.name, step, one.name("queue", happening))
            case DowngradeStep() | UpgradeStep() as step:
                if self._runtime.pace is not None:
                    self._runtime.pace(step)
        return False

    def _extract(self, one: Prepared, happening: Happening, then: Callable[..., None]) -> bool:
        if self.off is None or len(happening.data) <= LOOP_BODY:
            one.extract(happening)
            return False
        self.off(partial(_extract, one, happening), lambda failed: then(failed=failed))
        return True

    def _proxy(self, by: str, step: ProxyStep, name: str) -> None:
        runtime = self._runtime
        queue = runtime.core.find_queue(step.vhost, name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{step.vhost}'")
        runtime.core.proxy(runtime.now(), queue, step.on, by=f"action {by}")
        runtime.arm()

    def _publish(self, run: Run, one: Prepared, step: PublishStep, then: Callable[..., None]) -> bool:
        runtime, happening = self._runtime, run.happening
        if run.batch is None:
            topic = runtime.core.topic(step.vhost, step.exchange, one.name("topic", happening))
            data = one.texts["data"].render(happening)
            run.batch = Publishes(topic, HEADER, [data], size=len(HEADER) + len(data))
            if step.delta:
                runtime.core.sow(topic.vhost, topic.exchange, topic.name)  # or it is refused
                run.batch.delta = True
        return self._store(run, run.batch, then)

    def _store(self, run: Run, batch: Publishes, then: Callable[..., None]) -> bool:
        """Publish what is made; whether that waits.  The batch stays with the run, for what was judged is on it."""
        runtime = self._runtime
        if run.hops >= HOPS_MOST:
            raise Refused(too_many(run.hops))
        if runtime.log.room.full:
            raise DiskFull(runtime.log.room.why_full())
        again = partial(then, again=True)
        if not self._judges.ready([batch], again):
            return True
        run.batch = None
        if run.step == len(run.rule.steps) - 1 and batch.size <= TOGETHER_MOST:
            with runtime.core.group():
                published = runtime.core.publish(runtime.now(), batch)
                self._ledger.write(run)
        else:
            published = runtime.core.publish(runtime.now(), batch)
        for lsn in published.positions:
            runtime.core.hops.add(lsn, lsn + 1, run.hops + 1)
        if len(published.refused) == 1 == len(batch):
            raise published.refused[0][1]
        if published.refused:
            run.lost = len(published.refused)
            run.failed = f"publishing: {published.refused[0][1]}"
        return False

    def _execute(self, step: Prepared, happening: Happening, then: Callable[..., None]) -> bool:
        if not self.allow_execute:
            raise Refused("programs are run only with server.allow_execute = true")
        work = partial(self.programs.run, [word.render(happening) for word in step.words])
        if self.acting is None:
            if failed := work():
                raise Refused(failed)
            return False
        self.acting(work, lambda failed: then(failed=failed))
        return True


def _extract(step: Prepared, happening: Happening) -> str:
    step.extract(happening)
    return ""


def _line(text: bytes) -> str:
    """One line for a log: control characters shown, the rest cut."""
    return printable(text.decode(errors="replace")[:ECHO_MOST])
