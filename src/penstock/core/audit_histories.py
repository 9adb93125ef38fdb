"""The audit of one queue: each message's own history, checked for thousands of messages at once; and the verdict.

A record's LSN pair names the messages of its queue that live between its ends, and both ends name one that does.  So
pairs become events (message, record, what), events sorted by message become histories, and every rule compares an event
with the one before it:

    ready -> leased (-> planned) -> ready | delayed | ended         delayed -> ready

Where a message may stand for a record to name it, and where it stands then, is `of` and `to` of the record's kind.
Leases end with the process, but for those a stream has planned.  What ended is named no more.

Several may make an audit together.  Each message belongs to one share, by its LSN, and its share sees everything that
happens to it.  One share sees the rest: order and times of all records, groups, publishers, policies, sinks.  Control
records concern everybody, so what several find in them is the same, and counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from penstock.core.state.lsns import Bools, Ints, expand
from penstock.records.chunks import LSN_LIMIT
from penstock.records.compute import distinct_numbers
from penstock.records.dataclass import dataclass
from penstock.records.kinds import MEANINGS, Kind, State

NONE: Ints = np.zeros(0, dtype=np.int64)


READY, LEASED, PLANNED, DELAYED, PAST, TRIED = range(6)
"""Places; PAST is scheduled for a time that was over when it was published: it needs no DUE.  TRIED has been granted
before the base of a log, which does not say whether it was leased then."""

_STATES: Sequence[tuple[State, ...]] = (
    ("ready",), ("leased",), ("planned",), ("delayed",), ("ready", "delayed"), ("ready", "leased"),
)  # fmt: skip
"""What the table of kinds calls each place."""

_ACTS = {kind: meaning for kind, meaning in MEANINGS.items() if meaning.to is not None}
_AFTER = np.full(128, READY, dtype=np.int64)  # by kind
_ENDS, _REFUSED = np.zeros(128, dtype=np.bool_), np.zeros((128, len(_STATES)), dtype=np.bool_)
_ENDS[Kind.BOOT] = True  # of a transient message
for _kind, _act in _ACTS.items():
    _ENDS[_kind] = _act.to == "gone"
    _AFTER[_kind] = next((place for place, states in enumerate(_STATES) if _act.to in states), READY)
    _REFUSED[_kind] = [bool(_act.of) and not {*_act.of}.intersection(states) for states in _STATES]

_DONE = {int(kind): act.word for kind, act in _ACTS.items()} | {int(Kind.BOOT): "ended with the process"}
ENDED = (*(word for kind, word in _DONE.items() if _ENDS[kind]), "deleted with the queue")
"""Names in `counts` of all the ways to end."""

Find: TypeAlias = "Callable[[str, Ints, str], None]"
"""(guarantee, LSNs, sentence): report a broken promise."""


class Events(NamedTuple):
    """What records do to messages, a row each.  Of pairs first, then of single messages."""

    a: Ints  # the pair, or the message's number in the queue and whether it is an end of its pair
    b: Ints
    order: Ints  # LSN of the record
    op: Ints  # its kind; BOOT for a transient message's
    value: Ints  # attempt of a grant, end of a delay
    time: Ints  # of the record

    def where(self, chosen: Bools | Ints) -> Events:
        return Events(*(column[chosen] for column in self))

    @staticmethod
    def joined(parts: list[Events]) -> Events:
        return Events(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@dataclass(slots=True)
class AuditedQueue:
    """One queue and its living messages, ascending."""

    id: int
    name: str
    durable: bool
    exclusive: bool
    once: list[tuple[int, bool]]  # (from this LSN on, whether at-most-once)
    low: int  # messages with LSNs in [low, high) are looked at here, others elsewhere
    high: int
    ended: int = 0  # LSN of the record that ended it; 0: it lives
    lsns: Ints = field(default_factory=lambda: NONE)
    attempts: Ints = field(default_factory=lambda: NONE)
    state: Ints = field(default_factory=lambda: NONE)
    until: Ints = field(default_factory=lambda: NONE)  # of what is delayed
    transient: Ints = field(default_factory=lambda: NONE)  # 0 or 1
    counts: Counter[str] = field(default_factory=Counter[str])
    owned: list[tuple[int, int, int, int]] = field(
        default_factory=list[tuple[int, int, int, int]]
    )  # (LSN of the record, LSNs [a, b), site that may lease them, 0: this one), in order
    events: list[Events] = field(default_factory=list[Events])  # of this window

    @property
    def title(self) -> str:
        return f"queue '{self.name}'"

    def take(self, lsns: Ints, attempts: Ints, state: Ints, until: Ints, transient: Ints) -> None:
        """Messages that arrived, newer than all before."""
        self.counts["taken"] += len(lsns)
        self.lsns = np.concatenate((self.lsns, lsns))
        self.attempts = np.concatenate((self.attempts, attempts))
        self.state = np.concatenate((self.state, state))
        self.until = np.concatenate((self.until, until))
        self.transient = np.concatenate((self.transient, transient))

    def take_older(self, lsns: Ints, state: Ints, until: Ints) -> None:
        """Messages that came although newer ones are here."""
        nothing = np.zeros(len(lsns), dtype=np.int64)
        self.take(lsns, nothing, state, until, nothing)
        self._pick(np.argsort(self.lsns, kind="stable"))

    def _pick(self, these: Ints | Bools) -> None:
        self.lsns, self.attempts, self.state = self.lsns[these], self.attempts[these], self.state[these]
        self.until, self.transient = self.until[these], self.transient[these]

    def close(self, boots: Ints, find: Find) -> None:
        """Bring the window's events to the messages.  `boots`: LSNs of the window's BOOT records."""
        size = len(self.lsns)
        gone = np.zeros(size, dtype=np.bool_)
        runs = np.zeros(size, dtype=np.int64)  # how many boots each message's last event has seen
        events = self._expand(boots, find)
        if len(events.a):
            self._histories(self._living(events, find), boots, gone, runs, find)
        self.state[_may_be_leased(self.state) & (runs < len(boots))] = READY
        if self.ended:
            self.counts["deleted with the queue"] += size - int(gone.sum())
            gone[:] = True
        if gone.any():
            self._pick(~gone)
            if self.owned:
                lowest = int(self.lsns[0]) if len(self.lsns) else LSN_LIMIT
                self.owned = [one for one in self.owned if one[2] > lowest]

    def _expand(self, boots: Ints, find: Find) -> Events:
        """The window's events on single messages, sorted by message and record."""
        parts = [Events(NONE, NONE, NONE, NONE, NONE, NONE)]
        if self.events:
            pairs = Events.joined(self.events)
            self.events.clear()
            if self.ended and (late := pairs.order > self.ended).any():
                find("ends once", pairs.order[late], f"records speak of {self.title} after its end at {self.ended}")
                pairs = pairs.where(~late)
            parts.append(self._spread(pairs, find))
        if len(boots) and self.transient.any():
            mortal = np.flatnonzero(self.transient)
            boot = np.searchsorted(boots, self.lsns[mortal])
            mortal, boot = mortal[boot < len(boots)], boot[boot < len(boots)]
            zeros = np.zeros(len(mortal), dtype=np.int64)
            parts.append(Events(mortal, zeros, boots[boot], zeros + int(Kind.BOOT), zeros, zeros))
        events = Events.joined(parts)
        return events.where(np.lexsort((events.order, events.a)))

    def _spread(self, pairs: Events, find: Find) -> Events:
        """Pairs as their single messages."""
        starts, ends = np.searchsorted(self.lsns, pairs.a), np.searchsorted(self.lsns, pairs.b)
        known = np.append(self.lsns, -1)
        begins = (pairs.a >= self.low) & (pairs.a < self.high)  # else that end is looked at elsewhere
        stops = (pairs.b > self.low) & (pairs.b <= self.high)
        empty = ends <= starts
        wrong = (begins & (empty | (known[starts] != pairs.a))) | (
            stops & (empty | (known[np.maximum(ends, 1) - 1] != pairs.b - 1))
        )
        early = pairs.b > pairs.order
        for bad, why in ((early, "before they came"), (wrong & ~early, "that are not in it, or ended before")):
            if bad.any():
                lsns = np.concatenate((pairs.a[bad], pairs.b[bad] - 1, pairs.order[bad]))
                find("ends once", lsns, f"records of {self.title} name messages {why}")
        begins &= known[starts] == pairs.a
        stops &= known[np.maximum(ends, 1) - 1] == pairs.b - 1
        fine = (ends > starts) & ~early
        first, last = np.where(begins, starts, -1)[fine], np.where(stops, ends - 1, -1)[fine]
        starts, ends = starts[fine], ends[fine]
        lengths = ends - starts
        message = expand(starts, ends)
        edge = (message == np.repeat(first, lengths)) | (message == np.repeat(last, lengths))
        order, op, value, time = (np.repeat(column[fine], lengths) for column in pairs[2:])
        return Events(message, edge.astype(np.int64), order, op, value, time)

    def _living(self, events: Events, find: Find) -> Events:
        """The events up to the end of each message; what names one by itself after that is reported."""
        ends = _ENDS[events.op]
        ended = so_far(ends, firsts(events.a)) - ends > 0
        named = ended & (events.b > 0)
        for op in distinct_numbers(events.op[named]).tolist():
            late = events.where(named & (events.op == op))
            lsns = np.concatenate((self.lsns[late.a], late.order))
            find("ends once", lsns, f"{self.title}: messages were {_DONE[op]} after their end")
        return events.where(~ended)

    def _histories(self, events: Events, boots: Ints, gone: Bools, runs: Ints, find: Find) -> None:
        message, _, order, op, value, time = events
        first = firsts(message)
        after = np.where((_AFTER[op] == READY) & (value > 0), DELAYED, _AFTER[op])
        run = np.searchsorted(boots, order)
        # what was so just before each event
        state, since, until = np.roll(after, 1), np.roll(run, 1), np.roll(value, 1)
        state[first], since[first], until[first] = self.state[message[first]], 0, self.until[message[first]]
        state[_may_be_leased(state) & (run > since)] = READY
        grant, due = _AFTER[op] == LEASED, op == Kind.DUE
        tries = so_far(grant, first)

        def check(guarantee: str, bad: Bools, what: str) -> None:
            if bad.any():
                find(guarantee, np.concatenate((self.lsns[message[bad]], order[bad])), f"{self.title}: {what}")

        refused = _REFUSED[op, state]
        for kind, place in sorted({*zip(op[refused].tolist(), state[refused].tolist(), strict=True)}):
            bad, number = refused & (op == kind) & (state == place), int(place)
            stood: State = _STATES[number][0]
            check(_broken(Kind(kind), stood), bad, f"messages were {_DONE[kind]} while they were {stood}")
        leap = grant & (value != self.attempts[message] + tries)
        check("attempts", leap, "a grant's attempt is not the one before plus 1")
        if self.owned:
            check("one owner", grant & self._foreign(message, order), "messages were granted that another site owns")
        check("at most once", grant & self._once(order), "messages were leased, but the queue sends at most once")
        check("delays", due & (state == DELAYED) & (time < until), "messages became due before their time")

        last = np.append(first[1:], len(message)) - 1
        touched = message[last]
        gone[touched] = _ENDS[op[last]]
        runs[touched] = run[last]
        self.state[touched] = after[last]
        self.until[touched] = np.where(after[last] == DELAYED, value[last], 0)
        self.attempts[touched] += tries[last]
        for number, count in enumerate(np.bincount(op).tolist()):
            if count:
                self.counts[_DONE[number]] += count

    def _foreign(self, message: Ints, order: Ints) -> Bools:
        """Whether another site owned each of these messages when the record of the event was written."""
        lsns, out = self.lsns[message], np.zeros(len(message), dtype=np.bool_)
        for told, low, high, owner in self.owned:
            out[(lsns >= low) & (lsns < high) & (order > told)] = owner > 0
        return out

    def _once(self, order: Ints) -> Bools:
        """Whether the queue was at-most-once when each record was written."""
        place = np.searchsorted(np.array([lsn for lsn, _ in self.once]), order, side="right") - 1
        return np.array([once for _, once in self.once], dtype=np.bool_)[np.maximum(place, 0)]


