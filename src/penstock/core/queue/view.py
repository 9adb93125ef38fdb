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

from penstock.core.asks import Purpose, Token
from penstock.core.effects import Sink, Verb
from penstock.core.queue import lasting, stages
from penstock.core.queue import places as looking
from penstock.core.queue.administering import (
    alter,
    delete,
    drain,
    drop_all,
    halt,
    leave_behind,
    purge,
    reschedule,
    stay_paused,
    withdraw,
)
from penstock.core.queue.agenda import DISPATCH, LETTERS
from penstock.core.queue.barrier_release import looked
from penstock.core.queue.dispatching.attendance import looked as looked_first
from penstock.core.queue.dispatching.attendance import set_aside
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.dispatching.joining import pull, subscribe, unsubscribe
from penstock.core.queue.figures import Figures
from penstock.core.queue.order.runs import Run
from penstock.core.queue.parts import NO_CREDIT
from penstock.core.queue.priority.ranking import rated
from penstock.core.queue.settling.letters import Letter
from penstock.core.queue.settling.settle import Acked, acknowledge, acknowledge_each, apart, settle, together
from penstock.core.queue.shares.staging import Told
from penstock.core.queue.stages import PLAIN, stages_of
from penstock.core.queue.surface import Surface
from penstock.core.queue.taking import arrive, plan
from penstock.core.queue.ticking import depart, is_due, next_deadline, tick
from penstock.core.queue.timed.due import offer_first
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
    halt = halt
    drain = drain
    stay_paused = stay_paused
    withdraw = withdraw
    leave_behind = leave_behind
    reschedule = reschedule
    purge = purge
    delete = delete

    # -- consumers

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
        if self.is_due(now):
            self.tick(now, sink)
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
            if self.ready and not self.paused_until:
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
        if self.is_due(now):
            self.tick(now, sink)
        if token.purpose is Purpose.BARRIER:
            looked(self, token, found, upto)
        else:
            self.targets.scanned(token, found, upto, self.main)
        self.carry_on(now, sink)

    def rated(self, now: Now, token: Token, chunk: Chunk, ranks: Sequence[int], sink: Sink) -> None:
        """The answer to a `Rate`: ranks of the messages of the chunk, the first part of what was asked."""
        if self.is_due(now):
            self.tick(now, sink)
        rated(self, token, chunk, ranks, sink)
        self.carry_on(now, sink)

    def keyed(self, now: Now, token: Token, chunk: Chunk, keys: Sequence[Told], sink: Sink) -> None:
        """The answer to a `Key`: keys of the messages of the chunk, the first part of what was asked."""
        if self.is_due(now):
            self.tick(now, sink)
        if self.shares is not None:
            self.shares.keyed(self, token, chunk, keys, sink)
            if self.limits is not None and self.limits.drops:
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
        if self.figures is None:
            self.figures = Figures()
        self.figures.letters_refused += count


def queue_of(consumer: Consumer) -> Queue:
    """The queue that a consumer takes from."""
    queue = consumer.queue
    assert isinstance(queue, Queue)
    return queue


__all__ = ["Letter", "Queue", "queue_of"]
