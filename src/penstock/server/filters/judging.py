"""Content filters off the loop: what a batch needs judged before it is published, or a scan finds too large.

A thread evaluates, in slices between which the loop gets the interpreter.  A single body of more than a mebibyte would
hold it for as long as its JSON takes to parse, so such a body goes to the bulk child; when there is none, or it fails,
the thread does it after all, for the answer must not depend on that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from penstock.core.asks import Judge, Judged
from penstock.errors import PenstockError
from penstock.expr import FilterSet, Matcher, Value, compile_filter
from penstock.records.entries import Publishes, Topic
from penstock.records.message_bodies import listed
from penstock.server.filters.evaluating import CHILD_BODY, SLICE_BYTES, SLICE_ROWS, Ask, breathe, made_of

if TYPE_CHECKING:
    from penstock.core.asks import Question
    from penstock.ports import Disk
    from penstock.server.runtime import Off, Runtime
    from penstock.server.sow.present import Present

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

        def done(answers: list[list[Answer]]) -> None:
            waiting.add(-size)
            for (batch, questions), of_batch in zip(asked, answers, strict=True):
                note(batch, questions, of_batch)
            then()

        work = partial(_answers, asked, self.ask)
        if self.off is None:
            done(work())
        else:
            self.off(work, done)


def note(batch: Publishes, questions: Sequence[Question], answers: Sequence[Sequence[int]]) -> None:
    """Put answers on a batch."""
    judged = batch.judged = {} if batch.judged is None else batch.judged
    for question, passed in zip(questions, answers, strict=True):
        name = question.name or question.filter.text
        judged.setdefault(name, {}).update(zip(question.rows, passed, strict=True))


def _answers(asked: Sequence[tuple[Publishes, Sequence[Question]]], ask: Ask | None) -> list[list[Answer]]:
    """For each batch and question one answer a row, of an expression a number.  Any thread."""
    out: list[list[Answer]] = []
    for batch, questions in asked:
        bodies = listed(batch.bodies)
        out.append([_passed(batch, bodies, question, ask) for question in questions])
    return out


def _passed(batch: Publishes, bodies: Sequence[bytes], question: Question, ask: Ask | None) -> Answer:
    rows, properties = question.rows, batch.properties
    if isinstance(question.filter, Value):
        assert question.made is not None
        return made_of(
            question.filter, question.made, [bodies[row] for row in rows],
            properties if isinstance(properties, bytes) else [properties[row] for row in rows],
            [batch.topics[row] for row in rows] if isinstance(batch.topics, list) else batch.topics, ask=ask,
        )  # fmt: skip
    hits = look(
        [question.filter],
        [bodies[row] for row in rows],
        properties if isinstance(properties, bytes) else [properties[row] for row in rows],
        [batch.topics[row] for row in rows] if isinstance(batch.topics, list) else batch.topics,
        ask=ask,
    )[0]
    passed = [False] * len(rows)
    for hit in hits:
        passed[hit] = True
    return passed


def look(
    filters: Sequence[Matcher],
    bodies: Sequence[bytes],
    properties: bytes | Sequence[bytes],
    topics: Topic | Sequence[Topic],
    *,
    lsns: Sequence[int] | None = None,
    times: Sequence[int] | None = None,
    ask: Ask | None = None,
) -> list[list[int]]:
    """For each filter the places of the messages that match, ascending.  Any thread but the loop's."""
    out: list[list[int]] = [[] for _ in filters]
    together = FilterSet(filters)
    start, n = 0, len(bodies)
    while start < n:
        stop, size = _slice_end(bodies, start)
        one = slice(start, stop)
        header = properties if isinstance(properties, bytes) else properties[one]
        where = topics if isinstance(topics, Topic) else topics[one]
        lsn, when = None if lsns is None else lsns[one], None if times is None else times[one]
        found: dict[int, list[int]] | None = None
        if size > CHILD_BODY and ask is not None:
            found = _elsewhere(filters, bodies[start], header, where, lsn, when, ask)
        if found is None:
            found = together.matches(bodies[one], header, where, lsns=lsn, times=when)
        for slot, places in found.items():
            out[slot] += [start + place for place in places]
        start = stop
        breathe()
    return out


def _slice_end(bodies: Sequence[bytes], start: int) -> tuple[int, int]:
    """How far what is looked at together reaches, at least one message, and its bytes."""
    size, stop = len(bodies[start]), start + 1
    while stop < len(bodies) and stop - start < SLICE_ROWS and size + len(bodies[stop]) <= SLICE_BYTES:
        size += len(bodies[stop])
        stop += 1
    return stop, size


def _elsewhere(
    filters: Sequence[Matcher],
    body: bytes,
    properties: bytes | Sequence[bytes],
    topics: Topic | Sequence[Topic],
    lsns: Sequence[int] | None,
    times: Sequence[int] | None,
    ask: Ask,
) -> dict[int, list[int]] | None:
    """The answers of the child for one large body; None when it could not give them."""
    topic = topics if isinstance(topics, Topic) else topics[0]
    values: dict[str, object] = {
        "texts": [one.text for one in filters],
        "body": body,
        "properties": properties if isinstance(properties, bytes) else properties[0],
        "exchange": topic.exchange,
        "name": topic.name,
        "lsn": None if lsns is None else lsns[0],
        "time": None if times is None else times[0],
    }
    try:
        slots = cast("list[int]", ask("judge", values)["slots"])
    except PenstockError as error:
        logger.warning("a body of %d bytes is judged beside the loop: %s", len(body), error)
        return None
    return {slot: [0] for slot in slots}


def judge_there(
    disk: Disk,
    texts: list[str],
    body: memoryview,
    properties: memoryview,
    exchange: str,
    name: str,
    lsn: int | None,
    time: int | None,
) -> dict[str, object]:
    """A job of the bulk child: which of the filters one message passes."""
    found = FilterSet([compile_filter(text) for text in texts]).matches(
        [bytes(body)],
        bytes(properties),
        Topic("", exchange, name),
        lsns=None if lsn is None else [lsn],
        times=None if time is None else [time],
    )
    return {"slots": sorted(found)}
