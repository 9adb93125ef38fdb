"""AMQP's methods about queues and exchanges.  What the core refuses they raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.config.queue_arguments import given_arguments, name_prefix, queue_settings
from penstock.core.topology.routing import REPLY_TO
from penstock.core.topology.topology import canonical_table
from penstock.errors import NotFound
from penstock.server.amqp.entitled import may_bind, may_configure, may_declare, may_find, may_purge
from penstock.server.amqp.replying import declared
from penstock.server.amqp.session import generated_name
from penstock.server.entitlements import exchange_needs
from penstock.wire.amqp import methods as m

if TYPE_CHECKING:
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session


def declare_queue(session: Session, channel: Channel, method: m.QueueDeclare) -> None:
    """queue.declare: a queue, or whether it is there."""
    name = method.queue
    if name.startswith(REPLY_TO):
        if not declared(session, name):
            raise NotFound(f"no queue '{name}' in vhost '{session.vhost}'")
        if not method.nowait:
            channel.reply(m.QueueDeclareOk(name, 0, 1))
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
        if present is not None and canonical_table(present.arguments) == canonical_table(method.arguments):
            settings = present.settings  # it was asked of when it was declared, by whomever
        else:
            settings = queue_settings(method.arguments, queue=name, vhost=session.vhost)
        may_declare(session, name, settings)
        queue = session.core.declare_queue(
            session.engine.now(),
            session.vhost,
            name,
            settings,
            durable=method.durable,
            exclusive_to=session if method.exclusive else None,
            auto_delete=method.auto_delete,
            arguments=method.arguments,
            by=session,
            server_named=server_named,
            given=given_arguments(method.arguments),
        )
    channel.last_queue = queue.name
    if not method.nowait:
        ok = m.QueueDeclareOk(queue.name, queue.available, len(queue.consumers))
        channel.reply(ok, durable=queue.durable and queue.exclusive_to is None, needs=queue.id)


def bind_queue(session: Session, channel: Channel, method: m.QueueBind) -> None:
    """queue.bind."""
    name = _change_binding(session, channel, method, "binding", session.core.bind)
    queue = session.core.queue(session.vhost, name, by=session)
    if not method.nowait:
        channel.reply(m.QueueBindOk(), durable=queue.durable)


def unbind_queue(session: Session, channel: Channel, method: m.QueueUnbind) -> None:
    """queue.unbind."""
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
    """queue.purge."""
    may_purge(session, channel.queue_name(method.queue))
    queue = channel.queue(method.queue)
    count = session.core.purge_queue(session.engine.now(), queue)
    if not method.nowait:
        channel.reply(m.QueuePurgeOk(count), durable=queue.durable)


def delete_queue(session: Session, channel: Channel, method: m.QueueDelete) -> None:
    """queue.delete."""
    name = channel.queue_name(method.queue)
    present = session.core.find_queue(session.vhost, name)
    if present is None or present.exclusive_to is not session:
        may_configure(session, "deleting a queue", ("configure", "queue", name))
    try:
        queue = session.core.queue(session.vhost, name, by=session)
    except NotFound:
        count = 0  # deleting what is not there is fine
    else:
        count = session.core.delete_queue(
            session.engine.now(), queue, if_unused=method.if_unused, if_empty=method.if_empty
        )
    if not method.nowait:
        channel.reply(m.QueueDeleteOk(count), durable=True)


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
    if not method.nowait:
        channel.reply(m.ExchangeDeclareOk(), durable=method.durable and not method.passive)


def delete_exchange(session: Session, channel: Channel, method: m.ExchangeDelete) -> None:
    """exchange.delete."""
    may_configure(session, "deleting an exchange", ("configure", "exchange", method.exchange))
    session.core.delete_exchange(session.engine.now(), session.vhost, method.exchange, if_unused=method.if_unused)
    if not method.nowait:
        channel.reply(m.ExchangeDeleteOk(), durable=True)


def bind_exchange(session: Session, channel: Channel, method: m.ExchangeBind) -> None:
    """exchange.bind."""
    _between_exchanges(session, method, "binding", session.core.bind)
    if not method.nowait:
        channel.reply(m.ExchangeBindOk(), durable=True)


def unbind_exchange(session: Session, channel: Channel, method: m.ExchangeUnbind) -> None:
    """exchange.unbind."""
    _between_exchanges(session, method, "unbinding", session.core.unbind)
    if not method.nowait:
        channel.reply(m.ExchangeUnbindOk(), durable=True)


def _between_exchanges(
    session: Session, method: m.ExchangeBind | m.ExchangeUnbind, what: str, command: Callable[..., object]
) -> None:
    """Both ask for the same rights and name a binding in the same way."""
    destination, source = method.destination, method.source
    may_configure(session, f"{what} an exchange", ("write", "exchange", destination), ("read", "exchange", source))
    may_bind(session, source, method.routing_key)
    command(session.engine.now(), session.vhost, source, destination, "exchange", method.routing_key, method.arguments)
