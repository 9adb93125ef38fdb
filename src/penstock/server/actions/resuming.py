"""What a crash or a stop left of actions: the triggers behind the floor are read again, and what is not done begins.

The log is read in a thread, a stretch at a time; nothing new is begun meanwhile, so the order of events is kept.
What was published, acknowledged, expired or removed is known by its record, and the publisher's name is not: it lies in
the group of the messages alone.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from penstock.core.acted import OWN, UNJUDGED
from penstock.core.state.encoding import load
from penstock.log.record_batches import cells, column, nulls
from penstock.records.causes import told
from penstock.records.chunks import as_chunk, lsns_in, unpack_pairs
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.records.kinds import Kind
from penstock.server.actions.triggers import Chosen, Event, Ledger, RemovalWatch, plain, removal_rules
from penstock.server.asking.judging import breathe

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.core.action_rules import Rule
    from penstock.log.log import Log
    from penstock.server.base.runtime import Off, Runtime

STEP_ROWS = 100_000
"""Rows that one stretch looks at, about."""

_RECORDS = (int(Kind.SETTLE), int(Kind.EXPIRE), int(Kind.SOW_DROP))


@dataclass(frozen=True, slots=True)
class Record:
    """A record that may set actions off."""

    lsn: int
    kind: Kind
    name: str
    header: bytes
    body: bytes


Found: TypeAlias = "Record | tuple[Topic, list[int]]"
"""Or messages of one topic that were published, by LSN."""


@dataclass(eq=False)
class Resuming:
    _runtime: Runtime
    _ledger: Ledger
    _removals: RemovalWatch
    _rules_of: Callable[[Topic, bool], Chosen]  # what messages of a topic set off
    _resumed: Callable[[Sequence[Event]], None]  # takes what is left to do, in order, each open
    _events: list[Event] = field(default_factory=list[Event], init=False)
    _by_name: dict[str, Rule] = field(default_factory=dict[str, "Rule"], init=False)
    off: Off | None = field(default=None, init=False)  # runs work off the loop; None: in place
    running: bool = field(default=False, init=False)

    def start(self) -> None:
        """Begin, where there is anything to look for.  What is not watched any more is forgotten."""
        runtime, ledger = self._runtime, self._ledger
        core, state = runtime.core, runtime.core.acted
        boot = core.booted
        ledger.seen = max(ledger.seen, boot)
        known = {name: state.since[name] for name in ledger.names if name in state.since}
        since = {**dict.fromkeys(ledger.names, boot), **known}
        at = state.floor + 1
        if since != state.since:
            core.acts(runtime.now(), state.floor if known else boot, since=since)
            runtime.arm()
        if not known or at >= boot:
            return
        rules = core.rules
        some = [rule for _, _, _, rule in rules.publish], [rule for _, rule in rules.oof], *rules.delete.values()
        expiring = ([rule for _, rule in one] for one in rules.expire.values())
        self._by_name = {rule.name: rule for part in (*some, *expiring) for rule in part}
        self.running = True
        self._removals.look()
        ledger.open(at)
        runtime.when_durable(boot, partial(self._step, at, at))

    def _step(self, first: int, at: int) -> None:
        runtime = self._runtime
        work = partial(look, runtime.log, at, runtime.core.booted, publishes=bool(runtime.core.rules.publish))
        if self.off is None:
            self._looked(first, *work())
        else:
            self.off(work, lambda answer: self._looked(first, *answer))

    def _looked(self, first: int, found: Sequence[Found], upto: int) -> None:
        runtime = self._runtime
        for one in found:
            for event in self.events_of(one):
                self._ledger.open(event.place)
                self._events.append(event)
        if upto < runtime.core.booted:
            runtime.call_soon(partial(self._step, first, upto))
            return
        self.running = False
        events, self._events = self._events, []
        self._resumed(events)
        self._ledger.close(first)
        runtime.arm()

    def _parted(self, lsns: Sequence[int]) -> Iterator[tuple[bool, Sequence[int]]]:
        """Messages of this site, and those that another one published."""
        core = self._runtime.core
        if not core.carried:
            yield False, lsns
            return
        where = [core.told_as(lsn, lsn + 1)[0][0] != core.origin for lsn in lsns]
        for carried in (False, True):
            if some := [lsn for lsn, one in zip(lsns, where, strict=True) if one is carried]:
                yield carried, some

    def events_of(self, found: Found) -> Iterator[Event]:
        """What one record, or messages, set off and is not done."""
        if isinstance(found, tuple):
            topic, lsns = found
            for carried, some in self._parted(lsns):
                yield from self._left(self._rules_of(topic, carried), OWN, some, "", "")
            return
        header = load(found.header) if found.header else {}
        if found.kind is Kind.SOW_DROP:
            yield from self._of_drop(found, header)
        elif found.kind is Kind.SETTLE:
            number, settled = unpack_pairs(found.body)
            queue = self._runtime.core.queue_by_id(number)
            if queue is not None and "barrier" not in header:
                rules = self._runtime.core.rules.delete.get((queue.vhost, queue.name), [])
                yield from self._left(plain(rules), found.lsn, lsns_in(settled), found.name, "")
        else:
            causes, why = told(header)
            for action, step, pairs in cast("list[tuple[str, int, list[int]]]", header.get("left") or []):
                rule = self._by_name.get(action)
                if rule is not None:
                    for event in self._left(plain([rule]), found.lsn, lsns_in(pairs), found.name, causes):
                        event.step, event.judged, event.why = max(step, 0), step != UNJUDGED, why
                        yield event

    def _of_drop(self, found: Record, header: Mapping[str, object]) -> Iterator[Event]:
        core = self._runtime.core
        sow = core.sows.by_id.get(int(np.frombuffer(found.body, dtype="<i8", count=1)[0]))
        if sow is None or sow.exchange:
            return
        lsns, reason = cast("list[int]", header.get("lsns") or []), str(header["reason"])
        rules, oof, why = removal_rules(core.rules, (sow.vhost, sow.name), reason)
        yield from self._left(plain(rules), found.lsn, lsns, found.name, why)
        for event in self._left(plain(oof), found.lsn, lsns, found.name, why):
            event.oof = True
            yield event

    def _left(self, rules: Chosen, cause: int, lsns: Sequence[int], queue: str, reason: str) -> Iterator[Event]:
        """What a trigger's actions have not done, an event for each action."""
        state = self._runtime.core.acted
        for entry in rules:
            name = entry[0].name
            if cause == OWN:
                mine = [lsn for lsn in lsns if state.wants(name, lsn)]
            else:
                mine = list(lsns) if state.wants(name, cause) else []
            left = state.left(name, cause, mine)
            if left:
                event = Event((entry,), as_chunk(left), 0, queue, reason=reason)
                event.cause = cause
                yield event


