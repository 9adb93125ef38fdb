"""Queues without duplicates beside queues that drop, replace or refuse: batches as their messages one by one.

What gave way is there until its dead letter is written, which takes its body: here when all of a batch is published.
Bodies come when they come, some queue's before another's, and of many in portions: dead letters keep the order of their
death within a queue, and how those of several queues mingle is nobody's promise.  So here one queue is brought all its
bodies before the next is brought any, whether they are asked for together or one by one.
"""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from choices import examples
from penstock.core.effects import Fetch, Verb
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import canonical
from penstock.records.entries import Publishes
from unit.core.world import DURABLE, SECOND, World

LIMITS = ("drop-head", "drop-newest", "reject-publish", "reject-publish-dlx", "ring", "bytes", "none")
KEYS = ({"dedup_window": 9 * SECOND}, {"unique": True}, {"dedup_window": 9 * SECOND, "unique": True})
NAMES = ("a", "b", "c")


@st.composite
def queue_settings(draw: st.DrawFn, name: str) -> dict[str, object]:
    """Queue a wants no duplicates, b has a limit, c any of both."""
    out: dict[str, object] = {"underlying_topic": "t"}
    if name == "a" or (name == "c" and draw(st.booleans())):
        out |= {"dedup_key": "/id", **draw(st.sampled_from(KEYS))}
    mode = draw(st.sampled_from(LIMITS[:-1] if name == "b" else LIMITS))
    length = draw(st.integers(0, 4))
    if mode == "ring":
        out["ring_size"] = length
    elif mode == "bytes":
        out["max_length_bytes"] = 10 * length
    elif mode != "none":
        out |= {"max_length": length, "overflow": mode}
    if mode != "ring" and draw(st.booleans()):
        others = [other for other in NAMES if other != name]
        target = draw(st.sampled_from([f"grave-{name}", *others]))
        out |= {"dead_letter_exchange": "", "dead_letter_routing_key": target}
    return out


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.integers(0, 4), min_size=1, max_size=9)),
    st.tuples(st.just("advance"), st.lists(st.integers(1, 6), min_size=1, max_size=1)),
    st.tuples(st.sampled_from(NAMES), st.lists(st.integers(1, 3), min_size=1, max_size=1)),  # takes and acks so many
    st.tuples(st.sampled_from(["join", "leave"]), st.lists(st.integers(1, 3), min_size=1, max_size=2)),
)


class QueueByQueue(World):
    """Bodies of what died are brought to one queue until it asks for no more, then to the next, by their ids."""

    def __init__(self) -> None:
        self.asked: dict[int, list[Fetch]] = {}  # by queue id
        super().__init__()

    def fetch(self, effect: Fetch) -> None:
        self.asked.setdefault(effect.token.queue, []).append(effect)

    def turn(self) -> None:
        super().turn()
        while self.asked:
            number = min(self.asked)
            while waiting := self.asked.pop(number, []):
                for effect in waiting:
                    super().fetch(effect)
                super().turn()


class Side:
    """One of the two worlds."""

    def __init__(self, queues: dict[str, dict[str, object]]) -> None:
        self.world = QueueByQueue()
        for name, some in queues.items():
            self.world.declare(f"grave-{name}")
            self.world.declare(name, **some)
        self.consumers: list[object] = []

    def queue(self, name: str) -> Queue:
        return self.world.core.queue("/", name)

    def step(self, verb: str, value: list[int], whole: bool) -> list[int]:
        """What the publisher is told: stored, duplicates, dropped, refused."""
        world = self.world
        if verb == "publish":
            bodies = [b'{"id": %d, "n": %d}' % (number, n) for n, number in enumerate(value)]
            topic = world.core.topic("/", "", "t")
            parts = [
                world.core.publish(world.now, Publishes(topic, DURABLE, some))
                for some in ([bodies] if whole else [[body] for body in bodies])
            ]
            world.turn()
            return [
                sum(one.stored for one in parts), sum(one.duplicates for one in parts),
                sum(len(one.dropped) for one in parts), sum(len(one.refused) for one in parts),
            ]  # fmt: skip
        if verb == "advance":
            world.advance(value[0])
        elif verb == "join":
            name = NAMES[value[0] % len(NAMES)]
            self.consumers.append(world.subscribe(self.queue(name), max_backlog=value[-1]))
        elif verb == "leave":
            if self.consumers:
                world.core.unsubscribe(world.now, self.consumers.pop(), requeue=True)  # type: ignore[arg-type]
                world.turn()
        else:
            queue = self.queue(verb)
            consumer = world.subscribe(queue, max_backlog=value[0])
            world.core.settle(world.now, queue, [array("q", world.inbox[consumer])], Verb.ACK, by=consumer)
            world.core.unsubscribe(world.now, consumer, requeue=True)
            world.turn()
        return []

    def seen(self) -> dict[str, object]:
        """What each queue has, and counts."""
        out: dict[str, object] = {}
        for name in (*NAMES, *(f"grave-{name}" for name in NAMES)):
            queue = self.queue(name)
            stats = self.world.core.stats(queue, self.world.now)
            counts = {key: stats[key] for key in ("ready", "leased", "duplicates", "dropped", "replaced", "refused")}
            out[name] = (self.world.contents(queue), counts)
        return out


@settings(max_examples=examples(80))
@given(st.data(), st.lists(STEPS, min_size=1, max_size=12))
def test_a_batch_to_queues_of_any_kind_is_decided_as_its_messages_one_by_one(
    data: st.DataObject, steps: list[tuple[str, list[int]]]
) -> None:
    queues = {name: data.draw(queue_settings(name), name) for name in NAMES}
    together, singly = Side(queues), Side(queues)
    for verb, value in steps:
        assert together.step(verb, value, True) == singly.step(verb, value, False)
        assert together.seen() == singly.seen()
        assert together.world.folded() == canonical(together.world.core.durable_state())


def test_dead_letters_that_go_round_and_meet_in_a_short_queue_are_those_of_the_messages_one_by_one() -> None:
    pipe: dict[str, object] = {"underlying_topic": "t", "max_length": 0, "dead_letter_exchange": ""}
    queues: dict[str, dict[str, object]] = {
        "a": {**pipe, "dead_letter_routing_key": "b", "dedup_key": "/id", "dedup_window": 9 * SECOND},
        "b": {**pipe, "dead_letter_routing_key": "a"},
        "c": {"underlying_topic": "t", "max_length": 2},
    }
    together, singly = Side(queues), Side(queues)
    assert together.step("publish", [0, 1], True) == singly.step("publish", [0, 1], False) == [2, 0, 0, 0]
    assert together.seen() == singly.seen()
    world, short = together.world, together.queue("c")
    assert world.contents(short) == [b'{"id": 0, "n": 0}', b'{"id": 1, "n": 1}']
    stats = world.core.stats(short, world.now)
    assert (stats["ready"], stats["dropped"]) == (2, 8)  # of each: itself, from a, from b, and once round by either


def test_a_dead_letter_of_a_refused_message_comes_before_the_next_message() -> None:
    world = World()
    world.declare("a")
    world.declare(
        "full", underlying_topic="a", max_length=0, overflow="reject-publish-dlx", dead_letter_exchange="",
        dead_letter_routing_key="a",
    )  # fmt: skip
    published = world.publish("a", b"1", b"2")
    assert [row for row, _ in published.refused] == [0, 1]
    assert world.contents(world.core.queue("/", "a")) == [b"1", b"1", b"2", b"2"]
