"""Publishing: from a batch of messages to rows of the log and arrivals in queues.

A batch is decided as a whole.  Where all rows share one topic and one header the work is the same for one row and ten
thousand; otherwise rows are grouped by topic.  Rows that nobody wants are left out of what is stored.  It knows no
consumer and no limit of a queue: a queue gets its rows as one chunk and does the rest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.publishing.judging import Asking, Question, takers
from penstock.core.publishing.marks import Marks
from penstock.core.publishing.publishers import Publishers
from penstock.core.publishing.rating import ranks_of, unrated
from penstock.core.publishing.shared_credit import Share, share_out
from penstock.core.publishing.traits import HEADER_KEPT, Refusal, Traits, TraitsMemo
from penstock.core.queue.view import Queue
from penstock.core.topology.interning import Interning
from penstock.core.topology.routing import Plan, Router
from penstock.records.bodies import listed, size_of
from penstock.records.chunks import Chunk, Now, as_chunk, pack_pairs, pairs_of
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import NO_ROUTE, Kind

if TYPE_CHECKING:
    from penstock.core.sow.keyed import Keyed

_SHARING = attrgetter("sharing")

NO_BARRIERS: Mapping[Queue, Sequence[int]] = {}

QUIET_BYTES = 8_192
"""A batch of no more bytes than this is evaluated as it is published: it cannot take long."""


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a batch.  Row numbers are those of the batch as it was given."""

    first: int  # LSN of the first stored row; 0 when none was stored
    last: int  # the LSN whose durability confirms the batch
    unroutable: Sequence[int] = ()  # no queue and no declared topic wanted them
    refused: Sequence[tuple[int, Refusal]] = ()
    duplicates: int = 0  # leading rows whose sequence this publisher had used before: confirmed, not stored again
    stored: int = 0  # rows written


class _Mixed:
    """A batch whose rows differ: what each row becomes, gathered before anything is written."""

    __slots__ = ("asking", "barriers", "kept", "refused", "routes", "takers", "unroutable")

    def __init__(self, size: int, asking: Asking | None = None) -> None:
        self.asking = asking  # whether, and what, may be asked instead of evaluated
        self.routes = [NO_ROUTE] * size
        self.kept = [False] * size
        self.takers: dict[Queue, list[int]] = {}  # rows that each queue takes
        self.barriers: dict[Queue, list[int]] = {}  # of those the rows that are barriers in it
        self.unroutable: list[int] = []
        self.refused: list[tuple[int, Refusal]] = []


