"""The engine: one turn after another, it carries what the core decides to the log, to memory and to the sessions.

The order of a turn (state where a guarantee rests on it):

1. Sessions call the core, which decides, gives LSNs and applies; records and effects gather in its outboxes.
2. `finish_turn` puts new bodies into the cache, sends early leases, and hands the records to the log.
3. When the log says that an LSN is durable, everything that waited for it leaves: confirms, replies, deliveries whose
   removal or message had to be durable first.  Nothing that names an LSN leaves before it, but an early lease.

The engine knows no protocol and no queue rule.  It needs a way to run something soon, a way to read cold rows off the
loop, and receivers that take deliveries.  With an inline log and an immediate scheduler it runs without an event loop,
which is how the in-process broker works.  Its parts know its `Runtime`, not it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from penstock.core import effects
from penstock.core import effects as e
from penstock.errors import PenstockError
from penstock.log.writer import last_of
from penstock.memory import ReadCold
from penstock.memory.caches import Caches
from penstock.records.entries import Control, Entry, Group, Publishes
from penstock.records.kinds import LAZY, Kind
from penstock.server.actions import Acts
from penstock.server.asking.caching import Fetches, Present, Tending
from penstock.server.asking.judging import Ask, Judges
from penstock.server.asking.recovering import Recoveries, Walked
from penstock.server.asking.scanning import Backfills, Scans
from penstock.server.base.faults import Asker, asker_behind, asker_of
from penstock.server.base.rounds import Nap, Soon
from penstock.server.base.runtime import Copies, Off, Runtime
from penstock.server.gates import Gates, Rooms, receiver_of
from penstock.server.notices import Notices
from penstock.server.own_messages import EventExchange, Traces
from penstock.server.people.access import Shares
from penstock.server.pipelines import PipelineReports
from penstock.server.replaying import Replays
from penstock.server.transaction_memory import Charges
from penstock.server.views.views import Views

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.commands.deliveries import Deliveries, Delivery
    from penstock.log.log import Log
    from penstock.ports import Clock
    from penstock.server.base.clock import Dues
    from penstock.server.upkeep.archive import Archiving
    from penstock.server.upkeep.keeper import Keeper


logger = logging.getLogger("penstock.server")

UNDELIVERED = frozenset((Kind.DROP, Kind.EXPIRE, Kind.PURGE))
"""Records of messages that left a queue, and nobody got them."""

UNHURRIED_MOST = 256 << 10
"""Bytes that may gather for the log before it hurries although nobody waits: so much memory is held for them."""


class Engine(Runtime):
    """A runtime with all its parts.  All methods belong to the loop's thread."""

    def __init__(
        self,
        core: Core,
        log: Log,
        bodies: Caches,
        clock: Clock,
        *,
        call_soon: Soon,
        read_cold: ReadCold,
        at_round_end: Soon | None = None,
        shares: Shares | None = None,
    ) -> None:
        """shares: what one user may take; those of `THINGS` without."""
        super().__init__(core, log, bodies, clock, call_soon=call_soon, read_cold=read_cold, at_round_end=at_round_end)
        self.shares = shares or Shares()
        self.archive: Archiving | None = None
        self.copies: Copies | None = None  # other disks that must have a file first
        self.keeper: Keeper | None = None  # who tends the log, where somebody does
        self.alarms: Mapping[str, str] = {}  # those that are set, by name, with the reason
        self.left_out: Sequence[str] = ()  # of the settings file, as this server began to lead: each thing, and why
        self.walked = Walked(self)
        self.rooms = Rooms(self)
        self.charges = Charges(self)
        self.records = Present(self)
        self.judges = Judges(self, self.records)
        self.scans = Scans(self)
        self.recoveries = Recoveries(self)
        core.lsn_at = self.recoveries.lsn_at
        self.backfills = Backfills(self, self.judges)
        self.fetches = Fetches(self)
        self.replays = Replays(self)
        self.views = Views(self, self.judges, self.replays)
        self.pipelines = PipelineReports(clock)
        self.gates = Gates(self)
        self.traces = self.gates.traces = Traces(self)
        self.tending = Tending(self)
        self.acts = Acts(self, self.judges)
        self.notices = Notices(self)
        self.event_exchange = EventExchange(self, self.notices.feed)
        bodies.parting.takers = self.tending.takers
        self._nap = Nap(clock, log)
        self.announce_guest = self._nap.announce_guest
        self._ended = False
        self.faults.on_fatal.append(self._no_turns)
        self._urged = 0  # the log was told to hurry with everything up to this LSN
        self._performers: Mapping[type[e.Effect], Callable[[Any], None]] = {
            e.Deliver: self._deliver,
            e.DeliverEach: self._deliver_each,
            e.Reply: self._reply,
            effects.Fetch: self.fetches.start,
            effects.Scan: self.scans.start,
            effects.Judge: self.judges.start,
            effects.Recover: lambda _: self.recoveries.start(),
            effects.Rate: self.backfills.start,
            effects.Key: self.backfills.start,
            e.Act: self.acts.go_on,
            e.Gone: self.acts.gone,
            e.Dying: self._dying,
            e.Stopped: self._stopped,
            e.Swept: self._swept,
            e.Overdue: lambda effect: effect.tell(effect.timeout),
            e.Cancelled: lambda effect: receiver_of(effect.consumer).cancelled(effect.consumer, effect.why),
        }

    def run_off(
        self,
        *,
        judging: Off,
        scanning: Off,
        replaying: Off,
        reading: Off,
        acting: Off,
        at_work: Callable[[], int] = int,
    ) -> None:
        """Have the parts do long work in threads; without this they do it on the loop.

        at_work: how much of it is not done.
        """
        self._nap.at_work = at_work
        self.judges.off = self.acts.steps.off = judging
        self.scans.off = self.backfills.off = self.recoveries.off = self.acts.resuming.off = scanning
        self.views.run_off(scanning)
        self.replays.off = replaying
        self.walked.ahead.off = reading
        self.acts.steps.acting = acting

    def ask_of(self, ask: Ask | None) -> None:
        """Have the parts give long work to the bulk child; None: to nobody."""
        self.recoveries.ask = self.scans.ask = self.judges.ask = self.replays.ask = ask

    # -- time

    def remarks(self) -> dict[str, object]:
        """Of health, over every door: faults that were met, and alarms that are set; nothing where there is none."""
        return self.faults.remarks() | ({"alarms": sorted(self.alarms)} if self.alarms else {})

    @cached_property
    def timed(self) -> Sequence[tuple[Dues, Callable[[], None]]]:
        """What has its times, and what does then what is due: what one of them fails at holds up none of the others."""
        return (
            (self.core.next_deadline, partial(self._ticked, self._tick_core)),
            (self._schedule, partial(self._ticked, self.acts.timing.tick)),
            (self._replays_due, partial(self._ticked, self.replays.tick)),
            (self._alarms_due, partial(self._ticked, self.views.alarms.tick)),
        )

    def _ticked(self, tick: Callable[[], object]) -> None:
        try:
            tick()
        finally:
            self.arm()  # also for what was decided before something failed

    def _tick_core(self) -> None:
        """Leases that ended, delays that are over, messages that expired."""
        self.core.tick(self.now())

    def _schedule(self) -> tuple[int | None, int | None]:
        return (self.acts.timing.next() if self.core.rules.schedule else None), None

    def _replays_due(self) -> tuple[int | None, int | None]:
        return None, (self.replays.next_deadline() if self.replays.active else None)

    def _alarms_due(self) -> tuple[int | None, int | None]:
        return None, (self.views.alarms.next_deadline() if self.views.alarms.all else None)

    def tick(self) -> None:
        """All that is due."""
        for _, tick in self.timed:
            tick()

    def next_deadline(self) -> tuple[int | None, int | None]:
        """When to `tick` next, on the wall and on the monotonic clock; 0 is at once, None is never."""
        wall: int | None = None
        mono: int | None = None
        for dues, _ in self.timed:
            date, moment = dues()
            if date is not None and (wall is None or date < wall):
                wall = date
            if moment is not None and (mono is None or moment < mono):
                mono = moment
        return wall, mono

    # -- a turn

    def finish_turn(self) -> None:
        """Step 2 of a turn.  Sends early leases before the records are encoded."""
        self._armed = False
        if self._ended:
            self.flush()  # what was said before
            return
        if self.rooms.lines:
            self.rooms.look()
        self.turns.number += 1
        for decide in self.before_turn:
            decide()
        core, faults = self.core, self.faults
        journal = core.take_journal()
        last, urgent, tells = 0, False, False
        if journal:
            faults.behind = True  # until the log has it; what is told to some between is theirs
            last = last_of(journal[-1])
            urgent, tells = self._note(journal, last)
            faults.behind = False
        if some := core.take_effects():
            self._perform(some)
        faults.behind = True
        if tells or self.notices.attendance or self.notices.asked:
            self.notices.gather(journal)
        if core.traced:
            self.traces.gather(journal)
        if journal:
            self.acts.ledger.seen = last
        faults.behind = False
        if self.burying:
            self.run_once(self.burying)
        gates = self.gates
        if gates.fences:
            gates.end_turn()
        if self.on_flush:
            self.flush()  # first: the writer takes the interpreter as soon as it has something
        faults.behind = True
        self._write(journal, last, urgent=urgent or self._awaited > self._urged)
        faults.behind = False
        if not self.loader.idle:
            self.loader.step()
        if self.on_flush:
            self.flush()
        if self.on_turn is not None:
            self.on_turn()
        self._nap.let_others_in()

    def _perform(self, some: Sequence[e.Effect]) -> None:
        """Do what was decided to be done; what fails ends who asked for it."""
        performers = self._performers
        grant = None if self.acts.delivers else self.gates.grant
        for effect in some:
            try:
                if grant is not None and isinstance(effect, e.Deliver):  # nearly all
                    grant(effect)
                else:
                    performers[type(effect)](effect)
            except Exception as error:  # noqa: BLE001 - the border of each
                self.faults.contain(error, _on_behalf_of(effect))

    def _write(self, journal: Sequence[Entry], last: int, *, urgent: bool) -> None:
        """Hand what a turn decided, up to an LSN, to the log.

        urgent: somebody waits for some of it, or of what was decided before.
        """
        log = self.log
        if urgent:
            self._urged = last or self.core.last_lsn
        if journal:
            sync, self.gates.sync_late = self.gates.sync_late, False
            if self.broken is None:
                log.append(journal, urgent=urgent, sync=sync)
                if not urgent and log.pending.bytes > UNHURRIED_MOST:
                    log.hurry()
        elif urgent:
            log.hurry()

    def _note(self, journal: Sequence[Entry], last: int) -> tuple[bool, bool]:
        """Show what a turn decided to followers, and put its bodies into the cache.

        Whether the log has to hurry, and whether some record is more than messages and what became of them.

        Whoever waits for an LSN says so himself (`await_lsn`); beside that, messages that a start would end need not
        hurry, where nobody follows what comes.
        """
        self.core.stamps.note(last, self.core.time)
        followed = self.replays.active or self.views.active
        if followed or self.acts.removals.names or self.acts.publishes:
            self._show(journal)
        prompt = followed or self.acts.publishes or bool(self.on_room)
        urgent = tells = False
        for entry in journal:
            if isinstance(entry, Publishes):
                self.bodies.add(entry)
                urgent = urgent or prompt or entry.transient is not True
            elif isinstance(entry, Group):
                urgent = tells = True
                for part in entry.entries:
                    if isinstance(part, Publishes):
                        self.bodies.add(part)
                    elif part.kind in UNDELIVERED:
                        self.bodies.left(part.body)
            elif isinstance(entry, Control) and entry.kind not in LAZY:
                urgent = tells = True
                if entry.kind in UNDELIVERED:
                    self.bodies.left(entry.body)
                elif entry.kind is Kind.QUEUE_DELETE:
                    self.bodies.look_over()
        return urgent, tells

    def _show(self, journal: Sequence[Entry]) -> None:
        """Give the turn's records to replays, views and actions."""
        if self.broken is None:
            if self.replays.active:
                self.replays.gather(journal)
            if self.views.active:
                self.views.gather(journal)
        if self.acts.removals.names:
            self.acts.removals.look()
        if self.acts.publishes:
            self.acts.look(journal)

    def _no_turns(self, _: BaseException) -> None:
        """Something is half changed: nothing is decided, logged or delivered any more."""
        self._ended = True

    def end(self, *, last_turn: bool) -> None:
        """End: with a last turn, or after a bug without one.  Nothing is decided, read, logged or told any more."""
        if last_turn:
            self.finish_turn()
        self._ended = True
        self._waiters.clear()
        self.gates.forget()
        self.log.on_durable = self.log.on_broken = _nobody

    # -- effects

    def _deliver(self, effect: Delivery) -> None:
        if self.acts.delivers:
            self.acts.delivered(effect)
        self.gates.grant(effect)

    def _deliver_each(self, effect: Deliveries) -> None:
        if self.acts.delivers:
            for one in effect.singly():
                self.acts.delivered(one)
        self.gates.deliver_each(effect)

    def _dying(self, effect: e.Dying) -> None:
        if self.views.active:
            self.views.dying(effect)

    def _stopped(self, effect: e.Stopped) -> None:
        self.faults.stopped(effect.error, effect.parts[0].kind)
        logger.critical("an internal error has stopped %s: until the next start", e.names_of(effect.parts))

    def _swept(self, effect: e.Swept) -> None:
        self.bodies.look_over()  # what waited may be settled
        effect.answer(effect.affected)

    def _reply(self, effect: e.Reply) -> None:
        if effect.after <= self.log.durable:
            effect.take(effect)
        elif self.broken is None:
            self.when_durable(effect.after, partial(effect.take, effect))

    # -- durability

    def durable(self, lsn: int) -> None:
        """Step 3 of a turn: the log has synced everything up to `lsn`."""
        self.bodies.set_durable(lsn)
        waiters = self._waiters
        while waiters and waiters[0][0] <= lsn:
            _, callback = waiters.popleft()
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - the border of each who waits
                self.faults.contain(error, asker_behind(callback))
        if self.gates.late:
            self.gates.durable(lsn)
        if self.bodies.arrivals.loose:
            self.bodies.thin()
        if self.replays.active:
            self.replays.committed(lsn)
        if self.views.active:
            self.views.committed(lsn)
        if self.on_commit:
            self.run_once(self.on_commit)
        if self.on_room:
            self.look_for_room()
        for hook in self.on_durable:
            self.faults.run(hook)
        if self.on_flush:
            self.flush()

    def break_down(self, failure: PenstockError) -> None:
        """A write or sync failed: confirm nothing more, drop what waited, tell everybody."""
        if self.broken is not None:
            return
        self.broken = reason = str(failure)
        self._waiters.clear()
        self.forget_lost()
        for hook in self.on_broken:
            hook(reason)
        self.gates.break_down()
        self.run_once(self.on_commit)  # who paused for the log need not wait for it any more
        self.run_once(self.on_room)
        self.run_once(self.burying)
        self.flush()
        self.arm()

    def forget_lost(self) -> None:
        """Take what a broken log has lost out of the queues, so that nobody is granted it."""
        lost = range(self.log.durable + 1, self.core.next_lsn)
        if len(lost):
            for queue in self.core.queues():
                queue.forget(lost)


def _on_behalf_of(effect: e.Effect) -> Asker | None:
    """Who waits for an effect, where it says so."""
    consumer = getattr(effect, "consumer", None) or next(iter(getattr(effect, "consumers", ())), None)
    return None if consumer is None else asker_of(consumer.holder)


def _nobody(_: object) -> None:
    """Takes the place of the log's callbacks when the engine has ended."""