def _may_be_leased(state: Ints) -> Bools:
    held: Bools = (state == LEASED) | (state == TRIED)
    return held


def _broken(kind: Kind, stood: State) -> str:
    """The guarantee that an act breaks on messages that stand where it may not find them."""
    if kind is Kind.PLAN:
        return "stream batches"
    return "one holder" if {"leased", "planned"}.intersection((stood, *_ACTS[kind].of)) else "delays"


def firsts(sorted_values: Ints) -> Ints:
    """Where each run of equal values begins."""
    if not len(sorted_values):
        return NONE
    return np.concatenate((np.zeros(1, dtype=np.int64), np.flatnonzero(np.diff(sorted_values)) + 1))


def so_far(flags: Bools, first: Ints) -> Ints:
    """How many flags each run has had, the present one included."""
    total = np.cumsum(flags, dtype=np.int64)
    if not len(first):
        return total
    lengths = np.diff(np.append(first, len(flags)))
    return total - np.repeat(total[first] - flags[first], lengths)


LSNS_MOST = 1000
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Share(NamedTuple):
    """Messages with LSNs in [low, high), and whether all else is this one's too."""

    low: int = _LEAST
    high: int = _MOST
    rest: bool = True

    @property
    def messages(self) -> bool:
        """Whether any message can be in it."""
        return self.low < self.high

    def own(self, lsns: Ints) -> Ints:
        """The messages of this share."""
        return lsns[(lsns >= self.low) & (lsns < self.high)]

    def cut(self, pairs: Ints) -> Ints:
        """The part of pairs, shape (n, 2), that is in it."""
        return np.clip(pairs, self.low, self.high)


