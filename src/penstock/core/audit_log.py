"""The audit: what the log says about every guarantee, from its records alone.

Feed it all record batches of a log in order, as they were written, for a group lies in one batch.  It keeps a window of
some hundred thousand rows and works on them with numpy; `finish` gives counts and findings.

It is held against the fold, so it shares with it but what says how bytes are read: columns, headers, settings, and the
state of a base.  What a kind does to messages the fold has as functions (`core.state.objects`), and the audit works out
of the table of kinds (`of` and `to`), which the fold does not read; pairs are parted from bodies here once more.

    positions       LSNs rise, without holes within a run; a start after an unclean stop leaves 2^32 free
    times           record times never decrease within a run
    routes          every route was told, and names queues that live
    ends once       what a queue took is settled, expired, dropped, purged, gone with queue or process, or waits; once
    one holder      granted while ready, returned while held
    one owner       nothing is granted that another site owns
    attempts        each grant's attempt is one more than the one before
    delays          nothing delayed is granted or due before its time
    at most once    such a queue leases nothing: the removal is on record before the message is sent
    dead letters    one cause each, removed by the record of the same group
    transactions    all records of one lie in one group
    stream batches  one after another, disjoint, settled once, gone when settled
    sinks           a query's batches are committed once, in order, each with all its chunks before the next
    publishers      sequences rise
    policies        what rules a queue is there; what goes lets go of its queues
    counts          what waits is what the fold says
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import cast

import numpy as np
import pyarrow as pa

from penstock.core.audit_controls import LetterAudit, PolicyAudit, PositionAudit, Row, SinkAudit, StreamAudit, Window
from penstock.core.audit_histories import (
    DELAYED,
    LSNS_MOST,
    NONE,
    PAST,
    PLANNED,
    READY,
    TRIED,
    WHOLE,
    AuditedQueue,
    Events,
    Part,
    QueuePart,
    Report,
    Share,
    verdict,
)
from penstock.core.state.durable import DurableState
from penstock.core.state.encoding import load, load_settings
from penstock.core.state.lsns import (
    Ints,
    blobs,
    coded,
    expand,
    flat,
    groups,
    numbers,
    packed_integers,
    parts_beyond,
    pick,
    spread,
    texts,
)  # fmt: skip
from penstock.core.topology.ruling import load_some, with_some
from penstock.records.compute import GATHERED, distinct_numbers, taken
from penstock.records.kinds import MEANINGS, MOVES, NO_ROUTE, PUBLISHES, Kind, State

WINDOW = 400_000
"""Rows that are looked at in one go, unless they are large."""

_MOVES, _KNOWN = [int(kind) for kind in MOVES], {int(kind) for kind in Kind}
_NEEDED = ["lsn", "kind", "name", "route", "time", "not_before", "properties", "body"]
_SAYS: dict[State | None, str] = {"leased": "attempt", "ready": "not_before", "delayed": "not_before"}
"""What the header of a record has to say of messages that stand there from then on."""


class Audit:
    """One pass over a log, or over what concerns one share of its messages."""

    def __init__(self, state: DurableState | None = None, share: Share = WHOLE) -> None:
        """`state`: of a base, when the log no longer begins at its beginning; records up to it are passed over.

        share: what of an audit that several make together is this one's.
        """
        self._share = share
        self._findings: dict[tuple[str, str], list[Ints]] = {}
        self._counts: Counter[str] = Counter()
        self._queues: dict[int, AuditedQueue] = {}
        self._streams = StreamAudit(self._queues, self._find)
        self._routes: dict[int, tuple[int, tuple[int, ...]]] = {}  # number -> (LSN, queues)
        self._sinks = SinkAudit(self._find)
        self._policies = PolicyAudit(self._find)
        self._publishers: dict[str, int] = {}
        self._proxied: set[int] = set()  # queues in which this site acts for others
        self._took: list[tuple[int, Ints]] = []  # (queue, flat pairs) of this window
        self._held: list[tuple[pa.RecordBatch, Ints | None]] = []
        self._rows = self._bytes = 0
        self._positions = PositionAudit(self._find, self._counts)
        self._letters = LetterAudit(self._find, self._counts)
        self._window: Window
        self._looks: dict[Kind, Callable[[Row], None]] = {
            Kind.BOOT: self._boot, Kind.ROUTE: self._route, Kind.TOOK: self._took_rows, Kind.RECOVERED: self._found,
            Kind.QUEUE_DECLARE: self._declared, Kind.QUEUE_ALTER: self._altered, Kind.QUEUE_DELETE: self._deleted,
            Kind.OWN: self._owned, Kind.PROXY: self._proxy, Kind.TRANSACTION: self._transaction,
            Kind.PUBLISHERS: self._published, Kind.PUBLISHERS_GONE: self._publishers_gone,
            **dict.fromkeys((Kind.POLICY, Kind.POLICY_DELETE), self._policies.record),
            **dict.fromkeys((Kind.SINK_COMMIT, Kind.DECIDED, Kind.CHUNK), self._sinks.record),
            Kind.SINK_FORGET: self._sinks.forgotten,
            **dict.fromkeys(StreamAudit.LOOKS, self._streams.record),
        }  # fmt: skip
        self.reads = PUBLISHES | MOVES | self._looks.keys()  # the topology promises nothing about messages
        self._skip = 0
        if state is not None:
            self._load(state)

    def _load(self, state: DurableState) -> None:
        self._skip = state.last_lsn
        self._positions.load(state.last_lsn)
        self._routes = {number: (0, queues) for number, queues in state.routes.items()}
        self._publishers = dict(state.publishers)
        self._proxied = set(state.proxied)
        self._sinks.load(state)
        self._policies.load(state)
        for number, told in state.queues.items():
            once = told.settings.semantics == "at-most-once"
            queue = self._queues[number] = self._queue(number, told.name, told.durable, told.exclusive, (0, once))
            lsns = self._share.own(flat(told.waiting))
            attempts, until, transient = (
                spread(lsns, told.columns.get(name, [])) for name in ("deliveries", "not_before", "transient")
            )
            owners = np.array(told.columns.get("owner", []), dtype=np.int64).reshape(-1, 3)
            queue.owned = [(0, low, high, owner) for low, high, owner in owners.tolist()]
            stood = np.where(until > 0, DELAYED, np.where(attempts > 0, TRIED, READY))
            queue.take(lsns, attempts, stood, until, transient)
        for number, pairs in self._streams.load(state.streams):
            held = self._queues[number]
            pairs = self._share.cut(pairs)
            planned = expand(np.searchsorted(held.lsns, pairs[:, 0]), np.searchsorted(held.lsns, pairs[:, 1]))
            held.state[planned] = PLANNED

    def _queue(self, number: int, name: str, durable: bool, exclusive: bool, once: tuple[int, bool]) -> AuditedQueue:
        low, high = self._share.low, self._share.high
        return AuditedQueue(number, name, durable, exclusive, [once], low, high)

    def feed(self, batch: pa.RecordBatch, groups: Ints | None = None) -> None:
        """The next record batch as it was written; `groups`: or rows of several, and which one each was in.

        None of these goes on with the next call.
        """
        if batch.num_rows:
            self._held.append((batch.select(_NEEDED), groups))
            self._rows += batch.num_rows
            self._bytes += taken(batch)
            if self._rows >= WINDOW or self._bytes >= GATHERED:
                self._look()

    def finish(self, folded: DurableState | None = None) -> Report:
        """The verdict; `folded`: what the fold makes of the same records, to be compared."""
        waiting = None if folded is None else {n: flat(queue.waiting) for n, queue in folded.queues.items()}
        return verdict([self.part()], waiting)

    def part(self) -> Part:
        """What this share has found, at the end of the records."""
        self._look()
        self._policies.close()
        counts = self._counts
        if self._share.rest:
            counts["queues"] = len(self._queues)
            counts["stream batches"] = self._streams.planned
            if self._sinks.committed:
                counts["sink batches"] = self._sinks.committed
        queues = {
            number: QueuePart(queue.title, bool(queue.ended), dict(queue.counts), queue.lsns)
            for number, queue in self._queues.items()
        }
        return Part(self._findings, dict(counts), queues)

    def _find(self, guarantee: str, lsns: Ints, text: str) -> None:
        self._findings.setdefault((guarantee, text), []).append(distinct_numbers(lsns)[:LSNS_MOST])

    # -- one window

    def _look(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches([held for held, _ in self._held])
        batch = np.concatenate(
            [
                np.full(held.num_rows, -1 - at) if groups is None else groups
                for at, (held, groups) in enumerate(self._held)
            ]
        )
        self._held, self._rows, self._bytes = [], 0, 0
        lsns, kinds = numbers(table, "lsn"), numbers(table, "kind")
        for start, stop in parts_beyond(self._skip, lsns, kinds):
            one = slice(start, stop)
            self._look_at(table.slice(start, stop - start), batch[one], lsns[one], kinds[one])

    def _look_at(self, table: pa.Table, batch: Ints, lsns: Ints, kinds: Ints) -> None:
        publishes = np.isin(kinds, [int(kind) for kind in PUBLISHES])
        window = self._window = Window(table, batch, lsns, kinds, numbers(table, "time"), publishes)
        if self._share.rest:
            self._counts["records"] += len(lsns)
            for kind, count in enumerate(np.bincount(kinds).tolist()):
                if count:
                    named = Kind(kind).name.lower() if kind in _KNOWN else f"of unknown kind {kind}"
                    self._counts[f"records {named}"] += count
            self._positions.look(window)
        boots = lsns[kinds == int(Kind.BOOT)]
        self._controls(window)
        if self._share.messages:
            self._members(window)
        self._took.clear()
        self._events(window)
        for queue in self._queues.values():
            if queue.events or len(queue.lsns):
                queue.close(boots, self._find)
        self._streams.close()

    # -- control records that are few

    def _controls(self, window: Window) -> None:
        few = ~window.publishes & ~np.isin(window.kinds, _MOVES)
        if not few.any():
            return
        some = pick(window.table, few)
        names, headers, bodies = texts(some, "name"), blobs(some, "properties"), blobs(some, "body")
        routes = numbers(some, "route", NO_ROUTE).tolist()
        for i, at in enumerate(np.flatnonzero(few).tolist()):
            lsn, time = int(window.lsns[at]), int(window.times[at])
            try:
                kind = Kind(int(window.kinds[at]))
                if (look := self._looks.get(kind)) is not None:
                    values = np.frombuffer(bodies[i], dtype=np.int64)
                    look(Row(kind, at, lsn, time, names[i], routes[i], load(headers[i]), values))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                self._find("positions", np.array([lsn]), f"a record cannot be read: {type(error).__name__} {error}")

    def _boot(self, row: Row) -> None:
        if self._share.rest:
            self._positions.started(row)
        for queue in self._queues.values():
            if not queue.ended and (queue.exclusive or not queue.durable):
                self._end(queue, row.lsn)

    def _transaction(self, row: Row) -> None:
        """A batch is never parted between two windows."""
        if self._share.rest:
            self._counts["transactions"] += 1
            lsns, batch = self._window.lsns, self._window.batch
            start = int(np.searchsorted(lsns, row.number("first")))
            apart = lsns[start : row.at][batch[start : row.at] != batch[row.at]]
            if len(apart):
                lsns = np.append(apart, row.lsn)
                self._find("transactions", lsns, "a transaction has records outside of its group")

    def _route(self, row: Row) -> None:
        if row.route in self._routes:
            self._find("routes", np.array([row.lsn]), f"route {row.route} was told twice")
        self._routes[row.route] = row.lsn, tuple(row.values.tolist())

    def _took_rows(self, row: Row) -> None:
        self._took.append((row.queue, row.values[1:]))

    def _declared(self, row: Row) -> None:
        told, lsn = row.header, row.lsn
        settings = with_some(load_settings(told["settings"]), load_some(told.get("changed")))
        once = (lsn, settings.semantics == "at-most-once")
        self._queues[lsn] = self._queue(lsn, row.name, bool(told["durable"]), bool(told["exclusive"]), once)
        self._policies.declared(row)

    def _present(self, row: Row) -> AuditedQueue | None:
        """The queue that a record alters or deletes."""
        present = self._queues.get(row.queue)
        if present is None or present.ended:
            text = f"queue '{row.name}' is altered or deleted, but is not there"
            self._find("ends once", np.array([row.lsn]), text)
            return None
        return present

    def _deleted(self, row: Row) -> None:
        if (present := self._present(row)) is not None:
            self._end(present, row.lsn)

    def _altered(self, row: Row) -> None:
        if (present := self._present(row)) is None:
            return
        self._policies.altered(row)
        changed = load_some(row.header.get("changed")) if "changed" in row.header else row.header["settings"]
        if "semantics" in cast("dict[str, object]", changed):
            semantics = cast("dict[str, object]", changed)["semantics"]
            present.once.append((row.lsn, semantics == "at-most-once"))

    def _owned(self, row: Row) -> None:
        if (queue := self._queues.get(row.queue)) is not None:
            owner = row.number("owner")
            queue.owned += [(row.lsn, low, high, owner) for low, high in row.pairs.tolist()]
            if row.header["why"] == "proxied" and not owner and queue.id not in self._proxied:
                text = f"{queue.title}: messages were taken by proxy, and nobody had allowed it"
                self._find("one owner", np.array([row.lsn]), text)

    def _proxy(self, row: Row) -> None:
        self._proxied.discard(row.queue)
        if row.header["on"]:
            self._proxied.add(row.queue)

    def _published(self, row: Row) -> None:
        for publisher, sequence in cast("dict[str, int]", row.header).items():
            highest = self._publishers.get(publisher)
            if highest is not None and sequence <= highest:
                text = f"publisher '{publisher}' goes back from sequence {highest} to {sequence}"
                self._find("publishers", np.array([row.lsn]), text)
            self._publishers[publisher] = sequence

    def _publishers_gone(self, row: Row) -> None:
        for publisher in cast("list[str]", row.header["publishers"]):
            self._publishers.pop(publisher, None)

    def _found(self, row: Row) -> None:
        """Older messages that a queue takes after all, each once."""
        queue = self._queues.get(row.queue)
        if queue is None or queue.ended:
            text = f"messages came to queue {row.queue}, which is not there"
            self._find("ends once", np.array([row.lsn]), text)
            return
        taken = expand(row.pairs[:, 0], row.pairs[:, 1])
        columns = cast("dict[str, list[int]]", row.header.get("columns") or {})
        until = spread(taken, columns.get("not_before", []))
        mine = (taken >= self._share.low) & (taken < self._share.high)
        taken, until = taken[mine], until[mine]
        twice = np.isin(taken, queue.lsns)
        if twice.any():
            self._find("ends once", np.append(taken[twice], row.lsn), f"{queue.title} took messages again that it had")
        kept = ~twice
        queue.take_older(taken[kept], _placed(until[kept], row.time), until[kept])

    def _end(self, queue: AuditedQueue, lsn: int) -> None:
        queue.ended = lsn
        self._streams.queue_gone(queue.id)
        self._policies.gone(queue.id)

    # -- messages

    def _members(self, window: Window) -> None:
        """Give each queue what it took."""
        rows = np.flatnonzero(window.publishes & (window.lsns >= self._share.low) & (window.lsns < self._share.high))
        own, times = window.lsns[rows], window.times[rows]
        by_queue: dict[int, list[Ints]] = {}
        routed = groups(numbers(window.table, "route", NO_ROUTE)[rows])
        kept = len(routed.pop(NO_ROUTE, NONE))
        for route, where in routed.items():
            told, queues = self._routes.get(route, (0, ()))
            if not queues or told > own[where[0]]:
                self._find("routes", own[where], f"route {route} was not told before it was used")
            for number in queues:
                by_queue.setdefault(number, []).append(where)
        for number, pairs in self._took:
            taken = expand(np.searchsorted(own, pairs[0::2]), np.searchsorted(own, pairs[1::2]))
            by_queue.setdefault(number, []).append(taken)
            kept -= len(taken)
        self._counts["messages that only a topic kept"] += max(kept, 0)
        if not by_queue:
            return
        transient = (window.kinds[rows] == int(Kind.PUBLISH_TRANSIENT)).astype(np.int64)
        until = numbers(window.table, "not_before")[rows]
        state = _placed(until, times)
        for number, pieces in by_queue.items():
            where = pieces[0] if len(pieces) == 1 else distinct_numbers(np.concatenate(pieces))
            queue = self._queues.get(number)
            if queue is None:
                self._find("routes", own[where], f"messages went to queue {number}, which was never declared")
                continue
            absent = own[where] > queue.ended if queue.ended else own[where] < queue.id
            if absent.any():
                self._find("routes", own[where[absent]], f"messages went to {queue.title} while it was not there")
                where = where[~absent]
            queue.take(own[where], np.zeros(len(where), dtype=np.int64), state[where], until[where], transient[where])

    def _events(self, window: Window) -> None:
        """Give each queue what happened to its messages."""
        chosen = np.isin(window.kinds, _MOVES)
        if not chosen.any():
            return
        values, offsets = packed_integers(pick(window.table, chosen, ["body"]))
        lengths = np.diff(offsets)
        sound = (lengths >= 8) & (lengths % 16 == 8)
        if not sound.all():
            self._find("positions", window.lsns[chosen][~sound], "a record's pairs cannot be read")
            chosen[chosen] = sound
            values, offsets = packed_integers(pick(window.table, chosen, ["body"]))
            lengths = np.diff(offsets)
        some = pick(window.table, chosen, ["properties"])
        op, order, time = window.kinds[chosen], window.lsns[chosen], window.times[chosen]
        starts = offsets[:-1] // 8
        counts = (lengths // 8 - 1) // 2
        is_pair = np.ones(len(values), dtype=np.bool_)
        is_pair[starts] = False
        pairs = values[is_pair].reshape(-1, 2)
        value = np.zeros(len(op), dtype=np.int64)
        for kind in MOVES:
            mine, key = op == kind, _SAYS.get(MEANINGS[kind].to)
            if key is not None and mine.any():
                headers, which = coded(pick(some, mine), "properties")
                value[mine] = np.array([cast(int, load(header).get(key, 0)) for header in headers])[which]
        expired = op == Kind.EXPIRE
        if expired.any() and self._share.rest:
            ends = np.cumsum(counts)
            headers = blobs(pick(some, expired), "properties")
            for i, header in zip(np.flatnonzero(expired).tolist(), headers, strict=True):
                self._letters.look(window, int(order[i]), load(header), pairs[ends[i] - counts[i] : ends[i]])
            self._letters.close()
        if not self._share.messages:
            return
        everything = Events(
            pairs[:, 0], pairs[:, 1], *(np.repeat(column, counts) for column in (order, op, value, time))
        )
        for number, where in groups(np.repeat(values[starts], counts)).items():
            queue = self._queues.get(number)
            if queue is None:
                text = f"records speak of queue {number}, which was never declared"
                self._find("ends once", everything.order[where], text)
            else:
                queue.events.append(everything.where(where))


def _placed(until: Ints, time: Ints | int) -> Ints:
    """Where messages stand when they come, that are delayed until then (0: they are not)."""
    return np.where(until > time, DELAYED, np.where(until > 0, PAST, READY))
