"""Every two options of a queue: both hold together in a short scenario, or the declare says why they cannot.

Eight messages come while nobody consumes, one of them for later, one with a short life, one with a key that another
has.  Then time goes on, and a consumer takes what is left, one by one.  What each message becomes follows from the
definition of each option, message by message (`Model`); what cannot be together is in `REFUSED`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations

import orjson
import pytest

from penstock.errors import PenstockError
from penstock.testing import Broker, Message

OPTIONS: dict[str, dict[str, object]] = {
    "limit": {"max_length": 5},
    "ring": {"ring_size": 4},
    "retry": {"retry": {"initial": "1s", "max": "1s"}},
    "max_priority": {"max_priority": 2},
    "priority_expression": {"priority_expression": "/p"},
    "group": {"group_key": "/g"},
    "delay": {},
    "ttl": {"message_ttl": "1h"},
    "dead letter": {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"},
    "fairness": {"fairness_key": "/g"},
    "rate": {"rate_limit": "2/s"},
    "dedup": {"dedup_key": "/d", "dedup_window": "1h"},
    "unique": {"dedup_key": "/d", "unique": True},
    "last value": {"last_value_key": "/v"},
    "single": {"single_active_consumer": True},
    "barrier": {"barrier_expression": "/n = 100"},
    "depth": {"target_queue_depth": 1000},
    "max leased": {"max_leased": {"queue": 1}},
    "non destructive": {"non_destructive": True},
}
"""The options; a delay is the message's, and so is a short life."""

_HELD = "neither ready nor delivered: no limit would count them"
_ORDER = "a queue has one of them at most"
REFUSED: dict[frozenset[str], str] = {
    **{frozenset(pair): _HELD for pair in (
        ("limit", "barrier"), ("limit", "depth"), ("ring", "barrier"), ("ring", "depth"),
    )},
    **{frozenset((key, "barrier")): "what waits for its key would be delivered behind it" for key in
       ("group", "fairness")},
    **{frozenset((key, "depth")): "may all be of one that is in use" for key in ("group", "fairness")},
    **{frozenset(("last value", key)): "which counts on what came staying" for key in ("barrier", "depth")},
    **{frozenset(pair): _ORDER for pair in combinations(
        ("max_priority", "priority_expression", "barrier", "depth"), 2
    )},
    **{frozenset(("non destructive", key)): "nobody holds a message, and each reads in order of arrival" for key in
       ("retry", "max_priority", "priority_expression", "group", "fairness", "barrier", "depth")},
    **{frozenset(("non destructive", key)): "nobody takes a message from it" for key in ("rate", "max leased")},
}  # fmt: skip
"""By pair, why not."""

COUNT = 8
LATER, SHORT, EQUAL = 3, 5, 6  # the message with a delay, that with a short life, that with the key of message 2


@dataclass(eq=False)
class One:
    """A message."""

    n: int

    @property
    def fields(self) -> dict[str, int]:
        return {"n": self.n, "g": self.n % 2, "p": self.n % 3, "v": self.n % 5, "d": 2 if self.n == EQUAL else self.n}


