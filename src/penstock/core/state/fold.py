"""The fold: from the records of the log to the durable state, a table at a time and never message by message.

What makes it order-free inside a table, so that numpy can do it:

- a queue's id is the LSN of its declare and a route's number is never used again, so the members of a queue are all
  rows whose route names its id, whenever the queue was declared or deleted;
- nothing is ever put into a queue at an old LSN, so what is removed stays removed: what waits is the members without
  the union of all removed pairs;
- counts (failures, cancels) add up, and the attempt of a grant only rises.

What depends on order (delays, the topology, streams) is folded record by record; these are few.  The fold runs no
filter, no pattern, no clock and no chance; deadlines are the one thing it computes again, from the record's time and
the settings of that moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.queue.expiry import deadlines
from penstock.core.state.arrow import blobs, coded, is_empty, numbers, packed_integers, pick, texts, whole
from penstock.core.state.durable import (
    Binding,
    DurableState,
    ExchangeState,
    Ints,
    QueueState,
    StreamState,
    flat,
    ints,
    spread,
    to_array,
)
from penstock.core.state.plain import as_table, load, load_settings
from penstock.core.topology.topology import Topology, canonical_table
from penstock.errors import LogDamaged
from penstock.records.kinds import NO_ROUTE, Kind
from penstock.records.settings import QueueSettings

_OF_CONTROLS = ["name", "via", "route", "properties", "body"]
_BULK = np.array([int(Kind.SETTLE), int(Kind.DROP), int(Kind.PURGE), int(Kind.GRANT)])
"""Kinds that come by the thousand and say nothing but pairs (and an attempt): folded without a look at each."""
_NONE = np.zeros(0, dtype=np.int64)
_NO_PAIRS = np.zeros((0, 2), dtype=np.int64)

Part: TypeAlias = "dict[str, Ints]"  # "lsn" ascending, and the columns of COLUMNS that are not all at rest


@dataclass(slots=True)
class _Queue:
    """One queue while it is folded: the messages of each table as one part."""

    state: QueueState
    parts: list[Part] = field(default_factory=list["Part"])
    removed: list[Ints] = field(default_factory=list["Ints"])  # pairs of this table, shape (n, 2)
    counted: list[tuple[str, int, Ints]] = field(default_factory=list[tuple[str, int, "Ints"]])  # column, value, pairs
    delayed: list[tuple[str, int, Ints]] = field(default_factory=list[tuple[str, int, "Ints"]])  # in order; last wins
    settings: list[tuple[int, QueueSettings]] = field(default_factory=list[tuple[int, QueueSettings]])  # from an LSN on


class Fold:
    """Feed it every record from a checkpoint, a base or the beginning on, in LSN order; then take the state."""

    def __init__(self, state: DurableState | None = None) -> None:
        """`state`: what was folded before the first table (a decoded checkpoint or base)."""
        start = state if state is not None else DurableState()
        self._topology = Topology()
        self._topology.load(start)
        self._last_lsn = start.last_lsn
        self._unclean = start.unclean
        self._queues: dict[int, _Queue] = {}
        self._ids: dict[tuple[str, str], int] = {}
        for queue in start.queues.values():
            self._add_queue(queue)
        self._vias = dict(start.vias)
        self._routes: dict[int, tuple[int, ...]] = dict(start.routes)
        self._next_route = start.next_route
        self._publishers = dict(start.publishers)
        self._streams = {
            name: StreamState(s.queue, s.epoch, s.mode, s.floor, s.planned, dict(s.plans))
            for name, s in start.streams.items()
        }
        self._sinks = dict(start.sinks)
        self._records = 0

    @property
    def records(self) -> int:
        """Rows fed so far."""
        return self._records

    def feed(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Fold rows in.  Rows at or below what is folded already are passed over.

        Errors: LogDamaged naming the LSN, for a kind nobody knows, a route that was never told, or a control record
        that cannot be read.
        """
        table = whole(rows)
        if not table.num_rows:
            return
        lsns = numbers(table, "lsn")
        if int(lsns[0]) <= self._last_lsn:
            start = int(np.searchsorted(lsns, self._last_lsn, side="right"))
            table, lsns = table.slice(start), lsns[start:]
            if not len(lsns):
                return
        kinds = numbers(table, "kind")
        publishes = (kinds == int(Kind.PUBLISH)) | (kinds == int(Kind.PUBLISH_TRANSIENT))
        boot = self._controls(table, ~publishes, kinds, lsns)
        self._members(table, publishes, kinds, lsns, boot)
        for queue in self._queues.values():
            _apply(queue)
        self._last_lsn = int(lsns[-1])
        self._records += len(lsns)

    def finish(self) -> DurableState:
        """The durable state after everything fed.  The fold may be fed further and asked again."""
        state = DurableState(self._last_lsn, self._unclean)
        self._topology.save(state)
        for number, queue in sorted(self._queues.items()):
            state.queues[number] = _finished(queue)
        state.vias = dict(self._vias)
        state.routes = {
            number: queues for number, queues in self._routes.items() if all(queue in self._queues for queue in queues)
        }
        state.next_route = self._next_route
        state.publishers = dict(self._publishers)
        state.streams = {
            name: StreamState(s.queue, s.epoch, s.mode, s.floor, s.planned, dict(s.plans))
            for name, s in self._streams.items()
        }
        state.sinks = dict(self._sinks)
        return state

    # messages

    def _members(self, table: pa.Table, publishes: npt.NDArray[np.bool_], kinds: Ints, lsns: Ints, boot: int) -> None:
        """Give each queue the rows whose route names it."""
        if not publishes.any():
            return
        everything = bool(publishes.all())
        rows = np.arange(len(lsns)) if everything else np.flatnonzero(publishes)
        routes = numbers(table, "route", NO_ROUTE)[rows]
        groups = _groups(routes)
        groups.pop(NO_ROUTE, None)
        by_queue: dict[int, list[Ints]] = {}
        for route, where in groups.items():
            queues = self._routes.get(route)
            if queues is None:
                raise LogDamaged(f"the record at LSN {lsns[rows[where[0]]]} names route {route}, which was never told")
            for number in queues:
                if number in self._queues:
                    by_queue.setdefault(number, []).append(where)
        for number, took in self._took.items():
            if number in self._queues:
                starts = np.searchsorted(lsns[rows], took[0::2])
                ends = np.searchsorted(lsns[rows], took[1::2])
                by_queue.setdefault(number, []).append(_expand(starts, ends))
        self._took.clear()
        letters = np.array(self._letters, dtype=np.int64)
        transient = kinds[rows] == int(Kind.PUBLISH_TRANSIENT)
        extra: dict[str, Ints] = {}
        if transient.any():
            extra["transient"] = transient.astype(np.int64)
        if len(letters):
            extra["letter"] = np.isin(lsns[rows], letters).astype(np.int64)
        if not is_empty(table, "not_before"):
            extra["not_before"] = numbers(table, "not_before", 0)[rows]
        expires = None if is_empty(table, "expires_at") else numbers(table, "expires_at")[rows]
        times: Ints | None = None
        own = lsns if everything else lsns[rows]
        for number, pieces in by_queue.items():
            where = pieces[0] if len(pieces) == 1 else np.unique(np.concatenate(pieces))
            queue = self._queues[number]
            part: Part = {"lsn": own[where]}
            for name, values in extra.items():
                if (mine := values[where]).any():
                    part[name] = mine
            if expires is not None or _has_deadline(queue):
                if times is None:
                    times = numbers(table, "time", 0)[rows]
                mine = _deadlines(queue, part["lsn"], times[where], None if expires is None else expires[where])
                if mine.any():
                    part["expires_at"] = mine
            if boot and "transient" in part and int(part["lsn"][0]) < boot:
                _keep(part, (part["transient"] == 0) | (part["lsn"] > boot))
            if len(part["lsn"]):
                queue.parts.append(part)

    # control records

    def _controls(self, table: pa.Table, controls: npt.NDArray[np.bool_], kinds: Ints, lsns: Ints) -> int:
        """Fold the control records of one table; returns the LSN of its last BOOT, 0 if it has none."""
        self._took: dict[int, Ints] = {}
        self._letters: list[int] = []
        bulk = controls & np.isin(kinds, _BULK)
        few = controls & ~bulk
        boot = 0
        if few.any():
            boot = self._one_by_one(pick(table, few, _OF_CONTROLS), kinds[few], lsns[few])
        if bulk.any():
            self._in_bulk(pick(table, bulk, ["properties", "body"]), kinds[bulk], lsns[bulk])
        return boot

    def _one_by_one(self, some: pa.Table, kinds: Ints, lsns: Ints) -> int:
        """Fold records whose order matters, in order."""
        boot = 0
        names, headers, bodies = texts(some, "name"), blobs(some, "properties"), blobs(some, "body")
        vias, routes = numbers(some, "via", -1).tolist(), numbers(some, "route", NO_ROUTE).tolist()
        for i, (number, lsn) in enumerate(zip(kinds.tolist(), lsns.tolist(), strict=True)):
            try:
                kind = Kind(number)
            except ValueError:
                raise LogDamaged(f"the record at LSN {lsn} has the unknown kind {number}") from None
            try:
                if kind is Kind.BOOT:
                    boot = lsn
                    self._boot(lsn, load(headers[i]))
                else:
                    self._control(kind, lsn, names[i], headers[i], bodies[i], vias[i], routes[i])
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise LogDamaged(f"the {kind.name} record at LSN {lsn} cannot be read: {error}") from error
        return boot

    def _in_bulk(self, some: pa.Table, kinds: Ints, lsns: Ints) -> None:
        """Fold removals and grants: what they say does not depend on their order."""
        values, offsets = packed_integers(some, "body")
        lengths = np.diff(offsets)
        wrong = np.flatnonzero((lengths < 8) | (lengths % 16 != 8))
        if len(wrong):
            i = int(wrong[0])
            raise LogDamaged(f"the {Kind(int(kinds[i])).name} record at LSN {lsns[i]} has a body of {lengths[i]} bytes")
        starts = offsets[:-1] // 8
        is_pair = np.ones(len(values), dtype=bool)
        is_pair[starts] = False
        pairs = values[is_pair].reshape(-1, 2)
        attempts = np.zeros(len(kinds), dtype=np.int64)  # 0: a removal
        grants = kinds == int(Kind.GRANT)
        if grants.any():
            headers, which = coded(pick(some, grants), "properties")
            known = np.array([cast(int, load(header).get("attempt", 1)) for header in headers], dtype=np.int64)
            attempts[grants] = known[which]
        ids, codes = np.unique(values[starts], return_inverse=True)
        span = int(attempts.max()) + 1
        of_pair = np.repeat(codes.reshape(-1) * span + attempts, (lengths // 8 - 1) // 2)
        if not len(of_pair):
            return
        for code, where in _groups(of_pair).items():
            queue = self._queues.get(int(ids[code // span]))
            if queue is None:
                continue  # one about a queue that is gone says nothing any more
            if attempt := code % span:
                queue.counted.append(("deliveries", attempt, pairs[where]))
            else:
                queue.removed.append(pairs[where])

    def _queue_and_pairs(self, body: bytes) -> tuple[_Queue | None, Ints]:
        values = np.frombuffer(body, dtype="<i8")
        return self._queues.get(int(values[0])), values[1:].reshape(-1, 2)

    def _control(self, kind: Kind, lsn: int, name: str, header: bytes, body: bytes, via: int, route: int) -> None:
        match kind:
            case Kind.ROUTE:
                self._routes[route] = tuple(np.frombuffer(body, dtype="<i8").tolist())
                self._next_route = max(self._next_route, route + 1)
            case Kind.VIA:
                table = load(header)
                self._vias[via] = (str(table["vhost"]), str(table["exchange"]))
            case Kind.TOOK:
                values = np.frombuffer(body, dtype="<i8")
                number = int(values[0])
                self._took[number] = np.concatenate((self._took.get(number, _NONE), values[1:]))
            case Kind.EXPIRE:
                self._letters += [new for _, new in cast("list[tuple[int, int]]", load(header).get("dead") or ())]
                queue, pairs = self._queue_and_pairs(body)
                if queue is not None:
                    queue.removed.append(pairs)
            case Kind.RETURN:
                self._returned(load(header), body)
            case Kind.DUE:
                queue, pairs = self._queue_and_pairs(body)
                if queue is not None:
                    queue.delayed.append(("not_before", 0, pairs))
                    if load(header).get("place"):
                        queue.delayed.append(("place", lsn, pairs))
            case Kind.PUBLISHERS:
                for publisher, sequence in cast("dict[str, int]", load(header)).items():
                    self._publishers[publisher] = max(sequence, self._publishers.get(publisher, sequence))
            case Kind.SINK_COMMIT:
                self._sinks[name] = cast(int, load(header)["batch"])
            case Kind.STREAM | Kind.PLAN | Kind.PLAN_SETTLE | Kind.STREAM_RELEASE:
                self._stream(kind, name, load(header), body)
            case Kind.MARK | Kind.BASE | Kind.DECIDED:
                pass  # the log's own business: the state it repeats has been folded or was given at the start
            case _:
                self._shape(kind, lsn, name, load(header), body)

    def _returned(self, header: dict[str, object], body: bytes) -> None:
        queue, pairs = self._queue_and_pairs(body)
        if queue is None:
            return
        for key, column in (("failed", "failures"), ("cancelled", "cancels")):
            if times := int(cast(int, header.get(key) or 0)):
                queue.counted.append((column, times, pairs))
        if not_before := cast(int, header.get("not_before") or 0):
            queue.delayed.append(("not_before", not_before, pairs))

    def _shape(self, kind: Kind, lsn: int, name: str, header: dict[str, object], body: bytes) -> None:
        """Topology and settings."""
        vhost = str(header.get("vhost", "/"))
        match kind:
            case Kind.EXCHANGE_DECLARE:
                exchange = ExchangeState(
                    str(header["type"]), bool(header["durable"]), bool(header["auto_delete"]), bool(header["internal"]),
                    as_table(header["arguments"]),
                )  # fmt: skip
                self._topology.declare_exchange(vhost, name, exchange)
            case Kind.EXCHANGE_DELETE:
                self._topology.delete_exchange(vhost, name)
            case Kind.BIND:
                self._topology.bind(read_binding(header))
            case Kind.UNBIND:
                self._topology.unbind(read_binding(header))
            case Kind.TOPIC_DECLARE:
                self._topology.declare_topic(vhost, str(header["exchange"]), name, as_table(header["settings"]))
            case Kind.TOPIC_DELETE:
                self._topology.delete_topic(vhost, str(header["exchange"]), name)
            case Kind.QUEUE_DECLARE:
                self._add_queue(
                    QueueState(
                        lsn,
                        vhost,
                        name,
                        load_settings(header["settings"]),
                        bool(header["durable"]),
                        bool(header["exclusive"]),
                        bool(header["auto_delete"]),
                        as_table(header["arguments"]),
                    )
                )
            case Kind.QUEUE_ALTER:
                number = int(np.frombuffer(body, dtype="<i8")[0])
                if (queue := self._queues.get(number)) is not None:
                    queue.state.settings = load_settings(header["settings"])
                    queue.settings.append((lsn, queue.state.settings))
            case Kind.QUEUE_DELETE:
                self._drop_queue(int(np.frombuffer(body, dtype="<i8")[0]))
            case _:
                raise ValueError("no rule for this kind")

    def _stream(self, kind: Kind, name: str, header: dict[str, object], body: bytes) -> None:
        numbers = cast("dict[str, int]", header)
        match kind:
            case Kind.STREAM:
                stream = self._streams.setdefault(name, StreamState(numbers["queue"]))
                stream.queue, stream.epoch = numbers["queue"], numbers["epoch"]
                stream.mode = str(header["mode"])
            case Kind.PLAN:
                stream = self._streams[name]
                stream.planned = numbers["batch"]
                stream.plans[stream.planned] = to_array(np.frombuffer(body, dtype="<i8")[1:])
                stream.forget_old()
            case Kind.PLAN_SETTLE:
                stream = self._streams[name]
                for batch in range(stream.floor + 1, numbers["batch"] + 1):
                    if (queue := self._queues.get(stream.queue)) is not None and batch in stream.plans:
                        queue.removed.append(ints(stream.plans[batch]).reshape(-1, 2))
                stream.floor = numbers["batch"]
                stream.forget_old()
            case _:
                stream = self._streams[name]
                stream.epoch = numbers.get("epoch", stream.epoch)
                stream.release()

    def _boot(self, lsn: int, header: dict[str, object]) -> None:
        """BOOT: exclusive and non-durable queues, non-durable exchanges and transient messages end."""
        if not header.get("clean"):
            self._unclean = lsn
        for number in [n for n, queue in self._queues.items() if queue.state.exclusive or not queue.state.durable]:
            self._drop_queue(number)
        self._topology.boot()
        for queue in self._queues.values():
            for part in queue.parts:
                if "transient" in part:
                    _keep(part, part["transient"] == 0)
            queue.parts = [part for part in queue.parts if len(part["lsn"])]

    def _add_queue(self, state: QueueState) -> None:
        copy = QueueState(
            state.id, state.vhost, state.name, state.settings, state.durable, state.exclusive, state.auto_delete,
            state.arguments,
        )  # fmt: skip
        queue = self._queues[state.id] = _Queue(copy, settings=[(0, state.settings)])
        self._ids[state.vhost, state.name] = state.id
        if state.waiting:
            lsns = flat(state.waiting)
            queue.parts.append({"lsn": lsns, **{name: spread(lsns, runs) for name, runs in state.columns.items()}})

    def _drop_queue(self, number: int) -> None:
        queue = self._queues.pop(number, None)
        if queue is None:
            return
        if self._ids.get((queue.state.vhost, queue.state.name)) == number:
            del self._ids[queue.state.vhost, queue.state.name]
            self._topology.queue_gone(queue.state.vhost, queue.state.name)
        for name in [name for name, stream in self._streams.items() if stream.queue == number]:
            del self._streams[name]


def read_binding(header: dict[str, object]) -> Binding:
    """The binding of a BIND or UNBIND header."""
    return Binding(
        str(header["vhost"]), str(header["source"]), str(header["destination"]), str(header["destination_type"]),
        str(header["key"]), canonical_table(as_table(header["arguments"])),
    )  # fmt: skip


def _groups(values: Ints) -> dict[int, Ints]:
    """Row numbers of each distinct value, ascending."""
    low, high = int(values.min()), int(values.max())
    # one value is the usual case, and needs no sorting
    if low == high:
        return {low: np.arange(len(values))}
    if high - low < 65_536:
        codes = (values - low).astype(np.uint16)  # 16 bits: numpy's stable sort is a radix sort
        order = np.argsort(codes, kind="stable")
        counts = np.bincount(codes)
        present = np.flatnonzero(counts)
        ends = np.cumsum(counts[present])
        names = (present + low).tolist()
    else:
        order = np.argsort(values, kind="stable")
        distinct, counts = np.unique(values, return_counts=True)
        ends = np.cumsum(counts)
        names = distinct.tolist()
    return dict(zip(names, np.split(order, ends[:-1]), strict=True))


def _expand(starts: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]) -> Ints:
    """All row numbers of the half-open spans."""
    lengths = ends - starts
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))


def _has_deadline(queue: _Queue) -> bool:
    return any(s.expiration is not None or s.message_ttl is not None for _, s in queue.settings)


def _deadlines(queue: _Queue, lsns: Ints, times: Ints, expires: Ints | None) -> Ints:
    """Deadlines by the settings that held when each row was written."""
    own = np.zeros(len(lsns), dtype=np.int64) if expires is None else expires
    if len(queue.settings) == 1:
        return deadlines(queue.settings[0][1], times, own)
    out = np.zeros(len(lsns), dtype=np.int64)
    for i, (since, settings) in enumerate(queue.settings):
        start = int(np.searchsorted(lsns, since))
        until = queue.settings[i + 1][0] if i + 1 < len(queue.settings) else None
        end = len(lsns) if until is None else int(np.searchsorted(lsns, until))
        if start < end:
            out[start:end] = deadlines(settings, times[start:end], own[start:end])
    return out


def _keep(part: Part, kept: npt.NDArray[np.bool_]) -> None:
    if not kept.all():
        for name in part:
            part[name] = part[name][kept]


def _cover(lsns: Ints, pairs: Ints) -> Ints | None:
    """How many of the pairs each LSN lies in; None if none holds any."""
    starts = np.searchsorted(lsns, pairs[:, 0])
    ends = np.searchsorted(lsns, pairs[:, 1])
    hit = ends > starts
    if not hit.any():
        return None
    size = len(lsns) + 1
    marks = np.bincount(starts[hit], minlength=size) - np.bincount(ends[hit], minlength=size)
    return np.cumsum(marks[:-1])


def _apply(queue: _Queue) -> None:
    """Bring this table's events to the parts they touch.  Removals first: what is gone needs no counting."""
    removed = np.concatenate(queue.removed) if queue.removed else _NO_PAIRS
    queue.removed.clear()
    if len(removed):
        low, high = int(removed[:, 0].min()), int(removed[:, 1].max())
        for part in queue.parts:
            lsns = part["lsn"]
            if int(lsns[-1]) >= low and int(lsns[0]) < high:
                covered = _cover(lsns, removed)
                if covered is not None:
                    _keep(part, covered == 0)
        queue.parts = [part for part in queue.parts if len(part["lsn"])]
    if queue.counted:
        _count(queue)
    for column, value, pairs in queue.delayed:
        for part in queue.parts:
            covered = _cover(part["lsn"], pairs)
            if covered is not None:
                here = part.get(column)
                part[column] = np.where(covered > 0, value, 0 if here is None else here)
    queue.delayed.clear()
    if len(queue.settings) > 1:
        queue.settings = [(0, queue.state.settings)]


def _count(queue: _Queue) -> None:
    grouped: dict[tuple[str, int], list[Ints]] = {}
    for column, value, pairs in queue.counted:
        grouped.setdefault((column, value), []).append(pairs)
    queue.counted.clear()
    for (column, value), pieces in sorted(grouped.items(), key=_by_column_and_value):
        pairs = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        for part in queue.parts:
            covered = _cover(part["lsn"], pairs)
            if covered is None:
                continue
            before = part.get(column)
            if before is None:
                before = np.zeros(len(covered), dtype=np.int64)
            if column == "deliveries":  # the attempt of a grant; a later one is higher
                part[column] = np.where(covered > 0, np.maximum(before, value), before)
            else:
                part[column] = before + covered * value


def _by_column_and_value(item: tuple[tuple[str, int], list[Ints]]) -> tuple[str, int]:
    return item[0]


def _finished(queue: _Queue) -> QueueState:
    s = queue.state
    blank = QueueState(s.id, s.vhost, s.name, s.settings, s.durable, s.exclusive, s.auto_delete, s.arguments)
    parts = [part for part in queue.parts if len(part["lsn"])]
    if not parts:
        return blank
    lsns = parts[0]["lsn"] if len(parts) == 1 else np.concatenate([part["lsn"] for part in parts])
    columns = {
        name: np.concatenate([part.get(name, np.zeros(len(part["lsn"]), dtype=np.int64)) for part in parts])
        for name in {name for part in parts for name in part if name != "lsn"}
    }
    return QueueState.fill(blank, lsns, columns)
