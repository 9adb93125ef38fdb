"""Dead letters: what leaves a queue without success goes to its dead-letter exchange, and sets off actions.

The new rows and the EXPIRE record that names them with their causes are one group, so a crash moves a message or does
not.  Letters of letters come about in later turns, when their bodies have been fetched: nothing here recurses.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import field
from typing import TypeAlias, cast

from penstock.core.acted import Hops, lead, left_over
from penstock.core.action_rules import Happening, Rules
from penstock.core.effects import Act, Effect, Question
from penstock.core.outbox import Outbox
from penstock.core.publishing import Publisher
from penstock.core.publishing.arrivals import Marks
from penstock.core.publishing.delayed import due_rows
from penstock.core.publishing.published import Published, Terms, read_traits
from penstock.core.queue.queue import Letter, Queue
from penstock.core.queue.refusing import Reckoning
from penstock.core.topology.register import Interning
from penstock.errors import ProtocolError
from penstock.records import properties as header_codec
from penstock.records.causes import DUE, MAXLEN, REJECTED, WHY_HEADER, WHY_MOST, amqp_reason
from penstock.records.chunks import Now, pack_pairs
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Rows, Topic
from penstock.records.field_tables import FieldValue, Long, Table, Timestamp, Written
from penstock.records.kinds import Kind
from penstock.records.message_bodies import listed


@dataclass(frozen=True, slots=True)
class Death:
    """One death of one message."""

    queue: str
    reason: str  # in our words
    exchange: str  # that it was published to before
    keys: tuple[str, ...]  # that it was published with: routing key and CC
    time: int  # microseconds since the epoch
    why: str = ""  # in the words of the consumer that refused it, or failed last


def after_death(
    properties: bytes, death: Death, *, own: bool, carbon: bool = True
) -> tuple[bytes, list[tuple[str, str]]]:
    """The header of the dead letter, and its history as (queue, reason), newest first.

    `own`: the header's history was written by this server.  The `expiration` is gone from the result and kept in the
    history.  Headers that cannot be read are replaced by the history alone.  carbon: CC counts, else it goes, or it
    would at the letter's own death.
    """
    written: Written = {}
    try:
        header = header_codec.decode(properties, written)
    except ProtocolError:
        header = header_codec.Properties(delivery_mode=header_codec.PERSISTENT)
    headers: Table = dict(header.headers or {})
    entries = _deaths(headers) if own else []
    if not entries:
        for name in [name for name in headers if name.startswith(("x-first-death-", "x-last-death-"))]:
            del headers[name]
    reason = amqp_reason(death.reason)
    entries.insert(0, _entry(entries, death, reason, header.expiration))
    headers["x-death"] = cast("FieldValue", entries)
    for name, value in (("reason", reason), ("queue", death.queue), ("exchange", death.exchange)):
        headers.setdefault(f"x-first-death-{name}", value)
        headers[f"x-last-death-{name}"] = value
    headers.pop(WHY_HEADER, None)
    if not carbon:
        headers.pop("CC", None)
    if death.why:
        headers[WHY_HEADER] = death.why[:WHY_MOST]
    header.headers = headers
    header.expiration = None
    history = [(str(one.get("queue")), str(one.get("reason"))) for one in entries]
    return header_codec.encode(header, written), history


def _deaths(headers: Table) -> list[Table]:
    """The history that a header has, with counts of 64 bits, as they were written."""
    past = headers.get("x-death")
    entries = [entry for entry in past if isinstance(entry, dict)] if isinstance(past, list) else []
    for entry in entries:
        if isinstance(count := entry.get("count"), int):
            entry["count"] = Long(count)
    return entries


def _entry(entries: list[Table], death: Death, reason: str, expiration: str | None) -> Table:
    """What a history says of this death: of one like it, which leaves the entries, once more."""
    for old in entries:
        if old.get("queue") == death.queue and old.get("reason") == reason:
            entries.remove(old)
            count = old.get("count")
            old["count"] = Long(count + 1 if isinstance(count, int) else 1)
            return old
    entry: Table = {
        "count": Long(1),
        "reason": reason,
        "queue": death.queue,
        "time": Timestamp(death.time // 1_000_000),
        "exchange": death.exchange,
        "routing-keys": cast("FieldValue", list(death.keys)),
    }
    if expiration is not None:
        entry["original-expiration"] = expiration
    return entry


def is_cycle(target: str, history: list[tuple[str, str]]) -> bool:
    """Whether a dead letter must not go to that queue: it died there before, and nobody has rejected it since."""
    for queue, reason in history:
        if reason == REJECTED:
            return False
        if queue == target:
            return True
    return False


_PERSISTENT_HEADER = header_codec.encode(header_codec.Properties(delivery_mode=header_codec.PERSISTENT))

Find = Callable[[str, str, str], "Topic | None"]


@dataclass(slots=True)
class _Letters:
    """New rows of one target, with the rows they come from."""

    causes: list[int]  # LSNs
    topics: list[Topic]
    properties: list[bytes]
    bodies: list[bytes]
    banned: dict[int, frozenset[str]]  # row -> names of queues that would make a cycle

    def prepared(self, *, carbon: bool) -> Prepared:
        size = sum(map(len, self.bodies)) + sum(map(len, self.properties))
        batch = Publishes(self.topics, self.properties, self.bodies, size=size)
        return Prepared(batch, self.causes, self.banned, carbon)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """New rows that are not written yet."""

    batch: Publishes
    causes: list[int]  # by row
    banned: dict[int, frozenset[str]]
    carbon: bool  # CC counts; BCC is in the topics
    acts: list[Act] = field(default_factory=list[Act])  # what actions do beyond publishing
    hops: bool = False  # the rows are those of actions
    onward: bool = False  # no dead letters: they waited at an exchange, which routes them now

    def of(self, lsns: Container[int]) -> Prepared:
        """What comes of these causes alone."""
        rows = [row for row, cause in enumerate(self.causes) if cause in lsns]
        banned = {at: self.banned[row] for at, row in enumerate(rows) if row in self.banned}
        batch = self.batch.select(rows) if rows else Publishes([], [], [])
        acts = [act for act in self.acts if act.happening.lsn in lsns]
        return Prepared(batch, [self.causes[row] for row in rows], banned, self.carbon, acts, self.hops, self.onward)


Buried: TypeAlias = "tuple[Letter, list[Prepared]]"
"""Messages that end together, and what they become."""


@dataclass(eq=False)
class DeadLetters:
    """Writes the group that ends messages of a queue."""

    _outbox: Outbox[Effect]
    _publisher: Publisher
    _rules: Rules
    _hops: Hops
    _find_topic: Find
    _interning: Interning
    _origin: int
    _instance: str
    letters: Marks = field(default_factory=Marks, init=False)  # rows that the server wrote as dead letters
    without_place: int = field(default=0, init=False)  # letters that a target had no room for, each time tried
    counts: dict[str, int] = field(default_factory=dict[str, int], init=False)  # died in this process, by AMQP's reason

    def __post_init__(self) -> None:
        self._publisher.bury = self.refused
        self._publisher.letters_to = self._topics_of_refused

    def prepare(self, now: Now, queue: Queue, rows: Rows, letter: Letter) -> list[Prepared]:
        """What these messages become, in the order they died; nothing is written yet."""
        self._outbox.at(now)
        at = {lsn: row for row, lsn in enumerate(rows.lsns)}
        order = [at[lsn] for run in letter.runs for lsn in run.chunk if lsn in at]
        out: list[Prepared] = []
        if queue.onward is not None:
            return self._onward(queue, queue.onward, rows, order, letter.reason)
        target = queue.settings.letters_to(letter.reason)
        if target is not None:
            out.append(self._to_exchange(queue, *target, rows, order, letter))
        if queue.actions:
            out.append(self._to_actions(queue, rows, order, letter))
        return [one for one in out if one.causes or one.acts]

    def unjudged(self, prepared: Sequence[Prepared]) -> list[tuple[Publishes, list[Question]]]:
        """What content filters have to judge of them off the loop, before they are written."""
        return [
            (one.batch, questions)
            for one in prepared
            if (
                questions := self._publisher.unjudged(
                    one.batch, trusted=not one.onward, carbon=one.carbon, banned=one.banned or None
                )
            )
        ]

    def without_room(self, now: Now, prepared: Sequence[Prepared], reckoning: Reckoning) -> dict[int, Queue]:
        """The causes of rows that a target refuses, and which; nothing is written if there are any."""
        out: dict[int, Queue] = {}
        for one in prepared:
            full = self._publisher.no_room(
                now, one.batch, reckoning, trusted=True, carbon=one.carbon, banned=one.banned or None
            )
            out.update({one.causes[row]: queue for row, queue in full.items()})
        return out

    def write(self, now: Now, queue: Queue, prepared: Sequence[Prepared], letter: Letter) -> None:
        """The group that ends these messages, all of which have room; the caller opens and closes it."""
        now = self._outbox.at(now)
        dead = [pair for one in prepared for pair in self._publish(now, one)]
        header = letter.header()
        if dead and queue.onward is not None:
            header["sent"] = dead
        elif dead:
            header["dead"] = dead
            reason = amqp_reason(letter.reason)
            self.counts[reason] = self.counts.get(reason, 0) + len({cause for cause, _ in dead})
        if left := left_over(act for one in prepared for act in one.acts):
            header["left"] = left
        lsn = self._outbox.record(Kind.EXPIRE, queue.name, header, pack_pairs(queue.id, letter.pairs))
        for one in prepared:
            for act in one.acts:
                act.after = lsn
                self._outbox.effect(act)

    def refused(self, now: Now, queue: Queue, batch: Publishes, rows: Sequence[int], own: bool) -> None:
        """A queue refused these rows of a batch, and they become dead letters: the record names them, for they had no
        place in it that it could name.  `own`: the server made them, so the history in their headers counts.
        """
        target = queue.settings.letters_to(MAXLEN)
        if target is None:
            return
        exchange, key = target
        letters = _Letters([], [], [], [], {})
        bodies = listed(batch.bodies)
        for row in rows:
            came_by, data = batch.topic_of(row), batch.properties_of(row)
            topic = self._find_topic(queue.vhost, exchange, came_by.name if key is None else key)
            if topic is None:
                continue
            traits = self._publisher.traits[data]
            death = Death(queue.name, MAXLEN, came_by.exchange, (came_by.name, *traits.shown), self._outbox.time)
            header, history = after_death(traits.cleaned or data, death, own=own, carbon=key is None)
            letters.banned[len(letters.causes)] = frozenset(name for name, _ in history if is_cycle(name, history))
            letters.causes.append(0)
            blind = traits.blind or self._interning.blind_of(came_by)
            letters.topics.append(topic if key is not None else topic.with_blind(blind))
            letters.properties.append(header)
            letters.bodies.append(bodies[row])
        published = self._published(now, one := letters.prepared(carbon=key is None), admitted=False)
        new = [lsn for _, lsn in self._named(one, published)]
        if away := len({row for row, _ in published.refused}.union(published.dropped)):
            self.without_place += away
            queue.counted(now.mono).letters_refused += away
        if new:
            self.counts[MAXLEN] = self.counts.get(MAXLEN, 0) + len(new)
            self._outbox.record(Kind.EXPIRE, queue.name, {"reason": MAXLEN, "refused": new}, pack_pairs(queue.id, ()))

    def _topics_of_refused(self, queue: Queue, topics: Sequence[Topic]) -> list[Topic]:
        """Topics under which dead letters of what a queue refuses, of these topics, are published."""
        target = queue.settings.letters_to(MAXLEN)
        if target is None:
            return []
        exchange, key = target
        keys = {topic.name for topic in topics} if key is None else {key}
        found = [self._find_topic(queue.vhost, exchange, one) for one in keys]
        return [topic for topic in found if topic is not None]

    def _onward(self, queue: Queue, exchange: str, rows: Rows, order: Sequence[int], why: str) -> list[Prepared]:
        """What was due at an exchange is published there; what ended otherwise is not."""
        if why != DUE:
            return []
        causes, batch = due_rows(
            rows,
            order,
            lambda key: self._find_topic(queue.vhost, exchange, key),
            exchange,
            self._outbox.time,
            self._interning.blind_of,
        )
        return [] if batch is None else [Prepared(batch, causes, {}, carbon=True, onward=True)]

    def _to_exchange(
        self, queue: Queue, exchange: str, key: str | None, rows: Rows, order: Sequence[int], letter: Letter
    ) -> Prepared:
        letters = _Letters([], [], [], [], {})
        for i in order:
            lsn = rows.lsns[i]
            came_by = rows.topics[i]
            topic = self._find_topic(queue.vhost, exchange, came_by.name if key is None else key)
            if topic is None:
                continue  # the exchange is missing now; it is looked up at each death
            carbon = read_traits(rows.properties[i]).keys
            keys = came_by.name, *carbon
            death = Death(queue.name, letter.reason, came_by.exchange, keys, self._outbox.time, letter.why)
            header, history = after_death(rows.properties[i], death, own=self.letters.has(lsn), carbon=key is None)
            if amqp_reason(letter.reason) != REJECTED:
                letters.banned[len(letters.causes)] = frozenset(name for name, _ in history if is_cycle(name, history))
            letters.causes.append(lsn)
            blind = self._interning.blind_of(came_by)
            letters.topics.append(topic if key is not None else topic.with_blind(blind))
            letters.properties.append(header)
            letters.bodies.append(rows.bodies[i])
        return letters.prepared(carbon=key is None)

    def _to_actions(self, queue: Queue, rows: Rows, order: Sequence[int], letter: Letter) -> Prepared:
        happenings = [
            Happening(
                self._outbox.time,
                self._instance,
                queue.name,
                rows.bodies[i],
                rows.properties[i],
                letter.reason,
                f"{self._origin}|{rows.lsns[i]}|",
                stamp=rows.times[i],
                lsn=rows.lsns[i],
                why=letter.why,
            )
            for i in order
        ]
        rules = self._rules.expiring(queue.vhost, queue.name, letter.reason.split(","))
        led = lead(rules, happenings, self._find_topic, self._hops)
        count = len(led.causes)
        letters = _Letters(led.causes, led.topics, [_PERSISTENT_HEADER] * count, led.bodies, {})
        prepared = letters.prepared(carbon=False)
        return Prepared(prepared.batch, prepared.causes, prepared.banned, carbon=False, acts=led.acts, hops=True)

    def _publish(self, now: Now, one: Prepared) -> list[tuple[int, int]]:
        """Write the rows that some queue or topic wants; returns (cause, new) pairs."""
        return self._named(one, self._published(now, one))

    def _published(self, now: Now, one: Prepared, *, admitted: bool = True) -> Published:
        """Write the rows that some queue or topic wants."""
        if not one.causes:
            return Published(0, 0)
        if one.onward:
            return self._publisher.publish(now, one.batch, Terms(numbered=True, admitted=True))
        terms = Terms(
            trusted=True, carbon=one.carbon, banned=one.banned, numbered=True, admitted=admitted
        )  # fmt: skip
        return self._publisher.publish(now, one.batch, terms)

    def _named(self, one: Prepared, published: Published) -> list[tuple[int, int]]:
        """What was written is a dead letter from now on; (cause, new) pairs."""
        if not published.stored:
            return []
        causes = [one.causes[row] for row in published.stored_rows(len(one.causes))]
        lsns = published.positions
        for lsn, cause in zip(lsns, causes, strict=True):  # a dead letter goes on counting, or a ring never ends
            if hops := self._hops.of(cause) + one.hops:
                self._hops.add(lsn, lsn + 1, hops)
        if one.onward:
            return list(zip(causes, lsns, strict=True))
        self.vouch((lsns,) if isinstance(lsns, range) else (range(lsn, lsn + 1) for lsn in lsns))
        return list(zip(causes, lsns, strict=True))

    def moved(self, lsns: Sequence[int], first: int) -> list[int]:
        """These were published again, from `first` on, with the headers that they had; which are dead letters still."""
        flags = [self.letters.has(lsn) for lsn in lsns]
        if not any(flags):
            return []
        self.letters.part()
        self.letters.add_rows(first, flags)
        return [first + place for place, flag in enumerate(flags) if flag]

    def vouch(self, spans: Iterable[range]) -> None:
        """What was published last, and stands there, are dead letters that a site wrote."""
        self.letters.part()
        for span in spans:
            self.letters.add(span.start, span.stop)
