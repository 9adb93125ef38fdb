"""Folding the log gives the state that living through it gave, for any history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from unittest.mock import patch

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from choices import examples
from penstock.config.queue_arguments import read_policy
from penstock.core import sizes
from penstock.core.commands import life
from penstock.core.effects import Verb
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.places import weighed
from penstock.core.queue.queue import Queue
from penstock.core.state import fold as fold_module
from penstock.core.state.capture import Snapshot
from penstock.core.state.durable import DurableState, canonical
from penstock.core.state.fold import Fold
from penstock.core.state.pending import DecidedPart
from penstock.core.streams import Link
from penstock.core.streams.sinks import Batch
from penstock.core.topology.topology import table_of
from penstock.errors import PenstockError, Refused
from penstock.expr import compile_filter
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes
from penstock.records.event_actions import Action, OnExpire, PublishStep
from penstock.records.queue_settings import AddressSetting, QueueSettings, Retry
from unit.core.walking import walk
from unit.core.world import World, header

NAMES = ("a", "b", "c")
KINDS: tuple[dict[str, object], ...] = (
    {},
    {"retry": Retry(initial=2_000_000, attempts=3)},
    {"message_ttl": 3_000_000},
    {"expiration": 4_000_000, "expiration_model": "earliest", "lease_period": 2_000_000},
    {"max_deliveries": 2, "dead_letter_exchange": "", "dead_letter_routing_key": "a"},
    {"message_ttl": 2_000_000, "dead_letter_exchange": ""},
    {"semantics": "at-most-once", "fairness_model": "round-robin"},
    {"underlying_topic": "^[ab]$", "default_publish_target": "a", "lease_period": 3_000_000, "max_cancels": 2},
    {"filter": "/n > 2", "deferred_ack_expiration": 6_000_000},
    {"barrier_expression": "/n > 3", "lease_period": 3_000_000},
    {"barrier_expression": "/n = 2", "message_ttl": 3_000_000, "retry": Retry(initial=2_000_000)},
    {"recovery_point": "epoch", "underlying_topic": "^[ab]$", "default_publish_target": "a", "message_ttl": 9_000_000},
    {"recovery_point": "epoch", "barrier_expression": "/n > 2", "retry": Retry(initial=2_000_000)},
    {"recovery_point": "20231114T221321Z", "filter": "/n > 1"},
    {"recovery_point": "creation", "underlying_topic": "^[ab]$", "default_publish_target": "a"},
)
POLICY_SAYS: tuple[dict[str, object], ...] = (
    {
        "message-ttl": 2500,
        "dead-letter-exchange": "",
        "dead-letter-routing-key": "b",
        "alternate-exchange": "amq.topic",
    },
    {"delivery-limit": 1, "barrier-expression": "/n > 3", "filter": "/n < 5"},
    {"max-length": 2, "overflow": "drop-head", "lease-period": 2000},
)
OPERATOR_SAYS: tuple[dict[str, object], ...] = (
    {"message-ttl": 1500}, {"max-length": 1}, {"delivery-limit": 0, "overflow": "reject-publish"},
)  # fmt: skip
KEYS: tuple[dict[str, object] | None, ...] = (
    {"key": ["/n"]},
    {"key": ["/n"], "expiration": 3_000_000},
    {"key": ["/n"]},
    {"key_from": "publisher"},
    {},
    None,
)
HEADERS = (
    header(headers={"x-sow-key": "k"}),
    header(headers={"x-sow-key": "l", "x-delta": True}, expiration="1500"),
    header(),
    header(delivery_mode=1),
    header(expiration="2000"),
    header(headers={"x-delay": 2500}),
    header(headers={"x-delay": 1000, "x-death": []}, expiration="5000", delivery_mode=1),
    header(headers={"CC": ["b"]}),
)
ACTIONS = (Action("a", (OnExpire("b"),), (PublishStep("c", '{"why": "{{AMPS_REASON}}", "data": {{AMPS_DATA}}}'),)),)


class History:
    """Any sequence of small numbers is a history: each step takes what it needs from them."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.world = World(actions=ACTIONS)
        self.consumers: list[Consumer] = []
        self.epochs: dict[str, int] = {}
        self.checkpoint: tuple[int, bytes] | None = None
        self.saving: tuple[int, Snapshot, Iterator[None]] | None = None

    def next(self, below: int) -> int:
        return self.numbers.pop() % below if self.numbers else 0

    def queue(self) -> Queue | None:
        queues = self.world.core.queues()
        return queues[self.next(len(queues))] if queues else None

    def run(self) -> None:
        often = (
            self.publish,
            self.publish_mixed,
            self.subscribe,
            self.settle,
            self.settle,
            self.wait,
            self.pull,
            self.stream,
            self.walk,
            self.drop_records,
            self.settle_by_name,
            self.settle_matching,
        )
        seldom = (
            self.declare, self.unsubscribe, self.delete_and_redeclare, self.bind, self.bind, self.purge, self.alter,
            self.restart, self.save, self.sink, self.exchange, self.stream, self.decide, self.copy, self.copy,
            self.key, self.policy, self.policy,
        )  # fmt: skip
        for name in NAMES:
            self.declare(name)
        self.key()
        while self.numbers:
            try:
                steps = often if self.next(4) else seldom
                steps[self.next(len(steps))]()
            except Refused:
                pass
            if self.saving is not None and self.next(2):
                self.go_on_saving()
            if self.next(3):
                self.world.turn()
        while self.saving is not None:
            self.go_on_saving()
        self.world.turn()

    def declare(self, name: str = "") -> None:
        kind = KINDS[self.next(len(KINDS))]
        flags = ({}, {}, {"durable": False}, {"exclusive_to": self})[self.next(4)]
        core = self.world.core
        core.declare_queue(self.world.now, "/", name or NAMES[self.next(3)], QueueSettings(**kind), by=self, **flags)  # type: ignore[arg-type]

    def publish(self) -> None:
        world = self.world
        exchange = ("", "", "amq.fanout", "amq.headers", "x")[self.next(5)]
        topic = world.core.topic("/", exchange, NAMES[self.next(3)])
        bodies = [b'{"n": %d}' % n + b" " * (n * n) for n in range(self.next(6) + 1)]
        world.core.publish(world.now, Publishes(topic, HEADERS[self.next(len(HEADERS))], bodies))

    def publish_mixed(self) -> None:
        world = self.world
        count = self.next(8) + 1
        topics = [
            world.core.topic("/", ("", "amq.fanout", "amq.headers")[self.next(3)], NAMES[self.next(3)])
            for _ in range(count)
        ]
        headers = [HEADERS[self.next(len(HEADERS))] for _ in range(count)]
        batch = Publishes(topics, headers, [b'{"n": %d}' % n + b" " * (n * n) for n in range(count)])
        if self.next(2):
            world.core.publish(world.now, batch, publisher="p", sequence=self.next(30))
        else:
            world.core.publish(world.now, batch)

    def subscribe(self) -> None:
        if (queue := self.queue()) is not None:
            consumer = self.world.core.subscribe(
                self.world.now, queue, tag="t", holder=self, max_backlog=(None, 1, 3)[self.next(3)],
                no_ack=self.next(4) == 3, passive=self.next(4) == 3,
            )  # fmt: skip
            self.consumers.append(consumer)

    def pull(self) -> None:
        for consumer in self.consumers:
            if consumer.passive:
                self.world.core.pull(self.world.now, consumer, self.next(4))

    def settle(self) -> None:
        if not self.consumers:
            return
        consumer = self.consumers[self.next(len(self.consumers))]
        held = [lsn for run in consumer.leases.held() for lsn in run.chunk]
        verb = (Verb.ACK, Verb.ACK, Verb.CANCEL, Verb.EXPIRE, Verb.RELEASE, Verb.UNSEEN)[self.next(6)]
        chosen = sorted(lsn for lsn in held if self.next(2))
        delay = (None, 1_500_000)[self.next(2)] if verb in (Verb.CANCEL, Verb.RELEASE) else None
        chunks = [range(lsn, lsn + 1) for lsn in chosen]
        self.world.core.settle(self.world.now, consumer.queue, chunks, verb, by=consumer, delay=delay)

    def settle_by_name(self) -> None:
        if (queue := self.queue()) is None:
            return
        core = self.world.core
        origin = (core.origin, core.origin, 99)[self.next(3)]
        first = self.next(core.last_lsn) if origin == core.origin else self.next(30)
        verb = (Verb.ACK, Verb.EXPIRE, Verb.CANCEL)[self.next(3)]
        lsns = as_chunk(sorted({min(first + self.next(6), core.last_lsn) for _ in range(self.next(4) + 1)}))
        core.acknowledge(self.world.now, queue, {origin: lsns}, verb, client=("", "t")[self.next(2)])

    def settle_matching(self) -> None:
        if (queue := self.queue()) is not None:
            filter = compile_filter(("/n > 2", "/n IN (0, 3)")[self.next(2)])
            verb = (Verb.ACK, Verb.EXPIRE, Verb.CANCEL)[self.next(3)]
            self.world.core.settle_matching(self.world.now, queue, filter, lambda affected: None, verb)

    def unsubscribe(self) -> None:
        if self.consumers:
            consumer = self.consumers.pop(self.next(len(self.consumers)))
            self.world.core.unsubscribe(self.world.now, consumer, requeue=bool(self.next(4)), lost=bool(self.next(2)))

    def wait(self) -> None:
        self.world.turn()
        self.world.advance((0.5, 1, 2, 5)[self.next(4)])

    def delete_and_redeclare(self) -> None:
        if (queue := self.queue()) is not None:
            self.world.core.delete_queue(self.world.now, queue)
            if self.next(2):
                self.world.core.declare_queue(self.world.now, "/", queue.name, queue.settings)
                self.publish()

    def exchange(self) -> None:
        core, now = self.world.core, self.world.now
        if self.next(3):
            core.declare_exchange(now, "/", "x", ("fanout", "topic")[self.next(2)], durable=bool(self.next(3)),
                                  auto_delete=bool(self.next(2)))  # fmt: skip
        else:
            core.delete_exchange(now, "/", "x")

    def bind(self) -> None:
        core, now = self.world.core, self.world.now
        present = sorted(core.durable_state().bindings, key=str)
        if present and self.next(4) == 3:
            b = present[self.next(len(present))]
            return core.unbind(now, b.vhost, b.source, b.destination, b.destination_type, b.key, table_of(b.arguments))
        source = ("amq.fanout", "amq.headers", "x", "amq.topic")[self.next(4)]
        arguments = {"x-match": "any", "x-death": []} if source == "amq.headers" else {}
        name, kind = ("x", "exchange") if self.next(3) == 2 else (NAMES[self.next(3)], "queue")
        return core.bind(now, "/", source, name, kind, NAMES[self.next(3)], arguments)

    def purge(self) -> None:
        if (queue := self.queue()) is not None:
            self.world.core.purge_queue(self.world.now, queue)

    def alter(self) -> None:
        if (queue := self.queue()) is not None:
            self.world.core.alter_queue(self.world.now, queue, QueueSettings(**KINDS[self.next(len(KINDS))]))  # type: ignore[arg-type]

    def policy(self) -> None:
        """A policy for queues and exchanges, an operator policy, address settings; or one less."""
        core, now, name = self.world.core, self.world.now, "pq"[self.next(2)]
        operator = self.next(4) == 3
        match self.next(4):
            case 0:
                core.delete_policy(now, "/", name, operator=operator)
            case 1:
                attempts = {pattern: self.next(4) for pattern in ("#", "a", "*")}
                found = [AddressSetting("/", one, {"max_delivery_attempts": n}) for one, n in attempts.items() if n]
                core.rule_by_file(now, (), found)
            case _:
                definition = (OPERATOR_SAYS if operator else POLICY_SAYS)[self.next(3)]
                pattern = ("", "^a", "[bx]")[self.next(3)]
                core.set_policy(now, read_policy("/", name, pattern, definition, operator=operator))

    def walk(self) -> None:
        walk(self.world, bool(self.next(3)))

    def stream(self) -> None:
        queue, now = self.queue(), self.world.now
        streams = self.world.core.streams
        name = f"s{self.next(2)}"
        match self.next(6):
            case 0 if queue is not None:
                self.epochs[name] = streams.open(now, name, queue).epoch
            case 1 | 2 if name in self.epochs:
                streams.plan(now, name, self.epochs[name], streams.state(name).planned, self.next(4) + 1)
            case 3 if name in self.epochs:
                streams.settle(now, name, self.epochs[name], streams.state(name).planned - self.next(2))
            case 4 if name in self.epochs:
                streams.release(now, name)
            case 5 if name in self.epochs:
                state = streams.state(name)
                own = next(one for one in self.world.core.queues() if one.id == state.queue)
                self.epochs[name] = streams.open(now, name, own).epoch
                if self.next(3) and state.planned in state.plans:
                    streams.poison.read(name, state.planned, link=Link(state.planned, "nobody", 1))
                streams.poison.resume(now, name, self.epochs[name], state.planned, self.next(3))

    def key(self) -> None:
        """A topic gets a key, another, or none."""
        name = NAMES[self.next(3)]
        settings = KEYS[self.next(len(KEYS))]
        if settings is None:
            self.world.core.delete_topic(self.world.now, "/", "", name)
        else:
            self.world.core.declare_topic(self.world.now, "/", "", name, settings)

    def drop_records(self) -> None:
        for sow in self.world.core.sows:
            numbers, lsns = sow.index.snapshot().arrays()
            chosen = [(n, lsn) for n, lsn in zip(numbers.tolist(), lsns.tolist(), strict=True) if self.next(3) == 2]
            self.world.core.sow_delete(
                self.world.now, sow, [n for n, _ in chosen], lsns=[lsn for _, lsn in chosen], by="somebody"
            )

    def sink(self) -> None:
        world = self.world
        topic = world.core.topic("/", "", NAMES[self.next(3)])
        stream = f"s{self.next(2)}"
        settle = []
        if stream in self.epochs and self.next(2):
            settle = [(stream, self.epochs[stream], world.core.streams.state(stream).planned)]
        world.core.sink_commit(
            world.now, Batch("query", self.next(20), settle), [Publishes(topic, header(), [b"{}", b"1"])]
        )

    def decide(self) -> None:
        world = self.world
        stream = f"s{self.next(2)}"
        settle = []
        if stream in self.epochs and self.next(2):
            settle = [(stream, self.epochs[stream], world.core.streams.state(stream).planned)]
        parts = [DecidedPart(f"{i}", self.next(3) + 1, 9, 7, NAMES[self.next(3)], "", "/") for i in range(2)]
        world.core.sink_decide(world.now, Batch(f"large{self.next(2)}", self.next(20), settle), parts)

    def copy(self) -> None:
        """A chunk of what is decided: some rows of the parts, one after the other."""
        world = self.world
        for query, state in list(world.core.decided.items()):
            if self.next(2):
                topics = [world.core.topic("/", "", str(p.topic)) for p in state.parts for _ in range(p.rows)]
                rows = topics[state.rows : state.rows + 1 + self.next(3)]
                world.core.sink_copy(world.now, query, len(rows), [Publishes(rows, header(), [b"{}"] * len(rows))])

    def restart(self) -> None:
        if self.next(3) == 0:
            self.consumers, self.epochs = [], {}
            self.saving = None
            self.world.restart(clean=bool(self.next(2)))

    def save(self) -> None:
        """Begin a checkpoint; `go_on_saving` captures a queue now and then while life goes on."""
        self.world.turn()
        snapshot = self.world.core.snapshot()
        self.saving = (len(self.world.tables), snapshot, self.world.core.capture(snapshot))

    def go_on_saving(self) -> None:
        assert self.saving is not None
        done, snapshot, capture = self.saving
        if next(capture, self) is self:
            self.saving = None
            self.checkpoint = (done, snapshot.encode())
            self.world.core.captured(snapshot)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.integers(0, 255), min_size=30, max_size=500), st.integers(1, 9))
