"""A mixed load with a memory: what was promised, what was seen, and what each restart must therefore find.

Queues: `q` is acked and nacked, `work` is rejected into `dead`, `once` is at-most-once, `read` is read by a stream,
`late` delivers only what is durable.  Rules are those of docs/durability.md, section 2, judged body by body.
"""

from __future__ import annotations

import random
from collections import Counter

from penstock.core.effects import Verb
from penstock.errors import PenstockError
from penstock.log.simdisk import SimDisk
from penstock.log.writer import LogSettings
from penstock.records.chunks import Chunk
from penstock.records.entries import Entry, Publishes, singly
from penstock.testing.instance import FakeClock
from penstock.wire.amqp import methods as m
from sim.serverkit import Client, Content, Life, state_of

QUEUES = ("q", "work", "dead", "once", "read", "late")
ARGUMENTS: dict[str, dict[str, object]] = {
    "work": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "once": {"x-semantics": "at-most-once"},
    "late": {"x-deliver": "durable"},
}
CONSUMED = ("q", "work", "once", "late")


class Ledger:
    """Everything the outside world knows, over all lives of one data folder."""

    def __init__(self) -> None:
        self.serial = 0
        self.queue_of = dict[bytes, str]()
        self.confirmed = set[bytes]()
        self.nacked = set[bytes]()
        self.delivered = set[bytes]()
        self.acked = set[bytes]()
        self.gone = set[bytes]()  # acked, and the ack was on a healthy disk
        self.rejected = set[bytes]()
        self.declared = set[str]()
        self.given = dict[int, bytes]()  # every LSN of a message that was ever given out
        self.plans = dict[int, list[int]]()  # stream batches that were answered
        self.floor = 0  # the highest batch whose settlement was answered
        self.asked_floor = 0

    def append(self, entries: list[Entry]) -> None:
        """The log is handed these."""
        for part in singly(entries):
            if isinstance(part, Publishes):
                for row, body in enumerate(part.bodies):
                    assert part.first + row not in self.given, f"LSN {part.first + row} is given out twice"
                    self.given[part.first + row] = body

    def judge(self, found: dict[str, list[bytes]]) -> None:
        """What a restart found in its queues, oldest first."""
        count = Counter(body for bodies in found.values() for body in bodies)
        assert not [body for body, n in count.items() if n > 1], "a message is there twice"
        assert set(count) <= set(self.queue_of), "a message is there that nobody sent"
        for name, bodies in found.items():
            for body in bodies:
                home = self.queue_of[body]
                assert name == home or (name, home) == ("dead", "work"), f"{body!r} of {home} is in {name}"
                assert name != "dead" or body in self.rejected
            if name != "dead":
                numbers = [int(body) for body in bodies]
                assert numbers == sorted(numbers), f"the order in {name} is {numbers}"
        for body in self.confirmed:
            queue = self.queue_of[body]
            excused = body in self.acked or queue == "once" or queue == "read"
            assert excused or count[body] == 1, f"{body!r} was confirmed into {queue} and is lost"
        for body in self.gone:
            assert not count[body], f"{body!r} was settled for good"
        for body in found["once"]:
            assert body not in self.delivered, f"{body!r} was sent at most once"