class Publisher:
    """Decides batches."""

    def __init__(self, router: Router, interning: Interning, outbox: Outbox[Effect]) -> None:
        self._router = router
        self._interning = interning
        self._outbox = outbox
        self.traits = TraitsMemo()
        self.publishers = Publishers(outbox)
        self.transient = Marks()
        self.keyed: Keyed | None = None  # once there are SOW topics
        self.touched: set[Queue] = set()  # queues that took something since the core looked
        self._plans: dict[tuple[Topic, bytes, bool], Plan] = {}  # topics whose way depends on headers or extra keys
        self._plans_version = -1

    def publish(
        self,
        now: Now,
        batch: Publishes,
        *,
        skip: int = 0,
        persistent: bool | None = None,
        trusted: bool = False,
        carbon: bool = True,
        banned: Mapping[int, frozenset[str]] | None = None,
        numbered: bool = False,
    ) -> Published:
        """Store what somebody wants of a batch and let it arrive.

        skip: leading rows that are duplicates.  persistent: overrides the headers' delivery mode.
        trusted: the server's own rows, whose headers are not judged and whose times have had their effect.
        carbon: CC and BCC count.
        banned: by row, names of queues that must not take it.
        numbered: what is a duplicate is known: publisher and sequence in headers have had their effect.
        """
        judged = numbered or trusted or skip > 0
        if self.keyed is None:
            return self._publish(now, batch, skip, persistent, trusted, carbon, banned, judged)
        if not judged and (named := self._named(batch)) is not None:
            return self._numbered(now, batch, named, persistent, carbon, banned)

        def store(some: Publishes, skipped: int) -> Published:
            return self._publish(now, some, skipped, persistent, trusted, carbon, banned, True)

        return self.keyed.publish(now, batch, skip, trusted, store)

    def _publish(
        self,
        now: Now,
        batch: Publishes,
        skip: int,
        persistent: bool | None,
        trusted: bool,
        carbon: bool,
        banned: Mapping[int, frozenset[str]] | None,
        numbered: bool,
    ) -> Published:
        size = len(batch.bodies)
        topics, properties = batch.topics, batch.properties
        if skip == 0 and not banned and isinstance(topics, Topic) and isinstance(properties, bytes):
            traits = self.traits[properties]
            if traits.refusal is not None and not trusted:
                return Published(0, self._outbox.last_lsn, refused=[(row, traits.refusal) for row in range(size)])
            if not (carbon and traits.keys) and (trusted or not traits.cleaned):
                plan = self._plan(topics)
                if not (plan.filtered or plan.by_headers) and (plan.queues or plan.keep):
                    return self._uniform(now, batch, plan, traits, persistent, trusted)
        return self._mixed(now, batch, skip, persistent, trusted, carbon, banned, numbered)

    def unjudged(
        self,
        batch: Publishes,
        *,
        skip: int = 0,
        trusted: bool = False,
        carbon: bool = True,
        banned: Mapping[int, frozenset[str]] | None = None,
    ) -> list[Question]:
        """What has to be evaluated off the loop before this batch can be published without holding the loop up.

        Parameters as in `publish`.  When nothing has to, the work that was done is kept on the batch.
        """
        batch.routed = None
        if not (self._router.filtering or self._router.rating) or size_of(batch.bodies) <= QUIET_BYTES:
            return []
        return self._unrated(batch, skip) + self._unjudged(batch, skip, trusted, carbon, banned)

    def _unrated(self, batch: Publishes, skip: int) -> list[Question]:
        """Priorities that have to be worked out off the loop."""
        if not self._router.rating:
            return []
        asked = list[tuple[str, Sequence[int]]]()
        whole = range(skip, len(batch.bodies))
        for topic in {batch.topics} if isinstance(batch.topics, Topic) else set(batch.topics):
            texts = {one.settings.priority_expression for one in self._plan(topic).queues}
            for text in [text for text in texts if text is not None]:
                rows = [row for row in whole if batch.topics[row] is topic] if isinstance(batch.topics, list) else whole
                asked.append((text, rows))
        return unrated(batch, asked) if asked else []

    def _unjudged(
        self,
        batch: Publishes,
        skip: int,
        trusted: bool,
        carbon: bool,
        banned: Mapping[int, frozenset[str]] | None,
    ) -> list[Question]:
        """Filters that have to be asked off the loop."""
        if not self._router.filtering:
            return []
        topics = {batch.topics} if isinstance(batch.topics, Topic) else set(batch.topics)
        if not any(plan.filtered or plan.by_headers or carbon for plan in map(self._plan, topics)):
            return []
        size = len(batch.bodies)
        data = batch.properties
        traits = [self.traits[data]] * size if isinstance(data, bytes) else [self.traits[one] for one in data]
        asking = Asking()
        mixed = _Mixed(size, asking)
        version = self._router.version
        self._route_rows(batch, traits, skip, mixed, trusted, carbon, banned)
        if not asking.questions and not banned:
            batch.routed = ((version, skip, trusted, carbon), mixed)
        return list(asking.questions.values())

    def _taken_up(self, batch: Publishes, skip: int, trusted: bool, carbon: bool) -> _Mixed | None:
        """What `unjudged` has worked out for this batch, if it still holds."""
        routed, batch.routed = batch.routed, None
        if not isinstance(routed, tuple):
            return None
        key, mixed = cast("tuple[tuple[int, int, bool, bool], _Mixed]", routed)
        return mixed if key == (self._router.version, skip, trusted, carbon) else None

    # one topic, one header, no filter: nothing is done row by row

    def _uniform(
        self, now: Now, batch: Publishes, plan: Plan, traits: Traits, persistent: bool | None, trusted: bool
    ) -> Published:
        size = len(batch.bodies)
        if not traits.plain and not trusted:
            self._times(batch, [traits] * size)
        if plan.route == NO_ROUTE and plan.queues:
            plan.route = self._interning.route(tuple(queue.id for queue in plan.queues))
        topic = batch.topics
        assert isinstance(topic, Topic)
        self._interning.place(topic)
        batch.routes = plan.route
        batch.wanted = size * len(plan.queues)
        batch.transient = traits.transient if persistent is None else not persistent
        first = self._store(batch, [(queue, None) for queue in plan.queues] if plan.route == NO_ROUTE else ())
        chunk = range(first, first + size)
        queues = plan.queues
        if len(queues) > 1 and any(map(_SHARING, queues)):
            self._share_out(now, [Share(queue, chunk, range(size)) for queue in queues], batch)
        else:
            for queue in queues:
                self._arrive(now, queue, chunk, batch, range(size))
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
            plan = self._plan(topic)
            if plan.filtered or plan.by_headers or not (plan.queues or plan.keep):
                return None
            if plan.route == NO_ROUTE and plan.queues:
                plan.route = self._interning.route(tuple([queue.id for queue in plan.queues]))
                if plan.route == NO_ROUTE:
                    return None  # the table of routes is full
            route_of[topic] = plan.route
        takers: dict[Queue, list[int]] = {}
        shared = set[Queue]()
        wanted = 0
        for topic, rows in groups.items():
            self._interning.place(topic)
            queues = self._plan(topic).queues
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
        first = self._store(batch, ())
        apart = list[Share]() if len(takers) > 1 and any(map(_SHARING, takers)) else None
        for queue, rows in takers.items():
            if queue in shared:
                rows.sort()
            count = len(rows)
            chunk: Chunk
            if rows[-1] - rows[0] == count - 1:
                chunk = range(first + rows[0], first + rows[-1] + 1)
            else:
                chunk = array("q", [first + row for row in rows])
            if apart is None:
                self._arrive(now, queue, chunk, batch, rows)
            else:
                apart.append(Share(queue, chunk, rows))
        if apart is not None:
            self._share_out(now, apart, batch)
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
        banned: Mapping[int, frozenset[str]] | None,
        numbered: bool,
    ) -> Published:
        size = len(batch.bodies)
        memo = self.traits
        if isinstance(batch.properties, bytes):
            traits = [memo[batch.properties]] * size
        else:
            traits = [memo[data] for data in batch.properties]
        if not skip and not banned and all(one.plain for one in set(traits)):
            published = self._by_topic(now, batch, traits, persistent)
            if published is not None:
                return published
        if not numbered and any(one.publisher is not None for one in set(traits)):
            return self._numbered(now, batch, traits, persistent, carbon, banned)
        mixed = None if banned else self._taken_up(batch, skip, trusted, carbon)
        if mixed is None:
            mixed = _Mixed(size)
            self._route_rows(batch, traits, skip, mixed, trusted, carbon, banned)
        if not all(traits_of.plain for traits_of in set(traits)) and not trusted:
            self._times(batch, traits)
        mode = [one.transient for one in traits] if persistent is None else [not persistent]
        batch.transient = mode[0] if mode.count(mode[0]) == len(mode) else mode
        cleaned = not trusted and any(one.cleaned is not None for one in set(traits))
        if cleaned:
            batch.properties = [
                batch.properties_of(row) if one.cleaned is None else one.cleaned for row, one in enumerate(traits)
            ]
        batch.routes = mixed.routes
        rows = [row for row in range(size) if mixed.kept[row]]
        outcome = (mixed.unroutable, mixed.refused, skip)
        if not rows:
            return Published(0, self._outbox.last_lsn, *outcome)
        stored, place = (
            (batch, None) if len(rows) == size else (select_rows(batch, rows), {r: i for i, r in enumerate(rows)})
        )
        takers = list[tuple[Queue, "list[int]"]]()
        for queue, taken in mixed.takers.items():
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
            for queue, marked in mixed.barriers.items()
        }
        first = self._store(stored, unnamed, barriers)
        apart = list[Share]() if len(takers) > 1 and any(queue.sharing for queue, _ in takers) else None
        for queue, taken in takers:
            chunk: Chunk
            if len(taken) == len(rows):
                chunk = range(first, first + len(rows))
            else:
                chunk = as_chunk(array("q", [first + row for row in taken]))
            if apart is None:
                self._arrive(now, queue, chunk, stored, taken, barriers.get(queue))
            else:
                apart.append(Share(queue, chunk, taken))
        if apart is not None:
            self._share_out(now, apart, stored, barriers)
        return Published(first, first + len(rows) - 1, *outcome, stored=len(rows))

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
        banned: Mapping[int, frozenset[str]] | None,
    ) -> Published:
        """Headers name publishers and sequences."""

        def store(part: Publishes) -> Published:
            return self.publish(now, part, persistent=persistent, carbon=carbon, banned=banned, numbered=True)

        self._outbox.begin()
        published = self.publishers.publish(batch, traits, select_rows, store)
        self._outbox.end()
        return published

    def _route_rows(
        self,
        batch: Publishes,
        traits: list[Traits],
        skip: int,
        mixed: _Mixed,
        trusted: bool,
        carbon: bool,
        banned: Mapping[int, frozenset[str]] | None,
    ) -> None:
        """Group the rows by where they go, and let each group pass its queues' filters."""
        groups: dict[Topic, list[int]] = {}
        if isinstance(batch.topics, Topic):
            groups[batch.topics] = list(range(skip, len(traits)))
        else:
            for row in range(skip, len(traits)):
                groups.setdefault(batch.topics[row], []).append(row)
        kinds = set(traits)
        clean = trusted or all(one.refusal is None for one in kinds)
        carbon = carbon and any(one.keys for one in kinds)
        for topic, rows in groups.items():
            if not clean:
                for row in rows:
                    if (refusal := traits[row].refusal) is not None:
                        mixed.refused.append((row, refusal))
                rows = [row for row in rows if traits[row].refusal is None]
            plan = self._plan(topic)
            if plan.by_headers or carbon or banned:
                special: dict[tuple[bytes, frozenset[str]], list[int]] = {}
                for row in rows:
                    ban = (banned or {}).get(row, frozenset())
                    special.setdefault((batch.properties_of(row), ban), []).append(row)
                for (data, ban), same in special.items():
                    one = self._special_plan(topic, data, carbon) if plan.by_headers or carbon else plan
                    self._take(batch, same, topic, one.without(ban) if ban else one, mixed)
            elif rows:
                self._take(batch, rows, topic, plan, mixed)
        mixed.unroutable.sort()
        mixed.refused.sort(key=_row)

    def _take(self, batch: Publishes, rows: list[int], topic: Topic, plan: Plan, mixed: _Mixed) -> None:
        """Note for rows of one plan which queues take them."""
        if not plan.filtered:
            if plan.queues:
                if plan.route == NO_ROUTE:
                    plan.route = self._interning.route(tuple(queue.id for queue in plan.queues))
                self._note(rows, plan.queues, plan.route, mixed)
            elif plan.keep:
                self._note(rows, (), NO_ROUTE, mixed)
            else:
                mixed.unroutable += rows
            return
        wanted = takers(batch, rows, topic, plan, mixed.asking)
        if mixed.asking is not None and mixed.asking.questions:
            return  # nothing is decided before they are answered
        alike: dict[int, list[int]] = {}
        for row, bits in zip(rows, wanted, strict=True):
            alike.setdefault(bits, []).append(row)
        for bits, same in alike.items():
            queues = tuple(queue for i, queue in enumerate(plan.queues) if bits >> i & 1)
            if queues:
                self._note(same, queues, self._interning.route(tuple(queue.id for queue in queues)), mixed)
                for bit, i in enumerate(plan.fenced, len(plan.queues)):
                    if bits >> bit & 1 and bits >> i & 1:
                        mixed.barriers.setdefault(plan.queues[i], []).extend(same)
            elif plan.keep:
                self._note(same, (), NO_ROUTE, mixed)
            else:
                mixed.unroutable += same

    @staticmethod
    def _note(rows: list[int], queues: tuple[Queue, ...], route: int, mixed: _Mixed) -> None:
        routes, kept = mixed.routes, mixed.kept
        for row in rows:
            routes[row] = route
            kept[row] = True
        for queue in queues:
            if (taken := mixed.takers.get(queue)) is None:
                mixed.takers[queue] = rows.copy()
            else:
                taken += rows

    def _plan(self, topic: Topic) -> Plan:
        """The plan kept on the topic, made anew when the topology has changed."""
        plan = topic.plan
        if isinstance(plan, Plan) and plan.version == self._router.version:
            return plan
        plan = topic.plan = self._router.plan(topic.vhost, topic.exchange, (topic.name,), None)
        return plan

    def _special_plan(self, topic: Topic, data: bytes, carbon: bool) -> Plan:
        """The plan of a topic for messages with one header."""
        if self._plans_version != self._router.version or len(self._plans) > 4096:
            self._plans.clear()
            self._plans_version = self._router.version
        plan = self._plans.get((topic, data, carbon))
        if plan is None:
            traits = self.traits[data]
            keys = (topic.name, *traits.keys) if carbon else (topic.name,)
            plan = self._router.plan(topic.vhost, topic.exchange, keys, traits.headers)
            if len(data) <= HEADER_KEPT:
                self._plans[topic, data, carbon] = plan
        return plan

    def _times(self, batch: Publishes, traits: list[Traits]) -> None:
        """Columns from the headers, where the edge has not set them."""
        time = self._outbox.time
        if batch.expires_at is None and any(one.ttl is not None for one in traits):
            batch.expires_at = [0 if one.ttl is None else time + one.ttl for one in traits]
        if batch.priority is None and any(one.priority is not None for one in traits):
            batch.priority = [one.priority or 0 for one in traits]
        if batch.not_before is None and any(one.delay is not None or one.deliver_at is not None for one in traits):
            batch.not_before = [_not_before(one, time) for one in traits]

    def _store(
        self,
        batch: Publishes,
        unnamed: Sequence[tuple[Queue, list[int] | None]],
        barriers: Mapping[Queue, Sequence[int]] = NO_BARRIERS,
    ) -> int:
        """Write the rows; where the table of routes is full, the queues that took them are named beside the rows.

        barriers: rows that are barriers in a queue, ascending; a record of the same group says so.
        """
        if not unnamed and not barriers:
            first = self._outbox.publish(batch)
        else:
            self._outbox.begin()
            first = self._outbox.publish(batch)
            for queue, taken in unnamed:
                if taken is not None and not taken:
                    continue
                rows = range(first, first + len(batch.bodies)) if taken is None else [first + row for row in taken]
                self._interning.took(queue, as_chunk(array("q", rows)))
            for queue, marked in barriers.items():
                pairs = pairs_of(as_chunk([first + row for row in marked]), False)
                self._outbox.record(Kind.BARRIER, queue.name, body=pack_pairs(queue.id, pairs))
            self._outbox.end()
        if batch.transient is True:
            self.transient.add(first, first + len(batch.bodies))
        elif batch.transient is False:
            self.transient.part()
        else:
            self.transient.add_rows(first, batch.transient)
        return first

    def _share_out(
        self,
        now: Now,
        shares: list[Share],
        batch: Publishes,
        barriers: Mapping[Queue, Sequence[int]] = NO_BARRIERS,
    ) -> None:
        def give(queue: Queue, chunk: Chunk, rows: Sequence[int]) -> None:
            self._arrive(now, queue, chunk, batch, rows, barriers.get(queue))

        share_out(now, shares, self._outbox, self._outbox.effects, give)

    def _arrive(
        self,
        now: Now,
        queue: Queue,
        chunk: Chunk,
        batch: Publishes,
        rows: Sequence[int],
        marked: Sequence[int] | None = None,
    ) -> None:
        expires_at, not_before, priority = batch.expires_at, batch.not_before, batch.priority
        if len(rows) < len(batch.bodies):
            expires_at = None if expires_at is None else [expires_at[row] for row in rows]
            not_before = None if not_before is None else [not_before[row] for row in rows]
            priority = None if priority is None else [priority[row] for row in rows]
        queue.arrived += len(rows)
        self.touched.add(queue)
        ranks = None
        if queue.settings.priority_expression is not None:
            ranks = ranks_of(queue.settings.priority_expression, batch, rows, chunk, now.wall)
        queue.arrive(
            now, chunk, self._outbox, batch=batch, rows=rows, expires_at=expires_at, not_before=not_before,
            priority=priority, barriers=None if marked is None else _within(chunk, marked, batch.first),
            ranks=ranks,
        )  # fmt: skip


