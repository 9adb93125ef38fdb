"""A queue: messages from arrival to settlement, and the consumers that work on them.

Every message is in one of the states of `core.queue.whole`, or gone:

    arrive -> delayed -> held, inactive -> ready -> leased -> settled
                ^                            ^        |
                +----------------------------+--------+   returned: to its own place, or into back-off
    dying, from any of them: it leaves without success, and a dead letter or an action still needs its body

A queue decides with the `now` it is handed, writes each durable change to the sink and asks for effects there.  It
knows no exchange, no topic, no other queue but those that share credit with it, no body but those shown to filters.

What others ask of it beside its commands is `surface`; `places` tells where each message stands.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from penstock.core.queue.dispatching.attendance import looked as looked_first
from penstock.core.queue.dispatching.attendance import set_aside
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.dispatching.joining import pull, subscribe, unsubscribe
from penstock.core.queue.due import offer_first
from penstock.core.queue.flow import arrive, depart, is_due, next_deadline, plan, tick
from penstock.core.queue.held import looked, reach
from penstock.core.queue.order.ranking import rated
from penstock.core.queue.order.runs import Run
from penstock.core.queue.parts import NO_CREDIT
from penstock.core.queue.settling.letters import Letter
from penstock.core.queue.settling.settle import settle
from penstock.core.queue.settling.several import (
    Acked,
    acknowledge,
    acknowledge_each,
    acknowledge_lone,
    apart,
    together,
)
from penstock.core.queue.stages import PLAIN, stages_of
from penstock.core.queue.staging import Told
from penstock.core.queue.surface import Surface
from penstock.core.queue.whole import DISPATCH, LETTERS
from penstock.records.causes import FORCED
from penstock.records.chunks import LSN_LIMIT, Chunk, Now


class Queue(Surface):
    """One queue.  Commands take `now` first and the sink last; each leaves nothing undone that is due at `now`."""

    __slots__ = ()

    places = looking.places
    standing = looking.standing
    first = looking.first
    chunks = looking.chunks
    lives = looking.lives
    floor = looking.oldest
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
    foreign_spans = owning.foreign_spans
    foreign_after = owning.foreign_after
    waits_elsewhere = owning.waits_elsewhere
    captured = lasting.capture
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
        if consumer.targets is not None:
            consumer.targets.wake(consumer)
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

    def settle_several(self, now: Now, settled: Sequence[Acked], sink: Sink) -> int:
        """Deliveries of several consumers are done, one after the other; returns how many messages that affected."""
        if acknowledge_lone(self, now, settled, sink):
            return len(settled)
        if self.is_due(now):
            self.tick(now, sink)
        if not together(self):
            return sum([self.settle(now, chunks, Verb.ACK, sink, by=consumer) for consumer, chunks in settled])
        affected = acknowledge(self, now, settled, sink)
        if self.targets.lists:
            self.carry_on(now, sink)
        return affected

    def settle_each(self, now: Now, consumers: Sequence[Consumer], chunk: Chunk, sink: Sink) -> int:
        """The same of as many consumers as messages, each of which has done the one at its place; chunk: ascending."""
        if self.is_due(now):
            self.tick(now, sink)
        if not together(self):
            return self.settle_several(now, apart(consumers, chunk), sink)
        affected = acknowledge_each(self, now, consumers, chunk, sink)
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
        elif self.settings.purge_on_no_consumers:
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

    def refused_letter(self, now: Now, token: Token, rest: Sequence[Run], count: int) -> None:
        """A target has no room for the rest of a letter, whose first so many messages it refused: they stay dying."""
        self.letters.hold(token.serial, rest, now.mono)
        self.agenda |= LETTERS
        self.counted().letters_refused += count


def queue_of(consumer: Consumer) -> Queue:
    """The queue that a consumer takes from."""
    queue = consumer.queue
    assert isinstance(queue, Queue)
    return queue


__all__ = ["Letter", "Queue", "queue_of"]