class Load:
    """One life under load, chosen by a random source."""

    def __init__(self, ledger: Ledger, life: Life, chance: random.Random) -> None:
        self.ledger, self.life, self.chance = ledger, life, chance
        self.told = dict[int, bytes]()  # by publish number, what is not confirmed
        self.number = 0
        self.held = dict[str, dict[int, bytes]]()  # by queue, tag -> body
        self.unsure = set[bytes]()  # acked, not yet known to be on the disk
        self.asked = list[tuple[int, int, list[int]]]()  # plans: LSN to wait for, batch, rows
        self.epoch = 0
        self.batch = 0
        append = life.log.append

        def seen(entries: list[Entry], *, urgent: bool = True, sync: bool = False) -> None:
            ledger.append(entries)
            append(entries, urgent=urgent, sync=sync)

        self.early = set[Content]()  # sent before the log broke

        def broken(_: str) -> None:
            clients = self.consumers.values()
            self.early = {one for client in clients for one in client.got if isinstance(one, Content)}

        life.engine.on_broken.append(broken)
        life.log.append = seen  # type: ignore[assignment, method-assign]
        self.publisher = life.client(confirm=True)
        for name in QUEUES:
            self.publisher.method(m.QueueDeclare(queue=name, durable=True, arguments=ARGUMENTS.get(name, {})))  # type: ignore[arg-type]
        self.consumers = {name: self._consumer(name) for name in CONSUMED}
        self.settle()

    def _consumer(self, name: str) -> Client:
        client = self.life.client(prefetch=self.chance.choice((0, 3, 10)))
        client.consume(name, no_ack=name == "once" and self.chance.random() < 0.5)
        self.held[name] = {}
        return client

    # -- what a step may be

    def step(self) -> None:
        """Something happens."""
        steps = (
            (self.publish, 10), (self.ack, 6), (self.nack, 2), (self.reject, 3), (self.life.turn, 6),
            (self.life.log.tick, 4), (self.settle, 4), (self.plan, 2), (self.declare, 1), (self.leave, 1),
            (self.checkpoint, 1), (self.cold, 4), (self.wait, 1), (self.stall, 1),
        )  # fmt: skip
        step = self.chance.choices([step for step, _ in steps], [weight for _, weight in steps])[0]
        step()
        self.absorb()

    def publish(self) -> None:
        ledger = self.ledger
        for _ in range(self.chance.randint(1, 4)):
            queue = self.chance.choice(("q", "q", "work", "once", "read", "late"))
            ledger.serial += 1
            body = b"%d" % ledger.serial
            ledger.queue_of[body] = queue
            self.number += 1
            self.told[self.number] = body
            self.publisher.publish(queue, body)

    def _pick(self, *queues: str) -> tuple[str, int] | None:
        queue = self.chance.choice(queues)
        held = self.held[queue]
        return (queue, self.chance.choice(list(held))) if held else None

    def ack(self) -> None:
        if (picked := self._pick("q", "work", "late")) is None:
            return
        queue, tag = picked
        multiple = self.chance.random() < 0.3
        held = self.held[queue]
        for one in [one for one in held if one == tag or (multiple and one < tag)]:
            body = held.pop(one)
            self.ledger.acked.add(body)
            if self.life.engine.broken is None:
                self.unsure.add(body)
        self.consumers[queue].ack(tag, multiple=multiple)

    def nack(self) -> None:
        if (picked := self._pick("q", "work", "late")) is not None:
            queue, tag = picked
            del self.held[queue][tag]
            self.consumers[queue].method(m.BasicNack(tag, requeue=True))

    def reject(self) -> None:
        if (picked := self._pick("work")) is not None:
            queue, tag = picked
            self.ledger.rejected.add(self.held[queue].pop(tag))
            self.consumers[queue].method(m.BasicReject(tag, requeue=False))

    def plan(self) -> None:
        """A stream's reader asks for its next batch, again and again in the same way."""
        life, ledger = self.life, self.ledger
        if life.engine.broken is not None:
            return
        streams, now = life.core.streams, life.engine.now()
        try:
            if not self.epoch:
                self.epoch = streams.open(now, "s", life.core.queue("/", "read")).epoch
                state = streams.state("s")
                assert state.floor >= ledger.floor
                self.batch = self.chance.choice((state.floor, max(state.floor, min(ledger.plans, default=0))))
            plan = streams.plan(now, "s", self.epoch, self.batch, self.chance.randint(1, 5))
        except PenstockError:
            return  # the queue is not there yet
        rows = [lsn for chunk in plan.chunks for lsn in chunk]
        known = ledger.plans.get(plan.batch)
        if plan.batch > self.batch:
            assert known is None or known == rows, f"batch {plan.batch} was {known}, and is {rows} now"
        self.asked.append((life.core.last_lsn, plan.batch, rows))
        ledger.asked_floor = max(ledger.asked_floor, self.batch)
        floor = self.batch
        lsn = life.core.last_lsn

        def durable() -> None:
            ledger.plans[plan.batch] = rows
            ledger.floor = max(ledger.floor, floor)

        life.engine.when_durable(lsn, durable)
        life.engine.arm()
        if self.chance.random() < 0.6:
            self.batch = plan.batch

    def declare(self) -> None:
        name = f"new-{self.chance.randint(0, 5)}"
        self.publisher.method(m.QueueDeclare(queue=name, durable=True))

    def leave(self) -> None:
        queue = self.chance.choice(CONSUMED)
        self.consumers[queue].lose()
        self.consumers[queue] = self._consumer(queue)

    def checkpoint(self) -> None:
        life = self.life
        self.settle()
        life.log.flush()
        if life.engine.broken is None and life.log.synced == life.core.last_lsn:
            try:
                life.log.write_checkpoint(life.core.durable_state().encode(), life.core.last_lsn)
            except OSError:
                assert life.log.synced == life.core.last_lsn  # the log is as it was

    def cold(self) -> None:
        if self.life.cold:
            self.life.read_cold()

    def wait(self) -> None:
        self.life.advance(200_000)
        if self.life.engine.broken is None and not self.life.log._gathered.entries:
            self.ledger.gone |= self.unsure
            self.unsure.clear()

    def stall(self) -> None:
        session = self.consumers[self.chance.choice(CONSUMED)].session
        if session.outgoing.blocked:
            session.resume_writing()
        else:
            session.pause_writing()

    def settle(self) -> None:
        self.life.run()
        self.absorb()

    # -- what came

    def absorb(self) -> None:
        """Take note of what the server said, and judge it."""
        ledger, life = self.ledger, self.life
        for one in self.publisher.take_all():
            if isinstance(one, m.QueueDeclareOk):
                assert life.core.queue("/", one.queue).id <= life.log.durable
                ledger.declared.add(one.queue)
            elif isinstance(one, m.BasicAck | m.BasicNack):
                numbers = [n for n in self.told if n == one.delivery_tag or (one.multiple and n < one.delivery_tag)]
                assert numbers, f"{one} tells nothing new"
                for number in numbers:
                    body = self.told.pop(number)
                    (ledger.confirmed if isinstance(one, m.BasicAck) else ledger.nacked).add(body)
            else:
                assert life.engine.broken is not None, one
                assert isinstance(one, m.ChannelClose), one
                self.publisher.method(m.ChannelCloseOk())
                self.publisher.channel(confirm=True)
                self.told.clear()
                self.number = 0
        for queue, client in self.consumers.items():
            for one in client.take_all():
                if isinstance(one, Content):
                    self._delivered(queue, client, one)
                else:
                    assert isinstance(one, m.BasicConsumeOk), one

    def _delivered(self, queue: str, client: Client, one: Content) -> None:
        ledger, body = self.ledger, one.body
        again = body in ledger.delivered
        assert one.redelivered or not again, f"{body!r} comes again and does not say so"
        assert body not in ledger.gone, f"{body!r} was settled for good"
        if queue == "once":
            assert not again, f"{body!r} is sent twice"
        else:
            assert body not in self.held[queue].values(), f"{body!r} has two holders"
            self.held[queue][one.tag] = body
        if queue in ("once", "late") or (self.life.engine.broken is not None and one not in self.early):
            assert body in durable_bodies(self.life), f"{body!r} is shown and not durable"
        ledger.delivered.add(body)


