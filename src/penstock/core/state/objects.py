"""What the log says in order: topology and settings, routes, streams, sinks, and the few records with particulars.

Folded record by record, for each may change what the next one means.  It holds the queues as `members` has them and
tells them what happened; it sees no message.  It asks no clock and runs no filter.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from penstock.core.sizes.sizes import Sizes
from penstock.core.sow.folding import fold
from penstock.core.sow.holding import Sows
from penstock.core.state import deferred as deferred_acks
from penstock.core.state.decided import copies, decided_of
from penstock.core.state.durable import (
    Binding,
    DurableState,
    ExchangeState,
    Ints,
    QueueState,
    StreamState,
    ints,
    spread,
)
from penstock.core.state.members import FoldedQueue, expand
from penstock.core.state.plain import as_table, load, load_settings
from penstock.core.state.rulings import load_address, load_exchanges, load_policy, load_ruling, load_some, with_some
from penstock.core.state.sinkmarks import mark_of
from penstock.core.topology.topology import Topology, canonical_table
from penstock.records.kinds import HEAD, Kind

_NONE = np.zeros(0, dtype=np.int64)


class Objects:
    """Everything of a durable state but the messages."""

    def __init__(self, start: DurableState, sizes: Sizes) -> None:
        """start: what was folded before; it is not changed.  sizes: told of messages that are found again."""
        self.unmeasured = 0  # of messages up to this LSN some were found again, and nobody said how large they are
        self._sizes = sizes
        self.queues: dict[int, FoldedQueue] = {}
        self.routes: dict[int, tuple[int, ...]] = dict(start.routes)
        self.took: dict[int, Ints] = {}  # of the present table: flat pairs by queue
        self.letters: list[int] = []  # of the present table: LSNs of dead letters
        self._topology = Topology()
        self._topology.load(start)
        self._unclean = start.unclean
        self._ids: dict[tuple[str, str], int] = {}
        for queue in start.queues.values():
            self._add_queue(queue)
        self._vias, self._blind = dict(start.vias), dict(start.blind)
        self._next_route = start.next_route
        self._publishers = dict(start.publishers)
        self._streams = _copies(start.streams)
        self._sinks = dict(start.sinks)
        self._sink_marks = dict(start.sink_marks)
        self._decided = copies(start.decided)
        self._sows = Sows()
        self._sows.load(start.sows, start.topics)
        self._deferred = deferred_acks.copies(start.deferred)
        self._acted = start.acted.copy()

    def save(self, state: DurableState) -> None:
        """Write it into a durable state, the queues' messages too."""
        state.unclean = self._unclean
        self._topology.save(state)
        for number, queue in sorted(self.queues.items()):
            state.queues[number] = queue.finished(state.last_lsn)
        state.vias, state.blind = dict(self._vias), dict(self._blind)
        state.routes = {
            number: queues for number, queues in self.routes.items() if all(queue in self.queues for queue in queues)
        }
        state.next_route = self._next_route
        state.publishers = dict(self._publishers)
        state.streams = _copies(self._streams)
        state.sinks = dict(self._sinks)
        state.sink_marks = dict(self._sink_marks)
        state.decided = copies(self._decided)
        state.sows = self._sows.capture()()
        state.deferred = deferred_acks.copies(self._deferred)
        state.acted = self._acted.copy()

    def fold(self, kind: Kind, lsn: int, name: str, header: bytes, body: bytes, via: int, route: int) -> None:
        """One record.  ValueError, KeyError, TypeError or IndexError for one that cannot be read."""
        match kind:
            case Kind.BOOT:
                self._boot(lsn, load(header))
            case Kind.ROUTE:
                self.routes[route] = tuple(np.frombuffer(body, dtype="<i8").tolist())
                self._next_route = max(self._next_route, route + 1)
            case Kind.VIA:
                table = load(header)
                self._vias[via] = (str(table["vhost"]), str(table["exchange"]))
                if blind := cast("list[str] | None", table.get("bcc")):
                    self._blind[via] = tuple(blind)
            case Kind.TOOK:
                values = np.frombuffer(body, dtype="<i8")
                number = int(values[0])
                self.took[number] = np.concatenate((self.took.get(number, _NONE), values[1:]))
            case Kind.EXPIRE:
                told = load(header)
                self.letters += [new for _, new in cast("list[tuple[int, int]]", told.get("dead") or ())]
                self.letters += cast("list[int]", told.get("refused") or ())
                queue, pairs = self._queue_and_pairs(body)
                if queue is not None:
                    queue.removed.append(pairs)
            case Kind.RETURN:
                self._returned(lsn, load(header), body)
            case Kind.DUE:
                queue, pairs = self._queue_and_pairs(body)
                if queue is not None and lsn > queue.since:
                    queue.delayed.append(("not_before", 0, pairs))
                    if place := load(header).get("place"):
                        queue.delayed.append(("place", lsn if place == 1 else HEAD + lsn, pairs))
            case Kind.RESCHEDULE:
                queue, pairs = self._queue_and_pairs(body)
                if queue is not None and lsn > queue.since:
                    queue.delayed.append(("not_before", cast(int, load(header)["not_before"]), pairs))
                    queue.delayed.append(("place", 0, pairs))
            case Kind.PAUSE:
                queue, _ = self._queue_and_pairs(body)
                if queue is not None and lsn > queue.since:
                    queue.state.paused = cast(int, load(header)["until"])
            case Kind.BARRIER:
                queue, pairs = self._queue_and_pairs(body)
                if queue is not None and lsn > queue.since:
                    queue.delayed.append(("barrier", 1, pairs))
            case Kind.KEYED:
                queue, pairs = self._queue_and_pairs(body)
                if queue is not None and lsn > queue.since:
                    queue.keyed.append(("key", pairs))
            case Kind.DEDUP:
                queue, pairs = self._queue_and_pairs(body)
                if queue is not None and lsn > queue.since:
                    queue.took_keys(pairs, cast(int, load(header)["time"]))
            case Kind.RECOVER:
                queue, _ = self._queue_and_pairs(body)
                if queue is not None and lsn > queue.since:
                    queue.begin_pass(lsn, load(header))
            case Kind.RECOVERED:
                queue, pairs = self._queue_and_pairs(body)
                if queue is not None:
                    self._recovered(queue, lsn, pairs, load(header))
            case Kind.PUBLISHERS:
                for publisher, sequence in cast("dict[str, int]", load(header)).items():
                    self._publishers[publisher] = max(sequence, self._publishers.get(publisher, sequence))
            case Kind.PUBLISHERS_GONE:
                for publisher in cast("list[str]", load(header)["publishers"]):
                    self._publishers.pop(publisher, None)
            case Kind.SINK_COMMIT:
                told = load(header)
                self._sinks[name] = cast(int, told["batch"])
                self._sink_marks[name] = mark_of(told, lsn)
            case Kind.SINK_FORGET:
                for query in cast("list[str]", load(header)["queries"]):
                    self._sinks.pop(query, None)
                    self._sink_marks.pop(query, None)
            case (
                Kind.STREAM
                | Kind.PLAN
                | Kind.PLAN_SETTLE
                | Kind.STREAM_RELEASE
                | Kind.STREAM_START
                | Kind.STREAM_READ
                | Kind.STREAM_TRY
                | Kind.STREAM_NARROW
            ):
                self._stream(kind, name, load(header), body)
            case Kind.DECIDED:
                told = load(header)
                state = self._decided[name] = decided_of(told, lsn)
                self._sinks[name] = state.batch
                self._sink_marks[name] = mark_of(told, lsn)
            case Kind.CHUNK:
                state = self._decided[name]
                state.copied(load(header))
                if state.complete:
                    del self._decided[name]
            case Kind.DEFER | Kind.UNDEFER:
                values = np.frombuffer(body, dtype="<i8").tolist()
                self._defer(kind, values[0], load(header), values[1:])
            case Kind.ACTED:
                self._acted.fold(name, load(header), np.frombuffer(body, dtype="<i8").tolist())
            case Kind.MARK | Kind.BASE | Kind.TRANSACTION | Kind.LINEAGE:
                pass  # the state that a base repeats has been folded or was given; the others change none
            case _:
                self._shape(kind, lsn, name, load(header), body)

    def _defer(self, kind: Kind, number: int, header: dict[str, object], pairs: list[int]) -> None:
        if kind is Kind.DEFER:
            if number in self.queues:
                self._deferred.setdefault(number, []).append(deferred_acks.deferred_of(header, pairs))
        else:
            deferred_acks.forget(self._deferred, number, int(str(header["origin"])), deferred_acks.spread(pairs))

    def fold_sow(self, kinds: Ints, values: Ints, offsets: Ints) -> None:
        """SOW_PUT and SOW_DROP records in order, their bodies end to end.  ValueError for one that cannot be read."""
        fold(self._sows, kinds == int(Kind.SOW_PUT), values, offsets)

    def _queue_and_pairs(self, body: bytes) -> tuple[FoldedQueue | None, Ints]:
        values = np.frombuffer(body, dtype="<i8")
        return self.queues.get(int(values[0])), values[1:].reshape(-1, 2)

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

    def _returned(self, lsn: int, header: dict[str, object], body: bytes) -> None:
        queue, pairs = self._queue_and_pairs(body)
        if queue is None or lsn <= queue.since:
            return
        for key, column in (("failed", "failures"), ("cancelled", "cancels"), ("unseen", "unseen")):
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
                self._topology.policies.rule_exchanges(load_exchanges(header.get("exchanges")))
            case Kind.EXCHANGE_DELETE:
                self._topology.delete_exchange(vhost, name)
            case Kind.BIND:
                self._topology.bind(read_binding(header))
            case Kind.UNBIND:
                self._topology.unbind(read_binding(header))
            case Kind.TOPIC_DECLARE:
                settings = as_table(header["settings"])
                self._topology.declare_topic(vhost, str(header["exchange"]), name, settings)
                self._sows.declared(lsn, (vhost, str(header["exchange"]), name), settings)
            case Kind.TOPIC_DELETE:
                self._topology.delete_topic(vhost, str(header["exchange"]), name)
                self._sows.deleted((vhost, str(header["exchange"]), name))
            case Kind.QUEUE_DECLARE:
                rules = with_some(load_settings(header["settings"]), load_some(header.get("changed")))
                state = QueueState(
                    lsn, vhost, name, rules, bool(header["durable"]), bool(header["exclusive"]),
                    bool(header["auto_delete"]), as_table(header["arguments"]),
                )  # fmt: skip
                state.ruling = load_ruling(header.get("ruling"), rules)
                self._add_queue(state)
            case Kind.QUEUE_ALTER:
                number = int(np.frombuffer(body, dtype="<i8")[0])
                if (queue := self.queues.get(number)) is not None:
                    rules = queue.state.settings if "changed" in header else load_settings(header["settings"])
                    rules = with_some(rules, load_some(header.get("changed")))
                    queue.alter(lsn, rules)
                    queue.state.ruling = load_ruling(header.get("ruling"), rules)
            case Kind.QUEUE_DELETE:
                self._drop_queue(int(np.frombuffer(body, dtype="<i8")[0]))
            case Kind.POLICY | Kind.POLICY_DELETE | Kind.ADDRESS_SETTING:
                self._policy(kind, name, header)
            case _:
                raise ValueError("no rule for this kind")

    def _policy(self, kind: Kind, name: str, header: dict[str, object]) -> None:
        policies, vhost = self._topology.policies, str(header["vhost"])
        match kind:
            case Kind.POLICY:
                policies.put(load_policy(name, header))
            case Kind.POLICY_DELETE:
                policies.delete((bool(header["operator"]), vhost, name))
            case _ if "values" in header:
                policies.put_address(load_address(name, header))
            case _:
                policies.delete_address((vhost, name, bool(header["literal"])))
        policies.rule_exchanges(load_exchanges(header.get("exchanges")))

    def _stream(self, kind: Kind, name: str, header: dict[str, object], body: bytes) -> None:
        if kind is Kind.STREAM and name not in self._streams:
            self._streams[name] = StreamState(cast("int", header["queue"]))
        stream = self._streams[name]
        if kind is Kind.PLAN_SETTLE:
            for batch in range(stream.floor + 1, cast("int", header["batch"]) + 1):
                if (queue := self.queues.get(stream.queue)) is not None and batch in stream.plans:
                    queue.removed.append(ints(stream.plans[batch]).reshape(-1, 2))
        stream.fold(kind, header, body)
        if stream.dropped:
            del self._streams[name]

    def _boot(self, lsn: int, header: dict[str, object]) -> None:
        """BOOT: exclusive and non-durable queues, non-durable exchanges and transient messages end."""
        if not header.get("clean"):
            self._unclean = lsn
        for number in [n for n, queue in self.queues.items() if queue.state.exclusive or not queue.state.durable]:
            self._drop_queue(number)
        self._topology.boot()
        for queue in self.queues.values():
            queue.drop_transient()

    def _add_queue(self, state: QueueState) -> None:
        self.queues[state.id] = FoldedQueue(state)
        self._ids[state.vhost, state.name] = state.id

    def _drop_queue(self, number: int) -> None:
        queue = self.queues.pop(number, None)
        if queue is None:
            return
        self._deferred.pop(number, None)
        if self._ids.get((queue.state.vhost, queue.state.name)) == number:
            del self._ids[queue.state.vhost, queue.state.name]
            self._topology.queue_gone(queue.state.vhost, queue.state.name)
        mine = [name for name, one in self._streams.items() if one.queue == number and one.mode == "queue"]
        for name in mine:
            del self._streams[name]


def _copies(streams: dict[str, StreamState]) -> dict[str, StreamState]:
    return {name: stream.copy() for name, stream in streams.items()}


def read_binding(header: dict[str, object]) -> Binding:
    """The binding of a BIND or UNBIND header."""
    return Binding(
        str(header["vhost"]), str(header["source"]), str(header["destination"]), str(header["destination_type"]),
        str(header["key"]), canonical_table(as_table(header["arguments"])),
    )  # fmt: skip
