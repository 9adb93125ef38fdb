"""Publishing: from a batch of messages to rows of the log and arrivals in queues.

A batch is decided as a whole: what of it waits, is a duplicate, or is refused comes first, the rest is stored
(`storing`).  It knows no consumer and no limit of a queue: a queue gets its rows as one chunk and does the rest
(`arrivals`), and what it wants is worked out elsewhere (`routed`).

Transactions and sinks write as a whole or not at all: they look before their first record (`Preflight`).  Nothing is
written by that, and what is told is right until something else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING

from penstock.core.effects import Effect, Question
from penstock.core.outbox import Outbox
from penstock.core.publishing.admission import Admission, Dying, Funeral, Publishers
from penstock.core.publishing.arrivals import Arrivals, Marks
from penstock.core.publishing.body_checks import BodyChecks
from penstock.core.publishing.delayed import PREFIX, by_exchange, later, waiting_rows, with_waiting
from penstock.core.publishing.published import (
    ADMITTED,
    USUAL,
    Banned,
    Published,
    Refusal,
    Terms,
    Traits,
    TraitsMemo,
    fill_times,
)
from penstock.core.publishing.routed import Deduplication, RowRouter
from penstock.core.publishing.storing import Storing
from penstock.core.queue import refusing
from penstock.core.queue.queue import Queue
from penstock.core.queue.refusing import Reckoning, refusal
from penstock.core.sizes import Sizes
from penstock.core.topology.register import Interning
from penstock.core.topology.routing import Plan, Router
from penstock.errors import InvalidArgument, PreconditionFailed, QueueFull, Unroutable
from penstock.expr.batches import header_tables
from penstock.expr.readings import sharing
from penstock.records.chunks import Now
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import NO_ROUTE
from penstock.records.message_bodies import size_of
from penstock.records.message_types import JSON, contradicts, named
from penstock.records.schema import GROUP_BYTES_MAX

if TYPE_CHECKING:
    from penstock.core.sow.keyed import Keyed


QUIET_BYTES = 8_192
"""A batch of no more bytes than this is evaluated as it is published: it cannot take long."""


class Publisher:
    """Decides batches of messages: `publish` in full, the others what it would do."""

    def __init__(
        self, router: Router, interning: Interning, outbox: Outbox[Effect], touched: set[Queue], sizes: Sizes
    ) -> None:
        """touched: where queues that took something are noted.  sizes: told of what is stored."""
        self._router = router
        self.typed = router.typed  # topics and queues whose type a content type may contradict
        self._interning = interning
        self._outbox = outbox
        self.checked = router.checked  # topics whose bodies are held to a JSON Schema
        self.checks = BodyChecks(router)
        self.traits = TraitsMemo()
        self.publishers = Publishers(outbox)
        self.keyed: Keyed | None = None  # once there are SOW topics
        self._rows = RowRouter(router, interning, self.traits)
        self.reach, self.dear = self._rows.reach, self._rows.dear
        self._admission = Admission(outbox)
        self._burying = False
        self._mourning: list[tuple[Queue, Publishes, Sequence[int], bool]] = []  # refused; the server's own rows or not
        self.bury: Callable[[Now, Queue, Publishes, Sequence[int], bool], None] | None = None  # makes dead letters
        self.letters_to: Callable[[Queue, Sequence[Topic]], list[Topic]] | None = None  # where they go
        self._arrivals = Arrivals(outbox, interning, touched, sizes, self.traits)
        self._storing = Storing(router, interning, outbox, self._rows, self._arrivals, self.traits, self._numbered)
        self.put_into = self._storing.put_into
        self.raised = self._storing.raised  # queues that are to have two levels of priorities
        self._deduplication = Deduplication(outbox, self.traits)

    @property
    def transient(self) -> Marks:
        """Stored rows that a restart does not keep."""
        return self._arrivals.transient

    def publish(self, now: Now, batch: Publishes, terms: Terms = USUAL, skip: int = 0) -> Published:
        """Store what somebody wants of a batch and let it arrive.  skip: leading rows that are duplicates.

        Rows that ask for nothing, at queues that ask nothing of newcomers, are stored as they are.  Of any others it is
        asked in turn whether they fit their topic, wait at their exchange, are records of a topic, are duplicates, and
        have room: each step publishes, by the steps after it, the rows that it has no answer for.
        """
        if batch.plain >= 0 and not skip and (terms is USUAL or terms is ADMITTED) and self.keyed is None:
            topic = batch.topics
            if isinstance(topic, Topic):
                plan = topic.plan
                if not isinstance(plan, Plan) or plan.version != self._router.topology.version:
                    plan = self._rows.plan(topic)
                if plan.plain:
                    if plan.route == NO_ROUTE:
                        self._rows.route_of(plan)
                    return self._arrivals.store_plain(batch, topic, plan, now)
        if (self.typed or self.checked) and not terms.trusted and terms.banned is None:
            wrong = self.unfit(batch, skip)
            if wrong:
                return self._without(wrong, now, batch, skip, terms)
        return self._publish_fit(now, batch, skip, terms)

    def _publish_fit(self, now: Now, batch: Publishes, skip: int, terms: Terms) -> Published:
        """The same of rows that are what their topics say."""
        if self._router.delaying and not terms.trusted:
            wait = later(batch, self._router.delaying, self.traits, skip, self._outbox.time)
            if wait:
                return self._part(now, batch, wait, skip, terms._replace(admitted=False))
        if self.keyed is None:
            return self._publish(now, batch, skip, terms)
        if not terms.numbered and (named := self._named(batch)) is not None:
            return self._numbered(now, batch, named, terms)

        def store(some: Publishes, skipped: int) -> Published:
            return self._publish(now, some, skipped, terms._replace(numbered=True))

        return self.keyed.publish(batch, skip, terms.trusted, store)

    def unfit(self, batch: Publishes, skip: int = 0) -> dict[int, Refusal]:
        """The rows whose content type or body is not what their topic says."""
        wrong = self.mistyped(batch, skip) if self.typed else {}
        if not self.checked or batch.checked:
            return wrong

        def passes(row: int) -> bool:
            return row in wrong or (self.keyed is not None and self.keyed.merges(batch, row))

        return {**self.checks.wrong(batch, skip, passes), **wrong}

    def mistyped(self, batch: Publishes, skip: int) -> dict[int, Refusal]:
        """The rows whose content type names another message type than their topic has."""
        asked = {one: self._router.message_type(one.vhost, one.exchange, one.name) for one in batch.distinct_topics}
        kinds = {topic: kind for topic, kind in asked.items() if kind != JSON}
        out: dict[int, Refusal] = {}
        for row in range(skip, len(batch.bodies)) if kinds else ():
            topic = batch.topic_of(row)
            if (kind := kinds.get(topic)) is not None:
                data = batch.properties_of(row)
                told = header_tables(data)[1].get("content_type")
                if (said := contradicts(told, kind)) is not None:
                    out[row] = InvalidArgument(
                        f"content type {told!r} says {said}, and the bodies of topic {topic.name!r} are {named(kind)}"
                    )
        return out

    def _without(self, wrong: Mapping[int, Refusal], now: Now, batch: Publishes, skip: int, terms: Terms) -> Published:
        """Publish the other rows of a batch."""
        rows = [row for row in range(len(batch.bodies)) if row not in wrong]
        if len(rows) <= skip:
            return Published(0, self._outbox.last_lsn, refused=sorted(wrong.items()), repeats=range(skip))
        some = batch.select(rows)
        some.delta = batch.delta
        told = self._publish_fit(now, some, skip, terms).among(rows)
        return replace(told, refused=sorted([*told.refused, *wrong.items()], key=itemgetter(0)))

    def _publish(self, now: Now, batch: Publishes, skip: int, terms: Terms) -> Published:
        """The same of rows that nobody merges and that do not wait."""
        if self._router.deduping and not terms.trusted and not batch.deduplicated:
            with self._shared(batch):
                return self._deduplicate(now, batch, skip, terms)
        if terms.trusted and batch.deduplicated:  # made of a refused row that had a key: a letter takes none
            batch.deduplicated = False
        if self._router.rejecting and (not terms.admitted or self._router.dropping_newest):
            with self._shared(batch):
                return self._admit(now, batch, skip, terms)
        return self._storing.store(now, batch, skip, terms)

    def _shared(self, batch: Publishes) -> AbstractContextManager[None]:
        """What several queues ask of its bodies inside is read once."""
        return sharing(batch, among_several=len(self._router.rating) + len(self._router.keying) > 1)

    def _deduplicate(self, now: Now, batch: Publishes, skip: int, terms: Terms) -> Published:
        """The same while some queue wants no duplicates."""
        if not terms.numbered and (named := self._named(batch)) is not None:
            return self._numbered(now, batch, named, terms)

        def store(some: Publishes, skipped: int, bans: Banned) -> Published:
            some.deduplicated = True
            return self._publish(now, some, skipped, terms._replace(banned=bans or None, numbered=True))

        takers = self._takers(batch, skip, terms, lambda queue: queue.deduplicates)
        if not takers:
            return store(batch, skip, terms.banned or {})
        fill_times(batch, self.traits.each(batch), self._outbox.time)
        dying: list[Queue] = []
        if self._router.rejecting:
            dying = [queue for queue, _ in self._takers(batch, skip, terms, lambda queue: queue.overflow.buries)]
        singly = bool(dying) and self._comes_back(dying, batch, skip, terms)
        return self._deduplication.publish(now, batch, skip, takers, terms.banned, store, terms.admitted, singly=singly)

    def queues_of(self, batch: Publishes) -> set[Queue]:
        """The queues that may take some of a batch, whatever their filters say."""
        topics, properties = batch.topics, batch.properties
        if isinstance(topics, Topic) and isinstance(properties, bytes) and not self.traits[properties].keys:
            plan = self._rows.plan(topics)
            if not plan.by_headers:
                return set(plan.queues)
        return {queue for plan, _ in self._rows.plans_of(batch, 0, True) for queue in plan.queues}

    def wanted(self, topic: Topic) -> bool:
        """Whether some queue takes messages of this topic, or could by their headers, or the topic keeps them."""
        plan = self._rows.plan(topic)
        return bool(plan.queues or plan.keep or plan.by_headers)

    def unwanted(self, batch: Publishes) -> list[int]:
        """The rows of a batch that no queue and no topic wants, by their filters too."""
        return self._rows.unwanted(batch, self.traits.each(batch))

    def let_in(self, now: Now, batch: Publishes) -> tuple[int, Queue | None]:
        """How many rows of a batch, from its first on, may be published now, and which queue holds the next one up.

        None: nobody does; of rows that are left more is known once these are published.
        """
        size = len(batch.bodies)
        if not self._router.blocking:
            return size, None
        traits = self.traits.each(batch)
        fill_times(batch, traits, self._outbox.time)
        wait = later(batch, self._router.delaying, self.traits, 0, self._outbox.time) if self._router.delaying else {}
        stop, by = size, None
        for queue, taken in self._takers(batch, 0, Terms(), lambda queue: queue.overflow.blocks):
            rows = [row for row in taken if row not in wait] if wait else taken
            refusing.settled(queue, now, self._outbox, len(rows))
            first, unknown = refusing.held_up(queue, now, batch, rows)
            if unknown is not None and unknown < stop:
                stop, by = unknown, None
            if first is not None and first < stop:
                stop, by = first, queue
        return stop, by

    def no_room(
        self,
        now: Now,
        batch: Publishes,
        reckoning: Reckoning,
        *,
        trusted: bool = False,
        carbon: bool = True,
        banned: Banned | None = None,
    ) -> dict[int, Queue]:
        """Rows of a batch that cannot be written as a whole, and a queue that refuses each; parameters as in `publish`.

        What is left may be published as `admitted`, if nothing else happens before.
        """
        if not self._router.rejecting:
            return {}
        if not trusted:
            fill_times(batch, self.traits.each(batch), self._outbox.time)
        out: dict[int, Queue] = {}
        terms = Terms(trusted=trusted, carbon=carbon, banned=banned)
        for queue, rows in self._takers(batch, 0, terms, lambda queue: queue.overflow.nacks):
            refusing.settled(queue, now, self._outbox, len(rows))
            for row in reckoning.refused(queue, now, batch, rows):
                out.setdefault(row, queue)
        return out

    def _admit(self, now: Now, batch: Publishes, skip: int, terms: Terms) -> Published:
        """The same while some queue refuses what is over its limits."""
        if not terms.numbered and (named := self._named(batch)) is not None:
            return self._numbered(now, batch, named, terms)

        def store(some: Publishes, skipped: int, bans: Banned) -> Published:
            if bans and (keys := self._router.remembering):  # who sends anew what was refused is heard
                bans = {row: names | keys for row, names in bans.items()}
            known = terms._replace(banned=bans or None, numbered=True, admitted=True)
            return self._storing.store(now, some, skipped, known)

        takers = self._takers(
            batch,
            skip,
            terms,
            lambda queue: (how := queue.overflow).drops_newest or (how.rejects and not terms.admitted),
        )
        if not takers:
            return store(batch, skip, terms.banned or {})
        if not terms.trusted:
            fill_times(batch, self.traits.each(batch), self._outbox.time)
        if not any(queue.overflow.buries for queue, _ in takers):
            return self._admission.publish(now, batch, skip, takers, terms.banned, store)

        def bury(dying: list[Dying]) -> None:
            self._mourning += [(*one, terms.trusted) for one in dying]
            if self._burying:  # what a dead letter's own target refuses comes after it, not within
                return
            self._burying = True
            try:
                while self._mourning:
                    assert self.bury is not None
                    self.bury(now, *self._mourning.pop(0))
            finally:
                self._burying = False
                self._mourning.clear()  # of what a fault has undone nothing is buried later

        def comes_back(dying: Sequence[Queue]) -> bool:
            return self._comes_back(dying, batch, skip, terms)

        self._outbox.begin()
        published = self._admission.publish(now, batch, skip, takers, terms.banned, store, Funeral(bury, comes_back))
        self._outbox.end()
        return published

    def _comes_back(self, dying: Sequence[Queue], batch: Publishes, skip: int, terms: Terms) -> bool:
        """Whether dead letters of what these queues refuse of a batch may come to a queue that takes some of it."""
        topics = list(batch.distinct_topics)
        if any(one.keys for one in self.traits.kinds(batch)) or any(topic.blind for topic in topics):
            return True  # dead letters have these keys, too
        here = {queue for queue, _ in self._takers(batch, skip, terms, lambda _: True)}
        return any(plan.by_headers or not here.isdisjoint(plan.queues) for plan in self._letter_plans(dying, topics))

    def _letter_plans(self, dying: Sequence[Queue], topics: Sequence[Topic]) -> Iterator[Plan]:
        """Where dead letters of what these queues refuse go, and where those go that are refused there."""
        assert self.letters_to is not None
        left, seen = list(dying), set(dying)
        while left:
            for plan in map(self._rows.plan, self.letters_to(left.pop(), topics)):
                yield plan
                further = [queue for queue in plan.queues if queue not in seen and queue.overflow.buries]
                seen.update(further)
                left += further

    def _takers(
        self, batch: Publishes, skip: int, terms: Terms, asked: Callable[[Queue], bool]
    ) -> list[tuple[Queue, Sequence[int]]]:
        """The queues that are asked for, and the rows that each would take."""
        topics, properties = batch.topics, batch.properties
        if isinstance(topics, Topic) and isinstance(properties, bytes) and not terms.banned:
            traits = self.traits[properties]
            if traits.refusal is not None and not terms.trusted:
                return []
            plan = self._rows.plan(topics)
            if not ((terms.carbon and traits.keys) or plan.filtered or plan.by_headers):
                return [(queue, range(skip, len(batch.bodies))) for queue in plan.queues if asked(queue)]
        routed = self._rows.route(batch, self.traits.each(batch), skip, terms)
        self._rows.keep(batch, skip, terms, routed)
        return [(queue, sorted(rows)) for queue, rows in routed.takers.items() if asked(queue)]

    def _part(self, now: Now, batch: Publishes, wait: dict[int, int], skip: int, terms: Terms) -> Published:
        """Some rows wait at their exchange, in its own queue; the others are published as ever."""
        if not terms.numbered and (named := self._named(batch)) is not None:
            return self._numbered(now, batch, named, terms)
        lsns: dict[int, int] = {}
        for (vhost, exchange), rows in by_exchange(batch, wait).items():
            waiting = self._router.queues.find(vhost, PREFIX + exchange)
            assert waiting is not None  # it comes and goes with its exchange
            some = waiting_rows(batch, rows, self.traits, terms.persistent, self._interning.hiding)
            first = self._storing.put_into(now, waiting, some)
            lsns.update(zip(rows, range(first, first + len(rows)), strict=True))
        others = [row for row in range(skip, len(batch.bodies)) if row not in wait]
        rest = None
        if others:
            some = batch.select(others)
            some.delta = batch.delta
            rest = self._publish_fit(now, some, 0, terms._replace(banned=None, numbered=True))
        return with_waiting(lsns, rest, others, skip, self._outbox.last_lsn)

    @property
    def at_once(self) -> int:
        """Bytes of a batch up to which nothing has to be evaluated off the loop."""
        return min(QUIET_BYTES, self.checks.at_once) if self._evaluates else GROUP_BYTES_MAX

    @property
    def _evaluates(self) -> bool:
        router = self._router
        return bool(router.filtering or router.rating or router.keying or router.checked)

    def unjudged(
        self,
        batch: Publishes,
        *,
        skip: int = 0,
        trusted: bool = False,
        carbon: bool = True,
        banned: Banned | None = None,
    ) -> list[Question]:
        """What has to be evaluated off the loop before this batch can be published without holding the loop up.

        Parameters as in `publish`.  When nothing has to, the work that was done is kept on the batch.
        """
        batch.routed = None
        if not self._evaluates or size_of(batch.bodies) <= self.at_once:
            return []
        asked = self._rows.unjudged(batch, skip, Terms(trusted=trusted, carbon=carbon, banned=banned))
        return asked if trusted or not self.checked else [*asked, *self.checks.questions(batch, skip)]

    def _named(self, batch: Publishes) -> list[Traits] | None:
        """The traits of the rows, if some header names a publisher."""
        named = any(one.publisher is not None for one in self.traits.kinds(batch))
        return self.traits.each(batch) if named else None

    def _numbered(self, now: Now, batch: Publishes, traits: list[Traits], terms: Terms) -> Published:
        """Headers name publishers and sequences."""

        def store(part: Publishes) -> Published:
            return self._publish_fit(now, part, 0, terms._replace(numbered=True))

        self._outbox.begin()
        published = self.publishers.publish(batch, traits, store)
        self._outbox.end()
        return published


def refused_headers(publisher: Publisher, batch: Publishes) -> list[tuple[int, Refusal]]:
    """The rows that nothing could make acceptable, for what their headers ask or say."""
    if (publisher.typed or publisher.checked) and (wrong := publisher.unfit(batch)):
        found = {row: one.refusal for row, one in enumerate(publisher.traits.each(batch)) if one.refusal is not None}
        return sorted({**wrong, **found}.items())
    if all(one.refusal is None for one in publisher.traits.kinds(batch)):
        return []
    return [(row, one.refusal) for row, one in enumerate(publisher.traits.each(batch)) if one.refusal is not None]


def judged(publisher: Publisher, batch: Publishes) -> list[tuple[int, Refusal]]:
    """The rows that a publish would refuse whatever room there is."""
    refused, keyed = refused_headers(publisher, batch), publisher.keyed
    return refused if keyed is None else sorted({**dict(keyed.judge(batch)), **dict(refused)}.items())


def refuse_all(refused: Sequence[tuple[int, Refusal]], said: str, *, first: int = 1, of: str = "") -> None:
    """PreconditionFailed if a row is refused.  said: up to its number; first: the number of row 0; of: what follows."""
    if refused:
        row, why = refused[0]
        others = f" ({len(refused) - 1} more are refused)" if len(refused) > 1 else ""
        reason = why.reason if isinstance(why, PreconditionFailed) else why.code
        raise PreconditionFailed(f"{said} {first + row}{of} is refused: {why}{others}", reason=reason)


class Preflight:
    """Batches that become visible together: `look` at all of them, ask for `room`, then write them as `admitted`."""

    def __init__(self, publisher: Publisher, what: str, *, mandatory: bool = False) -> None:
        """what: how a sentence calls it.  mandatory: a topic that nobody keeps is refused too."""
        self._publisher = publisher
        self._what = what
        self._mandatory = mandatory
        self._reckoning = Reckoning()
        self._known: set[Topic] = set()
        self._full: dict[Queue, int] = {}  # messages that have no room
        self.rows = 0  # looked at

    def look(self, now: Now, batch: Publishes) -> None:
        """The next of the batches, in order; nothing is changed.

        Errors: PreconditionFailed for a message that is refused whatever happens; Unroutable for a topic that nobody
        keeps.
        """
        refuse_all(
            judged(self._publisher, batch), f"nothing of {self._what} is visible: its message", first=self.rows + 1
        )
        if self._mandatory:
            self.refuse_unwanted(batch.distinct_topics)
        for queue in self._publisher.no_room(now, batch, self._reckoning).values():
            self._full[queue] = self._full.get(queue, 0) + 1
        self.rows += len(batch)

    def room(self) -> None:
        """Raises unless all that was looked at has room.

        Errors: PreconditionFailed for more than a queue may ever hold; QueueFull for more than it has room for now.
        """
        for queue, count in self._full.items():
            self._refuse_full(queue, count)

    def refuse_unwanted(self, topics: set[Topic]) -> None:
        """Unroutable for a topic that nobody keeps."""
        for topic in topics - self._known:
            if not self._publisher.wanted(topic):
                place = f"{topic.exchange}/{topic.name}" if topic.exchange else topic.name
                raise Unroutable(
                    f"nothing of {self._what} is visible: no queue takes topic '{place}' in vhost '{topic.vhost}' and "
                    "no topic of that name is declared, so its messages would be lost: declare one of them"
                )
        self._known |= topics

    def _refuse_full(self, queue: Queue, count: int) -> None:
        brings = self._reckoning.taken(queue) + count
        why = refusal(queue, count)
        if not queue.ever_holds(brings):
            raise PreconditionFailed(
                f"nothing of {self._what} is visible: it brings {brings} messages to queue '{queue.name}' in "
                f"vhost '{queue.vhost}', which may never hold so much: {queue.limits_told}; raise the limit, or make "
                "batches smaller",
                reason=why.reason,
            )
        raise QueueFull(f"nothing of {self._what} is visible: {why}", reason=why.reason)
