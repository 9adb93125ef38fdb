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
from collections.abc import Callable
from dataclasses import field
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa

from penstock.core.audit_histories import NONE, AuditedQueue, Events, Find, Op
from penstock.core.state.durable import DurableState
from penstock.core.state.encoding import load
from penstock.core.state.lsns import Bools, Ints, blobs, ints, pick
from penstock.core.state.pending import DecidedState, decided_copies, decided_of
from penstock.core.state.streams import StreamState
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind

UNCLEAN_GAP = 1 << 32


class PositionAudit:
    """The order of all records."""

    def __init__(self, find: Find, counts: Counter[str]) -> None:
        self._find = find
        self._counts = counts
        self._last = self._last_time = 0
        self._begun = False

    def load(self, last: int) -> None:
        """A base stands for everything up to this LSN."""
        self._last, self._begun = last, True

    def look(self, window: Window) -> Ints:
        """LSNs, starts and times; returns the LSNs of the BOOT records."""
        lsns, times = window.lsns, window.times
        before = np.append(self._last, lsns[:-1])
        if (back := lsns <= before).any():
            self._find("positions", lsns[back], "LSNs do not rise")
        boot = window.kinds == int(Kind.BOOT)
        if not self._begun and not boot[0]:
            self._find("positions", lsns[:1], "the log does not begin with a BOOT record")
        hole = (lsns > before + 1) & ~boot
        hole[0] &= self._begun
        if hole.any():
            self._find("positions", np.append(before[hole], lsns[hole]), "records are missing within a run")
        headers = blobs(pick(window.table, boot, ["properties"]), "properties")
        for row, header in zip(np.flatnonzero(boot).tolist(), headers, strict=True):
            clean = bool(load(header).get("clean"))
            self._counts["starts"] += 1
            self._counts["starts after a crash"] += not clean
            gap = int(lsns[row] - before[row])
            if not self._begun and row == 0:
                continue
            if clean and gap != 1:
                self._find("positions", np.append(before[row], lsns[row]), "a start after a clean stop left LSNs out")
            elif not clean and gap < UNCLEAN_GAP:
                text = "a start after a crash left less than 2^32 LSNs free"
                self._find("positions", np.append(before[row], lsns[row]), text)
        if (backwards := (times < np.append(self._last_time, times[:-1])) & ~boot).any():
            self._find("times", lsns[backwards], "record times go back within a run")
        self._begun = True
        self._last, self._last_time = int(lsns[-1]), int(times[-1])
        return np.asarray(lsns[boot], dtype=np.int64)


@dataclass(slots=True)
class Window:
    """Rows that are looked at in one go, as columns."""

    table: pa.Table
    batch: Ints  # number of the record batch of each row
    lsns: Ints
    kinds: Ints
    times: Ints
    publishes: Bools


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

    def record(self, window: Window, lsn: int, dead: Ints, removed: Ints, *, sent: bool = False) -> None:
        """Dead letters of one EXPIRE record: (cause, letter) each, and the pairs that it removed.

        sent: they are none, the server moved them; the same holds of these.
        """
        self._counts["messages moved" if sent else "dead letters"] += len(dead)
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


class TransactionAudit:
    """All transactions of a log."""

    def __init__(self, find: Find, counts: Counter[str]) -> None:
        self._find = find
        self._counts = counts

    def look(self, window: Window) -> None:
        """The transactions whose last record is in this window; a batch is never parted between two."""
        mine = window.kinds == int(Kind.TRANSACTION)
        if not mine.any():
            return
        headers = blobs(pick(window.table, mine, ["properties"]), "properties")
        for row, header in zip(np.flatnonzero(mine).tolist(), headers, strict=True):
            self._counts["transactions"] += 1
            first = cast("int", load(header)["first"])
            start = int(np.searchsorted(window.lsns, first))
            apart = window.lsns[start:row][window.batch[start:row] != window.batch[row]]
            if len(apart):
                lsns = np.append(apart, window.lsns[row])
                self._find("transactions", lsns, "a transaction has records outside of its group")


Queues: TypeAlias = "dict[int, AuditedQueue]"


