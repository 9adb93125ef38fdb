"""Content filters and other expressions off the loop: what a batch needs judged before it is published, or what waits.

A thread evaluates, in slices between which the loop gets the interpreter.  A single body of more than a mebibyte would
hold it for as long as its JSON takes to parse, so such a body goes to the bulk child; when there is none, or it fails,
the thread does it after all, for the answer must not depend on that.

What the filter of a command asks about who asks is answered before it is compiled (`asked_by`).
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

from penstock.core.effects import Judge, Judged, Made, Question
from penstock.core.queue.last_values import key_of
from penstock.core.queue.order.ranks import rank_of
from penstock.core.queue.staging import key_text
from penstock.errors import PenstockError
from penstock.expr import Filter, FilterSet, Matcher, Value, compile_filter, compile_value
from penstock.expr.bodies import body_type
from penstock.expr.context import Context
from penstock.expr.filter import bound
from penstock.expr.json_schema import BodyCheck, compile_check
from penstock.expr.readings import Readings
from penstock.records.entries import Messages, Publishes, Topic
from penstock.records.message_bodies import listed
from penstock.records.one_or_each import tight
from penstock.server.base.faults import asker_behind

if TYPE_CHECKING:
    from penstock.ports import Disk
    from penstock.records.message_types import MessageType
    from penstock.server.asking.caching import Present
    from penstock.server.base.runtime import Off, Runtime


CHILD_BODY = 1 << 20
"""Bytes of a body beyond which another process parses it: 1 MiB of JSON takes 4 ms."""

CHILD_STEPS = 1 << 20
"""Of a schema for a body, beyond which another process looks at it: 3 to 10 ms."""

CHILD_US = 160_000
"""Of reading a body, as `us_a_byte` of its type has it, beyond which another process parses it."""

SLICE_ROWS = 500
SLICE_BYTES = 256 * 1024
SLICE_US = 20_000
"""What is evaluated between two breaths: about half a millisecond, or this of dense bodies of other types than JSON."""

BREATH_S = 50e-6
"""How long a breath is: any real sleep hands the interpreter over, and a longer one would only delay the answer."""

spent = time.thread_time_ns
"""Nanoseconds of CPU that this thread has used: what a way of looking costs, whoever else is busy."""

Ask = Callable[[str, dict[str, object]], dict[str, Any]]
"""`Bulk.call`: the result of a job of the bulk child."""

MAKERS: Mapping[Made, Callable[[object], Any]] = {"rank": rank_of, "key": key_of, "text": key_text}


def breathe() -> None:
    """Let another thread have the interpreter: any real sleep hands it over."""
    time.sleep(BREATH_S)


def slices(rows: Sequence[int], sizes: Sequence[int], us_a_byte: float = 0.0) -> Iterator[Sequence[int]]:
    """Rows in pieces that are evaluated between two breaths."""
    start, n = 0, len(rows)
    most = min(SLICE_BYTES, SLICE_US / us_a_byte) if us_a_byte else SLICE_BYTES
    while start < n:
        size, stop = sizes[start], start + 1
        while stop < n and stop - start < SLICE_ROWS and size + sizes[stop] <= most:
            size += sizes[stop]
            stop += 1
        yield rows[start:stop]
        start = stop


class _Asked:
    """Filters and expressions that are asked about the same rows, and what they said."""

    def __init__(
        self, rows: Sequence[int], filters: Sequence[Matcher] = (), values: Sequence[tuple[Value, Made]] = ()
    ) -> None:
        """rows: ascending.  values: each with what is made of it."""
        self.rows = rows
        self.filters = FilterSet(filters)
        self.texts = [one.text for one in filters]
        self.values = values
        self.hits: list[list[int]] = [[] for _ in filters]  # by filter the rows that it matches, ascending
        self.made: list[list[Any]] = [[] for _ in values]  # by value what is made of it for each row
        self.us_a_byte = max(self.filters.us_a_byte, *(body_type(one.message_type).us_a_byte for one, _ in values), 0.0)
        self.reads = bool(filters) or any(one.needs_body for one, _ in values)

    def __len__(self) -> int:
        return len(self.texts) + len(self.values)

    def within(self, part: Sequence[int]) -> Sequence[int]:
        """Its rows among neighbours of all that are asked about."""
        return self.rows[bisect_left(self.rows, part[0]) : bisect_right(self.rows, part[-1])]

    def evaluate(self, rows: Sequence[int], messages: Messages, readings: Readings | None) -> None:
        """Ask about these rows.  readings: where somebody else asks about them too."""
        for slot, places in self.filters.matches(*messages, readings=readings).items():
            self.hits[slot] += [rows[place] for place in places]
        for (value, made), out in zip(self.values, self.made, strict=True):
            if readings is None or "body" not in value.needs:
                found = value.values(*messages)
            else:
                found = value.values_parsed(readings.tables(value.message_type), messages)
            out += map(MAKERS[made], found)

    def take(self, row: int, slots: Sequence[int], made: Sequence[Any]) -> None:
        """Of one row this was told."""
        for slot in slots:
            self.hits[slot].append(row)
        for (_, kind), one, out in zip(self.values, made, self.made, strict=True):
            out.append(bytes(one).decode(errors="surrogateescape") if kind == "text" and one is not None else one)


def _evaluate(asked: Sequence[_Asked], messages: Messages, ask: Ask | None) -> None:
    """Ask about messages; a body is read once for a message type, whoever asks.  Any thread but the loop's."""
    us_a_byte = max(one.us_a_byte for one in asked)
    rows = asked[0].rows if len(asked) == 1 else sorted(set(chain.from_iterable(one.rows for one in asked)))
    alone = sum(map(len, asked)) == 1
    for part in slices(rows, [len(messages.bodies[row]) for row in rows], us_a_byte):
        some = messages.some(tight(part))
        if not _told_elsewhere(asked, part[0], some, ask, us_a_byte):
            readings = None if alone else Readings(some.bodies, some.properties)
            for one in asked:
                mine = one.within(part)
                if len(mine) == len(part):
                    one.evaluate(part, some, readings)
                elif mine:
                    assert readings is not None
                    places = [bisect_left(part, row) for row in mine]
                    one.evaluate(mine, some.some(places), readings.some(places))
        breathe()


