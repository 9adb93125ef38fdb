"""One batch for SOW topics, before it is stored: the key of each row, its deadline, its delta merged.

It changes the batch (bodies of deltas, deadlines) and remembers which row is of which key; nothing is written here.
What was worked out about large bodies before they are published is known by the object that holds the body, which the
door keeps while it waits; the oldest answers that nobody fetched are dropped first, and worked out again if needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Protocol, TypeAlias

from penstock.core.publishing.body_checks import BodyChecks
from penstock.core.publishing.published import DELTA, Refusal, Traits, TraitsMemo
from penstock.core.sow.holding import KeyRule, Sow, Sows
from penstock.core.sow.select import merge
from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Topic, measured
from penstock.records.message_bodies import lengths, listed
from penstock.records.message_types import MessageType

KEPT_BYTES = 64 << 20

Answer: TypeAlias = "int | str | bytes | InvalidArgument"
"""A key's number, why there is none, a merged body, or why it cannot be merged."""


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be worked out off the loop."""

    body: bytes
    mark: int  # what about it: the id of a SOW topic, for the key; minus the LSN of a record, for the merged body
    work: Callable[[], Answer]


class Worked:
    """What was worked out about bodies, bounded in bytes; the oldest answer goes first."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[bytes, Answer]] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._known)

    def get(self, body: bytes, mark: int) -> Answer | None:
        """What is known; None: nothing."""
        found = self._known.get((id(body), mark))
        return found[1] if found is not None and found[0] is body else None

    def put(self, body: bytes, mark: int, answer: Answer) -> None:
        self.forget(body, mark)
        self._known[id(body), mark] = body, answer
        self._bytes += _size_of(body, answer)
        while self._bytes > KEPT_BYTES and len(self._known) > 1:
            place, (old, about) = next(iter(self._known.items()))
            del self._known[place]
            self._bytes -= _size_of(old, about)

    def forget(self, body: bytes, mark: int) -> None:
        """The answer was used, and nobody asks for it again."""
        found = self._known.pop((id(body), mark), None)
        if found is not None:
            self._bytes -= _size_of(*found)


def _size_of(body: bytes, answer: Answer) -> int:
    return len(body) + (len(answer) if isinstance(answer, bytes) else 0)


class Bodies(Protocol):
    """Bodies of messages by LSN, as far as they are at hand."""

    def has(self, lsn: int) -> bool:
        """Whether `get` knows the message, be it that it cannot be read."""
        ...

    def get(self, lsn: int) -> bytes | None:
        """The body of a message; None when it is not at hand."""
        ...

    def keep(self, lsn: int, body: bytes | None) -> None:
        """A body that may be asked for again."""


class Nothing:
    """Stands for `Bodies` where nobody has any."""

    def has(self, lsn: int) -> bool:
        return False

    def get(self, lsn: int) -> bytes | None:
        return None

    def keep(self, lsn: int, body: bytes | None) -> None:
        """Not kept: nobody would ask here."""


STEPS_MOST = 1 << 24
"""Of costly schemas, for what the deltas of a batch make of their records: they are looked at on the loop."""

SOW_KEY = "x-sow-key"
"""The header with the key of a message, where its publisher gives it."""


