"""The audit of control records: positions and times, groups, batches of streams and sinks, policies.

LSNs rise without holes within a run, and a start leaves what it must.  A dead letter has one cause, removed by the
record of the same group.  All records of a transaction lie in the group of its last one; rows that nobody needs any
more may have been left out since, and what is there still has to lie in one batch.

A stream's batches follow one another under one epoch, and each is settled once, with all its messages; that they are
disjoint shows in the histories of the messages (`core.audit_histories`).  A query's batches are committed once, in
order, and the chunks of a large one follow it whole.  What a queue is ruled by is there, and a policy that goes lets go
of its queues in the same group, or, of very many, in those that follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
import pyarrow as pa

from penstock.core.audit_histories import NONE, AuditedQueue, Events, Find
from penstock.core.state.durable import DurableState
from penstock.core.state.lsns import Bools, Ints, ints
from penstock.core.state.streams import StreamState
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind
from penstock.records.schema import UNCLEAN_GAP


@dataclass(slots=True)
class Window:
    """Rows that are looked at in one go, as columns."""

    table: pa.Table
    batch: Ints  # number of the record batch of each row
    lsns: Ints
    kinds: Ints
    times: Ints
    publishes: Bools


@dataclass(slots=True)
class Row:
    """A control record of which there are few."""

    kind: Kind
    at: int  # its place in the window
    lsn: int
    time: int
    name: str
    route: int
    header: dict[str, object]
    values: Ints  # its body

    @property
    def queue(self) -> int:
        return int(self.values[0])

    @property
    def pairs(self) -> Ints:
        """Of its queue, shape (n, 2)."""
        return self.values[1:].reshape(-1, 2)

    def number(self, key: str) -> int:
        """An integer of its header.  TypeError, KeyError for one that is none, or is not there."""
        said = self.header[key]
        if not isinstance(said, int):
            raise TypeError(f"{key} is {said!r}")
        return said


class PositionAudit:
    """The order of all records."""

    def __init__(self, find: Find, counts: Counter[str]) -> None:
        self._find = find
        self._counts = counts
        self._last = self._last_time = 0  # LSN 0: nothing was before
        self._before = NONE  # of this window: the LSN before each

    def load(self, last: int) -> None:
        """A base stands for everything up to this LSN."""
        self._last = last

    def look(self, window: Window) -> None:
        """LSNs and times."""
        lsns, times = window.lsns, window.times
        before = self._before = np.append(self._last, lsns[:-1])
        if (back := lsns <= before).any():
            self._find("positions", lsns[back], "LSNs do not rise")
        boot = window.kinds == int(Kind.BOOT)
        if not self._last and not boot[0]:
            self._find("positions", lsns[:1], "the log does not begin with a BOOT record")
        hole = (lsns > before + 1) & ~boot & (before > 0)
        if hole.any():
            self._find("positions", np.append(before[hole], lsns[hole]), "records are missing within a run")
        if (backwards := (times < np.append(self._last_time, times[:-1])) & ~boot).any():
            self._find("times", lsns[backwards], "record times go back within a run")
        self._last, self._last_time = int(lsns[-1]), int(times[-1])

    def started(self, row: Row) -> None:
        """A BOOT record of the window that was looked at."""
        clean, before = bool(row.header.get("clean")), int(self._before[row.at])
        self._counts["starts"] += 1
        self._counts["starts after a crash"] += not clean
        gap = row.lsn - before
        if before and clean and gap != 1:
            self._find("positions", np.array([before, row.lsn]), "a start after a clean stop left LSNs out")
        elif before and not clean and gap < UNCLEAN_GAP:
            text = "a start after a crash left less than 2^32 LSNs free"
            self._find("positions", np.array([before, row.lsn]), text)


class LetterAudit:
    """Dead letters and rows sent on: each has one cause, which the record of its group removed."""

    def __init__(self, find: Find, counts: Counter[str]) -> None:
        self._find = find
        self._counts = counts
        self._named: list[Ints] = []  # those of this window

    def close(self) -> None:
        """At the end of a window: no letter of it has two causes."""
        distinct, times = np.unique(np.concatenate([NONE, *self._named]), return_counts=True)
        self._named.clear()
        if (times > 1).any():
            self._find("dead letters", distinct[times > 1], "a dead letter has two causes")

    def look(self, window: Window, lsn: int, header: Mapping[str, object], removed: Ints) -> None:
        """What an EXPIRE record says of the pairs that it removed: their dead letters, or where the server moved them.

        Of both the same holds.
        """
        for key, word in (("dead", "dead letters"), ("sent", "messages moved")):
            if named := header.get(key):
                told = np.array(named, dtype=np.int64).reshape(-1, 2)  # (cause, letter) each
                self._counts[word] += len(told)
                self._record(window, lsn, told, removed)

    def _record(self, window: Window, lsn: int, dead: Ints, removed: Ints) -> None:
        self._named.append(dead[:, 1])
        cause, letter = dead[:, 0], dead[:, 1]
        removed = removed[np.argsort(removed[:, 0])]
        at = np.searchsorted(removed[:, 0], cause, side="right") - 1
        stayed = (at < 0) | (removed[np.maximum(at, 0), 1] <= cause)
        if stayed.any():
            lsns = np.append(dead[stayed].ravel(), lsn)
            self._find("dead letters", lsns, "a dead letter's cause was not removed with it")
        row = int(np.searchsorted(window.lsns, lsn))
        where = np.minimum(np.searchsorted(window.lsns, letter), row)
        apart = (window.lsns[where] != letter) | ~window.publishes[where] | (window.batch[where] != window.batch[row])
        if apart.any():
            lsns = np.append(dead[apart].ravel(), lsn)
            self._find("dead letters", lsns, "a dead letter is not in the group of its cause")


Queues: TypeAlias = "dict[int, AuditedQueue]"


@dataclass(slots=True)
class _Stream:
    queue: int
    mode: str
    epoch: int = 0
    planned: int = 0
    floor: int = 0
    plans: dict[int, Ints] = field(default_factory=dict[int, "Ints"])  # unsettled: batch -> pairs, shape (n, 2)


def _happened(pairs: Ints, row: Row, kind: Kind) -> Events:
    """What a record says became of these messages."""
    zeros = np.zeros(len(pairs), dtype=np.int64)
    return Events(pairs[:, 0], pairs[:, 1], zeros + row.lsn, zeros + int(kind), zeros, zeros + row.time)


class StreamAudit:
    """All streams of a log."""

    def __init__(self, queues: Queues, find: Find) -> None:
        self._queues = queues
        self._find = find
        self._streams: dict[str, _Stream] = {}
        self._settled: list[tuple[str, int, int, Ints]] = []  # stream, LSN, queue, pairs: to be gone with this window
        self.planned = 0

    def load(self, states: dict[str, StreamState]) -> list[tuple[int, Ints]]:
        """Streams as a base knows them; returns (queue, pairs) of what is planned and not settled."""
        held = list[tuple[int, Ints]]()
        for name, s in states.items():
            plans = {batch: ints(pairs).reshape(-1, 2) for batch, pairs in s.plans.items() if batch > s.floor}
            self._streams[name] = _Stream(s.queue, s.mode, s.epoch, s.planned, s.floor, plans)
            if s.mode == "queue":
                held += ((s.queue, pairs) for pairs in plans.values())
        return held

    def queue_gone(self, number: int) -> None:
        """A queue's streams end with it."""
        for name in [n for n, stream in self._streams.items() if stream.queue == number and stream.mode == "queue"]:
            del self._streams[name]

    def record(self, row: Row) -> None:
        """A record of a stream."""
        stream = self._streams.get(row.name)
        if stream is None and row.kind is Kind.STREAM:
            stream = self._streams[row.name] = _Stream(row.number("queue"), str(row.header["mode"]))
        if stream is None:
            self._wrong(row, "it was never opened")
        else:
            self.LOOKS[row.kind](self, stream, row)

    def _wrong(self, row: Row, text: str) -> None:
        self._find("stream batches", np.array([row.lsn]), f"stream '{row.name}': {text}")

    def _opened(self, stream: _Stream, row: Row) -> None:
        epoch = row.number("epoch")
        if epoch <= stream.epoch:
            self._wrong(row, f"epoch {epoch} follows epoch {stream.epoch}")
        stream.epoch = epoch
        if row.header.get("anew"):
            stream.planned = stream.floor = 0

    def _released(self, stream: _Stream, row: Row) -> None:
        stream.epoch = row.number("epoch") if "epoch" in row.header else stream.epoch
        stream.plans.clear()
        if row.header.get("dropped"):
            del self._streams[row.name]

    def _plan(self, stream: _Stream, row: Row) -> None:
        batch, epoch = row.number("batch"), row.number("epoch")
        self.planned += 1
        if batch != stream.planned + 1:
            self._wrong(row, f"batch {batch} was planned after batch {stream.planned}")
        if epoch != stream.epoch:
            self._wrong(row, f"batch {batch} was planned under epoch {epoch}, and {stream.epoch} held")
        stream.planned = batch
        queue = self._queues.get(stream.queue)
        if stream.mode == "queue" and queue is not None:
            stream.plans[batch] = row.pairs
            if not queue.once[-1][1]:  # else they went before the plan names them
                queue.events.append(_happened(row.pairs, row, Kind.PLAN))

    def _settle(self, stream: _Stream, row: Row) -> None:
        batch = row.number("batch")
        if not stream.floor < batch <= stream.planned:
            before = f"{stream.floor} was before, and {stream.planned} are planned"
            self._wrong(row, f"batch {batch} was settled; {before}")
        for done in [done for done in stream.plans if done <= batch]:
            self._settled.append((row.name, row.lsn, stream.queue, stream.plans.pop(done)))
        stream.floor = max(batch, stream.floor)

    def _tried(self, stream: _Stream, row: Row) -> bool:
        """Whether the batch that is in doubt is the one that is planned and not settled."""
        batch = row.number("batch")
        there = stream.floor < batch == stream.planned
        if not there:
            known = f"{stream.planned} are planned, and {stream.floor} settled"
            self._wrong(row, f"batch {batch} was doubted; {known}")
        return there

    def _narrow(self, stream: _Stream, row: Row) -> None:
        """A batch keeps some of its rows.

        One that is put aside is nobody's until its EXPIRE; the others come back by a RETURN.
        """
        batch = row.number("batch")
        before, queue = stream.plans.get(batch), self._queues.get(stream.queue)
        if not self._tried(stream, row) or before is None or queue is None:
            return
        kept = stream.plans[batch] = row.pairs
        inside = np.searchsorted(before[:, 0], kept[:, 0], side="right") - 1
        if "poison" in row.header:
            queue.events.append(_happened(before, row, Kind.RETURN))
        if (inside < 0).any() or (kept[:, 1] > before[:, 1][inside]).any():
            self._wrong(row, f"batch {batch} was narrowed to messages that it did not have")

    LOOKS: ClassVar[Mapping[Kind, Callable[[Any, _Stream, Row], object]]] = {
        Kind.STREAM: _opened, Kind.STREAM_RELEASE: _released, Kind.PLAN: _plan, Kind.PLAN_SETTLE: _settle,
        Kind.STREAM_TRY: _tried, Kind.STREAM_NARROW: _narrow,
    }  # fmt: skip

    def close(self) -> None:
        """At the end of a window, when the queues know what is gone: nothing of a settled batch waits."""
        for name, lsn, number, pairs in self._settled:
            queue = self._queues.get(number)
            if queue is None or not len(pairs):
                continue
            left = np.searchsorted(queue.lsns, pairs[:, 1]) > np.searchsorted(queue.lsns, pairs[:, 0])
            if left.any():
                text = f"stream '{name}': messages of a settled batch still wait"
                self._find("stream batches", np.append(pairs[left][:, 0], lsn), text)
        self._settled.clear()