WHOLE = Share()
REST = Share(0, 0)
"""Everything but the messages."""


def shares(borders: Sequence[int]) -> list[Share]:
    """The shares between these ascending borders, and last the one of everything but messages."""
    edges = [_LEAST, *borders, _MOST]
    return [*(Share(a, b, False) for a, b in pairwise(edges)), REST]


@dataclass(slots=True)
class Finding:
    """One broken promise; `lsns` are the messages and records that show it, 1,000 at most."""

    guarantee: str
    lsns: list[int]
    text: str


@dataclass(slots=True)
class Report:
    """What an audit says; no findings is good."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    findings: list[Finding] = field(default_factory=list[Finding])


class QueuePart(NamedTuple):
    """What a share knows of a queue."""

    title: str
    ended: bool
    counts: dict[str, int]
    waiting: Ints  # messages, ascending


class Part(NamedTuple):
    """What a share has found."""

    findings: dict[tuple[str, str], list[Ints]]  # (guarantee, sentence) -> LSNs
    counts: dict[str, int]
    queues: dict[int, QueuePart]


def verdict(parts: Sequence[Part], folded: Mapping[int, Ints] | None = None) -> Report:
    """What all shares of an audit say together, in the order of their messages.

    folded: what waits in each queue as the fold of the same records has it, to be compared.
    """
    findings: dict[tuple[str, str], list[Ints]] = {}
    counts, queues = Counter[str](), dict[int, list[QueuePart]]()
    for part in parts:
        counts.update(part.counts)
        for key, lsns in part.findings.items():
            findings.setdefault(key, []).extend(lsns)
        for number, queue in part.queues.items():
            queues.setdefault(number, []).append(queue)
    waiting = dict[int, Ints]()
    for number, pieces in sorted(queues.items()):
        waiting[number] = np.concatenate([NONE, *(piece.waiting for piece in pieces)])
        its = Counter[str]()
        for piece in pieces:
            its.update(piece.counts)
        for name, count in its.items():
            counts[f"queue messages {name}"] += count
        counts["queue messages waiting"] += len(waiting[number])
        ended = sum(its[name] for name in ENDED)
        if its["taken"] != ended + len(waiting[number]):
            text = f"{pieces[0].title} took {its['taken']} messages; {ended} ended and {len(waiting[number])} wait"
            findings.setdefault(("counts", text), []).append(np.array([number]))
    if folded is not None:
        _compare(queues, waiting, folded, findings)
    found = [
        Finding(guarantee, distinct_numbers(np.concatenate(lsns))[:LSNS_MOST].tolist(), text)
        for (guarantee, text), lsns in findings.items()
    ]
    return Report(dict(sorted(counts.items())), found)


def _compare(
    queues: Mapping[int, Sequence[QueuePart]],
    waiting: Mapping[int, Ints],
    folded: Mapping[int, Ints],
    findings: dict[tuple[str, str], list[Ints]],
) -> None:
    def find(lsns: Ints, text: str) -> None:
        findings.setdefault(("counts", text), []).append(distinct_numbers(lsns)[:LSNS_MOST])

    living = {number for number, pieces in queues.items() if not pieces[0].ended}
    for number in sorted(living ^ set(folded)):
        find(np.array([number]), "the fold knows other queues than the records tell of")
    for number in sorted(living & set(folded)):
        here, there = waiting[number], folded[number]
        if not np.array_equal(there, here):
            text = f"{queues[number][0].title}: the fold finds {len(there)} messages waiting, the records {len(here)}"
            find(np.setxor1d(there, here, assume_unique=True), text)
