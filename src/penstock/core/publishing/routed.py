"""Where the rows of a batch go, and which of them are duplicates there, worked out before anything is written.

Rows are grouped by topic, where a header may matter by topic and header, and each group passes the filters of its plan.

A duplicate does not enter that queue; others take the row.  The batch is cut where a row's answer depends on what
becomes of one before it: a queue may refuse that for a limit, or have let it go by then.  Elsewhere one look decides
for all rows.  It knows neither an LSN nor a record; what a queue took it is told as the rows arrive (`arrivals`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TypeAlias, cast

from penstock.core.chance import chance
from penstock.core.effects import Effect, Question
from penstock.core.outbox import Outbox
from penstock.core.publishing.evaluating import Asking, last_keys_of, takers, unkeyed, unrated
from penstock.core.publishing.published import (
    HEADER_KEPT,
    Banned,
    Published,
    Refusal,
    Terms,
    Traits,
    TraitsMemo,
    banned_in,
    joined,
    part_of,
)
from penstock.core.queue.queue import Queue
from penstock.core.topology.exchange_types import Told
from penstock.core.topology.register import Interning
from penstock.core.topology.routing import CLOSED, Plan, Router, Taker
from penstock.records.chunks import Now
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import NO_ROUTE
from penstock.records.message_bodies import size_of
from penstock.records.queue_settings import QueueSettings
from penstock.records.remembered import Remembered
from penstock.records.schema import GROUP_BYTES_MAX

Store: TypeAlias = "Callable[[Publishes, int, Banned], Published]"
"""Publishes a batch from a row on, but for what queues of these names must not take, by row."""


def dedup_keys(settings: QueueSettings, batch: Publishes, rows: Sequence[int], memo: TraitsMemo) -> list[int]:
    """The key of each of these rows in a queue: its header's, else what the queue's expression gives; 0: none."""
    expression, keys = settings.reading("dedup_key"), [0] * len(rows)
    if settings.dedup_window:
        if isinstance(batch.properties, bytes):
            if own := memo[batch.properties].dedup:
                return [own] * len(rows)
        else:
            properties = batch.properties
            keys = [memo[properties[row]].dedup for row in rows]
    if expression is None or all(keys):
        return keys
    if not any(keys):
        return last_keys_of(expression, batch, rows)
    left = [place for place, own in enumerate(keys) if not own]
    for place, key in zip(left, last_keys_of(expression, batch, [rows[place] for place in left]), strict=True):
        keys[place] = key
    return keys


def barred(queue: Queue) -> str:
    """What is banned for a row that a queue does not take: where that is an exchange's own, all behind it."""
    return queue.name if queue.exchange is None else CLOSED + queue.name


