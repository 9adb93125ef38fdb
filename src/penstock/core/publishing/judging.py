"""Content filters of queues over a batch of publishes: which of a plan's queues take which rows.

All filters of a plan share one reading of each body.  A door that must not hold the loop has a batch judged before it
publishes it (`Asking`): what is too large or takes too long is not evaluated but asked, the answers come back on the
batch (`Publishes.judged`), and then nothing is evaluated twice.  Who does not ask, evaluates everything here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from penstock.core.asks import Question
from penstock.core.topology.routing import Plan
from penstock.expr import Filter, Value
from penstock.expr.meter import LOOP_BODY, LOOP_BYTES, LOOP_VISITS, HandOver, meter
from penstock.records.bodies import listed
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Topic

EVALUATION_US = 0.5
"""About what reading a field of a body takes for one more filter."""

LOOP_US = 20_000
"""Longer than this the filters of one batch may not hold the loop."""


@dataclass(slots=True)
class Asking:
    """What one batch may still cost on the loop, and what has to be asked instead."""

    visits: int = LOOP_VISITS
    bytes: int = LOOP_BYTES
    us: float = LOOP_US
    questions: dict[str, Question] = field(default_factory=dict[str, Question])

    def ask(self, plan: Plan, rows: Sequence[int], batch: Publishes) -> None:
        """These rows have to be judged elsewhere, by each filter of the plan that has not judged them yet."""
        for one in plan.filters:
            if one is None:
                continue
            known = answers_of(batch, one)
            asked = [row for row in rows if row not in known]
            if asked:
                self.questions.setdefault(one.text, Question(one, [])).rows.extend(asked)


def costly(batch: Publishes, name: str, value: Value, rows: Sequence[int], us: float) -> list[int]:
    """Rows whose values are not known by this name: all of them where that would hold the loop up, else none.

    us    what one row takes, in microseconds
    """
    if not value.needs_body:
        return []
    known = {} if batch.judged is None else batch.judged.get(name, {})
    left = [row for row in rows if row not in known] if known else list(rows)
    bodies = batch.bodies
    sizes = [len(bodies[row]) for row in left]
    if sizes and (max(sizes) > LOOP_BODY or sum(sizes) > LOOP_BYTES or len(sizes) * us > LOOP_US):
        return left
    return []


def answers_of(batch: Publishes, one: Filter) -> dict[int, int]:
    """What a filter said of rows of the batch before."""
    return {} if batch.judged is None else batch.judged.get(one.text, {})


def takers(batch: Publishes, rows: Sequence[int], topic: Topic, plan: Plan, asking: Asking | None) -> list[int]:
    """For each row the queues of the plan that take it, bit i for queue i.

    asking    do not hold the loop: rows that have to be judged elsewhere are noted there, and their bits mean nothing
    """
    batch.bodies = bodies = listed(batch.bodies)  # for good: the next filter asks again
    always = sum(1 << i for i, one in enumerate(plan.filters) if one is None)
    if batch.judged is None:
        here = list(range(len(rows)))
        wanted = [always] * len(rows)
    else:
        here, wanted = _known(batch, rows, plan, always)
    if asking is not None and here:
        here = _affordable(batch, bodies, rows, here, plan, asking)
    if not here:
        return wanted
    chosen = rows if len(here) == len(rows) else [rows[place] for place in here]
    properties = batch.properties
    if isinstance(properties, list):
        properties = [properties[row] for row in chosen]
    asked = [bodies[row] for row in chosen]
    if asking is None:
        found = plan.together.matches(asked, properties, topic)
    else:
        try:
            with meter.bounded(asking.visits):
                found = plan.together.matches(asked, properties, topic)
                asking.visits = meter.batch
        except HandOver:
            asking.visits = 0
            asking.us = -1.0
            asking.ask(plan, chosen, batch)
            return wanted
    places = [i for i, one in enumerate(plan.filters) if one is not None]  # a slot of the set to a queue of the plan
    for slot, hits in found.items():
        bit = 1 << places[slot]
        for hit in hits:
            wanted[here[hit]] |= bit
    return wanted


def _known(batch: Publishes, rows: Sequence[int], plan: Plan, always: int) -> tuple[list[int], list[int]]:
    """Places of rows that some filter has not judged, and the bits of the others."""
    here: list[int] = []
    wanted = [always] * len(rows)
    asked = [(1 << i, answers_of(batch, one)) for i, one in enumerate(plan.filters) if one is not None]
    for place, row in enumerate(rows):
        bits = always
        for bit, answers in asked:
            answer = answers.get(row)
            if answer is None:
                here.append(place)
                bits = always
                break
            if answer:
                bits |= bit
        wanted[place] = bits
    return here, wanted


def _affordable(
    batch: Publishes, bodies: list[bytes], rows: Sequence[int], here: list[int], plan: Plan, asking: Asking
) -> list[int]:
    """Of the places those that may be evaluated on the loop; the others are asked."""
    filters = len(plan.filters)
    kept: list[int] = []
    away: list[int] = []
    for place in here:
        size = len(bodies[rows[place]])
        if size <= LOOP_BODY and asking.bytes >= size and asking.us >= 0:
            asking.bytes -= size
            asking.us -= EVALUATION_US * (filters + 1)
            kept.append(place)
        else:
            away.append(place)
    if away:
        asking.ask(plan, [rows[place] for place in away], batch)
    return kept