@dataclass
class Model:
    """What the definitions of the options say, one message at a time, while nobody consumes."""

    options: frozenset[str]
    ready: list[One] = field(default_factory=list[One])  # by arrival
    later: list[One] = field(default_factory=list[One])
    dead: list[int] = field(default_factory=list[int])
    taken: set[int] = field(default_factory=set[int])  # keys that the queue took

    @property
    def levels(self) -> bool:
        return bool(self.options & {"max_priority", "priority_expression"})

    def publish(self, one: One) -> None:
        key = one.fields["d"]
        if "dedup" in self.options and key in self.taken:
            return
        if "unique" in self.options and key in {other.fields["d"] for other in (*self.ready, *self.later)}:
            return
        self.taken.add(key)
        if "delay" in self.options and one.n == LATER:
            self.later.append(one)
        else:
            self.enter(one)

    def enter(self, one: One, *, scheduled: bool = False) -> None:
        if "last value" in self.options:
            self.ready = [other for other in self.ready if other.fields["v"] != one.fields["v"]]
        if "ring" in self.options and scheduled and len(self.ready) >= 4:
            return
        self.ready.append(one)
        while "limit" in self.options and len(self.ready) > 5:
            self.die(self.yielding())
        if "ring" in self.options and len(self.ready) > 4:
            self.ready.remove(self.yielding())

    def yielding(self) -> One:
        """The oldest, of the lowest level."""
        return min(self.ready, key=lambda one: one.fields["p"] if self.levels else 0)

    def die(self, one: One) -> None:
        self.ready.remove(one)
        if "dead letter" in self.options:
            self.dead.append(one.n)

    def expire(self) -> None:
        for one in [one for one in self.ready if "ttl" in self.options and one.n == SHORT]:
            self.die(one)

    def due(self) -> None:
        for one in self.later:
            self.enter(one, scheduled=True)
        self.later = []

    def ordered(self) -> list[int]:
        """By level, and then by arrival; what was scheduled for a ring stands at its head."""
        ready = self.ready
        if "ring" in self.options:
            ready = sorted(ready, key=lambda one: one.n != LATER or "delay" not in self.options)
        return [one.n for one in sorted(ready, key=lambda one: -one.fields["p"] if self.levels else 0)]


def consumed(broker: Broker, options: frozenset[str]) -> list[int]:
    """Take one by one until nothing comes; the order in which they were settled."""
    first = broker.subscribe("q", max_backlog=1)
    second = broker.subscribe("q", max_backlog=1) if "single" in options else None
    out, failed, quiet = list[int](), False, 0
    while quiet < 12:
        messages: list[Message] = first.take()
        if second is not None:
            assert second.take() == []
        if not messages:
            quiet += 1
            broker.advance(0.5)
            continue
        quiet = 0
        [message] = messages
        if "retry" in options and not failed:
            failed = True
            message.retry()
            continue
        out.append(message.json()["n"])
        message.ack()
    return out


def judge_order(found: list[int], model: Model, options: frozenset[str]) -> None:
    wanted = model.ordered()
    assert sorted(found) == sorted(wanted)
    if "retry" in options:  # the first came back after the others, or in between
        wanted, found = ([n for n in some if n != wanted[0]] for some in (wanted, found))
        if "group" in options:
            return
    if "group" in options:  # the order within a key is that of arrival
        wanted = [one.n for one in model.ready]
    if options & {"group", "fairness"}:
        for key in range(2):
            assert [n for n in found if n % 2 == key] == [n for n in wanted if n % 2 == key]
    else:
        assert found == wanted


def play(broker: Broker, options: frozenset[str]) -> None:
    model = Model(options)
    for n in range(COUNT):
        one = One(n)
        delay = 5.0 if "delay" in options and n == LATER else None
        life = 2.0 if "ttl" in options and n == SHORT else None
        broker.publish("q", orjson.dumps(one.fields), priority=n % 3, delay=delay, expiration=life)
        model.publish(one)
    broker.advance(3)
    model.expire()
    broker.advance(3)
    model.due()
    told = broker.stats("q")
    assert told["ready"] == len(model.ready), told
    assert told["delayed"] == 0
    judge_order(consumed(broker, options), model, options)
    assert broker.stats("q")["queue_depth"] == (len(model.ready) if "non destructive" in options else 0)
    dead = broker.subscribe("dead", max_backlog=100).take()
    assert [message.json()["n"] for message in dead] == model.dead


@pytest.mark.parametrize("first", OPTIONS)
def test_every_two_options_hold_together_or_are_refused_with_a_reason(first: str) -> None:
    names = list(OPTIONS)
    wrong = list[str]()
    for second in names[names.index(first) + 1 :]:
        options = frozenset((first, second))
        config = {"queue": [{"name": "q", **OPTIONS[first], **OPTIONS[second]}, {"name": "dead"}]}
        try:
            if (why := REFUSED.get(options)) is not None:
                with pytest.raises(PenstockError, match=re.escape(why)):
                    Broker(config=config)
            else:
                with Broker(config=config) as broker:
                    play(broker, options)
        except (AssertionError, PenstockError, pytest.fail.Exception) as error:
            wrong.append(f"{first} and {second}: {error}")
    assert not wrong, "\n\n".join(wrong)
