"""Commands about messages in queues: who consumes, what is granted and settled, what an administrator does.

It knows queues and their consumers; what a delivery looks like on a wire is not known here.  Whoever may settle by name
names messages by bookmarks or by a filter, wherever they are: bookmarks are origins and LSNs, and what a queue has not
had yet is remembered for it (`core.queue.settling.deferred`).

Whoever administers halts queues, and withdraws, reschedules or moves what waits in them.  A message that is moved is in
one place at any moment: who calls has read the rows and says what becomes of them; here is decided which of them still
wait, and the new rows lie in one group with the record that ends the old ones.  Who may say so is the doors' affair.

An answer to what the core asked for (`core.effects`) goes to whoever asked, if that is still there.  Dead letters take
two: their bodies are fetched, then content filters of where they go may have to judge them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, Unpack

from penstock.core.action_rules import iso_time
from penstock.core.commands.containing import Due, part_of
from penstock.core.commands.queues import QueueCommands
from penstock.core.effects import (
    Answer,
    Deliver,
    DeliverEach,
    Fetched,
    Judge,
    Judged,
    Keyed,
    Purpose,
    Rated,
    Recovered,
    Scanned,
    Token,
    Verb,
)
from penstock.core.links.carried import translated
from penstock.core.publishing.dead_letters import Buried, Prepared
from penstock.core.queue.dispatching.consumers import Consumer, Credit, Serving
from penstock.core.queue.dispatching.roster import Terms
from penstock.core.queue.order.runs import NEVER, Run, pairs_body, sift, sorted_chunk
from penstock.core.queue.queue import Letter, Queue, queue_of
from penstock.core.queue.refusing import Reckoning
from penstock.core.queue.settling.letters import portions, split
from penstock.core.queue.settling.several import Acked, apart
from penstock.core.queue.stopped import refuse_stopped
from penstock.errors import Draining, InvalidArgument, PreconditionFailed, QueueFull
from penstock.expr import Filter, Matcher
from penstock.records.causes import MOVED
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind
from penstock.units import LATEST

Delivery: TypeAlias = Deliver[Consumer, Queue]
Deliveries: TypeAlias = DeliverEach[Consumer, Queue]

REMEMBERED = frozenset({Verb.ACK, Verb.EXPIRE})
"""What may be said of a message before it comes; there is nothing yet to give back."""


class DeliveryCommands(QueueCommands):
    """Consumers, grants, settlement by who holds or by name, time."""

    # -- consumers

    def subscribe(self, now: Now, queue: Queue, **terms: Unpack[Terms]) -> Consumer:
        """A new consumer, served at once.

        Errors: AccessRefused when somebody has the queue for himself, Draining while the server runs empty.
        """
        self._refuse_consumers(queue.name)
        refuse_stopped(queue)
        return self._attend(now, queue, **terms)

    def _refuse_consumers(self, name: str) -> None:
        """Draining while the server runs empty."""
        if self.draining:
            raise Draining(f"the server drains: it takes no new consumers, of '{name}' neither")

    def _attend(self, now: Now, queue: Queue, **terms: Unpack[Terms]) -> Consumer:
        """`subscribe`, for consumers that were there before the server drained."""
        if isinstance(asked := terms.get("filter"), Filter):
            terms["filter"] = asked.reading(queue.settings.message_type)
        consumer = queue.subscribe(self._at(now), self._out, **terms)
        self._touch(queue, consumer.shared)
        if self.attendance is not None and not consumer.passive:
            self.attendance.append((True, consumer))
        return consumer

    def unsubscribe(self, now: Now, consumer: Consumer, *, requeue: bool, lost: bool = False) -> None:
        """End a consumer; see `unsubscribe_all`."""
        self.unsubscribe_all(now, (consumer,), requeue=requeue, lost=lost)

    def unsubscribe_all(self, now: Now, consumers: Iterable[Consumer], *, requeue: bool, lost: bool = False) -> None:
        """End consumers, those of a queue together.

        requeue: what they hold goes back; lost: as their connection did, so the oldest of each failed.
        """
        now = self._at(now)
        by_id, by_queue = self._admin.by_id, dict[Queue, list[Consumer]]()
        shared = set[Credit | None]()
        for consumer in consumers:
            queue = queue_of(consumer)
            if by_id.get(queue.id) is queue:
                by_queue.setdefault(queue, []).append(consumer)
                shared.add(consumer.shared)
                if requeue:
                    queue.choke(consumer)  # what one gives back is not for the next one that goes
        self._touch_all(by_queue, shared)  # before any has left those that it shares with
        for queue, some in by_queue.items():
            if by_id.get(queue.id) is queue:
                self._leave(now, queue, some, requeue=requeue, lost=lost)

    def _leave(self, now: Now, queue: Queue, some: Sequence[Consumer], *, requeue: bool, lost: bool) -> None:
        """Consumers of a queue end."""
        gone = [one for one in some if not one.closed and not one.passive]
        queue.unsubscribe(now, some, self._out, requeue=requeue, lost=lost)
        if self.attendance is not None:
            self.attendance += [(False, one) for one in gone]
        if queue.auto_delete and gone and not queue.consumers:
            self._end_queue(now, queue)

    def pull(self, now: Now, consumer: Consumer, count: int) -> int:
        """Grant up to `count` messages to a consumer that gets only what it asks for; returns how many."""
        if count < 1:
            return 0
        queue = queue_of(consumer)
        granted = queue.pull(self._at(now), consumer, count, self._out)
        self._touch(queue, consumer.shared)
        return granted

    def choke(self, consumer: Consumer) -> None:
        """A consumer's connection takes no more bytes now."""
        queue_of(consumer).choke(consumer)

    def unchoke_all(self, now: Now, consumers: Collection[Consumer]) -> None:
        """The connections of these take bytes again, in their order."""
        now = self._at(now)
        self._touch_all({queue_of(one) for one in consumers}, {one.shared for one in consumers})
        for consumer in consumers:
            queue_of(consumer).unchoke(now, consumer, self._out)

    def settle(
        self, now: Now, queue: Queue, chunks: Sequence[Chunk], verb: Verb, *, by: Consumer | None = None,
        client: str = "", delay: int | None = None, reason: str | None = None, dying: list[Letter] | None = None,
    ) -> int:  # fmt: skip
        """End deliveries; returns how many it affected.  Stale ones are counted, never an error.

        dying: takes what EXPIRE ends that wants a dead letter; the caller writes it (`Queue.settle`).
        """
        if self._admin.by_id.get(queue.id) is not queue:
            return 0
        affected = queue.settle(
            self._at(now), chunks, verb, self._out, by=by, client=client, delay=delay, reason=reason, dying=dying
        )
        if verb is Verb.CANCEL:
            self._cancelled[queue.id] = self._cancelled.get(queue.id, 0) + affected
        self._touch(queue, by.shared if by is not None else None)
        return affected

    def cancel_each(self, now: Now, by: Consumer, chunks: Sequence[Chunk]) -> int:
        """`settle` of each chunk that a consumer gives back, one after the other; how many messages it affected."""
        queue = queue_of(by)
        if self._admin.by_id.get(queue.id) is not queue:
            return 0
        affected = queue.cancel_each(self._at(now), by, chunks, self._out)
        self._cancelled[queue.id] = self._cancelled.get(queue.id, 0) + affected
        self._touch(queue, by.shared)
        return affected

    def settle_several(self, now: Now, queue: Queue, settled: Sequence[Acked]) -> int:
        """Acknowledge deliveries of several consumers of a queue, with the result of `settle` for each in turn."""
        if self._admin.by_id.get(queue.id) is not queue:
            return 0
        if queue.shares_credit:
            return sum([self.settle(now, queue, chunks, Verb.ACK, by=consumer) for consumer, chunks in settled])
        self._timers.touched.add(queue)
        return queue.settle_several(self._at(now), settled, self._out)

    def settle_round(self, now: Now, done: Mapping[Serving, Sequence[Acked]]) -> None:
        """`settle_several` for many queues."""
        now, out, touched, by_id = self._at(now), self._out, self._timers.touched, self._admin.by_id
        for one, settled in done.items():
            shares, queue = one.sharing, by_id.get(one.id)
            if queue is None or queue is not one:
                continue
            if shares:
                self.settle_several(now, queue, settled)
            else:
                queue.settle_several(now, settled, out)
                touched.add(queue)

    def settle_each(self, now: Now, queue: Queue, consumers: Sequence[Consumer], chunk: Chunk) -> int:
        """Acknowledge one message of each consumer: the one at the same place in `chunk`, which ascends."""
        if queue.shares_credit:
            return self.settle_several(now, queue, apart(consumers, chunk))
        if self._admin.by_id.get(queue.id) is not queue:
            return 0
        affected = queue.settle_each(self._at(now), consumers, chunk, self._out)
        self._timers.touched.add(queue)
        return affected

    def set_aside(self, now: Now, consumer: Consumer, chunk: Chunk) -> int:
        """Take leases from a consumer whose messages have unreadable bodies: nobody holds them then; how many."""
        queue = queue_of(consumer)
        if self._admin.by_id.get(queue.id) is not queue:
            return 0
        count = queue.set_aside(self._at(now), consumer, chunk, self._out)
        self._touch(queue, consumer.shared)
        return count

    # -- settling by name

    def acknowledge(
        self, now: Now, queue: Queue, marks: Mapping[int, Chunk], verb: Verb = Verb.ACK, *, client: str = ""
    ) -> int:
        """Settle messages of a queue, by origin (ascending chunks), as its `leasing` allows to the client; how many.

        What is not in the queue and may still come is remembered: see `core.queue.settling.deferred`.
        Errors: InvalidArgument for an LSN that this instance has not given out; nothing is settled then.  QueueFull
        when too much is remembered; the rest is done.
        """
        if self.carried:
            brought = {self.peers.sites[number].origin: one for number, one in self.carried.items()}
            marks = translated(marks, brought, self.origin)
        own = marks.get(self.origin, range(0))
        if len(own) and own[-1] > self.last_lsn:
            raise InvalidArgument(
                f"{self.origin}|{own[-1]}| is no message: the last LSN that was given out is {self.last_lsn}"
            )
        affected = self.settle(now, queue, [own], verb, client=client) if len(own) else 0
        if verb in REMEMBERED and self.queue_by_id(queue.id) is queue:
            refused: QueueFull | None = None
            for origin, chunk in marks.items():
                if origin == self.origin:
                    chunk = self._never_offered(queue, chunk)
                if len(chunk):
                    try:
                        self._defer(self._at(now), queue, origin, chunk, verb, client)
                    except QueueFull as full:
                        refused = full
            if refused is not None:
                raise refused
        return affected

    def appeared(self, now: Now, queue: Queue, origin: int, chunk: Chunk, here: Chunk) -> int:
        """Messages that their origin calls `chunk` came into a queue as `here`: apply deferred acks; how many left."""
        if queue.id not in self._deferred.by_queue:
            return 0
        affected = self._deferred.appeared(self._at(now), queue, origin, chunk, here, self._out)
        self._touch(queue)
        return affected

    def _never_offered(self, queue: Queue, chunk: Chunk) -> Chunk:
        """Messages older than the queue that no pass over the log has offered to it."""
        parts = [chunk[: bisect_left(chunk, queue.id)]]
        for low, high in self._passes.get(queue.id, ((), None))[0]:
            parts = [rest for part in parts for rest in sift(part, range(low, high))[1]]
        return sorted_chunk([part for part in parts if len(part)])

    # -- by a filter

    def settle_matching(
        self, now: Now, queue: Queue, filter: Matcher, answer: Callable[[int], None], verb: Verb = Verb.ACK, *,
        client: str = "",
    ) -> None:  # fmt: skip
        """Settle every message now in the queue that matches, whoever holds it, as its `leasing` allows.

        `answer` hears how many messages that affected, once the queue was gone through.
        Errors: QueueFull when many others are on their way.
        """
        self._sweeps.refuse_more()
        if queue.is_due(now := self._at(now)):
            queue.tick(now, self._out)
        self._touch(queue)
        self._sweeps.begin(queue, filter, verb, client, answer, self._out)

    def takers(self, route: int) -> list[Queue]:
        """The existing queues that a row's route names."""
        queues = [self._admin.by_id.get(number) for number in self._interning.queues_of(route)]
        return [queue for queue in queues if queue is not None]


