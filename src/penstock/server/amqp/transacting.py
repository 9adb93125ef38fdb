"""tx.select, tx.commit and tx.rollback.

How a commit comes about is `server.committing`; while it takes time, nothing more of the connection is acted on.  A
channel that closes, for whatever reason, has rolled back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.commands.transactions import Transacted, Transaction
from penstock.errors import PenstockError, PreconditionFailed
from penstock.server.amqp.transaction import Open
from penstock.server.committing import Committing
from penstock.wire.amqp import methods as m

if TYPE_CHECKING:
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session

NOT_TRANSACTIONAL = "channel is not transactional"


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
                session.send_back(self._channel.number, [rows[row] for row in done.published.unroutable])
        self._channel.reply(m.TxCommitOk(), durable=True, needs=done.lsn)


def select(session: Session, channel: Channel, method: m.TxSelect) -> None:
    """tx.select."""
    if channel.confirming:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.tx is None:
        session.mute(channel.number)
        channel.tx = Open(session.engine, channel.tags)
    channel.reply(m.TxSelectOk())


def commit(session: Session, channel: Channel, method: m.TxCommit) -> None:
    """tx.commit.  A refusal closes the channel, and nothing of the transaction is done."""
    Commit(session, channel, _tx(channel)).step()


def rollback(session: Session, channel: Channel, method: m.TxRollback) -> None:
    """tx.rollback."""
    _tx(channel).roll_back()
    channel.reply(m.TxRollbackOk())


def _tx(channel: Channel) -> Open:
    if channel.tx is None:
        raise PreconditionFailed(NOT_TRANSACTIONAL)
    return channel.tx
