"""The engine: one turn after another, it carries what the core decides to the log, to memory and to the sessions.

The order of a turn (state where a guarantee rests on it):

1. Sessions call the core, which decides, gives LSNs and applies; records and effects gather in its outboxes.
2. `finish_turn` puts new bodies into the cache, sends early leases, and hands the records to the log.
3. When the log says that an LSN is durable, everything that waited for it leaves: confirms, replies, deliveries whose
   removal or message had to be durable first.  Nothing that names an LSN leaves before it, but an early lease.

The engine knows no protocol and no queue rule.  It needs a way to run something soon, a way to read cold rows off the
loop, and receivers that take deliveries.  With an inline log and an immediate scheduler it runs without an event loop,
which is how the in-process broker works.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.effects import (
    Act,
    Deliver,
    DeliverEach,
    Dying,
    Fetch,
    Gone,
    Judge,
    Key,
    Overdue,
    Rate,
    Recover,
    Reply,
    Scan,
    Swept,
)
from penstock.errors import PenstockError
from penstock.log.writer import last_of
from penstock.memory import Caches, Loader, Piece
from penstock.memory.budget import GATHER_LEAST
from penstock.memory.reads import ReadCold
from penstock.memory.rows import merged
from penstock.records.chunks import LSN_LIMIT, Chunk, Now, as_chunk
from penstock.records.entries import Group, Publishes, Rows
from penstock.records.kinds import LAZY
from penstock.server.actions.acts import Acts
from penstock.server.events.notices import Notices
from penstock.server.fetching import Fetches
from penstock.server.filters.judging import Judges
from penstock.server.filters.keying import Keyings
from penstock.server.filters.rating import Rates
from penstock.server.filters.scanning import Scans
from penstock.server.gates import Fence, Gates, at_most_once, receiver_of
from penstock.server.napping import Nap
from penstock.server.pipelines import PipelineReports
from penstock.server.recovering import Recoveries
from penstock.server.replaying.replays import Replays
from penstock.server.rooms import Rooms
from penstock.server.shares import Shares
from penstock.server.sow.present import Present
from penstock.server.streams.walked import Walked
from penstock.server.tending import Tending
from penstock.server.views.views import Views

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.effects import Effect
    from penstock.history.history import Spread
    from penstock.log import Log
    from penstock.ports import Clock
    from penstock.server.upkeep.archive import Archiving
    from penstock.server.upkeep.keeper import Keeper


class Engine:
    """Core, log and memory under one roof.  All methods belong to the loop's thread."""

    def __init__(
        self,
        core: Core,
        log: Log,
        bodies: Caches,
        clock: Clock,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        read_cold: ReadCold,
        shares: Shares | None = None,
    ) -> None:
        """shares: what one user may take; those of `THINGS` without."""
        self.shares = shares or Shares()
        self.core = core
        self.log = log
        self.bodies = bodies
        self.loader = Loader(bodies, read_cold)
        self.clock = clock
        self.broken: str | None = None  # why nothing is confirmed any more
        self.on_flush: list[Callable[[], None]] = []  # run once at the end of a turn or commit, then forgotten
        self.on_broken: list[Callable[[str], None]] = []
        self.on_room: list[Callable[[], None]] = []  # publishers waiting for room in the gathering commit
        self.on_commit: list[Callable[[], None]] = []  # publishers paced until the running commit ends
        self.past: Spread = log  # what can be read back: the log, and its archive where there is one
        self.archive: Archiving | None = None
        self.keeper: Keeper | None = None  # who tends the log, where somebody does
        self.walked = Walked(self)
        self.readers: list[Callable[[], int | None]] = []  # each: the lowest LSN that running reads may still need
        self.row_readers: list[Callable[[], int | None]] = []  # the same; they need rows, whichever file has them
        self.rooms = Rooms(self)
        self.judges = Judges(self)
        self.scans = Scans(self)
        self.recoveries = Recoveries(self)
        core.lsn_at = self.recoveries.lsn_at
        self.rates = Rates(self)
        self.keyings = Keyings(self)
        self.fetches = Fetches(self)
        self.replays = Replays(self)
        self.views = Views(self)
        self.records = Present(self)
        self.pipelines = PipelineReports(clock)
        self.delivered = 0
        self.on_turn: Callable[[], None] | None = None  # run at the end of each turn
        self._nap = Nap(clock, log)
        self.call_soon = call_soon
        self.read_cold = read_cold
        self._armed = False
        self._ended = False
        self.slowed = False  # publishers wait a moment: see `upkeep.pacing`
        self._awaited = 0  # the highest LSN that anything waits for
        self._urged = 0  # the log was told to hurry with everything up to this LSN
        self._waiters: deque[tuple[int, Callable[[], None]]] = deque()
        self._late: deque[Deliver | Fence] = deque()
        self._sync_late = False  # among the new late ones some must wait for a sync, whatever the setting
        self._fences: list[Fence] = []  # of this turn
        self.gates = Gates(self)
        self.tending = Tending(self)
        self.acts = Acts(self)
        self.notices = Notices(self)
        bodies.parting.takers = self.tending.takers
        bodies.arrivals.lacking = log.durable
        bodies.budget.watch("commits", lambda: log.pending_bytes)  # beside the bodies that they were made from
        bodies.budget.watch("decoded", lambda: log.decoded_bytes)

    # -- time

    def now(self) -> Now:
        """The instant for commands of this turn."""
        return Now(self.clock.wall(), self.clock.mono())

    def tick(self) -> None:
        """Leases that ended, delays that are over, messages that expired."""
        self.core.tick(self.now())
        self.acts.timing.tick()
        self.replays.tick()
        if self.views.alarms:
            self.views.tick()
        self.arm()

    def next_deadline(self) -> tuple[int | None, int | None]:
        """When to `tick` next, on the wall and on the monotonic clock; 0 is at once, None is never."""
        wall, mono = self.core.next_deadline()
        scheduled = self.acts.timing.next()
        if scheduled is not None:
            wall = scheduled if wall is None else min(wall, scheduled)
        replays = self.replays.next_deadline()
        if replays is not None:
            mono = replays if mono is None else min(mono, replays)
        if self.views.alarms and (told := self.views.next_deadline()) is not None:
            mono = told if mono is None else min(mono, told)
        return wall, mono

    # -- a turn

    def arm(self) -> None:
        """See that `finish_turn` runs once before the loop waits again."""
        if not self._armed:
            self._armed = True
            self.call_soon(self.finish_turn)

    def finish_turn(self) -> None:
        """Step 2 of a turn.  Sends early leases before the records are encoded."""
        if self._ended:
            return
        self.rooms.look()
        self._armed = False
        core = self.core
        journal = core.take_journal()
        if self.replays.active and self.broken is None:
            self.replays.gather(journal)
        if self.views.active and self.broken is None:
            self.views.gather(journal)
        if journal:
            core.stamps.note(core.last_lsn, self.clock.wall())
            self.acts.records.look()
            if self.acts.publishes:
                self.acts.look(journal)
        urgent = False
        for entry in journal:
            if isinstance(entry, Publishes):
                self.bodies.add(entry)
                urgent = True
            elif isinstance(entry, Group):
                urgent = True
                for part in entry.entries:
                    if isinstance(part, Publishes):
                        self.bodies.add(part)
            elif entry.kind not in LAZY:
                urgent = True
        self._perform(core.take_effects())
        self.notices.gather(journal)
        if journal:
            self.acts.ledger.seen = last_of(journal[-1])
        fences, self._fences = self._fences, []
        for fence in fences:
            if self._late:
                self._late.append(fence)
            else:
                self.gates.pass_on(fence)
        self.flush()  # first: the writer takes the interpreter as soon as it has something
        urgent = urgent or self._awaited > self._urged
        if urgent:
            self._urged = core.last_lsn
        if journal:
            sync, self._sync_late = self._sync_late, False
            if self.broken is None:
                self.log.append(journal, urgent=urgent, sync=sync)
        elif urgent:
            self.log.hurry()
        if not self.loader.idle:
            self.loader.step()
        self.flush()
        if self.on_turn is not None:
            self.on_turn()
        self._nap.let_others_in()

    def end(self, *, last_turn: bool) -> None:
        """The last turn, or none after a bug; from now on nothing is decided, read, logged or told."""
        if last_turn:
            self.finish_turn()
        self._ended = True
        self._waiters.clear()
        self._late.clear()
        self.gates.forget()
        self.log.on_durable = self.log.on_broken = _nobody

    def announce_guest(self) -> None:
        """A thread of another door has business and will need the interpreter.  Any thread."""
        self._nap.announce_guest()

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                if self.acts.delivers:
                    self.acts.delivered(effect)
                if effect.after <= self.log.durable:
                    self.gates.deliver(effect)
                elif self.broken is None:
                    self._late.append(effect)
                    self._awaited = max(self._awaited, effect.after)
                    if at_most_once(effect):
                        self._sync_late = True
            elif isinstance(effect, DeliverEach):
                if self.acts.delivers:
                    for one in effect.singly():
                        self.acts.delivered(one)
                self.gates.deliver_each(effect)
            elif isinstance(effect, Reply):
                self._reply(effect)
            elif isinstance(effect, Fetch):
                self.fetches.start(effect)
            elif isinstance(effect, Scan):
                self.scans.start(effect)
            elif isinstance(effect, Judge):
                self.judges.start(effect)
            elif isinstance(effect, Recover):
                self.recoveries.start()
            elif isinstance(effect, Rate):
                self.rates.start(effect)
            elif isinstance(effect, Key):
                self.keyings.start(effect)
            elif isinstance(effect, Act):
                self.acts.go_on(effect)
            elif isinstance(effect, Gone):
                self.acts.gone(effect)
            elif isinstance(effect, Dying):
                if self.views.active:
                    self.views.dying(effect)
            elif isinstance(effect, Swept):
                effect.answer(effect.affected)
            elif isinstance(effect, Overdue):
                effect.tell(effect.timeout)
            else:
                receiver_of(effect.consumer).cancelled(effect.consumer)

    def _reply(self, effect: Reply) -> None:
        if effect.after <= self.log.durable:
            effect.take(effect)
        elif self.broken is None:
            self.when_durable(effect.after, partial(effect.take, effect))

    def flush(self) -> None:
        """Let sessions write what this turn brought them."""
        while self.on_flush:  # confirms that are flushed make their sessions dirty
            flushes, self.on_flush = self.on_flush, []
            for flush in flushes:
                flush()

    # -- deliveries

    def after_deliveries(self, gate: object, callback: Callable[[], None]) -> None:
        """Run `callback` when all that was granted so far to the receivers of this gate has reached them."""
        self._fences.append(Fence(gate, callback))
        self.arm()

    def deliver_again(self, effect: Deliver, chunk: Chunk, piece: Piece | None = None) -> None:
        """A delivery that had to wait: see `Gates.deliver_again`."""
        self.gates.deliver_again(effect, chunk, piece)

    def reopen(self, gate: object) -> None:
        """A connection takes bytes again."""
        self.gates.reopen(gate)

    def floor(self) -> int:
        """No message below this LSN is in a queue, on its way to a consumer, being read, or promised to a stream."""
        return min(self.core.floor(), self.held())

    def promised(self) -> int:
        """No stream and no running read may ask for what is below this LSN; queues are not looked at."""
        return min(self.core.promised(), self.held())

    def held(self) -> int:
        """No message below this LSN is on its way to a consumer or being read; those in queues are not looked at."""
        floor = self.core.next_lsn
        for item in (*self.core.effects, *self._late):
            if isinstance(item, Deliver | DeliverEach):
                floor = min(floor, item.chunk[0])
        chunks = (*self.gates.waiting(), *self.loader.reading)
        return min([floor, self.reading(), *(chunk[0] for chunk in chunks)])

    def reading(self) -> int:
        """No registered reader may still need what is below this LSN."""
        return min(self.reading_files(), _lowest(self.row_readers))

    def reading_files(self) -> int:
        """No registered reader may still need the very files that hold what is below this LSN."""
        return _lowest(self.readers)

    def read_rows(self, chunk: Chunk, answer: Callable[[Rows], None], queue: int | None = None) -> None:
        """Rows of a chunk, each from memory where it is there, else from the log; `answer` may run before this returns.

        The log is asked for nothing that memory has: what is not durable yet is in memory alone.
        """
        present, missing = self.bodies.rows(chunk, queue)
        if not missing:
            answer(present)
        elif not len(present):
            self.read_cold(chunk, answer)
        else:
            self.read_cold(as_chunk(missing), lambda rows: answer(merged(present, rows)))

    # -- durability

    def when_durable(self, lsn: int, callback: Callable[[], None]) -> None:
        """Run `callback` once everything up to `lsn` is durable; callbacks run in the order they came.

        Never runs once the log is broken: the outcome is unknown then, and `on_broken` says so.
        """
        if lsn <= self.log.durable and not self._waiters:
            callback()
        else:
            self._waiters.append((lsn, callback))
            self._awaited = max(self._awaited, lsn)

    def durable(self, lsn: int) -> None:
        """Step 3 of a turn: the log has synced everything up to `lsn`."""
        self.bodies.set_durable(lsn)
        waiters = self._waiters
        while waiters and waiters[0][0] <= lsn:
            waiters.popleft()[1]()
        late = self._late
        while late and (isinstance(late[0], Fence) or late[0].after <= lsn):
            item = late.popleft()
            if isinstance(item, Fence):
                self.gates.pass_on(item)
            else:
                self.gates.deliver_again(item, item.chunk)
        if self.replays.active:
            self.replays.committed(lsn)
        if self.views.active:
            self.views.committed(lsn)
        for hooks in (self.on_commit, self.on_room if self.on_room and self._room_again() else None):
            if hooks:
                run, hooks[:] = hooks[:], []
                for hook in run:
                    hook()
        self.flush()

    def _room_again(self) -> bool:
        """Whether publishers that wait may go on."""
        return self.has_room() and (self.broken is not None or self.bodies.budget.over <= GATHER_LEAST)

    def look_for_room(self) -> None:
        """Let publishers go on that wait for room, if there is some."""
        if self.on_room and self._room_again():
            run, self.on_room[:] = self.on_room[:], []
            for hook in run:
                hook()

    def has_room(self) -> bool:
        """Whether publishers may be read from: the gathering commit is within its bound, and nobody slows them."""
        if self.broken is not None:
            return True  # what comes is refused, and whoever waited would wait for ever
        return not self.slowed and self.log.pending_bytes < self.bodies.budget.gather_most and not self.bodies.tight

    def break_down(self, failure: PenstockError) -> None:
        """A write or sync failed: confirm nothing more, drop what waited, tell everybody."""
        if self.broken is not None:
            return
        self.broken = reason = str(failure)
        self._waiters.clear()
        late, self._late = self._late, deque()
        self.forget_lost()
        for hook in self.on_broken:
            hook(reason)
        for item in late:
            if isinstance(item, Fence):
                self.gates.pass_on(item)
            elif not at_most_once(item):
                self.gates.deliver_again(item, item.chunk)
        for hooks in (self.on_commit, self.on_room):  # who paused for the log need not wait for it any more
            run, hooks[:] = hooks[:], []
            for resume in run:
                resume()
        self.flush()
        self.arm()

    def forget_lost(self) -> None:
        """Take what a broken log has lost out of the queues, so that nobody is granted it."""
        lost = range(self.log.durable + 1, self.core.next_lsn)
        if len(lost):
            for queue in self.core.queues():
                queue.forget(lost)


def _lowest(readers: Sequence[Callable[[], int | None]]) -> int:
    return min((low for low in (reader() for reader in readers) if low is not None), default=LSN_LIMIT)


def _nobody(_: object) -> None:
    """Nobody is told any more."""
