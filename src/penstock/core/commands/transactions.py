"""What lies in one group of the log, or not at all: transactions, and batches of sinks.

What could be refused is looked at before the first record is written, so a refusal leaves nothing.  Deliveries that end
for good take their dead letters with them: whoever commits has their bodies read first (`mourned`, `lay_out`).

    publishes first, in their order; then the deliveries end, in the order they were ended; a TRANSACTION record last

A query's batch becomes visible once, in one group or, decided first, in chunks.  It knows neither who waits for the
answer nor how a transaction is opened: that is the doors' business.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from operator import itemgetter
from typing import NoReturn, TypeAlias

from penstock.core.commands.common_parts import CoreParts
from penstock.core.commands.deliveries import DeliveryCommands
from penstock.core.effects import Question, Reply, Verb
from penstock.core.publishing import Preflight, judged, refuse_all, refused_headers
from penstock.core.publishing.dead_letters import Prepared
from penstock.core.publishing.published import ADMITTED, Published, Refusal
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.order.runs import Run, sorted_chunk
from penstock.core.queue.queue import Letter, Queue
from penstock.core.queue.refusing import Reckoning, refusal
from penstock.core.sow.holding import Cut, Sow
from penstock.core.state.pending import DecidedPart, DecidedState
from penstock.core.streams.sinks import Batch, Committed, Remembered
from penstock.errors import Fenced, PreconditionFailed, QueueFull, Unroutable
from penstock.records.causes import FORCED
from penstock.records.chunks import Chunk, Now
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Rows
from penstock.records.kinds import Kind
from penstock.records.schema import TRANSACTION_BYTES_MAX

NAMED_MOST = 5
"""Messages that a refusal names."""


@dataclass(slots=True, eq=False)
class Ending:
    """Deliveries of one queue that end together.

    attempt: the delivery they were held since; the whole transaction is refused unless `by` still holds them all since
    then.  None: who no longer holds a message has no say, as always, and the others go on.
    """

    queue: Queue
    chunks: Sequence[Chunk]  # each ascending
    verb: Verb
    by: Consumer | None = None
    client: str = ""
    delay: int | None = None
    reason: str | None = None
    attempt: int | None = None


@dataclass(slots=True, eq=False)
class Grave:
    """What deliveries that end for good become."""

    letter: Letter  # all of the ending; some may turn out to be settled by somebody else
    rows: Rows
    prepared: list[Prepared]


@dataclass(slots=True, eq=False)
class Transaction:
    """What is to be done as a whole."""

    batch: Publishes | None
    endings: Sequence[Ending]
    by: str = ""  # who commits it, for the log
    mandatory: Collection[int] = ()  # rows of which none may be one that nobody wants
    graves: dict[int, Grave] = field(default_factory=dict[int, Grave])  # by index of the ending: its dead letters


@dataclass(frozen=True, slots=True)
class Transacted:
    """What a transaction came to.  It holds once `lsn` is durable."""

    lsn: int  # 0: there was nothing to write
    published: Published | None
    ended: int  # deliveries


class TransactionCommands(DeliveryCommands):
    """Transactions are judged, prepared and committed, each as one group."""

    def refused_headers(self, batch: Publishes) -> list[tuple[int, Refusal]]:
        """The rows that nothing could make acceptable, for what their headers ask."""
        return refused_headers(self._publisher, batch)

    def judge(self, batch: Publishes) -> list[tuple[int, Refusal]]:
        """The rows that `publish` would refuse, without publishing: a transaction asks before it begins."""
        return judged(self._publisher, batch)

    def mourned(self, transaction: Transaction) -> list[tuple[Queue, Chunk]]:
        """The messages, by queue, whose bodies `lay_out` needs: their dead letters belong to the transaction."""
        found: dict[Queue, list[Chunk]] = {}
        for ending in transaction.endings:
            if self._has_letters(ending):
                found.setdefault(ending.queue, []).extend(chunk for chunk in ending.chunks if len(chunk))
        return [(queue, sorted_chunk(chunks)) for queue, chunks in found.items() if chunks]

    def lay_out(self, now: Now, transaction: Transaction, queue: Queue, rows: Rows, part: slice) -> None:
        """Prepare the dead letters of a part of what was read of a queue; its parts come one after another."""
        now = self._at(now, not transaction.endings)
        some = rows.part(part)
        low, high = some.lsns[0], some.lsns[-1]
        for i, ending in enumerate(transaction.endings):
            if ending.queue is not queue or not self._has_letters(ending):
                continue
            grave = transaction.graves.get(i)
            if grave is None:
                runs = [Run(chunk, False) for chunk in ending.chunks if len(chunk)]
                grave = transaction.graves[i] = Grave(Letter(runs, FORCED, why=ending.reason or ""), rows, [])
            there = [(run, bisect_left(run.chunk, low), bisect_right(run.chunk, high)) for run in grave.letter.runs]
            runs = [run.part(run.chunk[start:stop], False) for run, start, stop in there if start < stop]
            if runs:
                grave.prepared += self._letters.prepare(now, queue, some, grave.letter.of(runs))

    def unjudged_letters(self, transaction: Transaction) -> list[tuple[Publishes, list[Question]]]:
        """What content filters have to judge of the dead letters off the loop, before `transact`."""
        return [one for grave in transaction.graves.values() for one in self._letters.unjudged(grave.prepared)]

    def transact(self, now: Now, transaction: Transaction) -> Transacted:
        """Do all of it, as one group.

        Errors, after which nothing of it is done: PreconditionFailed for a message that would be refused, with its
        reason, and for more bytes than a transaction may have; QueueFull for one that a limit refuses; Unroutable for
        mandatory ones that nobody wants, naming them; Fenced for deliveries with an attempt that are no longer held,
        naming them.
        """
        now = self._at(now, not transaction.endings)
        batch, endings = transaction.batch, transaction.endings
        for queue in {ending.queue: None for ending in endings}:
            if self._lives(queue) and queue.is_due(now):
                queue.tick(now, self._out)
                self._touch(queue)
        self._refuse_stale(endings)
        self._refuse_rows(transaction)
        self._refuse_unwanted(transaction)
        self._refuse_overflow(now, transaction)
        out = self._out
        first, effects = out.next_lsn, len(out.effects)
        published: Published | None = None
        ended = 0
        out.begin()
        if batch is not None and len(batch):
            published = self._publisher.publish(now, batch, ADMITTED)
        for i, ending in enumerate(endings):
            ended += self._end(now, ending, transaction.graves.get(i))
        lsn = 0
        if out.next_lsn > first:
            header: dict[str, object] = {"first": first, "rows": published.stored if published else 0, "ended": ended}
            if transaction.by:
                header["by"] = transaction.by
            lsn = out.record(Kind.TRANSACTION, "", header)
            self.transactions += 1
            for effect in out.effects[effects:]:
                if isinstance(effect, Reply):
                    effect.after = lsn
        out.end()
        return Transacted(lsn, published, ended)

    # -- before anything is written

    def _has_letters(self, ending: Ending) -> bool:
        return ending.verb is Verb.EXPIRE and self._lives(ending.queue) and ending.queue.wants_letter(FORCED)

    def _lives(self, queue: Queue) -> bool:
        return self._admin.by_id.get(queue.id) is queue

    def _refuse_stale(self, endings: Sequence[Ending]) -> None:
        """Fenced for deliveries that were to be held and are not."""
        stale = list[str]()
        count = 0
        for ending in endings:
            if ending.attempt is None:
                continue
            for chunk in ending.chunks:
                held: Chunk = range(0)
                if ending.by is not None and self._lives(ending.queue) and len(chunk):
                    held = ending.by.leases.holding(chunk, attempt=ending.attempt)
                if len(held) < len(chunk):
                    there = set(held)
                    gone = [lsn for lsn in chunk if lsn not in there]
                    count += len(gone)
                    stale += [
                        f"{self.origin}|{lsn}| of queue '{ending.queue.name}' (delivery {ending.attempt})"
                        for lsn in gone[:NAMED_MOST]
                    ]
        if stale:
            more = f" and {count - NAMED_MOST} more" if count > NAMED_MOST else ""
            raise Fenced(
                f"nothing of the transaction is done: {', '.join(stale[:NAMED_MOST])}{more} "
                f"{'is' if count == 1 else 'are'} no longer held by this consumer"
            )

    def _refuse_rows(self, transaction: Transaction) -> None:
        """PreconditionFailed for what would be refused when it is written."""
        batch = transaction.batch
        size = 0
        if batch is not None:
            size = batch.size
            refuse_all(self.judge(batch), "nothing of the transaction is done: message", of=f" of {len(batch)}")
        size += sum(one.batch.size for grave in transaction.graves.values() for one in grave.prepared)
        if size > TRANSACTION_BYTES_MAX:
            raise PreconditionFailed(
                f"nothing of the transaction is done: it has {size} bytes with its dead letters, and one may have "
                f"{TRANSACTION_BYTES_MAX}"
            )

    def _refuse_unwanted(self, transaction: Transaction) -> None:
        """Unroutable for mandatory messages that nobody wants."""
        batch, mandatory = transaction.batch, transaction.mandatory
        if batch is None or not mandatory:
            return
        lost = [row for row in self._publisher.unwanted(batch) if row in mandatory]
        if lost:
            places = [(row + 1, batch.topic_of(row)) for row in lost[:NAMED_MOST]]
            named = [f"message {n} for '{f'{one.exchange}/' if one.exchange else ''}{one.name}'" for n, one in places]
            more = f" and {len(lost) - NAMED_MOST} more" if len(lost) > NAMED_MOST else ""
            raise Unroutable(
                f"nothing of the transaction is done: of its {len(batch)} messages no queue and no declared topic "
                f"takes {', '.join(named)}{more}: declare what takes them"
            )

    def _refuse_overflow(self, now: Now, transaction: Transaction) -> None:
        """QueueFull when a queue refuses a message or a dead letter.

        All of it needs room at once, for nobody is given anything of a transaction before it is decided.
        """
        reckoning = Reckoning()
        batch = transaction.batch
        if batch is not None and (full := self._publisher.no_room(now, batch, reckoning)):
            row, queue = next(iter(sorted(full.items(), key=itemgetter(0))))
            self._full(queue, len(full), f"message {row + 1} of {len(batch)}")
        for grave in transaction.graves.values():
            if full := self._letters.without_room(now, grave.prepared, reckoning):
                cause, queue = next(iter(full.items()))
                self._full(queue, len(full), f"the dead letter of {self.origin}|{cause}|")

    def _full(self, queue: Queue, count: int, what: str) -> NoReturn:
        why = refusal(queue, count)
        raise QueueFull(f"nothing of the transaction is done: {what} is refused: {why}", reason=why.reason)

    # -- inside the group

    def _end(self, now: Now, ending: Ending, grave: Grave | None) -> int:
        """End deliveries, dead letters and all; how many that affected."""
        if not self._lives(ending.queue):
            return 0
        dying: list[Letter] | None = None if grave is None else []
        affected = self.settle(
            now, ending.queue, ending.chunks, ending.verb,
            by=ending.by, client=ending.client, delay=ending.delay, reason=ending.reason, dying=dying,
        )  # fmt: skip
        if grave is not None:
            for letter in dying or ():
                prepared = grave.prepared
                if _lsns(letter) != _lsns(grave.letter):  # the others are somebody else's by now
                    prepared = self._letters.prepare(now, ending.queue, grave.rows, letter)
                self._letters.write(now, ending.queue, prepared, letter)
        return affected


def _lsns(letter: Letter) -> list[int]:
    return [lsn for run in letter.runs for lsn in run.chunk]


Drop: TypeAlias = "tuple[Sow, Cut]"
"""Records of a topic that go with a commit."""


class SinkCommands(CoreParts):
    """What a sink asks for."""

    def sink_commit(
        self, now: Now, batch: Batch, outputs: Sequence[Publishes], *, drop: Drop | None = None
    ) -> Committed:
        """Make the outputs of a query's batch visible, once.  See `Sinks.commit`."""
        return self._sinks.commit(self._at(now), self._with(batch, drop), outputs)

    def sink_whole(self, query: str, batch: int, *, mandatory: bool = False) -> Preflight:
        """For looking at the rows of a batch that will be decided, some at a time."""
        return self._sinks.whole(Batch(query, batch, mandatory=mandatory))

    def sink_look(self, now: Now, whole: Preflight, outputs: Sequence[Publishes]) -> None:
        """Look at the next rows of such a batch.  Errors as `Preflight.look`."""
        now = self._at(now)
        for output in outputs:
            whole.look(now, output)

    def sink_asks(self, mandatory: bool = False) -> bool:
        """Whether rows could be refused at all for what they are or where they go."""
        return mandatory or bool(self._router.rejecting) or self._publisher.keyed is not None

    def sink_decide(
        self, now: Now, batch: Batch, parts: Sequence[DecidedPart], *, drop: Drop | None = None
    ) -> Committed:
        """Commit a batch whose rows follow in chunks.  See `Sinks.decide`."""
        return self._sinks.decide(self._at(now), self._with(batch, drop), parts)

    def _with(self, batch: Batch, drop: Drop | None) -> Batch:
        if drop is None:
            return batch

        def cut(_: Now) -> object:
            return self._keyed.cut(*drop, "deleted")

        return replace(batch, before=cut)

    def sink_copy(self, now: Now, query: str, rows: int, outputs: Sequence[Publishes]) -> Committed:
        """The next chunk of a decided batch.  See `Sinks.copy`."""
        return self._sinks.copy(self._at(now), query, rows, outputs)

    def sink_state(self, query: str) -> int | None:
        """The highest committed batch of a query; None if it has none."""
        return self._sinks.known.batches.get(query)

    @property
    def sinks(self) -> Remembered:
        """All queries that are remembered."""
        return self._sinks.known

    @property
    def decided(self) -> Mapping[str, DecidedState]:
        """By query, the batches that are decided and not yet copied to their end."""
        return self._sinks.decided