@dataclass(slots=True)
class _Decided:
    """A batch of which rows are still to come."""

    batch: int
    total: int
    chunks: int = 0
    rows: int = 0


class SinkAudit:
    """All queries of a log."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._highest: dict[str, int] = {}
        self._decided: dict[str, _Decided] = {}
        self.committed = 0

    def load(self, state: DurableState) -> None:
        """Queries as a base knows them."""
        self._highest = dict(state.sinks)
        for query, told in state.decided.items():
            self._decided[query] = _Decided(told.batch, sum(part.rows for part in told.parts), told.chunks, told.rows)

    def record(self, row: Row) -> None:
        """SINK_COMMIT, DECIDED or CHUNK."""
        query, unfinished = row.name, self._decided.get(row.name)
        if row.kind is Kind.CHUNK:
            self._chunk(row, unfinished)
            return
        batch, highest = row.number("batch"), self._highest.get(query, -1)
        self.committed += 1
        if batch <= highest:
            self._wrong(row, f"query '{query}' committed batch {batch} after batch {highest}")
        if unfinished is not None:
            self._wrong(row, f"query '{query}' committed batch {batch} before all rows of batch {unfinished.batch}")
        self._highest[query] = max(batch, highest)
        if row.kind is Kind.DECIDED:
            parts = cast("list[list[int]]", row.header["parts"])
            self._decided[query] = _Decided(batch, sum(part[1] for part in parts))

    def forgotten(self, row: Row) -> None:
        """SINK_FORGET."""
        for query in cast("list[str]", row.header["queries"]):
            if query in self._decided:
                self._wrong(row, f"query '{query}' is forgotten before all rows of its batch are written")
            self._highest.pop(query, None)

    def _chunk(self, row: Row, due: _Decided | None) -> None:
        batch, chunk, rows = (row.number(key) for key in ("batch", "chunk", "rows"))
        if due is None:
            self._wrong(row, f"query '{row.name}' has a chunk of batch {batch}, of which none is due")
            return
        if (batch, chunk) != (due.batch, due.chunks + 1) or not due.rows < rows <= due.total:
            self._wrong(
                row,
                f"query '{row.name}': chunk {chunk} of batch {batch} up to row {rows} follows chunk {due.chunks} of "
                f"batch {due.batch} up to row {due.rows} of {due.total}",
            )
            return
        due.chunks, due.rows = chunk, rows
        if rows == due.total:
            del self._decided[row.name]

    def _wrong(self, row: Row, text: str) -> None:
        self._find("sinks", np.array([row.lsn]), text)


Key: TypeAlias = "tuple[bool, str, str]"
"""Whether it is an operator's, vhost, name."""


