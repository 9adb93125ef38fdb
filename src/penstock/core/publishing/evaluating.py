"""What a queue's expressions give for rows of a batch of publishes, as they enter: priorities, keys, last values.

64-bit keys (`last_value_key`, `dedup_key`) are worked out once a message and expression, however many queues and steps
ask, and stay on the batch until it is stored.  A door that must not hold the loop has them worked out elsewhere before
(`unkeyed`, `unrated`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import field

from penstock.core.effects import Made, Question
from penstock.core.queue.last_values import key_of
from penstock.core.queue.order.ranks import Levels, compile_ranking, rank_of
from penstock.core.queue.shares import expressions
from penstock.core.queue.staging import Told, key_text
from penstock.core.topology.routing import Plan
from penstock.expr import Filter, Value, compile_value
from penstock.expr.bodies import body_type
from penstock.expr.context import LOOP_BODY, LOOP_BYTES, LOOP_US, LOOP_VISITS, HandOver, meter
from penstock.expr.readings import readings_of
from penstock.expr.tree import Scalar
from penstock.records.chunks import Chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Messages, Publishes, Topic
from penstock.records.message_bodies import listed
from penstock.records.one_or_each import rows_at
from penstock.records.queue_settings import QueueSettings

FILTER_US = 0.5
"""About what reading a field of a body takes for one more filter."""


@dataclass(slots=True)
class Asking:
    """What one batch may still cost on the loop, and what has to be asked instead."""

    visits: int = LOOP_VISITS
    room: int = LOOP_BYTES  # bytes of bodies
    us: float = LOOP_US
    elsewhere: Collection[int] = ()  # rows whose bodies are read elsewhere anyway
    questions: dict[str, Question] = field(default_factory=dict[str, Question])

    def matches(
        self, plan: Plan, bodies: Sequence[bytes], properties: bytes | Sequence[bytes], topic: Topic
    ) -> dict[int, list[int]] | None:
        """By filter of the plan the places of messages that it matches; None: that would hold the loop up."""
        try:
            with meter.bounded(self.visits):
                found = plan.together.matches(bodies, properties, topic)
                self.visits = meter.batch
        except HandOver:
            self.visits = 0
            self.us = -1.0
            return None
        return found

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
    kind, size = body_type(value.message_type), sum(sizes)
    us = len(sizes) * us * kind.slowness + size * (kind.us_a_byte + value.us_a_byte)
    if sizes and (max(sizes) > LOOP_BODY or size > LOOP_BYTES or us > LOOP_US):
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
    places = [i for i, one in enumerate(plan.filters) if one is not None]  # a slot of the set to a queue of the plan
    always = (1 << len(plan.filters)) - 1 - sum(1 << i for i in places)
    if batch.judged is None:
        here = list(range(len(rows)))
        wanted = [always] * len(rows)
    else:
        here, wanted = _known(batch, rows, plan, always)
    if asking is not None and here:
        here = _affordable(batch, bodies, rows, here, plan, asking)
        if asking.questions:
            return wanted  # these are asked about again once the others are answered, and read then
    if not here:
        return wanted
    chosen = rows if len(here) == len(rows) else [rows[place] for place in here]
    found = _matches(batch, bodies, chosen, topic, plan, asking)
    if found is None:
        return wanted
    for slot, hits in found.items():
        bit = 1 << places[slot]
        for hit in hits:
            wanted[here[hit]] |= bit
    return wanted


def _matches(
    batch: Publishes, bodies: list[bytes], rows: Sequence[int], topic: Topic, plan: Plan, asking: Asking | None
) -> dict[int, list[int]] | None:
    """By filter of the plan the places of these rows that it matches; None: they are asked about elsewhere."""
    readings, properties = readings_of(batch), batch.properties
    if readings is not None:
        readings = readings.some(rows)
    if isinstance(properties, list):
        properties = [properties[row] for row in rows]
    bodies = [bodies[row] for row in rows]
    if asking is None:
        return plan.together.matches(bodies, properties, topic, readings=readings)
    found = asking.matches(plan, bodies, properties, topic)
    if found is None:
        asking.ask(plan, rows, batch)
    return found


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
    each, us_a_byte = FILTER_US * (len(plan.filters) + plan.together.slowness), plan.together.us_a_byte
    kept: list[int] = []
    away: list[int] = []
    for place in here:
        size = len(bodies[rows[place]])
        cost = each + size * us_a_byte
        within = size <= LOOP_BODY and asking.room >= size and asking.us >= size * us_a_byte
        if within and rows[place] not in asking.elsewhere:
            asking.room -= size
            asking.us -= cost
            kept.append(place)
        else:
            away.append(place)
    if away:
        asking.ask(plan, [rows[place] for place in away], batch)
    return kept


def evaluated(
    value: Value, batch: Publishes, rows: Sequence[int], chunk: Chunk | None = None, time: int | None = None
) -> list[Scalar]:
    """The value for each of these rows.

    chunk, time    the rows' LSNs and the log's time; None where nothing asks for them, or nobody knows them yet
    """
    whole = len(rows) == len(batch.bodies)
    if (read := readings_of(batch)) is not None and "body" in value.needs:
        read = read if whole else read.some(rows)
        topics = batch.topics if whole else rows_at(batch.topics, rows)
        messages = Messages(read.bodies, read.properties, topics, chunk, time)
        return value.values_parsed(read.tables(value.message_type), messages)
    if value.needs_body:
        batch.bodies = bodies = listed(batch.bodies)  # for good: the next queue asks again
        bodies = bodies if whole else [bodies[row] for row in rows]
    else:
        bodies = [b""] * len(rows)
    return value.values(
        bodies,
        _headers(batch, rows),
        batch.topics if whole else rows_at(batch.topics, rows),
        lsns=chunk,
        times=time,
    )


def _headers(batch: Publishes, rows: Sequence[int]) -> bytes | list[bytes]:
    return batch.properties if len(rows) == len(batch.bodies) else rows_at(batch.properties, rows)


EVALUATION_US = 2
"""About what reading a body and evaluating an expression takes."""


def answer_name(expression: str) -> str:
    """Under what the ranks that an expression gave stand among the answers on a batch; no filter is spelled so."""
    return f"\0{expression}"


def unrated(batch: Publishes, expressions: Iterable[tuple[str, Sequence[int]]]) -> list[Question]:
    """What has to be evaluated off the loop: all rows of an expression where the batch would hold the loop up.

    expressions    each with the rows that its queue may take
    """
    out: list[Question] = []
    for text, rows in expressions:
        value = compile_ranking(text)
        if isinstance(value, Levels) or not value.needs.isdisjoint(("lsn", "time")):
            continue  # nothing to read, or something that nobody knows before the rows are written
        out += _asked(batch, value, rows, "rank", answer_name(text), EVALUATION_US)
    return out


def _asked(
    batch: Publishes, value: Value, rows: Sequence[int], what: Made, name: str, cost_us: int
) -> Iterator[Question]:
    """The question about an expression, if it would hold the loop up at so many microseconds a row."""
    if left := costly(batch, name, value, rows, cost_us):
        yield Question(value, left, what, name)


def ranks_of(expression: str, batch: Publishes, rows: Sequence[int], chunk: Chunk, time: int) -> list[int]:
    """The rank of each of these rows, which have the LSNs of the chunk."""
    known = None if batch.judged is None else batch.judged.get(answer_name(expression))
    if known is not None and all(row in known for row in rows):
        return [known[row] for row in rows]
    value = compile_ranking(expression)
    if isinstance(value, Levels):
        return value.ranks(_headers(batch, rows), len(rows), time)
    found = evaluated(value, batch, rows, chunk, time)
    return list(map(rank_of, found))


def keys_of(
    settings: QueueSettings, batch: Publishes, rows: Sequence[int], chunk: Chunk, time: int
) -> Sequence[Told] | None:
    """For each of these rows, which have the LSNs of the chunk, the key by each expression.

    None where that would hold the loop up: the queue has them worked out elsewhere, before it offers them to anybody.
    """
    values = [compile_value(text) for text in expressions(settings)]
    if any(value.needs_body for value in values):
        sizes = [len(batch.bodies[row]) for row in rows]
        kinds = [body_type(value.message_type) for value in values]
        us: float = len(rows) * EVALUATION_US * sum(kind.slowness for kind in kinds)
        us += sum(sizes) * (sum(value.us_a_byte for value in values) + sum(kind.us_a_byte for kind in kinds))
        if max(sizes) > LOOP_BODY or sum(sizes) > LOOP_BYTES or us > LOOP_US:
            return None
    columns = [_texts(value, batch, rows, chunk, time) for value in values]
    return list(zip(*columns, strict=True))


def _texts(value: Value, batch: Publishes, rows: Sequence[int], chunk: Chunk, time: int) -> list[str | None]:
    found = evaluated(value, batch, rows, chunk, time)
    return [one if type(one) is str and len(one) <= 200 else key_text(one) for one in found]


KEY_US = 4
"""About what reading a body, evaluating an expression and using the key takes."""


def key_name(expression: str) -> str:
    """Under what the keys that an expression gave stand among the answers on a batch; no filter is spelled so."""
    return f"\1{expression}"


def unkeyed(batch: Publishes, expressions: Iterable[tuple[str, Sequence[int]]]) -> list[Question]:
    """What has to be evaluated off the loop: all rows of an expression where the batch would hold the loop up.

    expressions    each with the rows that its queue may take
    """
    asked = (_asked(batch, compile_value(text), rows, "key", key_name(text), KEY_US) for text, rows in expressions)
    return [question for questions in asked for question in questions]


def last_keys_of(expression: str, batch: Publishes, rows: Sequence[int]) -> list[int]:
    """The key of each of these rows; 0: it has none."""
    judged = batch.judged = {} if batch.judged is None else batch.judged
    known = judged.setdefault(key_name(expression), {})
    left = [row for row in rows if row not in known] if known else rows
    if left:
        keys = list(map(key_of, evaluated(compile_value(expression), batch, left)))
        known.update(zip(left, keys, strict=True))
        if len(left) == len(rows):
            return keys
    return [known[row] for row in rows]