@dataclass(slots=True)
class _Stream:
    queue: int
    mode: str
    epoch: int = 0
    planned: int = 0
    floor: int = 0
    plans: dict[int, Ints] = field(default_factory=dict[int, "Ints"])  # unsettled: batch -> pairs, shape (n, 2)


class _StreamRecord(NamedTuple):
    """A record of a stream."""

    kind: Kind
    lsn: int
    name: str
    header: dict[str, object]
    values: Ints
    time: int

    def number(self, key: str) -> int:
        """An integer of its header.  TypeError, KeyError for one that is none, or is not there."""
        said = self.header[key]
        if not isinstance(said, int):
            raise TypeError(f"{key} is {said!r}")
        return said


def _happened(pairs: Ints, told: _StreamRecord, op: Op) -> Events:
    """What a record says became of these messages."""
    zeros = np.zeros(len(pairs), dtype=np.int64)
    return Events(pairs[:, 0], pairs[:, 1], zeros + told.lsn, zeros + int(op), zeros, zeros + told.time)


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

    def record(self, kind: Kind, lsn: int, name: str, header: dict[str, object], values: Ints, time: int) -> None:
        """A record of a stream.  `values`: its body as integers."""
        told = _StreamRecord(kind, lsn, name, header, values, time)
        stream = self._streams.get(name)
        if kind is Kind.STREAM:
            self._opened(stream, told)
        elif stream is None:
            self._wrong(told, "it was never opened")
        elif kind is Kind.STREAM_RELEASE:
            stream.epoch = told.number("epoch") if "epoch" in header else stream.epoch
            stream.plans.clear()
            if header.get("dropped"):
                del self._streams[name]
        elif kind is Kind.PLAN:
            self._plan(stream, told)
        elif kind is Kind.PLAN_SETTLE:
            self._settle(stream, told)
        else:
            self._doubt(stream, told)

    def _wrong(self, told: _StreamRecord, text: str) -> None:
        self._find("stream batches", np.array([told.lsn]), f"stream '{told.name}': {text}")

    def _opened(self, stream: _Stream | None, told: _StreamRecord) -> None:
        if stream is None:
            stream = self._streams[told.name] = _Stream(told.number("queue"), str(told.header["mode"]))
        if told.number("epoch") <= stream.epoch:
            self._wrong(told, f"epoch {told.number('epoch')} follows epoch {stream.epoch}")
        stream.epoch = told.number("epoch")
        if told.header.get("anew"):
            stream.planned = stream.floor = 0

    def _plan(self, stream: _Stream, told: _StreamRecord) -> None:
        batch = told.number("batch")
        self.planned += 1
        if batch != stream.planned + 1:
            self._wrong(told, f"batch {batch} was planned after batch {stream.planned}")
        if told.number("epoch") != stream.epoch:
            self._wrong(told, f"batch {batch} was planned under epoch {told.number('epoch')}, and {stream.epoch} held")
        stream.planned = batch
        queue = self._queues.get(stream.queue)
        if stream.mode == "queue" and queue is not None:
            pairs = stream.plans[batch] = told.values[1:].reshape(-1, 2)
            queue.events.append(_happened(pairs, told, Op.PLAN))

    def _settle(self, stream: _Stream, told: _StreamRecord) -> None:
        batch = told.number("batch")
        if not stream.floor < batch <= stream.planned:
            before = f"{stream.floor} was before, and {stream.planned} are planned"
            self._wrong(told, f"batch {batch} was settled; {before}")
        for done in [done for done in stream.plans if done <= batch]:
            self._settled.append((told.name, told.lsn, stream.queue, stream.plans.pop(done)))
        stream.floor = max(batch, stream.floor)

    def _doubt(self, stream: _Stream, told: _StreamRecord) -> None:
        batch = told.number("batch")
        if batch != stream.planned or batch <= stream.floor:
            there = f"{stream.planned} are planned, and {stream.floor} settled"
            self._wrong(told, f"batch {batch} was doubted; {there}")
        elif told.kind is Kind.STREAM_NARROW and not self._narrow(stream, batch, told):
            self._wrong(told, f"batch {batch} was narrowed to messages that it did not have")

    def _narrow(self, stream: _Stream, batch: int, told: _StreamRecord) -> bool:
        """A batch keeps some of its rows; False when it had others.

        One that is put aside is nobody's until its EXPIRE; the others come back by a RETURN.
        """
        before = stream.plans.get(batch)
        queue = self._queues.get(stream.queue)
        if before is None or queue is None:
            return True
        kept = told.values[1:].reshape(-1, 2)
        inside = np.searchsorted(before[:, 0], kept[:, 0], side="right") - 1
        stream.plans[batch] = kept
        if "poison" in told.header:
            queue.events.append(_happened(before, told, Op.RETURN))
        return not ((inside < 0).any() or (kept[:, 1] > before[:, 1][inside]).any())

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