class Deduplication:
    """Keeps duplicates out of queues."""

    def __init__(self, outbox: Outbox[Effect], memo: TraitsMemo) -> None:
        self._outbox = outbox
        self._memo = memo

    def publish(
        self,
        now: Now,
        batch: Publishes,
        skip: int,
        takers: Sequence[tuple[Queue, Sequence[int]]],
        banned: Banned | None,
        store: Store,
        admitted: bool,
        *,
        singly: bool = False,
    ) -> Published:
        """Publish a batch whose rows these queues, which want no duplicates, would take, ascending.

        admitted: none of them will refuse a row for a limit.
        singly: what becomes of a row elsewhere may have let go what one of them has before the next comes.
        """
        for queue, _ in takers:
            queue.catch_up(now, self._outbox)
        keys = [dedup_keys(queue.settings, batch, rows, self._memo) for queue, rows in takers]
        if not singly and size_of(batch.bodies) < GROUP_BYTES_MAX // 2 and all(map(_new, takers, keys)):
            return self._in_group(batch, skip, banned or {}, store)
        by_row = _by_row(takers, keys)
        if not by_row:
            return store(batch, skip, banned or {})
        sure = {queue: _sure(queue, batch, admitted) for queue, _ in takers}
        size, start = len(batch.bodies), skip
        keyed = sorted(by_row)
        parts: list[Published] = []
        while start < size:
            most = start + 1 if singly else size
            stop, duplicates = self._part(batch, start, most, keyed, by_row, sure, dict(takers))
            parts.append(self._stored(batch, range(start, stop), duplicates, banned, store))
            start = stop
        return joined(parts, skip, self._outbox.last_lsn)

    def _in_group(self, batch: Publishes, skip: int, bans: Banned, store: Store) -> Published:
        """Stored with the keys that queues took of it."""
        self._outbox.begin()
        published = store(batch, skip, bans)
        self._outbox.end()
        return published

    def _stored(
        self, batch: Publishes, rows: range, duplicates: Mapping[int, Sequence[Queue]], banned: Banned | None,
        store: Store,
    ) -> Published:  # fmt: skip
        """What becomes of these rows of a batch, of which queues have some already, in rows of the whole."""
        some = part_of(batch, rows)
        some.delta, some.deduplicated = batch.delta, True
        spared = [(row, queue) for row, queues in duplicates.items() for queue in queues]
        for _, queue in spared:
            queue.spared(1)
        bans = banned_in(rows, banned, ((row, barred(queue)) for row, queue in spared))
        return _told(self._in_group(some, 0, bans, store), rows, duplicates)

    def _part(
        self,
        batch: Publishes,
        start: int,
        most: int,
        keyed: Sequence[int],
        by_row: Mapping[int, Sequence[tuple[Queue, int]]],
        sure: Mapping[Queue, tuple[bool, bool]],
        takes: Mapping[Queue, Sequence[int]],
    ) -> tuple[int, dict[int, list[Queue]]]:
        """Up to where, `most` at most, it is known which rows from `start` on are duplicates where, and these."""
        time = self._outbox.time
        fresh: set[tuple[Queue, int]] = set()
        out: dict[Queue, int] = {}  # rows that a queue does not take
        bans: dict[int, list[Queue]] = {}
        stop = most if size_of(batch.bodies) < GROUP_BYTES_MAX // 2 else min(most, start + 1)
        for row in keyed[bisect_left(keyed, start) : bisect_left(keyed, stop)]:
            kept_out: list[Queue] = []
            for queue, key in by_row[row]:
                enters, stays = sure[queue]
                if queue.had_key(key, time):
                    known = True
                elif (queue, key) in fresh:
                    known = enters and (stays or queue.window is not None)
                elif queue.has_key(key):
                    known = stays or _entered(takes[queue], start, row) <= out.get(queue, 0)
                else:
                    continue
                if not known:
                    return row, bans
                kept_out.append(queue)
            fresh.update(one for one in by_row[row] if one[0] not in kept_out)
            if kept_out:
                bans[row] = kept_out
                out.update((queue, out.get(queue, 0) + 1) for queue in kept_out)
        return stop, bans


def _by_row(
    takers: Sequence[tuple[Queue, Sequence[int]]], keys: Sequence[Sequence[int]]
) -> dict[int, list[tuple[Queue, int]]]:
    """By row the queues in which it has a key, and which."""
    out: dict[int, list[tuple[Queue, int]]] = {}
    for (queue, rows), some in zip(takers, keys, strict=True):
        for row, key in zip(rows, some, strict=True):
            if key:
                out.setdefault(row, []).append((queue, key))
    return out


def _new(taker: tuple[Queue, Sequence[int]], keys: Sequence[int]) -> bool:
    """Whether the queue knows none of these keys, and none comes twice: then there is nothing to look at row by row."""
    some = [key for key in keys if key] if 0 in keys else keys
    return len(set(some)) == len(some) and not taker[0].knows_any(some)


def _entered(rows: Sequence[int], start: int, stop: int) -> int:
    """How many of these rows, ascending, lie in [start, stop)."""
    return bisect_left(rows, stop) - bisect_left(rows, start)


def _sure(queue: Queue, batch: Publishes, admitted: bool) -> tuple[bool, bool]:
    """Whether each row of the batch enters, and whether what is in the queue stays while they do."""
    enters = not queue.overflow.rejects or (admitted and not queue.overflow.drops_newest)
    return enters, queue.keeps_what_it_has and batch.expires_at is None


def _told(published: Published, rows: Sequence[int], bans: Mapping[int, Sequence[Queue]]) -> Published:
    """The outcome of a part, in rows of the whole; what only duplicates kept from being stored is one."""
    told = published.among(rows)
    repeats = [row for row in told.unroutable if row in bans]
    left = [row for row in told.unroutable if row not in bans]
    return replace(told, unroutable=left, repeats=[*told.repeats, *repeats])


FEW = 32
"""As many filters, or bindings that look at headers, may be asked about each message of a topic, and it is not dear."""

PLANS_KEPT = 4096
"""Plans of single headers that are remembered under one topology."""
PLANNED_MOST = 1 << 16
"""Topics with a plan that are remembered: as many as are interned at once."""


