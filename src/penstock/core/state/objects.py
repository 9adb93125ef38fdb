"""What the log says in order: topology and settings, routes, streams, sinks, and the few records with particulars.

Folded record by record, for each may change what the next one means.  It holds the queues as `queue_state` has them and
tells them what happened; it sees no message.  It asks no clock and runs no filter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import numpy as np

from penstock.core.links.carried import Numbered, Numbers
from penstock.core.links.lasting import LinkState
from penstock.core.links.ownership import RANKS, WHYS, Claim, EarlyClaim, Name, Place, Why
from penstock.core.links.sharing import Site
from penstock.core.sizes import Sizes
from penstock.core.sow.holding import Sows, fold
from penstock.core.state import pending as deferred_acks
from penstock.core.state.durable import DECLARED, EXCHANGE, DurableState, Reign
from penstock.core.state.encoding import as_table, load, load_settings
from penstock.core.state.lsns import Ints, expand, ints, spread
from penstock.core.state.pending import MARK, decided_of
from penstock.core.state.queue_state import FoldedQueue, QueueState
from penstock.core.state.streams import StreamState
from penstock.core.topology.ruling import ADDRESS, POLICY, load_exchanges, load_ruling, load_some, with_some
from penstock.core.topology.topology import BINDING, Topology
from penstock.records.chunks import lsns_in
from penstock.records.kinds import HEAD, Kind
from penstock.units import LATEST

Table: TypeAlias = dict[str, object]

_NONE = np.zeros(0, dtype=np.int64)


class Row(NamedTuple):
    """A control record, its body not read yet."""

    kind: Kind
    lsn: int
    name: str
    header: Table
    body: bytes
    via: int
    route: int

    @property
    def values(self) -> Ints:
        return np.frombuffer(self.body, dtype="<i8")

    @property
    def queue(self) -> int:
        return int(self.values[0])

    @property
    def pairs(self) -> Ints:
        return self.values[1:].reshape(-1, 2)


class Objects:
    """Everything of a durable state but the messages."""

    def __init__(self, start: DurableState, sizes: Sizes) -> None:
        """start: what was folded before; it is not changed.  sizes: told of messages that are found again."""
        self.unmeasured = 0  # of messages up to this LSN some were found again, and nobody said how large they are
        self._sizes = sizes
        self._state = start.copy(DECLARED)
        self.queues: dict[int, FoldedQueue] = {}
        self.routes = self._state.routes
        self.took: dict[int, Ints] = {}  # of the present table: flat pairs by queue
        self.letters: list[int] = []  # of the present table: LSNs of dead letters
        self.sent: list[tuple[int, int, int]] = []  # of the present table: LSNs [a, b), and when another site took them
        self._topology = Topology()
        self._topology.load(start)
        self._ids: dict[tuple[str, str], int] = {}
        for queue in start.queues.values():
            self._add_queue(queue)
        self._sows = Sows()
        self._sows.load(start.sows, start.topics)

    def save(self, last_lsn: int) -> DurableState:
        """The durable state as of this LSN, the queues' messages too, but for the sizes."""
        state = self._state.copy(DECLARED)
        state.last_lsn = last_lsn
        self._topology.save(state)
        state.routes = {
            number: queues for number, queues in self.routes.items() if all(queue in self.queues for queue in queues)
        }
        for number, queue in sorted(self.queues.items()):
            state.queues[number] = queue.finished(last_lsn)
        state.sows = self._sows.capture()()
        return state

    def fold(self, kind: Kind, lsn: int, name: str, header: bytes, body: bytes, via: int, route: int) -> None:
        """One record.  ValueError, KeyError, TypeError or IndexError for one that cannot be read."""
        if (tell := FOLDS_OF_QUEUES.get(kind)) is not None:
            values = np.frombuffer(body, dtype="<i8")
            queue = self.queues.get(int(values[0]))
            if queue is not None and lsn > queue.since:
                tell(queue, lsn, values[1:].reshape(-1, 2), load(header))
        elif (note := self.FOLDS.get(kind)) is not None:
            note(self, Row(kind, lsn, name, load(header), body, via, route))

    def _route(self, row: Row) -> None:
        self.routes[row.route] = tuple(row.values.tolist())
        self._state.next_route = max(self._state.next_route, row.route + 1)

    def _via(self, row: Row) -> None:
        blind = cast("list[str] | None", row.header.get("bcc")) or ()
        self._state.vias[row.via] = (str(row.header["vhost"]), str(row.header["exchange"]), *blind)

    def _took(self, row: Row) -> None:
        self.took[row.queue] = np.concatenate((self.took.get(row.queue, _NONE), row.values[1:]))
        self._state.beside = max(self._state.beside, int(row.values[-1]) - 1)

    def _expired(self, row: Row) -> None:
        told, values = row.header, row.values
        self.letters += [new for _, new in cast("list[tuple[int, int]]", told.get("dead") or ())]
        self.letters += cast("list[int]", told.get("refused") or ())
        self.letters += cast("list[int]", told.get("letters") or ())
        if (queue := self.queues.get(int(values[0]))) is not None:
            queue.removed.append(values[1:].reshape(-1, 2))

    def _found(self, row: Row) -> None:
        for peer, here, there, count in cast("list[list[int]]", row.header.get("carried") or ()):
            numbers = self._state.carried.setdefault(peer, Numbers((), self._floor_of(peer)))
            numbers.recall(there, here, count)
        if (queue := self.queues.get(row.queue)) is not None:
            self._recovered(queue, row.lsn, row.pairs, row.header)

    def _published(self, row: Row) -> None:
        for publisher, sequence in cast("dict[str, int]", row.header).items():
            self._state.publishers[publisher] = max(sequence, self._state.publishers.get(publisher, sequence))

    def _publishers_gone(self, row: Row) -> None:
        gone = cast("list[str]", row.header["publishers"])
        for publisher in gone:
            self._state.publishers.pop(publisher, None)
        self._state.numbered.gone(gone)

    def _committed(self, row: Row) -> None:
        self._state.sinks[row.name] = cast(int, row.header["batch"])
        self._state.sink_marks[row.name] = MARK.load(row.header, lsn=row.lsn)

    def _sinks_gone(self, row: Row) -> None:
        for query in cast("list[str]", row.header["queries"]):
            self._state.sinks.pop(query, None)
            self._state.sink_marks.pop(query, None)

    def _decide(self, row: Row) -> None:
        state = self._state.decided[row.name] = decided_of(row.header, row.lsn)
        self._state.sinks[row.name] = state.batch
        self._state.sink_marks[row.name] = MARK.load(row.header, lsn=row.lsn)

    def _chunk(self, row: Row) -> None:
        state = self._state.decided[row.name]
        state.copied(row.header)
        if state.complete:
            del self._state.decided[row.name]

    def _defer(self, row: Row) -> None:
        number, *pairs = row.values.tolist()
        if number in self.queues:
            told = row.header
            deferred_acks.remember(self._state.deferred, number, deferred_acks.deferred_of(told, pairs))
            for first, stop in zip(pairs[::2], pairs[1::2], strict=True) if self._state.early else ():
                self._state.early.came(int(str(told["origin"])), first, stop, number)

    def _undefer(self, row: Row) -> None:
        number, *pairs = row.values.tolist()
        origin = int(str(row.header["origin"]))
        deferred_acks.forget(self._state.deferred, number, origin, lsns_in(pairs))

    def _met(self, row: Row) -> None:
        self._state.peers[cast("int", row.header["peer"])] = Site(
            row.name, int(str(row.header["origin"])), str(row.header["group"])
        )

    def _carry(self, row: Row) -> None:
        peer = cast("int", row.header["peer"])
        numbers = self._state.carried.setdefault(peer, Numbers((), self._floor_of(peer)))
        times = cast("list[int]", row.header.get("times") or ())
        if times:
            self.sent += zip(times[::2], [*times[2::2], row.lsn], times[1::2], strict=True)
        for here, there, count in row.values.reshape(-1, 3).tolist():
            numbers.add(there, here, count)
            if row.header.get("letters"):
                self.letters += range(here, here + count)
            if self._state.early:
                self._state.early.came(self._state.peers[peer].origin, there, there + count)
            if self._state.foretold:
                self._state.foretold.came(self._state.peers[peer].origin, there, there + count)

    def _floor_of(self, peer: int) -> int:
        return self._state.links.get(peer, LinkState()).floor

    def _link(self, row: Row) -> None:
        peer = cast("int", row.header["peer"])
        if "ended" in row.header:
            self._state.gone.told(cast("int", row.header["ended"]))
            return
        if "passed" in row.header:
            self._state.passed[peer] = cast("int", row.header["passed"])
            return
        self._state.links[peer] = self._state.links.get(peer, LinkState()).told(row.header)
        if "forgot" in row.header and (numbers := self._state.carried.get(peer)) is not None:
            beyond, *ends = cast("list[int]", row.header.get("between", [0]))
            staying = list(zip(ends[::2], ends[1::2], strict=True))
            numbers.forget_below(cast("int", row.header["forgot"]), beyond, staying)

    def _proxy(self, row: Row) -> None:
        number, told = row.queue, row.header
        self._state.proxied.pop(number, None)
        if told["on"] and number in self.queues:
            self._state.proxied[number] = str(told.get("by", ""))

    def _number(self, row: Row) -> None:
        names = cast("list[str]", row.header["publishers"])
        runs = row.values.reshape(-1, 5).tolist()
        for name, *run in runs:
            if name >= 0:
                self._state.numbered.add(Numbered(names[name], *run))
        if forgotten := {run[3] for run in runs if run[0] < 0}:
            self._state.numbered.forget(forgotten)

    def _claimed(self, row: Row) -> None:
        number, *pairs = row.values.tolist()
        claim = Claim(str(row.header["site"]), cast("int", row.header["serial"]), cast("Why", row.header["why"]))
        origin, spans = int(str(row.header["origin"])), list(zip(pairs[::2], pairs[1::2], strict=True))
        if "vhost" in row.header:
            self._state.returned.add(Place(str(row.header["vhost"]), row.name, origin, claim.owner), spans, claim)
            self._state.foretold.placed(Name(str(row.header["vhost"]), row.name, origin), spans)
        if "of" in row.header:
            self._state.foretold.add(Name(str(row.header["of"]), row.name, origin), spans, claim)
        for first, stop in spans if number in self.queues else ():
            self._state.early.add(EarlyClaim(number, origin, first, stop, claim))

    def _act(self, row: Row) -> None:
        self._state.acted.fold(row.name, row.header, row.values.tolist())

    def fold_sow(self, kinds: Ints, values: Ints, offsets: Ints) -> None:
        """SOW_PUT and SOW_DROP records in order, their bodies end to end.  ValueError for one that cannot be read."""
        fold(self._sows, kinds == int(Kind.SOW_PUT), values, offsets)

    def _recovered(self, queue: FoldedQueue, lsn: int, pairs: Ints, header: dict[str, object]) -> None:
        queue.recovered(lsn, pairs, header)
        if not len(pairs):
            return
        told = cast("list[int] | None", header.get("sizes"))
        if told is None:
            self.unmeasured = max(self.unmeasured, int(pairs[-1, 1]) - 1)
        else:
            lsns = expand(pairs[:, 0], pairs[:, 1])
            self._sizes.add_older(lsns, spread(lsns, told))

    # -- topology and settings

    def _exchange(self, row: Row) -> None:
        exchange = EXCHANGE.load(row.header)
        self._topology.declare_exchange(_vhost(row.header), row.name, exchange)
        self._topology.policies.rule_exchanges(load_exchanges(row.header.get("exchanges")))

    def _exchange_gone(self, row: Row) -> None:
        self._topology.delete_exchange(_vhost(row.header), row.name)

    def _bind(self, row: Row) -> None:
        self._topology.bind(BINDING.load(row.header))

    def _unbind(self, row: Row) -> None:
        self._topology.unbind(BINDING.load(row.header))

    def _topic(self, row: Row) -> None:
        settings, path = as_table(row.header["settings"]), (_vhost(row.header), str(row.header["exchange"]), row.name)
        self._topology.declare_topic(*path, settings)
        self._sows.declared(row.lsn, path, settings, kept=bool(row.header.get("kept")))

    def _topic_gone(self, row: Row) -> None:
        path = (_vhost(row.header), str(row.header["exchange"]), row.name)
        self._topology.delete_topic(*path)
        self._sows.deleted(path)

    def _queue(self, row: Row) -> None:
        rules = with_some(load_settings(row.header["settings"]), load_some(row.header.get("changed")))
        state = QueueState(
            row.lsn, _vhost(row.header), row.name, rules, bool(row.header["durable"]), bool(row.header["exclusive"]),
            bool(row.header["auto_delete"]), as_table(row.header["arguments"]),
        )  # fmt: skip
        state.ruling = load_ruling(row.header.get("ruling"), rules)
        if not state.exclusive and rules.kind != "local":
            self._state.began.note(row.lsn, self._state.peers, self._state.links, self._state.carried)
        self._state.foretold.take(state.vhost, state.name)
        self._add_queue(state)

    def _altered(self, row: Row) -> None:
        number = row.queue
        if (queue := self.queues.get(number)) is not None:
            rules = queue.state.settings if "changed" in row.header else load_settings(row.header["settings"])
            rules = with_some(rules, load_some(row.header.get("changed")))
            queue.alter(row.lsn, rules)
            queue.state.ruling = load_ruling(row.header.get("ruling"), rules)

    def _queue_gone(self, row: Row) -> None:
        self._drop_queue(row.queue, row.lsn)

    def _policy(self, row: Row) -> None:
        self._topology.policies.put(POLICY.load(row.header, name=row.name))
        self._topology.policies.rule_exchanges(load_exchanges(row.header.get("exchanges")))

    def _policy_gone(self, row: Row) -> None:
        self._topology.policies.delete((bool(row.header["operator"]), str(row.header["vhost"]), row.name))
        self._topology.policies.rule_exchanges(load_exchanges(row.header.get("exchanges")))

    def _address(self, row: Row) -> None:
        policies = self._topology.policies
        if "values" in row.header:
            policies.put_address(ADDRESS.load(row.header, pattern=row.name))
        else:
            policies.delete_address((str(row.header["vhost"]), row.name, bool(row.header["literal"])))
        policies.rule_exchanges(load_exchanges(row.header.get("exchanges")))

    def _stream(self, row: Row) -> None:
        kind, name, header = row.kind, row.name, row.header
        if kind is Kind.STREAM and name not in self._state.streams:
            self._state.streams[name] = StreamState(cast("int", header["queue"]))
        stream = self._state.streams[name]
        if kind is Kind.PLAN_SETTLE:
            for batch in range(stream.floor + 1, cast("int", header["batch"]) + 1):
                if (queue := self.queues.get(stream.queue)) is not None and batch in stream.plans:
                    queue.removed.append(ints(stream.plans[batch]).reshape(-1, 2))
        stream.fold(kind, header, row.body)
        if stream.dropped:
            del self._state.streams[name]

    def _boot(self, row: Row) -> None:
        """Exclusive and non-durable queues, non-durable exchanges and transient messages end."""
        if not row.header.get("clean"):
            self._state.unclean = row.lsn
        self._state.defaults = cast("int", row.header.get("defaults", self._state.defaults))
        if "term" in row.header:
            term, before = cast("int", row.header["term"]), cast("int", row.header["before"])
            self._state.terms += (Reign(term, str(row.header["member"]), before, row.lsn),)
        for number in [n for n, queue in self.queues.items() if queue.state.exclusive or not queue.state.durable]:
            self._drop_queue(number, row.lsn)
        self._topology.boot()
        for queue in self.queues.values():
            queue.drop_transient()

    def _add_queue(self, state: QueueState) -> None:
        self.queues[state.id] = FoldedQueue(state)
        self._ids[state.vhost, state.name] = state.id

    def _drop_queue(self, number: int, lsn: int) -> None:
        queue = self.queues.pop(number, None)
        if queue is None:
            return
        if len(self._state.peers) > 1 and not queue.state.exclusive and queue.state.settings.kind != "local":
            self._state.gone.note(number, queue.state.vhost, queue.state.name, queue.state.settings, lsn)
        self._state.deferred.pop(number, None)
        self._state.proxied.pop(number, None)
        self._state.began.pop(number, None)
        self._state.early.queue_gone(number)
        if self._ids.get((queue.state.vhost, queue.state.name)) == number:
            del self._ids[queue.state.vhost, queue.state.name]
            self._topology.queue_gone(queue.state.vhost, queue.state.name)
        mine = [name for name, one in self._state.streams.items() if one.queue == number and one.mode == "queue"]
        for name in mine:
            del self._state.streams[name]

    # -- what each kind is to it

    FOLDS: ClassVar[Mapping[Kind, Callable[[Any, Row], None]]] = {
        Kind.BOOT: _boot, Kind.ROUTE: _route, Kind.VIA: _via, Kind.TOOK: _took, Kind.EXPIRE: _expired,
        Kind.RECOVERED: _found, Kind.PUBLISHERS: _published, Kind.PUBLISHERS_GONE: _publishers_gone,
        Kind.SINK_COMMIT: _committed, Kind.SINK_FORGET: _sinks_gone, Kind.DECIDED: _decide, Kind.CHUNK: _chunk,
        Kind.DEFER: _defer, Kind.UNDEFER: _undefer, Kind.ACTED: _act, Kind.PEER: _met, Kind.CARRIED: _carry,
        Kind.LINK: _link, Kind.PROXY: _proxy, Kind.CLAIMED: _claimed, Kind.NUMBERED: _number,
        Kind.EXCHANGE_DECLARE: _exchange, Kind.EXCHANGE_DELETE: _exchange_gone, Kind.BIND: _bind, Kind.UNBIND: _unbind,
        Kind.TOPIC_DECLARE: _topic, Kind.TOPIC_DELETE: _topic_gone, Kind.QUEUE_DECLARE: _queue,
        Kind.QUEUE_ALTER: _altered, Kind.QUEUE_DELETE: _queue_gone, Kind.POLICY: _policy,
        Kind.POLICY_DELETE: _policy_gone, Kind.ADDRESS_SETTING: _address, Kind.STREAM: _stream, Kind.PLAN: _stream,
        Kind.PLAN_SETTLE: _stream, Kind.STREAM_RELEASE: _stream, Kind.STREAM_START: _stream, Kind.STREAM_READ: _stream,
        Kind.STREAM_TRY: _stream, Kind.STREAM_NARROW: _stream,
    }  # fmt: skip


