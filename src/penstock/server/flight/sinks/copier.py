"""The copier: brings decided batches from their stages into the log while the server works.

One thread, alive while there is something to copy.  It reads the next chunk while the one before is being synced, and
hands it to the loop as any publisher does: it waits for room in the gathering commit and, on a full disk, for space.
So ordinary traffic goes on between two chunks.  What fails stays decided: the next commit of that query, or the next
start, goes on where it stopped.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.state.decided import copies
from penstock.core.streams.sinks import Committed
from penstock.errors import DiskFull, Unavailable
from penstock.records.entries import Publishes
from penstock.server.flight.handover import Answer
from penstock.server.flight.publish import refusal
from penstock.server.flight.sinks.decided import Chunk, GroupLimits, check_parts, chunk_publishes, chunks_of

if TYPE_CHECKING:
    from penstock.ports import Disk
    from penstock.server.flight.handover import Handover
    from penstock.server.flight.sinks.stages import Stages

logger = logging.getLogger("penstock.flight")

SPACE_POLL_S = 1.0
"""How often a full disk is looked at again; the log looks no more often."""


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
                with self._stages.intake.holding(2 * self.limits.alike_bytes):  # a chunk that waits, and the next
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
        state = self._handover.call(lambda: copies(core.decided).get(query), durable=False)
        stored, lsn = 0, 0
        if state is None or state.batch != batch:  # copied to its end since it was asked for
            return self._handover.call(lambda: Committed(False, core.last_lsn))
        names = [part.stage for part in state.parts]
        self._stages.hold(names)
        if (query, batch) not in self._sound:
            check_parts(self.disk, query, state)
        running: tuple[Chunk, Answer[Committed]] | None = None
        for chunk in chunks_of(self.disk, query, state, self.limits, core.sows.by_name):
            if running is not None:
                stored, lsn = self._done(query, batch, stored, *running)
            if self._stopping.is_set():
                raise _stopped(query, batch)
            running = chunk, self._handover.submit(partial(self._decide, query, chunk, []))
        if running is not None:
            stored, lsn = self._done(query, batch, stored, *running)
        self._stages.release(names)
        self._stages.drop(names)
        return Committed(False, lsn, stored)

    def _done(self, query: str, batch: int, stored: int, chunk: Chunk, answer: Answer[Committed]) -> tuple[int, int]:
        """Wait until a chunk is durable, asking again while the disk is full; rows stored so far, and its LSN."""
        while True:
            try:
                done = answer.wait()
            except DiskFull:
                if self._stopping.wait(SPACE_POLL_S):
                    raise _stopped(query, batch) from None
                answer = self._handover.submit(partial(self._decide, query, chunk, []))
            else:
                return stored + done.stored, done.lsn

    def _decide(self, query: str, chunk: Chunk, before: list[Publishes], answer: Answer[Committed]) -> None:
        """On the loop: one group, answered when it is durable.  `before`: its rows, if content filters judged them."""
        engine = self._engine
        if not engine.has_room():
            engine.on_room.append(partial(self._handover.again, partial(self._decide, query, chunk, before), answer))
            return
        why = refusal(engine)
        if why is not None:
            raise why
        publishes = chunk_publishes(engine, chunk)
        if len(before) == len(publishes):  # an exchange that came or went meanwhile: judge anew
            for rows, judged in zip(publishes, before, strict=True):
                rows.judged, rows.ahead, rows.bodies = judged.judged, judged.ahead, judged.bodies
        again = partial(self._handover.again, partial(self._decide, query, chunk, publishes), answer)
        if not engine.judges.ready(publishes, again):
            return
        done = engine.core.sink_copy(engine.now(), query, chunk.rows, publishes)
        self._handover.when_durable(done.lsn, answer, done)


def _stopped(query: str, batch: int) -> Unavailable:
    return Unavailable(f"the server stops; batch {batch} of query '{query}' is decided and complete at its next start")