NOBODYS: frozenset[Queue] = frozenset()
"""No queues of exchanges."""


class Routed:
    """What each row of a batch becomes."""

    __slots__ = ("asking", "barriers", "kept", "refused", "replies", "routes", "takers", "unroutable")

    def __init__(self, size: int, asking: Asking | None = None) -> None:
        self.asking = asking  # whether, and what, may be asked instead of evaluated
        self.routes = [NO_ROUTE] * size
        self.kept = [False] * size
        self.takers: dict[Queue, list[int]] = {}  # rows that each queue takes
        self.barriers: dict[Queue, list[int]] = {}  # of those the rows that are barriers in it
        self.unroutable: list[int] = []
        self.refused: list[tuple[int, Refusal]] = []
        self.replies: list[tuple[int, Taker]] = []  # rows that are replies to somebody who waits

    def take(self, rows: list[int], queues: tuple[Queue, ...], route: int, own: frozenset[Queue] = NOBODYS) -> None:
        """These rows are kept, and these queues take them; own: those of exchanges, which reach nobody."""
        if own and own.issuperset(queues):
            self.unroutable += rows
        routes, kept = self.routes, self.kept
        for row in rows:
            routes[row] = route
            kept[row] = True
        for queue in queues:
            if (taken := self.takers.get(queue)) is None:
                self.takers[queue] = rows.copy()
            else:
                taken += rows

    def refuse(self, rows: Sequence[int], traits: Sequence[Traits]) -> list[int]:
        """Note those of the rows whose headers are refused; the others."""
        self.refused += [(row, why) for row in rows if (why := traits[row].refusal) is not None]
        return [row for row in rows if traits[row].refusal is None]


def by_topic(topics: Topic | Sequence[Topic], size: int, skip: int = 0) -> dict[Topic, list[int]]:
    """The rows of each topic, in the order in which topics come first, but for so many leading rows."""
    if isinstance(topics, Topic):
        return {topics: list(range(skip, size))}
    out: dict[Topic, list[int]] = {}
    for row, topic in enumerate(topics[skip:] if skip else topics, skip):
        rows = out.get(topic)
        if rows is None:
            out[topic] = [row]
        else:
            rows.append(row)
    return out


def key_texts(queue: Queue, trusted: bool) -> set[str]:
    """Expressions of keys that a queue evaluates of each row as it enters; trusted: of the server's own rows."""
    out: set[str] = set()
    if queue.replaces and (text := queue.settings.reading("last_value_key")) is not None:
        out.add(text)
    if queue.deduplicates and not trusted and (text := queue.settings.reading("dedup_key")) is not None:
        out.add(text)
    return out