def durable_bodies(life: Life) -> set[bytes]:
    """Bodies of all messages that the log has."""
    out = set[bytes]()
    for batch in life.log.batches(0, 1 << 53, ["kind", "body"]):
        kinds, bodies = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        out.update(body for kind, body in zip(kinds, bodies, strict=True) if kind in (0, 1))
    return out


def found_in(life: Life) -> dict[str, list[bytes]]:
    """What the queues hold."""
    present = {queue.name for queue in life.core.queues()}
    return {name: life.contents(name) if name in present else [] for name in QUEUES}


def check_restart(ledger: Ledger, disk: SimDisk, clock: FakeClock, log: LogSettings, **how: object) -> Life:
    """Start again, and judge what is there; also without any checkpoint."""
    files = disk.files()
    bare = {name: data for name, data in files.items() if not name.startswith("checkpoints/")}
    with_checkpoint = state_of(SimDisk(files), clock, log)
    assert state_of(SimDisk(bare), clock, log) == with_checkpoint
    life = Life(disk, clock, log=log, **how)  # type: ignore[arg-type]
    ledger.judge(found_in(life))
    names = {queue.name for queue in life.core.queues()}
    assert ledger.declared <= names
    planned = dict[int, list[int]]()
    if "s" in life.core.streams.states:
        state = life.core.streams.state("s")
        planned = {b: [lsn for c in life.core.streams.batch("s", b) for lsn in c] for b in state.plans}
        assert ledger.floor <= state.floor <= max(ledger.asked_floor, ledger.floor)
    for batch, rows in ledger.plans.items():
        if rows and batch > max(ledger.asked_floor, ledger.floor):
            assert planned.get(batch) == rows, f"batch {batch} was answered as {rows}, and is {planned.get(batch)}"
    return life


def settle_stale(life: Life, queue: str, chunk: Chunk) -> int:
    """What a client does that kept LSNs of an earlier life."""
    return life.core.settle(life.engine.now(), life.core.queue("/", queue), [chunk], Verb.ACK, client="old")
