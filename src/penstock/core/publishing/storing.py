"""Rows are stored and arrive in their queues: from routes and traits to a publish record, batch by batch.

Where all rows share one topic and one header the work is the same for one row and ten thousand; otherwise rows are
grouped by topic.  Rows that nobody wants are left out of what is stored.  Whether they may be stored is decided before
(`publishing`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain
from typing import TypeAlias

from penstock.core.effects import Effect, Reply
from penstock.core.outbox import Outbox
from penstock.core.publishing.arrivals import NO_BARRIERS, Arrivals
from penstock.core.publishing.published import (
    Published,
    Terms,
    Traits,
    TraitsMemo,
    banned_in,
    fill_times,
    joined,
    transient_of,
)
from penstock.core.publishing.routed import Routed, RowRouter, by_topic
from penstock.core.queue.queue import Queue
from penstock.core.topology.register import DEFAULT_VHOST, Interning
from penstock.core.topology.routing import Plan, Router
from penstock.records.chunks import Chunk, Now
from penstock.records.dataclass import dataclass
from penstock.records.declared_types import HIGH_PRIORITY
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import NO_ROUTE, NO_VIA
from penstock.records.message_bodies import size_of
from penstock.records.one_or_each import each, one_or_each
from penstock.records.schema import GROUP_BYTES_MAX

Numbered: TypeAlias = Callable[[Now, Publishes, list[Traits], Terms], Published]
"""Publishes rows whose headers name publishers and sequences."""


PART_BYTES = GROUP_BYTES_MAX // 2
"""More than this is stored in parts where something may give way to it."""


def _parts(batch: Publishes, rows: range) -> Iterator[range]:
    """Rows in parts of at most so many bytes; a row that is larger is one."""
    start, size = rows.start, 0
    for row in rows:
        weight = len(batch.bodies[row]) + len(batch.properties_of(row))
        if size and size + weight > PART_BYTES:
            yield range(start, row)
            start, size = row, 0
        size += weight
    yield range(start, rows.stop)


def _says_all(plan: Plan) -> bool:
    """Whether somebody wants the topic's messages, and its plan alone says who."""
    return bool(not (plan.filtered or plan.by_headers) and (plan.queues or plan.keep))


