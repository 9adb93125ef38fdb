"""Content filters and other expressions off the loop: what a batch needs judged before it is published, or what waits.

A thread evaluates, in slices between which the loop gets the interpreter.  A single body of more than a mebibyte would
hold it for as long as its JSON takes to parse, so such a body goes to the bulk child; when there is none, or it fails,
the thread does it after all, for the answer must not depend on that.

What the filter of a command asks about who asks is answered before it is compiled (`asked_by`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

from penstock.core.effects import Judge, Judged, Made, Question
from penstock.core.queue.last_values import key_of
from penstock.core.queue.order.ranks import rank_of
from penstock.core.queue.staging import key_text
from penstock.errors import PenstockError
from penstock.expr import FilterSet, Matcher, Value, compile_filter, compile_value
from penstock.expr.bodies import body_type
from penstock.expr.context import Context
from penstock.expr.filter import bound
from penstock.expr.json_schema import BodyCheck, compile_check
from penstock.records.entries import Messages, Publishes, Topic
from penstock.records.message_bodies import listed
from penstock.server.base.faults import asker_behind

if TYPE_CHECKING:
    from penstock.expr import Filter
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


def _portions(rows: Messages, us_a_byte: float) -> Iterator[tuple[int, Messages]]:
    """Slices of the rows, each with the place of its first row and followed by a breath."""
    for part in slices(range(len(rows.bodies)), list(map(len, rows.bodies)), us_a_byte):
        yield part[0], rows.some(slice(part[0], part[-1] + 1))
        breathe()


def _elsewhere(
    ask: Ask | None, job: str, asked: Mapping[str, object], rows: Messages, us_a_byte: float
) -> dict[str, Any] | None:
    """What the child tells of one large body; None for smaller ones, and when it could not tell."""
    size = len(rows.bodies[0])
    if ask is None or (size <= CHILD_BODY and size * us_a_byte <= CHILD_US):
        return None
    topic, lsns, times = rows.topic_of(0), rows.lsns, rows.times
    message: dict[str, object] = {
        "body": rows.bodies[0],
        "properties": rows.properties_of(0),
        "exchange": topic.exchange,
        "name": topic.name,
        "lsn": None if lsns is None else lsns[0],
        "time": times[0] if isinstance(times, Sequence) else times,
    }
    return _asked(ask, job, {**asked, **message})


def _asked(ask: Ask, job: str, values: dict[str, object]) -> dict[str, Any] | None:
    try:
        return ask(job, values)
    except PenstockError as error:
        logger.warning("a body of %d bytes is evaluated beside the loop: %s", len(cast("bytes", values["body"])), error)
        return None


def _received(
    body: memoryview, properties: memoryview, exchange: str, name: str, lsn: int | None, time: int | None
) -> Messages:
    """The message of `_elsewhere`, in the child."""
    lsns, times = None if lsn is None else [lsn], None if time is None else [time]
    return Messages([bytes(body)], bytes(properties), Topic("", exchange, name), lsns, times)


def made_of(value: Value, made: Made, messages: Messages, ask: Ask | None = None) -> list[Any]:
    """What is made of the value of each message: integers of ranks and keys, text or None of texts.

    Any thread but the loop's.
    """
    out, us_a_byte = list[Any](), body_type(value.message_type).us_a_byte
    asked = {"text": value.text, "made": made}
    for _, rows in _portions(messages, us_a_byte):
        told = _elsewhere(ask, "make", asked, rows, us_a_byte) if value.needs_body else None
        if told is None:
            out += map(MAKERS[made], value.values(*rows))
        else:
            one = told["made"]
            out.append(bytes(one).decode(errors="surrogateescape") if made == "text" and one is not None else one)
    return out


def make_there(disk: Disk, text: str, made: Made, **message: Any) -> dict[str, object]:
    """A job of the bulk child: what is made of an expression's value of one message; text as its bytes."""
    [value] = compile_value(text).values(*_received(**message))
    one = MAKERS[made](value)
    return {"made": one.encode(errors="surrogateescape") if isinstance(one, str) else one}


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
                there = _asked(
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
    out: list[list[int]] = [[] for _ in filters]
    together = FilterSet(filters)
    texts = {"texts": [one.text for one in filters]}
    for start, rows in _portions(messages, together.us_a_byte):
        told = _elsewhere(ask, "judge", texts, rows, together.us_a_byte)
        if told is None:
            found = together.matches(*rows)
        else:
            found = {slot: [0] for slot in told["slots"]}
        for slot, places in found.items():
            out[slot] += [start + place for place in places]
    return out


def judge_there(disk: Disk, texts: list[str], **message: Any) -> dict[str, object]:
    """A job of the bulk child: which of the filters one message passes."""
    found = FilterSet([compile_filter(text) for text in texts]).matches(*_received(**message))
    return {"slots": sorted(found)}


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
    out: list[list[Answer]] = []
    for batch, questions in asked:
        messages = Messages(listed(batch.bodies), batch.properties, batch.topics)
        out.append([_passed(messages, question, ask) for question in questions])
    return out


def _answers_or_fault(
    asked: Sequence[tuple[Publishes, Sequence[Question]]], ask: Ask | None
) -> list[list[Answer]] | Exception:
    """The same; what nobody expected is whoever's who waits for the answers."""
    try:
        return _answers(asked, ask)
    except Exception as error:  # noqa: BLE001 - told on the loop
        return error


def _passed(messages: Messages, question: Question, ask: Ask | None) -> Answer:
    rows = question.rows
    asked = messages.some(rows)
    if isinstance(question.filter, BodyCheck):
        return checked(question.filter, asked.bodies, asked.properties, ask)
    if isinstance(question.filter, Value):
        assert question.made is not None
        return made_of(question.filter, question.made, asked, ask)
    hits = set(look([question.filter], asked, ask)[0])
    return [row in hits for row in range(len(rows))]