def _told_elsewhere(asked: Sequence[_Asked], row: int, rows: Messages, ask: Ask | None, us_a_byte: float) -> bool:
    """Whether the child has told of a large body, the first of these; smaller ones stay here."""
    size = len(rows.bodies[0])
    asked = [one for one in asked if one.within([row])]
    if ask is None or (size <= CHILD_BODY and size * us_a_byte <= CHILD_US) or not any(one.reads for one in asked):
        return False
    texts = [(one.texts, [(value.text, made) for value, made in one.values]) for one in asked]
    told = _from_child(ask, "judge", {"asked": texts, **_first_of(rows)})
    if told is None:
        return False
    for place, (one, slots) in enumerate(zip(asked, told["slots"], strict=True)):
        one.take(row, slots, [told[f"{place} {at}"] for at in range(len(one.values))])
    return True


def _first_of(rows: Messages) -> dict[str, object]:
    """The first message, as `judge_there` takes it."""
    topic, lsns, times = rows.topic_of(0), rows.lsns, rows.times
    return {
        "body": rows.bodies[0],
        "properties": rows.properties_of(0),
        "exchange": topic.exchange,
        "name": topic.name,
        "lsn": None if lsns is None else lsns[0],
        "time": times[0] if isinstance(times, Sequence) else times,
    }


def _from_child(ask: Ask, job: str, values: dict[str, object]) -> dict[str, Any] | None:
    try:
        return ask(job, values)
    except PenstockError as error:
        logger.warning("a body of %d bytes is evaluated beside the loop: %s", len(cast("bytes", values["body"])), error)
        return None