class SinkAudit:
    """All queries of a log."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._highest: dict[str, int] = {}
        self._decided: dict[str, DecidedState] = {}
        self.committed = 0

    def load(self, state: DurableState) -> None:
        """Queries as a base knows them."""
        self._highest, self._decided = dict(state.sinks), decided_copies(state.decided)

    def record(self, kind: Kind, lsn: int, query: str, header: dict[str, object]) -> None:
        """SINK_COMMIT, DECIDED, CHUNK or SINK_FORGET."""
        if kind is Kind.SINK_FORGET:
            for forgotten in cast("list[str]", header["queries"]):
                if forgotten in self._decided:
                    self._wrong(lsn, f"query '{forgotten}' is forgotten before all rows of its batch are written")
                self._highest.pop(forgotten, None)
            return
        unfinished = self._decided.get(query)
        if kind is Kind.CHUNK:
            self._chunk(lsn, query, unfinished, header)
            return
        batch, highest = cast(int, header["batch"]), self._highest.get(query, -1)
        self.committed += 1
        if batch <= highest:
            self._wrong(lsn, f"query '{query}' committed batch {batch} after batch {highest}")
        if unfinished is not None:
            self._wrong(lsn, f"query '{query}' committed batch {batch} before all rows of batch {unfinished.batch}")
        self._highest[query] = max(batch, highest)
        if kind is Kind.DECIDED:
            self._decided[query] = decided_of(header, lsn)

    def _chunk(self, lsn: int, query: str, unfinished: DecidedState | None, header: dict[str, object]) -> None:
        if unfinished is None:
            self._wrong(lsn, f"query '{query}' has a chunk of batch {header['batch']}, of which none is due")
            return
        try:
            unfinished.copied(header)
        except ValueError as error:
            self._wrong(lsn, f"query '{query}': {error}")
        if unfinished.complete:
            del self._decided[query]

    def _wrong(self, lsn: int, text: str) -> None:
        self._find("sinks", np.array([lsn]), text)


Key: TypeAlias = "tuple[bool, str, str]"
"""Whether it is an operator's, vhost, name."""


class PolicyAudit:
    """Policies, and who rules each queue."""

    def __init__(self, find: Callable[[str, Ints, str], None]) -> None:
        """find: takes the guarantee, LSNs and a sentence."""
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

    def record(self, kind: Kind, name: str, header: dict[str, object]) -> None:
        """There is such a policy now, or none any more."""
        key = bool(header["operator"]), str(header["vhost"]), name
        if kind is Kind.POLICY:
            self._there.add(key)
            self._going.discard(key)
        else:
            self._there.discard(key)
            if header.get("more"):
                self._going.add(key)

    def declared(self, lsn: int, name: str, header: dict[str, object]) -> None:
        """A queue is ruled by what its QUEUE_DECLARE names."""
        self._ruled(lsn, lsn, str(header.get("vhost", "/")), name, *_rulers(header))

    def altered(self, number: int, lsn: int, header: dict[str, object]) -> None:
        """It is ruled by what its last QUEUE_ALTER names."""
        if (before := self._rulers.get(number)) is not None:
            self._ruled(number, lsn, before[1], before[2], *_rulers(header))

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


def _rulers(header: dict[str, object]) -> tuple[str | None, str | None]:
    ruling = cast("dict[str, str | None]", header.get("ruling") or {})
    return ruling.get("policy"), ruling.get("operator_policy")