def _vhost(header: Table) -> str:
    return str(header.get("vhost", "/"))


# -- what happened to the messages of a queue: told with the LSN of the record, its pairs and its header


def _returned(queue: FoldedQueue, lsn: int, pairs: Ints, header: Table) -> None:
    for key, column in (("failed", "failures"), ("cancelled", "cancels"), ("unseen", "unseen")):
        if times := int(cast(int, header.get(key) or 0)):
            queue.counted.append((column, times, pairs))
    if not_before := _time(header, "not_before"):
        queue.delayed.append(("not_before", not_before, pairs))


def _time(header: Table, key: str) -> int:
    """A moment; 0 without one.  Before waits had a limit some were written that no date and no checkpoint holds."""
    return min(cast(int, header.get(key) or 0), LATEST)


def _due(queue: FoldedQueue, lsn: int, pairs: Ints, header: Table) -> None:
    queue.delayed.append(("not_before", 0, pairs))
    if place := header.get("place"):
        queue.delayed.append(("place", lsn if place == 1 else HEAD + lsn, pairs))


def _rescheduled(queue: FoldedQueue, lsn: int, pairs: Ints, header: Table) -> None:
    queue.delayed.append(("not_before", _time(header, "not_before"), pairs))
    queue.delayed.append(("place", 0, pairs))


