"""DoPut transact: messages and settles of one client that become one group of the log, or nothing.

Batches are kept, counted against the budget, until the last word comes; without it nothing is done, for a vanished
client looks like one that has finished.  Deliveries are fenced by attempt: one that its consumer no longer holds
refuses the whole, and the answer names it.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import orjson

from penstock.core.commands.transactions import Ending, Transacted, Transaction
from penstock.core.publishing.published import Published
from penstock.errors import Fenced, InvalidArgument, NotFound, PenstockError, PreconditionFailed
from penstock.records.chunks import as_chunk
from penstock.records.entries import Publishes, joined
from penstock.records.schema import TRANSACTION_BYTES_MAX
from penstock.server.committing import Committing
from penstock.server.flight.publish import to_publishes
from penstock.server.flight.settles import VERBS
from penstock.server.transaction_memory import Charge
from penstock.wire.flight.codec import Upload, read_upload
from penstock.wire.flight.received import TRANSACTED, Bounds, CommitWord, Goal, Settle, read_word

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.server.flight.arriving import Arriving
    from penstock.server.flight.calls import Caller
    from penstock.server.flight.consume import Exchange
    from penstock.server.flight.gatekeeper import Gatekeeper
    from penstock.server.flight.handover import Answer, Handover
    from penstock.wire.flight.commands import Transact

Kept = list[tuple[Goal, Upload]]
"""Where each batch goes, and its messages."""

ROW_COST = 128
"""Bytes a message counts for beyond its body and header."""


class Transacting:
    def __init__(
        self, handover: Handover, bounds: Bounds, gate: Gatekeeper, consuming: Callable[[], Iterable[Exchange]]
    ) -> None:
        """consuming: the consumers of all clients."""
        self._handover = handover
        self._engine = handover.engine
        self._bounds = bounds
        self._gate = gate
        self._consuming = consuming

    # -- Flight's thread

    def serve(self, caller: Caller, arriving: Arriving, command: Transact, writer: Any) -> None:
        """Read until the last word, then commit and answer."""
        arriving.expect(TRANSACTED)
        kept: Kept = []
        name = f"the transaction of {caller.peer}"
        charge = Charge(self._engine.charges, caller.user, name, lambda _: kept.clear())
        try:
            word = self._read(caller, arriving, command, charge, kept)
            if word is None:
                if not caller.gone():
                    raise InvalidArgument("transact: the upload ended without its commit, so nothing is done")
                return
            sent = sum(len(upload) for _, upload in kept)
            if word.rows != sent:
                raise InvalidArgument(f"transact: the commit says {word.rows} rows and {sent} came; nothing is done")
            answer = self._handover.submit(partial(self._begin, caller, command, kept, word, charge))
            writer.write(orjson.dumps(answer.wait(caller.gone)))
        finally:
            self._handover.post(charge.close)

    def _read(
        self, caller: Caller, arriving: Arriving, command: Transact, charge: Charge, kept: Kept
    ) -> CommitWord | None:
        """Its last word; `kept` is emptied when it has to give way, which its next word is told."""
        size, judged = 0, caller.rights
        for received, metadata in arriving.each(TRANSACTED):
            word = Goal() if metadata is None else read_word(metadata)
            if isinstance(word, CommitWord):
                for goal, upload in kept if caller.rights is not judged else ():  # some were taken away, perhaps
                    self._gate.publish(caller, command.vhost, goal.exchange, upload)
                self._handover.call(charge.check, caller.gone, durable=False)
                return word
            if not received:
                continue
            upload = read_upload(received, word.topic, self._bounds)
            self._gate.publish(caller, command.vhost, word.exchange, upload)
            size += upload.size
            if size > TRANSACTION_BYTES_MAX:
                raise PreconditionFailed(
                    f"a transaction may have {TRANSACTION_BYTES_MAX} bytes of messages, and this one has {size}; "
                    "nothing of it is done"
                )
            self._handover.call(partial(charge.add, upload.size + ROW_COST * len(upload)), caller.gone, durable=False)
            arriving.release()
            kept.append((word, upload))
        return None

    # -- the loop

    def _begin(
        self,
        caller: Caller,
        command: Transact,
        kept: Kept,
        word: CommitWord,
        charge: Charge,
        answer: Answer[dict[str, object]],
    ) -> None:
        """Put the transaction together when there is room."""
        engine = self._engine
        charge.check()
        charge.busy = True
        if kept and not self._handover.has_room(partial(self._begin, caller, command, kept, word, charge), answer):
            return
        batches = [to_publishes(engine, caller.user, upload, command.vhost, goal.exchange) for goal, upload in kept]
        starts = accumulate((len(upload) for _, upload in kept), initial=0)
        mandatory = {
            row
            for start, (goal, upload) in zip(starts, kept, strict=False)
            if goal.mandatory
            for row in range(start, start + len(upload))
        }
        batch: Publishes | None = None
        if batches:
            size = sum(one.size for one in batches)
            batch = batches[0] if len(batches) == 1 else joined(batches, size)
        holders = self._holders(caller)
        endings = [ending for some in _alike(word.settles) for ending in self._endings(command, holders, some)]
        committing = Committing(engine, Transaction(batch, endings, by=caller.peer, mandatory=mandatory), charge)
        self._go_on(committing, holders, word, answer)

    def _go_on(
        self,
        committing: Committing,
        holders: dict[str, Exchange],
        word: CommitWord,
        answer: Answer[dict[str, object]],
    ) -> None:
        again = partial(self._handover.again, partial(self._go_on, committing, holders, word), answer)
        done = committing.step(again)
        if done is None:
            return
        for one in word.settles:
            holders[one.consumer].forget(one.queue, one.lsn)
        self._handover.when_persisted(done.lsn, answer, _told(done, word.rows))

    def _holders(self, caller: Caller) -> dict[str, Exchange]:
        """The consumers of the same login by their names."""
        return {
            one.wish.tag: one for one in self._consuming() if one.wish is not None and one.caller.login == caller.login
        }

    def _endings(self, command: Transact, holders: dict[str, Exchange], some: list[Settle]) -> list[Ending]:
        """Deliveries of one queue and consumer that end alike.  Raises Fenced when the consumer or queue is gone."""
        first = some[0]
        holder = holders.get(first.consumer)
        if holder is None or holder.wish is None:
            raise Fenced(f"nothing of the transaction is done: {_names(some)} held by a consumer that is closed")
        try:
            name = holder.command.queue if first.queue is None else first.queue
            queue = self._engine.core.queue(command.vhost, name, by=holder)
            if not (consumers := holder.wish.at(queue)) and not holder.may_settle(queue):
                raise NotFound(f"no queue '{name}' in vhost '{command.vhost}'")
        except PenstockError as error:
            raise Fenced(f"nothing of the transaction is done: {_names(some)} gone: {error}") from None
        lsns = sorted({one.lsn for one in some})
        if len(lsns) < len(some):
            raise InvalidArgument(f"transact: a message of queue '{name}' is settled twice; nothing is done")
        by: dict[Consumer | None, list[int]] = {}
        for lsn in lsns:
            by.setdefault(_who_holds(consumers, lsn, first.attempt), []).append(lsn)
        return [
            Ending(
                queue, [as_chunk(array("q", own))], VERBS[first.verb], by=consumer,
                client=holder.command.name or holder.caller.peer, delay=first.delay, reason=first.reason,
                attempt=first.attempt,
            )
            for consumer, own in by.items()
        ]  # fmt: skip


def _who_holds(consumers: list[Consumer], lsn: int, attempt: int) -> Consumer | None:
    """Of a client's consumers at one queue (two, when it left it and came back) the one that holds the message."""
    for consumer in consumers if len(consumers) > 1 else ():
        if len(consumer.leases.holding(range(lsn, lsn + 1), attempt=attempt)):
            return consumer
    return consumers[0] if consumers else None


def _alike(settles: Iterable[Settle]) -> list[list[Settle]]:
    """Those of one consumer that end alike, together."""
    found: dict[tuple[object, ...], list[Settle]] = {}
    for one in settles:
        found.setdefault((one.consumer, one.queue, one.verb, one.delay, one.reason, one.attempt), []).append(one)
    return list(found.values())


def _names(some: list[Settle]) -> str:
    text = ", ".join(str(one.lsn) for one in some[:5])
    return f"message {text} is" if len(some) == 1 else f"messages {text}{' and others' if len(some) > 5 else ''} are"


def _told(done: Transacted, rows: int) -> dict[str, object]:
    """The answer: what each row has come to; `lsns` where these are not `first` and those that follow it."""
    published = done.published or Published(0, 0)
    lsns, kept = published.lsns_by_row(rows), set(published.kept)
    return {
        "lsn": done.lsn,
        "first": published.first,
        "stored": published.stored,
        "lsns": None if isinstance(lsns, range) else list(lsns),
        "unroutable": [row for row in published.unroutable if row not in kept],
        "duplicates": [row for row in published.repeats if row not in kept],
        "replies": list(published.replied),
        "ended": done.ended,
    }
