"""Walks over the whole core: exchanges that delay, remember and keep duplicates out before queues of many options, with
transactions, moves and restarts.  After each command every queue recounts itself, and each stored row has the LSN of
its own body; in the end folding the log gives what living through it gave, and an audit finds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from choices import SEED
from penstock.config.queue_settings import read_queue_settings
from penstock.config.queue_values import BadValue
from penstock.core.audit_log import Audit
from penstock.core.commands.transactions import Transaction
from penstock.core.effects import Verb
from penstock.core.publishing.published import Published
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.queue import Queue
from penstock.errors import PenstockError
from penstock.records.entries import Publishes
from sim.killed_seen import plainly
from unit.core.world import World, header

WALKS, STEPS = 4, 40

EXCHANGES: Mapping[str, tuple[str, dict[str, object]]] = {
    "fan": ("fanout", {}),
    "top": ("topic", {}),
    "later": ("x-delayed-message", {"x-delayed-type": "fanout"}),
    "once": ("x-message-deduplication", {"x-cache-size": 4, "x-cache-ttl": 5000}),
    "late": ("x-recent-history", {"x-recent-history-length": 2}),
}
OPTIONS: Mapping[str, tuple[object, ...]] = {
    "lease_period": ("2s",), "max_deliveries": (2,), "delivery_limit": (1,), "expiration": ("3s",),
    "retry": ({"initial": "1s", "jitter": 0, "attempts": 3},), "barrier_expression": ("/kind = 'b'",),
    "max_priority": (5,), "group_key": ("/g",), "fairness_key": ("/t",), "max_leased": (3,), "dedup_window": ("3s",),
    "unique": (True,), "last_value_key": ("/k",), "max_length": (2, 4), "ring_size": (3,), "filter": ("/n > 1",),
    "overflow": ("reject-publish", "reject-publish-dlx", "drop-newest"), "semantics": ("at-most-once",),
}  # fmt: skip
NEEDS: Mapping[str, dict[str, object]] = {
    "dedup_window": {"dedup_key": "/k"}, "unique": {"dedup_key": "/k"}, "overflow": {"max_length": 2},
    "semantics": {"fairness_model": "round-robin", "deliver": "durable"},
}  # fmt: skip


class Walk:
    """One walk, by its seed."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = Random(seed)
        self.world = World()
        self.count = 0
        self.held = list[tuple[str, Consumer]]()
        self.names = ["q0", "q1", "q2", "dead"]
        core, now = self.world.core, self.world.now
        for name, (kind, arguments) in EXCHANGES.items():
            core.declare_exchange(now, "/", name, kind, arguments=arguments)
        for name in self.names:
            core.declare_queue(now, "/", name, read_queue_settings(self.options(name), "file"), arguments={})
            for exchange in EXCHANGES:
                if dice.random() < 0.4:
                    core.bind(now, "/", exchange, name, "queue", "a")
        self.world.turn()

    def options(self, name: str) -> dict[str, object]:
        """Some that can stand together."""
        if name == "dead":
            return {}
        out: dict[str, object] = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
        for key in self.dice.sample(sorted(OPTIONS), 6):
            new = {**NEEDS.get(key, {}), **out, key: self.dice.choice(OPTIONS[key])}
            try:
                read_queue_settings(new, "file")
            except BadValue:
                continue
            out = new
        return out

    def queue(self) -> Queue:
        return self.world.core.queue("/", self.dice.choice(self.names))

    def batch(self) -> Publishes:
        """Messages of one topic or several, which ask for this and that."""
        dice, places = (
            self.dice,
            [*(("", name) for name in [*self.names, "nobody"]), *((one, "a") for one in EXCHANGES)],
        )
        topics, headers, bodies = list[Any](), list[bytes](), list[bytes]()
        for _ in range(dice.choice((1, 2, 4, 8))):
            self.count += 1
            asked: dict[str, object] = {"x-delay": dice.choice((1000, 3000))} if dice.random() < 0.3 else {}
            if dice.random() < 0.3:
                asked["x-deduplication-header"] = str(dice.randrange(3))
            body: dict[str, object] = {
                "id": self.count, "n": dice.randrange(5), "g": dice.choice("ab"), "t": dice.choice("xy"),
                "k": dice.randrange(4), "kind": dice.choice("aaaaab"),
            }  # fmt: skip
            topics.append(self.world.core.topic("/", *dice.choice(places)))
            expiration = {"expiration": "1000"} if dice.random() < 0.2 else {}
            headers.append(header(headers=asked or None, priority=dice.randrange(7), **expiration))
            bodies.append(json.dumps(body).encode())
        return Publishes(topics, headers, bodies)

    def stands(self, batch: Publishes, told: Published) -> None:
        self.world.turn()
        for row, lsn in enumerate(told.lsns_by_row(len(batch))):
            assert not lsn or self.world.read([lsn]).bodies == [batch.bodies[row]]

    # -- commands

    def publish(self) -> None:
        batch = self.batch()
        numbered: dict[str, Any] = {"publisher": "p", "sequence": self.count} if self.dice.random() < 0.2 else {}
        self.stands(batch, self.world.core.publish(self.world.now, batch, **numbered))

    def transact(self) -> None:
        batch = self.batch()
        told = self.world.core.transact(self.world.now, Transaction(batch, [])).published
        self.stands(batch, told or Published(0, 0))

    def subscribe(self) -> None:
        queue = self.queue()
        self.held.append((queue.name, self.world.subscribe(queue, max_backlog=self.dice.choice((1, 4)))))

    def settle(self) -> None:
        for name, consumer in self.held:
            queue = self.world.core.queue("/", name)
            for lsn in list(consumer.leases.holding(range(1, 1 << 52))):
                verb = self.dice.choice((Verb.ACK, Verb.EXPIRE, Verb.CANCEL, Verb.RELEASE))
                self.world.core.settle(self.world.now, queue, [range(lsn, lsn + 1)], verb, by=consumer)

    def move(self) -> None:
        source, target = self.queue(), self.queue()
        lsns = sorted(lsn for chunk in source.chunks("ready", "delayed") for lsn in chunk)[: self.dice.randint(1, 4)]
        if lsns:
            rows = self.world.read(lsns)
            topics = [self.world.core.topic("/", "", target.name)] * len(lsns)
            batch = Publishes(topics, list(rows.properties), list(rows.bodies))
            self.world.core.move_messages(self.world.now, source, target, lsns, batch, "moved")

    def advance(self) -> None:
        self.world.advance(self.dice.choice((0.5, 1, 2, 5)))

    def purge(self) -> None:
        self.world.core.purge_queue(self.world.now, self.queue())

    def restart(self) -> None:
        self.world.restart(clean=self.dice.random() < 0.5)
        self.held.clear()

    def run(self) -> None:
        commands: list[Callable[[], None]] = [
            *(self.publish,) * 6, self.transact, self.subscribe, self.subscribe, self.settle, self.settle,
            *(self.move,) * 3, self.advance, self.advance, self.purge, self.restart,
        ]  # fmt: skip
        for _ in range(STEPS):
            try:
                self.dice.choice(commands)()
            except PenstockError:
                pass  # said no, and nothing of it is done
            self.world.turn()
            for queue in self.world.core.queues():
                queue.check()
        audit = Audit()
        for table in self.world.tables:
            for rows in table.to_batches():
                audit.feed(rows)
        folded = self.world.folded()
        assert not audit.finish(folded).findings
        if not any(queue.dying for queue in self.world.core.queues()):  # these stand where they stood before
            assert plainly(folded) == plainly(self.world.core.durable_state())


def test_walks_over_the_whole_core(effort: int) -> None:
    for seed in range(SEED, SEED + WALKS * effort):
        try:
            Walk(seed).run()
        except Exception as error:
            error.add_note(f"walk {seed}: PENSTOCK_SEED={seed}")
            raise
