"""The audit of batches: those of streams, and those of sinks.

A stream's follow one another under one epoch, and each is settled once, with all its messages; that they are disjoint
shows in the histories of the messages (`core.audit.histories`): a planned one is planned once.  A query's batches are
committed once, in order, and the chunks of a large one follow it whole; that the messages of a chunk lie in the group
of its record is how the core writes it, here its numbers are proven.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple, TypeAlias, cast

import numpy as np

from penstock.core.audit.histories import AuditedQueue, Events, Find, Op
from penstock.core.state.decided import DecidedState, copies, decided_of
from penstock.core.state.durable import DurableState, StreamState
from penstock.core.state.lsns import Ints, ints
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind

Queues: TypeAlias = "dict[int, AuditedQueue]"


@dataclass(slots=True)
class _Stream:
    queue: int
    mode: str
    epoch: int = 0
    planned: int = 0
    floor: int = 0
    plans: dict[int, Ints] = field(default_factory=dict[int, "Ints"])  # unsettled: batch -> pairs, shape (n, 2)


class _Told(NamedTuple):
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


def _happened(pairs: Ints, told: _Told, op: Op) -> Events:
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
        told = _Told(kind, lsn, name, header, values, time)
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

    def _wrong(self, told: _Told, text: str) -> None:
        self._find("stream batches", np.array([told.lsn]), f"stream '{told.name}': {text}")

    def _opened(self, stream: _Stream | None, told: _Told) -> None:
        if stream is None:
            stream = self._streams[told.name] = _Stream(told.number("queue"), str(told.header["mode"]))
        if told.number("epoch") <= stream.epoch:
            self._wrong(told, f"epoch {told.number('epoch')} follows epoch {stream.epoch}")
        stream.epoch = told.number("epoch")
        if told.header.get("anew"):
            stream.planned = stream.floor = 0

    def _plan(self, stream: _Stream, told: _Told) -> None:
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

    def _settle(self, stream: _Stream, told: _Told) -> None:
        batch = told.number("batch")
        if not stream.floor < batch <= stream.planned:
            before = f"{stream.floor} was before, and {stream.planned} are planned"
            self._wrong(told, f"batch {batch} was settled; {before}")
        for done in [done for done in stream.plans if done <= batch]:
            self._settled.append((told.name, told.lsn, stream.queue, stream.plans.pop(done)))
        stream.floor = max(batch, stream.floor)

    def _doubt(self, stream: _Stream, told: _Told) -> None:
        batch = told.number("batch")
        if batch != stream.planned or batch <= stream.floor:
            there = f"{stream.planned} are planned, and {stream.floor} settled"
            self._wrong(told, f"batch {batch} was doubted; {there}")
        elif told.kind is Kind.STREAM_NARROW and not self._narrow(stream, batch, told):
            self._wrong(told, f"batch {batch} was narrowed to messages that it did not have")

    def _narrow(self, stream: _Stream, batch: int, told: _Told) -> bool:
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
        self._highest, self._decided = dict(state.sinks), copies(state.decided)

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
