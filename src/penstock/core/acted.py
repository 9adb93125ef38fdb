"""What actions have done, as the log says, and what they make of a queue's expired messages.

A trigger is a record of the log that sets actions off; its place is its LSN.  All triggers up to the `floor` are done
with.  Above it `done` says which messages of which triggers an action has done, so that a start after a crash runs the
others, and those alone.  `since` says from where on each action watches: what was there before it was set up is not
its business.

    ACTED  name: the action, empty: none; header {"floor", "cause"?, "since"?}; body: pairs of LSNs

A published message is its own trigger: its pairs have no cause.  When messages expire, the lead of each action runs
for all of them in the order they died, and its rows lie in the group of their removal; what is left of its steps, and
what failed, is told when the group is written.  An expression over a body that would hold the loop up is not evaluated
here: such an action runs whole, and after the group is durable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import cast

import numpy as np
import numpy.typing as npt

from penstock.core.action_rules import Happening, Rule, copied
from penstock.core.effects import Act
from penstock.expr.context import LOOP_BODY
from penstock.records.chunks import Chunk, as_chunk, lsns_in, pairs_of
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.records.event_actions import ExtractStep, PublishStep

Ints = npt.NDArray[np.int64]

OWN = 0
"""The cause of messages that are triggers themselves."""


@dataclass(slots=True)
class Acted:
    """The state; equal histories give equal states."""

    floor: int = 0
    since: dict[str, int] = field(default_factory=dict[str, int])  # by action
    done: dict[str, dict[int, list[int]]] = field(
        default_factory=dict[str, dict[int, list[int]]]
    )  # action -> cause -> LSNs of messages, ascending

    def __bool__(self) -> bool:
        return bool(self.since)

    def copy(self) -> Acted:
        """A copy: what is folded into one of the two the other does not have."""
        done = {name: {cause: list(lsns) for cause, lsns in some.items()} for name, some in self.done.items()}
        return Acted(self.floor, dict(self.since), done)

    def fold(self, name: str, header: Mapping[str, object], pairs: Sequence[int]) -> None:
        """Take in an ACTED record; pairs: its body."""
        if "since" in header:
            self.since = dict(sorted(cast("dict[str, int]", header["since"]).items()))
            self.done = {one: some for one, some in self.done.items() if one in self.since}
        if pairs and name in self.since:
            cause = cast("int", header.get("cause", OWN))
            lsns = self.done.setdefault(name, {}).setdefault(cause, [])
            fresh = {lsn for at in range(0, len(pairs), 2) for lsn in range(pairs[at], pairs[at + 1])}
            lsns[:] = sorted(fresh.union(lsns))
        self._pass(max(self.floor, cast("int", header["floor"])))

    def _pass(self, floor: int) -> None:
        """What the floor covers needs no other word."""
        self.floor = floor
        for name, some in list(self.done.items()):
            for cause, lsns in list(some.items()):
                if cause == OWN:
                    lsns[:] = [lsn for lsn in lsns if lsn > floor]
                if not lsns or (cause != OWN and cause <= floor):
                    del some[cause]
            if not some:
                del self.done[name]

    def wants(self, name: str, place: int) -> bool:
        """Whether an action has perhaps not done what a trigger at this LSN sets off."""
        return place > self.floor and self.since.get(name, place) < place

    def left(self, name: str, cause: int, lsns: Sequence[int]) -> list[int]:
        """The messages of a trigger that an action has not done."""
        did = set(self.done.get(name, {}).get(cause, ()))
        return [lsn for lsn in lsns if lsn not in did]

    # -- as a part of an encoded durable state

    def dump(self) -> dict[str, object]:
        """For the JSON of an encoded durable state."""
        done = [
            [name, cause, pairs_of(as_chunk(lsns), False)]
            for name, some in sorted(self.done.items())
            for cause, lsns in sorted(some.items())
        ]
        return {"floor": self.floor, "since": self.since, "done": done}

    @classmethod
    def load(cls, plain: object) -> Acted:
        """The inverse; of a state without one the empty one."""
        if not plain:
            return cls()
        table = cast("dict[str, object]", plain)
        out = cls(cast("int", table["floor"]), dict(cast("dict[str, int]", table["since"])))
        for name, cause, pairs in cast("list[tuple[str, int, list[int]]]", table["done"]):
            out.done.setdefault(name, {})[cause] = lsns_in(pairs).tolist()
        return out


def exact(chunks: Sequence[Chunk]) -> list[int]:
    """The LSNs of chunks as ascending pairs that hold nothing else."""
    ends = [pairs_of(chunk, False) for chunk in chunks]
    pairs = sorted((some[at], some[at + 1]) for some in ends for at in range(0, len(some), 2))
    return [end for pair in pairs for end in pair]


HOPS_MOST = 8
"""Rounds after which a message sets off nothing more."""

SPANS_MOST = 65_536


class Hops:
    """Published LSN -> actions on the way to it."""

    __slots__ = ("_ends", "_hops", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._hops: list[int] = []

    def of(self, lsn: int) -> int:
        """0 for what a client published."""
        if not self._starts or lsn < self._starts[0]:
            return 0
        at = bisect_right(self._starts, lsn) - 1
        return self._hops[at] if lsn < self._ends[at] else 0

    def any(self, first: int, end: int) -> bool:
        """Whether some message of [first, end) was published by an action."""
        if not self._starts or end <= self._starts[0]:
            return False
        at = bisect_right(self._starts, end - 1) - 1
        return self._ends[at] > first

    def add(self, first: int, end: int, hops: int) -> None:
        """The messages in [first, end), newer than all before."""
        if self._ends and self._ends[-1] == first and self._hops[-1] == hops:
            self._ends[-1] = end
            return
        self._starts.append(first)
        self._ends.append(end)
        self._hops.append(hops)
        if len(self._starts) > SPANS_MOST:
            for column in (self._starts, self._ends, self._hops):
                del column[: SPANS_MOST // 2]


LED_MOST = 256 << 20
"""Bytes that actions add to one group; what a template makes beyond them is published after the group is durable."""

Find = Callable[[str, str, str], "Topic | None"]
"""The topic of (vhost, exchange, key); None when there is no such exchange."""


@dataclass(slots=True)
class Led:
    """What the leads of some actions give."""

    causes: list[int] = field(default_factory=list[int])  # LSN of the message, by row
    topics: list[Topic] = field(default_factory=list[Topic])
    bodies: list[bytes] = field(default_factory=list[bytes])
    size: int = 0  # bytes of bodies
    acts: list[Act] = field(default_factory=list[Act])  # what goes on later, and failures


def lead(rules: Sequence[Rule], happenings: Sequence[Happening], find: Find, hops: Hops) -> Led:
    """Run the leads; nothing is written."""
    out = Led()
    light = [one for one in happenings if len(one.data) <= LOOP_BODY]
    wanted = [dict(zip([one.lsn for one in light], rule.wants(light), strict=True)) for rule in rules]
    for happening in happenings:
        before = hops.of(happening.lsn)
        for rule, wants in zip(rules, wanted, strict=True):
            if rule.reads and happening.lsn not in wants:
                out.acts.append(Act(rule, 0, copied(happening), before, judged=False))
                continue
            if not wants.get(happening.lsn, True):
                continue
            if before >= HOPS_MOST:
                out.acts.append(Act(rule, 0, happening, before, failed=too_many(before)))
                continue
            run_lead(rule, happening, before, find, out)
    return out


def run_lead(rule: Rule, happening: Happening, before: int, find: Find, out: Led) -> None:
    """The lead of one action for one message; what is left, or failed, is among `acts`."""
    happening.added = {}
    for number, one in enumerate(rule.steps[: rule.lead]):
        step = one.step
        if isinstance(step, ExtractStep):
            one.extract(happening)
        elif isinstance(step, PublishStep):
            topic = find(step.vhost, step.exchange, one.name("topic", happening))
            if topic is None:
                why = f"publish: there is no exchange {step.exchange!r} in vhost {step.vhost!r}"
                out.acts.append(Act(rule, number, happening, before, failed=why))
                return
            data = one.texts["data"].render(happening)
            out.size += len(data)
            if out.size > LED_MOST:
                out.acts.append(Act(rule, number, copied(happening), before))
                return
            out.causes.append(happening.lsn)
            out.topics.append(topic)
            out.bodies.append(data)
    if rule.lead < len(rule.steps):
        out.acts.append(Act(rule, rule.lead, copied(happening), before))


UNJUDGED = -1
"""In the record of a removal, instead of a step: nothing of the action is done, its condition is still to be asked."""


def left_over(acts: Iterable[Act]) -> list[list[object]]:
    """What is left of actions, as the record of the removal has it: [action, step, pairs of LSNs]; failures are not."""
    some = dict[tuple[str, int], list[int]]()
    for act in acts:
        if not act.failed:
            some.setdefault((act.rule.name, act.step if act.judged else UNJUDGED), []).append(act.happening.lsn)
    return [[name, step, pairs_of(as_chunk(sorted(lsns)), False)] for (name, step), lsns in some.items()]


def too_many(hops: int) -> str:
    """Why an action does not run once more."""
    return f"it is number {hops + 1} of actions that set one another off; {HOPS_MOST} are allowed"
