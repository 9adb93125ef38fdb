"""The audit: what the log says about every guarantee, from its records alone.

Feed it all record batches of a log in order, as they were written, for a group lies in one batch.  It keeps a window of
some hundred thousand rows and works on them with numpy; `finish` gives counts and findings.  It shares no code with the
fold beyond the reading of columns, so that the two can be held against each other.

    positions       LSNs rise, without holes within a run; a start after an unclean stop leaves 2^32 free
    times           record times never decrease within a run
    routes          every route was told, and names queues that live
    ends once       what a queue took is settled, expired, dropped, purged, gone with queue or process, or waits; once
    one holder      granted while ready, returned while held
    attempts        each grant's attempt is one more than the one before
    delays          nothing delayed is granted or due before its time
    at most once    such a queue leases nothing: the removal is on record before the message is sent
    dead letters    one cause each, removed by the record of the same group
    stream batches  one after another, disjoint, settled once, gone when settled
    sinks           a query's batches are committed once, in order
    publishers      sequences rise
    counts          what waits is what the fold says
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa

from penstock.core.audit_queue import DELAYED, PAST, PLANNED, READY, AuditedQueue, Events, Op, Window
from penstock.core.columns import NONE, groups, numbers, pair_bodies
from penstock.core.plain import load, load_settings
from penstock.core.state import DurableState, Ints, flat, ints, spread
from penstock.records.kinds import NO_ROUTE, PUBLISHES, Kind

WINDOW = 400_000
"""Rows that are looked at in one go."""

UNCLEAN_GAP = 1 << 32
LSNS_MOST = 1000
_OPS = {
    Kind.GRANT: Op.GRANT, Kind.RETURN: Op.RETURN, Kind.DUE: Op.DUE, Kind.SETTLE: Op.SETTLE, Kind.EXPIRE: Op.EXPIRE,
    Kind.DROP: Op.DROP, Kind.PURGE: Op.PURGE,
}  # fmt: skip
_OP_OF = np.full(64, -1, dtype=np.int64)
for _kind, _op in _OPS.items():
    _OP_OF[int(_kind)] = int(_op)
_NEEDED = ("lsn", "kind", "name", "route", "time", "not_before", "properties", "body")


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


@dataclass(slots=True)
class _Stream:
    queue: int
    mode: str
    epoch: int = 0
    planned: int = 0
    floor: int = 0
    plans: dict[int, Ints] = field(default_factory=dict[int, "Ints"])


class Audit:
    """One pass over a log."""

    def __init__(self, state: DurableState | None = None) -> None:
        """`state`: of a base, when the log no longer begins at its beginning; records up to it are passed over."""
        self._findings: dict[tuple[str, str], list[Ints]] = {}
        self._counts: Counter[str] = Counter()
        self._queues: dict[int, AuditedQueue] = {}
        self._routes: dict[int, tuple[int, tuple[int, ...]]] = {}  # number -> (LSN, queues)
        self._streams: dict[str, _Stream] = {}
        self._sinks: dict[str, int] = {}
        self._publishers: dict[str, int] = {}
        self._settled: list[tuple[str, int, int, Ints]] = []  # (stream, LSN, queue, pairs) to be gone with this window
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._last = self._last_time = 0
        self._skip = 0
        self._begun = False
        if state is not None:
            self._load(state)

    def _load(self, state: DurableState) -> None:
        self._last = self._skip = state.last_lsn
        self._begun = True
        self._routes = {number: (0, queues) for number, queues in state.routes.items()}
        self._publishers, self._sinks = dict(state.publishers), dict(state.sinks)
        for number, told in state.queues.items():
            once = told.settings.semantics == "at-most-once"
            queue = AuditedQueue(number, told.name, told.durable, told.exclusive, [(0, once)])
            self._queues[number] = queue
            lsns = flat(told.waiting)
            attempts, until, transient = (
                spread(lsns, told.columns[name]) if name in told.columns else np.zeros(len(lsns), dtype=np.int64)
                for name in ("deliveries", "not_before", "transient")
            )
            queue.take(lsns, attempts, np.where(until > 0, DELAYED, READY), until, transient)
        for name, s in state.streams.items():
            plans = {batch: ints(pairs).reshape(-1, 2) for batch, pairs in s.plans.items() if batch > s.floor}
            self._streams[name] = _Stream(s.queue, s.mode, s.epoch, s.planned, s.floor, plans)
            held = self._queues.get(s.queue)
            for pairs in plans.values() if held is not None else ():
                assert held is not None
                low, high = np.searchsorted(held.lsns, pairs[:, 0]), np.searchsorted(held.lsns, pairs[:, 1])
                for start, end in zip(low.tolist(), high.tolist(), strict=True):
                    held.state[start:end] = PLANNED

    def feed(self, batch: pa.RecordBatch) -> None:
        """The next record batch as it was written."""
        if not batch.num_rows:
            return
        self._held.append(batch.select(list(_NEEDED)))
        self._rows += batch.num_rows
        if self._rows >= WINDOW:
            self._look()

    def finish(self, folded: DurableState | None = None) -> Report:
        """The verdict; `folded`: what the fold makes of the same records, to be compared."""
        self._look()
        counts = self._counts
        for number, queue in sorted(self._queues.items()):
            for name, count in queue.counts.items():
                counts[f"queue messages {name}"] += count
            counts["queue messages waiting"] += len(queue.lsns)
            ended = sum(queue.counts[name] for name in _ENDS)
            if queue.counts["taken"] != ended + len(queue.lsns):
                text = f"{queue.title} took {queue.counts['taken']} messages; {ended} ended and {len(queue.lsns)} wait"
                self._find("counts", np.array([number]), text)
            if folded is not None and not queue.ended:
                self._compare(queue, folded)
        if folded is not None:
            living = {number for number, queue in self._queues.items() if not queue.ended}
            for number in sorted(living ^ set(folded.queues)):
                self._find("counts", np.array([number]), "the fold knows other queues than the records tell of")
        counts["queues"] = len(self._queues)
        findings = [
            Finding(guarantee, np.unique(np.concatenate(lsns))[:LSNS_MOST].tolist(), text)
            for (guarantee, text), lsns in self._findings.items()
        ]
        return Report(dict(sorted(counts.items())), findings)

    def _compare(self, queue: AuditedQueue, folded: DurableState) -> None:
        told = folded.queues.get(queue.id)
        if told is None:
            return
        waiting = flat(told.waiting)
        if not np.array_equal(waiting, queue.lsns):
            text = f"{queue.title}: the fold finds {len(waiting)} messages waiting, the records say {len(queue.lsns)}"
            self._find("counts", np.setxor1d(waiting, queue.lsns), text)

    def _find(self, guarantee: str, lsns: Ints, text: str) -> None:
        self._findings.setdefault((guarantee, text), []).append(np.unique(lsns)[:LSNS_MOST])

    # one window

    def _look(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held)
        batch_of = np.repeat(np.arange(len(self._held)), [batch.num_rows for batch in self._held])
        self._held, self._rows = [], 0
        lsns = numbers(table, "lsn")
        if lsns[0] <= self._skip:
            start = int(np.searchsorted(lsns, self._skip, side="right"))
            table, lsns, batch_of = table.slice(start), lsns[start:], batch_of[start:]
            if not len(lsns):
                return
        self._skip = 0
        kinds, times = numbers(table, "kind"), numbers(table, "time")
        self._counts["records"] += len(lsns)
        for kind, count in zip(*np.unique(kinds, return_counts=True), strict=True):
            named = Kind(int(kind)).name.lower() if int(kind) in Kind._value2member_map_ else f"of unknown kind {kind}"
            self._counts[f"records {named}"] += int(count)
        boots = self._positions(table, lsns, kinds, times)
        window = Window(int(lsns[0]), int(lsns[-1]), boots)
        publishes = np.isin(kinds, [int(kind) for kind in PUBLISHES])
        took = self._one_by_one(table, lsns, kinds, times, publishes)
        self._members(table, lsns, kinds, times, publishes, took)
        self._events(table, lsns, kinds, times, publishes, batch_of)
        for queue in self._queues.values():
            if queue.events or len(queue.lsns):
                queue.close(window, self._find)
        for stream, lsn, number, pairs in self._settled:
            queue = self._queues.get(number)
            if queue is not None and len(pairs):
                left = np.searchsorted(queue.lsns, pairs[:, 1]) > np.searchsorted(queue.lsns, pairs[:, 0])
                if left.any():
                    text = f"stream '{stream}': messages of a settled batch still wait"
                    self._find("stream batches", np.append(pairs[left][:, 0], lsn), text)
        self._settled.clear()

    def _positions(self, table: pa.Table, lsns: Ints, kinds: Ints, times: Ints) -> Ints:
        before = np.concatenate(([self._last], lsns[:-1]))
        back = lsns <= before
        if back.any():
            self._find("positions", lsns[back], "LSNs do not rise")
        boot = kinds == int(Kind.BOOT)
        if not self._begun and not boot[0]:
            self._find("positions", lsns[:1], "the log does not begin with a BOOT record")
        hole = (lsns > before + 1) & ~boot
        hole[0] &= self._begun
        if hole.any():
            self._find("positions", np.stack((before[hole], lsns[hole]), axis=1), "records are missing within a run")
        rows = np.flatnonzero(boot)
        headers = cast("list[bytes]", table.column("properties").take(pa.array(rows)).to_pylist())
        for row, header in zip(rows.tolist(), headers, strict=True):
            clean = bool(load(header).get("clean"))
            self._counts["starts"] += 1
            self._counts["starts after a crash"] += not clean
            first = not self._begun and row == 0
            gap = int(lsns[row] - before[row])
            if not first and gap != 1 if clean else not first and gap < UNCLEAN_GAP:
                text = "a start after a clean stop left LSNs out" if clean else "a start after a crash left less than 2^32 LSNs free"
                self._find("positions", np.array([before[row], lsns[row]]), text)
        earlier = np.concatenate(([self._last_time], times[:-1]))
        backwards = (times < earlier) & ~boot
        if backwards.any():
            self._find("times", lsns[backwards], "record times go back within a run")
        self._begun = True
        self._last, self._last_time = int(lsns[-1]), int(times[-1])
        return lsns[boot]

    # control records that are few

    def _one_by_one(
        self, table: pa.Table, lsns: Ints, kinds: Ints, times: Ints, publishes: Ints
    ) -> list[tuple[int, Ints]]:
        took: list[tuple[int, Ints]] = []
        rows = np.flatnonzero(~publishes & (_OP_OF[np.minimum(kinds, 63)] < 0))
        some = table.take(pa.array(rows))
        names = cast("list[str | None]", some.column("name").to_pylist())
        headers = cast("list[bytes | None]", some.column("properties").to_pylist())
        bodies = cast("list[bytes | None]", some.column("body").to_pylist())
        routes = numbers(some, "route", NO_ROUTE).tolist()
        for i, row in enumerate(rows.tolist()):
            lsn = int(lsns[row])
            try:
                kind = Kind(int(kinds[row]))
                self._control(kind, lsn, names[i] or "", headers[i] or b"", bodies[i] or b"", routes[i], int(times[row]), took)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                self._find("positions", np.array([lsn]), f"a record cannot be read: {type(error).__name__} {error}")
        return took

    def _control(
        self, kind: Kind, lsn: int, name: str, header: bytes, body: bytes, route: int, time: int,
        took: list[tuple[int, Ints]],
    ) -> None:  # fmt: skip
        values = np.frombuffer(body, dtype="<i8") if kind in _WITH_QUEUE else NONE
        match kind:
            case Kind.BOOT:
                for queue in self._queues.values():
                    if not queue.ended and (queue.exclusive or not queue.durable):
                        self._end_queue(queue, lsn)
            case Kind.ROUTE:
                if route in self._routes:
                    self._find("routes", np.array([lsn]), f"route {route} was told twice")
                self._routes[route] = lsn, tuple(values.tolist())
            case Kind.TOOK:
                took.append((int(values[0]), values[1:].reshape(-1, 2)))
            case Kind.QUEUE_DECLARE:
                told = load(header)
                once = load_settings(told["settings"]).semantics == "at-most-once"
                self._queues[lsn] = AuditedQueue(lsn, name, bool(told["durable"]), bool(told["exclusive"]), [(lsn, once)])
            case Kind.QUEUE_ALTER | Kind.QUEUE_DELETE:
                queue = self._queues.get(int(values[0]))
                if queue is None or queue.ended:
                    self._find("ends once", np.array([lsn]), f"queue '{name}' is altered or deleted, but it is not there")
                elif kind is Kind.QUEUE_DELETE:
                    self._end_queue(queue, lsn)
                else:
                    once = load_settings(load(header)["settings"]).semantics == "at-most-once"
                    queue.once.append((lsn, once))
            case Kind.PUBLISHERS:
                for publisher, sequence in cast("dict[str, int]", load(header)).items():
                    if sequence <= self._publishers.get(publisher, sequence - 1):
                        text = f"publisher '{publisher}' goes back from sequence {self._publishers[publisher]} to {sequence}"
                        self._find("publishers", np.array([lsn]), text)
                    self._publishers[publisher] = sequence
            case Kind.SINK_COMMIT:
                batch = cast(int, load(header)["batch"])
                highest = self._sinks.get(name, -1)
                self._counts["sink batches"] += 1
                if batch <= highest:
                    self._find("sinks", np.array([lsn]), f"query '{name}' committed batch {batch} after batch {highest}")
                self._sinks[name] = max(batch, highest)
            case Kind.STREAM | Kind.PLAN | Kind.PLAN_SETTLE | Kind.STREAM_RELEASE:
                self._stream(kind, lsn, name, cast("dict[str, int]", load(header)), values, time)
            case _:
                pass  # topology and the log's own records promise nothing about messages

    def _end_queue(self, queue: AuditedQueue, lsn: int) -> None:
        queue.ended = lsn
        for name in [n for n, stream in self._streams.items() if stream.queue == queue.id and stream.mode == "queue"]:
            del self._streams[name]

    def _stream(self, kind: Kind, lsn: int, name: str, header: dict[str, int], values: Ints, time: int) -> None:
        def wrong(text: str) -> None:
            self._find("stream batches", np.array([lsn]), f"stream '{name}': {text}")

        stream = self._streams.get(name)
        if kind is Kind.STREAM:
            if stream is None:
                stream = self._streams[name] = _Stream(header["queue"], str(header["mode"]))
            if header["epoch"] <= stream.epoch:
                wrong(f"epoch {header['epoch']} follows epoch {stream.epoch}")
            stream.epoch = header["epoch"]
            return
        if stream is None:
            wrong("it was never opened")
            return
        if kind is Kind.STREAM_RELEASE:
            stream.epoch = header.get("epoch", stream.epoch)
            stream.plans.clear()
        elif kind is Kind.PLAN:
            self._counts["stream batches"] += 1
            if header["batch"] != stream.planned + 1:
                wrong(f"batch {header['batch']} was planned after batch {stream.planned}")
            if header["epoch"] != stream.epoch:
                wrong(f"batch {header['batch']} was planned under epoch {header['epoch']}, and {stream.epoch} holds")
            stream.planned = header["batch"]
            pairs = values[1:].reshape(-1, 2)
            queue = self._queues.get(stream.queue)
            if stream.mode == "queue" and queue is not None:
                stream.plans[stream.planned] = pairs
                same = np.zeros(len(pairs), dtype=np.int64)
                queue.events.append(Events(pairs[:, 0], pairs[:, 1], same + lsn, same + int(Op.PLAN), same, same + time))
        else:
            batch = header["batch"]
            if not stream.floor < batch <= stream.planned:
                wrong(f"batch {batch} was settled; {stream.floor} was before, and {stream.planned} are planned")
            for number in [number for number in stream.plans if number <= batch]:
                self._settled.append((name, lsn, stream.queue, stream.plans.pop(number)))
            stream.floor = max(batch, stream.floor)

    # messages and what happens to them

    def _members(
        self, table: pa.Table, lsns: Ints, kinds: Ints, times: Ints, publishes: Ints, took: list[tuple[int, Ints]]
    ) -> None:
        rows = np.flatnonzero(publishes)
        if not len(rows):
            return
        own, moments = lsns[rows], times[rows]
        transient = (kinds[rows] == int(Kind.PUBLISH_TRANSIENT)).astype(np.int64)
        until = numbers(table, "not_before", 0)[rows]
        state = np.where(until > moments, DELAYED, np.where(until > 0, PAST, READY))
        by_queue: dict[int, list[Ints]] = {}
        routed = groups(numbers(table, "route", NO_ROUTE)[rows])
        self._counts["messages that a topic kept"] += len(routed.pop(NO_ROUTE, NONE))
        for route, where in routed.items():
            told, queues = self._routes.get(route, (0, None))
            if queues is None or told > own[where[0]]:
                self._find("routes", own[where], f"route {route} was not told before it was used")
            for number in queues or ():
                by_queue.setdefault(number, []).append(where)
        for number, pairs in took:
            start, end = np.searchsorted(own, pairs[:, 0]), np.searchsorted(own, pairs[:, 1])
            by_queue.setdefault(number, []).extend(
                np.arange(low, high) for low, high in zip(start.tolist(), end.tolist(), strict=True)
            )
            self._counts["messages that a topic kept"] -= int((end - start).sum())
        for number, pieces in by_queue.items():
            where = pieces[0] if len(pieces) == 1 else np.unique(np.concatenate(pieces))
            queue = self._queues.get(number)
            if queue is None:
                self._find("routes", own[where], f"messages went to queue {number}, which was never declared")
                continue
            dead = (own[where] > queue.ended) if queue.ended else (own[where] < queue.id)
            if dead.any():
                self._find("routes", own[where[dead]], f"messages went to {queue.title} while it was not there")
                where = where[~dead]
            queue.take(own[where], np.zeros(len(where), dtype=np.int64), state[where], until[where], transient[where])

    def _events(
        self, table: pa.Table, lsns: Ints, kinds: Ints, times: Ints, publishes: Ints, batch_of: Ints
    ) -> None:
        op = _OP_OF[np.minimum(kinds, 63)]
        rows = np.flatnonzero(op >= 0)
        if not len(rows):
            return
        some = table.select(["properties", "body"]).take(pa.array(rows))
        queues, counts, a, b = pair_bodies(some.column("body"))
        bad = queues < 0
        if bad.any():
            self._find("positions", lsns[rows[bad]], "a record's pairs cannot be read")
        value = np.zeros(len(rows), dtype=np.int64)
        for code, key, usual in ((Op.GRANT, "attempt", 1), (Op.RETURN, "not_before", 0)):
            mine = np.flatnonzero(op[rows] == code)
            if len(mine):
                coded = some.column("properties").take(pa.array(mine)).combine_chunks().dictionary_encode()
                if isinstance(coded, pa.ChunkedArray):
                    coded = coded.chunk(0)
                known = [load(header or b"").get(key) for header in coded.dictionary.to_pylist()]
                meant = [usual if said is None else int(cast(int, said)) for said in known]
                value[mine] = np.array(meant, dtype=np.int64)[coded.indices.to_numpy(zero_copy_only=False)]
        self._letters(some, rows, op, lsns, publishes, batch_of, counts, a, b)
        order = np.repeat(lsns[rows], counts)
        everything = Events(a, b, order, np.repeat(op[rows], counts), np.repeat(value, counts), np.repeat(times[rows], counts))
        for number, where in groups(np.repeat(queues, counts)).items():
            queue = self._queues.get(number)
            if queue is None:
                self._find("ends once", order[where], f"records speak of queue {number}, which was never declared")
            else:
                queue.events.append(Events(*(column[where] for column in everything)))

    def _letters(
        self, some: pa.Table, rows: Ints, op: Ints, lsns: Ints, publishes: Ints, batch_of: Ints,
        counts: Ints, a: Ints, b: Ints,
    ) -> None:  # fmt: skip
        """Each dead letter: published in the group of the record that removed its one cause."""
        mine = np.flatnonzero(op[rows] == Op.EXPIRE)
        if not len(mine):
            return
        starts = np.cumsum(counts) - counts
        headers = cast("list[bytes | None]", some.column("properties").take(pa.array(mine)).to_pylist())
        written: list[Ints] = []
        for i, header in zip(mine.tolist(), headers, strict=True):
            told = load(header or b"").get("dead")
            if not told:
                continue
            dead = np.array(told, dtype=np.int64).reshape(-1, 2)
            row, lsn = int(rows[i]), int(lsns[rows[i]])
            low, high = a[starts[i] : starts[i] + counts[i]], b[starts[i] : starts[i] + counts[i]]
            sequence = np.argsort(low)
            low, high = low[sequence], high[sequence]
            at = np.searchsorted(low, dead[:, 0], side="right") - 1
            kept = (at < 0) | (high[np.maximum(at, 0)] <= dead[:, 0])
            if kept.any():
                self._find("dead letters", np.append(dead[kept].ravel(), lsn), "a dead letter's cause was not removed with it")
            where = np.minimum(np.searchsorted(lsns, dead[:, 1]), len(lsns) - 1)
            apart = (lsns[where] != dead[:, 1]) | ~publishes[where] | (batch_of[where] != batch_of[row]) | (dead[:, 1] > lsn)
            if apart.any():
                self._find("dead letters", np.append(dead[apart].ravel(), lsn), "a dead letter is not in the group of its cause")
            written.append(dead[:, 1])
        if written:
            letters, times = np.unique(np.concatenate(written), return_counts=True)
            self._counts["dead letters"] += len(letters)
            if (times > 1).any():
                self._find("dead letters", letters[times > 1], "a dead letter has two causes")


_ENDS = ("settled", "expired", "dropped", "purged", "ended with the process", "deleted with the queue")
_WITH_QUEUE = frozenset(
    {Kind.ROUTE, Kind.TOOK, Kind.QUEUE_ALTER, Kind.QUEUE_DELETE, Kind.PLAN, Kind.PLAN_SETTLE, Kind.STREAM_RELEASE}
)
