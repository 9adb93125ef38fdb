"""AMQP methods that are not in the hot path, one function each; those that settle, confirm and end transactions are
here.

Each takes the session, the channel and the method, talks to the core, and replies.  What the core refuses it raises;
the session turns that into the close code of the smallest scope.  How a tx.commit comes about is `server.committing`;
while it takes time, nothing more of the connection is acted on.  A channel that closes has rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.core.commands.transactions import Transacted, Transaction
from penstock.core.effects import Verb
from penstock.errors import PenstockError, PreconditionFailed, ProtocolError
from penstock.server.amqp import consuming, declaring
from penstock.server.amqp.channel import Channel
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


Handler = Callable[["Session", Channel, Any], None]


def run(session: Session, channel: Channel, method: m.Method) -> None:
    """Carry out one method; raises what the core or the protocol refuses."""
    handler = _HANDLERS.get(type(method))
    if handler is None:
        raise ProtocolError(f"{type(method).__name__} is not supported", reply_code=540)
    handler(session, channel, method)


def _nack(session: Session, channel: Channel, method: m.BasicNack) -> None:
    low = 0 if method.multiple else method.delivery_tag
    if not (method.multiple or low):
        _no_tag(0)
    _end(session, channel, low, method.delivery_tag, requeue=method.requeue)


def _reject(session: Session, channel: Channel, method: m.BasicReject) -> None:
    tag = method.delivery_tag or _no_tag(0)
    _end(session, channel, tag, tag, requeue=method.requeue)


def _end(session: Session, channel: Channel, low: int, high: int, *, requeue: bool) -> None:
    verb = Verb.CANCEL if requeue else Verb.EXPIRE
    if channel.tx is not None:
        channel.tx.settle(low, high, verb)
    else:
        session.settle(channel.tags.settle(low, high), verb)


def _no_tag(tag: int) -> NoReturn:
    raise PreconditionFailed(f"unknown delivery tag {tag}")


def _flow(session: Session, channel: Channel, method: m.ChannelFlow) -> None:
    channel.reply(m.ChannelFlowOk(True))  # the machine refuses to stop


def _recover(session: Session, channel: Channel, method: m.BasicRecover) -> None:
    session.settle(channel.tags.all(), Verb.RELEASE)
    channel.reply(m.BasicRecoverOk())


def _recover_async(session: Session, channel: Channel, method: m.BasicRecoverAsync) -> None:
    session.settle(channel.tags.all(), Verb.RELEASE)


def _confirm_select(session: Session, channel: Channel, method: m.ConfirmSelect) -> None:
    if channel.tx is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    session.mute(channel.number)
    channel.confirming = True
    if not method.nowait:
        channel.reply(m.ConfirmSelectOk())


_HANDLERS: dict[type[Any], Handler] = {
    m.ChannelFlow: _flow,
    m.QueueDeclare: declaring.declare_queue,
    m.QueueBind: declaring.bind_queue,
    m.QueueUnbind: declaring.unbind_queue,
    m.QueuePurge: declaring.purge_queue,
    m.QueueDelete: declaring.delete_queue,
    m.ExchangeDeclare: declaring.declare_exchange,
    m.ExchangeDelete: declaring.delete_exchange,
    m.ExchangeBind: declaring.bind_exchange,
    m.ExchangeUnbind: declaring.unbind_exchange,
    m.BasicQos: consuming.qos,
    m.BasicConsume: consuming.consume,
    m.BasicCancel: consuming.cancel,
    m.BasicGet: consuming.get,
    m.BasicNack: _nack,
    m.BasicReject: _reject,
    m.BasicRecover: _recover,
    m.BasicRecoverAsync: _recover_async,
    m.ConfirmSelect: _confirm_select,
    m.TxSelect: select,
    m.TxCommit: commit,
    m.TxRollback: rollback,
}