class InterventionCommands(QueueCommands):
    """Halting queues; withdrawing, rescheduling and moving what waits in them."""

    def pause_queue(self, now: Now, queue: Queue, until: int | None = None, *, by: str = "") -> None:
        """Deliver nothing from a queue before `until` (microseconds since the epoch), or, with None, before `resume`.

        Publishes, acks, delays and expiry go on.  Errors: InvalidArgument for a moment that is over.
        """
        now = self._at(now)
        if until is not None and not now.wall < until <= LATEST:
            when = iso_time(until) if 0 < until <= now.wall else f"{until} us after 1970"
            raise InvalidArgument(f"queue '{queue.name}' cannot be paused until {when}: it is {iso_time(now.wall)} now")
        queue.pause(now, NEVER if until is None else until, self._out, by)
        self._touch(queue)

    def resume_queue(self, now: Now, queue: Queue, *, by: str = "") -> bool:
        """Deliver again; whether the queue was paused."""
        was = queue.paused
        queue.pause(self._at(now), 0, self._out, by)
        self._touch(queue)
        return was

    def drain(self, now: Now, draining: bool = True) -> None:
        """Grant nothing and take no consumers until this is said again with False, or the process ends.

        What is leased is settled, extended and ended as ever; delays and expiry go on.
        """
        now = self._at(now)
        self.draining = draining
        for queue in self.queues():
            queue.drain(now, draining, self._out)
            self._touch(queue)

    def cancel_messages(
        self, now: Now, queues: Iterable[Queue], wanted: Chunk, *, by: str = ""
    ) -> list[tuple[Queue, int]]:
        """Remove messages from the queues where they wait unleased; how many by queue, where there were any.

        Errors: Unavailable where a fault has stopped one of them; nothing is done then.
        """
        return self._each(now, queues, wanted, None, by)

    def reschedule_messages(
        self, now: Now, queues: Iterable[Queue], wanted: Chunk, when: int, *, by: str = ""
    ) -> list[tuple[Queue, int]]:
        """Delay messages until `when` (microseconds since the epoch; the past is now) in the queues where they wait.

        Errors: as `cancel_messages`, and InvalidArgument for a moment that there is not.
        """
        if not 0 < when <= LATEST:
            raise InvalidArgument(f"{when} us since 1970 is not in the years 1970 to 9999")
        return self._each(now, queues, wanted, when, by)

    def _each(
        self, now: Now, queues: Iterable[Queue], wanted: Chunk, when: int | None, by: str
    ) -> list[tuple[Queue, int]]:
        now = self._at(now)
        out = list[tuple[Queue, int]]()
        if not len(wanted):
            return out
        queues = list(queues)
        for queue in queues:
            refuse_stopped(queue)
        self._out.begin()
        for queue in queues:
            if queue.id > wanted[-1] and not self.looked_back(queue):
                continue  # it came later than all of them
            if when is None:
                count = queue.withdraw(now, wanted, self._out, by)
            else:
                count = queue.reschedule(now, wanted, when, self._out, by)
            if count:
                out.append((queue, count))
            self._touch(queue)
        self._out.end()
        return out

    def move_messages(
        self,
        now: Now,
        source: Queue,
        target: Queue,
        lsns: Sequence[int],
        batch: Publishes,
        reason: str,
        *,
        by: str = "",
    ) -> int:
        """Move those that wait in `source` to the end of `target`; how many.

        lsns     ascending; what is leased, dying, another site's or gone by now is left out
        batch    what they become there, row by row: topics, headers, bodies, times
        They begin anew: no attempt counts.  Errors: PreconditionFailed for a queue that is its own target; Unavailable
        for one of them that a fault has stopped.
        """
        refuse_stopped(source)
        refuse_stopped(target)
        if source is target:
            raise PreconditionFailed(f"queue '{source.name}' cannot give its messages to itself")
        now = self._at(now)
        for queue in (source, target):
            queue.catch_up(now, self._out)
            self._touch(queue)
        wanted = source.ours_among(as_chunk(list(lsns)))
        runs = source.forget(wanted) if len(wanted) else ()
        rows = _rows_among(lsns, runs)
        if not rows:
            return 0
        chosen = batch if len(rows) == len(lsns) else batch.select(rows)
        self._out.begin()
        first = self._publisher.put_into(now, target, chosen)
        sent = [[lsns[row], first + i] for i, row in enumerate(rows)]
        header: dict[str, object] = {"reason": reason, "sent": sent, "into": target.name}
        if reason == MOVED and (letters := self._letters.moved([before for before, _ in sent], first)):
            header["letters"] = letters
        header |= {"by": by} if by else {}
        self._out.record(Kind.EXPIRE, source.name, header, pairs_body(source.id, runs))
        self._out.end()
        source.counted(now.mono).expired(reason, len(rows))
        source.go_on(now, self._out)
        self._touch(source)
        return len(rows)