def _within(chunk: Chunk, marked: Sequence[int], first: int) -> list[int]:
    """The LSNs of marked rows, ascending, that are in the chunk, a stretch of what the queue takes."""
    low, high = bisect_left(marked, chunk[0] - first), bisect_right(marked, chunk[-1] - first)
    return [first + row for row in marked[low:high]]


def _row(item: tuple[int, Refusal]) -> int:
    return item[0]


def _not_before(traits: Traits, time: int) -> int:
    if traits.deliver_at is not None:
        return traits.deliver_at if traits.deliver_at > time else 0
    return time + traits.delay if traits.delay is not None and traits.delay > 0 else 0


def select_rows(batch: Publishes, rows: list[int]) -> Publishes:
    """Some rows of a batch, as a batch of their own."""

    def some(column: list[int] | None) -> list[int] | None:
        return None if column is None else [column[row] for row in rows]

    judged = None
    if batch.judged is not None:
        judged = {
            text: {i: said[row] for i, row in enumerate(rows) if row in said} for text, said in batch.judged.items()
        }
    whole = listed(batch.bodies)
    bodies = [whole[row] for row in rows]
    properties = batch.properties if isinstance(batch.properties, bytes) else [batch.properties[row] for row in rows]
    return Publishes(
        batch.topics if isinstance(batch.topics, Topic) else [batch.topics[row] for row in rows],
        properties,
        bodies,
        routes=batch.routes if isinstance(batch.routes, int) else [batch.routes[row] for row in rows],
        expires_at=some(batch.expires_at),
        not_before=some(batch.not_before),
        priority=some(batch.priority),
        judged=judged,
        transient=batch.transient if isinstance(batch.transient, bool) else [batch.transient[row] for row in rows],
        size=sum(map(len, bodies))
        + (len(properties) * len(bodies) if isinstance(properties, bytes) else sum(map(len, properties))),
    )