def _paused(queue: FoldedQueue, lsn: int, pairs: Ints, header: Table) -> None:
    queue.state.paused = cast(int, header["until"])


def _fenced(queue: FoldedQueue, lsn: int, pairs: Ints, header: Table) -> None:
    queue.delayed.append(("barrier", 1, pairs))


def _keyed(queue: FoldedQueue, lsn: int, pairs: Ints, header: Table) -> None:
    queue.keyed.append(("key", pairs))


def _deduplicated(queue: FoldedQueue, lsn: int, pairs: Ints, header: Table) -> None:
    queue.took_keys(pairs, cast(int, header["time"]))


def _owned(queue: FoldedQueue, lsn: int, pairs: Ints, header: Table) -> None:
    told = cast(int, header["serial"]) * len(WHYS) + RANKS[cast(Why, header["why"])]
    queue.delayed += [("owner", cast(int, header["owner"]), pairs), ("claim", told, pairs)]


def _recover(queue: FoldedQueue, lsn: int, pairs: Ints, header: Table) -> None:
    queue.begin_pass(lsn, header)


FOLDS_OF_QUEUES: Mapping[Kind, Callable[[FoldedQueue, int, Ints, Table], None]] = {
    Kind.RETURN: _returned, Kind.DUE: _due, Kind.RESCHEDULE: _rescheduled, Kind.PAUSE: _paused, Kind.BARRIER: _fenced,
    Kind.KEYED: _keyed, Kind.DEDUP: _deduplicated, Kind.RECOVER: _recover, Kind.OWN: _owned,
}  # fmt: skip
"""Of one queue.  What its state has already (`FoldedQueue.since`) is not told again."""