class PolicyAudit:
    """Policies, and who rules each queue."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._there = set[Key]()
        self._going = set[Key]()  # of those that are gone: they let go of their queues a portion at a time
        self._rulers: dict[int, tuple[int, str, str, list[Key]]] = {}  # by queue: LSN, vhost, name, its policies

    def load(self, state: DurableState) -> None:
        """What was there before the records."""
        self._there = set(state.policies)
        for number, queue in state.queues.items():
            ruling = queue.ruling
            names = (None, None) if ruling is None else (ruling.policy, ruling.operator_policy)
            self._ruled(number, state.last_lsn, queue.vhost, queue.name, *names)

    def record(self, row: Row) -> None:
        """There is such a policy now, or none any more."""
        key = bool(row.header["operator"]), str(row.header["vhost"]), row.name
        if row.kind is Kind.POLICY:
            self._there.add(key)
            self._going.discard(key)
        else:
            self._there.discard(key)
            if row.header.get("more"):
                self._going.add(key)

    def declared(self, row: Row) -> None:
        """A queue is ruled by what its QUEUE_DECLARE names."""
        self._ruled(row.lsn, row.lsn, str(row.header.get("vhost", "/")), row.name, *_rulers(row))

    def altered(self, row: Row) -> None:
        """It is ruled by what its last QUEUE_ALTER names."""
        if (before := self._rulers.get(row.queue)) is not None:
            self._ruled(row.queue, row.lsn, before[1], before[2], *_rulers(row))

    def gone(self, number: int) -> None:
        """The queue is no more."""
        self._rulers.pop(number, None)

    def _ruled(self, number: int, lsn: int, vhost: str, name: str, policy: str | None, operator: str | None) -> None:
        keys: list[Key] = [(False, vhost, policy)] if policy is not None else []
        if operator is not None:
            keys.append((True, vhost, operator))
        self._rulers[number] = lsn, vhost, name, keys

    def close(self) -> None:
        """The end of the records: each queue is ruled by what is there."""
        for number, (lsn, vhost, name, keys) in sorted(self._rulers.items()):
            for key in keys:
                if key not in self._there and key not in self._going:
                    what = "operator policy" if key[0] else "policy"
                    text = f"queue '{name}' in vhost '{vhost}' is ruled by {what} '{key[2]}', which is not there"
                    self._find("policies", np.array([number, lsn]), text)


def _rulers(row: Row) -> tuple[str | None, str | None]:
    ruling = cast("dict[str, str | None]", row.header.get("ruling") or {})
    return ruling.get("policy"), ruling.get("operator_policy")
