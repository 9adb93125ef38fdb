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

import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from penstock.core.effects import Deliver, Effect, Fetch, Verb
from penstock.errors import PenstockError
from penstock.memory import BodyCache, Piece
from penstock.memory.bodies import piece_of
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.entries import Entry, Group, Publishes, Rows
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.consumers import Consumer
    from penstock.log import Log
    from penstock.ports import Clock

STARVED_US = 500
"""A commit that has waited this long for the interpreter gets it: the loop sleeps for a moment."""

GUEST_STAYS_US = 1_000_000
"""A Flight call was made so recently: its thread, or the next one's, may be waiting for the interpreter."""

GUEST_US = 100
"""A Flight call takes the interpreter some eight times: with a guest in the house the loop naps this often."""

NAP_S = 20e-6
"""How long the loop sleeps then; any real sleep hands the interpreter over."""

GATHER_LIMIT = 64 * 2**20
"""Bytes gathered and in flight to the log beyond which publishers are not read from."""

LAZY_KINDS = frozenset({Kind.GRANT, Kind.RETURN, Kind.SETTLE, Kind.DUE, Kind.MARK})
"""Records nobody waits for: they ride with the next commit, or go after `ack_sync`."""


class Receiver(Protocol):
    """Who takes deliveries: an AMQP channel, a Flight exchange, a subscription of the in-process broker."""

    @property
    def gate(self) -> object:
        """Deliveries of one gate keep their order, also when some are read from disk."""
        ...

    def deliver(self, effect: Deliver, piece: Piece) -> None:
        """Send neighbouring rows; `piece.bodies` is never None."""
        ...

    def cancelled(self, consumer: Consumer) -> None:
        """The queue went away under the consumer."""
        ...


def receiver_of(consumer: Consumer) -> Receiver:
    """Who takes what this consumer is granted: sessions subscribe with themselves as holders."""
    return cast("Receiver", consumer.holder)


@dataclass(frozen=True, slots=True)
class _Fence:
    """Something to do when the deliveries of a gate that came before it are done."""

    gate: object
    callback: Callable[[], None]