@dataclass(eq=False)
class Storing:
    """Stores batches that nothing refuses any more, by the shortest way that their headers and topics allow."""

    _router: Router
    _interning: Interning
    _outbox: Outbox[Effect]
    _rows: RowRouter
    _arrivals: Arrivals
    traits: TraitsMemo
    _numbered: Numbered
    raised: set[Queue] = field(default_factory=set[Queue], init=False)
    """Took a message of a high priority, and have one level yet."""

    def store(self, now: Now, batch: Publishes, skip: int, terms: Terms) -> Published:
        """Store what somebody wants of a batch and let it arrive; `skip` leading rows are duplicates.

        What gives way to the rows, and their keys, are in one group with them; where something may, a batch too large
        for that is stored in parts.
        """
        rows = range(skip, len(batch.bodies))
        if not self._router.limited or len(rows) < 2 or (batch.size or size_of(batch.bodies)) <= PART_BYTES:
            published = self._stored(now, batch, skip, terms)
            batch.judged = None  # nobody asks again, and the batch may be kept for its bodies
            return published
        parts: list[Published] = []
        for some in _parts(batch, rows):
            bans = banned_in(some, terms.banned) or None
            parts.append(self._stored(now, batch.select(some), 0, terms._replace(banned=bans)).among(some))
        return joined(parts, skip, self._outbox.last_lsn)

    def _stored(self, now: Now, batch: Publishes, skip: int, terms: Terms) -> Published:
        size = len(batch.bodies)
        topics, properties, trusted = batch.topics, batch.properties, terms.trusted
        if skip == 0 and not terms.banned and isinstance(topics, Topic) and isinstance(properties, bytes):
            traits = self.traits.uniform(batch, properties)
            if traits.refusal is not None and not trusted:
                return Published(0, self._outbox.last_lsn, refused=[(row, traits.refusal) for row in range(size)])
            if not (terms.carbon and traits.keys) and (trusted or not traits.cleaned):
                plan = self._rows.plan(topics)
                if _says_all(plan):
                    return self._uniform(now, batch, plan, traits, terms.persistent, trusted)
        return self._mixed(now, batch, skip, terms)

    # one topic, one header, no filter: nothing is done row by row

    def _uniform(
        self, now: Now, batch: Publishes, plan: Plan, traits: Traits, persistent: bool | None, trusted: bool
    ) -> Published:
        size = len(batch.bodies)
        if not traits.plain and not trusted:
            fill_times(batch, [traits] * size, self._outbox.time)
        route = self._rows.route_of(plan)
        topic = batch.topics
        assert isinstance(topic, Topic)
        self._interning.place(topic)
        queues = plan.queues
        batch.routes = route
        batch.wanted = size * len(queues)
        batch.transient = traits.transient if persistent is None else not persistent
        if self._router.persisting and batch.transient:
            self._persist(batch, [(queue, range(size)) for queue in queues])
        grouped = bool(self._router.limited) and self._makes_room(batch, [(queue, size) for queue in queues])
        if grouped:
            self._outbox.begin()
        first = self._arrivals.store(batch, [(queue, None) for queue in queues] if route == NO_ROUTE else ())
        self._arrivals.arrive_in_each(queues, now, batch)
        if batch.priority is not None and self._router.leveling:
            self._raise([(queue, range(size)) for queue in queues], batch.priority)
        if grouped:
            self._outbox.end()
        return Published(first, first + size - 1, stored=size)

    # many topics, but nothing else to look at: a few steps for each topic, two list comprehensions for the rows

    def _by_topic(self, now: Now, batch: Publishes, traits: list[Traits], persistent: bool | None) -> Published | None:
        """None when some topic needs a closer look; nothing is written then."""
        topics = batch.topics
        groups = by_topic(topics, len(traits))
        plans = self._plain_plans(groups)
        if plans is None:
            return None
        takers: dict[Queue, list[int]] = {}
        shared: set[Queue] = set()
        wanted = 0
        place = self._interning.place
        for (topic, rows), plan in zip(groups.items(), plans, strict=True):
            if topic.via == NO_VIA and (topic.exchange or topic.vhost != DEFAULT_VHOST or topic.blind):
                place(topic)
            queues = plan.queues
            wanted += len(rows) * len(queues)
            for queue in queues:
                if queue in shared:
                    takers[queue] += rows
                elif queue in takers:
                    takers[queue] = takers[queue] + rows  # its own from now on
                    shared.add(queue)
                else:
                    takers[queue] = rows
        batch.wanted = wanted
        batch.routes = plans[0].route
        if isinstance(topics, list) and len({plan.route for plan in plans}) > 1:
            batch.routes = [topic.plan.route for topic in topics]  # type: ignore[attr-defined]  # of `_plain_plans`
        batch.transient = transient_of(traits, persistent)
        for queue in shared:
            takers[queue].sort()
        first = self._into(now, batch, list(takers.items()))
        return Published(first, first + len(traits) - 1, stored=len(traits))

    def _plain_plans(self, topics: Iterable[Topic]) -> list[Plan] | None:
        """The plan of each topic, with its route; None when one asks more than its name, or there is no route left."""
        out: list[Plan] = []
        version = self._router.version
        for topic in topics:
            plan = topic.plan
            if not isinstance(plan, Plan) or plan.version != version:
                plan = self._rows.plan(topic)
            if (plan.route == NO_ROUTE or plan.filtered or plan.by_headers) and not self._is_plain(plan):
                return None
            out.append(plan)
        return out

    def _is_plain(self, plan: Plan) -> bool:
        """Whether a plan says all of its topic's messages, and has a route if it leads anywhere."""
        return _says_all(plan) and (self._rows.route_of(plan) != NO_ROUTE or not plan.queues)

    # anything else

    def _mixed(self, now: Now, batch: Publishes, skip: int, terms: Terms) -> Published:
        traits = self.traits.each(batch)
        kinds = set(traits)
        plain = not skip and not terms.banned and all(one.plain for one in kinds)
        if plain and (published := self._by_topic(now, batch, traits, terms.persistent)) is not None:
            return published
        if not terms.numbered and any(one.publisher is not None for one in kinds):
            return self._numbered(now, batch, traits, terms)
        routed = self._rows.route(batch, traits, skip, terms)
        batch.transient = transient_of(traits, terms.persistent)
        blind = False
        if not terms.trusted:
            blind = any(one.blind for one in kinds)
            batch = self._headers(batch, traits, blind)
        replied = self._reply(batch, routed) if routed.replies else ()
        batch.routes = routed.routes
        rows = [row for row, kept in enumerate(routed.kept) if kept]
        first = self._kept(now, batch, rows, traits, blind, routed) if rows else 0
        last = first + len(rows) - 1 if rows else self._outbox.last_lsn
        kept = [row for row in routed.unroutable if routed.kept[row]]  # their exchange remembers them
        return Published(
            first, last, routed.unroutable, routed.refused, range(skip), len(rows), kept, replied, replied=replied
        )

    def _reply(self, batch: Publishes, routed: Routed) -> Sequence[int]:
        """Give replies to who waits for them; the rows that nobody else wants."""
        for row, take in routed.replies:
            self._outbox.effect(Reply(take, batch.topic_of(row), batch.properties_of(row), bytes(batch.bodies[row])))
        return sorted({row for row, _ in routed.replies if not routed.kept[row]})

    def _kept(
        self, now: Now, batch: Publishes, rows: list[int], traits: list[Traits], blind: bool, routed: Routed
    ) -> int:
        """Store these rows, which somebody wants, and let them arrive; the first LSN.  blind: some header says BCC."""
        stored, place = batch, dict[int, int]()
        if len(rows) < len(batch.bodies):
            stored, place = batch.select(rows), {row: i for i, row in enumerate(rows)}

        def stand(some: list[int]) -> list[int]:
            """Where these rows are among those that are stored, ascending."""
            return sorted([place[row] for row in some] if place else some)

        if blind:
            stored.topics = self._hidden(batch, rows, traits)
        takers = [(queue, stand(taken)) for queue, taken in routed.takers.items()]
        stored.wanted = sum(len(taken) for _, taken in takers)
        routes = each(stored.routes, len(rows))
        stored.routes = one_or_each(routes)
        for topic in stored.distinct_topics:
            self._interning.place(topic)
        unnamed: list[tuple[Queue, list[int] | None]] = []
        if self._interning.full and NO_ROUTE in routes:
            unnamed = [(queue, [row for row in taken if routes[row] == NO_ROUTE]) for queue, taken in takers]
        barriers = {queue: stand(marked) for queue, marked in routed.barriers.items()}
        first = self._into(now, stored, takers, unnamed, barriers)
        stored.judged = None
        return first

    def _headers(self, batch: Publishes, traits: list[Traits], blind: bool) -> Publishes:
        """The batch with the times that its headers say, and without what in them is not for those who read."""
        kinds = set(traits)
        if not all(one.plain for one in kinds):
            fill_times(batch, traits, self._outbox.time)
        if not any(one.cleaned is not None for one in kinds):
            return batch
        if blind:  # whoever refused a row asks its header again
            batch = batch.select(range(len(traits)))
        batch.properties = [
            batch.properties_of(row) if one.cleaned is None else one.cleaned for row, one in enumerate(traits)
        ]
        return batch

    def _into(
        self,
        now: Now,
        batch: Publishes,
        takers: Sequence[tuple[Queue, list[int]]],
        unnamed: Sequence[tuple[Queue, list[int] | None]] = (),
        barriers: Mapping[Queue, Sequence[int]] = NO_BARRIERS,
    ) -> int:
        """Store a batch whose rows these queues take, ascending, and let it arrive there; its first LSN.

        unnamed: the rows that a queue takes though their route does not name it.
        """
        if self._router.persisting and batch.transient:
            self._persist(batch, takers)
        grouped = bool(self._router.limited) and self._makes_room(batch, [(queue, len(rows)) for queue, rows in takers])
        if grouped:
            self._outbox.begin()
        first = self._arrivals.store(batch, unnamed, barriers)
        arriving: list[tuple[Queue, Chunk, list[int]]] = []
        for queue, rows in takers:
            chunk: Chunk
            if rows[-1] - rows[0] == len(rows) - 1:
                chunk = range(first + rows[0], first + rows[-1] + 1)
            else:
                chunk = array("q", [first + row for row in rows])
            arriving.append((queue, chunk, rows))
        self._arrivals.arrive(now, batch, arriving, barriers)
        if batch.priority is not None and self._router.leveling:
            self._raise(takers, batch.priority)
        if grouped:
            self._outbox.end()
        return first

    def _raise(self, takers: Iterable[tuple[Queue, Sequence[int]]], priorities: Sequence[int]) -> None:
        """Note which queues that have one level took what is of the high one."""
        for queue, rows in takers:
            if queue.id in self._router.leveling and any(priorities[row] >= HIGH_PRIORITY for row in rows):
                self.raised.add(queue)

    def _persist(self, batch: Publishes, takers: Sequence[tuple[Queue, Sequence[int]]]) -> None:
        """What a queue takes in which everything outlives the server does so, whatever its header says."""
        size, said = len(batch.bodies), batch.transient
        keeping = [rows for queue, rows in takers if queue.id in self._router.persisting]
        if any(len(rows) == size for rows in keeping):
            batch.transient = False
        elif keeping:
            passing = list(each(said, size))
            for row in chain.from_iterable(keeping):
                passing[row] = False
            batch.transient = one_or_each(passing)

    def _hidden(self, batch: Publishes, rows: Sequence[int], traits: list[Traits]) -> list[Topic]:
        """Topics of the rows, which hold what BCC says; the header that is stored says it no longer."""
        out: list[Topic] = []
        made: dict[tuple[Topic, tuple[str, ...]], Topic] = {}
        for row in rows:
            topic, keys = batch.topic_of(row), traits[row].blind
            if keys and (topic, keys) not in made:
                made[topic, keys] = self._interning.hiding(topic, keys) or topic
                self._interning.place(made[topic, keys])
            out.append(made[topic, keys] if keys else topic)
        return out

    def _makes_room(self, batch: Publishes, takers: Sequence[tuple[Queue, int]]) -> bool:
        """Whether something may give way to these newcomers in some queue: then it does so in one group with them."""
        size = batch.size or size_of(batch.bodies)
        return any(queue.may_evict(count, size) for queue, count in takers)

    def put_into(self, now: Now, queue: Queue, batch: Publishes) -> int:
        """Store the server's own rows and let them arrive in this one queue, whatever is routed where; the first LSN.

        Topics, headers, times and modes are the caller's.  Nothing else sees the rows arrive; no filter is asked, and
        none of them is a barrier.
        """
        for topic in batch.distinct_topics:
            self._interning.place(topic)
        batch.routes = self._interning.route((queue.id,))
        batch.wanted = len(batch.bodies)
        if self._router.persisting and batch.transient:
            self._persist(batch, [(queue, range(len(batch.bodies)))])
        first = self._arrivals.store(batch, [(queue, None)] if batch.routes == NO_ROUTE else ())
        rows = range(len(batch.bodies))
        self._arrivals.arrive_in(queue, now, range(first, first + len(rows)), batch, rows)
        return first
