"""Commands about queues as such: declare, alter, purge, delete; and their figures, as the documents name them.

Figures that one instance alone cannot have are constant.  What happens to messages on their way through a queue is
`deliveries`.

Who is bound to an exchange with a history gets the messages that it remembers, as they are stored.  A queue that takes
anything gets them in the group of the binding.  What has to be looked at comes a moment later: the filters of a queue
go through the messages off the loop, and keys and headers are read for an exchange that is bound, whose bindings say
which queues take each.  Who stops before that has no history; whatever was taken is in the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from penstock.core.chance import chance
from penstock.core.commands.life import NOWHERE, RecoveryCommands
from penstock.core.effects import Fetch, Fetched, Found, Purpose, Scan, Scanned, Token
from penstock.core.queue.dispatching.attendance import active_tag, count_aside, note_use
from penstock.core.queue.explaining import share_figures
from penstock.core.queue.order.ranking import priorities
from penstock.core.queue.order.runs import NEVER, packed
from penstock.core.queue.owning import NOT_SHARED, not_shared
from penstock.core.queue.places import oldest, weighed
from penstock.core.queue.queue import Queue
from penstock.core.queue.stopped import refuse_stopped
from penstock.core.state.lsns import Ints, flat, spread
from penstock.core.state.stamps import Stamps
from penstock.core.topology.declaring import NO_TABLE
from penstock.core.topology.exchange_types import Told
from penstock.core.topology.topology import RECENT
from penstock.errors import AccessRefused, PreconditionFailed
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.declared_types import LEVELS_KEY, LEVELS_WEIGHTS
from penstock.records.queue_settings import QueueSettings, Ruling, ruling_of

READ_AT_ONCE = 1_000
"""Messages whose keys and headers are read together: each is routed by itself."""

RUNS_MOST = 1000
"""Runs of each place that are looked at for its oldest message; of a more disordered queue the age is a guess."""


def statistics(queue: Queue, now: Now, stamps: Stamps, proxied: Container[int] = ()) -> dict[str, object]:
    """Snapshots, counts since the start, and settings.  proxied: queues for whose absent owners this site acts."""
    figures = queue.so_far
    depth = depth_of(queue)
    settings = queue.settings
    return {
        "queue_depth": depth,
        "inactive_message_count": queue.inactive,
        "backlog": queue.outstanding,
        "age_of_oldest_lease": age_of_oldest_lease(queue, now),
        "seconds_behind": seconds_behind(queue, now, stamps),
        "owned": depth + queue.inactive - queue.theirs_counted(),
        "foreign": queue.foreign_count,
        "transferred_in": queue.transfers[0],
        "transferred_out": queue.transfers[1],
        "double": queue.transfers[2],
        "proxied_transfer": queue.id in proxied,
        "max_backlog": settings.max_backlog,
        "target_queue_depth": settings.target_queue_depth,
        "message_type": settings.message_type,
        "topic": settings.underlying_topic or queue.name,
        "redelivered": figures.redelivered,
        "expirations": dict(figures.expirations or {}),
        "ack_rate": round(figures.rate(now.mono), 3),
        "lease_to_ack": told(figures.quantiles()),
    }


def pause_told(queue: Queue) -> dict[str, object]:
    """Whether somebody paused it, and until when where that is known."""
    until = queue.paused_until
    return {"paused": queue.paused, "paused_until": until / 1e6 if 0 < until < NEVER else None}


def given_way(queue: Queue) -> dict[str, object]:
    """What its limits did since the start: dropped at the head, replaced in a ring, refused;
    and how often a target refused one of its dead letters."""
    figures = queue.so_far
    return {
        "dropped": figures.dropped,
        "replaced": figures.replaced,
        "refused": figures.refused,
        "dead_letter_refused": figures.letters_refused,
    }


def head_published(queue: Queue, now: Now, stamps: Stamps) -> int | None:
    """When the message that goes next was published, in seconds since the epoch; None without one."""
    head = queue.head()
    return None if head is None else stamps.of(head[1], now.wall) // 1_000_000


def told(quantiles: Mapping[float, float]) -> dict[str, float]:
    """By `p50`, `p99`, `p99.9` and so on, in seconds."""
    return {f"p{100 * share:g}": seconds for share, seconds in quantiles.items()}


def depth_of(queue: Queue) -> int:
    """Active messages that are not settled."""
    return queue.ready + queue.held + queue.leased + queue.delayed + queue.dying


def age_of_oldest_lease(queue: Queue, now: Now) -> float:
    """Seconds since the oldest delivery that nobody has settled; 0 without any."""
    granted = NEVER
    for consumer in queue.holders():
        first = next(consumer.leases.held(), None)
        if first is not None and first.granted:
            granted = min(granted, first.granted)
    return 0.0 if granted == NEVER else max(now.mono - granted, 0) / 1e6


def seconds_behind(queue: Queue, now: Now, stamps: Stamps) -> float:
    """Seconds since the oldest message that is not settled was published, or since the start; 0 for an empty queue."""
    lowest = oldest(queue, RUNS_MOST)
    return 0.0 if lowest == NEVER else max(now.wall - stamps.of(lowest, now.wall), 0) / 1e6


class QueueCommands(RecoveryCommands):
    """Queues, from declare to delete, and what they are bound to."""

    draining = False
    """Whether the server runs empty: nothing is granted and nobody new consumes.  The process's own affair."""

    queues_declared = 0
    """Declares in this process that were not refused, also of queues that were there; passive ones do not count."""

    @property
    def queues_created(self) -> int:
        """Queues that this process made."""
        return self._admin.created

    @property
    def queues_deleted(self) -> int:
        """Queues that this process deleted, with those whose time or connection ended."""
        return self._admin.deleted

    def queues(self) -> list[Queue]:
        """All queues of all vhosts, in the order of their declares."""
        return list(self._admin.by_id.values())

    def declare_queue(
        self,
        now: Now,
        vhost: str,
        name: str,
        settings: QueueSettings,
        *,
        durable: bool = True,
        exclusive_to: object | None = None,
        auto_delete: bool = False,
        arguments: Mapping[str, object] = NO_TABLE,
        passive: bool = False,
        by: object | None = None,
        server_named: bool = False,
        given: Iterable[str] | None = None,
    ) -> Queue:
        """Declare a queue, or find an equal one.

        exclusive_to: the connection that alone may use it.  by: the connection that asks.
        server_named: the server made the name, which may then begin with `amq.`.
        given: names of the settings that somebody gave; None: those that differ from their default.
        """
        now = self._at(now)
        fresh = not passive and self._admin.queues.find(vhost, name) is None
        if fresh:
            self._check_point(name, settings)
            if vhost in self.queue_limits:
                self._check_limit(vhost, name)
        with self._out.group():
            queue = self._admin.declare_queue(
                now, vhost, name, settings, durable=durable, exclusive_to=exclusive_to, auto_delete=auto_delete,
                arguments=arguments, passive=passive, by=by, server_named=server_named,
                given=given,
            )  # fmt: skip
            self.queues_declared += not passive
            self.used_queue(now, queue)
            if fresh:
                self._touch(queue)  # whoever counts queues knows it by that
                if self.draining:
                    queue.drain(now, True, self._out)
                self._paging.wanted |= bool(queue.settings.file_backed_metadata)
                self._begin_pass(queue)
                if self.peers.here:
                    if exclusive_to is None and queue.settings.kind != "local":
                        self.began.note(queue.id, self.peers.sites, self.links, self.carried)
                    self._say_owner(now, queue)
        if fresh:
            self._appeared(now, queue)
        return queue

    def _appeared(self, now: Now, queue: Queue) -> None:
        """A new queue is there."""

    def _say_owner(self, now: Now, queue: Queue) -> None:
        """Whose messages are that are published here: of a group-local queue its initial owner's, met or not."""

    def used_queue(self, now: Now, queue: Queue) -> None:
        """Somebody declared the queue, or asked whether it is there: what counts as use for `queue_expires`."""
        if queue.settings.queue_expires is not None:
            note_use(queue, self._at(now))
            self._touch(queue)

    def _check_limit(self, vhost: str, name: str) -> None:
        """PreconditionFailed when the vhost has as many queues as it may."""
        most = self.queue_limits[vhost]
        if self._admin.queues.count(vhost) >= most:
            raise PreconditionFailed(
                f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({most}) is reached"
            )

    def ruling(self, queue: Queue) -> Ruling:
        """A queue's own settings, which of them were given, and what makes those in force of them."""
        return ruling_of(queue.settings, queue.ruling)

    def alter_queue(
        self,
        now: Now,
        queue: Queue,
        settings: QueueSettings,
        given: Iterable[str] | None = None,
        places: Mapping[int, int] = NOWHERE,
    ) -> int:
        """Other settings of its own for a queue, at once; those in force follow.

        given: names of the settings that somebody gave; None: those given before, and those that are others now.
        places: what `lsn_at` says of times, where somebody has asked the log already.
        Returns how many messages left, because somebody gave a recovery point that they come before.
        """
        in_force, ruling = self._admin.altering(queue, settings, given)
        if held := fixed(queue, in_force):
            own = ruling_of(queue.settings, queue.ruling).own
            if any(getattr(settings, name) != getattr(own, name) for names, _ in held for name in names):
                raise PreconditionFailed(held[0][1])  # what only policies want may wait
            in_force, ruling = self._without(held, queue, in_force, ruling)
        return self._rule(self._at(now), queue, in_force, ruling, places)

    def _make_levels(self, now: Now) -> None:
        """Queues that took a message of a high priority have two levels from now on, where nothing excludes it."""
        raised = sorted(self._publisher.raised, key=attrgetter("id"))
        self._publisher.raised.clear()
        for queue in raised:
            if queue.id not in self._router.leveling or any(one.filter is not None for one in queue.consumers):
                continue
            if queue.stopped:
                continue
            settings = replace(self.ruling(queue).own, fairness_key=LEVELS_KEY, weights=LEVELS_WEIGHTS)
            if self._admin.why_not(queue, settings) is None:
                self.alter_queue(now, queue, settings)

    def _without(
        self, held: Sequence[Held], queue: Queue, settings: QueueSettings, ruling: Ruling | None
    ) -> tuple[QueueSettings, Ruling | None]:
        """What policies say, but for what cannot change while the queue has messages: that stays, and is said."""
        said = ruling_of(settings, ruling)
        stay = {name: getattr(queue.settings, name) for names, _ in held for name in names}
        kept = replace(settings, **stay)
        if self._admin.why_not(queue, kept) is not None:  # not beside the others: then nothing changes for now
            kept, said = queue.settings, ruling_of(queue.settings, queue.ruling)
        unapplied = dict(said.unapplied) | {names[0]: why for names, why in held}
        sources = tuple((name, source) for name, source in said.sources if name not in stay)
        return kept, replace(said, sources=sources, unapplied=tuple(sorted(unapplied.items())))

    def _rule(
        self,
        now: Now,
        queue: Queue,
        settings: QueueSettings,
        ruling: Ruling | None,
        places: Mapping[int, int] = NOWHERE,
    ) -> int:
        """These settings are in force from now on, and why; how many messages a new recovery point has taken out.

        None of them is one that is `fixed`.
        """
        moved = settings.recovery_point != queue.settings.recovery_point
        if moved or settings.initial_owner != queue.settings.initial_owner:
            self._check_point(queue.name, settings)
        left = 0
        self._out.begin()
        altered = self._admin.alter_queue(queue, settings, ruling)
        if altered:
            if moved and "recovery_point" in ruling_of(settings, ruling).given:  # a default takes nothing away
                left = self._leave_behind(now, queue, settings, places)
            queue.alter(now, settings, self._out)
            self._paging.wanted |= bool(settings.file_backed_metadata)
            self._admin.altered(queue)
            if self.peers.here:
                self._say_owner(now, queue)
            if moved:
                self._begin_pass(queue, places)
        self._out.end()
        if altered:
            self._touch(queue)
        self._ruled(now, queue)
        return left

    def _ruled(self, now: Now, queue: Queue) -> None:
        """Other settings are in force, or the same ones again."""

    def delete_queue(self, now: Now, queue: Queue, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue; returns how many were ready.  Errors: PreconditionFailed when in use or not empty."""
        if queue.exchange is not None:
            raise AccessRefused(f"queue '{queue.name}' belongs to exchange '{queue.exchange}', and goes with it")
        if if_unused and queue.consumers:
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{queue.vhost}' in use")
        if if_empty and queue.available + queue.inactive:
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{queue.vhost}' not empty")
        return self._end_queue(now, queue)

    def _end_queue(self, now: Now, queue: Queue) -> int:
        """A queue goes, whatever is in it; how many were ready."""
        now = self._at(now)
        self._out.begin()
        ready = self._admin.delete_queue(now, queue)
        self._out.end()
        return ready

    def end_exclusive(self, now: Now, holder: object, most: int) -> bool:
        """A connection is gone: the queues that were its own go with it, so many at once; whether some are left."""
        own = self._admin.exclusive.get(holder, {})
        for queue in list(islice(own.values(), most)):
            self._end_queue(now, queue)
        return bool(self._admin.exclusive.get(holder))

    def purge_queue(self, now: Now, queue: Queue) -> int:
        """Remove what is ready; returns how many messages that were.

        Errors: Unavailable for one that a fault has stopped, of which nobody knows what is ready.
        """
        refuse_stopped(queue)
        count = queue.purge(self._at(now), self._out)
        self._touch(queue)
        return count

    def cancelled(self, queue: Queue) -> int:
        """Messages that were cancelled since the start."""
        return self._cancelled.get(queue.id, 0)

    def deferred_acks(self, queue: Queue) -> int:
        """Acks that came before their messages."""
        return self._deferred.count(queue.id)

    def stats(self, queue: Queue, now: Now) -> dict[str, object]:
        """Figures of one queue; counts are since the start of this process."""
        weight = weighed(queue)
        return {
            **statistics(queue, now, self.stamps, self.proxied),
            "ready": queue.ready,
            "held": queue.held,
            "inactive": queue.inactive,
            "barriers_waiting": queue.barriers_waiting,
            "leased": queue.leased,
            "ready_bytes": weight.ready,
            "leased_bytes": weight.leased,
            "bytes": weight.total,
            "delayed": queue.delayed,
            **pause_told(queue),
            "dying": queue.dying,
            "damaged": count_aside(queue),
            **given_way(queue),
            **queue.keys_told,
            "consumers": len(queue.consumers),
            "single_active_consumer_tag": active_tag(queue),
            "published": queue.arrived,
            "delivered": queue.so_far.delivered,
            "acked": queue.so_far.acked,
            "cancelled": self._cancelled.get(queue.id, 0),
            "stale": queue.so_far.stale,
            "expired_leases": queue.so_far.expired_leases,
            "deferred_acks": self._deferred.count(queue.id),
            "deferred_ack_count": self._deferred.count(queue.id),
            **priorities(queue),
            **share_figures(queue),
        }

    # -- bindings, and the recent history that an exchange gives to a new one

    def bind(
        self, now: Now, vhost: str, source: str, destination: str, kind: str, key: str,
        arguments: Mapping[str, object] = NO_TABLE, by: object | None = None,
    ) -> None:  # fmt: skip
        """Bind a queue ("queue") or an exchange ("exchange") to an exchange; the same twice is one.

        by: the connection that asks.  Who is bound gets what the exchange remembers of late.
        """
        now = self._at(now)
        with self._out.group():
            new = self._admin.bind(now, vhost, source, destination, kind, key, arguments, by)
            recent = self._admin.queues.find(vhost, RECENT.prefix + source) if new else None
            if recent is not None and recent.exchange == source:
                into = self._admin.queue(vhost, destination, by) if kind == "queue" else destination
                self._give_history(now, recent, into, packed(_remembered(recent)))

    def _give_history(self, now: Now, source: Queue, into: Queue | str, chunk: Chunk) -> None:
        """Give these messages to a queue, at once or after its filters (or an exchange's routing) were asked."""
        filters = () if isinstance(into, str) else self._router.filters_of(into)
        if isinstance(into, Queue) and not filters:
            self._take_history(now, source, into, chunk)
        elif len(chunk):
            self._histories_asked += 1
            self._histories[self._histories_asked] = source, into, chunk, filters
            token = Token(source.id, self._histories_asked, Purpose.HISTORY)
            self._out.effect(Scan(token, filters, chunk) if filters else Fetch(token, chunk[:READ_AT_ONCE]))

    def _history_answered(self, now: Now, answer: Fetched | Scanned) -> None:
        """A part of the history was judged: give what is wanted, and go on with the rest."""
        source, into, chunk, filters = self._histories.pop(answer.token.serial)
        there = self._admin.by_id.get
        if there(source.id) is not source or (isinstance(into, Queue) and there(into.id) is not into):
            return
        looked_at = bisect_right(chunk, answer.upto)
        with self._out.group():
            if isinstance(answer, Fetched):
                for queue, lsns in self._routed_history(source, str(into), answer).items():
                    self._give_history(now, source, queue, as_chunk(lsns))
            elif isinstance(into, Queue):
                if self._router.filters_of(into) != filters:  # it was altered meanwhile
                    looked_at = 0
                else:
                    wanted = as_chunk(answer.found[0]) if into.settings.filter else chunk[:looked_at]
                    barriers = answer.found[-1] if into.settings.barrier_expression else ()
                    self._take_history(now, source, into, wanted, barriers)
            self._give_history(now, source, into, chunk[looked_at:])

    def _routed_history(self, source: Queue, exchange: str, answer: Fetched) -> dict[Queue, list[int]]:
        """Where an exchange would send these messages.  What keeps duplicates out on their way takes none of them."""
        out: dict[Queue, list[int]] = {}
        rows = answer.rows
        for lsn, topic, data in zip(rows.lsns, rows.topics, rows.properties, strict=True):
            traits = self._publisher.traits[data]
            told = Told(traits.headers, data, chance(lsn))
            plan = self._router.plan(source.vhost, exchange, (topic.name, *traits.keys), told)
            for queue in () if plan.gates else plan.queues:
                if queue is not source:
                    out.setdefault(queue, []).append(lsn)
        return out

    def _take_history(self, now: Now, source: Queue, queue: Queue, wanted: Chunk, barriers: Sequence[int] = ()) -> None:
        """A queue takes of these what is still remembered and it has not.  barriers: those that are such in it."""
        queue.catch_up(now, self._out)
        remembered = _remembered(source)
        lsns = remembered[np.isin(remembered, flat([wanted]))]
        lsns = lsns[~np.isin(lsns, flat(list(queue.living_pieces())))]
        if not len(lsns):
            return
        _, columns = source.snapshot()
        ends = spread(lsns, columns.get("expires_at", array("q")))
        transient = self._publisher.transient
        found = Found(
            lsns, np.full(len(lsns), now.wall), ends, np.zeros_like(lsns), self.sizes.of(packed(lsns)),
            lsns[np.isin(lsns, barriers)].tolist(), lsns[transient.among(lsns)].tolist(),
        )  # fmt: skip
        self._take(now, queue, found, None)
        if self._passes.get(queue.id, ((), None))[1] is None:
            queue.put_in_order(self._out.last_lsn)
        queue.go_on(now, self._out)
        self._touch(queue)


def _remembered(source: Queue) -> Ints:
    return flat([chunk for chunk in source.chunks("ready") if len(chunk)])


Held: TypeAlias = tuple[tuple[str, ...], str]
"""Settings that cannot change for now, and why."""


def fixed(queue: Queue, settings: QueueSettings) -> list[Held]:
    """Settings of a queue that cannot become these while it has messages, with the reason of each."""
    present, what = queue.settings, f"of queue '{queue.name}' in vhost '{queue.vhost}'"
    worked = "their keys were worked out when they came; purge it, or declare another"
    out = list[Held]()
    if settings.last_value_key != present.last_value_key and (queue.ready + queue.leased + queue.delayed + queue.dying):
        out.append((("last_value_key",), f"last_value_key {what} cannot change while it has messages: {worked}"))
    key, before = settings.unique and settings.dedup_key, present.unique and present.dedup_key
    if (settings.unique, key) != (present.unique, before) and queue.floor() < NEVER:
        why = f"unique, and the dedup_key it goes by, {what} cannot change while it has messages: {worked}"
        out.append((("unique", "dedup_key"), why))
    if queue.foreign_count and (names := not_shared(settings)):
        lacks, many = NOT_SHARED[names[0]], queue.foreign_count
        out.append((names, f"queue '{queue.name}' cannot have {lacks} while other sites own {many} of its messages"))
    if settings.non_destructive and not present.non_destructive and (many := queue.outstanding):
        why = f"non_destructive {what} cannot be set while {many} of its messages are out for delivery"
        out.append((("non_destructive",), why))
    return out
