"""A queue: messages from arrival to settlement, and the consumers that work on them.

Every message is in one of the states of `core.queue.whole`, or gone:

    arrive -> delayed -> held, inactive -> ready -> leased -> settled
                ^                            ^        |
                +----------------------------+--------+   returned: to its own place, or into back-off
    dying, from any of them: it leaves without success, and a dead letter or an action still needs its body

A queue decides with the `now` it is handed, writes each durable change to the sink and asks for effects there.  It
knows no exchange, no topic, no other queue but those that share credit with it, no body but those shown to filters.

Beside its commands is what others ask: publishing, whether it refuses a message, has publishers wait or lets others
give way, and which keys it knows; doors, who is at work.  `places` tells where each message stands.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from penstock.core.effects import Purpose, Sink, Token, Verb
from penstock.core.queue import lasting, owning, stages
from penstock.core.queue import places as looking
from penstock.core.queue.administering import (
    alter,
    await_sites,
    delete,
    drain,
    drop_all,
    leave_behind,
    pause,
    purge,
    reschedule,
    stay_paused,
    withdraw,
)
from penstock.core.queue.contents import Contents
from penstock.core.queue.dedup import Window, told_of
from penstock.core.queue.dispatching.attendance import looked as looked_first
from penstock.core.queue.dispatching.attendance import set_aside, unused
from penstock.core.queue.dispatching.browsing import newest
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.dispatching.joining import pull, subscribe, unsubscribe
from penstock.core.queue.due import offer_first
from penstock.core.queue.flow import arrive, depart, is_due, next_deadline, plan, tick
from penstock.core.queue.held import looked, reach
from penstock.core.queue.limits import Limits
from penstock.core.queue.order.ranking import rated
from penstock.core.queue.order.ranks import priority_of
from penstock.core.queue.order.runs import NEVER, Run
from penstock.core.queue.parts import NO_CREDIT
from penstock.core.queue.settling import several
from penstock.core.queue.settling.letters import Letter
from penstock.core.queue.settling.settle import settle
from penstock.core.queue.stages import PLAIN, stages_of
from penstock.core.queue.staging import Told
from penstock.core.queue.whole import DISPATCH, LETTERS
from penstock.records.causes import FORCED
from penstock.records.chunks import LSN_LIMIT, Chunk, Now
from penstock.records.queue_settings import Overflowing, QueueSettings

_UNBOUNDED = Limits(QueueSettings())


class Queue(Contents):
    """One queue.  Commands take `now` first and the sink last; each leaves nothing undone that is due at `now`."""

    __slots__ = ()

    places = looking.places
    standing = looking.standing
    first = looking.first
    chunks = looking.chunks
    lives = looking.lives
    floor = looking.oldest
    gone = looking.gone
    newest = newest
    own = owning.own
    claims = owning.claims
    renamed = owning.renamed
    newcomers_of = owning.newcomers_of
    open_to_all = owning.open_to_all
    asked = owning.asked
    in_turn = owning.in_turn
    by_rank = owning.by_rank
    reach = reach
    settled_elsewhere = owning.settled_elsewhere
    ready_spans = owning.ready_spans
    living = owning.living
    all_living = owning.all_living
    foreign_spans = owning.foreign_spans
    foreign_after = owning.foreign_after
    waits_elsewhere = owning.waits_elsewhere
    ours_among = owning.ours_among
    theirs_counted = owning.theirs_counted
    capture = lasting.capture
    snapshot = lasting.snapshot
    load = lasting.load
    check = lasting.check
    put_back = stages.put_back
    come_back = stages.come_back
    keep_away = stages.keep_away
    left = stages.left
    is_due = is_due
    next_deadline = next_deadline
    tick = tick
    arrive = arrive
    planned = plan
    subscribe = subscribe
    unsubscribe = unsubscribe
    pull = pull
    alter = alter
    pause = pause
    drain = drain
    await_sites = await_sites
    stay_paused = stay_paused
    withdraw = withdraw
    leave_behind = leave_behind
    let_go = owning.let_go
    reschedule = reschedule
    purge = purge
    delete = delete

    # -- consumers

    def choke(self, consumer: Consumer) -> None:
        """Its connection takes no more bytes now."""
        consumer.choked = True

    def unchoke(self, now: Now, consumer: Consumer, sink: Sink) -> None:
        """Its connection takes bytes again."""
        self.catch_up(now, sink)
        consumer.choked = False
        self.roster.wake(consumer)
        self.carry_on(now, sink)

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
        cause: str = FORCED,
    ) -> int:
        """End deliveries of these messages (each chunk ascending) as `verb` says; returns how many it affected.

        by        whose deliveries they are; None: whoever holds them, as the queue's `leasing` allows to `client`
        delay     microseconds that CANCEL or RELEASE keeps them away, instead of the queue's back-off
        reason    why, in the words of who says so
        cause     of EXPIRE: a word of `records.causes`
        dying     takes what EXPIRE ends that wants a dead letter: the caller writes letter and record at once
        """
        if self.is_due(now):
            self.tick(now, sink)
        affected = settle(self, now, chunks, verb, sink, by, client, delay, reason, dying, cause)
        waits = self.main.count or self.returned.count or self.free_credit or self.targets.lists
        if waits or (self.plan is not PLAIN and stages_of(self).keeps):
            self.carry_on(now, sink)
        return affected

    def cancel_each(self, now: Now, by: Consumer, chunks: Sequence[Chunk], sink: Sink) -> int:
        """A consumer gives these back, one after the other; returns how many messages that affected."""
        if several.shows_nowhere(self, chunks):
            return self.settle(now, chunks, Verb.CANCEL, sink, by=by)
        return sum([self.settle(now, [chunk], Verb.CANCEL, sink, by=by) for chunk in chunks])

    def settle_several(self, now: Now, settled: Sequence[several.Acked], sink: Sink) -> int:
        """Deliveries of several consumers are done, one after the other; returns how many messages that affected."""
        if several.acknowledge_lone(self, now, settled, sink):
            return len(settled)
        if self.is_due(now):
            self.tick(now, sink)
        if not several.together(self):
            return sum([self.settle(now, chunks, Verb.ACK, sink, by=consumer) for consumer, chunks in settled])
        affected = several.acknowledge(self, now, settled, sink)
        if self.targets.lists:
            self.carry_on(now, sink)
        return affected

    def settle_each(self, now: Now, consumers: Sequence[Consumer], chunk: Chunk, sink: Sink) -> int:
        """The same of as many consumers as messages, each of which has done the one at its place; chunk: ascending."""
        if self.is_due(now):
            self.tick(now, sink)
        if not several.together(self):
            return self.settle_several(now, several.apart(consumers, chunk), sink)
        affected = several.acknowledge_each(self, now, consumers, chunk, sink)
        if self.targets.lists:
            self.carry_on(now, sink)
        return affected

    def set_aside(self, now: Now, consumer: Consumer, chunk: Chunk, sink: Sink) -> int:
        """The consumer cannot be given these, which it holds (`core.queue.dispatching.attendance`); how many."""
        self.catch_up(now, sink)
        count = set_aside(self, consumer, chunk)
        self.carry_on(now, sink)
        return count

    # -- time

    def go_on(self, now: Now, sink: Sink) -> None:
        """Something changed beside its commands: look at all that may be due."""
        self.agenda |= DISPATCH
        self.tick(now, sink)

    def carry_on(self, now: Now, sink: Sink) -> None:
        """Dispatch; where shared credit came free, also on the other queues that it serves, in turn."""
        if self.free_credit:
            credits, self.free_credit = self.free_credit, NO_CREDIT
            for queue in dict.fromkeys(queue for credit in credits for queue in credit.queues()):
                if queue is not self and queue.is_due(now):
                    queue.tick(now, sink)
                else:
                    queue.serve(now, sink)
        self.serve(now, sink)

    def serve(self, now: Now, sink: Sink) -> None:
        """Let go what is over a limit, dispatch what is ready, and let filters look on."""
        if self.plan is not PLAIN:
            for stage in stages_of(self).trimming:
                stage.trim(self, sink)
        self.give_out(now, sink)

    def give_out(self, now: Now, sink: Sink) -> None:
        """Dispatch what is ready, and let filters look on."""
        if self.agenda:
            self.agenda &= ~DISPATCH
        if self.plan is not PLAIN:
            for stage in stages_of(self).preparing:
                stage.prepare(self, sink)
        self.offer_all(now, sink)
        self.look_on(now, sink)

    def offer_all(self, now: Now, sink: Sink) -> None:
        """Dispatch what is ready, and what becomes ready by that."""
        if self.roster.all:
            if self.main.count or self.returned.count or self.shares is not None:
                dispatch(self, now, sink)
        elif self.onward is not None:
            if self.ready and not self.halted:
                depart(self, sink)
        elif self.settings.purge_on_no_consumers and not self.expiry.busy:  # what is over is no part of it
            drop_all(self, sink)
        if self.plan is not PLAIN:
            for stage in stages_of(self).releasing:
                stage.release(self, now, sink)

    def look_on(self, now: Now, sink: Sink) -> None:
        """Have filters look at what they have not seen yet."""
        if self.targets.lists:
            self.targets.ask(self.main, sink)
        if self.attendance.looking and not self.targets.looking:
            looked_first(self, now)
            self.give_out(now, sink)

    # -- bodies

    def scanned(self, now: Now, token: Token, found: Sequence[Sequence[int]], upto: int, sink: Sink) -> None:
        """The answer to a `Scan`: for each of its filters the LSNs that match, of those up to `upto`."""
        self.catch_up(now, sink)
        if token.purpose is Purpose.BARRIER:
            looked(self, token, found, upto)
        else:
            self.targets.scanned(token, found, upto, self.main)
        self.carry_on(now, sink)

    def rated(self, now: Now, token: Token, chunk: Chunk, ranks: Sequence[int], sink: Sink) -> None:
        """The answer to a `Rate`: ranks of the messages of the chunk, the first part of what was asked."""
        self.catch_up(now, sink)
        rated(self, token, chunk, ranks, sink)
        self.carry_on(now, sink)

    def keyed(self, now: Now, token: Token, chunk: Chunk, keys: Sequence[Told], sink: Sink) -> None:
        """The answer to a `Key`: keys of the messages of the chunk, the first part of what was asked."""
        self.catch_up(now, sink)
        if self.shares is not None:
            self.shares.keyed(self, token, chunk, keys, sink)
            if self.limits is not None and self.limits.mode.drops_head:
                offer_first(self, now, sink)
        self.carry_on(now, sink)

    def letter(self, token: Token, upto: int = LSN_LIMIT) -> Letter | None:
        """What a fetch for dead letters was for, without what lies above `upto`, which is asked for again.

        None when the queue gave it up meanwhile.
        """
        return self.letters.cut(token.serial, upto)

    def buried(self, token: Token, sink: Sink) -> None:
        """The letter and the EXPIRE record are written (by the caller, in one group): the messages are gone."""
        self.letters.close(token.serial, sink)
        if self.barriers.held:
            self.agenda |= DISPATCH  # one may be free now

    def refused_letter(self, now: Now, token: Token, rest: Sequence[Run], count: int, sink: Sink) -> None:
        """Targets have no room for the rest of a letter, of which they refused so many: they stay dying."""
        if self.onward is None:
            self.letters.hold(token.serial, rest, now.mono)
        else:
            self.letters.put_aside(token.serial, rest, now.mono, sink)
        self.agenda |= LETTERS
        self.counted().letters_refused += count

    # -- limits

    @property
    def _bounds(self) -> Limits:
        foreign = self.foreign
        if self.limits is None or (foreign is not None and (foreign.open or foreign.coming is not None)):
            return _UNBOUNDED  # it is let in, or is not this site's
        return self.limits

    @property
    def overflow(self) -> Overflowing:
        """What becomes of messages beyond its limits."""
        return self._bounds.mode

    @property
    def limited(self) -> bool:
        """Whether a limit or a last-value key can refuse or remove messages."""
        return self.limits is not None or self.last_values is not None

    def holds_up(self, size: int) -> bool:
        """Whether a message of `size` bytes has to wait for room, and can ever have it."""
        bounds = self._bounds
        return bounds.mode.blocks and bounds.ever_fit(size) and not bounds.fit(self, size)

    def ever_holds(self, count: int) -> bool:
        """Whether `count` messages can be in it at once, though not all fit now."""
        bounds = self._bounds
        return count <= bounds.length and (self.ready > 0 or bounds.size == NEVER)

    def may_evict(self, count: int, size: int) -> bool:
        """Whether `count` newcomers of `size` bytes together can displace others, or have owners to be told."""
        told = self.last_values is not None or (self.foreign is not None and self.foreign.coming is not None)
        return told or (self.limits is not None and self.limits.yields(self, count, size))

    @property
    def limits_told(self) -> str:
        """Its limits in words, for people."""
        bounds = self._bounds
        sizes = (("max_length", bounds.length), ("max_length_bytes", bounds.size))
        return ", ".join(f"{name} is {value}" for name, value in sizes if value < NEVER)

    @property
    def keeps_what_it_has(self) -> bool:
        """Whether nothing leaves it while messages without an end of their own come in."""
        settings = self.settings
        return (
            not self.roster.all and not self.limited and self.onward is None and not settings.purge_on_no_consumers
            and settings.expiration is None and settings.message_ttl is None
        )  # fmt: skip

    @property
    def paused(self) -> bool:
        """Whether it is paused.  (While the server drains it is `halted` without being paused.)"""
        return self.paused_until > 0

    @property
    def awaited(self) -> tuple[str, ...]:
        """Sites that have to tell what happened before anything is delivered."""
        return self.behind

    # -- what it wants to know of a message

    @property
    def is_plain(self) -> bool:
        """Whether it has no stage that needs more of a message than its times."""
        return self.plan is PLAIN

    @property
    def ranked_by(self) -> str | None:
        """The expression that gives each newcomer its priority."""
        return None if self.ranks is None else self.settings.rank_text

    def valued(self, lsn: int) -> int | None:
        """What its priority expression gave for a message; None for the lowest priority, and where it is not known."""
        ranks = self.ranks
        return priority_of(ranks.of(lsn)) if ranks is not None and ranks.knows(lsn) else None

    @property
    def shared_by_keys(self) -> bool:
        """Whether messages are dispatched by group or fairness keys."""
        return self.shares is not None

    @property
    def replaces(self) -> bool:
        """Whether a newcomer may replace a message of its key."""
        return self.last_values is not None

    @property
    def deduplicates(self) -> bool:
        """Whether keys keep messages out of it."""
        return self.dedup is not None

    @property
    def duplicates(self) -> int:
        """Duplicates that were kept out since the start."""
        return 0 if self.dedup is None else self.dedup.duplicates

    def knows_any(self, keys: Sequence[int]) -> bool:
        """Whether any of these keys is remembered, even one that no longer keeps messages out."""
        return self.dedup is not None and self.dedup.knows(keys)

    def has_key(self, key: int) -> bool:
        """Whether keys are unique, and a message with this key is in the queue in any state."""
        return self.dedup is not None and self.dedup.has(self, key)

    def had_key(self, key: int, time: int) -> bool:
        """Whether it took a message with this key within the deduplication window."""
        return self.dedup is not None and self.dedup.in_window(key, time, self.settings)

    def take_keys(self, told: Sequence[tuple[int, int]], time: int) -> None:
        """Remember the keys of messages that it takes: (LSN, key) of each."""
        if self.dedup is not None:
            self.dedup.take(self, told, time)

    def spared(self, count: int) -> None:
        """Count duplicates that were kept out."""
        if self.dedup is not None:
            self.dedup.duplicates += count

    @property
    def keys_told(self) -> Mapping[str, int]:
        """What its statistics say of keys that keep messages out."""
        return told_of(self.dedup)

    @property
    def window(self) -> Window | None:
        """Keys within the deduplication window; None without a window."""
        return None if self.dedup is None else self.dedup.window

    def remember(self, pairs: array[int]) -> None:
        """What the window had before the process started, as it was dumped."""
        if self.dedup is not None and self.dedup.window is not None:
            self.dedup.window = Window.loaded(pairs)

    # -- messages that a pass over the log finds

    expect_older = lasting.expect_older
    take_older = lasting.take_older
    put_in_order = lasting.put_in_order

    # -- who is at work

    @property
    def shares_credit(self) -> bool:
        """Whether a consumer shares its credit with consumers of other queues."""
        return self.sharing > 0

    @property
    def consumers(self) -> Sequence[Consumer]:
        """Open consumers that are pushed to, in order of subscription."""
        return self.roster.all

    @property
    def filters_look(self) -> bool:
        """Whether a filter is asked about messages at the moment."""
        return bool(self.targets.asked)

    @property
    def waits_for_filters(self) -> bool:
        """Whether consumers wait until their filters have looked at the messages that were there first."""
        return self.attendance.looking

    def spare(self, wall: int) -> int:
        """Microseconds since the start in which consumers could have taken more."""
        return self.attendance.spare + (max(wall + self.used_at, 0) if self.used_at < 0 else 0)

    def is_unused(self, now: Now) -> bool:
        """Whether it expires for want of use; if not yet, the next time to look is set."""
        return self.attendance.expires <= now.mono and unused(self, now)


def queue_of(consumer: Consumer) -> Queue:
    """The queue that a consumer takes from."""
    queue = consumer.queue
    assert isinstance(queue, Queue)
    return queue


__all__ = ["Letter", "Queue", "queue_of"]
