"""What a queue's expired messages become by actions: rows of the same group as their removal.

The lead of each action runs here, for all messages in the order they died.  What is left of its steps, and what failed,
is told when the group is written.  An expression over a body that would hold the loop up is not evaluated here: such an
action runs whole, and after the group is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

from penstock.core.actions.acted import HOPS_MOST, Hops
from penstock.core.actions.rules import Extracting, Publishing, Rule
from penstock.core.actions.templates import Happening, copied
from penstock.core.effects import Act
from penstock.expr.meter import LOOP_BODY
from penstock.records.chunks import as_chunk, pairs_of
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic

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
    for number, step in enumerate(rule.steps[: rule.lead]):
        if isinstance(step, Extracting):
            step.into(happening)
        elif isinstance(step, Publishing):
            name = step.topic.render(happening).decode(errors="replace")
            topic = find(step.step.vhost, step.step.exchange, name)
            if topic is None:
                why = f"publish: there is no exchange {step.step.exchange!r} in vhost {step.step.vhost!r}"
                out.acts.append(Act(rule, number, happening, before, failed=why))
                return
            data = step.data.render(happening)
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
