"""Power cuts and failing disks under queues with an order of their own, judged by docs/durability.md.

A priority queue whose expression is altered, a target depth, a queue that takes what was published before, acks that
come before their message, a publisher with numbers: one small world, from one seed.
"""

from __future__ import annotations

import random

import orjson
import pytest

from choices import spread
from crash.model_clients import EXPRESSIONS, TOPIC, Notes, Sent
from penstock.errors import PenstockError
from penstock.log.simdisk import SimDisk
from penstock.records.queue_settings import QueueSettings
from penstock.testing import Broker
from penstock.testing.instance import Instance
from sim.serverkit import clock

DEPTH = 3
QUEUES = {
    "keep": QueueSettings(underlying_topic=TOPIC),
    "ranked": QueueSettings(underlying_topic=TOPIC, priority_expression=EXPRESSIONS[0]),
    "shallow": QueueSettings(underlying_topic=TOPIC, target_queue_depth=DEPTH),
}


class World:
    """A broker over several lives, what was told, and what each restart must find."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = SimDisk(seed=seed)
        self.broker = Broker({}, disk=self.disk, clock=clock(), seed=seed)
        self.notes = Notes()
        for name, settings in QUEUES.items():
            self.declare(name, settings)

    def declare(self, name: str, settings: QueueSettings) -> None:
        def work(instance: Instance) -> None:
            instance.core.declare_queue(instance.engine.now(), "/", name, settings)
            instance.make_durable()

        self.broker.command(work)

    def alter(self, name: str, **changes: object) -> None:
        self.broker.alter(name, **changes)

    # -- steps

    def step(self) -> None:
        """Something happens; PenstockError when the disk is broken, and nothing was promised then."""
        chance, notes = self.chance, self.notes
        match chance.randrange(8):
            case 0 | 1 | 2:
                sent = Sent(len(notes.sent) + 1, False)
                notes.sent[sent.number] = sent
                self.publish(sent)
            case 3:
                wanted = chance.choice(EXPRESSIONS)
                notes.expressions.add(wanted)
                self.alter("ranked", priority_expression=wanted)
                notes.expressions = {wanted}
            case 4 | 5:
                self.work(chance.choice(("ranked", "shallow")))
            case 6:
                name = f"later-{len(notes.declared)}"
                notes.declared[name] = False
                self.declare(name, QueueSettings(underlying_topic=TOPIC))
                for number in chance.sample(sorted(notes.marks), min(2, len(notes.marks))):
                    notes.settled(name, number, sure=False)
                    self.broker.ack(name, notes.marks[number])
                    notes.settled(name, number, sure=True)
                self.alter(name, recovery_point="epoch")
                notes.declared[name] = True
            case _:
                self.broker.advance(chance.choice((0.01, 0.2)))

    def publish(self, sent: Sent) -> None:
        mark = self.broker.publish(TOPIC, orjson.dumps(sent.body), publisher="pub", sequence=sent.number)
        if mark:
            assert sent.number not in self.notes.marks, f"{sent} was confirmed and is stored again"
            self.notes.marks[sent.number] = mark
        else:
            self.notes.duplicates += 1

    def work(self, queue: str) -> None:
        """A consumer takes some, acks some of them, and leaves."""
        notes = self.notes
        subscription = self.broker.subscribe(queue, max_backlog=self.chance.choice((1, 2, 5)))
        for message in subscription.take():
            number = orjson.loads(message.body)["id"]
            assert number not in notes.gone.get(queue, ()), f"{number} came back to {queue}"
            if self.chance.random() < 0.6:
                notes.settled(queue, number, sure=False)
                message.ack()
                notes.settled(queue, number, sure=True)
        subscription.close()

    # -- what a restart finds

    def look(self) -> None:
        """Each queue by its row of the table."""
        notes = self.notes
        kept = self.found("keep")
        assert kept == sorted(set(kept)), "twice, or out of order"
        assert set(notes.marks) <= set(kept) <= set(notes.sent)
        present = set(kept)
        found = self.judge("ranked", present)
        orders = [
            sorted(found, key=lambda number: (-getattr(notes.sent[number], name[1:]), number))
            for name in sorted(notes.expressions)
        ]
        assert found in orders, f"{found} by {notes.expressions}"
        stats = self.broker.stats("shallow")
        active = [orjson.loads(record.body)["id"] for record in self.broker.sow("shallow")]
        assert len(active) <= DEPTH
        assert set(active) <= present - notes.gone.get("shallow", set())
        assert stats["ready"] == len(active)
        for name, sure in notes.declared.items():
            if sure:
                assert sorted(self.judge(name, present)) == self.found(name)

    def judge(self, queue: str, present: set[int]) -> list[int]:
        """All that a consumer is given, in its order: nothing lost, nothing twice, nothing back."""
        notes = self.notes
        gone, maybe = notes.gone.setdefault(queue, set()), notes.maybe.pop(queue, set())
        subscription = self.broker.subscribe(queue, max_backlog=None)
        found = [orjson.loads(message.body)["id"] for message in subscription.take()]
        subscription.close()
        assert len(set(found)) == len(found)
        assert not gone & set(found), f"{gone & set(found)} are back in {queue}"
        assert present - gone - maybe <= set(found) <= present
        gone |= maybe - set(found)
        return found

    def found(self, queue: str) -> list[int]:
        return [orjson.loads(record.body)["id"] for record in self.broker.sow(queue)]

    def again(self) -> None:
        """The publisher sends what was not confirmed once more."""
        notes = self.notes
        for number in sorted(set(notes.sent) - set(notes.marks)):
            before = self.found("keep")
            self.publish(notes.sent[number])
            after = self.found("keep")
            assert after.count(number) == 1
            assert (number in before) == (number not in notes.marks), "a duplicate is what was there, and nothing else"
            if number not in notes.marks:
                records = self.broker.sow("keep")
                notes.marks[number] = next(one.bookmark for one in records if orjson.loads(one.body)["id"] == number)


@pytest.mark.parametrize("seed", spread(range(8), 3))
def test_lives(seed: int, effort: int) -> None:
    for extra in range(effort):
        world = World(seed + 1000 * extra)
        for _ in range(6):
            try:
                if world.chance.random() < 0.7:
                    world.disk.fail_next(world.chance.choice(("write", "sync")), after=world.chance.randrange(40))
                for _ in range(world.chance.randrange(5, 40)):
                    world.step()
            except PenstockError:
                pass
            world.broker.crash()
            world.broker.restart()
            world.look()
            world.again()
        world.broker.close()