def test_fold_equals_life(numbers: list[int], tables: int) -> None:
    history = History(numbers)
    with (
        patch.object(life, "CAPTURE_MOST", 1), patch.object(fold_module, "SLACK", tables * 100),
        patch.object(sizes, "SMALL", 0), patch.object(sizes, "WORTH", 0), patch.object(sizes, "LOOSE_MOST", 20),
    ):  # fmt: skip
        history.run()
        folds_to_the_same(history, tables)


def folds_to_the_same(history: History, tables: int) -> None:
    world = history.world
    weighs_what_its_bodies_do(world)
    live = canonical(world.core.durable_state())
    for queue in world.core.queues():
        if queue.ready or queue.leased or queue.delayed or queue.dying:
            queue.check()
    assert world.folded(1_000_000) == live
    assert world.folded(tables) == live
    assert DurableState.decode(live.encode()) == live
    if history.checkpoint is not None:
        done, saved = history.checkpoint
        fold = Fold(DurableState.decode(saved))
        for i in range(done, len(world.tables), tables):
            fold.feed(pa.concat_tables(world.tables[i : i + tables]))
        assert fold.finish() == live
    world.restart(clean=False)
    weighs_what_its_bodies_do(world)


def weighs_what_its_bodies_do(world: World) -> None:
    """The bytes of each queue are the sum of what its messages carry."""

    def weight(chunks: Iterable[Chunk]) -> int:
        return sum(len(world.rows[lsn][0].bodies[world.rows[lsn][1]]) for chunk in chunks for lsn in chunk)

    for queue in world.core.queues():
        ready = [*queue.main.chunks(), *(run.chunk for run in queue.returned.runs())]
        assert queue.ready_bytes == weight(ready)
        assert weighed(queue).leased == weight(run.chunk for run in queue.leased_runs())
        contained = queue.capture()
        assert weighed(queue).total == (0 if contained is None else weight(contained.waiting()))


def test_a_refusal_changes_nothing() -> None:
    world = World()
    before = canonical(world.core.durable_state())
    for wrong in (
        lambda: world.core.queue("/", "none"),
        lambda: world.core.bind(world.now, "/", "none", "q", "queue", ""),
        lambda: world.core.declare_exchange(world.now, "/", "amq.x", "direct"),
        lambda: world.core.streams.plan(world.now, "none", 1, 0, 1),
    ):
        try:
            wrong()
        except PenstockError:
            continue
        raise AssertionError("nothing was refused")
    assert canonical(world.core.durable_state()) == before
    assert not world.core.journal