class RowRouter:
    """Routes batches row by row, under the present topology."""

    def __init__(self, router: Router, interning: Interning, traits: TraitsMemo) -> None:
        self._router = router
        self._interning = interning
        self._traits = traits
        # of topics whose way depends on headers or extra keys
        self._plans = Remembered[tuple[Topic, bytes, bool], Plan](PLANS_KEPT)
        self._planned: list[Topic] = []  # those with a plan of their own
        self._plans_version = -1  # of all these plans
        self._drawn = 0  # batches for which chance has drawn

    def plan(self, topic: Topic) -> Plan:
        """The plan kept on the topic, made anew when the topology has changed."""
        plan = topic.plan
        if isinstance(plan, Plan) and plan.version == self._router.topology.version:
            return plan
        if self._plans_version != self._router.version:
            self._drop_stale()
        if len(self._planned) >= PLANNED_MOST:
            self._planned.clear()  # by now others are interned in place of most of them
        self._planned.append(topic)
        plan = topic.plan = self._router.plan(topic.vhost, topic.exchange, (topic.name, *topic.blind), None)
        return plan

    def _drop_stale(self) -> None:
        """Before a plan is made: those of an older topology go, also of topics that nobody routes again.

        They name queues that may be gone, and these hold what they knew of their messages.
        """
        self._plans_version = self._router.version
        self._plans.clear()
        for topic in self._planned:
            topic.plan = None
        self._planned.clear()

    def reach(self, topic: Topic, header: bytes) -> int:
        """How many queues and filters a message comes to; its way is found, and a publish need not do that."""
        plan, carbon = self.plan(topic), b"CC" in header and bool(self._traits[header].keys)
        if plan.by_headers or carbon:
            plan = self._special_plan(topic, header, carbon)
        return len(plan.queues) + len(plan.filters)

    def dear(self, topic: Topic) -> bool:
        """Whether each message of a topic comes to many filters, or to many bindings in a way of its own."""
        plan = self.plan(topic)
        if len(plan.filters) > FEW:
            return True
        return plan.by_headers and not self._router.passes_few(topic.vhost, topic.exchange, FEW)

    def route_of(self, plan: Plan) -> int:
        """The interned id of the plan's queues; NO_ROUTE when it has none, or when the table of routes is full."""
        if plan.route == NO_ROUTE and plan.queues:
            plan.route = self._interning.route(tuple([queue.id for queue in plan.queues]))
        return plan.route

    def route(self, batch: Publishes, traits: list[Traits], skip: int, terms: Terms) -> Routed:
        """Where the rows go: as it was worked out before (`keep`), if that still holds, else worked out here.

        traits: of each row.
        """
        left, batch.routed = batch.routed, None
        if not terms.banned and isinstance(left, tuple):
            key, routed = cast("tuple[tuple[int, int, bool, bool], Routed]", left)
            if key == (self._router.version, skip, terms.trusted, terms.carbon):
                return routed
        routed = Routed(len(traits))
        self._route(batch, traits, skip, terms, routed)
        return routed

    def keep(self, batch: Publishes, skip: int, terms: Terms, routed: Routed) -> None:
        """Remember on a batch where its rows go, for `route` under the same topology and terms."""
        if not terms.banned:
            batch.routed = ((self._router.version, skip, terms.trusted, terms.carbon), routed)

    def unwanted(self, batch: Publishes, traits: list[Traits]) -> list[int]:
        """The rows of a client's batch that nobody wants; where the others go is kept on it for `route`."""
        routed = self.route(batch, traits, 0, Terms())
        self.keep(batch, 0, Terms(), routed)
        return routed.unroutable

    def unjudged(self, batch: Publishes, skip: int, terms: Terms) -> list[Question]:
        """What has to be evaluated before the batch can be published; if nothing, where its rows go is kept on it."""
        asked = self._unvalued(batch, skip, terms)
        return asked + self._unfiltered(batch, skip, terms, {row for question in asked for row in question.rows})

    def _unvalued(self, batch: Publishes, skip: int, terms: Terms) -> list[Question]:
        """Priorities and keys that have to be worked out off the loop."""
        if not (self._router.rating or self._router.keying):
            return []
        ranks, keys = dict[str, list[int]](), dict[str, list[int]]()
        for plan, rows in self.plans_of(batch, skip, terms.carbon):
            for text in {one.settings.rank_text for one in plan.queues} - {None}:
                assert text is not None
                ranks.setdefault(text, []).extend(rows)
            for text in {text for queue in plan.queues for text in key_texts(queue, terms.trusted)}:
                keys.setdefault(text, []).extend(rows)
        return unrated(batch, ranks.items()) + unkeyed(batch, keys.items())

    def plans_of(self, batch: Publishes, skip: int, carbon: bool) -> Iterator[tuple[Plan, list[int]]]:
        """The plans of a batch, whatever their filters say, and the rows of each."""
        carbon = carbon and any(one.keys for one in self._traits.kinds(batch))
        for topic, rows in by_topic(batch.topics, len(batch.bodies), skip).items():
            plan = self.plan(topic)
            if not (plan.by_headers or carbon):
                yield plan, rows
                continue
            alike: dict[bytes, list[int]] = {}
            for row in rows:
                alike.setdefault(batch.properties_of(row), []).append(row)
            for data, same in alike.items():
                yield self._special_plan(topic, data, carbon), same

    def _unfiltered(self, batch: Publishes, skip: int, terms: Terms, elsewhere: Collection[int]) -> list[Question]:
        """Filters that have to be asked off the loop.  elsewhere: rows whose bodies are read there anyway."""
        if not self._router.filtering:
            return []
        if not any(plan.filtered or plan.by_headers or terms.carbon for plan in map(self.plan, batch.distinct_topics)):
            return []
        asking = Asking(elsewhere=elsewhere)
        routed = Routed(len(batch.bodies), asking)
        self._route(batch, self._traits.each(batch), skip, terms, routed)
        if not asking.questions:
            self.keep(batch, skip, terms, routed)
        return list(asking.questions.values())

    def _route(self, batch: Publishes, traits: list[Traits], skip: int, terms: Terms, routed: Routed) -> None:
        """Group the rows by where they go, and let each group pass its queues' filters."""
        kinds = set(traits)
        clean = terms.trusted or all(one.refusal is None for one in kinds)
        carbon = terms.carbon and any(one.keys for one in kinds)
        for topic, rows in by_topic(batch.topics, len(traits), skip).items():
            if not clean:
                rows = routed.refuse(rows, traits)
            plan = self.plan(topic)
            if plan.by_headers or carbon or terms.banned:
                self._route_singly(batch, rows, topic, plan, carbon, terms.banned or {}, routed)
            elif rows:
                self._take(batch, rows, topic, plan, routed)
        routed.unroutable.sort()
        routed.refused.sort(key=itemgetter(0))

    def _route_singly(
        self, batch: Publishes, rows: Sequence[int], topic: Topic, plan: Plan, carbon: bool, banned: Banned,
        routed: Routed,
    ) -> None:  # fmt: skip
        """Rows of one topic of which each header, or who must not take them, has a say in where they go."""
        alike: dict[tuple[bytes, frozenset[str], float | None], list[int]] = {}
        draws = self._draws(batch) if plan.by_chance else None
        for row in rows:
            draw = None if draws is None else draws[row]
            alike.setdefault((batch.properties_of(row), banned.get(row, frozenset()), draw), []).append(row)
        for (data, ban, draw), same in alike.items():
            one = self._special_plan(topic, data, carbon, draw) if plan.by_headers or carbon else plan
            self._take(batch, same, topic, one.without(ban) if ban else one, routed)

    def _take(self, batch: Publishes, rows: list[int], topic: Topic, plan: Plan, routed: Routed) -> None:
        """Note for rows of one plan which queues take them."""
        if plan.replies:
            waiting = self._router.replies
            found = [waiting[topic.vhost, one] for one in plan.replies if (topic.vhost, one) in waiting]
            routed.replies += [(row, take) for row in rows for take in found]
            if found and not (plan.queues or plan.keep):
                return
        if plan.filtered:
            self._filter(batch, rows, topic, plan, routed)
        elif plan.queues or plan.keep:
            routed.take(rows, plan.queues, self.route_of(plan), NOBODYS if plan.keep else plan.own)
        else:
            routed.unroutable += rows

    def _filter(self, batch: Publishes, rows: list[int], topic: Topic, plan: Plan, routed: Routed) -> None:
        """The same by what content filters say; nothing is decided before all are answered."""
        wanted = takers(batch, rows, topic, plan, routed.asking)
        if routed.asking is not None and routed.asking.questions:
            return
        alike: dict[int, list[int]] = {}
        for row, bits in zip(rows, wanted, strict=True):
            alike.setdefault(bits, []).append(row)
        for bits, same in alike.items():
            queues = tuple(queue for i, queue in enumerate(plan.queues) if bits >> i & 1)
            if queues:
                own = NOBODYS if plan.keep else plan.own
                routed.take(same, queues, self._interning.route(tuple(queue.id for queue in queues)), own)
                for bit, i in enumerate(plan.fenced, len(plan.queues)):
                    if bits >> bit & 1 and bits >> i & 1:
                        routed.barriers.setdefault(plan.queues[i], []).extend(same)
            elif plan.keep:
                routed.take(same, (), NO_ROUTE)
            else:
                routed.unroutable += same

    def _draws(self, batch: Publishes) -> list[float]:
        """What chance has drawn for each row; once, however often the batch is looked at."""
        if batch.draws is None:
            self._drawn += 1
            batch.draws = [chance(self._drawn, row) for row in range(len(batch.bodies))]
        return batch.draws

    def _special_plan(self, topic: Topic, data: bytes, carbon: bool, draw: float | None = None) -> Plan:
        """The plan of a topic for messages with one header, or for the one for which this was drawn."""
        if self._plans_version != self._router.version:
            self._drop_stale()
        plan = self._plans.get((topic, data, carbon)) if draw is None else None
        if plan is None:
            traits = self._traits[data]
            keys = (topic.name, *topic.blind, *(traits.keys if carbon else ()))
            plan = self._router.plan(topic.vhost, topic.exchange, keys, Told(traits.headers, data, draw))
            if len(data) <= HEADER_KEPT and draw is None:
                self._plans.keep((topic, data, carbon), plan)
        return plan
