"""Random transactions against a small model: all of one or nothing, and the fold finds what lives."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.commands.transactions import Ending, Transaction
from penstock.core.effects import Verb
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import canonical
from penstock.errors import Fenced, QueueFull
from penstock.records.entries import Publishes
from unit.core.world import DURABLE, World

MOST = 4
"""Messages that the queue of dead letters takes; it refuses what is beyond."""

VERBS = (Verb.ACK, Verb.EXPIRE, Verb.RELEASE)
QUEUES = ("a", "b", "dead")

STEP = st.tuples(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from(VERBS)), max_size=5),  # which held message ends how
    st.lists(st.sampled_from(QUEUES), max_size=5),  # where messages go
    st.sampled_from(("commit", "commit", "commit", "stale", "publish", "drain")),
)


@dataclass
class Model:
    """Bodies in each queue."""

    queues: dict[str, list[bytes]] = field(default_factory=lambda: {name: [] for name in QUEUES})
    made: int = 0

    def body(self) -> bytes:
        self.made += 1
        return b"%d" % self.made


class Machine:
    """The core and the model, side by side."""

    def __init__(self) -> None:
        self.world, self.model = World(), Model()
        world = self.world
        self.queues: dict[str, Queue] = {
            "a": world.declare("a", dead_letter_exchange="", dead_letter_routing_key="dead"),
            "b": world.declare("b"),
            "dead": world.declare("dead", max_length=MOST, overflow="reject-publish"),
        }
        self.consumers = {name: world.subscribe(self.queues[name]) for name in ("a", "b")}

    def held(self) -> list[tuple[str, int, int]]:
        """Queue, LSN and attempt of all that consumers hold."""
        return [
            (name, lsn, run.tally.deliveries)
            for name, consumer in self.consumers.items()
            for run in consumer.leases.held()
            for lsn in run.chunk
        ]

    def transact(self, ends: list[tuple[int, Verb]], goals: list[str], stale: bool) -> None:
        world, model = self.world, self.model
        held = self.held()
        chosen = {held[number % len(held)]: verb for number, verb in ends} if held else {}
        endings = [
            Ending(self.queues[name], [range(lsn, lsn + 1)], verb, by=self.consumers[name], attempt=attempt)
            for (name, lsn, attempt), verb in chosen.items()
        ]
        if stale and endings:
            endings[-1].attempt = (endings[-1].attempt or 0) + 1
        bodies = [model.body() for _ in goals]
        batch = None
        if goals:
            topics = [world.core.topic("/", "", goal) for goal in goals]
            batch = Publishes(topics, DURABLE, bodies, size=sum(map(len, bodies)))
        transaction = Transaction(batch, endings)
        for queue, chunk in world.core.mourned(transaction):
            rows = world.read(chunk)
            for at in range(0, len(rows), 2):
                world.core.lay_out(world.now, transaction, queue, rows, slice(at, at + 2))
        letters = sum(verb is Verb.EXPIRE and name == "a" for (name, _, _), verb in chosen.items())
        wanted = goals.count("dead") + letters
        if stale and endings:
            with pytest.raises(Fenced):
                world.core.transact(world.now, transaction)
            return
        if wanted and len(model.queues["dead"]) + wanted > MOST:
            with pytest.raises(QueueFull):
                world.core.transact(world.now, transaction)
            return
        done = world.core.transact(world.now, transaction)
        assert done.ended == len(endings)
        assert (done.lsn > 0) == bool(endings or goals)
        for goal, body in zip(goals, bodies, strict=True):
            model.queues[goal].append(body)
        for (name, lsn, _), verb in chosen.items():
            body = self.body_of(lsn)
            if verb is not Verb.RELEASE:
                model.queues[name].remove(body)
            if verb is Verb.EXPIRE and name == "a":
                model.queues["dead"].append(body)

    def body_of(self, lsn: int) -> bytes:
        return self.world.read([lsn]).bodies[0]

    def compare(self) -> None:
        self.world.turn()
        for name, queue in self.queues.items():
            queue.check()
            assert queue.dying == 0
            found = [self.body_of(lsn) for lsn in sorted(lsn for chunk in queue.snapshot()[0] for lsn in chunk)]
            assert sorted(found) == sorted(self.model.queues[name]), name
            if name == "dead":
                assert found == self.model.queues[name]  # in the order they died


@given(st.lists(STEP, max_size=12))
def test_transactions_do_all_or_nothing(steps: list[tuple[list[tuple[int, Verb]], list[str], str]]) -> None:
    machine = Machine()
    for ends, goals, what in steps:
        if what == "drain":
            machine.world.core.purge_queue(machine.world.now, machine.queues["dead"])
            machine.model.queues["dead"].clear()
        elif what == "publish":
            for goal in goals:
                if goal != "dead":
                    body = machine.model.body()
                    machine.world.publish(goal, body)
                    machine.model.queues[goal].append(body)
        else:
            machine.transact(ends, goals, what == "stale")
        machine.compare()
    assert canonical(machine.world.core.durable_state()) == machine.world.folded() == machine.world.folded(3)