def judge_there(
    disk: Disk, asked: list[tuple[list[str], list[tuple[str, Made]]]], body: memoryview, properties: memoryview,
    exchange: str, name: str, lsn: int | None, time: int | None,
) -> dict[str, object]:  # fmt: skip
    """A job of the bulk child: which filters one message passes, and what is made of expressions; text as its bytes."""
    lsns, times = None if lsn is None else [lsn], None if time is None else [time]
    message = Messages([bytes(body)], bytes(properties), Topic("", exchange, name), lsns, times)
    groups = [
        _Asked((0,), [compile_filter(text) for text in texts], [(compile_value(text), made) for text, made in values])
        for texts, values in asked
    ]
    _evaluate(groups, message, None)
    out: dict[str, object] = {"slots": [[slot for slot, hits in enumerate(one.hits) if hits] for one in groups]}
    for place, one in enumerate(groups):
        for at, [made] in enumerate(one.made):
            out[f"{place} {at}"] = made.encode(errors="surrogateescape") if isinstance(made, str) else made
    return out


def checked(
    check: BodyCheck, bodies: Sequence[bytes], properties: bytes | Sequence[bytes], ask: Ask | None = None
) -> list[bool]:
    """Which bodies fit a schema.  Any thread but the loop's.

    A schema is looked at without a breath, so what takes many steps goes to the child.
    """
    out = list[bool]()
    for part in slices(range(len(bodies)), list(map(len, bodies))):
        some = slice(part[0], part[-1] + 1)
        heads = repeat(properties) if isinstance(properties, bytes) else properties[some]
        for body, head in zip(bodies[some], heads, strict=False):
            there = None
            if ask is not None and check.bound(body) > CHILD_STEPS:
                there = _from_child(
                    ask, "check", {"text": check.text.encode(), "kind": check.kind, "body": body, "properties": head}
                )
            out.append(check.fits(body, head) if there is None else bool(there["fits"]))
        breathe()
    return out


def check_there(
    disk: Disk, text: memoryview, kind: MessageType, body: memoryview, properties: memoryview
) -> dict[str, object]:
    """A job of the bulk child: whether one body fits a schema."""
    return {"fits": compile_check(str(text, "utf-8"), kind).fits(bytes(body), bytes(properties))}


def look(filters: Sequence[Matcher], messages: Messages, ask: Ask | None = None) -> list[list[int]]:
    """For each filter the places of the messages that match, ascending.  Any thread but the loop's."""
    asked = _Asked(range(len(messages.bodies)), filters)
    _evaluate([asked], messages, ask)
    return asked.hits


def made_of(values: Sequence[Value], made: Made, messages: Messages, ask: Ask | None = None) -> list[list[Any]]:
    """For each expression what is made of its value of each message: integers of ranks and keys, text or None of texts.

    Any thread but the loop's.
    """
    asked = _Asked(range(len(messages.bodies)), values=[(one, made) for one in values])
    _evaluate([asked], messages, ask)
    return asked.made


@overload
def asked_by(text: str, *, client: str, user: str, instance: str) -> str: ...
@overload
def asked_by(text: str | None, *, client: str, user: str, instance: str) -> str | None: ...
def asked_by(text: str | None, *, client: str, user: str, instance: str) -> str | None:
    """The text for one client.  ExpressionError for one that cannot be read."""
    if not text:
        return text
    return bound(text, Context(client_name=client, user=user, instance_name=instance))


logger = logging.getLogger("penstock.judging")

Answer: TypeAlias = "list[bool] | list[int]"


