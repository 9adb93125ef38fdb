"""A queue: messages from arrival to settlement, and the consumers that work on them.

Every message is in one of four states, or gone:

    arrive -> delayed -> ready -> leased -> settled
                ^          ^        |
                +----------+--------+   returned: to its own place, or into back-off
    dying: it leaves without success, and a dead letter or an action still needs its body

A queue decides with the `now` it is handed, writes each durable change to the sink and asks for effects there.  It
knows no exchange, no topic, no other queue but those that share credit with it, no body but those shown to filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from penstock.core.effects import Cancelled, Purpose, Sink, Token, Verb
from penstock.core.queue.arrival import append_rest, divert, set_deadlines
from penstock.core.queue.aside import set_aside
from penstock.core.queue.barriers.arrival import arrive_behind
from penstock.core.queue.barriers.barriers import dissolve
from penstock.core.queue.barriers.release import looked, release
from penstock.core.queue.contents import NO_CREDIT, Contents
from penstock.core.queue.depth import activate, arrive_behind_depth
from penstock.core.queue.dispatching.attendance import altered, look, muster, note_use
from penstock.core.queue.dispatching.browsing import browse
from penstock.core.queue.dispatching.consumers import Consumer, Terms
from penstock.core.queue.dispatching.dispatch import dispatch, grant, room_now
from penstock.core.queue.figures import Figures
from penstock.core.queue.heeding import names, wants
from penstock.core.queue.limits.entry import arrive_in_parts, begin, end, keep_time, together
from penstock.core.queue.limits.limits import REPLACED, limits_of
from penstock.core.queue.limits.trimming import trim
from penstock.core.queue.order.runs import NEVER, Run, pairs_body
from penstock.core.queue.priority.arrival import arrive_by_priority, note_ranks
from penstock.core.queue.priority.ranking import change_ranks, go_on, rated
from penstock.core.queue.purge import ready_pairs
from penstock.core.queue.settling.leases import SLOT, STEP_MOST
from penstock.core.queue.settling.letters import Letter
from penstock.core.queue.settling.settle import give_back, settle
from penstock.core.queue.shares.pace import Pace
from penstock.core.queue.shares.shares import expressions, stage
from penstock.core.queue.shares.staging import Told
from penstock.core.queue.timed.due import end_delays, end_leases, expire_due, expire_overspent
from penstock.core.queue.timed.moving import pause, reschedule, withdraw
from penstock.core.queue.timed.onward import depart
from penstock.errors import AccessRefused, InvalidArgument
from penstock.records.chunks import LSN_LIMIT, Chunk, Now, pack_pairs
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind
from penstock.records.settings import QueueSettings


class Queue(Contents):
    """One queue.  Commands take `now` first and the sink last; each leaves nothing undone that is due at `now`."""

    __slots__ = ()

    # -- arrival

    def arrive(
        self,
        now: Now,
        chunk: Chunk,
        sink: Sink,
        *,
        batch: Publishes | None = None,
        rows: Sequence[int] | None = None,
        expires_at: Sequence[int] | None = None,
        not_before: Sequence[int] | None = None,
        priority: Sequence[int] | None = None,
        barriers: Sequence[int] | None = None,
        ranks: Sequence[int] | None = None,
        keys: Sequence[Told] | None = None,
        last_keys: Sequence[int] | None = None,
    ) -> None:
        """Take messages (ascending, newer than all before), then dispatch.

        batch, rows    their bodies, for filters: rows of the batch in the order of the chunk; None: all of it
        expires_at, not_before    as on `Publishes`, one value for each message of the chunk
        priority       of each message; queues of this version serve in order of arrival whatever it says
        ranks          of each message, what its priority expression gave (`core.queue.ranks`)
        keys           of each message, what the queue's expressions gave; None: they are worked out later
        last_keys      of each message, what its last-value key gave (`core.queue.last_values`)
        barriers       those of the chunk that are barriers, ascending; their BARRIER record is written
        """
        if not len(chunk):
            return
        if self.last_values is not None and self.limits is not None and len(chunk) > 1:
            each = range(len(chunk)) if rows is None else rows  # what one replaces makes room for the next
            for i in range(len(chunk)):
                self.arrive(
                    now, chunk[i : i + 1], sink, batch=batch, rows=[each[i]], expires_at=_one(expires_at, i),
                    not_before=_one(not_before, i), priority=_one(priority, i), ranks=_one(ranks, i),
                    keys=None if keys is None else keys[i : i + 1], last_keys=_one(last_keys, i),
                )  # fmt: skip
            return
        if self.is_due(now):
            self.tick(now, sink)
        before = 0
        if self.limits is not None:
            if len(chunk) > 1 and together(self, chunk) < len(chunk):
                columns = (rows, expires_at, not_before, priority, ranks, keys)
                arrive_in_parts(self, now, chunk, sink, batch, *columns)
                return
            before = begin(self, now, sink, len(chunk))
        if self.ranks is not None:
            note_ranks(self, chunk, ranks)
        elsewhere = None
        if not_before is not None:
            elsewhere = divert(self, now, chunk, not_before)
        if expires_at is not None or self.settings.expiration is not None or self.settings.message_ttl is not None:
            dead = set_deadlines(self, now, chunk, expires_at, elsewhere)
        else:
            dead = None
            if not self.expiry.empty:
                self.expiry.part()
        if self.last_values is not None:
            gone = [part for part in (elsewhere, dead) if part is not None]
            self.last_values.add(self, chunk, [0] * len(chunk) if last_keys is None else last_keys, gone)
        behind = None
        if self.shares is not None:
            self.shares.mono = now.mono
            room = 0 if self.shares.tenants is None else room_now(self, now)
            behind = self.shares.arrive(self, chunk, keys, elsewhere, dead, room)
            self.ready += 0 if behind is None else len(behind)
            if behind is not None and self.weight >= 0:
                self.weight += self.sizes.total(behind)
        if barriers is not None or self.barriers.held:
            arrive_behind(self, chunk, batch, rows, barriers or (), elsewhere, dead)
            if dead is not None:
                self.expire([Run(dead, False)], "time_limit", sink)
        elif self.ranks is not None or self.settings.target_queue_depth or self.tail.count:
            gone = [part for part in (elsewhere, dead, behind) if part is not None]
            if self.ranks is not None:
                arrive_by_priority(self, now, chunk, batch, rows, gone, sink)
            else:
                arrive_behind_depth(self, chunk, batch, rows, gone)
            if dead is not None:
                self.expire([Run(dead, False)], "time_limit", sink)
        elif elsewhere is None and dead is None and behind is None:
            if self.targets.lists:
                self.targets.arrive(chunk, batch, rows, self.main)
            self.main.append(chunk)
            self.ready += len(chunk)
            if self.weight >= 0:
                self.weight += self.sizes.total(chunk)
        else:
            apart = (elsewhere, dead, behind)
            append_rest(self, chunk, batch, rows, [part for part in apart if part is not None])
            if dead is not None:
                self.expire([Run(dead, False)], "time_limit", sink)
        if self.roster.all:
            if self.ready:
                dispatch(self, now, sink)
        elif self.onward is not None:
            if self.ready and not self.paused_until:
                depart(self, sink)
        elif self.settings.purge_on_no_consumers:
            self._purge(sink)
        if self.tail.count:
            activate(self, now, sink)
        if self.barriers.held:
            release(self, now, sink)
        if self.last_values is not None:
            while self.hungry:  # who has room is given each before a later one of the batch replaces it
                dispatch(self, now, sink)
            self.last_values.settle(self, sink)
        if self.shares is not None:
            if self.shares.tenants is not None and not self.hungry:
                self.shares.tenants.come_again()
            self.shares.ask(self, sink)
        if self.targets.lists:
            self.targets.ask(self.main, self.returned, sink)
        if self.expiry.due <= now.wall:  # a deadline that is now: offered once, then gone
            while self.hungry:
                self.give_out(now, sink)
            expire_due(self, now, sink)
            if self.barriers.held or self.tail.count:  # one may have waited for those alone
                self.give_out(now, sink)
        if self.limits is not None:
            end(self, now, sink, before)

    # -- consumers

    def subscribe(self, now: Now, sink: Sink, **terms: Unpack[Terms]) -> Consumer:
        """A new consumer, served at once unless its connection takes nothing now.

        Errors: AccessRefused when this or another consumer wants the queue for itself.
        """
        if self.onward is not None:
            raise AccessRefused(f"queue '{self.name}' belongs to exchange '{self.onward}', and nobody consumes from it")
        passive, exclusive = terms.get("passive", False), terms.get("exclusive", False)
        if self.settings.non_destructive and terms.get("filter") is not None:
            raise InvalidArgument(
                f"queue '{self.name}' in vhost '{self.vhost}' is not destructive: its consumers have no filter; "
                "read its topic with a bookmark and a filter"
            )
        if not passive:
            self._admit(exclusive=exclusive)
        if self.shares is not None:
            self.shares.refuse(self, terms)
        if self.is_due(now):
            self.tick(now, sink)
        self._serial += 1
        consumer = Consumer(self, self._serial, **terms)
        if consumer.shared is not None:
            self.sharing += 1
        if consumer.filter is not None:
            consumer.targets = self.sieved().join(consumer, consumer.filter, self.main, self.returned)
        self.enlist(consumer)
        if not passive and self.settings.attended:
            muster(self, now)
        if not passive and consumer.targets is not None:
            consumer.targets.wake(consumer)
        self._go_on(now, sink)
        return consumer

    def _admit(self, *, exclusive: bool) -> None:
        """Refuse one consumer too many."""
        settings = self.settings
        if any(c.exclusive or exclusive for c in self.roster.all):
            raise AccessRefused(f"queue '{self.name}' in vhost '{self.vhost}' in exclusive use")
        if exclusive and settings.single_active_consumer:
            raise AccessRefused(
                f"queue '{self.name}' in vhost '{self.vhost}' has a single active consumer: none of its consumers can "
                "be exclusive"
            )
        if 0 <= settings.max_consumers <= len(self.roster.all):
            raise AccessRefused(
                f"queue '{self.name}' in vhost '{self.vhost}' has {len(self.roster.all)} consumers, "
                f"max_consumers is {settings.max_consumers}"
            )

    def unsubscribe(self, now: Now, consumer: Consumer, sink: Sink, *, requeue: bool, lost: bool = False) -> None:
        """No more deliveries to the consumer; with `requeue` what it holds goes back to its places.

        `lost`: the connection broke.  The oldest unsettled delivery counts as a failure, for its work may have caused
        that; what was prefetched behind it is returned uncounted.  Of very much the newest goes back in later ticks;
        until then the consumer that is closed holds it.
        """
        if self.is_due(now):
            self.tick(now, sink)
        was_open = not consumer.closed
        self._close(consumer)
        if was_open and not consumer.passive and self.settings.attended:
            muster(self, now)
        if requeue and consumer.leases.count and not consumer.leaving:
            oldest = consumer.leases.oldest() if lost else range(0)
            first = consumer.leases.take(oldest)[0] if len(oldest) else []
            ring = self.limits is not None and self.limits.ring < NEVER  # takes the newest first
            if first and not ring:
                self._returned(now, consumer, first, sink, cause="lost", failed=True)
            consumer.leaving = "lost" if lost else "closed"
            self._leave(now, sink)
            if first and ring:
                self._returned(now, consumer, first, sink, cause="lost", failed=True)
        self._drop_if_done(consumer)
        self._go_on(now, sink)

    def _leave(self, now: Now, sink: Sink) -> None:
        """One step of giving back what those hold who left."""
        self.leaving = False
        most = STEP_MOST
        for consumer in [one for one in self._consumers if one.leaving]:
            if most <= 0:
                self.leaving = True
                break
            runs = consumer.leases.oldest_grants(most)
            most -= sum(len(run.chunk) for run in runs)
            self._returned(now, consumer, runs, sink, cause=consumer.leaving, failed=False)
            self.leaving = self.leaving or consumer.leases.count > 0

    def _returned(self, now: Now, consumer: Consumer, runs: list[Run], sink: Sink, *, cause: str, failed: bool) -> None:
        """The consumer holds these no longer; what it does not merely fill its backlog with goes back."""
        self.freed(consumer, runs)
        runs = [run for run in runs if run.place != SLOT]
        if runs:
            give_back(self, now, runs, sink, cause=cause, failed=failed)

    def _close(self, consumer: Consumer) -> None:
        if consumer.closed:
            return
        consumer.closed = True
        if not consumer.passive:
            self.roster.remove(consumer)
        self.targets.leave(consumer)

    def pause(self, consumer: Consumer) -> None:
        """Its connection takes no more bytes now."""
        consumer.paused = True

    def resume(self, now: Now, consumer: Consumer, sink: Sink) -> None:
        """Its connection takes bytes again."""
        if self.is_due(now):
            self.tick(now, sink)
        consumer.paused = False
        if consumer.targets is not None:
            consumer.targets.wake(consumer)
        self._go_on(now, sink)

    def pull(self, now: Now, consumer: Consumer, count: int, sink: Sink) -> int:
        """Grant up to `count` of the oldest messages that the consumer wants; returns how many."""
        if count > 1 and self.shares is not None and consumer.no_ack:  # each that goes lets another of its key come
            granted = 0
            while granted < count and self.pull(now, consumer, 1, sink):
                granted += 1
            return granted
        if self.is_due(now):
            self.tick(now, sink)
        note_use(self, now)
        if min(self.room, consumer.room) <= 0 or not self.ready or self.expiry.busy or self.overfull:
            return 0
        if self.ranking is not None or self.older is not None or self.paused_until:
            return 0
        count = min(count, self.offered, consumer.room)
        if self.pace is not None:
            count = min(count, self.pace.allowed(now.mono))
        if not consumer.no_ack:
            count = min(count, self.room)
        if self.settings.non_destructive:
            return browse(self, sink, consumer, count)
        if self.shares is not None:
            self.shares.mono = now.mono
        runs = list[Run]()
        if consumer.targets is None:
            runs = self.take_ready(count)
        else:
            while len(runs) < count:
                key = consumer.targets.head(self.main)
                if key is None:
                    break
                runs.append(self.take_one(key))
        granted = sum(len(run.chunk) for run in runs)  # a lease may join them, and they grow
        if runs:
            grant(self, now, sink, consumer, runs)
        if self.tail.count:
            activate(self, now, sink)
        if self.barriers.held:  # it may need no ack
            self.serve(now, sink)
        elif self.targets.lists:
            self.targets.ask(self.main, self.returned, sink)
        return granted

    # -- settlement

    def settle(
        self,
        now: Now,
        chunks: Sequence[Chunk],
        verb: Verb,
        sink: Sink,
        *,
        by: Consumer | None = None,
        client: str = "",
        delay: int | None = None,
        reason: str | None = None,
        dying: list[Letter] | None = None,
    ) -> int:
        """End deliveries of these messages (each chunk ascending) as `verb` says; returns how many it affected.

        by        whose deliveries they are; None: whoever holds them, as the queue's `leasing` allows to `client`
        delay     microseconds that CANCEL or RELEASE keeps them away, instead of the queue's back-off
        reason    of EXPIRE, instead of `forced_expire`
        dying     takes what EXPIRE ends that wants a dead letter: the caller writes letter and record at once
        """
        if self.is_due(now):
            self.tick(now, sink)
        affected = settle(self, now, chunks, verb, sink, by, client, delay, reason, dying)
        replaced = self.last_values is not None and self.last_values.waiting  # what goes into back-off, too
        if self.ready or self._free_credit or self.targets.lists or self.barriers.held or self.tail.count or replaced:
            self._go_on(now, sink)
        return affected

    def set_aside(self, now: Now, consumer: Consumer, chunk: Chunk, sink: Sink) -> int:
        """The consumer cannot be given these, which it holds: see `core.queue.aside`.  How many there were."""
        if self.is_due(now):
            self.tick(now, sink)
        count = set_aside(self, consumer, chunk)
        self._go_on(now, sink)
        return count

    # -- time

    def is_due(self, now: Now) -> bool:
        """Whether something should have happened by now."""
        return (
            self.lease_due <= now.mono
            or self.delays.due <= now.wall
            or self.expiry.due <= now.wall
            or self.attendance.due <= now.mono
            or self.hungry
            or self.overspent
            or self.overfull
            or self.leaving
            or 0 < self.paused_until <= now.wall
            or (self.ranks is not None and self._reranks)
            or (self.shares is not None and self.shares.due <= now.mono)
            or (self.pace is not None and self.pace.due <= now.mono)
        )

    @property
    def _reranks(self) -> bool:
        """Whether a step of what is done about ranks is due."""
        assert self.ranks is not None
        return self.ranks.forgetting or (self.ranking is not None and self.ranking.more)

    def next_deadline(self) -> tuple[int | None, int | None]:
        """When to `tick` next, on the wall and on the monotonic clock; 0 is at once, None is never."""
        wall = min(self.delays.due, self.expiry.due, self.paused_until or NEVER)
        at_once = self.hungry or self.overspent or self.overfull or self.leaving
        at_once = at_once or (self.ranks is not None and self._reranks)
        mono = 0 if at_once else min(self.lease_due, self.attendance.due, self.attendance.expires)
        if self.shares is not None:
            mono = min(mono, self.shares.due)
        if self.pace is not None:
            mono = min(mono, self.pace.due)
        return (wall if wall < NEVER else None), (mono if mono < NEVER else None)

    def tick(self, now: Now, sink: Sink) -> None:
        """Do what is due: leases end, delays end, messages expire; then dispatch."""
        if 0 < self.paused_until <= now.wall:
            pause(self, 0, sink)
        if self.overspent:
            expire_overspent(self, sink)
        if self.leaving:
            self._leave(now, sink)
        if self.ranks is not None and self.ranks.forgetting:
            self.ranks.forget_some()
        if self.shares is not None:
            self.shares.tick(now.mono)
        if self.attendance.due <= now.mono:
            look(self, now, sink)
        if self.lease_due <= now.mono:
            end_leases(self, now, sink)
        if self.limits is not None:
            keep_time(self, now, sink)
        else:
            if self.delays.due <= now.wall:
                end_delays(self, now, sink)
            if self.expiry.due <= now.wall:
                expire_due(self, now, sink)
        self._go_on(now, sink)

    def _go_on(self, now: Now, sink: Sink) -> None:
        """Dispatch; where shared credit came free, also on the other queues that it serves, in turn."""
        if self._free_credit:
            credits, self._free_credit = self._free_credit, NO_CREDIT
            for queue in dict.fromkeys(queue for credit in credits for queue in credit.queues()):
                if queue is not self and queue.is_due(now):
                    queue.tick(now, sink)
                else:
                    queue.serve(now, sink)
        self.serve(now, sink)

    def serve(self, now: Now, sink: Sink) -> None:
        """Let go what is over a limit, dispatch what is ready, and let filters look on."""
        if self.limits is not None:
            trim(self, sink)
        self.give_out(now, sink)

    def give_out(self, now: Now, sink: Sink) -> None:
        """Dispatch what is ready, and let filters look on."""
        self.hungry = False
        if self.last_values is not None and self.last_values.waiting:
            self.last_values.settle(self, sink)
        if self.ranking is not None:
            go_on(self, sink)
        if self.shares is not None:
            self.shares.ask(self, sink)
        if self.roster.all:
            if self.ready:
                dispatch(self, now, sink)
        elif self.onward is not None:
            if self.ready and not self.paused_until:
                depart(self, sink)
        elif self.settings.purge_on_no_consumers:
            self._purge(sink)
        if self.tail.count:
            activate(self, now, sink)
        if self.barriers.held:
            release(self, now, sink)
        if self.targets.lists:
            self.targets.ask(self.main, self.returned, sink)

    # -- what an administrator does

    def alter(self, now: Now, settings: QueueSettings, sink: Sink) -> None:
        """New settings, at once.  Deadlines that messages and leases already have stay as they are."""
        if self.is_due(now):
            self.tick(now, sink)
        if settings.lease_period != self.settings.lease_period and self.outstanding:
            self.leases_in_order = False
        before, self.settings = self.settings, settings
        self.limits = limits_of(settings)
        self.weigh()
        if settings.barrier_expression is None and (len(self.barriers) or self.barriers.dormant):
            dissolve(self)
        if settings.last_value_key != before.last_value_key:
            self.renew_keys()
        if (settings.dedup_key, settings.dedup_window, settings.unique) != (
            before.dedup_key, before.dedup_window, before.unique
        ):  # fmt: skip
            self.renew_dedup(before)
        if settings.rank_text != before.rank_text:
            change_ranks(self)
        if expressions(settings) != expressions(before):
            stage(self)
        elif self.shares is not None and self.shares.tenants is not None:
            self.shares.tenants.change(settings)
        if settings.rate_limit[:2] != before.rate_limit[:2]:
            rate = settings.rate_limit
            self.pace = Pace(rate[0], rate[1], now.mono) if rate[0] else None
        for consumer in self._consumers:
            consumer.set_limit()
            if consumer.targets is not None:
                consumer.targets.wake(consumer)
        altered(self, now, before)
        self._go_on(now, sink)

    def halt(self, now: Now, until: int, sink: Sink, by: str = "") -> None:
        """Deliver nothing before `until` (wall; `NEVER`: before somebody says so), or go on with 0."""
        if self.is_due(now):
            self.tick(now, sink)
        pause(self, until, sink, by)
        self._go_on(now, sink)

    def withdraw(self, now: Now, wanted: Chunk, sink: Sink, by: str = "") -> int:
        """Remove those of the wanted that wait, for they are not wanted any more; how many."""
        if self.is_due(now):
            self.tick(now, sink)
        count = withdraw(self, wanted, sink, by)
        self._go_on(now, sink)
        return count

    def reschedule(self, now: Now, wanted: Chunk, when: int, sink: Sink, by: str = "") -> int:
        """Delay those of the wanted that wait until `when` (wall), whatever they waited for; how many."""
        if self.is_due(now):
            self.tick(now, sink)
        count = reschedule(self, wanted, when, sink, by)
        if self.is_due(now):
            self.tick(now, sink)
        else:
            self._go_on(now, sink)
        return count

    def purge(self, now: Now, sink: Sink) -> int:
        """Drop everything that is ready or held back; returns how much that was."""
        if self.is_due(now):
            self.tick(now, sink)
        count = self._purge(sink)
        self.hungry = False
        if self.targets.lists:
            self.targets.ask(self.main, self.returned, sink)
        return count

    def _purge(self, sink: Sink) -> int:
        count = self.ready + self.held + self.tail.count
        if count:
            sink.record(Kind.PURGE, self.name, None, pack_pairs(self.id, ready_pairs(self)))
            self._drop_ready()
        self.targets.forget()
        self.overfull = False
        return count

    def delete(self, now: Now, sink: Sink) -> int:
        """End all consumers and forget everything; the caller writes the record.  Returns how much was ready."""
        for consumer in list(self._consumers):
            if not consumer.closed:
                sink.effect(Cancelled(consumer))
                self._close(consumer)
            self.freed(consumer, consumer.leases.clear())
            self._drop_if_done(consumer)
        count = self.ready + self.held + self.tail.count
        self._bury()
        self.lease_due = NEVER
        self.hungry = self.overspent = self.overfull = self.leaving = False
        self._go_on(now, sink)
        return count

    def forget(self, wanted: Chunk) -> int:
        """Remove waiting messages without a record: another record already says that they are gone."""
        runs = self.extract(wanted)
        if self.shares is not None:
            self.shares.left(self, runs)
        return sum(len(run.chunk) for run in runs)

    # -- bodies

    def scanned(self, now: Now, token: Token, found: Sequence[Sequence[int]], upto: int, sink: Sink) -> None:
        """The answer to a `Scan`: for each of its filters the LSNs that match, of those up to `upto`."""
        if self.is_due(now):
            self.tick(now, sink)
        if token.purpose is Purpose.BARRIER:
            looked(self, token, found, upto)
        else:
            self.targets.scanned(token, found, upto, self.main, self.returned)
        self._go_on(now, sink)

    def rated(self, now: Now, token: Token, chunk: Chunk, ranks: Sequence[int], sink: Sink) -> None:
        """The answer to a `Rate`: ranks of the messages of the chunk, the first part of what was asked."""
        if self.is_due(now):
            self.tick(now, sink)
        rated(self, token, chunk, ranks, sink)
        self._go_on(now, sink)

    def keyed(self, now: Now, token: Token, chunk: Chunk, keys: Sequence[Told], sink: Sink) -> None:
        """The answer to a `Key`: keys of the messages of the chunk, the first part of what was asked."""
        if self.is_due(now):
            self.tick(now, sink)
        if self.shares is not None:
            self.shares.keyed(self, token, chunk, keys, sink)
        self._go_on(now, sink)

    def letter(self, token: Token, upto: int = LSN_LIMIT) -> Letter | None:
        """What a fetch for dead letters was for, without what lies above `upto`, which is asked for again.

        None when the queue gave it up meanwhile.
        """
        return self.letters.cut(token.serial, upto)

    def buried(self, token: Token, sink: Sink) -> None:
        """The letter and the EXPIRE record are written (by the caller, in one group): the messages are gone."""
        self.letters.close(token.serial, sink)
        self.hungry = self.hungry or self.barriers.held > 0  # one may be free now

    def refused_letter(self, now: Now, token: Token, rest: Sequence[Run], count: int) -> None:
        """A target has no room for the rest of a letter, whose first so many messages it refused: they stay dying."""
        self.letters.hold(token.serial, rest, now.mono)
        self.leased_until(self.letters.due)
        if self.figures is None:
            self.figures = Figures()
        self.figures.letters_refused += count

    def wants_letter(self, reason: str) -> bool:
        """Whether messages that leave for this reason have somewhere to go; what a ring replaced, if that is asked."""
        if reason == REPLACED:
            return names(self.actions, reason)
        if self.settings.letters_to(reason) is not None:
            return True
        reasons = reason.split(",")
        return wants(self.actions, reasons)

    def expire(
        self, runs: Sequence[Run], reason: str, sink: Sink, by: str = "", dying: list[Letter] | None = None
    ) -> None:
        """Let messages leave without success; they are counted in no state any more when this is called.

        dying: takes those that want a letter, instead of the queue's own.
        """
        if not runs:
            return
        if self.shares is not None and self.shares.left(self, runs):
            self.hungry = True
        if self.figures is None:
            self.figures = Figures()
        self.figures.expired(reason, sum(len(run.chunk) for run in runs))
        if self.wants_letter(reason):
            if dying is not None:
                dying.append(Letter(list(runs), reason, by))
            else:
                self.mourned().add(runs, reason, by, sink)
            return
        header: dict[str, object] = {"reason": reason}
        if by:
            header["by"] = by
        sink.record(Kind.EXPIRE, self.name, header, pairs_body(self.id, runs))


def _one(values: Sequence[int] | None, place: int) -> Sequence[int] | None:
    return None if values is None else values[place : place + 1]


__all__ = ["Letter", "Queue"]
