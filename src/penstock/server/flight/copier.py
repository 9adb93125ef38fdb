"""The copier: brings decided batches from their stages into the log while the server works.

One thread, alive while there is something to copy.  It hands chunk after chunk to the loop as any publisher does: each
waits for room in the gathering commit and, on a full disk, for space.  A chunk is handed over when the core has taken
the one before, so they cannot change places, and a few of them may wait for their sync: while one is written, the next
is read.  Ordinary traffic goes on between two chunks.  What fails stays decided: the next commit of that query, or the
next start, goes on where it stopped.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from penstock.core.state.pending import DecidedState, decided_copies
from penstock.core.streams.sinks import Committed
from penstock.errors import DiskFull, Unavailable
from penstock.records.entries import Publishes
from penstock.server.flight.decided import Chunk, GroupLimits, check_parts, chunk_publishes, chunks_of
from penstock.server.flight.handover import Answer, Handover

if TYPE_CHECKING:
    from penstock.ports import Disk
    from penstock.server.flight.sink_stages import Stages

logger = logging.getLogger("penstock.flight")

SPACE_POLL_S = 1.0
"""How often a full disk is looked at again; the log looks no more often."""

UNDER_WAY = 2
"""Chunks that the core has taken and that are not durable yet."""


class Copier:
    """Copies one batch after the other.  `finish` and `stop` belong to any thread."""

    def __init__(self, handover: Handover, stages: Stages, disk: Disk, limits: GroupLimits) -> None:
        self.limits = limits
        self._engine = handover.engine
        self._handover = handover
        self._stages = stages
        self.disk = disk
        self._lock = threading.Lock()
        self._wanted = dict[tuple[str, int], list[Answer[Committed]]]()  # by query and batch, in the order they came
        self._sound = set[tuple[str, int]]()  # of these the stages were looked at before the decision
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def finish(self, query: str, batch: int, *, sound: bool = False) -> Answer[Committed]:
        """See to it that a decided batch is copied to its end; answered when the last row is durable.

        sound: its stages have just been found to be what was written, and held since; else they are looked at first.
        `stored` counts the rows that went by this time.  The answer may be a LogDamaged that names the stage.
        """
        answer: Answer[Committed] = Answer()
        with self._lock:
            if self._stopping.is_set():
                answer.fail(_stopped(query, batch))
                return answer
            self._wanted.setdefault((query, batch), []).append(answer)
            if sound:
                self._sound.add((query, batch))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-copier", daemon=True)
                self._thread.start()
        return answer

    def stop(self, timeout: float = 5.0) -> None:
        """End after the chunk that is under way."""
        self._stopping.set()
        thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._lock:
                wanted = next(iter(self._wanted), None)
                if wanted is None:
                    self._thread = None
                    return
            try:
                with self._stages.intake.holding((UNDER_WAY + 1) * self.limits.alike_bytes):  # and the one being read
                    outcome: Committed | BaseException = self._copy(*wanted)
            except BaseException as error:  # noqa: BLE001 - goes to those who wait
                outcome = error
                if not self._stopping.is_set():  # they may have left
                    logger.warning("query %s: batch %d is decided and not copied to its end: %s", *wanted, error)
            with self._lock:
                waiting = self._wanted.pop(wanted)
                self._sound.discard(wanted)
            for answer in waiting:
                if isinstance(outcome, Committed):
                    answer.give(outcome)
                else:
                    answer.fail(outcome)

    def _copy(self, query: str, batch: int) -> Committed:
        core = self._engine.core
        state = self._handover.call(lambda: decided_copies(core.decided).get(query), durable=False)
        if state is None or state.batch != batch:  # copied to its end since it was asked for
            return self._handover.call(lambda: Committed(False, core.last_lsn))
        copying = _Copying(self._stages, state)
        if (query, batch) not in self._sound:
            check_parts(self.disk, query, state)
        under_way = deque[tuple[int, Answer[Committed]]]()
        for chunk in chunks_of(self.disk, query, state, self.limits, core.sows.by_name):
            if len(under_way) == UNDER_WAY:
                copying.wait(*under_way.popleft())
            under_way.append((chunk.rows, self._taken(query, batch, chunk)))
        for one in under_way:
            copying.wait(*one)
        return Committed(False, copying.lsn, copying.stored)

    def _taken(self, query: str, batch: int, chunk: Chunk) -> Answer[Committed]:
        """Hand a chunk over until the core has taken it, asking again while the disk is full; answered when durable."""
        while not self._stopping.is_set():
            taken: Answer[Answer[Committed]] = self._handover.submit(partial(self._decide, query, chunk, []))
            try:
                return taken.wait()
            except DiskFull:
                self._stopping.wait(SPACE_POLL_S)
        raise _stopped(query, batch)

    def _decide(self, query: str, chunk: Chunk, before: list[Publishes], taken: Answer[Answer[Committed]]) -> None:
        """On the loop: one group, answered when it is taken with what is answered when it is durable.

        before: its rows, if content filters judged them.
        """
        engine = self._engine
        if not self._handover.has_room(partial(self._decide, query, chunk, before), taken):
            return
        why = engine.refusal()
        if why is not None:
            raise why
        publishes = chunk_publishes(engine, query, chunk)
        if len(before) == len(publishes):  # an exchange that came or went meanwhile: judge anew
            for rows, judged in zip(publishes, before, strict=True):
                rows.take_judged(judged)
        again = partial(self._handover.again, partial(self._decide, query, chunk, publishes), taken)
        if not engine.judges.ready(publishes, again):
            return
        done = engine.core.sink_copy(engine.now(), query, chunk.rows, publishes)
        durable: Answer[Committed] = Answer()
        self._handover.when_persisted(done.lsn, durable, done)
        taken.give(durable)


class _Copying:
    """How far a batch has come.  A stage goes as soon as all its rows are durable in the log."""

    def __init__(self, stages: Stages, state: DecidedState) -> None:
        self.stored = self.lsn = 0
        self._stages = stages
        self._rows = state.rows
        names = [part.stage for part in state.parts]
        self._ends = deque(zip(accumulate(part.rows for part in state.parts), names, strict=True))
        stages.hold(names)

    def wait(self, rows: int, chunk: Answer[Committed]) -> None:
        """Wait until the next chunk, of so many rows, is durable."""
        done = chunk.wait()
        self.stored, self.lsn = self.stored + done.stored, done.lsn
        self._rows += rows
        while self._ends and self._ends[0][0] <= self._rows:
            gone = [self._ends.popleft()[1]]
            self._stages.release(gone)
            self._stages.drop(gone)


def _stopped(query: str, batch: int) -> Unavailable:
    return Unavailable(f"the server stops; batch {batch} of query '{query}' is decided and complete at its next start")
