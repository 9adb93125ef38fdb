"""Commands of whoever administers queues, and answers to what the core asked for (`core.asks`).

Queues are halted, and what waits in them is withdrawn, rescheduled or moved.  A message that is moved is in one place
at any moment: who calls has read the rows and says what becomes of them; here is decided which of them still wait, and
the new rows lie in one group with the record that ends the old ones.  Who may say so is the doors' affair.

An answer goes to whoever asked, if that is still there.  Dead letters take two: their bodies are fetched, then content
filters of where they go may have to judge them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core.actions.rules import iso_time
from penstock.core.asks import Answer, Fetched, Judge, Judged, Keyed, Purpose, Rated, Recovered, Scanned, Token
from penstock.core.commands.deliveries import DeliveryCommands
from penstock.core.commands.queues import QueueCommands
from penstock.core.publishing.dead_letters import Buried
from penstock.core.queue.order.runs import NEVER, pairs_body
from penstock.core.queue.queue import Queue
from penstock.core.queue.refusing import Reckoning
from penstock.core.queue.settling.letters import portions, split
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import Kind

LATEST = 1 << 61
"""Microseconds since the epoch: a time beyond this is a mistake."""


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
        """Remove messages where they wait: not where somebody holds them.  Of each queue how many, where any did."""
        return self._each(now, queues, wanted, None, by)

    def reschedule_messages(
        self, now: Now, queues: Iterable[Queue], wanted: Chunk, when: int, *, by: str = ""
    ) -> list[tuple[Queue, int]]:
        """Let messages wait until `when` (microseconds since the epoch; what is over is now) where they wait."""
        if not 0 < when <= LATEST:
            raise InvalidArgument(f"{when} is no time in microseconds since the epoch")
        return self._each(now, queues, wanted, when, by)

    def _each(
        self, now: Now, queues: Iterable[Queue], wanted: Chunk, when: int | None, by: str
    ) -> list[tuple[Queue, int]]:
        now = self._at(now)
        out = list[tuple[Queue, int]]()
        if not len(wanted):
            return out
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

    def interned(self, vhost: str, exchange: str, key: str) -> Topic:
        """The topic of that name, whether its exchange is there or not."""
        return self._topic(vhost, exchange, key)

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
        They begin anew: no attempt counts.  Errors: PreconditionFailed for a queue that is its own target.
        """
        if source is target:
            raise PreconditionFailed(f"queue '{source.name}' cannot give its messages to itself")
        now = self._at(now)
        for queue in (source, target):
            queue.catch_up(now, self._out)
            self._touch(queue)
        wanted = [lsn for lsn in lsns if not source.lives(lsn, "foreign")] if source.foreign_count else list(lsns)
        runs = source.extract(as_chunk(wanted)) if wanted else []
        there = {lsn for run in runs for lsn in run.chunk}
        if not there:
            return 0
        rows = [row for row, lsn in enumerate(lsns) if lsn in there]
        chosen = batch if len(rows) == len(lsns) else batch.select(rows)
        self._out.begin()
        first = self._publisher.put_into(now, target, chosen)
        sent = [[lsns[row], first + i] for i, row in enumerate(rows)]
        header: dict[str, object] = {"reason": reason, "sent": sent}
        if by:
            header["by"] = by
        self._out.record(Kind.EXPIRE, source.name, header, pairs_body(source.id, runs))
        self._out.end()
        source.counted(now.mono).expired(reason, len(rows))
        source.go_on(now, self._out)
        self._touch(source)
        return len(rows)


class AnswerCommands(DeliveryCommands):
    """The one way in for answers."""

    def answered(self, now: Now, answer: Answer) -> None:
        """Go on with what an ask was for; of an answer for a part the rest is asked for again."""
        now = self._at(now)
        match answer:
            case Recovered():
                self._pass_answered(now, answer)
            case Scanned() if answer.token.purpose is Purpose.SWEEP:
                self._swept(now, answer)
            case _:
                queue = self._by_id(answer.token.queue)
                if queue is not None:
                    self._queue_answered(now, queue, answer)
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
                letter = queue.letter(token, answer.upto)
                if letter is not None:
                    parts = portions(letter, answer.rows)
                    prepared = [(part, self._letters.prepare(now, queue, answer.rows, part)) for part in parts]
                    self._bury(now, queue, token, prepared)
            case Judged():
                judged = self._buried.pop(token, None)
                if judged is not None and queue.letter(token) is not None:
                    self._bury(now, queue, token, judged)

    def _bury(self, now: Now, queue: Queue, token: Token, parts: list[Buried]) -> None:
        """Write dead letters, each part a group, or first have them judged where that would hold the loop."""
        asked = [one for _, prepared in parts for one in self._letters.unjudged(prepared)]
        if asked:
            self._buried[token] = parts
            self._out.effect(Judge(token, asked))
            return
        for i, (part, prepared) in enumerate(parts):
            full = self._letters.without_room(now, prepared, Reckoning())
            fits, rest = split(part, full) if full else (part, [])
            if fits is not None:
                if full:
                    there = {lsn for run in fits.runs for lsn in run.chunk}
                    prepared = [one.of(there) for one in prepared]
                self._out.begin()
                self._letters.write(now, queue, prepared, fits)
                self._out.end()
            if full:
                rest += [run for later, _ in parts[i + 1 :] for run in later.runs]
                self._letters.without_place += len(full)
                queue.refused_letter(now, token, rest, len(full))
                return
        queue.buried(token, self._out)
