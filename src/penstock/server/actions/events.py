"""Events: messages that something happened to, as LSNs, and the actions that want to know of them."""

from __future__ import annotations

from typing import TypeAlias

from penstock.core.actions.acted import OWN
from penstock.core.actions.rules import Rule
from penstock.core.publishing.evaluating import answers_of
from penstock.expr import Filter, TopicPattern
from penstock.records.chunks import Chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Control, Publishes, Rows
from penstock.records.kinds import Kind
from penstock.server.actions.runs import NONE

SLICE = 128
"""Messages of one event, about."""

Watching: TypeAlias = "tuple[Rule, Filter | None, TopicPattern | None, str]"
"""A rule with what a published message has to match, or the topic of a delivered one and its exchange."""

Chosen: TypeAlias = "tuple[Watching, ...]"


@dataclass(slots=True, eq=False)
class Event:
    """Messages that something happened to."""

    rules: Chosen
    chunk: Chunk
    after: int  # LSN that has to be durable
    queue: str = ""  # of a delivery or an acknowledgement
    client: str = ""
    hops: int = 0
    reason: str = ""
    why: str = ""  # in the words of who refused them
    oof: bool = False  # what the record was is what it was before
    cause: int = NONE  # LSN of the record that sets it off; OWN: each message is a trigger itself; NONE: no record is
    step: int = 0  # from which step on; before it only values are worked out
    judged: bool = False  # the condition is known to be TRUE

    @property
    def place(self) -> int:
        """The LSN of its first trigger; NONE without one."""
        return self.chunk[0] if self.cause == OWN else self.cause


def chosen_rows(entry: Watching, event: Event, rows: Rows, batch: Publishes) -> list[bool]:
    """Which of the rows set the rule off."""
    rule, chosen, named, exchange = entry
    wants = [True] * len(rows)
    for one in (rule.condition, chosen):
        if one is None or event.judged:
            continue
        known = answers_of(batch, one)
        passed = (
            [bool(known[row]) for row in range(len(rows))]
            if known
            else one.matches(rows.bodies, rows.properties, rows.topics, lsns=rows.lsns, times=rows.times)
        )
        wants = [a and b for a, b in zip(wants, passed, strict=True)]
    if named is not None and not (named.literal and named.text == event.queue):
        wants = [
            one and topic.exchange == exchange and named.matches(topic.name)
            for one, topic in zip(wants, rows.topics, strict=True)
        ]
    return wants


def joins(last: Event, event: Event) -> bool:
    """Whether two events are one: neighbours that set off the same."""
    return (
        last.rules == event.rules
        and (last.reason, last.why, last.oof) == (event.reason, event.why, event.oof)
        and last.queue == event.queue
        and last.cause == event.cause
        and (last.step, last.judged) == (event.step, event.judged)
        and last.client == event.client
        and last.hops == event.hops
        and isinstance(last.chunk, range)
        and isinstance(event.chunk, range)
        and last.chunk.stop == event.chunk.start
        and len(last.chunk) < SLICE  # so that the first of them are durable some time
    )


def publisher_of(control: Control) -> str:
    """The publisher's name, where a record has it."""
    if control.kind is not Kind.PUBLISHERS:
        return ""
    import orjson

    return next(iter(orjson.loads(control.header)), "")
