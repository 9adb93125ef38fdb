"""basic.get: one message of a queue, or the word that there is none, in its place among the channel's answers."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from penstock.server.amqp.entitled import consuming
from penstock.wire.amqp import methods as m

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.server.amqp.answers import Answer
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session


def get(session: Session, channel: Channel, method: m.BasicGet) -> None:
    """basic.get."""
    narrow = consuming(session, channel.queue_name(method.queue), None)
    queue = channel.queue(method.queue)
    getter = channel.getters.get((queue.id, method.no_ack))
    now = session.engine.now()
    if session.engine.broken is not None:
        session.engine.forget_lost()
    if getter is None:
        getter = session.core.subscribe(
            now,
            queue,
            tag="",
            holder=channel,
            client=f"{session.peer}/{channel.number}",
            no_ack=method.no_ack,
            filter=narrow,
            passive=True,
            on_overdue=channel.overdue,
        )
        channel.getters[(queue.id, method.no_ack)] = getter
    stopped = session.engine.broken is not None and queue.settings.semantics == "at-most-once"
    if stopped or not session.core.pull(now, getter, 1):
        if stopped or not _is_looked_through(getter):
            session.counters.get_empty += 1
            channel.reply(m.BasicGetEmpty())
        else:
            answer = channel.answers.add(m.BasicGetEmpty())
            session.engine.scans.after.append(partial(_look_again, session, channel, getter, answer))
        return
    _got(session, channel, getter, channel.answers.add(m.BasicGetEmpty()))


def _is_looked_through(getter: Consumer) -> bool:
    """Whether a filter, that of the user's right, has not seen all of the queue yet."""
    return getter.targets is not None and getter.queue.filters_look


def _look_again(session: Session, channel: Channel, getter: Consumer, answer: Answer) -> None:
    """A part of the queue was looked through."""
    if not channel.open:
        return
    if session.core.pull(session.engine.now(), getter, 1):
        _got(session, channel, getter, answer)
    elif _is_looked_through(getter):
        session.engine.scans.after.append(partial(_look_again, session, channel, getter, answer))
    else:
        session.counters.get_empty += 1
        channel.answers.ready(answer)
    session.engine.arm()


def _got(session: Session, channel: Channel, getter: Consumer, answer: Answer) -> None:
    """A message was granted: it answers, when it comes."""
    channel.getting.setdefault(getter, deque()).append(answer)

    def delivered() -> None:
        """If it did not come by now, it was taken back on its way."""
        if answer.method is not None:
            channel.getting[getter].remove(answer)
            session.counters.get_empty += 1
            channel.answers.ready(answer)

    session.engine.gates.after_deliveries(channel.gate, delivered)
