"""One AMQP connection: events of the wire machine become commands of the core; nothing here is a queue rule.

Publishes of a run become one batch, acks become chunks per consumer, other methods go to `commands`.  Confirms leave
when the log says so: one `basic.ack` with `multiple` a channel and commit.  Who reads the client's bytes it does not
know: `reading` does where they come to this process, and a door's process otherwise (`far`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from penstock.core.effects import Verb
from penstock.errors import (
    AccessRefused,
    DiskFull,
    Draining,
    ExpressionError,
    InvalidArgument,
    LogBroken,
    NotFound,
    PenstockError,
    PreconditionFailed,
    ProtocolError,
    QueueFull,
    Refused,
    ResourceLocked,
    Unavailable,
)
from penstock.server.amqp import commands, incoming
from penstock.server.amqp.channel import Channel, go_on
from penstock.server.amqp.intake import Intake
from penstock.server.amqp.leaving import Leaving, end_exclusive, give_back
from penstock.server.amqp.publishers import FEW, Publishers
from penstock.server.amqp.session import House, Session
from penstock.server.amqp.tags import Settled, UnknownTag, singly
from penstock.server.base.faults import TOLD
from penstock.server.people.access import Who, hinted
from penstock.wire.amqp import events, methods
from penstock.wire.amqp.frames import CONNECTION_FORCED, NOT_ALLOWED

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.records.chunks import Chunk
    from penstock.server.amqp.clients_log import ClientsLog
    from penstock.server.amqp.links import Came, Client, Sending
    from penstock.server.people.entitlements import Rights


logger = logging.getLogger("penstock.server")


NOTHING: Callable[[], object] = bool
"""What is said behind the last answers where it was said already, or nobody hears it."""


class Reception(House, Protocol):
    """Who lets connections in."""

    publishers: Publishers
    clients_log: ClientsLog

    def login(self, connection: Connection, event: events.LoginAsked, /) -> None:
        """Accept, or refuse late."""

    def open_vhost(self, connection: Connection, vhost: str, /) -> None:
        """connection.open: let it in, or close it with the reason."""

    def to_channel(self, connection: Connection, /) -> str | None:
        """Why the connection may not have one more channel than it has now."""
        ...

    def tell_failed(self, connection: Connection, event: events.ConnectionFailed, /) -> None:
        """What it sent was no AMQP, or against the rules: a line in the log."""

    def forget(self, connection: Connection, /) -> None:
        """A connection is gone, and counts for nobody any more."""


class Connection(Session):
    """A session with a peer, whoever reads its bytes."""

    __slots__ = (
        "_begun", "_counted", "_counted_size", "_gathering", "_holding", "_reception", "_shares", "channels",
        "giving_back", "intake", "leaving", "refused",
    )  # fmt: skip

    def __init__(self, reception: Reception, machine: Client, outgoing: Sending, came: Came) -> None:
        super().__init__(reception, machine, outgoing, came)
        publishers = reception.publishers
        self.channels: dict[int, Channel] = {}
        self.leaving: dict[int, Channel] | None = None  # those that are over and still owe answers
        self.refused: Unavailable | None = None  # why its user may have no more connections
        self.intake = Intake(self, publishers)
        self._reception = reception
        self._holding = publishers.holding
        self._gathering = publishers.gathering
        self._shares = publishers.engine.shares.of("connections")
        self._counted = False  # among those of its user
        self._begun = publishers.begun
        self.giving_back: Leaving | None = None  # none has been over
        self._counted_size = 0  # bytes of bodies begun, as they were last counted

    # -- what comes

    def gather(self, target: events.Target, header: bytes, body: bytes, mode: int) -> bool:
        """Have a message that came alone wait for those of others, if it may; before the acks behind it are settled.

        mode: as `PublishRun.plain`.
        """
        channel, topic = self.channels.get(target.channel), target.topic
        if (
            mode < 0 or topic is None or channel is None or self.incoming.held is not None or self.closing
            or channel.unconfirmed > incoming.PACED_UNCONFIRMED
            or not channel.open or channel.tx is not None or self.rights is not None
        ):  # fmt: skip
            return False
        intake, gathering = self.intake, self._gathering
        if not gathering.begun:
            gathering.begin()
        if gathering.version != intake.light or len(header) + len(body) > gathering.most:
            return False
        gathering.publish(intake, channel, target, topic, header, body, mode)
        return True

    def acknowledge(self, number: int, tag: int) -> bool:
        """Settle a delivery with what others have done of theirs, if it may be; False: its ack is as any."""
        channel = self.channels.get(number)
        if channel is None or channel.tx is not None or self.incoming.held is not None:
            return False
        settled = channel.tags.settle_one(tag)
        if settled is None:
            return False
        channel.counts.acknowledged += 1
        self._gathering.acknowledge(self.intake, (settled,))
        return True

    def act(self, event: events.Event) -> bool:
        """Act on one event; whether it was messages."""
        if isinstance(event, events.PublishRun):
            channel = self.channels.get(event.channel)
            if channel is not None:
                self.intake.take(channel, event)
            return True
        if isinstance(event, events.AckRun):
            self._ack(event)
            return False
        if self._gathering.decide_before(self.incoming, event):
            return False
        if isinstance(event, events.MethodReceived):
            self._method(event)
        else:
            self._other(event)
        return False

    def decide(self) -> None:
        """What it has brought and left to be decided with that of others is decided."""
        self._gathering.decide()

    def _unconfirmed(self) -> int:
        return sum(channel.unconfirmed for channel in self.channels.values())

    def count_begun(self) -> None:
        """See that the bodies that were announced have their memory, or wait for it."""
        self._counted_size = size = self.begun
        self._begun.count(self, size)

    @property
    def begun(self) -> int:
        """Bytes of bodies that were announced and are not complete."""
        return 0 if self.closed else self.machine.partial_size

    @property
    def consumes(self) -> bool:
        """Whether it takes messages, so that acks come on it."""
        return any(one.consumers or one.subscriptions or one.getters for one in self.channels.values())

    def mute(self, channel: int) -> None:
        """What a channel waits with came before it asked for confirms, or for transactions."""
        self._holding.mute(self, channel)

    def send_back(self, channel: int, unroutable: list[tuple[events.PublishRun, int]]) -> None:
        """Return to a channel what nobody wanted and whose publisher asked to be told; count all of it."""
        self.intake.send_back(self.channels[channel], unroutable)

    def pause_writing(self) -> None:
        """The peer does not read: its consumers get nothing until it does."""
        self.engine.faults.run(self._pause, self)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.engine.faults.run(self._resume, self)

    def _pause(self) -> None:
        self.outgoing.blocked = True
        for channel in self.channels.values():
            channel.silence()

    def _resume(self) -> None:
        self.outgoing.blocked = False
        self.outgoing.count_unsent()
        self.go_on_delivering()
        go_on(self.core, self.engine.now(), self.channels.values())
        self.engine.arm()

    def go_on_delivering(self) -> None:
        """The link takes deliveries again."""
        self.engine.gates.reopen(self)
        for channel in [one for one in self.channels.values() if one.followings]:
            channel.go_on_following()

    # -- settling

    def _ack(self, run: events.AckRun) -> None:
        channel = self.channels.get(run.channel)
        if channel is None or not channel.open or self.closing:
            return
        settled: Settled = []
        try:
            if channel.tx is not None:
                for low, high in run.spans:
                    channel.tx.settle(low, high, Verb.ACK)
                return
            for low, high in run.spans:
                settled += channel.tags.settle(low, high)
        except UnknownTag as unknown:
            self._gathering.decide()
            self.settle(channel.counts, settled, Verb.ACK)
            self.unknown_tag(channel.number, unknown.tag, methods.BasicAck)
            return
        except Refused as error:  # a transaction has no room for more
            self.fail_channel(channel.number, error, methods.BasicAck)
            return
        if len(settled) <= FEW and not any(isinstance(owner, list) for owner, _ in settled):
            count = sum([len(chunk) for _, chunk in settled])
            channel.counts.acknowledged += count
            self._gathering.acknowledge(self.intake, cast("list[tuple[Consumer, Chunk]]", settled))
        else:
            self._gathering.decide()
            self.settle(channel.counts, settled, Verb.ACK)

    def give_back_one(self, settled: Settled) -> None:
        """A delivery is given back, as one of several perhaps: those of a consumer go together."""
        self._gathering.give_back(singly(settled))

    # -- methods

    def _method(self, event: events.MethodReceived) -> None:
        if self.closing:
            return
        method = event.method
        if event.channel == 0:
            self.send(0, methods.ConnectionUpdateSecretOk())
            return
        channel = self.channels.get(event.channel)
        if channel is None or not channel.open:
            return
        self.began_after = self.core.last_lsn
        try:
            commands.run(self, channel, method)
            if self.incoming.stops & incoming.HELD:  # it may consume now, so that what it acknowledges makes room
                self._holding.settle(self)
        except UnknownTag as unknown:
            self.unknown_tag(channel.number, unknown.tag, type(method))
        except PenstockError as error:
            self.fail_channel(event.channel, error, type(method))

    def log_broken(self, reason: str) -> None:
        """The log is broken: of what was published and not confirmed, or declared and not answered, nobody knows."""
        for channel in list(self.channels.values()):
            if channel.confirming and channel.unconfirmed:
                channel.unconfirmed = 0
                self.machine.refuse(channel.number, channel.published, multiple=True)
                self.outgoing.take_machine_output()
            if channel.answers.promising:
                channel.answers.break_promises()
                error = LogBroken(f"{reason}; whether this will last is unknown")
                self.fail_channel(channel.number, error, methods.Method)
        for channel in list((self.leaving or {}).values()):
            channel.answers.break_promises()

    def fail_channel(
        self, number: int, error: PenstockError, method: type[methods.Method], *, lost: bool = False
    ) -> None:
        """Close one channel for a refusal, or the connection where the code asks for that.

        lost: of each consumer the oldest delivery counts as failed.
        """
        self._gathering.decide()  # what was brought before
        code, text, whole = reply_code(hinted(error, self.rights))
        if whole:
            self.refuse(code, text, method)
        elif number in self.channels:
            self._reception.clients_log.channel_closed(self, number, code, text, method)
            self._channel_over(number, partial(self.machine.fail_channel, number, code, text, method), lost=lost)
        self.outgoing.mark_dirty()

    def refuse(self, code: int, text: str, method: type[methods.Method]) -> None:
        """Close the connection for what it has asked."""
        self._reception.clients_log.connection_closed(self, code, text)
        self.machine.fail_connection(code, text, method)
        self._close_all(lost=False)
        self.outgoing.mark_dirty()

    # -- life

    def logged_in(self, who: Who) -> None:
        """It has said who it is.  Beyond the user's share it stays a stranger, and is told so when it opens a vhost."""
        self.user = who.user
        try:
            self._shares.take(who)
        except Unavailable as error:
            self.refused = error
            return
        self._counted = True
        if self.stranger is not None:
            self.stranger.known()

    def give_back(self) -> None:
        """It is gone, and counts as nobody's."""
        if self._counted:
            self._counted = False
            self._shares.give(self.user)

    def waits(self, *, for_us: bool) -> None:
        """Whether its login is with us: then its time is not counted."""
        if self.stranger is not None:
            self.stranger.held = for_us

    def _other(self, event: events.Event) -> None:
        match event:
            case events.LoginAsked():
                self._reception.login(self, event)
            case events.OpenAsked():
                self._reception.open_vhost(self, event.vhost)
            case events.ChannelOpened() if (why := self._reception.to_channel(self)) is not None:
                self.refuse(NOT_ALLOWED, why, methods.ChannelOpen)
            case events.ChannelOpened():
                if event.channel in self.channels:
                    self._channel_over(event.channel, NOTHING)
                self.channels[event.channel] = Channel(self, event.channel)
                self.counters.channels_opened += 1
                self.engine.event_exchange.channel(self, event.channel, opened=True)
            case events.ChannelFailed():
                self._reception.clients_log.channel_closed(self, event.channel, 0, event.text, None)
                self._channel_over(event.channel, NOTHING)
            case events.ChannelClosed() | events.ConnectionClosed() if self._holding.closes_later(self, event):
                pass
            case events.ChannelClosed():
                answer = methods.ChannelCloseOk()
                self._channel_over(event.channel, partial(self.machine.send, event.channel, answer))
            case events.ConnectionFailed():
                self._reception.tell_failed(self, event)
                self._close_all(lost=False)
            case events.ConnectionClosed():
                self._close_all(lost=False, then=partial(self.send, 0, methods.ConnectionCloseOk()))
            case _:
                pass

    def take_rights(self, rights: Rights | None) -> None:
        """What the user may do has changed."""
        self.rights = rights
        self.intake.forget_rights()

    def _channel_over(self, number: int, last: Callable[[], object], *, lost: bool = False) -> None:
        """A channel is over, or its client closes one that is: `last` is said behind the answers that it is owed."""
        channel = self.channels.get(number) or (self.leaving or {}).get(number)
        if channel is None:
            last()
        else:
            if channel.open:
                self._close_channels((channel,), lost=lost, then=partial(channel.answers.ready, channel.answers.wait()))
            self.leaving = self.leaving or {}
            self.leaving[number] = channel
            channel.answers.close(partial(self._left, number, last))
        self.outgoing.mark_dirty()

    def _left(self, number: int, last: Callable[[], object]) -> None:
        if self.leaving is not None:
            self.leaving.pop(number, None)
        last()
        self.outgoing.take_machine_output()

    def _close_channels(self, channels: Sequence[Channel], *, lost: bool, then: Callable[[], object]) -> None:
        """What the channels held goes back to its queues, each message to its own place; then that is said."""
        for channel in channels:
            channel.silence()  # what one gives back must not be granted to another
            channel.open = False
            channel.counts = self.counters.closed(self.vhost, channel.counts)
            self.channels.pop(channel.number, None)
            self._holding.drop(self, channel.number)
            self.engine.event_exchange.channel(self, channel.number, opened=False)
        self.settling.finish()  # before it goes back
        self.counters.channels_closed += len(channels)
        self._leave(give_back(self.core, self.engine.now, channels, lost=lost), then)

    def _leave(self, steps: Iterator[None], then: Callable[[], object]) -> None:
        self.giving_back = self.giving_back or Leaving(self.engine, self)
        self.giving_back.begin(steps, then)

    def _close_all(self, *, lost: bool, then: Callable[[], object] = NOTHING) -> None:
        for channel in self.channels.values():
            channel.silence()  # what it has acknowledged makes room for others
        self._gathering.decide()  # what was brought before
        self.closing = True
        self.closing_at = self.engine.clock.mono()
        self._close_channels(list(self.channels.values()), lost=lost, then=NOTHING)
        self.leaving = None
        self._leave(end_exclusive(self.core, self.engine.now, self), then)

    def linger(self) -> None:
        """Our last word is said.  It is the peer who closes: a socket that is closed while bytes that nobody has read
        lie in it is reset, and then the peer may never hear that word.  The door's beat bounds how long that takes.
        """
        if not self.closing:
            self._close_all(lost=False)
        self.closing_at = self.engine.clock.mono()
        self.incoming.pass_over()
        self.link.end_writing()

    def end_by_fault(self) -> None:
        """541, and what it had goes back, as when its link breaks: what cannot be delivered counts as tried."""
        try:
            self.machine.fail_connection(541, TOLD)
        except Exception as error:  # noqa: BLE001 - the machine may be what is wrong: then it hears nothing
            logger.warning("%s is cut off: %r", self.peer, error)
            self.link.abort()
        if not self.closing:
            self._close_all(lost=True)
        self.engine.faults.evict(self)
        self.engine.gates.drop(self)
        self.outgoing.speak()
        self.engine.arm()

    def connection_lost(self) -> None:
        """The link is gone; leases return, exclusive queues end."""
        if self.incoming.end(self.connection_lost):
            if not self.outgoing.blocked:
                self.engine.faults.run(self._pause, self)
            self.outgoing.end()
        elif not self.closed:
            self.closed = True
            self.outgoing.end()
            self.count_begun()
            self.engine.gates.reopen(self)
            if not self.closing:
                self._reception.clients_log.ended(self)
                self._close_all(lost=True)
            self._leave(iter(()), self._part)

    def _part(self) -> None:
        """All that it had is back.  Nothing of it leads to it any more: it is freed at once, without the collector."""
        self._reception.forget(self)
        self.giving_back = None
        self.incoming.part()
        self.outgoing.part()
        self.settling.part()
        del self.intake  # asked only on behalf of open channels, of which there are none

    def close_by_server(self, text: str) -> None:
        """connection.close from us: an operator's word, or the server stops."""
        self.machine.fail_connection(CONNECTION_FORCED, text)
        self._close_all(lost=False)
        self.outgoing.mark_dirty()


def reply_code(error: PenstockError) -> tuple[int, str, bool]:
    """The code, the text without the code's name, and whether the whole connection closes."""
    whole = False
    match error:
        case ProtocolError():
            code = error.reply_code
            whole = error.scope == "connection"
        case NotFound():
            code = 404
        case AccessRefused():
            code = 403
        case ResourceLocked():
            code = 405
        case PreconditionFailed() | InvalidArgument() | ExpressionError() | QueueFull():
            code = 406
        case DiskFull() | Draining():
            code = 506
        case _:
            code = 541
    if isinstance(error, ExpressionError):
        return code, f"{error}: character {error.place + 1} of {cut(error.text)}", whole
    return code, str(error), whole


def cut(text: str) -> str:
    """A text quoted, and cut to what an answer of 255 bytes has room for."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