class KeyedRows:
    """Which rows of a batch are records of SOW topics, and of which key."""

    def __init__(self, traits: TraitsMemo, checks: BodyChecks | None = None) -> None:
        self.checks = checks
        self.sows = Sows()
        self.bodies: Bodies = Nothing()  # of present records, as far as they are at hand
        self.worked = Worked()
        self.traits = traits

    def merges(self, batch: Publishes, row: int) -> bool:
        """Whether a row is a delta to a record."""
        topic = batch.topic_of(row)
        sow = self.sows.by_name.get((topic.vhost, topic.exchange, topic.name))
        return sow is not None and is_delta(batch, self.traits[batch.properties_of(row)])

    def lacking(self, batch: Publishes) -> list[int]:
        """LSNs of present records whose bodies a delta of this batch needs and `bodies` has not, ascending."""
        if not any(is_delta(batch, traits) for traits in self.traits.kinds(batch)):
            return []
        topics = self._topics(batch)
        out, known = set[int](), set[tuple[int, int]]()
        whole = listed(batch.bodies) if topics else []
        for row, sow, traits in self.rows_of(batch, topics):
            number = self.number(sow, batch, row, whole[row], traits)
            if isinstance(number, str):
                continue
            if (sow.id, number) not in known and is_delta(batch, traits):
                lsn = sow.index.get(number)
                if lsn and not self.bodies.has(lsn):
                    out.add(lsn)
            known.add((sow.id, number))
        return sorted(out)

    def number(self, sow: Sow, batch: Publishes, row: int, body: bytes, traits: Traits) -> int | str:
        """The number of the key of a row with this body; a sentence if it has none."""
        if self.worked:
            known = self.worked.get(body, sow.id)
            if isinstance(known, int | str):
                return known
        return number_of_row(sow, body, batch.properties_of(row), traits)

    def _large_merge(self, lsn: int, body: bytes, rule: KeyRule) -> Iterator[Job]:
        """The merge of a delta with this record, if the two are large and it was not worked out before."""
        record = self.bodies.get(lsn) if lsn else None
        if record is not None and len(record) + len(body) > rule.body_most and self.worked.get(body, -lsn) is None:
            yield Job(body, -lsn, partial(_tried, record, body, rule.message_type))

    def heavy(self, batch: Publishes, *, merging: bool) -> list[Job]:
        """What is to be worked out off the loop before this batch is published: keys of large bodies; when these are
        known and nothing is lacking, merging, the deltas among them.
        """
        topics = self._topics(batch)
        out: list[Job] = []
        if not topics:
            return out
        if not merging and lengths(batch.bodies).max(initial=0) <= min(sow.rule.body_most for sow in topics.values()):
            return out
        whole = listed(batch.bodies)
        for row, sow, traits in self.rows_of(batch, topics):
            body = whole[row]
            if not merging:
                rule = sow.rule
                if len(body) > rule.body_most and not rule.given and self.worked.get(body, sow.id) is None:
                    out.append(Job(body, sow.id, partial(rule.of_body, body, batch.properties_of(row))))
            elif is_delta(batch, traits) and isinstance(number := self.number(sow, batch, row, body, traits), int):
                out += self._large_merge(sow.index.get(number), body, sow.rule)
        if out:
            batch.bodies = whole  # for good: an answer is found by the object that it is about
        return out

    def ahead(self, batch: Publishes) -> Publishes:
        """What filters see of a batch of which nothing is `heavy` any more: with large deltas merged, if it has some.

        Answers that are put on it hold for the batch as long as what was merged stays (`Work`).
        """
        topics = self._topics(batch)
        if not topics or batch.delta is False or not self.worked:
            return batch
        whole = listed(batch.bodies)
        merged: dict[int, bytes] = {}
        for row, sow, traits in self.rows_of(batch, topics):
            if not is_delta(batch, traits):
                continue
            if isinstance(number := self.number(sow, batch, row, whole[row], traits), int):
                known = self.worked.get(whole[row], -sow.index.get(number))
                if isinstance(known, bytes):
                    merged[row] = known
        if not merged:
            return batch
        bodies = [merged.get(row, body) for row, body in enumerate(whole)]
        held = batch.ahead
        if held is None or any(old is not new for old, new in zip(listed(held.bodies), bodies, strict=True)):
            held = batch.ahead = replace(batch, bodies=bodies, judged=None, routed=None, ahead=None)
        return held

    def judge(self, batch: Publishes) -> list[tuple[int, Refusal]]:
        """The rows that have not the key of their topic."""
        topics = self._topics(batch)
        if not topics:
            return []
        bodies = listed(batch.bodies)
        every = self.rows_of(batch, topics)
        found = ((row, sow, self.number(sow, batch, row, bodies[row], traits)) for row, sow, traits in every)
        return [(row, keyless(sow, number)) for row, sow, number in found if isinstance(number, str)]

    def _topics(self, batch: Publishes) -> Mapping[Topic, Sow]:
        by_name = self.sows.by_name
        found = ((topic, by_name.get((topic.vhost, topic.exchange, topic.name))) for topic in batch.distinct_topics)
        return {topic: sow for topic, sow in found if sow is not None}

    def rows_of(
        self, batch: Publishes, topics: Mapping[Topic, Sow], skip: int = 0
    ) -> Iterator[tuple[int, Sow, Traits]]:
        """The rows of SOW topics with what their headers ask for."""
        memo = self.traits
        for row in range(skip, len(batch.bodies)):
            sow = topics.get(batch.topic_of(row))
            if sow is not None:
                yield row, sow, memo[batch.properties_of(row)]


