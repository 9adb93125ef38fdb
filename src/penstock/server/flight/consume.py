"""DoExchange consume: deliveries down, settles and heartbeats up.

    loop            deliver -> queue of pieces --bell--> writing thread -> batches down
    Flight thread   reads settles and heartbeats -> handed to the loop -> answers by way of the writing thread

Flight's own thread reads, because a blocked read cannot be ended from outside; a second thread writes.  A client that
is stopped is noticed by its silence: its leases return, it gets nothing more, and it no longer counts as open.
What is queued for a client that does not read is bounded: the core grants it nothing while it is.

What a client says is read by `read_said`: settles by verb and queue, heartbeats, other terms for its subscription.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from penstock.core.commands.subscription import STAYS, Subscription
from penstock.core.queue.settling.settle import extend
from penstock.errors import InvalidArgument, LogBroken, NotFound, PenstockError, Unavailable
from penstock.expr import Filter, compile_filter
from penstock.memory import Held
from penstock.memory.slab import Piece
from penstock.records.chunks import as_chunk
from penstock.server.asking.caching import Burying
from penstock.server.asking.judging import asked_by
from penstock.server.base.faults import TOLD
from penstock.server.flight.calls import Caller, Slot
from penstock.server.flight.downstream import QUEUED_HIGH, Delivery, Downstream
from penstock.server.flight.settles import EXTEND, UNSEEN, VERBS, Attempts, Said, Settle, Terms, read_said, read_settles
from penstock.server.gates import Receiver
from penstock.server.people.entitlements import narrowed
from penstock.wire.flight.commands import DELIVERY, Consume
from penstock.wire.flight.failures import encode_error
from penstock.wire.flight.received import SETTLED

if TYPE_CHECKING:
    from penstock.core.commands.deliveries import Delivery as Granted
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.queue import Queue
    from penstock.server.flight.arriving import Arriving
    from penstock.server.flight.handover import Answer, Handover


NAMES_TOLD = 1000
"""Names of queues in what a consumer is told of its subscription."""


def terms_of(wish: Subscription) -> dict[str, object]:
    """On which terms a client consumes, as it is told."""
    limit, asked = wish.effective_backlog, wish.max_backlog
    names = sorted(consumer.queue.name for consumer in wish.consumers.values())
    settings = [consumer.queue.settings for consumer in wish.consumers.values()]
    known = wish.pattern is None  # else queues that it has not seen yet are others, perhaps
    strict = known and all(one.leasing == "strict" for one in settings)
    leased = known and not wish.no_ack and all(one.semantics == "at-least-once" for one in settings)
    told: dict[str, object] = {
        "consumer": wish.tag,
        "effective_backlog": limit,
        "queues": names[:NAMES_TOLD],
        "lease_period": min(filter(None, (one.lease_period for one in settings)), default=None),  # us; null: no end
        "strict": strict,  # settles have no effect once the lease has ended
        "leased": leased,  # what is not settled comes again
    }
    if limit is not None and asked is not None and limit < asked:
        told["warning"] = f"max_per_subscription_backlog of a queue limits the backlog of {asked} to {limit}"
    return told


class Exchange(Receiver):
    """One consumer on one stream.  It is the holder of its consumer, and so takes its deliveries."""

    def __init__(self, handover: Handover, caller: Caller, command: Consume, slot: Slot) -> None:
        self.engine = handover.engine
        self.command = command
        self.caller = caller
        self.wish: Subscription | None = None  # None: not yet, or no more
        self.heard_at = self.engine.clock.mono()  # microseconds; when the client last said something
        self.ending: PenstockError | None = None  # why the stream ends, when it is not the client's wish
        self._handover = handover
        self._slot = slot
        self._down = Downstream(
            self.engine.log,
            command.queue,
            most=partial(handover.queued_most, QUEUED_HIGH),
            on_room=partial(handover.post, self._resume),
            on_gone=partial(handover.post, partial(self.unsubscribe, lost=True)),
            on_unreadable=lambda error: handover.post(partial(self.end, error)),
        )
        self._unanswered: deque[int] = deque()  # numbers of settles that wait for their sync
        self._affected = self._stale = 0  # settles since the last answer
        self._burying = Burying(self.engine, self)
        self._attempts: Attempts = {}  # of messages of a strict queue that came here more than once
        self._came: set[tuple[str | None, int]] | None = None  # what came here, if its user may settle nothing else

    # -- loop: what the engine asks of a receiver

    @property
    def user(self) -> str:
        return self.caller.user

    # -- faults

    kind = "flight"

    def end_by_fault(self) -> None:
        """The client is told, and what it had goes back."""
        self.end(PenstockError(TOLD))
        self.engine.faults.evict(self)
        self.engine.gates.drop(self)

    @property
    def queued(self) -> int:
        """Bytes that wait for the writing thread."""
        return self._down.queued

    def held(self) -> Held:
        """The same as memory that others may want."""
        name = f"what the consumer {self.caller.peer} does not read"
        queued = self.queued if self.ending is None else 0  # what the client was sent last may stay
        return Held(self, self.caller.user, name, queued, self._down.sent, self._cut)

    def _cut(self, error: PenstockError) -> None:
        self._slot.abandon()
        self.end(error)

    @property
    def full(self) -> bool:
        """Whether enough is queued for the writing thread."""
        return self._down.full and self.ending is None and not self._down.finished

    def deliver(self, effect: Granted, piece: Piece) -> None:
        """Queue neighbouring rows for the writing thread."""
        if self.ending is not None or self._down.finished:
            return
        batch = self.engine.bodies.peek(piece.chunk[0])
        name = effect.queue.name if effect.queue.name != self.command.queue else None
        delivery = Delivery(
            piece,
            effect.attempt,
            effect.redelivered,
            lease_until=effect.until,
            time=batch.time if batch is not None else None,
            queue=name,
        )
        if effect.attempt > 1 and effect.queue.settings.leasing == "strict":
            self._attempts.update({(name, lsn): effect.attempt for lsn in piece.chunk})
        if self._came is not None:
            self._came.update((name, lsn) for lsn in piece.chunk)
        if self._down.deliver(delivery) and self.wish is not None and not self.wish.choked:
            self.engine.core.hold(self.wish)
        self._down.ring()

    def cancelled(self, consumer: Consumer, why: PenstockError) -> None:
        """A queue went away or was stopped; one that consumes from several goes on with the others."""
        if self.wish is not None and self.wish.pattern is not None:
            return
        self.wish = None
        self.end(why)

    # -- loop: life

    def subscribe(self, tag: str) -> None:
        """Become a consumer, and tell the client on which terms.  Raises what core, rights or filter refuse."""
        command = self.command
        self.wish = Subscription(
            command.vhost,
            command.queue,
            tag=tag,
            holder=self,
            by=self,
            client=command.name or self.caller.peer,
            no_ack=command.no_ack,
            filter=None if command.filter is None else compile_filter(self._asked(command.filter)),
            max_backlog=command.max_backlog if command.max_backlog is not None else command.backlog or None,
            priority=command.priority,
            narrow=None if self.caller.rights is None else self._narrow,
        )
        try:
            self.engine.core.open(self.engine.now(), self.wish)
        except PenstockError:
            self.wish = None
            raise
        reigns = self.engine.core.terms
        told = {**terms_of(self.wish), "term": reigns[-1].term if reigns else 0}
        self._down.answer(orjson.dumps({"subscribed": told}))

    def _asked(self, text: str) -> str:
        """A filter for this client."""
        client, instance = self.command.name or self.caller.peer, self.engine.core.instance
        return asked_by(text, client=client, user=self.caller.user, instance=instance)

    def _narrow(self, queue: Queue, filter: Filter | None) -> Filter | None:
        """What it asks for, narrowed to what the user may read.  Raises AccessRefused, ExpressionError."""
        rights = self.caller.rights
        right = None if rights is None else rights.read_queue(queue.vhost, queue.name)
        if right is not None and self._came is None:
            self._came = set()
        return narrowed(None if filter is None else filter.text, right)

    def replace(self, terms: Terms, number: int | None) -> None:
        """Other terms for the subscription.  A number asks for an answer: behind all that was granted before."""
        answer: dict[str, object] = {"answer": number}
        try:
            if self.wish is None:
                raise InvalidArgument("replace: the consumer is closed")
            if self.caller.rights is not None and terms.queue is not None:
                self.caller.rights.take(self.command.vhost, terms.queue)
            self.engine.core.replace(
                self.engine.now(),
                self.wish,
                filter=STAYS
                if terms.filter is None
                else compile_filter(self._asked(terms.filter))
                if terms.filter
                else None,
                max_backlog=STAYS if terms.max_backlog is None else terms.max_backlog,
                topic=STAYS if terms.queue is None else terms.queue,
            )
            answer["replaced"] = terms_of(self.wish)
        except PenstockError as error:
            answer["refused"] = orjson.loads(encode_error(error)[1])
        finally:
            self.engine.arm()
        if number is not None:
            self.engine.gates.after_deliveries(self.gate, partial(self._down.say, orjson.dumps(answer)))

    def unsubscribe(self, *, lost: bool) -> None:
        """Give back what is leased; twice does no harm."""
        wish, self.wish = self.wish, None
        if wish is not None:
            self.engine.core.close(self.engine.now(), wish, lost=lost)
            self.engine.gates.reopen(self)
            self.engine.arm()

    def end(self, error: PenstockError) -> None:
        """Stop for a reason the client is told; it may not listen any more."""
        if self.ending is None:
            self.ending = error
            self.unsubscribe(lost=True)
            self._down.finish(error)

    def beat(self, now: int) -> None:
        """Once a second: a client that may not go on is told, one that has been silent for too long is given up."""
        if (why := self.caller.refusal()) is not None:
            self.end(why)
        elif self.ending is None and not self._down.finished and now - self.heard_at > self.command.heartbeat:
            silent = (now - self.heard_at) // 1_000_000
            self._slot.abandon()
            self.end(Unavailable(f"nothing was heard from the consumer for {silent} s; its leases were returned"))

    def _resume(self) -> None:
        if self.wish is not None:
            self.engine.core.go_on(self.engine.now(), self.wish)
        self.engine.gates.reopen(self)
        self.engine.arm()

    # -- loop: settling

    def settle(self, groups: dict[Settle, array[int]], attempts: Attempts | None, number: int | None) -> None:
        """Settle groups of LSNs that share verb, delay, reason and queue.

        A number asks for an answer, when all settles so far are durable: how many since the last answer had an effect.
        """
        try:
            for settle, lsns in groups.items():
                affected = self._settle(settle, lsns, attempts)
                self._affected += affected
                if settle[0] != UNSEEN:  # a client cannot know which of what it has not looked at is still its own
                    self._stale += len(lsns) - affected
        except PenstockError as error:
            self.end(error)
            return
        finally:
            self.engine.arm()
        if number is None:
            return  # nobody waits: the records ride with the next commit
        affected, stale = self._affected, self._stale
        self._affected = self._stale = 0
        self._unanswered.append(number)
        if self.engine.broken is not None:
            self.log_broken(self.engine.broken)
        else:
            self._burying.when_buried(partial(self._answer_when_durable, number, affected, stale), self.end)

    def _answer_when_durable(self, number: int, affected: int, stale: int) -> None:
        self.engine.when_durable(self.engine.core.last_lsn, partial(self._answered, number, affected, stale))

    def log_broken(self, reason: str) -> None:
        """What was settled and not answered will never be reported durable."""
        unanswered, self._unanswered = self._unanswered, deque()
        self._burying.forget()
        self._down.answer(*(orjson.dumps({"answer": number, "broken": reason}) for number in unanswered))

    def _settle(self, settle: Settle, lsns: array[int], attempts: Attempts | None) -> int:
        name = settle[3]
        queue = self._queue(name)
        if queue is None:
            return 0
        lsns = self._allowed(lsns, name, attempts if queue.settings.leasing == "strict" else None)
        if not lsns:
            return 0
        mine = self.wish.at(queue) if self.wish is not None else []
        if not mine and self._came is None and not self.may_settle(queue):
            return 0  # as in one that is gone: whether it is there is not told, either
        return self._settled(queue, mine, settle, lsns)

    def _settled(self, queue: Queue, mine: Sequence[Consumer], settle: Settle, lsns: Sequence[int]) -> int:
        """How many were.  mine: its consumers there; none: it settles as one that holds nothing."""
        core, now, chunk = self.engine.core, self.engine.now(), as_chunk(lsns)
        verb, delay, reason, name = settle
        if verb == EXTEND:
            return sum(extend(queue, consumer, chunk, now.mono + (delay or 0)) for consumer in mine)
        for lsn in lsns if self._attempts or self._came is not None else ():
            self.forget(name, lsn)
        client, affected = self.command.name or self.caller.peer, 0
        settle_one = partial(core.settle, now, queue, [chunk], VERBS[verb], client=client, delay=delay, reason=reason)
        for consumer in mine or (None,):
            affected += settle_one(by=consumer)
        if verb != "ack":  # that has no dead letter, and waits for none
            self._burying.note(queue)
        return affected

    def may_settle(self, queue: Queue) -> bool:
        """Whether it may end deliveries of a queue that it does not hold: as who settles them by name may."""
        rights = self.caller.rights
        return rights is None or rights.reads_queue(queue.vhost, queue.name) is True

    def _queue(self, name: str | None) -> Queue | None:
        """The one that it consumes, or that is named; None: one of several that is gone, and so is what was held."""
        command = self.command
        try:
            return self.engine.core.queue(command.vhost, command.queue if name is None else name, by=self)
        except NotFound:
            if name is None:
                raise
            return None

    def _allowed(self, lsns: array[int], name: str | None, attempts: Attempts | None) -> array[int]:
        """Those that came here, of a strict queue in the delivery that is meant."""
        current = self._attempts
        if attempts is not None and (attempts or current):
            lsns = array("q", [lsn for lsn in lsns if attempts.get((name, lsn), 1) == current.get((name, lsn), 1)])
        if self._came is not None:
            lsns = array("q", [lsn for lsn in lsns if (name, lsn) in self._came])
        return lsns

    def forget(self, queue: str | None, lsn: int) -> None:
        """A delivery of this consumer ended, perhaps with a transaction of its client."""
        self._attempts.pop((queue, lsn), None)
        if self._came is not None:
            self._came.discard((queue, lsn))

    def _answered(self, number: int, affected: int, stale: int) -> None:
        self._unanswered.popleft()
        self._down.answer(orjson.dumps({"answer": number, "affected": affected, "stale": stale}))

    # -- Flight's thread

    def serve(self, arriving: Arriving, writer: Any, tag: str) -> None:
        """Run the stream from its first to its last message."""
        self._handover.call(partial(self.subscribe, tag), self.caller.gone, durable=False)
        self._down.beside(writer, DELIVERY, f"penstock-flight-{tag}", partial(self._read, arriving), self._wind_up)

    def _read(self, arriving: Arriving) -> None:
        for received, metadata in arriving.each(SETTLED):
            self.heard_at = self.engine.clock.mono()
            if self.ending is not None:
                return
            said = read_said(metadata) if metadata is not None else Said()
            if received:
                groups, attempts = read_settles(received)
                self._handover.post(partial(self.settle, groups, attempts, said.number))
            elif said.replace is not None:
                self._handover.post(partial(self.replace, said.replace, said.number))
            elif said.number is not None:
                self._handover.post(partial(self.settle, {}, {}, said.number))
            self._down.await_reader()

    def _wind_up(self, _: PenstockError | None) -> None:
        """The client sends no more, or we gave it up: leases return, answers that are due go out."""
        lost = self.caller.left() or self.ending is not None

        def leave(answer: Answer[None]) -> None:
            since = self.engine.core.last_lsn
            self.unsubscribe(lost=lost)
            if lost:
                answer.give(None)
                return
            self._handover.keep(answer)  # it is failed when the server stops or the log breaks
            answered = partial(self._handover.when_answerable, since, answer, None)
            self._burying.when_buried(answered, partial(self._handover.refuse, answer))

        try:
            self._handover.submit(leave).wait(None if lost else self.caller.left)
        except (LogBroken, Unavailable) as error:
            self.ending = self.ending or error
        finally:
            self._down.finish(self.ending)
