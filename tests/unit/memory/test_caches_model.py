"""The linked caches beside a world of sorted lists: bodies are right, sums true, the budget holds, nobody starves."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from choices import examples
from unit.memory.world import ModelLine, World


def odd(lsn: int) -> bool:
    return lsn % 2 == 1


def third(lsn: int) -> bool:
    return lsn % 3 == 0


FILTERS = {"": None, "odd": odd, "third": third}
QUEUES = 3


class Linked(RuleBasedStateMachine):
    """Random traffic over three queues; each may have unfiltered consumers and consumers with either of two filters."""

    @initialize(limit=st.sampled_from([0, 2_000, 20_000, 200_000]))
    def begin(self, limit: int) -> None:
        self.world = World(limit, QUEUES)
        self.lines: list[ModelLine] = []

    @rule(
        sizes=st.lists(st.sampled_from([0, 10, 100, 100, 2000]), min_size=1, max_size=40),
        queues=st.sets(st.integers(1, QUEUES), min_size=1),
    )
    def publish(self, sizes: list[int], queues: set[int]) -> None:
        self.world.publish(sizes, tuple(sorted(queues)))

    @rule()
    def commit(self) -> None:
        self.world.commit()

    @rule(queue=st.integers(1, QUEUES), name=st.sampled_from(sorted(FILTERS)))
    def come(self, queue: int, name: str) -> None:
        if len(self.lines) < 5:
            line = self.world.consumer(queue, name, FILTERS[name])
            if line not in self.lines:
                self.lines.append(line)

    @precondition(lambda self: self.lines)
    @rule(data=st.data(), count=st.integers(1, 50))
    def dispatch(self, data: st.DataObject, count: int) -> None:
        line = data.draw(st.sampled_from(self.lines))
        if not line.stalled:
            self.world.dispatch(line, count)

    @precondition(lambda self: self.lines)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        line = data.draw(st.sampled_from(self.lines))
        self.world.leave(line)
        if not line.consumers:
            self.lines.remove(line)

    @precondition(lambda self: self.lines and self.world.got)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        name, lsn = data.draw(st.sampled_from(self.world.got[-20:]))
        holders = [line for line in self.lines if line.name == name and lsn not in line.of.ready]
        if holders and not any(lsn in waiting for waiting in self.world.waiting.values()):
            self.world.give_back(holders[0], lsn)

    @precondition(lambda self: self.world.cold)
    @rule()
    def answer(self) -> None:
        self.world.answer()

    @rule()
    def sweep(self) -> None:
        self.world.caches.sweep()
        self.world.caches.keep_to_budget()

    @rule()
    def nothing_that_was_granted_is_forgotten(self) -> None:
        self.world.run()
        assert not any(self.world.waiting.values())

    @invariant()
    def counts_are_true_and_the_budget_holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()


TestLinked = Linked.TestCase
TestLinked.settings = settings(max_examples=examples(60), stateful_step_count=40)
