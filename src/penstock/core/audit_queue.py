"""The audit of one queue: each message's own history, checked for thousands of messages at once.

A record's LSN pair names the messages of its queue that live between its ends; both ends name one that does.  So pairs
become events (message, record, what), events sorted by message become histories, and every rule compares an event with
the one before it:

    ready -> leased (-> planned) -> ready | delayed | ended         delayed -> ready

Leases end with the process, but for those a stream has planned.  What ended is named no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from penstock.core.columns import NONE, spans
from penstock.core.state import Ints


class Op(IntEnum):
    """What a record does to a message; from SETTLE on it ends."""

    GRANT = 0
    RETURN = 1
    DUE = 2
    PLAN = 3
    SETTLE = 4
    EXPIRE = 5
    DROP = 6
    PURGE = 7
    END = 8  # a transient message at the start of the next process


READY, LEASED, PLANNED, DELAYED, PAST = range(5)  # PAST: scheduled for a time that was over; needs no DUE
_AFTER = np.array([LEASED, READY, READY, PLANNED, READY, READY, READY, READY, READY], dtype=np.int8)
ENDED = {Op.SETTLE: "settled", Op.EXPIRE: "expired", Op.DROP: "dropped", Op.PURGE: "purged", Op.END: "ended with the process"}

Find = Callable[[str, "Ints", str], None]
"""(guarantee, LSNs, sentence): report a broken promise."""


class Events(NamedTuple):
    """Pairs with the record that names them; `value`: the attempt of a grant, the end of a delay."""

    a: Ints
    b: Ints
    order: Ints  # LSN of the record
    op: Ints
    value: Ints
    time: Ints  # of the record


@dataclass(slots=True)
class Window:
    """What the audit looks at in one go."""

    first: int
    last: int
    boots: Ints


@dataclass(slots=True)
class AuditedQueue:
    """One queue and its living messages."""

    id: int
    name: str
    durable: bool
    exclusive: bool
    once: list[tuple[int, bool]]  # (from this LSN on, whether at-most-once)
    ended: int = 0  # LSN of the record that ended it; 0: it lives
    lsns: Ints = field(default_factory=lambda: NONE)
    attempts: Ints = field(default_factory=lambda: NONE)
    state: Ints = field(default_factory=lambda: NONE)
    until: Ints = field(default_factory=lambda: NONE)  # of what is delayed
    transient: Ints = field(default_factory=lambda: NONE)  # 0 or 1
    counts: Counter[str] = field(default_factory=Counter[str])
    events: list[Events] = field(default_factory=list[Events])  # of this window

    @property
    def title(self) -> str:
        """For sentences."""
        return f"queue '{self.name}'"

    def take(self, lsns: Ints, attempts: Ints, state: Ints, until: Ints, transient: Ints) -> None:
        """Messages that arrived, newer than all before."""
        self.counts["taken"] += len(lsns)
        self.lsns = np.concatenate((self.lsns, lsns))
        self.attempts = np.concatenate((self.attempts, attempts))
        self.state = np.concatenate((self.state, state))
        self.until = np.concatenate((self.until, until))
        self.transient = np.concatenate((self.transient, transient))

    def close(self, window: Window, find: Find) -> None:
        """Bring the window's events to the messages."""
        if self.events:
            joined = Events(*(np.concatenate(columns) for columns in zip(*self.events, strict=True)))
            self.events.clear()
            if self.ended:
                late = joined.order > self.ended
                if late.any():
                    find("ends once", joined.order[late], f"records speak of {self.title} after its end at {self.ended}")
                    joined = Events(*(column[~late] for column in joined))
        else:
            joined = None
        gone = np.zeros(len(self.lsns), dtype=bool)
        last_run = np.zeros(len(self.lsns), dtype=np.int64)
        expanded = self._expand(joined, window, find)
        if expanded is not None:
            self._histories(*expanded, window, gone, last_run, find)
        if len(window.boots):
            lost = (self.state == LEASED) & (last_run < len(window.boots))
            self.state[lost] = READY
        if self.ended:
            self.counts["deleted with the queue"] += len(gone) - int(gone.sum())
            gone[:] = True
        if gone.any():
            kept = ~gone
            self.lsns, self.attempts, self.state, self.until, self.transient = (
                column[kept] for column in (self.lsns, self.attempts, self.state, self.until, self.transient)
            )

    def _expand(
        self, events: Events | None, window: Window, find: Find
    ) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints] | None:
        """(message, order, op, value, time, is an end of its pair) of each event on each message."""
        parts: list[tuple[Ints, ...]] = []
        if events is not None and len(events.a):
            starts = np.searchsorted(self.lsns, events.a)
            ends = np.searchsorted(self.lsns, events.b)
            known = np.append(self.lsns, -1)
            wrong = (ends <= starts) | (known[starts] != events.a) | (known[np.maximum(ends, 1) - 1] != events.b - 1)
            early = events.b > events.order
            for bad, why in ((early, "before they were published"), (wrong & ~early, "that are not in it, or ended before")):
                if bad.any():
                    lsns = np.stack((events.a[bad], events.b[bad] - 1, events.order[bad]), axis=1)
                    find("ends once", np.unique(lsns), f"records of {self.title} name messages {why}")
            fine = (ends > starts) & ~early
            starts, ends = starts[fine], ends[fine]
            where = spans(starts, ends)
            lengths = ends - starts
            columns = [np.repeat(column[fine], lengths) for column in events[2:]]
            edge = (where == np.repeat(starts, lengths)) | (where == np.repeat(ends - 1, lengths))
            parts.append((where, *columns, edge.astype(np.int64)))
        if len(window.boots) and self.transient.any():
            where = np.flatnonzero(self.transient)
            at = np.searchsorted(window.boots, self.lsns[where])
            where = where[at < len(window.boots)]
            boots = window.boots[at[at < len(window.boots)]]
            same = np.zeros(len(where), dtype=np.int64)
            parts.append((where, boots, same + int(Op.END), same, same, same))
        if not parts:
            return None
        where, order, op, value, time, edge = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        sequence = np.lexsort((order, where))
        return where[sequence], order[sequence], op[sequence], value[sequence], time[sequence], edge[sequence]

    def _histories(
        self, where: Ints, order: Ints, op: Ints, value: Ints, time: Ints, edge: Ints,
        window: Window, gone: Ints, last_run: Ints, find: Find,
    ) -> None:  # fmt: skip
        if not len(where):
            return
        ends = op >= Op.SETTLE
        first = _firsts(where)
        before = _so_far(ends, first) - ends
        again = (before > 0) & (edge > 0)
        for kind in np.unique(op[again]).tolist():
            mine = again & (op == kind)
            what = "granted" if kind == Op.GRANT else "settled or removed" if kind >= Op.SETTLE else "returned, due or planned"
            find("ends once", np.unique(np.concatenate((self.lsns[where[mine]], order[mine]))), f"{self.title}: messages were {what} after their end")  # fmt: skip
        alive = before == 0
        where, order, op, value, time, ends = (column[alive] for column in (where, order, op, value, time, ends))
        first = _firsts(where)
        after = _AFTER[op].astype(np.int64)
        after[(op == Op.RETURN) & (value > 0)] = DELAYED
        run = np.searchsorted(window.boots, order)
        state, since, until = (np.empty(len(where), dtype=np.int64) for _ in range(3))
        state[1:], since[1:], until[1:] = after[:-1], run[:-1], value[:-1]
        state[first], since[first], until[first] = self.state[where[first]], 0, self.until[where[first]]
        state[(state == LEASED) & (run > since)] = READY
        held = (state == LEASED) | (state == PLANNED)

        def check(guarantee: str, bad: Ints, what: str) -> None:
            if bad.any():
                lsns = np.unique(np.concatenate((self.lsns[where[bad]], order[bad])))
                find(guarantee, lsns, f"{self.title}: {what}")

        grant = op == Op.GRANT
        check("one holder", grant & held, "messages were granted while somebody held them")
        check("delays", grant & (state == DELAYED), "messages were granted while they were delayed")
        expected = self.attempts[where] + _so_far(grant, first)
        check("attempts", grant & (value != expected), "the attempt of a grant is not one more than that before")
        check("at most once", grant & self._once(order), "messages were leased although the queue sends at most once")
        check("one holder", (op == Op.RETURN) & ~held, "messages came back that nobody held")
        due = op == Op.DUE
        check("delays", due & (state != DELAYED) & (state != PAST), "messages became due that were not delayed")
        check("delays", due & (state == DELAYED) & (time < until), "messages became due before their time")
        check("ends once", (op == Op.PURGE) & (held | (state == DELAYED)), "a purge took what was not ready")
        plan = op == Op.PLAN
        check("stream batches", plan & (state == PLANNED), "messages are in two batches")
        check("stream batches", plan & (state != PLANNED) & (state != LEASED), "messages were planned and not granted")

        last = np.append(first[1:], len(where)) - 1 if len(first) else first
        touched = where[last]
        gone[touched] = ends[last]
        last_run[touched] = run[last]
        self.state[touched] = after[last]
        self.until[touched] = np.where(after[last] == DELAYED, value[last], 0)
        self.attempts[touched] += _so_far(grant, first)[last]
        for kind, count in zip(*np.unique(op, return_counts=True), strict=True):
            self.counts[ENDED.get(Op(int(kind)), Op(int(kind)).name.lower())] += int(count)

    def _once(self, order: Ints) -> Ints:
        if not any(once for _, once in self.once):
            return np.zeros(len(order), dtype=bool)
        place = np.searchsorted(np.array([lsn for lsn, _ in self.once]), order, side="right") - 1
        return np.array([once for _, once in self.once])[np.maximum(place, 0)]


def _firsts(where: Ints) -> Ints:
    """Where each history begins."""
    return np.concatenate(([0], np.flatnonzero(np.diff(where)) + 1)) if len(where) else NONE


def _so_far(flags: Ints, first: Ints) -> Ints:
    """How many flags each history has had, the present one included."""
    total = np.cumsum(flags)
    if not len(first):
        return total
    lengths = np.diff(np.append(first, len(flags)))
    return total - np.repeat(total[first] - flags[first], lengths)
