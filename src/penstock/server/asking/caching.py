"""Bodies that are brought for the core: dead letters, what deltas change, heads of queues after a start.

Bodies for the core, dead letters first of all, are brought in portions, one read after the other.  A thousand letters
may have any size, so an answer ends when it has about as many bytes as a portion; the core asks for the rest again.
Very many queues may have some at once: answers go by turns.
The room of a portion is reserved before it is read, and queues wait for each other: however many die at once, no more
than one portion is in memory that no queue has.

For deltas `Present` has the present bodies of records, from memory, else read off the loop before the delta is
published. `Judges` asks `ready` before anything is published. What was read stays for a moment, and so does what was
merged, since a key that changes once will change again.

Answers that promise what was settled wait for its dead letters, whose bodies may have to be read first.  What dies is
in no record before its letters are written: removal and letter are one group.  Whoever is told that a message was
rejected finds its letter, also after a crash.  A letter that a full queue refuses is waited for no longer: it may take
hours.  Of a broken log there is none, and who waits is told by what he does then.  Nor is there one of a queue that a
fault has stopped: who waits is refused, and the message is there again after a start.

    settle -> `note` ............ -> a turn that has the letters -> `then`, which waits for the disk
                                     a queue that was stopped ----> `refuse`
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING

from penstock.core.effects import Dying, Effect, Fetch, Fetched
from penstock.core.queue.stopped import why_stopped
from penstock.core.queue.upcoming import Upcoming
from penstock.core.sow.rows import Answer, Job
from penstock.memory import READ_BYTES, first_of, merged
from penstock.records.chunks import as_chunk
from penstock.records.entries import Publishes, Rows

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue
    from penstock.errors import PenstockError
    from penstock.server.base.faults import Asker
    from penstock.server.base.runtime import Off, Runtime

    Refuse = Callable[[PenstockError], None]
    """Tells who waits why he does so in vain."""


class Fetches:
    """The fetches of an engine.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting = deque[Fetch]()
        self._held = False  # somebody is read for, or it is the turn of others: `_go_on` is called then

    @property
    def portion(self) -> int:
        """Bytes of one answer, about."""
        return max(1, min(READ_BYTES, self._runtime.bodies.budget.limit // 8))

    def start(self, effect: Fetch) -> None:
        """Answer the core, at once where memory has everything and time lasts, else in its turn."""
        self._waiting.append(effect)
        if not self._held:
            self._go_on()

    def _go_on(self) -> None:
        self._held = False
        turns = self._runtime.turns
        while self._waiting and not self._held:
            if turns.late(self._go_on):
                self._held = True
            else:
                self._fetch(self._waiting.popleft())

    def _fetch(self, effect: Fetch) -> None:
        bodies = self._runtime.bodies
        present, absent = bodies.rows(effect.chunk, effect.token.queue)
        if not absent:
            self._answer(effect, present, effect.chunk[-1])
            return
        most = self.portion
        bodies.shrink(most - bodies.budget.kept_back)
        bodies.loading.add(most)
        self._held = True

        def done(rows: Rows) -> None:
            bodies.loading.add(-most)
            self._held = False
            n = len(rows)
            upto = rows.lsns[-1] if n and rows.lsns[-1] < absent[-1] else effect.chunk[-1]
            both = merged(present, rows) if len(present) else rows
            self._answer(effect, both, upto)
            if self._waiting and not self._held:
                self._held = True
                self._runtime.turns.wait(self._go_on)

        self._runtime.read_cold(as_chunk(absent), done, most)

    def _answer(self, effect: Fetch, rows: Rows, upto: int) -> None:
        rows = first_of(rows, bisect_right(rows.lsns, upto))
        self._runtime.answer(Fetched(effect.token, rows, upto))


FILLED_MOST = 256
"""Queues whose heads are read after a start, the deepest."""

REMEMBER = 1000
"""Queues, gone ones among them, of which memory remembers something without being asked to forget."""


class Tending:
    """Regular upkeep of an engine's caches."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._remember_most = REMEMBER

    def takers(self, route: int) -> list[tuple[Queue, Upcoming]]:
        """The queues that a row's route names, each with what comes next in it."""
        return [(queue, Upcoming(queue, None)) for queue in self._runtime.core.takers(route)]

    def fill_heads(self) -> None:
        """After a start nobody consumes yet: have the heads of the deepest queues in memory when somebody comes."""
        runtime = self._runtime
        deepest = nlargest(FILLED_MOST, (queue for queue in runtime.core.queues() if queue.ready), key=_ready_of)
        runtime.loader.heads.fill(Upcoming(queue, None) for queue in deepest)
        runtime.arm()

    def beat(self) -> None:
        """Once a second: drop bodies that nobody wants and keep to the budget; where memory is short, cut off who
        stands still; then wake whoever waits for room.
        """
        runtime = self._runtime
        bodies = runtime.bodies
        bodies.sweep()
        bodies.keep_to_budget()
        runtime.relief.beat()
        if bodies.heads.remembered > self._remember_most:
            there = {queue.id for queue in runtime.core.queues()}
            bodies.heads.forget_all_but(there)
            self._remember_most = 2 * len(there) + REMEMBER
        if bodies.trimmed and runtime.loader.idle and -bodies.budget.over > bodies.budget.limit // 2:
            lines, bodies.trimmed = bodies.trimmed, {}
            runtime.loader.heads.fill(lines.values())
        runtime.look_for_room()
        runtime.arm()


def _ready_of(queue: Queue) -> int:
    return queue.ready


SHARE = 32
"""The part of the memory budget that bodies kept for later deltas may have."""

STAYS_US = 2_000_000
"""What was read for a batch is not given up for others so soon: the batch is about to be published."""

ROW_COST = 150


class Present:
    """The bodies of one engine.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._kept = OrderedDict[int, tuple[int, bytes | None]]()  # by LSN: when it came, and it; None: unreadable
        self._account = runtime.bodies.budget.account("records")
        runtime.core.bodies_from(self)
        runtime.bodies.spare.append(self.give)

    # -- for the core

    def has(self, lsn: int) -> bool:
        """Whether `get` has an answer for the message, if only that it cannot be read."""
        return lsn in self._kept or self._runtime.bodies.peek(lsn) is not None

    def get(self, lsn: int) -> bytes | None:
        """The body of a message; None when it is not at hand."""
        batch = self._runtime.bodies.peek(lsn)
        if batch is not None:
            return batch.bodies[lsn - batch.first]
        found = self._kept.get(lsn)
        return None if found is None else found[1]

    def keep(self, lsn: int, body: bytes | None) -> None:
        """A body that may be asked for again."""
        now = self._runtime.clock.mono()
        if lsn in self._kept:
            self._forget(lsn)
        self._kept[lsn] = now, body
        self._account.bytes += ROW_COST + len(body or b"")
        self.give(self._account.bytes - self._runtime.bodies.budget.limit // SHARE)

    def give(self, need: int) -> int:
        """Forget about so many bytes, the oldest first, but nothing that has just been read; how many."""
        before, stays = self._account.bytes, self._runtime.clock.mono() - STAYS_US
        while self._kept and before - self._account.bytes < need:
            oldest, (came, _) = next(iter(self._kept.items()))
            if came > stays:
                break
            self._forget(oldest)
        return before - self._account.bytes

    # -- for doors

    def ready(self, batches: Sequence[Publishes], then: Callable[[], None], off: Off | None) -> bool:
        """Whether these may be published now.  If not, `then` is called later, and asks again.  off: for heavy work."""
        core = self._runtime.core
        if not core.sows:
            return True
        if self._work([job for batch in batches for job in core.heavy(batch, merging=False)], then, off):
            return False
        lsns = sorted({lsn for batch in batches for lsn in core.lacking(batch)})
        if not lsns:
            return not self._work([job for batch in batches for job in core.heavy(batch, merging=True)], then, off)
        chunk = as_chunk(lsns)

        def answer(rows: Rows) -> None:
            for lsn, body in zip(rows.lsns, rows.bodies, strict=True):
                self.keep(lsn, body)
            for lsn in set(chunk).difference(rows.lsns):
                self.keep(lsn, None)
            then()

        self._runtime.read_cold(chunk, answer)
        return False

    def _work(self, jobs: list[Job], then: Callable[[], None], off: Off | None) -> bool:
        """Have jobs done off the loop, and `then` called; False when there are none, or nothing runs off the loop."""
        if not jobs or off is None:
            return False

        def done(answers: list[Answer]) -> None:
            for job, answer in zip(jobs, answers, strict=True):
                self._runtime.core.worked_out(job, answer)
            then()

        off(lambda: [job.work() for job in jobs], done)
        return True

    def _forget(self, lsn: int) -> None:
        _, body = self._kept.pop(lsn)
        self._account.bytes -= ROW_COST + len(body or b"")


class Burying:
    """The answers of one who settles, in their order.  All methods belong to the loop."""

    __slots__ = ("_dying", "_runtime", "_waiting", "asker")

    def __init__(self, runtime: Runtime, asker: Asker | None = None) -> None:
        """asker: who is told if this fails."""
        self._runtime = runtime
        self.asker = asker
        self._dying: dict[Queue, int] = {}  # where something has to have its letters, with the mark there
        self._waiting: deque[tuple[dict[Queue, int], Callable[[], None], Refuse]] = deque()

    @property
    def noted(self) -> bool:
        """Whether something is waited for from here on."""
        return bool(self._dying)

    def note(self, queue: Queue) -> None:
        """What dies in a queue now is waited for."""
        if queue.dying:
            self._dying[queue] = queue.died

    def note_effects(self, effects: Iterable[Effect]) -> None:
        """What a command has let die, by its effects, is waited for."""
        for effect in effects:
            if isinstance(effect, Dying) and (queue := self._runtime.core.queue_by_id(effect.queue)) is not None:
                self.note(queue)

    def when_buried(self, then: Callable[[], None], refuse: Refuse) -> None:
        """Do it when what was noted has its letters; now, if it has them.  refuse: some will have none."""
        dying, self._dying = self._dying, {}
        waits = bool(self._waiting)  # and then the end of this turn is
        self._waiting.append((dying, then, refuse))
        if not waits:
            self._look()

    def _look(self) -> None:
        """Let those go on who may; the others at the end of a turn."""
        waiting = self._waiting
        while waiting:
            dying, then, refuse = waiting[0]
            open_ = [] if self._runtime.broken is not None else [one for one in dying if not one.is_buried(dying[one])]
            if open_ and not any(queue.stopped for queue in open_):
                self._runtime.burying.append(self._look)
                return
            waiting.popleft()
            if open_:
                refuse(why_stopped(next(queue for queue in open_ if queue.stopped)))
            else:
                then()

    def forget(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()
