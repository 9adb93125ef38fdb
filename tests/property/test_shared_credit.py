"""Consumers of several queues on one counter: a batch is decided as its messages are one at a time."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from choices import examples
from penstock.core.effects import Verb
from penstock.core.queue.dispatching.consumers import Consumer, Credit
from penstock.core.queue.dispatching.joining import replace
from penstock.records.entries import Publishes
from penstock.records.queue_settings import QueueSettings
from unit.core.world import DURABLE, World, header

NAMES = ("a", "b", "c")
HEADERS = (DURABLE, DURABLE, header(priority=3), header(headers={"CC": ["c"]}), header(headers={"x-delay": 1000}))
MODELS = ("fast", "round-robin", "proportional")


@dataclass(frozen=True)
class Subscribing:
    queue: int
    credit: int  # 0: none
    backlog: int | None
    no_ack: bool
    priority: int


@dataclass(frozen=True)
class Publishing:
    rows: tuple[tuple[int, int], ...]  # topic: 0..2 a queue each, 3: all three, 4: the first two; and a header


@dataclass(frozen=True)
class Settling:
    consumer: int
    count: int
    verb: Verb


@dataclass(frozen=True)
class Pausing:
    consumer: int


@dataclass(frozen=True)
class SettlingByAnybody:
    queue: int
    first: int  # of the messages that are leased
    count: int
    verb: Verb


@dataclass(frozen=True)
class Replacing:
    consumer: int
    backlog: int | None


small = st.integers(0, 2)
subscribing = st.builds(
    Subscribing, small, st.sampled_from([0, 1, 1, 1, 2]), st.sampled_from([None, None, 0, 2]),
    st.sampled_from([False, False, False, True]), st.sampled_from([0, 0, 1]),
)  # fmt: skip
rows = st.lists(st.tuples(st.integers(0, 4), st.just(0) | st.integers(0, len(HEADERS) - 1)), min_size=1, max_size=12)
alike = st.builds(lambda row, n: [row] * n, st.tuples(st.integers(0, 4), st.just(0)), st.integers(2, 12))
publishing = st.builds(lambda found: Publishing(tuple(found)), rows | alike)
settling = st.builds(
    Settling, st.integers(0, 7), st.integers(1, 4), st.sampled_from([Verb.ACK, Verb.ACK, Verb.RELEASE])
)
pausing = st.builds(Pausing, st.integers(0, 7))
by_anybody = st.builds(
    SettlingByAnybody, small, st.integers(0, 5), st.integers(1, 4), st.sampled_from([Verb.ACK, Verb.CANCEL])
)
replacing = st.builds(Replacing, st.integers(0, 7), st.sampled_from([None, 0, 1, 3]))
Step = Subscribing | Publishing | Settling | Pausing | SettlingByAnybody | Replacing


class House:
    """A world whose publishes come as they are, or cut into single messages."""

    def __init__(self, model: str, limits: tuple[int, int], queue_room: int, single: bool, whole: bool) -> None:
        self.single = single
        self.world = World()
        core, now = self.world.core, self.world.now
        self.settings = QueueSettings(fairness_model=model, max_backlog=queue_room)  # type: ignore[arg-type]
        self.queues = [core.declare_queue(now, "/", name, self.settings) for name in NAMES]
        for number, some in ((3, NAMES), (4, NAMES[:2])):
            core.declare_exchange(now, "/", f"x{number}", "fanout")
            for name in some:
                core.bind(now, "/", f"x{number}", name, "queue", "")
        self.topics = [core.topic("/", "", name) for name in NAMES]
        self.topics += [core.topic("/", f"x{number}", "k") for number in (3, 4)]
        self.credits = {1: Credit(limits[0], whole=whole), 2: Credit(limits[1])}
        self.consumers: list[Consumer] = []
        self.paused = set[int]()
        self.bodies = 0
        self.world.turn()

    def run(self, step: Step) -> None:
        core, now = self.world.core, self.world.now
        match step:
            case Subscribing():
                if len(self.consumers) < 8:
                    tag = f"c{len(self.consumers)}"
                    consumer = core.subscribe(
                        now, self.queues[step.queue], tag=tag, holder=self, no_ack=step.no_ack,
                        max_backlog=step.backlog, shared=self.credits.get(step.credit), priority=step.priority,
                    )  # fmt: skip
                    self.consumers.append(consumer)
            case Publishing():
                self.publish(step)
            case Settling():
                if self.consumers:
                    consumer = self.consumers[step.consumer % len(self.consumers)]
                    held = sorted(lsn for run in consumer.leases.held() for lsn in run.chunk)[: step.count]
                    for lsn in held:
                        core.settle(now, consumer.queue, [range(lsn, lsn + 1)], step.verb, by=consumer)
            case SettlingByAnybody():
                queue = self.queues[step.queue]
                held = sorted(lsn for run in queue.leased_runs() for lsn in run.chunk)[step.first :][: step.count]
                for lsn in held:
                    core.settle(now, queue, [range(lsn, lsn + 1)], step.verb)
            case Replacing():
                if self.consumers:
                    consumer = self.consumers[step.consumer % len(self.consumers)]
                    replace(consumer.queue, now, consumer, core._out, filter=None, max_backlog=step.backlog)
                    core._touch(consumer.queue, consumer.shared)
            case Pausing():
                if self.consumers:
                    number = step.consumer % len(self.consumers)
                    if number in self.paused:
                        self.paused.remove(number)
                        core.unchoke_all(now, (self.consumers[number],))
                    else:
                        self.paused.add(number)
                        core.choke(self.consumers[number])
        self.world.turn()
        for queue in self.queues:
            queue.check()

    def publish(self, step: Publishing) -> None:
        rows = [(self.topics[topic], HEADERS[header]) for topic, header in step.rows]
        bodies = [b"%d" % number for number in range(self.bodies, self.bodies + len(rows))]
        self.bodies += len(rows)
        core, now = self.world.core, self.world.now
        if self.single:
            for (topic, data), body in zip(rows, bodies, strict=True):
                core.publish(now, Publishes(topic, data, [body]))
        elif len(set(rows)) == 1:
            core.publish(now, Publishes(rows[0][0], rows[0][1], bodies))
        else:
            core.publish(now, Publishes([topic for topic, _ in rows], [data for _, data in rows], bodies))

    def story(self) -> object:
        def body(lsn: int) -> bytes:
            batch, row = self.world.rows[lsn]
            return batch.bodies[row]

        return (
            {one.tag: [body(lsn) for lsn in self.world.inbox.get(one, ())] for one in self.consumers},
            [(queue.ready, queue.leased, queue.delayed) for queue in self.queues],
            [(credit.used, [queue.name for queue in credit.queues()]) for credit in self.credits.values()],
        )


@given(
    steps=st.lists(
        st.one_of(subscribing, publishing, publishing, settling, settling, pausing, by_anybody, replacing), max_size=25
    ),
    first=st.lists(subscribing, min_size=2, max_size=5),
    model=st.sampled_from(MODELS),
    limits=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    queue_room=st.sampled_from([0, 0, 3]),
    whole=st.booleans(),
)
@example(  # what one queue gave to a subscription weighs in the next queue
    steps=[Publishing(((2, 0), (1, 0)))],
    first=[Subscribing(queue, credit, None, False, 0) for queue, credit in ((0, 0), (0, 0), (1, 1), (2, 1), (1, 0))],
    model="proportional", limits=(2, 1), queue_room=0, whole=True,
)  # fmt: skip
@settings(max_examples=examples(300))
def test_a_batch_is_its_messages_one_at_a_time(
    steps: list[Step], first: list[Subscribing], model: str, limits: tuple[int, int], queue_room: int, whole: bool,
) -> None:  # fmt: skip
    batches, singles = (House(model, limits, queue_room, single, whole) for single in (False, True))
    for step in [*first, *steps]:
        batches.run(step)
        singles.run(step)
        assert batches.story() == singles.story(), step
