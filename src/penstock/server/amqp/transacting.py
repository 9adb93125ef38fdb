"""AMQP transactions: what a channel says between tx.select, tx.commit and tx.rollback.

Until the commit publishes lie here, counted against the budget, and acks are lent: their tags are spent, but the
deliveries are still held.  How a commit comes about is `server.committing`; while it takes time, nothing more of the
connection is acted on.  A channel that closes, for whatever reason, has rolled back.

It knows nothing of what may be refused, nor why.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from penstock.core.commands.transactions import Ending, Transacted, Transaction
from penstock.core.effects import Verb
from penstock.errors import PenstockError, PreconditionFailed
from penstock.records.entries import Publishes, Topic, joined
from penstock.records.schema import TRANSACTION_BYTES_MAX
from penstock.server.amqp.tags import Lent
from penstock.server.committing import Charge, Committing
from penstock.wire.amqp import events
from penstock.wire.amqp import methods as m

if TYPE_CHECKING:
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session

ROW_COST = 128
"""Bytes a message counts for beyond its body and header."""

END_COST = 16
"""Bytes a lent delivery counts for."""

NOT_TRANSACTIONAL = "channel is not transactional"


class Open:
    """The transaction of one channel: always open once tx.select was said, and empty after each end."""

    __slots__ = ("_channel", "_ends", "_runs", "_size", "charge")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._runs: list[tuple[events.PublishRun, Topic | list[Topic]]] = []
        self._ends: list[tuple[Lent, Verb]] = []
        self._size = 0  # bytes of bodies and headers
        self.charge = Charge(channel.session.engine)

    # -- while it is open

    def publish(self, run: events.PublishRun, topics: Topic | list[Topic]) -> None:
        """Keep messages.  Raises what a header is refused for, and PreconditionFailed or DiskFull beyond the bounds."""
        core = self._channel.session.core
        batch = Publishes(topics, run.properties, run.bodies)
        for _, refusal in core.refused_headers(batch):
            raise refusal
        size = sum(map(len, run.bodies))
        if isinstance(run.properties, list):
            size += sum(map(len, run.properties))
        else:
            size += len(run.properties) * len(run.bodies)
        if self._size + size > TRANSACTION_BYTES_MAX:
            raise PreconditionFailed(
                f"a transaction may have {TRANSACTION_BYTES_MAX} bytes of messages, and this one is at "
                f"{self._size + size}: it is rolled back"
            )
        self.charge.add(size + ROW_COST * len(run.bodies))
        self._size += size
        self._runs.append((run, topics))

    def settle(self, low: int, high: int, verb: Verb) -> None:
        """Lend deliveries.  Raises UnknownTag."""
        lent = self._channel.tags.lend(low, high)
        if lent:
            self.charge.add(END_COST * sum(len(chunk) for _, _, chunk in lent))
            self._ends.append((lent, verb))

    def forget(self) -> None:
        """It has ended; what it was charged is given back."""
        self.charge.end()
        self._runs, self._ends, self._size = [], [], 0

    def close(self) -> None:
        """The channel is over: nothing of it is done."""
        self.forget()
        self.charge.close()

    def roll_back(self) -> None:
        """Publishes are forgotten, and what was settled is outstanding again."""
        for lent, _ in self._ends:
            self._channel.tags.take_back(lent)
        self.forget()

    # -- what it comes to

    def batch(self) -> Publishes | None:
        """All its messages in order, as one batch."""
        if not self._runs:
            return None
        if len(self._runs) == 1:
            run, topics = self._runs[0]
            return Publishes(topics, run.properties, run.bodies, size=self._size)
        return joined([Publishes(topics, run.properties, run.bodies) for run, topics in self._runs], size=self._size)

    def endings(self) -> list[Ending]:
        """What it settled, in order, neighbours of one consumer and verb together."""
        ends = [(consumer, verb, chunk) for lent, verb in self._ends for _, consumer, chunk in lent]
        return [
            Ending(consumer.queue, [chunk for _, _, chunk in some], verb, by=consumer)
            for (consumer, verb), some in groupby(ends, key=lambda end: end[:2])
        ]

    @property
    def acknowledged(self) -> int:
        """How many deliveries it acks."""
        return sum(len(chunk) for lent, verb in self._ends if verb is Verb.ACK for _, _, chunk in lent)

    def rows(self) -> list[tuple[events.PublishRun, int]]:
        """For each message its run, and its row there."""
        return [(run, row) for run, _ in self._runs for row in range(len(run.bodies))]


class Commit:
    """One tx.commit on its way; the connection waits for it."""

    def __init__(self, session: Session, channel: Channel, tx: Open) -> None:
        self._session = session
        self._channel = channel
        self._tx = tx
        session.settling.finish()  # what other channels said before
        transaction = Transaction(tx.batch(), tx.endings(), by=session.peer)
        self._committing = Committing(session.engine, transaction, tx.charge)

    def step(self) -> None:
        """Go on as far as it goes.  Raises what the commit is refused with."""
        done = self._committing.step(self._again)
        if done is None:
            self._session.incoming.hold()
        else:
            self._answer(done)

    def _again(self) -> None:
        self._session.incoming.go_on(self._go_on)

    def _go_on(self) -> None:
        if not self._channel.open:
            return
        try:
            self.step()
        except PenstockError as error:
            self._session.fail_channel(self._channel.number, error, m.TxCommit)

    def _answer(self, done: Transacted) -> None:
        session, tx, counters = self._session, self._tx, self._session.counters
        rows, acknowledged = tx.rows(), tx.acknowledged
        tx.forget()
        counters.acknowledged += acknowledged
        if done.published is not None:
            counters.published += len(rows)
            counters.routed += done.published.stored
            if done.published.unroutable:
                session.intake.send_back(self._channel, [rows[row] for row in done.published.unroutable])
        session.reply(self._channel, m.TxCommitOk(), durable=True, needs=done.lsn)


def select(session: Session, channel: Channel, method: m.TxSelect) -> None:
    """tx.select."""
    if channel.confirming:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.tx is None:
        session.door.holding.mute(session, channel)
        channel.tx = Open(channel)
    session.reply(channel, m.TxSelectOk())


def commit(session: Session, channel: Channel, method: m.TxCommit) -> None:
    """tx.commit.  A refusal closes the channel, and nothing of the transaction is done."""
    Commit(session, channel, _tx(channel)).step()


def rollback(session: Session, channel: Channel, method: m.TxRollback) -> None:
    """tx.rollback."""
    _tx(channel).roll_back()
    session.reply(channel, m.TxRollbackOk())


def _tx(channel: Channel) -> Open:
    if channel.tx is None:
        raise PreconditionFailed(NOT_TRANSACTIONAL)
    return channel.tx
