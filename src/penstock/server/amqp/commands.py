"""AMQP methods that are not in the hot path, one function each; those that settle and confirm are here.

Each takes the session, the channel and the method, talks to the core, and replies.  What the core refuses it raises;
the session turns that into the close code of the smallest scope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.core.effects import Verb
from penstock.errors import PreconditionFailed, ProtocolError
from penstock.server.amqp import consuming, declaring, getting, transacting
from penstock.server.amqp.channel import Channel
from penstock.wire.amqp import methods as m

if TYPE_CHECKING:
    from penstock.server.amqp.session import Session

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
    m.BasicGet: getting.get,
    m.BasicNack: _nack,
    m.BasicReject: _reject,
    m.BasicRecover: _recover,
    m.BasicRecoverAsync: _recover_async,
    m.ConfirmSelect: _confirm_select,
    m.TxSelect: transacting.select,
    m.TxCommit: transacting.commit,
    m.TxRollback: transacting.rollback,
}