class Judges:
    """Has batches judged.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime, records: Present) -> None:
        """records: has what deltas need at hand before anything is judged."""
        self._runtime = runtime
        self._records = records
        self.off: Off | None = None
        self.ask: Ask | None = None  # the bulk child, if there is one

    def ready(
        self,
        batches: Sequence[Publishes],
        then: Callable[[], None],
        *,
        publisher: str | None = None,
        sequence: int | None = None,
    ) -> bool:
        """Whether these may be published now without holding the loop.

        If not, `then` is called once the answers are on the batches, and asks again: queues may have come meanwhile.
        Where nothing runs off the loop the answer is yes, and publishing evaluates in place.
        """
        if not self._records.ready(batches, then, self.off):
            return False
        if self.off is None:
            return True
        core = self._runtime.core
        asked = [
            (seen, questions)
            for seen in map(core.ahead, batches)  # a delta is judged as what it makes of its record
            if (questions := core.unjudged(seen, publisher=publisher, sequence=sequence))
        ]
        if not asked:
            return True
        self.ask_about(asked, then)
        return False

    def evaluate(self, batch: Publishes, questions: Sequence[Question], then: Callable[[], None]) -> None:
        """Put the answers of some filters on a batch, then call `then`; perhaps before this returns."""
        self.ask_about([(batch, questions)], then)

    def start(self, effect: Judge) -> None:
        """Judge what the core has asked about; it is told."""
        self.ask_about(effect.asked, partial(self._runtime.answer, Judged(effect.token)))

    def ask_about(self, asked: Sequence[tuple[Publishes, Sequence[Question]]], then: Callable[[], None]) -> None:
        """Put the answers on these batches, then call `then`; at once where nothing runs off the loop."""
        size = sum(len(batch.bodies[row]) for batch, questions in asked for q in questions for row in q.rows)
        waiting = self._runtime.bodies.partial
        waiting.add(size)

        def done(answers: list[list[Answer]] | Exception) -> None:
            waiting.add(-size)
            if isinstance(answers, Exception):
                self._runtime.faults.contain(answers, asker_behind(then))
                return
            for (batch, questions), of_batch in zip(asked, answers, strict=True):
                note(batch, questions, of_batch)
            self._runtime.faults.run(then)

        work = partial(_answers_or_fault, asked, self.ask)
        if self.off is None:
            done(work())
        else:
            self.off(work, done)


def note(batch: Publishes, questions: Sequence[Question], answers: Sequence[Sequence[int]]) -> None:
    """Put answers on a batch."""
    judged = batch.judged = {} if batch.judged is None else batch.judged
    for question, passed in zip(questions, answers, strict=True):
        name = question.name or cast("Filter | Value", question.filter).text
        judged.setdefault(name, {}).update(zip(question.rows, passed, strict=True))


def _answers(asked: Sequence[tuple[Publishes, Sequence[Question]]], ask: Ask | None) -> list[list[Answer]]:
    """For each batch and question one answer a row, of an expression a number.  Any thread."""
    return [
        _answers_of(Messages(listed(batch.bodies), batch.properties, batch.topics), questions, ask)
        for batch, questions in asked
    ]


def _answers_or_fault(
    asked: Sequence[tuple[Publishes, Sequence[Question]]], ask: Ask | None
) -> list[list[Answer]] | Exception:
    """The same; what nobody expected is whoever's who waits for the answers."""
    try:
        return _answers(asked, ask)
    except Exception as error:  # noqa: BLE001 - told on the loop
        return error


def _answers_of(messages: Messages, questions: Sequence[Question], ask: Ask | None) -> list[Answer]:
    """The answers about one batch.  Questions about the same rows are asked together."""
    alike: dict[tuple[int, ...], list[tuple[int, Question]]] = {}
    out: list[Answer] = [[] for _ in questions]
    for place, question in enumerate(questions):
        if isinstance(question.filter, BodyCheck):
            bodies, heads, *_ = messages.some(question.rows)
            out[place] = checked(question.filter, bodies, heads, ask)
        else:
            alike.setdefault(tuple(sorted(question.rows)), []).append((place, question))
    told = {rows: _group(rows, [question for _, question in some]) for rows, some in alike.items()}
    if told:
        _evaluate(list(told.values()), messages, ask)
    for rows, some in alike.items():
        hits, made = map(set[int], told[rows].hits), iter(told[rows].made)
        for place, question in some:
            if question.made is None:
                passed = next(hits)
                out[place] = [row in passed for row in question.rows]
            else:
                known = dict(zip(rows, next(made), strict=True))
                out[place] = [known[row] for row in question.rows]
    return out


def _group(rows: Sequence[int], questions: Sequence[Question]) -> _Asked:
    """What is asked about the same rows."""
    filters = [one.filter for one in questions if isinstance(one.filter, Filter)]
    values: list[tuple[Value, Made]]
    values = [(one.filter, one.made) for one in questions if isinstance(one.filter, Value) and one.made is not None]
    assert len(filters) + len(values) == len(questions)
    return _Asked(rows, filters, values)
