"""What a log says of messages, queues and records, and whether a server shows just that and delivers it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from copy import copy as copy_of
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.state.durable import DurableState, canonical
from penstock.core.state.fold import Fold
from penstock.core.state.lsns import flat, spread
from penstock.log.log import Log
from penstock.records.entries import Entry, Publishes, singly
from penstock.records.kinds import PUBLISHES, Kind
from penstock.records.one_or_each import value_at
from penstock.testing import Broker

APART = {"deliveries", "failures", "cancels", "unseen", "rank", "transient"}
"""Columns that a crash may take back, or that are worked out again."""
UNSAID = {
    "last_lsn",
    "unclean",
    "defaults",
    "queues",
    "sows",
    "sizes",
    "measured",
    "next_route",
    "routes",
    "beside",
    "terms",
}
"""Fields of the durable state that nobody is promised, or that are compared in another form."""

Place = tuple[object, ...]
"""A message where it is: its queue, its LSN, until when it waits, when it ends, whose place it has, its keys."""


@dataclass(slots=True)
class Seen:
    """What a durable state says to people."""

    queues: dict[str, tuple[object, ...]]
    messages: dict[int, Counter[Place]]  # by their number
    records: dict[str, dict[int, bytes]]  # of topics, by key
    told: dict[int, tuple[str, bytes]]  # what was published and stored, by LSN: topic and body
    rest: dict[str, object]
    passing: bool = False  # a queue looks through the log still
    fleeting: set[Place] = field(default_factory=set[Place])  # what goes with the server: queue, LSN

    def where(self) -> tuple[object, ...]:
        """What is in which queue, whatever its place."""
        return (
            {number: Counter(str(place[0]) for place in places.elements()) for number, places in self.messages.items()},
            self.queues, self.records,
        )  # fmt: skip

    def passed_as(self, other: Seen) -> Seen:
        """Without the barriers that the other one has passed: that is written with what comes next."""
        messages = dict[int, Counter[Place]]()
        for number, places in self.messages.items():
            there = other.messages.get(number, ())
            if left := {place: count for place, count in places.items() if not place[-1] or place in there}:
                messages[number] = Counter(left)
        return replace(self, messages=messages)

    def since(self, lsn: int) -> Seen:
        """With what the log has behind that."""
        return replace(self, told={at: row for at, row in self.told.items() if at > lsn})

    def differences(self, other: Seen) -> list[str]:
        """Where the two are not the same."""
        out = list[str]()
        for one in fields(self)[:-2]:
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            if mine != theirs and isinstance(mine, dict):
                out += [f"{one.name}: {key}: {mine.get(key)} and {theirs.get(key)}"
                        for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]  # fmt: skip
            elif mine != theirs:
                out.append(f"{one.name}: {mine[-9:]} and {theirs[-9:]}")
        return out


def seen_of(state: DurableState, log: Log, gathered: Sequence[Entry] = ()) -> Seen:
    """What a state says, with bodies as the log has them, and what it has gathered."""
    rows, transient = told_of(log, gathered)
    state = canonical(state)
    queues, messages, fleeting = dict[str, tuple[object, ...]](), dict[int, Counter[Place]](), set[Place]()
    for queue in state.queues.values():
        if not queue.durable:
            fleeting |= {(queue.name, 0), *((queue.name, lsn) for lsn in flat(queue.waiting).tolist())}
            continue
        queues[queue.name] = (
            queue.settings,
            queue.arguments,
            queue.durable,
            queue.paused,
            queue.ruling,
            list(queue.taken),
        )
        lsns = flat(queue.waiting)
        columns = {name: spread(lsns, runs) for name, runs in queue.columns.items() if name not in APART}
        zeros = np.zeros(len(lsns), dtype=np.int64)
        kept = [
            columns.get(name, zeros).tolist()
            for name in ("not_before", "expires_at", "place", "key", "dedup", "barrier")
        ]
        for lsn, *values in zip(lsns.tolist(), *kept, strict=True):
            if lsn in transient:
                fleeting.add((queue.name, lsn))
                continue
            number = json.loads(rows[lsn][1])["id"]
            messages.setdefault(number, Counter())[(queue.name, lsn, *values)] += 1
    records = {
        sow.name: {number: rows[lsn][1] for number, lsn in zip(sow.numbers, sow.lsns, strict=True)}
        for sow in state.sows.values()
    }  # fmt: skip
    rest = {
        one.name: plain(getattr(state, one.name)) for one in fields(state)
        if one.name not in UNSAID and one.metadata
    }  # fmt: skip
    return Seen(
        queues,
        messages,
        records,
        {lsn: row for lsn, row in rows.items() if lsn not in transient},
        rest,
        any(queue.passing is not None for queue in state.queues.values()),
        fleeting,
    )


def plain(value: Any) -> object:
    """One that stays as it is."""
    return dict(value) if isinstance(value, dict) else copy_of(value)


def told_of(log: Log, gathered: Sequence[Entry]) -> tuple[dict[int, tuple[str, bytes]], set[int]]:
    """Topic and body of all that a log has, by LSN; and which of it goes with the server."""
    rows, transient = dict[int, tuple[str, bytes]](), set[int]()
    for batch in log.batches(0, 1 << 60, ["lsn", "kind", "name", "body"]):
        for row in batch.to_pylist():
            if row["kind"] in PUBLISHES:
                rows[row["lsn"]] = row["name"], row["body"]
                if row["kind"] == Kind.PUBLISH_TRANSIENT:
                    transient.add(row["lsn"])
    for entry in singly(gathered):
        if isinstance(entry, Publishes):
            for at, body in enumerate(entry.bodies):
                rows[entry.first + at] = entry.topic_of(at).name, body
                if value_at(entry.transient, at):
                    transient.add(entry.first + at)
    return rows, transient


def stored(log: Log) -> list[tuple[int, str, bytes]]:
    """Every message that the log has: LSN, topic and body."""
    out, kinds = list[tuple[int, str, bytes]](), {int(kind) for kind in PUBLISHES}
    for batch in log.batches(0, 1 << 60, ["lsn", "kind", "name", "body"]):
        for row in batch.to_pylist():
            if row["kind"] in kinds:
                out.append((row["lsn"], row["name"], row["body"]))
    return out


def between(found: Seen, before: Seen, after: Seen) -> bool:
    """Whether each message, and each thing, is as before or as after."""
    return all(
        found.messages.get(number) in (before.messages.get(number), after.messages.get(number))
        for number in found.messages.keys() | before.messages.keys() | after.messages.keys()
    )


def folded(log: Log) -> DurableState:
    """By all records, from the first; or from the base that stands for those that are gone."""
    floor, state = log.base_state() or (0, b"")
    folding = Fold(DurableState.decode(state)) if state else Fold()
    folding.feed(pa.Table.from_batches(list(log.batches(floor, 1 << 60))))
    return folding.finish()


def plainly(state: DurableState) -> DurableState:
    """In one form, without the ranks, which a start works out again."""
    out = canonical(state)
    for queue in out.queues.values():
        queue.columns.pop("rank", None)
    return out


def started(broker: Broker) -> Seen:
    """What a started broker has, which is what it shows."""
    instance = broker.instance
    assert instance is not None
    core = instance.core
    instance.run(lambda: None)
    instance.commit()
    now = seen_of(core.durable_state(), instance.log)
    for queue in core.queues():
        queue.check()
        stats = broker.stats(queue.name)
        there = stats["ready"] + stats["held"] + stats["foreign"]
        rows = broker.sow(queue.name)
        assert there == len(rows), f"{queue.name}: {there} are counted, {len(rows)} are shown"
    for topic in ("events", "s"):
        replayed(broker, topic, [(lsn, body) for lsn, name, body in stored(instance.log) if name == topic])
    return now


def replayed(broker: Broker, topic: str, rows: Sequence[tuple[int, bytes]]) -> None:
    """Who reads the log from its beginning, or from a place in it, has all that was published from there on."""
    assert broker.instance is not None
    origin = broker.instance.log.origin
    for first in {0, len(rows) // 2}:
        after = "epoch" if not first else f"{origin}|{rows[first - 1][0]}|"
        reader = broker.subscribe(topic, bookmark=after, max_backlog=None)
        got = [(message.lsn, message.body) for message in reader.take()]
        assert got == list(rows[first:]), f"{topic} after {after}: {got} instead of {rows[first:]}"
        reader.close()


def emptied(broker: Broker) -> None:
    """Whoever consumes all gets what the queues show, once, and what is acknowledged is gone."""
    assert broker.instance is not None
    for queue in broker.instance.core.queues():
        if queue.settings.non_destructive or queue.exchange is not None:
            continue
        shown = sorted(record.lsn for record in broker.sow(queue.name))
        there = {lsn for chunk in queue.snapshot()[0] for lsn in chunk}
        subscription = broker.subscribe(queue.name, max_backlog=None)
        got, lsns = subscription.take(), list[int]()
        while got:
            lsns += [message.lsn for message in got]
            for message in got:
                message.ack()
            got = subscription.take()
        assert sorted(lsns) == sorted(set(lsns)), f"{queue.name}: {lsns} came, some twice"
        assert set(lsns) <= there, f"{queue.name}: {lsns} came of {there}"
        stats = broker.stats(queue.name)
        barred = stats["barriers_waiting"] and (stats["delayed"] or stats["leased"])  # it waits for those before it
        if not queue.paused and not barred:
            assert set(shown) <= set(lsns), f"{queue.name}: of {shown} came {lsns}"
        left = {lsn for chunk in queue.snapshot()[0] for lsn in chunk}
        assert left == there - set(lsns), f"{queue.name}: {left} is left of {there} after {lsns}"
        subscription.close()
