"""Messages on their way into a queue, or back into it, and the stages that they pass.

A stage lets messages through, keeps some of them, or has them decided in parts.  It knows its own part of the queue,
and no other stage; in which order stages stand, and why, is told in `core.queue.flow`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.order.runs import Run, sorted_chunk, view, without
from penstock.core.queue.whole import ATTENDANCE, DISPATCH
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.order.main_order import Main
    from penstock.core.queue.staging import Told

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Newcomers:
    """A chunk of messages, newer than all before, with a value for each in every column that there is.

    batch, rows    their bodies, for filters: rows of the batch in the order of the chunk; None: all of it
    expires_at, not_before    microseconds since the epoch; 0: never, at once
    ranks          what the queue's priority expression gave
    keys           what its expressions of groups and tenants gave; None: they are worked out later
    last_keys      what its last-value key gave
    barriers       those of the chunk that are barriers, ascending; their BARRIER record is written
    """

    chunk: Chunk
    batch: Publishes | None = None
    rows: Sequence[int] | None = None
    expires_at: Sequence[int] | None = None
    not_before: Sequence[int] | None = None
    ranks: Sequence[int] | None = None
    keys: Sequence[Told] | None = None
    last_keys: Sequence[int] | None = None
    barriers: Sequence[int] | None = None
    delayed: Chunk | None = None  # those that are not due yet
    dead: Chunk | None = None  # those that have expired already
    elsewhere: Chunk | None = None  # those that another site owns
    taken: Chunk | None = None  # those that stand in line
    placed: bool = False  # the others stand in an order of their own
    ready_before: int = 0  # messages that were ready as they came

    def __len__(self) -> int:
        return len(self.chunk)

    @property
    def gone(self) -> list[Chunk]:
        """Those that a stage kept: an array that spans them is not solid."""
        return [part for part in (self.delayed, self.dead, self.elsewhere, self.taken) if part]

    def part(self, start: int, stop: int) -> Newcomers:
        """Some of them, before any stage has seen them."""
        rows = self.rows
        if rows is None and self.batch is not None:
            rows = range(len(self.batch))
        chunk = self.chunk[start:stop]
        barriers = self.barriers
        return Newcomers(
            chunk, self.batch, _some(rows, start, stop), _some(self.expires_at, start, stop),
            _some(self.not_before, start, stop), _some(self.ranks, start, stop), _some(self.keys, start, stop),
            _some(self.last_keys, start, stop),
            None if barriers is None else [lsn for lsn in barriers if chunk[0] <= lsn <= chunk[-1]],
        )  # fmt: skip

    def left(self) -> tuple[Chunk, Sequence[int] | None]:
        """Those that no stage kept, and the rows of their bodies."""
        gone = self.gone
        if not gone:
            return self.chunk, self.rows
        out = sorted_chunk(gone)
        if len(out) == len(self.chunk):
            return range(0), None if self.batch is None else ()
        chunk = without(self.chunk, out)
        if self.batch is None:
            return chunk, None
        rows = self.rows if self.rows is not None else range(len(self.batch))
        return chunk, list(compress(rows, ~np.isin(view(self.chunk), view(out), assume_unique=True)))

    def rows_of(self, rows: Sequence[int] | None, start: int, stop: int) -> Sequence[int] | None:
        """Some of the rows that `left` told."""
        if self.batch is None:
            return None
        return (rows if rows is not None else range(len(self.batch)))[start:stop]


def _some(column: Sequence[T] | None, start: int, stop: int) -> Sequence[T] | None:
    return None if column is None else column[start:stop]


def append_rest(queue: Contents, new: Newcomers) -> None:
    """Append those that no stage kept to the main order."""
    if new.placed:
        return
    chunk, rows = new.left()
    if len(chunk):
        if queue.targets.lists:
            queue.targets.arrive(chunk, new.batch, rows, queue.main)
        if queue.weight >= 0:
            queue.weight += queue.sizes.total(chunk)
    if gone := new.gone:
        append_around(queue.ensure_main(), chunk, sorted_chunk(gone))
    else:
        queue.ensure_main().append(chunk)


def append_around(main: Main, left: Chunk, gone: Chunk) -> None:
    """Append what is left of a chunk without those that are gone, ascending and at least one."""
    if len(left):
        before = bisect_left(gone, left[0])
        if before:
            main.seal(gone[before - 1])
        main.append(left, solid=isinstance(left, range) or gone[-1] < left[0] or gone[0] > left[-1])
    main.seal(gone[-1])


def marked(queue: Contents) -> Chunk:
    """All its barriers: those that wait, that sleep, and that were found and wait for the end of a pass."""
    found = () if queue.older is None else queue.older.barriers
    return sorted_chunk([queue.barriers.marked(), as_chunk(sorted(found))])


class Stage:
    """A step that messages pass on their way into a queue, and again when they come back.

    A stage overrides the methods that it needs; the others are never called (`Plan`).
    """

    def present(self, queue: Contents) -> bool:
        """Whether the queue needs this stage, by its settings or for messages that stand in it.  It may let all pass.

        A stage that belongs to no setting is added by the first message that needs it (`wanted`).
        """
        return False

    # -- newcomers

    def wanted(self, new: Newcomers) -> bool:
        """Whether these newcomers need it, although the queue did not."""
        return False

    def cut(self, queue: Contents, now: Now, new: Newcomers) -> int:
        """How many newcomers, from the first on, can be decided together; at least one."""
        return len(new)

    def begin(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        """Called before they are admitted."""

    def admit(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        """Keep the messages that must wait here, and note that in `new`; the others pass."""

    def entered(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        """Called when all are in their places, before any is dispatched (unless an order had to do so at once)."""

    def offered(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        """Called after the newcomers were dispatched to consumers with room."""

    def ended(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        """Called at the end, after filters have looked; for the last stage first."""

    # -- what was in the queue before

    def returned(self, queue: Contents, runs: list[Run], sink: Sink) -> list[Run]:
        """Which of these returned runs may stay in the queue; the others have left it."""
        return runs

    def readmit(self, queue: Contents, run: Run) -> list[Run]:
        """The parts of a returned or due run that pass; the rest waits here."""
        return [run]

    def delayed(self, queue: Contents, run: Run) -> None:
        """A failed run was delayed."""

    def left(self, queue: Contents, runs: Sequence[Run]) -> bool:
        """These have left the queue for good, from whatever place; returns whether others became ready instead."""
        return False

    # -- every command

    def trim(self, queue: Contents, sink: Sink) -> None:
        """Drop what exceeds a limit, before anything is dispatched."""

    def prepare(self, queue: Contents, sink: Sink) -> None:
        """Called before messages are dispatched."""

    def release(self, queue: Contents, now: Now, sink: Sink) -> None:
        """After dispatching: pass on what came free by it.  Called for the last stage first."""


_VERBS = ("returned", "readmit", "delayed", "left", "trim", "prepare", "release")


class Plan:
    """The stages of a queue in order, and for each method the stages that override it."""

    __slots__ = (
        "delaying", "keeps", "leaving", "preparing", "readmitting", "releasing", "returning", "stages", "trimming",
    )  # fmt: skip

    def __init__(self, stages: tuple[Stage, ...]) -> None:
        self.stages = stages
        at: dict[str, list[Stage]] = {verb: [] for verb in _VERBS}
        for stage in stages:
            for verb in _VERBS:
                if getattr(type(stage), verb) is not getattr(Stage, verb):
                    at[verb].append(stage)
        self.returning, self.readmitting, self.delaying, self.leaving, self.trimming, self.preparing, last = at.values()
        self.releasing = last[::-1]
        self.keeps = bool(self.preparing or self.releasing)  # something may go on although nothing is offered


@lru_cache
def plan_of(stages: tuple[Stage, ...]) -> Plan:
    """The plan of these stages; queues with equal stages share it."""
    return Plan(stages)


PLAIN = plan_of(())
"""Of a queue without any: nobody asks further."""


def stages_of(queue: Contents) -> Plan:
    """The stages of a queue, worked out if they are not known."""
    plan = queue.plan or queue.planned()
    assert isinstance(plan, Plan)
    return plan


def is_quiet(queue: Contents, now: Now) -> bool:
    """Whether a plain queue without filters has nothing due now."""
    agenda = queue.agenda
    if agenda:
        here, mono = queue.attendance, now.mono
        if agenda != ATTENDANCE or here.opens <= mono or here.overdue <= mono or here.looking:
            return False
    return queue.plan is PLAIN and not queue.targets.lists


def put_back(queue: Contents, run: Run) -> None:
    """Make a run ready again at its place, unless a stage has it wait."""
    runs = [run]
    if queue.plan is not PLAIN:
        for stage in stages_of(queue).readmitting:
            runs = [part for one in runs for part in stage.readmit(queue, one)]
    for part in runs:
        if queue.weight >= 0:
            queue.weight += queue.sizes.total(part.chunk)
        queue.offer(part)


def come_back(queue: Contents, runs: list[Run], sink: Sink) -> None:
    """Return runs that were taken out of their place; some may find no room, and leave."""
    for stage in stages_of(queue).returning:
        runs = stage.returned(queue, runs, sink)
    for run in runs:
        run.deadline = 0
        put_back(queue, run)


def keep_away(queue: Contents, run: Run, due: int) -> None:
    """Delay a failed run until `due` (wall)."""
    run.deadline, run.by = due, None
    queue.ensure_delays().retry(run)
    for stage in stages_of(queue).delaying:
        stage.delayed(queue, run)


def left(queue: Contents, runs: Sequence[Run]) -> None:
    """These are out of the queue for good, wherever they stood."""
    if queue.plan is not PLAIN:
        for stage in stages_of(queue).leaving:
            if stage.left(queue, runs):
                queue.agenda |= DISPATCH
