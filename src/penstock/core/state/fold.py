"""The fold: from the records of the log to the durable state, a table at a time and never message by message.

What makes it order-free inside a table, so that numpy can do it:

- a queue's id is the LSN of its declare and a route's number is never used again, so the members of a queue are all
  rows whose route names its id, whenever the queue was declared or deleted;
- nothing is put into a queue at an old LSN but by RECOVERED records, at which tables are cut, so what is removed stays
  removed: what waits is the members without the union of all removed pairs;
- counts (failures, cancels, unseen deliveries) add up, and the attempt of a grant only rises.

What depends on order (delays, the topology, streams) is folded record by record; these are few.  The fold runs no
filter, no pattern, no clock and no chance; deadlines are the one thing it computes again, from the record's time and
the settings of that moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.queue.order.runs import packed
from penstock.core.state.durable import DurableState
from penstock.core.state.encoding import load
from penstock.core.state.lsns import (
    Ints,
    blobs,
    coded,
    expand,
    groups,
    is_empty,
    lengths,
    merged,
    numbers,
    packed_integers,
    parts_beyond,
    pick,
    texts,
    whole,
    within,
)
from penstock.core.state.objects import FOLDS_OF_QUEUES, Objects
from penstock.core.state.queue_state import FoldedQueue, Part, QueueState, keep, living_pairs
from penstock.errors import LogDamaged
from penstock.records.compute import distinct_numbers
from penstock.records.kinds import NO_ROUTE, PUBLISHES, Kind

_OF_CONTROLS = ["name", "via", "route", "properties", "body"]
_IN_BULK = frozenset((Kind.SETTLE, Kind.DROP, Kind.PURGE, Kind.GRANT))
"""Kinds that come by the thousand and say nothing but pairs (and an attempt): folded without a look at each."""

_BULK = np.array([int(kind) for kind in _IN_BULK])

READS = PUBLISHES | _IN_BULK | Objects.FOLDS.keys() | FOLDS_OF_QUEUES.keys() | {Kind.SOW_PUT, Kind.SOW_DROP}
"""Kinds that change the state."""

SLACK = 1 << 20
"""Bytes of memory that sizes may have grown by before it is looked whose messages still wait."""

EXACT = 1 << 16
"""Of fewer bytes the durable state has the sizes of what waits and no others: equal histories, equal states."""


class _Stored(NamedTuple):
    """Rows of messages of one table, as parallel columns."""

    lsns: Ints
    columns: dict[str, Ints]  # what is remembered of them in whatever queue
    times: Ints | None  # None where no deadline is worked out
    expires: Ints | None  # what they say of that themselves

    def part(self, queue: FoldedQueue, where: Ints) -> Part:
        """The rows at these places as a queue has them; columns without a value are absent."""
        part: Part = {"lsn": self.lsns[where]}
        for name, values in self.columns.items():
            if (mine := values[where]).any():
                part[name] = mine
        if self.times is not None and (self.expires is not None or queue.has_deadline):
            own = None if self.expires is None else self.expires[where]
            mine = queue.deadlines(part["lsn"], self.times[where], own)
            if mine.any():
                part["expires_at"] = mine
        return part


class Fold:
    """Feed it every record from a checkpoint, a base or the beginning on, in LSN order; then take the state."""

    def __init__(self, state: DurableState | None = None) -> None:
        """`state`: what was folded before the first table (a decoded checkpoint or base)."""
        start = state if state is not None else DurableState()
        self._sizes = start.sizes.copy()
        self._unknown = 0 if start.measured else start.last_lsn  # of messages up to this LSN sizes may not be known
        self._fitted = 0
        self._last_lsn = start.last_lsn
        self._objects = Objects(start, self._sizes)
        self.records = 0

    def feed(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Fold rows in.  Rows at or below what is folded already are passed over.

        Errors: LogDamaged naming the LSN, for a kind nobody knows, a route that was never told, or a control record
        that cannot be read.
        """
        table = whole(rows)
        if not table.num_rows:
            return
        lsns, kinds = numbers(table, "lsn"), numbers(table, "kind")
        for start, stop in parts_beyond(self._last_lsn, lsns, kinds):
            self._feed(table.slice(start, stop - start), kinds[start:stop], lsns[start:stop])
            self.records += stop - start
        self._last_lsn = max(self._last_lsn, int(lsns[-1]))

    def _feed(self, table: pa.Table, kinds: Ints, lsns: Ints) -> None:
        publishes = (kinds == int(Kind.PUBLISH)) | (kinds == int(Kind.PUBLISH_TRANSIENT))
        boot = self._controls(table, ~publishes, kinds, lsns)
        self._members(table, publishes, kinds, lsns, boot)
        for queue in self._objects.queues.values():
            queue.apply()
        if self._sizes.nbytes > 2 * self._fitted + SLACK:
            self._fit_sizes()

    def finish(self) -> DurableState:
        """The durable state after everything fed.  The fold may be fed further and asked again."""
        state = self._objects.save(self._last_lsn)
        unknown = max(self._unknown, self._objects.unmeasured)
        oldest = min((chunk[0] for queue in state.queues.values() for chunk in queue.waiting[:1]), default=unknown + 1)
        state.measured = oldest > unknown
        count = sum(queue.count for queue in state.queues.values())
        if self._sizes.nbytes < EXACT or self._sizes.wasteful(count):
            state.sizes = self._sizes.only(living_pairs(state.queues.values()))
        else:
            state.sizes = self._sizes.copy()
        return state

    def queue(self, number: int) -> QueueState | None:
        """One queue after everything fed; None where there is none.  It copies no other, as `finish` does."""
        queue = self._objects.queues.get(number)
        return None if queue is None else queue.finished(self._last_lsn)

    def _fit_sizes(self) -> None:
        """Sizes take no more than a few bytes for each message that waits."""
        parts = [part["lsn"] for queue in self._objects.queues.values() for part in queue.parts if len(part["lsn"])]
        if self._sizes.wasteful(sum(map(len, parts))):
            self._sizes.become(self._sizes.only(merged([within(packed(lsns)) for lsns in parts])))
        self._fitted = self._sizes.nbytes

    # messages

    def _members(self, table: pa.Table, publishes: npt.NDArray[np.bool_], kinds: Ints, lsns: Ints, boot: int) -> None:
        """Give each queue the rows whose route names it."""
        if not publishes.any():
            return
        everything = bool(publishes.all())
        rows = np.arange(len(lsns)) if everything else np.flatnonzero(publishes)
        own = lsns if everything else lsns[rows]
        by_queue = self._takers(own, numbers(table, "route", NO_ROUTE)[rows])
        if not by_queue:
            return
        sizes = lengths(table, "body")
        self._sizes.add_rows(own, sizes if everything else sizes[rows])
        columns = self._columns(table, rows, kinds[rows] == int(Kind.PUBLISH_TRANSIENT), own)
        expires = None if is_empty(table, "expires_at") else numbers(table, "expires_at")[rows]
        timed = expires is not None or any(self._objects.queues[number].has_deadline for number in by_queue)
        times = numbers(table, "time", 0)[rows] if timed else None
        if times is not None:
            for first, stop, time in self._objects.sent:
                low, high = np.searchsorted(own, (first, stop)).tolist()
                times[low:high] = time
        stored = _Stored(own, columns, times, expires)
        self._add_members(stored, by_queue, boot)

    def _add_members(self, stored: _Stored, by_queue: Mapping[int, list[Ints]], boot: int) -> None:
        """Add rows to the queues that took them: those that they do not have already, and that no start has ended."""
        own = stored.lsns
        for number, pieces in by_queue.items():
            queue = self._objects.queues[number]
            where = pieces[0] if len(pieces) == 1 else distinct_numbers(np.concatenate(pieces))
            if queue.since >= own[where[0]]:
                where = where[own[where] > queue.since]
            if len(where):
                part = stored.part(queue, where)
                if boot and "transient" in part and int(part["lsn"][0]) < boot:
                    keep(part, (part["transient"] == 0) | (part["lsn"] > boot))
                if len(part["lsn"]):
                    queue.parts.append(part)

    def _takers(self, lsns: Ints, routes: Ints) -> dict[int, list[Ints]]:
        """By queue the places of the rows that it takes: by their routes, and by what TOOK records say beside them."""
        objects, out = self._objects, dict[int, list[Ints]]()
        by_route = groups(routes)
        by_route.pop(NO_ROUTE, None)
        for route, where in by_route.items():
            queues = objects.routes.get(route)
            if queues is None:
                raise LogDamaged(f"the record at LSN {lsns[where[0]]} names route {route}, which was never told")
            for number in queues:
                if number in objects.queues:
                    out.setdefault(number, []).append(where)
        for number, took in objects.took.items():
            if number in objects.queues:
                taken = expand(np.searchsorted(lsns, took[0::2]), np.searchsorted(lsns, took[1::2]))
                out.setdefault(number, []).append(taken)
        objects.took.clear()
        return out

    def _columns(self, table: pa.Table, rows: Ints, transient: npt.NDArray[np.bool_], lsns: Ints) -> dict[str, Ints]:
        """What is remembered of these rows in whatever queue, besides deadlines; columns without a value are absent."""
        out: dict[str, Ints] = {}
        if transient.any():
            out["transient"] = transient.astype(np.int64)
        if self._objects.letters:
            out["letter"] = np.isin(lsns, np.array(self._objects.letters, dtype=np.int64)).astype(np.int64)
        if not is_empty(table, "not_before"):
            due = numbers(table, "not_before", 0)[rows]
            out["not_before"] = np.where(due > numbers(table, "time", 0)[rows], due, 0)  # what was over was no delay
        return out

    # control records

    def _controls(self, table: pa.Table, controls: npt.NDArray[np.bool_], kinds: Ints, lsns: Ints) -> int:
        """Fold the control records of one table; returns the LSN of its last BOOT, 0 if it has none."""
        self._objects.took.clear()
        self._objects.letters.clear()
        self._objects.sent.clear()
        bulk = controls & np.isin(kinds, _BULK)
        keyed = controls & ((kinds == int(Kind.SOW_PUT)) | (kinds == int(Kind.SOW_DROP)))
        few = controls & ~bulk & ~keyed
        boot = 0
        if few.any():
            boot = self._one_by_one(pick(table, few, _OF_CONTROLS), kinds[few], lsns[few])
        if keyed.any():
            self._records_of_topics(pick(table, keyed, ["body"]), kinds[keyed], lsns[keyed])
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
                text = f"the record at LSN {lsn} has the unknown kind {number}, or a newer Penstock wrote it"
                raise LogDamaged(text) from None
            try:
                self._objects.fold(kind, lsn, names[i], headers[i], bodies[i], vias[i], routes[i])
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise LogDamaged(f"the {kind.name} record at LSN {lsn} cannot be read: {error}") from error
            if kind is Kind.BOOT:
                boot = lsn
        return boot

    def _records_of_topics(self, some: pa.Table, kinds: Ints, lsns: Ints) -> None:
        """Fold what became of the records of SOW topics; an id is never used again, so declares may go first."""
        values, offsets = packed_integers(some)
        wrong = np.flatnonzero(np.diff(offsets) % 8)
        try:
            if len(wrong):
                raise ValueError(f"record {int(wrong[0])} has {int(np.diff(offsets)[wrong[0]])} bytes")
            self._objects.fold_sow(kinds, values, offsets // 8)
        except (ValueError, IndexError) as error:
            raise LogDamaged(f"SOW records between LSN {lsns[0]} and {lsns[-1]} cannot be read: {error}") from error

    def _in_bulk(self, some: pa.Table, kinds: Ints, lsns: Ints) -> None:
        """Fold removals and grants: what they say does not depend on their order."""
        values, offsets = packed_integers(some)
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
        for code, where in groups(of_pair).items():
            queue = self._objects.queues.get(int(ids[code // span]))
            if queue is None:
                continue  # one about a queue that is gone says nothing any more
            if attempt := code % span:
                queue.counted.append(("deliveries", attempt, pairs[where]))
            else:
                queue.removed.append(pairs[where])
