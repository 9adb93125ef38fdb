"""AMQP methods that are not in the hot path, one function each; those about consumers are in `consuming`.

Each takes the session, the channel and the method, talks to the core, and replies.  What the core refuses it raises;
the session turns that into the close code of the smallest scope.  How a tx.commit comes about is `server.committing`;
while it takes time, nothing more of the connection is acted on.  A channel that closes has rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from penstock.config.queue_arguments import given_arguments, name_prefix, queue_settings, typed
from penstock.core.commands.transactions import Transacted, Transaction
from penstock.core.effects import Verb
from penstock.core.topology.routing import REPLY_TO
from penstock.errors import MemoryShort, NotFound, PenstockError, PreconditionFailed, ProtocolError
from penstock.server.amqp import consuming
from penstock.server.amqp.channel import Channel
from penstock.server.amqp.entitled import may_bind, may_configure, may_declare, may_find, may_purge
from penstock.server.amqp.queueless import declared
from penstock.server.amqp.session import Session, generated_name
from penstock.server.amqp.transaction import Open
from penstock.server.committing import Committing
from penstock.server.people.entitlements import exchange_needs
from penstock.wire.amqp import methods as m

NOT_TRANSACTIONAL = "channel is not transactional"


class Commit:
    """One tx.commit on its way; the connection waits for it."""

    def __init__(self, session: Session, channel: Channel, tx: Open) -> None:
        self._session = session
        self._channel = channel
        self._tx = tx
        session.settling.finish()  # what other channels said before
        self._batch = batch = tx.batch()
        if batch is not None and session.core.traced:
            batch.sender = session.name, channel.number, session.user
        transaction = Transaction(batch, tx.endings(), by=session.peer)
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
        session, tx, counts = self._session, self._tx, self._channel.counts
        published, acknowledged = done.published, tx.acknowledged
        back = tx.found(published.unroutable) if published is not None and published.unroutable else []
        tx.keep()
        counts.acknowledged += acknowledged
        if published is not None and self._batch is not None:
            counts.published += len(self._batch)
            session.counters.sizes.add(self._batch.bodies)
            session.counters.routed += published.stored
            if back:
                session.send_back(self._channel.number, back)
        self._channel.reply(m.TxCommitOk(), durable=True, needs=done.lsn)


def select(session: Session, channel: Channel, method: m.TxSelect) -> None:
    """tx.select: publishes and acks of the channel wait for a commit."""
    if channel.confirming:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.tx is None:
        session.mute(channel.number)
        channel.attend()
        number, name = channel.number, f"the transaction on channel {channel.number} of {session.peer}"

        def cut(error: MemoryShort) -> None:
            session.fail_channel(number, error, m.BasicPublish)

        channel.tx = Open(session.engine, channel.tags, session.user, name, cut)
    channel.reply(m.TxSelectOk())


def commit(session: Session, channel: Channel, method: m.TxCommit) -> None:
    """tx.commit.  A refusal closes the channel, and nothing of the transaction is done."""
    Commit(session, channel, _tx(channel)).step()


def rollback(session: Session, channel: Channel, method: m.TxRollback) -> None:
    """tx.rollback: what waits for a commit is forgotten."""
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
        _no_tag()
    _end(session, channel, low, method.delivery_tag, requeue=method.requeue)


def _reject(session: Session, channel: Channel, method: m.BasicReject) -> None:
    tag = method.delivery_tag or _no_tag()
    _end(session, channel, tag, tag, requeue=method.requeue)


def _end(session: Session, channel: Channel, low: int, high: int, *, requeue: bool) -> None:
    verb = Verb.CANCEL if requeue else Verb.EXPIRE
    if channel.tx is not None:
        channel.tx.settle(low, high, verb)
        return
    settled = channel.tags.settle(low, high)
    if requeue and 0 < low == high:
        session.give_back_one(settled)
    else:
        session.settle(channel.counts, settled, verb)


def _no_tag() -> NoReturn:
    raise PreconditionFailed("unknown delivery tag 0")


def _flow(session: Session, channel: Channel, method: m.ChannelFlow) -> None:
    channel.reply(m.ChannelFlowOk(True))  # the machine refuses to stop


def _recover(session: Session, channel: Channel, method: m.BasicRecover) -> None:
    session.settle(channel.counts, channel.tags.all(), Verb.RELEASE)
    channel.reply(m.BasicRecoverOk())


def _recover_async(session: Session, channel: Channel, method: m.BasicRecoverAsync) -> None:
    session.settle(channel.counts, channel.tags.all(), Verb.RELEASE)


def _confirm_select(session: Session, channel: Channel, method: m.ConfirmSelect) -> None:
    if channel.tx is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    session.mute(channel.number)
    channel.confirming = True
    channel.answer(method, m.ConfirmSelectOk())


def declare_queue(session: Session, channel: Channel, method: m.QueueDeclare) -> None:
    """queue.declare: a queue, or whether it is there."""
    name = method.queue
    if name.startswith(REPLY_TO):
        if not declared(session, name):
            raise NotFound(f"no queue '{name}' in vhost '{session.vhost}'")
        channel.answer(method, m.QueueDeclareOk(name, 0, 1))
        return
    if method.passive:
        may_find(session, "queue", channel.queue_name(name))
        queue = channel.queue(name)
        session.core.used_queue(session.engine.now(), queue)
    else:
        server_named = not name
        prefix = name_prefix(method.arguments, name, session.vhost)
        name = name or generated_name(prefix)
        present = session.core.find_queue(session.vhost, name)
        arguments: Mapping[str, object] = method.arguments
        if (default := session.core.default_types.get(session.vhost)) is not None and not server_named:
            arguments = typed(
                arguments, default, durable=method.durable, exclusive=method.exclusive, auto_delete=method.auto_delete
            )
        if present is not None:
            settings = present.settings  # what differs from what is there is told, whether it could be or not
        else:
            settings = queue_settings(arguments, queue=name, vhost=session.vhost)
        may_declare(session, name, settings)
        queue = session.core.declare_queue(
            session.engine.now(),
            session.vhost,
            name,
            settings,
            durable=method.durable,
            exclusive_to=session if method.exclusive else None,
            auto_delete=method.auto_delete,
            arguments=arguments,
            by=session,
            server_named=server_named,
            given=given_arguments(arguments),
        )
    channel.last_queue = queue.name
    ok = m.QueueDeclareOk(queue.name, queue.available, len(queue.consumers))
    channel.answer(method, ok, durable=queue.durable and queue.exclusive_to is None, needs=queue.id)


def bind_queue(session: Session, channel: Channel, method: m.QueueBind) -> None:
    """queue.bind, which needs write on the queue and read on the exchange."""
    name = _change_binding(session, channel, method, "binding", session.core.bind)
    queue = session.core.queue(session.vhost, name, by=session)
    channel.answer(method, m.QueueBindOk(), durable=queue.durable)


def unbind_queue(session: Session, channel: Channel, method: m.QueueUnbind) -> None:
    """queue.unbind, with the rights of queue.bind."""
    _change_binding(session, channel, method, "unbinding", session.core.unbind)
    channel.reply(m.QueueUnbindOk(), durable=True)


def _change_binding(
    session: Session, channel: Channel, method: m.QueueBind | m.QueueUnbind, what: str, command: Callable[..., object]
) -> str:
    """Both ask for the same rights and name a binding in the same way; the name of the queue."""
    name, exchange = channel.queue_name(method.queue), method.exchange
    may_configure(session, f"{what} a queue", ("write", "queue", name), ("read", "exchange", exchange))
    key = method.routing_key if method.routing_key or method.queue else name
    may_bind(session, exchange, key)
    command(session.engine.now(), session.vhost, exchange, name, "queue", key, method.arguments, by=session)
    return name


def purge_queue(session: Session, channel: Channel, method: m.QueuePurge) -> None:
    """queue.purge: how many were ready and are gone."""
    may_purge(session, channel.queue_name(method.queue))
    queue = channel.queue(method.queue)
    consuming.refuse_unsupported(queue, "queue.purge")
    count = session.core.purge_queue(session.engine.now(), queue)
    channel.answer(method, m.QueuePurgeOk(count), durable=queue.durable)


def delete_queue(session: Session, channel: Channel, method: m.QueueDelete) -> None:
    """queue.delete: how many messages went with it."""
    name = channel.queue_name(method.queue)
    present = session.core.find_queue(session.vhost, name)
    if present is None or present.exclusive_to is not session:
        may_configure(session, "deleting a queue", ("configure", "queue", name))
    try:
        queue = session.core.queue(session.vhost, name, by=session)
    except NotFound:
        count = 0  # deleting what is not there is fine
    else:
        if method.if_unused:
            consuming.refuse_unsupported(queue, "if-unused")
        if method.if_empty:
            consuming.refuse_unsupported(queue, "if-empty")
        count = session.core.delete_queue(
            session.engine.now(), queue, if_unused=method.if_unused, if_empty=method.if_empty
        )
    channel.answer(method, m.QueueDeleteOk(count), durable=True)


# -- exchanges


def declare_exchange(session: Session, channel: Channel, method: m.ExchangeDeclare) -> None:
    """exchange.declare: an exchange, or whether it is there."""
    if method.passive:
        may_find(session, "exchange", method.exchange)
    else:
        needs = exchange_needs(method.exchange, method.arguments.get("alternate-exchange"))
        may_configure(session, "declaring an exchange", *needs)
    session.core.declare_exchange(
        session.engine.now(),
        session.vhost,
        method.exchange,
        method.type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=method.arguments,
        passive=method.passive,
    )
    channel.answer(method, m.ExchangeDeclareOk(), durable=method.durable and not method.passive)


def delete_exchange(session: Session, channel: Channel, method: m.ExchangeDelete) -> None:
    """exchange.delete, which needs configure."""
    may_configure(session, "deleting an exchange", ("configure", "exchange", method.exchange))
    session.core.delete_exchange(session.engine.now(), session.vhost, method.exchange, if_unused=method.if_unused)
    channel.answer(method, m.ExchangeDeleteOk(), durable=True)


def bind_exchange(session: Session, channel: Channel, method: m.ExchangeBind) -> None:
    """exchange.bind, which needs write on the one that gets and read on the other."""
    _between_exchanges(session, method, "binding", session.core.bind)
    channel.answer(method, m.ExchangeBindOk(), durable=True)


def unbind_exchange(session: Session, channel: Channel, method: m.ExchangeUnbind) -> None:
    """exchange.unbind, with the rights of exchange.bind."""
    _between_exchanges(session, method, "unbinding", session.core.unbind)
    channel.answer(method, m.ExchangeUnbindOk(), durable=True)


def _between_exchanges(
    session: Session, method: m.ExchangeBind | m.ExchangeUnbind, what: str, command: Callable[..., object]
) -> None:
    """Both ask for the same rights and name a binding in the same way."""
    destination, source = method.destination, method.source
    may_configure(session, f"{what} an exchange", ("write", "exchange", destination), ("read", "exchange", source))
    may_bind(session, source, method.routing_key)
    command(session.engine.now(), session.vhost, source, destination, "exchange", method.routing_key, method.arguments)


def _by_user(handler: Handler) -> Handler:
    """The same, told as done by the session's user."""

    def run(session: Session, channel: Channel, method: m.Method) -> None:
        with session.engine.notices.by(session.user):
            handler(session, channel, method)

    return run


_HANDLERS: dict[type[Any], Handler] = {
    m.ChannelFlow: _flow,
    m.QueueDeclare: _by_user(declare_queue),
    m.QueueBind: _by_user(bind_queue),
    m.QueueUnbind: _by_user(unbind_queue),
    m.QueuePurge: _by_user(purge_queue),
    m.QueueDelete: _by_user(delete_queue),
    m.ExchangeDeclare: _by_user(declare_exchange),
    m.ExchangeDelete: _by_user(delete_exchange),
    m.ExchangeBind: _by_user(bind_exchange),
    m.ExchangeUnbind: _by_user(unbind_exchange),
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
