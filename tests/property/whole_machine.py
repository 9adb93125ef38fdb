"""All rules of one queue in one machine: those of settling and of order together, passes over the log that find older
messages, acks that came before their message, and crashes that lose what was not yet on the disk.

A pass finds LSNs that others had: `find` is one step of it.  What the log has lost is found by nobody.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from penstock.core.effects import Purpose, Scan, Verb
from penstock.core.queue import lasting, places
from penstock.core.queue.columns import Contained
from penstock.core.queue.dispatching.consumers import TargetList
from penstock.core.queue.order.runs import packed
from penstock.core.queue.settling.deferred import Deferred
from penstock.core.queue.whole import DISPATCH
from penstock.core.sizes import Sizes
from penstock.core.state.lsns import within
from penstock.core.state.pending import TOGETHER_US, DeferredAcks, copies
from penstock.records.chunks import as_chunk
from penstock.records.entries import Control
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings
from property.queue_model import Message, Worker
from property.test_ordered_queue_model import OrderedMachine, OrderedModel, RankedQueue
from property.test_queue_model import Fold, QueueMachine
from property.test_settling_model import SettlingMachine, SettlingModel

ORIGIN = 9
NO_PAIRS = np.zeros((0, 2), dtype=np.int64)


def weight(lsn: int) -> int:
    """Bytes that the message of an LSN is said to have."""
    return lsn * lsn % 13 if lsn % 5 else 7


class WholeModel(OrderedModel, SettlingModel):
    """Barriers, priorities, target depth, subscriptions as one; passes and deferred acks."""

    passing = False

    def __init__(self, settings: QueueSettings) -> None:
        super().__init__(settings)
        self.deferred = list[tuple[set[int], str, str, int]]()  # LSNs, verb, by, until

    @property
    def waits(self) -> bool:
        """Whether nothing goes out before a pass is over."""
        settings = self.settings
        ordered = settings.barrier_expression is not None or settings.rank_text is not None
        return self.passing and (ordered or bool(settings.target_queue_depth))

    def dispatch(self, now: int) -> None:
        self.attend(now)
        if self.held_back or self.halted():
            return
        if self.waits:  # nothing goes out, but what has left makes room among the active
            while self.activate():
                pass
            return
        while self.dispatch_one(now) or self.activate() or self.release():
            pass

    def pull(self, now: int, w: Worker, count: int) -> int:
        return 0 if self.waits else super().pull(now, w, count)

    def purge(self) -> int:
        found = [m for m in self.messages.values() if m.state == "found"]
        for m in found:
            del self.messages[m.lsn]
        return len(found) + super().purge()

    # -- passes

    def find(self, now: int, found: list[Message]) -> None:
        """A step of a pass brings these."""
        for m in found:
            if m.state == "ready" and self.waits:
                m.state = "found"
            self.messages[m.lsn] = m
        lsns = {m.lsn for m in found}
        for entry in list(self.deferred):
            both = entry[0] & lsns
            if both:
                self.settle(now, sorted(both), entry[1], None, entry[2], None)
                entry[0].difference_update(both)
        self.deferred = [entry for entry in self.deferred if entry[0]]

    def pass_ends(self, now: int) -> None:
        waited, self.passing = self.waits, False
        if waited:
            for m in self.messages.values():
                if m.state in ("found", "inactive"):
                    m.state = "ready"
                if m.state == "ready" and not m.barrier:
                    m.known = set()
            self.draw()
        self.dispatch(now)

    def draw(self) -> None:
        """Which of what was never delivered is active."""
        depth = self.settings.target_queue_depth
        if depth:
            never = [m for m in self.waiting() if not m.deliveries and m.place[0] == m.lsn]
            for m in never[max(depth - self.active() + len(never), 0) :]:
                m.state = "inactive"

    def restart(self, now: int) -> None:
        for m in self.messages.values():
            if m.state == "found":
                m.state = "ready"
        super().restart(now)

    # -- deferred acks

    def defer(self, lsns: set[int], verb: str, by: str, until: int) -> None:
        """What the same one says within a minute ends with the last of it."""
        for place, (known, *said, end) in enumerate(self.deferred):
            if said == [verb, by] and end // TOGETHER_US == until // TOGETHER_US:
                self.deferred[place] = known | lsns, verb, by, max(end, until)
                return
        self.deferred.append((lsns, verb, by, until))

    def forget(self, now: int) -> None:
        self.deferred = [entry for entry in self.deferred if entry[3] > now]


class WholeFold(Fold):
    """It leaves out what is about messages that are not there."""

    def __init__(self) -> None:
        super().__init__()
        self.records = set[int]()  # the LSNs of all

    def feed(self, record: Control) -> None:
        self.records.add(record.lsn)
        if record.kind not in (Kind.DEFER, Kind.UNDEFER):
            super().feed(record)


@dataclass
class Durable:
    """What was on the disk at some moment."""

    state: tuple[Any, Any]
    messages: dict[int, Message]
    fold: dict[int, dict[str, int]]
    deferred: DeferredAcks
    told: list[tuple[set[int], str, str, int]]
    settings: QueueSettings
    fenced: bool
    offered: set[int]
    passing: list[list[int]] | None
    redelivered_below: int
    next_lsn: int
    paused: int


class WholeMachine(OrderedMachine, SettlingMachine):
    """Kinds: a priority expression, `depth`, `fenced` or `none`."""

    model: WholeModel  # type: ignore[assignment]
    fold: WholeFold

    def start(  # type: ignore[override]
        self, settings: QueueSettings, steps: int, plain: bool, tiny: bool, most: int, kind: str, depth: int,
        stretch: int,
    ) -> None:  # fmt: skip
        self.stretch = stretch
        self.answered = set[TargetList]()  # those whose first walk is over
        super().start(settings, steps, plain, tiny, most, "none" if kind == "fenced" else kind, depth)
        self.kind = kind
        self.fold = WholeFold()
        self.fenced = kind == "fenced"
        settings = self.queue.settings
        if self.fenced:
            self.most = most  # filters may be bounded
            settings = replace(settings, barrier_expression="/barrier = 1")
            self.queue = RankedQueue(1, "/", "q", settings)
            self.queue.dispatch_most = self.steps
            self.queue.ensure_targets().most = self.most
        self.model = WholeModel(settings)
        self.connect()
        self.sizes = Sizes()
        self.weighed = set[int]()
        self.deferred = Deferred()
        self.offered = set[int]()  # LSNs of others that a pass has found, or that the log has lost
        self.passing: list[list[int]] | None = None  # steps of the pass that are left
        self.remember()

    def scan(self, effect: Scan) -> None:
        if effect.token.purpose is Purpose.SWEEP:
            SettlingMachine.scan(self, effect)
        elif effect.token.purpose is Purpose.BARRIER:
            self.look_at_barrier(effect)
        else:
            look = self.queue.targets.asked.get(effect.token.serial)
            whole = self.queue.ranks is None or self.clock % len(effect.chunk) == len(effect.chunk) - 1
            if look is not None and whole and not look.recheck:
                self.answered.update(look.lists)
            super().scan(effect)

    def connect(self) -> None:
        super().connect()
        queue = self.queue

        def looking() -> bool:
            under_way = queue.targets.asked.values()
            return any(look.recheck or not self.answered.issuperset(look.lists) for look in under_way)

        self.model.looking = looking

    def before(self) -> None:
        self.forget()
        super().before()

    def forget(self) -> None:
        """Deferred acks whose time is over; and what becomes due now stands behind every LSN there was."""
        self.model.newest = self.sink.next_lsn - 1
        self.model.forget(self.clock)
        if self.deferred.due <= self.clock:
            for _ in self.deferred.overdue(self.now):
                self.deferred.expire(self.now, self.queue, self.sink)

    def tick(self) -> None:
        """The queue does what is due, as before a command."""
        if self.queue.is_due(self.now):
            self.queue.tick(self.now, self.sink)

    # -- passes

    def strangers(self) -> list[int]:
        """LSNs that others had, as far as no pass has found them."""
        known = {*self.bodies, *self.offered, *self.fold.records}
        return [lsn for lsn in range(100, self.sink.next_lsn) if lsn not in known]

    def begin_pass(self, sizes: list[int]) -> None:
        """A pass over the log: each step finds so many of the LSNs that others had, the oldest first."""
        if self.passing is not None:
            return
        free = self.strangers()
        self.before()
        self.tick()
        self.passing = []
        for size in sizes:
            self.passing.append(free[:size])
            free = free[size:]
        self.model.passing = True
        if lasting.waits(self.queue):
            self.queue.older = lasting.Older()
        self.after()

    def find(self, bodies: list[int], expiry: int, delay: int, barrier: bool) -> None:
        """One step of the pass; after the last it is over."""
        if self.passing is None:
            return
        self.before()
        queue, model = self.queue, self.model
        self.tick()
        while self.steps < 100 and queue.is_due(self.now):
            queue.tick(self.now, self.sink)
        lsns = self.passing.pop(0) if self.passing else []
        if lsns:
            self.written()  # before: what ends as a range ends nothing in there that is found later
            self.offered.update(lsns)
            ends = np.array([self.clock + expiry * (1 + n) if expiry else 0 for n in range(len(lsns))], dtype=np.int64)
            later = np.array([self.clock + delay if delay and n % 2 else 0 for n in range(len(lsns))], dtype=np.int64)
            fences = [lsn for n, lsn in enumerate(lsns) if barrier and self.fenced and n % 3 == 0]
            found = list[Message]()
            for n, lsn in enumerate(lsns):
                self.bodies[lsn] = bytes([bodies[n % len(bodies)]])
                self.fold.arrived(lsn, int(later[n]))
                self.fold.waiting[lsn]["barrier"] = int(lsn in fences)
                m = Message(lsn, self.bodies[lsn], (lsn, lsn), int(ends[n]), barrier=lsn in fences)
                if later[n]:
                    m.state, m.due, m.scheduled = "delayed", int(later[n]), True
                found.append(m)
            array = np.array(lsns, dtype=np.int64)
            if lasting.waits(queue) and queue.older is None:
                queue.older = lasting.Older()
            lasting.take_older(
                queue, array, ends if ends.any() else None, later if later.any() else None, fences
            )  # fmt: skip
            if 1 in self.deferred.by_queue:
                self.deferred.appeared(self.now, queue, ORIGIN, packed(array), packed(array), self.sink)
            model.find(self.clock, found)
        if not self.passing:
            self.passing = None
            lasting.put_in_order(queue, self.sink.last_lsn)
            model.pass_ends(self.clock)
        queue.agenda |= DISPATCH
        queue.tick(self.now, self.sink)
        model.dispatch(self.clock)
        self.after()

    # -- acks before their message

    def defer(self, count: int, verb: Verb, by: str, span: int) -> None:
        """Somebody settles what is not there yet."""
        free = self.strangers()
        self.before()
        self.tick()
        known = {lsn for entry in self.model.deferred for lsn in entry[0]}
        wanted = [lsn for lsn in free[:count] if lsn not in known]
        if wanted:
            settings = replace(self.queue.settings, deferred_ack_expiration=span)
            was, self.queue.settings = self.queue.settings, settings
            added = self.deferred.add(self.now, self.queue, ORIGIN, as_chunk(wanted), verb, by, self.sink)
            assert len(added) == len(wanted)
            self.queue.settings = was
            self.model.defer(set(wanted), verb.value, by, self.clock + span)
        self.after()

    # -- crashes

    def remember(self) -> None:
        """Everything up to now is on the disk; what is captured of it says ever after what it says now."""
        self.captured = self.queue.capture() or Contained()
        self.told = self.captured_now()
        self.durable = Durable(
            self.queue.snapshot(), deepcopy(self.model.messages), deepcopy(self.fold.waiting),
            copies(self.deferred.by_queue), deepcopy(self.model.deferred), self.queue.settings, self.fenced,
            set(self.offered), deepcopy(self.passing), self.model.redelivered_below, self.sink.next_lsn,
            self.queue.paused_until,
        )  # fmt: skip

    def crash(self, lost: int) -> None:
        """A power cut: what came after the last `remember` is gone, and so are all connections."""
        kept = self.durable
        self.offered = set(kept.offered) | set(range(kept.next_lsn, self.sink.next_lsn))
        waiting, columns = kept.state
        queue = RankedQueue(1, "/", "q", kept.settings)
        queue.load(waiting, columns)
        self.queue, self.fenced = queue, kept.fenced
        self.model.paused_until = self.fold.paused = kept.paused
        queue.stay_paused(kept.paused)
        self.model.settings = kept.settings
        self.model.messages = deepcopy(kept.messages)
        self.model.redelivered_below = kept.redelivered_below
        self.model.dying.clear()
        self.fold.waiting = deepcopy(kept.fold)
        self.deferred = Deferred(copies(kept.deferred))
        self.model.deferred = deepcopy(kept.told)
        self.passing = deepcopy(kept.passing)
        self.sizes, self.weighed = Sizes(), set[int]()  # from the log anew
        self.restart(True, True, lost)
        self.remember()

    def restart(self, unclean: bool, really: bool, lost: int = 0) -> None:  # type: ignore[override]
        """As before; a pass that was under way goes on."""
        if not really:
            return
        self.model.passing = self.passing is not None
        self.forget()
        load = RankedQueue.load

        def loaded(queue: RankedQueue, *what: Any) -> None:
            load(queue, *what)
            if self.passing is not None and lasting.waits(queue):
                queue.older = lasting.Older()

        with patch.object(RankedQueue, "load", loaded):
            super().restart(unclean, really, lost)

    # -- left out while a pass is under way

    def change_expression(self, expression: str | None, really: bool) -> None:
        if self.passing is None:
            super().change_expression(expression, really)

    def change_depth(self, depth: int, really: bool) -> None:
        if self.passing is None:
            super().change_depth(depth, really)

    def alter(self, per_subscription: int, whole: int, lease: int, fenced: bool, really: bool) -> None:
        super().alter(per_subscription, whole, lease, fenced or self.passing is not None, really)

    def change(self, **settings: Any) -> None:
        """An administrator changes some that move nothing by themselves."""
        self.before()
        changed = replace(self.queue.settings, **settings)
        self.model.settings = changed
        self.queue.alter(self.now, changed, self.sink)
        self.model.dispatch(self.clock)
        self.after()

    # -- comparison

    def captured_now(self) -> object:
        """What is captured, as it is told now: of its own, also where it lies in an arena."""
        columns = {name: list(column) for name, column in self.captured.columns().items()}
        return [list(chunk) for chunk in self.captured.waiting()], columns

    def same_state(self) -> None:
        queue, model = self.queue, self.model
        assert self.captured_now() == self.told, "what was captured has changed"
        if queue.older is None:
            if self.fenced:
                QueueMachine.same_state(self)
            else:
                super().same_state()
            return
        queue.check()
        found = sorted(lsn for chunk in queue.older.chunks for lsn in chunk)
        assert found == sorted(m.lsn for m in model.messages.values() if m.state == "found")
        self.same_places()

    def same_bytes(self) -> None:
        """What the queue says it holds weighs what the model's messages do; now and then what is gone is forgotten."""
        queue, messages = self.queue, self.model.messages.values()
        new = sorted(self.bodies.keys() - self.weighed)
        self.sizes.add_older(np.array(new, dtype=np.int64), np.array([weight(lsn) for lsn in new], dtype=np.int64))
        self.weighed.update(new)
        queue.declared = replace(queue.declared, sizes=self.sizes)
        by_state = Counter[str]()
        for m in messages:
            by_state[m.state] += weight(m.lsn)
        ready, leased, held, delayed, total = places.weighed(queue)
        assert ready == queue.ready_bytes == sum(weight(m.lsn) for m in self.model.ready())
        assert (leased, delayed) == (by_state["leased"], by_state["delayed"])
        assert held == by_state["found"] + by_state["ready"] - ready
        assert total == by_state.total()
        if len(new) % 3 == 1:
            living = sorted(m.lsn for m in messages)
            self.sizes = self.sizes.only(within(packed(np.array(living, dtype=np.int64))) if living else NO_PAIRS)
            self.weighed.intersection_update(living)  # a pass that goes on after a crash finds some anew

    def same_deferred(self) -> None:
        told = [(set(entry.lsns), entry.verb, entry.by, entry.until) for entry in self.deferred.by_queue.get(1, ())]
        assert told == self.model.deferred
