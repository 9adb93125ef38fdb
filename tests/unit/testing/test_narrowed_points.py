"""A recovery point that moves forward: what waits or is leased before it leaves the queue, whatever its options are.

The rule is one line: of what the queue had, what is at the new point or after it stays.  It is held against every kind
of place in which a message can stand, by a settings file at a start and by a command beside living leases.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.core.audit_log import Audit
from penstock.testing import Broker, Message

TOPIC = {"name": "Work"}
QUEUE = {"name": "q", "underlying_topic": "Work"}
BEFORE = 3
"""Messages that were there before the queue."""
AFTER = 9

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "filter": {"filter": "/n >= 0"},
    "levels": {"max_priority": 5},
    "priorities": {"priority_expression": "/n % 3"},
    "barriers": {"barrier_expression": "/n % 4 = 2"},
    "a depth": {"target_queue_depth": 1_000},
    "groups": {"group_key": "/g"},
    "shares": {"fairness_key": "/g"},
    "at most once": {"semantics": "at-most-once"},
    "strict leases": {"leasing": "strict"},
    "not destructive": {"non_destructive": True},
    "back-off": {"retry": {"initial": "50s", "max": "60s"}},
    "expiration": {"expiration": "1h"},
    "a bound": {"max_length": 100, "overflow": "drop-head"},
    "a ring": {"ring_size": 100},
    "a rate": {"rate_limit": "2/s"},
    "one consumer": {"single_active_consumer": True},
    "metadata in a file": {"file_backed_metadata": True},
}


class Story:
    """A queue over a topic, in which messages stand in every place that its options have."""

    def __init__(self, shape: dict[str, Any]) -> None:
        self.shape = shape
        self.marks = list[str]()
        self.times = list[float]()
        self.broker = Broker({"topic": [TOPIC]})
        self.publish(BEFORE)
        self.broker.restart(self.settings("epoch"))
        self.created = len(self.marks)
        self.publish(AFTER)
        self.gone = set[int]()  # acknowledged, or removed as it was sent
        self.worker = self.broker.subscribe("q", max_backlog=4, name="worker")
        self.held = self.taken()
        if self.held and not shape.get("non_destructive"):
            self.held[0].ack()
            self.gone.add(number(self.held.pop(0)))
        if len(self.held) > 1:
            self.held.pop(1).cancel()
        self.held += self.taken()

    def taken(self) -> list[Message]:
        """What the worker was sent."""
        messages = self.worker.take()
        once = self.shape.get("semantics") == "at-most-once"
        self.gone |= {n for n in map(number, messages) if once or (n % 4 == 2 and "barrier_expression" in self.shape)}
        return messages

    def settings(self, point: str) -> dict[str, Any]:
        return {"topic": [TOPIC], "queue": [{**QUEUE, **self.shape, "recovery_point": point}]}

    def publish(self, count: int) -> None:
        for _ in range(count):
            n = len(self.marks)
            self.times.append(self.broker.now())
            body = b'{"n": %d, "g": "%s"}' % (n, b"ab"[n % 2 : n % 2 + 1])
            delay = 40 if n in (1, 7) else None
            self.marks.append(self.broker.publish("Work", body, priority=n % 4, delay=delay))
            self.broker.advance(1)

    def left(self, first: int) -> list[int]:
        """What the rule leaves when the point is at the message of this number."""
        return [n for n in range(first, len(self.marks)) if n not in self.gone]

    def check(self, first: int) -> None:
        """The queue has what the rule says, by its counts and by what it gives out, and the log is in order."""
        broker, expected = self.broker, self.left(first)
        assert broker.instance is not None
        broker.instance.core.queue("/", "q").check()
        stats = broker.stats("q")
        states = ("ready", "held", "inactive", "leased", "delayed", "dying")
        assert sum(int(str(stats[state])) for state in states) == len(expected), stats
        assert sorted({number(one) for one in drained(broker)}) == expected
        for n in set(range(first)) - self.gone:
            last = broker.story(self.marks[n])[-1]
            assert (last.event, last.details["reason"]) == ("dropped", "recovery_point")
        replayed = broker.subscribe("Work", bookmark="EPOCH").take()
        assert sorted(number(one) for one in replayed) == list(range(len(self.marks)))
        audited(broker)


def number(message: Message) -> int:
    text = message.body.decode()
    return int(text[text.index(":") + 1 : text.index(",")])


def drained(broker: Broker) -> list[Message]:
    """All that the queue gives out, acknowledged as it comes."""
    out = list[Message]()
    broker.disconnect("worker")
    worker = broker.subscribe("q", max_backlog=None, name="drain")
    for _ in range(40):
        messages = worker.take()
        out += messages
        for message in messages:
            message.ack()
        broker.advance(10)
    broker.disconnect("drain")
    return out


def audited(broker: Broker) -> None:
    """The log proves its guarantees."""
    assert broker.instance is not None
    broker.instance.make_durable()
    log, audit = broker.instance.log, Audit()
    for batch in log.batches(log.first_lsn, log.durable + 1):
        audit.feed(batch)
    assert [(one.guarantee, one.text) for one in audit.finish().findings] == []


POINTS: dict[str, Callable[[Story], tuple[str, int]]] = {
    "now": lambda story: ("now", len(story.marks)),
    "creation": lambda story: ("creation", story.created),
    "a bookmark": lambda story: (story.marks[5], 5),
    "the first bookmark": lambda story: (story.marks[0], 0),
    "a time": lambda story: (iso(story.times[5]), 5),
    "between two": lambda story: (iso(story.times[5] + 0.5), 6),
    "a time before all": lambda story: (iso(story.times[0] - 60), 0),
    "a time to come": lambda story: (iso(story.broker.now() + 3600), len(story.marks)),
}


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def points(shape: str, effort: int) -> list[str]:
    """One of the points for each shape, the next for the next one; with effort all."""
    at = list(SHAPES).index(shape)
    return [point for n, point in enumerate(POINTS) if effort > 1 or (n + at) % len(POINTS) == 0]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_narrowed_point_is_in_force_at_the_next_start(shape: str, effort: int) -> None:
    for point in points(shape, effort):
        story = Story(SHAPES[shape])
        with story.broker as broker:
            text, first = POINTS[point](story)
            broker.restart(story.settings(text))
            broker.crash()
            broker.restart()
            story.check(first)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_narrowed_point_is_in_force_beside_living_leases(shape: str, effort: int) -> None:
    for point in points(shape, effort):
        story = Story(SHAPES[shape])
        with story.broker as broker:
            text, first = POINTS[point](story)
            broker.alter("q", recovery_point=text)
            if not story.shape.get("non_destructive") and story.shape.get("semantics") != "at-most-once":
                for message in story.held:
                    inside = number(message) >= first
                    assert message.ack() is inside  # whose message has left is told what any late ack is told
                    story.gone |= {number(message)} if inside else set()
            story.taken()
            story.check(first)
