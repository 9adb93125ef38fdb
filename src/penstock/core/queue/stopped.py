"""A queue that a fault has stopped: what it has in memory may be other than what the log says.

It takes messages, for the log says whose they are, and what its consumers hold is settled; what they reject has no
dead letter and is there again after a start.  Where newcomers would be counted or compared with what it has, for a
limit or a key, it refuses them all: neither what was undone nor what memory alone has lost may say that one is a
duplicate, has room, or takes the place of another; what another site has let in it takes, for nobody would hear that it
was refused.  Nothing gives way to what comes back, either.  It gives nothing out and does nothing that is due, and its
consumers end: they would wait for nothing.  So no record follows from what may be wrong, and it keeps the whole log: no
checkpoint is taken of it, and nothing of the log goes.  A start has it as the log says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.core.effects import Cancelled, Sink, Token
from penstock.core.links.sharing import Peers
from penstock.core.outbox import calls_left
from penstock.core.queue.dedup import deduplicates
from penstock.core.queue.dispatching.consumers import Consumer, Credit
from penstock.core.queue.dispatching.roster import Roster
from penstock.core.queue.limits import Limits, limits_of
from penstock.core.queue.order.runs import sorted_chunk
from penstock.core.queue.parts import NO_CREDIT
from penstock.core.queue.queue import Queue, queue_of
from penstock.core.queue.stages import PLAIN
from penstock.core.queue.whole import DISPATCH
from penstock.errors import Unavailable
from penstock.records.chunks import LSN_LIMIT, Chunk, Now, unpack_pairs
from penstock.records.entries import Control, Publishes
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings

_SHUT = Limits(QueueSettings(max_length=0, overflow="reject-publish"))
_OPEN = Limits(QueueSettings())


class Stopped(Queue):
    """Has the place of the queue that it was: whoever holds that holds this."""

    __slots__ = ()

    @property
    def stopped(self) -> bool:
        return True

    @property
    def halted(self) -> bool:
        return True

    @property
    def busy(self) -> bool:
        return True

    def is_due(self, now: Now) -> bool:
        """Never."""
        return False

    def next_deadline(self) -> tuple[None, None]:
        """Never."""
        return None, None

    def is_unused(self, now: Now) -> bool:
        """Who declared it anew would lose what it has."""
        return False

    def tick(self, now: Now, sink: Sink) -> None: ...

    carry_on = serve = give_out = offer_all = look_on = tick

    def pull(self, now: Now, consumer: Consumer, count: int, sink: Sink) -> int:
        """Nothing is given out."""
        return 0

    def drain(self, now: Now, draining: bool, sink: Sink) -> None: ...

    def alter(self, now: Now, settings: QueueSettings, sink: Sink) -> None:
        """They are in force after a start."""
        self.settings = settings

    def open_to_all(self, always: bool, peers: Peers) -> None:
        self.ensure_foreign(peers).open = always

    @property
    def _bounds(self) -> Limits:
        """Nobody waits for room that may never come, and nothing of this site is let in that would be compared."""
        settings = self.settings
        if self.foreign is not None and self.foreign.open:
            return _OPEN
        compares = settings.last_value_key is not None or deduplicates(settings)
        return _SHUT if compares or limits_of(settings) is not None else _OPEN

    def ever_holds(self, count: int) -> bool:
        """After a start."""
        return True

    def letter(self, token: Token, upto: int = LSN_LIMIT) -> None:
        """No dead letter is written: what dies here is there again after a start."""

    def floor(self, most: int = 0) -> int:
        """Any message of the log may be its own."""
        return 0


def why_stopped(queue: Queue) -> Unavailable:
    """What who asks something of one is told."""
    return Unavailable(
        f"queue '{queue.name}' in vhost '{queue.vhost}' was stopped by an internal error: it takes messages, and "
        "gives none until the server is started again; its log tells more"
    )


def refuse_stopped(queue: Queue) -> None:
    """Unavailable for who would take messages of one."""
    if queue.stopped:
        raise why_stopped(queue)


def end_consumers(queue: Queue, sink: Sink) -> list[Consumer]:
    """End the consumers of one that was stopped; those that were pushed to.  What they hold they may still settle.

    Its roster may be half changed, so nobody is taken out of it: it is another one.
    """
    ended = [one for one in queue.all_consumers if not one.closed]
    for consumer in ended:
        consumer.closed = True
        if not consumer.fenced:  # a stream's silent one: its reader hears of it when it asks
            sink.effect(Cancelled(consumer, why_stopped(queue)))
    queue.roster = Roster()
    return [one for one in ended if not one.passive]


def ungranted(records: Iterable[Publishes | Control]) -> Chunk:
    """The messages that nobody holds, whatever memory says: they, or that somebody was given them, were undone."""
    found = list[Chunk]()
    for one in records:
        if isinstance(one, Publishes):
            found.append(range(one.first, one.first + len(one)))
        elif one.kind is Kind.GRANT:
            pairs = unpack_pairs(one.body)[1]
            found += map(range, pairs[::2], pairs[1::2])
    return sorted_chunk([chunk for chunk in found if len(chunk)])


def queues_in(error: Exception) -> list[Queue]:
    """The queues that an exception may have left in the middle of something."""
    found: dict[Queue, None] = {}
    for frame in calls_left(error):
        for one in frame.f_locals.values():
            if isinstance(one, Queue):
                found[one] = None
            elif type(one).__module__.startswith("penstock.core.") and isinstance(
                of := getattr(one, "queue", 0), Queue
            ):
                found[of] = None
    return list(found)


def stop(queues: Iterable[Queue], undone: Iterable[Publishes | Control] = ()) -> list[Queue]:
    """These give nothing any more; the queues that shared credit with them and have to go on without.

    undone: records; what memory has because of them comes back from nobody.
    """
    given = ungranted(undone)
    credits: dict[Credit, None] = {}
    for queue in queues:
        queue.agenda, queue.draining = 0, True
        queue.__class__ = Stopped
        queue.limits = queue.last_values = queue.dedup = None
        if queue.plan is not PLAIN:
            queue.plan = None
        for consumer in queue.all_consumers if len(given) else ():
            consumer.leases.take(given)
        credits |= dict.fromkeys((*queue.free_credit, *_leave_credit(queue)))
        queue.sharing, queue.free_credit = 0, NO_CREDIT
    for credit in credits:  # what was being counted may be counted half
        credit.used = sum(0 if one.no_ack else one.outstanding for one in credit.consumers)
    others = list(dict.fromkeys(queue_of(one) for credit in credits for one in credit.consumers))
    for other in others:
        other.agenda |= DISPATCH
    return others


def _leave_credit(queue: Queue) -> Iterator[Credit]:
    """What its consumers hold counts for the others no more."""
    for consumer in queue.all_consumers:
        if (credit := consumer.shared) is not None:
            consumer.shared = None
            credit.consumers.pop(consumer, None)
            yield credit