def look(log: Log, start: int, end: int, *, publishes: bool) -> tuple[list[Found], int]:
    """Triggers in [start, end), in order, and below which LSN was looked.  Any thread."""
    out: list[Found] = []
    rows = 0
    for batch in log.batches(start, end, around=True):
        _look(log, batch, out, publishes=publishes)
        rows += batch.num_rows
        if rows >= STEP_ROWS:
            return out, int(column(batch, "lsn", "<i8")[-1]) + 1
        breathe()
    return out, end


def _look(log: Log, batch: pa.RecordBatch, out: list[Found], *, publishes: bool) -> None:
    kinds, lsns = column(batch, "kind", "<i1"), column(batch, "lsn", "<i8")
    records = np.flatnonzero(np.isin(kinds, _RECORDS))
    found: list[tuple[int, Found]] = []
    if len(records):
        some = batch.take(records)
        told = zip(
            lsns[records].tolist(), kinds[records].tolist(), cells(some, "name"), cells(some, "properties"),
            cells(some, "body"), strict=True,
        )  # fmt: skip
        found += [(lsn, Record(lsn, Kind(kind), name, header, body)) for lsn, kind, name, header, body in told]
    messages = np.flatnonzero(kinds <= int(Kind.PUBLISH_TRANSIENT)) if publishes else records[:0]
    if len(messages):
        some = batch.take(messages)
        names: list[str] = cells(some, "name")
        vias = None if nulls(some, "via") == len(names) else cells(some, "via")
        by_topic: dict[Topic, list[int]] = {}
        for topic, lsn in zip(log.vias.topics(vias, names), lsns[messages].tolist(), strict=True):
            by_topic.setdefault(topic, []).append(lsn)
        found += [(mine[0], (topic, mine)) for topic, mine in by_topic.items()]
    out += [one for _, one in sorted(found, key=_place)]


def _place(found: tuple[int, Found]) -> int:
    return found[0]
