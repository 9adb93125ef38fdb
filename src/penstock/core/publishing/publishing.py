"""Publishing: from a batch of messages to rows of the log and arrivals in queues.

A batch is decided as a whole.  Where all rows share one topic and one header the work is the same for one row and ten
thousand; otherwise rows are grouped by topic.  Rows that nobody wants are left out of what is stored.  It knows no
consumer and no limit of a queue: a queue gets its rows as one chunk and does the rest (`arrivals`), and what it wants
is worked out elsewhere (`routed`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.publishing.admission import Admission
from penstock.core.publishing.arrivals import Arrivals
from penstock.core.publishing.deduplicating import Deduplication
from penstock.core.publishing.judging import Question
from penstock.core.publishing.marks import Marks
from penstock.core.publishing.published import Published
from penstock.core.publishing.publishers import Publishers
from penstock.core.publishing.routed import Banned, RowRouter
from penstock.core.publishing.traits import Traits, TraitsMemo, fill_times
from penstock.core.publishing.waiting import PREFIX, by_exchange, joined, later, waiting_rows
from penstock.core.queue.limits import refusing
from penstock.core.queue.limits.refusing import Reckoning
from penstock.core.queue.view import Queue
from penstock.core.sizes.sizes import Sizes
from penstock.core.topology.interning import Interning
from penstock.core.topology.routing import Plan, Router
from penstock.records.bodies import size_of
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import NO_ROUTE
from penstock.records.schema import GROUP_BYTES_MAX

if TYPE_CHECKING:
    from penstock.core.sow.keyed import Keyed


def rejects(queue: Queue) -> bool:
    """Whether a queue refuses what is over its limits."""
    return queue.limits is not None and queue.limits.rejects


def deduplicates(queue: Queue) -> bool:
    """Whether a queue wants no duplicates."""
    return queue.dedup is not None


QUIET_BYTES = 8_192
"""A batch of no more bytes than this is evaluated as it is published: it cannot take long."""


class Publisher:
    """Decides batches."""

    def __init__(
        self, router: Router, interning: Interning, outbox: Outbox[Effect], touched: set[Queue], sizes: Sizes
    ) -> None:
        """touched: where queues that took something are noted.  sizes: told of what is stored."""
        self._router = router
        self._interning = interning
        self._outbox = outbox
        self.traits = TraitsMemo()
        self.publishers = Publishers(outbox)
        self.keyed: Keyed | None = None  # once there are SOW topics
        self._rows = RowRouter(router, interning, self.traits)
        self._admission = Admission(outbox)
        self._burying = False
        self._mourning: list[tuple[Queue, Publishes, Sequence[int], bool]] = []  # refused; the server's own rows or not
        self.bury: Callable[[Now, Queue, Publishes, Sequence[int], bool], None] | None = None  # makes dead letters
        self._arrivals = Arrivals(outbox, interning, touched, sizes, self.traits)
        self._deduplication = Deduplication(outbox, self.traits)

    @property
    def transient(self) -> Marks:
        """Stored rows that a restart does not keep."""
        return self._arrivals.transient

    def publish(
        self,
        now: Now,
        batch: Publishes,
        *,
        skip: int = 0,
        persistent: bool | None = None,
        trusted: bool = False,
        carbon: bool = True,
        banned: Banned | None = None,
        numbered: bool = False,
        admitted: bool = False,
    ) -> Published:
        """Store what somebody wants of a batch and let it arrive.

        skip: leading rows that are duplicates.  persistent: overrides the headers' delivery mode.
        trusted: the server's own rows, whose headers are not judged and whose times have had their effect.
        carbon: CC and BCC count.
        banned: by row, names of queues that must not take it.
        numbered: what is a duplicate is known: publisher and sequence in headers have had their effect.
        admitted: `no_room` had nothing to say, so no queue is asked again.
        """
        judged = numbered or trusted or skip > 0
        if self._router.delaying and not trusted:
            wait = later(batch, self._router.delaying, self.traits, skip, self._outbox.time)
            if wait:
                if not judged and (named := self._named(batch)) is not None:
                    return self._numbered(now, batch, named, persistent, carbon, banned)
                return self._part(now, batch, wait, skip, persistent, carbon)
        if self.keyed is None:
            return self._publish(now, batch, skip, persistent, trusted, carbon, banned, judged, admitted)
        if not judged and (named := self._named(batch)) is not None:
            return self._numbered(now, batch, named, persistent, carbon, banned, admitted)

        def store(some: Publishes, skipped: int) -> Published:
            return self._publish(now, some, skipped, persistent, trusted, carbon, banned, True, admitted)

        return self.keyed.publish(now, batch, skip, trusted, store)

    def _publish(
        self,
        now: Now,
        batch: Publishes,
        skip: int,
        persistent: bool | None,
        trusted: bool,
        carbon: bool,
        banned: Banned | None,
        numbered: bool,
        admitted: bool,
    ) -> Published:
        if self._router.deduping and not trusted and not batch.deduplicated:
            return self._deduplicate(now, batch, skip, persistent, carbon, banned, numbered, admitted)
        if trusted and batch.deduplicated:  # made of a refused row that had a key: a letter takes none
            batch.deduplicated = False
        if self._router.rejecting and not admitted:
            return self._admit(now, batch, skip, persistent, trusted, carbon, banned, numbered)
        return self._store(now, batch, skip, persistent, trusted, carbon, banned, numbered, admitted)

    def _deduplicate(
        self,
        now: Now,
        batch: Publishes,
        skip: int,
        persistent: bool | None,
        carbon: bool,
        banned: Banned | None,
        numbered: bool,
        admitted: bool,
    ) -> Published:
        """The same while some queue wants no duplicates."""
        if not numbered and (named := self._named(batch)) is not None:
            return self._numbered(now, batch, named, persistent, carbon, banned, admitted)

        def store(some: Publishes, skipped: int, bans: Banned) -> Published:
            some.deduplicated = True
            return self._publish(now, some, skipped, persistent, False, carbon, bans or None, True, admitted)

        takers = self._takers(batch, skip, False, carbon, banned, deduplicates)
        if not takers:
            return store(batch, skip, banned or {})
        fill_times(batch, self._traits_of(batch), self._outbox.time)
        return self._deduplication.publish(now, batch, skip, takers, banned, store, admitted)

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
            fill_times(batch, self._traits_of(batch), self._outbox.time)
        out: dict[int, Queue] = {}
        for queue, rows in self._takers(batch, 0, trusted, carbon, banned, rejects):
            refusing.settled(queue, now, self._outbox, len(rows))
            for row in reckoning.refused(queue, now, batch, rows):
                out.setdefault(row, queue)
        return out

    def _admit(
        self,
        now: Now,
        batch: Publishes,
        skip: int,
        persistent: bool | None,
        trusted: bool,
        carbon: bool,
        banned: Banned | None,
        numbered: bool,
    ) -> Published:
        """The same while some queue refuses what is over its limits."""
        if not numbered and (named := self._named(batch)) is not None:
            return self._numbered(now, batch, named, persistent, carbon, banned)

        def store(some: Publishes, skipped: int, bans: Banned) -> Published:
            return self._store(now, some, skipped, persistent, trusted, carbon, bans or None, True, True)

        takers = self._takers(batch, skip, trusted, carbon, banned, rejects)
        if not takers:
            return store(batch, skip, banned or {})
        if not trusted:
            fill_times(batch, self._traits_of(batch), self._outbox.time)
        if not any(queue.limits is not None and queue.limits.letters for queue, _ in takers):
            return self._admission.publish(now, batch, skip, takers, banned, store)
        self._outbox.begin()
        published = self._admission.publish(now, batch, skip, takers, banned, store)
        self._mourning += [(*one, trusted) for one in self._admission.dying]
        self._admission.dying.clear()
        if not self._burying:  # what a dead letter's own target refuses comes after it, not within
            self._burying = True
            try:
                while self._mourning:
                    assert self.bury is not None
                    self.bury(now, *self._mourning.pop(0))
            finally:
                self._burying = False
        self._outbox.end()
        return published

    def _takers(
        self,
        batch: Publishes,
        skip: int,
        trusted: bool,
        carbon: bool,
        banned: Banned | None,
        asked: Callable[[Queue], bool],
    ) -> list[tuple[Queue, Sequence[int]]]:
        """The queues that are asked for, and the rows that each would take."""
        topics, properties = batch.topics, batch.properties
        if isinstance(topics, Topic) and isinstance(properties, bytes) and not banned:
            traits = self.traits[properties]
            if traits.refusal is not None and not trusted:
                return []
            plan = self._rows.plan(topics)
            if not (carbon and traits.keys) and not (plan.filtered or plan.by_headers):
                return [(queue, range(skip, len(batch.bodies))) for queue in plan.queues if asked(queue)]
        routed = self._rows.route(batch, self._traits_of(batch), skip, trusted, carbon, banned)
        if not banned:
            batch.routed = ((self._router.version, skip, trusted, carbon), routed)
        return [(queue, sorted(rows)) for queue, rows in routed.takers.items() if asked(queue)]

    def _traits_of(self, batch: Publishes) -> list[Traits]:
        """Of each row."""
        memo, properties = self.traits, batch.properties
        if isinstance(properties, bytes):
            return [memo[properties]] * len(batch.bodies)
        return [memo[data] for data in properties]

    def _store(
        self,
        now: Now,
        batch: Publishes,
        skip: int,
        persistent: bool | None,
        trusted: bool,
        carbon: bool,
        banned: Banned | None,
        numbered: bool,
        admitted: bool,
    ) -> Published:
        size = len(batch.bodies)
        topics, properties = batch.topics, batch.properties
        if skip == 0 and not banned and isinstance(topics, Topic) and isinstance(properties, bytes):
            traits = self.traits[properties]
            if traits.refusal is not None and not trusted:
                return Published(0, self._outbox.last_lsn, refused=[(row, traits.refusal) for row in range(size)])
            if not (carbon and traits.keys) and (trusted or not traits.cleaned):
                plan = self._rows.plan(topics)
                if not (plan.filtered or plan.by_headers) and (plan.queues or plan.keep):
                    return self._uniform(now, batch, plan, traits, persistent, trusted)
        return self._mixed(now, batch, skip, persistent, trusted, carbon, banned, numbered, admitted)

    def _part(
        self, now: Now, batch: Publishes, wait: dict[int, int], skip: int, persistent: bool | None, carbon: bool
    ) -> Published:
        """Some rows wait at their exchange, in its own queue; the others are published as ever."""
        lsns = list[int]()
        for (vhost, exchange), rows in by_exchange(batch, wait).items():
            first = self.put_into(
                now, self._router.queues[vhost, PREFIX + exchange], waiting_rows(batch, rows, self.traits, persistent)
            )
            lsns += range(first, first + len(rows))
        others = [row for row in range(skip, len(batch.bodies)) if row not in wait]
        rest = None
        if others:
            some = batch.select(others)
            some.delta = batch.delta
            rest = self.publish(now, some, persistent=persistent, carbon=carbon, numbered=True)
        return joined(lsns, rest, others, skip, self._outbox.last_lsn)

    def put_into(self, now: Now, queue: Queue, batch: Publishes) -> int:
        """Store the server's own rows and let them arrive in this one queue, whatever is routed where; the first LSN.

        Topics, headers, times and modes are the caller's.  Nothing else sees the rows arrive; no filter is asked, and
        none of them is a barrier.
        """
        for topic in {batch.topics} if isinstance(batch.topics, Topic) else set(batch.topics):
            self._interning.place(topic)
        batch.routes = self._interning.route((queue.id,))
        batch.wanted = len(batch.bodies)
        first = self._arrivals.store(batch, [(queue, None)] if batch.routes == NO_ROUTE else ())
        rows = range(len(batch.bodies))
        self._arrivals.arrive_in(queue, now, range(first, first + len(rows)), batch, rows)
        return first

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
        if not (self._router.filtering or self._router.rating) or size_of(batch.bodies) <= QUIET_BYTES:
            return []
        return self._rows.unjudged(batch, skip, trusted, carbon, banned)

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
        grouped = bool(self._router.limited) and self._makes_room(batch, [(queue, size) for queue in queues])
        if grouped:
            self._outbox.begin()
        first = self._arrivals.store(batch, [(queue, None) for queue in queues] if route == NO_ROUTE else ())
        chunk, rows = range(first, first + size), range(size)
        if len(queues) == 1:
            self._arrivals.arrive_in(queues[0], now, chunk, batch, rows)
        elif queues:
            self._arrivals.arrive(now, batch, [(queue, chunk, rows) for queue in queues])
        if grouped:
            self._outbox.end()
        return Published(first, first + size - 1, stored=size)

    # many topics, but nothing else to look at: a few steps for each topic, two list comprehensions for the rows

    def _by_topic(self, now: Now, batch: Publishes, traits: list[Traits], persistent: bool | None) -> Published | None:
        """None when some topic needs a closer look; nothing is written then."""
        topics = batch.topics
        groups: dict[Topic, list[int]] = {}
        if isinstance(topics, Topic):
            groups[topics] = list(range(len(traits)))
        else:
            for row, topic in enumerate(topics):
                try:
                    groups[topic].append(row)
                except KeyError:
                    groups[topic] = [row]
        route_of: dict[Topic, int] = {}
        for topic in groups:
            plan = self._rows.plan(topic)
            if plan.filtered or plan.by_headers or not (plan.queues or plan.keep):
                return None
            route = route_of[topic] = self._rows.route_of(plan)
            if route == NO_ROUTE and plan.queues:
                return None  # the table of routes is full
        takers: dict[Queue, list[int]] = {}
        shared = set[Queue]()
        wanted = 0
        for topic, rows in groups.items():
            self._interning.place(topic)
            queues = self._rows.plan(topic).queues
            wanted += len(rows) * len(queues)
            for queue in queues:
                if queue in takers:
                    takers[queue] = takers[queue] + rows
                    shared.add(queue)
                else:
                    takers[queue] = rows
        batch.wanted = wanted
        routes = set(route_of.values())
        if len(routes) == 1:
            batch.routes = routes.pop()
        else:
            batch.routes = [route_of[topic] for topic in topics] if isinstance(topics, list) else NO_ROUTE
        kinds = {one.transient for one in set(traits)} if persistent is None else {not persistent}
        batch.transient = kinds.pop() if len(kinds) == 1 else [one.transient for one in traits]
        size = len(traits)
        grouped = bool(self._router.limited) and self._makes_room(batch, [(q, len(rows)) for q, rows in takers.items()])
        if grouped:
            self._outbox.begin()
        first = self._arrivals.store(batch, ())
        taken = list[tuple[Queue, Chunk, list[int]]]()
        for queue, rows in takers.items():
            if queue in shared:
                rows.sort()
            chunk: Chunk
            if rows[-1] - rows[0] == len(rows) - 1:
                chunk = range(first + rows[0], first + rows[-1] + 1)
            else:
                chunk = array("q", [first + row for row in rows])
            taken.append((queue, chunk, rows))
        self._arrivals.arrive(now, batch, taken)
        if grouped:
            self._outbox.end()
        return Published(first, first + size - 1, stored=size)

    # anything else

    def _mixed(
        self,
        now: Now,
        batch: Publishes,
        skip: int,
        persistent: bool | None,
        trusted: bool,
        carbon: bool,
        banned: Banned | None,
        numbered: bool,
        admitted: bool,
    ) -> Published:
        size = len(batch.bodies)
        traits = self._traits_of(batch)
        if not skip and not banned and all(one.plain for one in set(traits)):
            published = self._by_topic(now, batch, traits, persistent)
            if published is not None:
                return published
        if not numbered and any(one.publisher is not None for one in set(traits)):
            return self._numbered(now, batch, traits, persistent, carbon, banned, admitted)
        routed = self._rows.route(batch, traits, skip, trusted, carbon, banned)
        if not all(traits_of.plain for traits_of in set(traits)) and not trusted:
            fill_times(batch, traits, self._outbox.time)
        mode = [one.transient for one in traits] if persistent is None else [not persistent]
        batch.transient = mode[0] if mode.count(mode[0]) == len(mode) else mode
        cleaned = not trusted and any(one.cleaned is not None for one in set(traits))
        if cleaned:
            batch.properties = [
                batch.properties_of(row) if one.cleaned is None else one.cleaned for row, one in enumerate(traits)
            ]
        batch.routes = routed.routes
        rows = [row for row in range(size) if routed.kept[row]]
        outcome = (routed.unroutable, routed.refused, skip)
        if not rows:
            return Published(0, self._outbox.last_lsn, *outcome)
        stored, place = (batch, None) if len(rows) == size else (batch.select(rows), {r: i for i, r in enumerate(rows)})
        takers = list[tuple[Queue, "list[int]"]]()
        for queue, taken in routed.takers.items():
            taken.sort()
            takers.append((queue, taken if place is None else [place[row] for row in taken]))
        stored.wanted = sum(len(taken) for _, taken in takers)
        routes = stored.routes
        if isinstance(routes, list) and routes.count(routes[0]) == len(routes):
            stored.routes = routes[0]
        for topic in {stored.topics} if isinstance(stored.topics, Topic) else set(stored.topics):
            self._interning.place(topic)
        routes = [stored.routes] * len(rows) if isinstance(stored.routes, int) else stored.routes
        unnamed = list[tuple[Queue, "list[int] | None"]]()
        if self._interning.full and NO_ROUTE in routes:
            unnamed = [(queue, [row for row in taken if routes[row] == NO_ROUTE]) for queue, taken in takers]
        barriers = {
            queue: sorted(marked if place is None else [place[row] for row in marked])
            for queue, marked in routed.barriers.items()
        }
        grouped = bool(self._router.limited) and self._makes_room(stored, [(q, len(rows)) for q, rows in takers])
        if grouped:
            self._outbox.begin()
        first = self._arrivals.store(stored, unnamed, barriers)
        arriving = list[tuple[Queue, Chunk, list[int]]]()
        for queue, taken in takers:
            chunk: Chunk
            if len(taken) == len(rows):
                chunk = range(first, first + len(rows))
            else:
                chunk = as_chunk(array("q", [first + row for row in taken]))
            arriving.append((queue, chunk, taken))
        self._arrivals.arrive(now, stored, arriving, barriers)
        if grouped:
            self._outbox.end()
        return Published(first, first + len(rows) - 1, *outcome, stored=len(rows))

    def _makes_room(self, batch: Publishes, takers: Sequence[tuple[Queue, int]]) -> bool:
        """Whether something may give way to these newcomers in some queue: then it does so in one group with them.

        Of a batch that is too large for a group it does so behind it; a start would make up for what a crash takes.
        """
        size = batch.size or size_of(batch.bodies)
        if not any(
            queue.last_values is not None or (queue.limits is not None and queue.limits.yields(queue, count, size))
            for queue, count in takers
        ):
            return False
        return size <= GROUP_BYTES_MAX

    def _named(self, batch: Publishes) -> list[Traits] | None:
        """The traits of the rows, if some header names a publisher."""
        memo, properties = self.traits, batch.properties
        if isinstance(properties, bytes):
            one = memo[properties]
            return None if one.publisher is None else [one] * len(batch.bodies)
        traits = [memo[data] for data in properties]
        return traits if any(one.publisher is not None for one in set(traits)) else None

    def _numbered(
        self,
        now: Now,
        batch: Publishes,
        traits: list[Traits],
        persistent: bool | None,
        carbon: bool,
        banned: Banned | None,
        admitted: bool = False,
    ) -> Published:
        """Headers name publishers and sequences."""

        def store(part: Publishes) -> Published:
            return self.publish(
                now, part, persistent=persistent, carbon=carbon, banned=banned, numbered=True, admitted=admitted
            )

        self._outbox.begin()
        published = self.publishers.publish(batch, traits, store)
        self._outbox.end()
        return published