class Engine:
    """Core, log and memory under one roof.  All methods belong to the loop's thread."""

    def __init__(
        self,
        core: Core,
        log: Log,
        bodies: BodyCache,
        clock: Clock,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        read_cold: Callable[[Sequence[int], Callable[[Rows], None]], None],
    ) -> None:
        self.core = core
        self.log = log
        self.bodies = bodies
        self.clock = clock
        self.broken: str | None = None  # why nothing is confirmed any more
        self.on_flush: list[Callable[[], None]] = []  # run once at the end of a turn or commit, then forgotten
        self.on_broken: list[Callable[[str], None]] = []
        self.on_room: list[Callable[[], None]] = []  # publishers waiting for room in the gathering commit
        self.on_commit: list[Callable[[], None]] = []  # publishers paced until the running commit ends
        self.readers: list[Callable[[], int | None]] = []  # each: the lowest LSN that running reads may still need
        self.delivered = 0
        self.on_turn: Callable[[], None] | None = None  # run at the end of each turn
        self._guest_at = -GUEST_STAYS_US  # mono when another thread last had business
        self._napped = 0
        self._call_soon = call_soon
        self._read_cold = read_cold
        self._armed = False
        self._awaited = 0  # the highest LSN that anything waits for
        self._urged = 0  # the log was told to hurry with everything up to this LSN
        self._waiters: deque[tuple[int, Callable[[], None]]] = deque()
        self._late: deque[Deliver | _Fence] = deque()
        self._sync_late = False  # among the new late ones some must wait for a sync, whatever the setting
        self._fences: list[_Fence] = []  # of this turn
        self._reading: dict[object, Chunk] = {}  # by closed gate
        self._gates: dict[object, deque[Deliver | tuple[Deliver, Chunk] | _Fence]] = {}

    # -- time

    def now(self) -> Now:
        """The instant for commands of this turn."""
        return Now(self.clock.wall(), self.clock.mono())

    def tick(self) -> None:
        """Leases that ended, delays that are over, messages that expired."""
        self.core.tick(self.now())
        self.arm()

    # -- a turn

    def arm(self) -> None:
        """See that `finish_turn` runs once before the loop waits again."""
        if not self._armed:
            self._armed = True
            self._call_soon(self.finish_turn)

    def finish_turn(self) -> None:
        """Step 2 of a turn.  Sends early leases before the records are encoded."""
        self._armed = False
        core = self.core
        journal = core.take_journal()
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
            elif entry.kind not in LAZY_KINDS:
                urgent = True
        self._perform(core.take_effects())
        fences, self._fences = self._fences, []
        for fence in fences:
            if self._late:
                self._late.append(fence)
            else:
                self._pass(fence)
        self._flush()  # first: the writer takes the interpreter as soon as it has something
        urgent = urgent or self._awaited > self._urged
        if urgent:
            self._urged = core.last_lsn
        if journal:
            self._append(journal, urgent)
        elif urgent:
            self.log.hurry()
        self._flush()
        if self.on_turn is not None:
            self.on_turn()
        self._let_others_in()

    def announce_guest(self) -> None:
        """A thread of another door has business and will need the interpreter.  Any thread."""
        self._guest_at = self.clock.mono()

    def _let_others_in(self) -> None:
        """A loop that never sleeps starves every other thread: sleep a moment when one has waited long enough."""
        now = self.clock.mono()
        awake = now - self._napped
        if awake < GUEST_US:
            return
        waiting = self.log.waiting_since
        if (waiting and awake > STARVED_US < now - waiting) or now - self._guest_at < GUEST_STAYS_US:
            time.sleep(NAP_S)
            self._napped = self.clock.mono()

    def _append(self, journal: list[Entry], urgent: bool) -> None:
        sync, self._sync_late = self._sync_late, False
        if self.broken is None:
            self.log.append(journal, urgent=urgent, sync=sync)

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                if effect.after <= self.log.durable:
                    self._deliver(effect)
                elif self.broken is None:
                    self._late.append(effect)
                    self._awaited = max(self._awaited, effect.after)
                    if _at_most_once(effect):
                        self._sync_late = True
            elif isinstance(effect, Fetch):
                self._fetch(effect)
            else:
                receiver_of(effect.consumer).cancelled(effect.consumer)

    def _flush(self) -> None:
        while self.on_flush:  # confirms that are flushed make their sessions dirty
            flushes, self.on_flush = self.on_flush, []
            for flush in flushes:
                flush()

    # -- deliveries

    def _deliver(self, effect: Deliver) -> None:
        """Send what memory has; the first cold row closes the gate until the log has answered."""
        if self.broken is not None and effect.chunk[-1] > self.log.durable:
            self._lose(effect)
            if not len(effect.chunk):
                return
        receiver = receiver_of(effect.consumer)
        gate = self._gates.get(receiver.gate)
        if gate is not None:
            gate.append(effect)
            return
        cold: Chunk | None = None
        for piece in self.bodies.pieces(effect.chunk):
            if gate is not None:
                gate.append((effect, piece.chunk))
            elif piece.bodies is not None:
                self.delivered += len(piece.chunk)
                receiver.deliver(effect, piece)
            elif self.log.at_hand(piece.chunk):
                self.delivered += len(piece.chunk)
                receiver.deliver(effect, piece_of(self.log.read(piece.chunk), piece.chunk))
            else:
                gate = self._gates[receiver.gate] = deque()
                cold = piece.chunk
        if cold is not None:  # last, for the answer may come at once
            self._read_gated(effect, cold)

    def deliver_again(self, effect: Deliver, chunk: Chunk, piece: Piece | None = None) -> None:
        """A delivery that had to wait: send what of it is still held on the same lease.

        `piece`: its rows, if the receiver had them already.
        """
        held = _still_held(effect, chunk)
        if piece is not None and len(held) == len(chunk) and receiver_of(effect.consumer).gate not in self._gates:
            receiver_of(effect.consumer).deliver(effect, piece)
        elif len(held):
            again = Deliver(effect.consumer, effect.queue, held, effect.attempt, effect.redelivered, 0)
            self._deliver(again)

    def after_deliveries(self, gate: object, callback: Callable[[], None]) -> None:
        """Run `callback` when all that was granted so far to the receivers of this gate has reached them."""
        self._fences.append(_Fence(gate, callback))
        self.arm()

    def _pass(self, fence: _Fence) -> None:
        gate = self._gates.get(fence.gate)
        if gate is not None:
            gate.append(fence)
        else:
            fence.callback()

    def floor(self) -> int:
        """No message below this LSN is in a queue, on its way to a consumer, being read, or promised to a stream."""
        floor = self.core.floor()
        waiting = [*self.core.effects, *self._late, *(item for gate in self._gates.values() for item in gate)]
        for item in waiting:
            if isinstance(item, Deliver):
                floor = min(floor, item.chunk[0])
            elif isinstance(item, tuple):
                floor = min(floor, item[1][0])
        reads = [low for low in (reader() for reader in self.readers) if low is not None]
        return min([floor, *reads, *(chunk[0] for chunk in self._reading.values())])

    def _lose(self, effect: Deliver) -> None:
        """Take what the log has lost out of a delivery: it is shown to nobody, and takes nobody's credit."""
        place = bisect_right(effect.chunk, self.log.durable)
        lost, effect.chunk = effect.chunk[place:], effect.chunk[:place]
        self.core.settle(self.now(), effect.queue, [lost], Verb.ACK, by=effect.consumer)
        self.arm()

    def _read_gated(self, effect: Deliver, chunk: Chunk) -> None:
        self._reading[receiver_of(effect.consumer).gate] = chunk
        self._read_cold(chunk, lambda rows: self._gated_rows(effect, chunk, rows))

    def _gated_rows(self, effect: Deliver, chunk: Chunk, rows: Rows) -> None:
        receiver = receiver_of(effect.consumer)
        del self._reading[receiver.gate]
        self._deliver_still_held(effect, chunk, rows)
        gate = self._gates.pop(receiver.gate)
        while gate:
            item = gate.popleft()
            if isinstance(item, _Fence):
                item.callback()
            elif isinstance(item, tuple):
                self.deliver_again(*item)
            else:
                self.deliver_again(item, item.chunk)
            closed = self._gates.get(receiver.gate)
            if closed is not None:
                closed.extend(gate)
                break
        self._flush()

    def _deliver_still_held(self, effect: Deliver, chunk: Chunk, rows: Rows) -> None:
        """Nothing is delivered after its removal: what was settled or returned during the read is left out."""
        held = _still_held(effect, chunk)
        if len(held) < len(chunk):
            keep = set(held)
            places = [place for place, lsn in enumerate(rows.lsns) if lsn in keep]
            if not places:
                return
            rows = select_rows(rows, places)
            chunk = as_chunk(rows.lsns)
        self.delivered += len(chunk)
        receiver_of(effect.consumer).deliver(effect, piece_of(rows, chunk))

    def _fetch(self, effect: Fetch) -> None:
        def answer(rows: Rows) -> None:
            self.core.fetched(self.now(), effect.token, rows)
            self.arm()

        self.read_rows(effect.chunk, answer)

    def read_rows(self, chunk: Chunk, answer: Callable[[Rows], None]) -> None:
        """Rows of a chunk, each from memory where it is there, else from the log; `answer` may run before this returns.

        The log is asked for nothing that memory has: what is not durable yet is in memory alone.
        """
        present, missing = self._rows_in_memory(chunk)
        if not missing:
            answer(present)
        elif not len(present):
            self._read_cold(chunk, answer)
        else:
            self._read_cold(as_chunk(missing), lambda rows: answer(merged(present, rows)))

    def _rows_in_memory(self, chunk: Chunk) -> tuple[Rows, array[int]]:
        """The rows of the chunk that the cache holds, and the LSNs of the others; not counted as deliveries."""
        out, missing = Rows([], [], [], [], [], [], []), array("q")
        for lsn in chunk:
            batch = self.bodies.peek(lsn)
            if batch is None:
                missing.append(lsn)
                continue
            row = lsn - batch.first
            out.lsns.append(lsn)
            out.topics.append(batch.topic_of(row))
            out.properties.append(batch.properties_of(row))
            out.bodies.append(batch.bodies[row])
            out.times.append(batch.time)
            out.expires_at.append(batch.expires_at[row] if batch.expires_at is not None else 0)
            out.priority.append(batch.priority[row] if batch.priority is not None else 0)
        return out, missing

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
        while late and (isinstance(late[0], _Fence) or late[0].after <= lsn):
            item = late.popleft()
            if isinstance(item, _Fence):
                self._pass(item)
            else:
                self.deliver_again(item, item.chunk)
        for hooks in (self.on_commit, self.on_room if self.has_room() else None):
            if hooks:
                run, hooks[:] = hooks[:], []
                for hook in run:
                    hook()
        self._flush()

    def has_room(self) -> bool:
        """Whether publishers may be read from: the gathering commit is within its bound."""
        return self.log.pending_bytes < GATHER_LIMIT

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
            if isinstance(item, _Fence):
                self._pass(item)
            elif not _at_most_once(item):
                self.deliver_again(item, item.chunk)
        for hooks in (self.on_commit, self.on_room):  # who paused for the log need not wait for it any more
            run, hooks[:] = hooks[:], []
            for resume in run:
                resume()
        self._flush()
        self.arm()

    def forget_lost(self) -> None:
        """Take what a broken log has lost out of the queues, so that nobody is granted it."""
        lost = range(self.log.durable + 1, self.core.next_lsn)
        if len(lost):
            for queue in self.core.queues():
                queue.forget(lost)