def _rows_among(lsns: Sequence[int], runs: Iterable[Run]) -> list[int]:
    """Places of those that are in the runs."""
    there = {lsn for run in runs for lsn in run.chunk}
    return [row for row, lsn in enumerate(lsns) if lsn in there]


class AnswerCommands(DeliveryCommands):
    """Takes the answers to what the core has asked for."""

    def answered(self, now: Now, answer: Answer) -> None:
        """Go on with what an ask was for; of an answer for a part the rest is asked for again."""
        now = self._at(now)
        match answer:
            case Recovered():
                queue = self.queue_by_id(answer.of.queue)
                if queue is not None and not queue.stopped:
                    self._do(Due(part_of(queue), partial(self._pass_answered, now, queue, answer), (queue,)))
            case Scanned() if answer.token.purpose is Purpose.SWEEP:
                queue = self.queue_by_id(answer.token.queue)
                swept = partial(self._sweeps.scanned, now, answer, queue, self._out)
                if queue is None:
                    swept()
                else:
                    self._do(Due(part_of(queue), swept, (queue,)))
                    self._touch(queue)
            case Fetched() | Scanned() if answer.token.purpose is Purpose.HISTORY:
                self._history_answered(now, answer)
            case Scanned() if answer.token.purpose is Purpose.FOREIGN:
                if (wanted := self.wanted.get(answer.token.queue)) is not None:
                    wanted.found(answer)
            case _:
                queue = self.queue_by_id(answer.token.queue)
                if queue is not None and not queue.stopped:
                    self._do(Due(part_of(queue), partial(self._queue_answered, now, queue, answer), (queue,)))
                    self._touch(queue)
                elif isinstance(answer, Judged):
                    self._buried.pop(answer.token, None)

    def _queue_answered(self, now: Now, queue: Queue, answer: Fetched | Scanned | Judged | Rated | Keyed) -> None:
        token, out = answer.token, self._out
        match answer:
            case Scanned():
                queue.scanned(now, token, answer.found, answer.upto, out)
            case Rated():
                queue.rated(now, token, answer.chunk, answer.ranks, out)
            case Keyed():
                queue.keyed(now, token, answer.chunk, answer.keys, out)
            case Fetched():
                if (letter := queue.letter(token, answer.upto)) is not None:
                    parts = portions(letter, answer.rows)
                    prepared = [(part, self._letters.prepare(now, queue, answer.rows, part)) for part in parts]
                    self._bury(now, queue, token, prepared)
            case Judged():
                if (judged := self._buried.pop(token, None)) is not None and queue.letter(token) is not None:
                    self._bury(now, queue, token, judged)

    def _bury(self, now: Now, queue: Queue, token: Token, parts: list[Buried]) -> None:
        """Write dead letters, each part a group, or first have them judged where that would hold the loop."""
        asked = [one for _, prepared in parts for one in self._letters.unjudged(prepared)]
        if asked:
            self._buried[token] = parts
            self._out.effect(Judge(token, asked))
            return
        rest, refused = list[Run](), 0
        for i, (part, prepared) in enumerate(parts):
            kept, full = self._bury_part(now, queue, part, prepared)
            rest, refused = rest + kept, refused + full
            if full and queue.onward is None:
                rest += [run for later, _ in parts[i + 1 :] for run in later.runs]
                break
        if refused:
            self._letters.without_place += refused
            queue.refused_letter(now, token, rest, refused, self._out)
        else:
            queue.buried(token, self._out)

    def _bury_part(self, now: Now, queue: Queue, part: Letter, prepared: list[Prepared]) -> tuple[list[Run], int]:
        """Write what there is room for; the rest, and how many were refused."""
        full = self._letters.without_room(now, prepared, Reckoning())
        fits, rest = split(part, full, onward=queue.onward is not None) if full else (part, [])
        if fits is not None:
            there = {lsn for run in fits.runs for lsn in run.chunk} if full else None
            prepared = prepared if there is None else [one.of(there) for one in prepared]
            with self._out.group():
                self._letters.write(now, queue, prepared, fits)
        return rest, len(full)