class Work:
    """One batch: what its rows of SOW topics become."""

    def __init__(
        self, keyed: KeyedRows, batch: Publishes, topics: Mapping[Topic, Sow], skip: int, trusted: bool
    ) -> None:
        self.batch = batch
        self.numbers: dict[int, int] = {}  # by row
        self.rows: dict[Sow, list[int]] = {}
        self.refused: list[tuple[int, Refusal]] = []
        self.merged = set[int]()  # rows
        self._steps = 0  # of schemas, for what deltas made of records
        self._keyed = keyed
        self._trusted = trusted
        bodies = listed(batch.bodies)
        latest: dict[tuple[int, int], bytes] = {}  # bodies of this batch by topic and key, while there are deltas
        merging = False
        for row, sow, traits in keyed.rows_of(batch, topics, skip):
            body = bodies[row]
            number = keyed.number(sow, batch, row, body, traits)
            if isinstance(number, str):
                if not trusted:  # a dead letter without the key is a message and no record: nobody hears of a refusal
                    self.refused.append((row, keyless(sow, number)))
                continue
            if not trusted and is_delta(batch, traits):
                if not merging:
                    merging = True
                    bodies = batch.bodies = list(bodies)
                    latest.update({(one.id, self.numbers[at]): bodies[at] for one, rows in self.rows.items()
                                   for at in rows})  # fmt: skip
                try:
                    body = bodies[row] = self._merged(sow, number, body, latest.get((sow.id, number)))
                except InvalidArgument as refusal:
                    self.refused.append((row, InvalidArgument(f"topic {sow.name!r}: {refusal}")))
                    continue
                if (unfit := self._unfit(row, body)) is not None:
                    self.refused.append((row, unfit))
                    continue
                self.merged.add(row)
            if merging:
                latest[sow.id, number] = body
            if keyed.worked:
                keyed.worked.forget(bodies[row], sow.id)
            self.numbers[row] = number
            self.rows.setdefault(sow, []).append(row)
        if merging:  # what was judged were the deltas
            batch.judged = _judged(batch.ahead, listed(batch.bodies))
            batch.routed = batch.ahead = None
            batch.size = measured(batch.bodies, batch.properties)

    def _unfit(self, row: int, body: bytes) -> Refusal | None:
        checks, topic = self._keyed.checks, self.batch.topic_of(row)
        if checks is None:
            return None
        self._steps += checks.steps(topic, body)
        if self._steps > STEPS_MOST:
            return InvalidArgument(
                f"topic {topic.name!r}: what the deltas of one batch make of their records would take {self._steps} "
                f"steps of its schema, and {STEPS_MOST} are made: publish fewer at a time, or whole records"
            )
        return checks.of_body(topic, body, self.batch.properties_of(row))

    def _merged(self, sow: Sow, number: int, delta: bytes, latest: bytes | None) -> bytes:
        if latest is None:
            lsn = sow.index.get(number)
            if not lsn:
                return merge(None, delta, sow.rule.message_type)
            worked = self._keyed.worked
            known = worked.get(delta, -lsn)
            if known is not None:
                worked.forget(delta, -lsn)
            if isinstance(known, bytes):
                return known
            if isinstance(known, InvalidArgument):
                raise known
            latest = self._keyed.bodies.get(lsn)
            if latest is None:
                raise InvalidArgument(f"a delta cannot be merged: the record at LSN {lsn} is not at hand")
        return merge(latest, delta, sow.rule.message_type)

    def sows(self) -> list[Sow]:
        return sorted(self.rows, key=attrgetter("id"))

    def stamp(self, time: int) -> None:
        """Rows without an expiration of their own get their topic's, before they are logged."""
        batch, keyed = self.batch, self._keyed
        if batch.expires_at is not None:
            column = list(batch.expires_at)
        elif self._trusted:
            column = [0] * len(batch.bodies)
        else:
            column = [0 if one.ttl is None else time + one.ttl for one in keyed.traits.each(batch)]
        for sow, rows in self.rows.items():
            if sow.expiration:
                for row in rows:
                    column[row] = column[row] or time + sow.expiration
        if any(column):
            batch.expires_at = column


def _judged(ahead: Publishes | None, bodies: list[bytes]) -> dict[str, dict[int, int]] | None:
    """What filters said of rows as they are now, merged."""
    if ahead is None or ahead.judged is None:
        return None
    seen = listed(ahead.bodies)
    return {
        text: {row: answer for row, answer in answers.items() if seen[row] is bodies[row]}
        for text, answers in ahead.judged.items()
    }


def number_of_row(sow: Sow, body: bytes, properties: bytes, traits: Traits) -> int | str:
    """The number of a row's key; a sentence if it has none."""
    if not sow.rule.given:
        return sow.rule.of_body(body, properties)
    key = None if traits.headers is None else traits.headers.get(SOW_KEY)
    if not isinstance(key, str):
        return f"its publisher gives the key of each message, as text in the header '{SOW_KEY}'; there is none"
    return sow.rule.of_text(key)


def is_delta(batch: Publishes, traits: Traits) -> bool:
    if batch.delta is not None:
        return batch.delta
    return traits.headers is not None and traits.headers.get(DELTA) is True


def keyless(sow: Sow, why: str) -> InvalidArgument:
    return InvalidArgument(f"topic {sow.name!r}: {why}")


def _tried(record: bytes, delta: bytes, kind: MessageType) -> bytes | InvalidArgument:
    try:
        return merge(record, delta, kind)
    except InvalidArgument as refusal:
        return refusal