def _at_most_once(effect: Deliver) -> bool:
    return effect.queue.settings.semantics == "at-most-once"


def _still_held(effect: Deliver, chunk: Chunk) -> Chunk:
    """What of a delayed delivery may still be sent: nothing is delivered after its lease has ended.

    What was settled when it was granted has no lease, and is sent for sure.
    """
    if effect.consumer.no_ack or _at_most_once(effect):
        return chunk
    return effect.consumer.leases.holding(chunk, effect.attempt)


def merged(a: Rows, b: Rows) -> Rows:
    """The rows of both, ascending."""
    both = Rows(
        a.lsns + b.lsns,
        a.topics + b.topics,
        a.properties + b.properties,
        a.bodies + b.bodies,
        a.times + b.times,
        a.expires_at + b.expires_at,
        a.priority + b.priority,
    )
    return select_rows(both, sorted(range(len(both)), key=both.lsns.__getitem__))


def select_rows(rows: Rows, places: Sequence[int]) -> Rows:
    """The rows at these places, in this order."""
    return Rows(
        [rows.lsns[i] for i in places],
        [rows.topics[i] for i in places],
        [rows.properties[i] for i in places],
        [rows.bodies[i] for i in places],
        [rows.times[i] for i in places],
        [rows.expires_at[i] for i in places],
        [rows.priority[i] for i in places],
    )
