"""Random walks of a queue whose messages change their owner, beside a model that knows of each message whose it is."""

from __future__ import annotations

from random import Random

from penstock.core.effects import Verb
from penstock.core.links.ownership import Claim, holds_against
from penstock.core.links.sharing import Site
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import canonical
from penstock.core.state.lsns import flat
from penstock.records.queue_settings import Retry
from property.bounds import BOUNDS, OF_SITES, bounded, drawn
from unit.core.world import SECOND, World

STEPS = 50
COMPARED = 10
"""After so many commands the log is folded."""

OWNERS = ("here", "there", "yonder")

KINDS: tuple[dict[str, object], ...] = (
    {}, {}, {}, {"barrier_expression": "/k = 0"}, {"priority_expression": "/k"}, {"fairness_key": "/k"},
    {"target_queue_depth": 4}, {"max_length": 9, "overflow": "reject-publish"},
)  # fmt: skip
"""What each site keeps of its own messages."""


class ForeignWalk:
    """One walk; `run` raises AssertionError where queue and model part."""

    def __init__(self, seed: int) -> None:
        self.bounds = drawn(Random(f"bounds {seed}"), (*BOUNDS, *OF_SITES), 0.5 if seed % 2 else 0)
        self.dice = dice = Random(seed)
        self.world = world = World(origin=7)
        retry = Retry(5 * SECOND, 2.0, 30 * SECOND, 0.0, 0) if dice.random() < 0.5 else None
        once = dice.random() < 0.3
        self.kind = Random(seed + 1).choice(KINDS)
        self.barriers = "barrier_expression" in self.kind
        world.declare(
            "q", **self.kind, retry=retry, expiration=dice.choice((None, 40 * SECOND)), max_per_subscription_backlog=3,
            semantics="at-most-once" if once else "at-least-once", fairness_model="round-robin",
            deliver="durable" if once else "early", lease_period=dice.choice((0, 9 * SECOND)),
        )  # fmt: skip
        for number, name in enumerate(OWNERS):
            world.core.meet(world.now, Site(name, 7 + number, ""))
        world.turn()
        self.claims: dict[int, Claim] = {}  # of every message that ever was
        self.seen = 0  # deliveries that were looked at

    @property
    def queue(self) -> Queue:
        found = self.world.core.queue("/", "q")
        assert found is not None
        return found

    def run(self) -> int:
        """All its commands; how many they were."""
        commands = (
            self.publish, self.publish, self.own, self.own, self.own, self.subscribe, self.unsubscribe, self.settle,
            self.settle, self.settle_anywhere, self.advance, self.seldom,
        )  # fmt: skip
        with bounded(self.bounds):
            for step in range(STEPS):
                before = dict(self.claims)
                self.dice.choice(commands)()
                self.world.turn()
                self.compare(before, fold=step % COMPARED == 0)
        return STEPS

    def compare(self, before: dict[int, Claim], *, fold: bool) -> None:
        queue, world = self.queue, self.world
        queue.check()
        for one in world.deliveries[self.seen :]:
            for lsn in one.chunk if not self.marks(one.chunk[0]) else ():
                owners = {claims.get(lsn, Claim("here")).owner for claims in (before, self.claims)}
                assert "here" in owners, f"{lsn} went out, and is {self.claims.get(lsn)}"
        self.seen = len(world.deliveries)
        there: dict[str, set[int]] = {}
        for state, run, _ in queue.standing():
            there.setdefault(state, set()).update(run.chunk)
        for state in ("ready", "foreign"):
            owned = [self.claims.get(lsn, Claim("here")).owner == "here" for lsn in there.get(state, ())]
            assert all(mine == (state == "ready") for mine in owned), (state, there)
        assert queue.foreign_count == len(there.get("foreign", ()))
        assert {*flat(queue.snapshot()[0]).tolist()} == set().union(*there.values())
        shown = {lsn for first, stop, _ in queue.foreign_spans() for lsn in range(first, stop)}
        assert shown == there.get("foreign", set())
        if self.barriers and "foreign" in there:
            held = [lsn for lsn in there.get("held", ()) if not self.marks(lsn)]
            assert all(self.claims.get(lsn, Claim("here")).owner == "here" for lsn in held), (held, there)
        if fold and "priority_expression" not in self.kind:
            assert canonical(world.core.durable_state()) == canonical(world.folded(5))

    def marks(self, lsn: int) -> bool:
        """Whether a message is a barrier, which each site lets go itself."""
        batch, row = self.world.rows[lsn]
        return self.barriers and batch.bodies[row] == b'{"k": 0}'

    # -- commands

    def publish(self) -> None:
        count = self.dice.randint(1, 5)
        self.world.publish("q", *(b'{"k": %d}' % (n % 3 if self.barriers else n) for n in range(count)))

    def own(self) -> None:
        living = sorted(flat(self.queue.snapshot()[0]).tolist())
        if not living:
            return
        first = self.dice.choice(living)
        stop = first + self.dice.randint(1, 9)
        why = self.dice.choice(("transfer", "transfer", "proxied", "yielded"))
        claim = Claim(self.dice.choice(OWNERS), self.dice.randint(0, 4), why)
        holds = [lsn for lsn in living if first <= lsn < stop]
        holds = [lsn for lsn in holds if holds_against(claim, self.claims.get(lsn, Claim("here")))]
        count = self.world.core.own(self.world.now, self.queue, [(first, stop)], claim)
        assert count == len(holds), (count, holds)
        self.claims.update(dict.fromkeys(holds, claim))

    def subscribe(self) -> None:
        if len(self.queue.consumers) < 3:
            self.world.subscribe(self.queue, tag=f"c{self.dice.random()}")

    def unsubscribe(self) -> None:
        if self.queue.consumers:
            consumer = self.dice.choice(list(self.queue.consumers))
            self.world.core.unsubscribe(self.world.now, consumer, requeue=True)

    def settle(self) -> None:
        holders = [consumer for consumer in self.queue.holders() if not consumer.closed]
        if holders:
            consumer = self.dice.choice(holders)
            run = self.dice.choice(list(consumer.leases.held()))
            lsn = self.dice.choice(list(run.chunk))
            verb = self.dice.choice((Verb.ACK, Verb.RELEASE, Verb.CANCEL))
            self.world.core.settle(self.world.now, self.queue, [range(lsn, lsn + 1)], verb, by=consumer)

    def settle_anywhere(self) -> None:
        """As a settle comes from another site."""
        living = sorted(flat(self.queue.snapshot()[0]).tolist())
        if living:
            lsn = self.dice.choice(living)
            self.world.core.acknowledge(self.world.now, self.queue, {7: range(lsn, lsn + 1)})
            if lsn not in set(flat(self.queue.chunks("leased")).tolist()):
                assert lsn not in set(flat(self.queue.snapshot()[0]).tolist())

    def advance(self) -> None:
        self.world.advance(self.dice.choice((1, 3, 10)))

    def seldom(self) -> None:
        match self.dice.randrange(5):
            case 0 | 1:
                self.world.restart(clean=self.dice.random() < 0.5)
                self.seen = 0
            case 2:
                before = self.queue.foreign_count
                self.world.core.purge_queue(self.world.now, self.queue)
                assert self.queue.foreign_count == before
            case 3:
                self.world.core.pause_queue(self.world.now, self.queue)
            case _:
                self.world.core.resume_queue(self.world.now, self.queue)
