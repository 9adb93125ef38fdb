"""Limits and rings message by message, with nothing clever in it, against the queue: walks as `queue_walk` has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from penstock.core.sizes import Sizes
from penstock.records.queue_settings import MODES, QueueSettings
from property import test_ordered_queue_model, test_queue_model, whole_machine
from property.queue_model import Message, Worker
from property.queue_walk import Walk
from property.test_ordered_queue_model import RankedQueue
from property.whole_machine import WholeMachine, WholeModel

NO_RING = 1 << 60

REFUSING = tuple(word for word, mode in MODES.items() if mode.rejects)


def size_of(lsn: int) -> int:
    """Bytes of the body of a message."""
    return lsn * 7919 % 5


class ByNumber(Sizes):
    """Sizes that follow from the LSN."""

    def total(self, chunk: Any) -> int:
        return sum(map(size_of, chunk))

    def of(self, chunk: Any) -> Any:
        return np.array([size_of(lsn) for lsn in chunk], dtype=np.int64)


class LimitedQueue(RankedQueue):
    __slots__ = ()

    def __init__(self, *what: Any, **rest: Any) -> None:
        super().__init__(*what, sizes=ByNumber(), **rest)


class LimitedModel(WholeModel):
    """Drop-head and rings, one message at a time."""

    arriving = False

    def __init__(self, settings: QueueSettings) -> None:
        super().__init__(settings)
        self.back = list[Message]()  # they return in this command

    # -- what gives way

    def ring(self) -> int:
        return self.settings.ring_size if self.settings.ring_size >= 0 else NO_RING

    def over(self) -> bool:
        s, ready = self.settings, self.ready()
        if not MODES[s.overflow].drops_head:
            return False
        if s.max_length is not None and len(ready) > s.max_length:
            return True
        return s.max_length_bytes is not None and sum(size_of(m.lsn) for m in ready) > s.max_length_bytes

    def first_to_yield(self) -> Message:
        """The oldest of those that would be served last."""
        ready = self.ready()
        lowest = max(self.rank(m) for m in ready)
        return next(m for m in ready if self.rank(m) == lowest)

    def trim(self) -> None:
        while not self.halted() and self.over():
            self.drop(self.first_to_yield(), "maxlen")

    def replaced(self, m: Message) -> None:
        del self.messages[m.lsn]
        self.expired.append((m.lsn, "replaced"))

    # -- arrival, return, time

    def arrive(self, now: int, lsn: int, *rest: Any) -> None:
        self.arriving = True
        super().arrive(now, lsn, *rest)
        self.overdue(now)
        self.arriving = False
        m = self.messages.get(lsn)
        if m is not None and m.state == "ready" and len(self.ready()) > self.ring() and not self.halted():
            self.replaced(self.first_to_yield())
        self.trim()

    def give_back(self, now: int, m: Message, **how: Any) -> None:
        super().give_back(now, m, **how)
        if self.messages.get(m.lsn) is m and m.state == "ready":
            self.back.append(m)

    def land(self) -> None:
        """What returned takes its place, the newest first, as far as a ring has room."""
        back = list({m.lsn: m for m in self.back if self.messages.get(m.lsn) is m and m.state == "ready"}.values())
        self.back = []
        room = self.ring() - (len(self.ready()) - len(back))
        for m in sorted(back, key=lambda m: m.place, reverse=True):
            if room <= 0:
                self.replaced(m)
            room -= 1

    def dispatch(self, now: int) -> None:
        if not self.arriving:
            self.land()
            self.trim()
        super().dispatch(now)

    def unsubscribe(self, now: int, w: Worker, requeue: bool, lost: bool) -> None:
        w.closed = True
        if requeue:
            held, w.held, slots, w.slots = w.held, [], w.slots, []
            oldest = held[0] if held and not slots else None
            for lsn in [
                *(lsn for lsn in held if lsn != oldest or not lost),
                -1,
                *([oldest] if lost and oldest else []),
            ]:
                if lsn == -1:
                    self.land()
                else:
                    self.give_back(now, self.messages[lsn], failed=lost and lsn == oldest, by=w)
        self.dispatch(now)

    def restart(self, now: int) -> None:
        for m in self.messages.values():
            if m.place[0] == m.lsn - 0.25:  # it was due, and stands like any other of its level now
                m.place = (m.lsn, m.lsn)
        super().restart(now)

    def tick(self, now: int) -> None:
        if 0 < self.paused_until <= now:
            self.paused_until = 0
        timeout = self.settings.consumer_timeout
        self.end(now, lambda m: bool(timeout) and m.granted + timeout <= now)
        self.end(now, lambda m: 0 < m.lease_end <= now)
        due = sorted(
            (m for m in self.messages.values() if m.state == "delayed" and m.due <= now), key=lambda m: (m.due, m.lsn)
        )
        for m in due:
            if not m.scheduled:
                m.state, m.known = "ready", set()
                self.back.append(m)
        self.land()
        self.overdue(now)
        self.trim()
        ring = self.ring() < NO_RING
        for m in [m for m in due if m.scheduled][:: -1 if ring else 1]:
            if self.messages.get(m.lsn) is not m:
                continue
            m.state, m.known, m.scheduled = "ready", set(), False
            self.came_due += 1
            m.place = (self.newest + 0.5, self.came_due)
            if ring:
                m.place = (-self.came_due, 0) if self.settings.rank_text is None else (m.lsn - 0.25, 0)
                if len(self.ready()) > self.ring():
                    self.replaced(m)
        self.arriving = True
        self.dispatch(now)
        self.arriving = False
        self.trim()
        self.dispatch(now)  # of a key the next may go where one gave way

    def end(self, now: int, over: Callable[[Message], bool]) -> None:
        """Leases end."""
        for w in self.workers:
            for lsn in list(w.held):
                if over(self.messages[lsn]):
                    self.let_end(now, w, lsn)
            self.land()


class LimitedMachine(WholeMachine):
    """A queue with limits."""

    def start(self, *what: Any) -> None:  # type: ignore[override]
        changes = [
            (whole_machine, "RankedQueue", LimitedQueue), (test_ordered_queue_model, "RankedQueue", LimitedQueue),
            (whole_machine, "WholeModel", LimitedModel), (test_queue_model, "Queue", LimitedQueue),
        ]  # fmt: skip
        for module, name, value in changes:
            change = patch.object(module, name, value)
            change.start()
            self.changes.append(change)
        super().start(*what)

    def same_bytes(self) -> None:
        """Its queue is weighed by the numbers of messages: `check` recounts it."""


class LimitedWalk(Walk):
    """One walk on a queue with limits."""

    KINDS = ("none", "none", "none", "/a", "/b")

    MACHINE = LimitedMachine
    IN_STEPS = ()  # what comes back is offered before anything gives way
    SINGLY = True

    def limits(self) -> dict[str, Any]:
        dice = self.dice
        few = (None, None, 0, 1, 2, 3, 5, 8)
        return {
            "max_length": dice.choice(few),
            "max_length_bytes": dice.choice((None, None, 0, 3, 6, 12)),
            "overflow": dice.choice(("drop-head", "drop-head", "drop-head", dice.choice(REFUSING))),
            "ring_size": dice.choice((-1, -1, 0, 1, 2, 3, 5)),
        }

    def settings(self, settings: QueueSettings) -> QueueSettings:
        return replace(settings, last_value_key=None, **self.limits())

    def seldom(self) -> None:
        if self.dice.random() < 0.3:
            self.machine.change(**self.limits())
        else:
            super().seldom()
