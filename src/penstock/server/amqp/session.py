"""One AMQP connection: events of the wire machine become commands of the core; nothing here is a queue rule.

Per read: publishes of a run become one batch, acks become chunks per consumer, other methods go to `commands`.  Per
turn: one write.  Confirms leave when the log says so: one `basic.ack` with `multiple` a channel and commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock.core.effects import Deliver, Verb
from penstock.errors import DiskFull, LogBroken, PenstockError
from penstock.memory import Piece
from penstock.server.amqp import commands
from penstock.server.amqp.alarm import HELD_MOST
from penstock.server.amqp.channel import Channel, Reply
from penstock.server.amqp.intake import Intake
from penstock.server.amqp.replies import reply_code
from penstock.server.amqp.settling import Settling
from penstock.server.amqp.tags import Settled, UnknownTag
from penstock.wire.amqp import events, methods
from penstock.wire.amqp.machine import ServerConnection

if TYPE_CHECKING:
    from penstock.server.amqp.door import AmqpDoor
    from penstock.server.entitlements import Rights

PACED_READ = 16 * 1024
"""Reads shorter than this come from a publisher that sends one message a call: pacing them saves a third of the CPU."""

LONE_READ = 2048
"""After a shorter read the turn ends at once: somebody waits for one message, and a round of the loop costs 20 us."""

SEND_MOST = 1 << 20
"""Bytes that wait for a peer beyond which nothing more is delivered to it."""

SEND_FREE = 64 << 10
"""Bytes that may wait for any peer; more only as long as the budget has room."""

PACED_UNCONFIRMED = 32
"""Only publishers that pipeline at least this many are paced; one that waits for each confirm never is."""


class Link(Protocol):
    """What the session needs of its transport."""

    def write(self, data: bytes) -> None:
        """Send, or buffer and call `pause_writing`."""
        ...

    def close(self) -> None:
        """Send what is buffered, then close."""
        ...

    def buffered(self) -> int:
        """Bytes written and not yet taken by the kernel."""
        ...

    def keep_below(self, size: int) -> None:
        """Call `pause_writing` beyond so many buffered bytes from now on, and at once if there are more."""
        ...

    def pause_reading(self) -> None:
        """Stop `receive` calls."""
        ...

    def resume_reading(self) -> None:
        """Let them come again."""
        ...


METHODS_MOST = 256
"""Methods of one read that are acted on in one turn; a declare takes 30 microseconds."""


class Session:
    """A connection that has a link.  `receive` for bytes in; bytes out gather in `out` until the end of the turn."""

    def __init__(self, door: AmqpDoor, machine: ServerConnection, link: Link, peer: str) -> None:
        self.door = door
        self.engine = door.engine
        self.core = door.engine.core
        self.counters = door.counters
        self.machine = machine
        self.link = link
        self.peer = peer
        self.user = ""
        self.rights: Rights | None = None  # None: nothing is limited
        self.vhost = "/"
        self.opened = False
        self.closing = False
        self.closed = False
        self.out: list[bytes] = []
        self.unsent = 0  # bytes of deliveries in `out`, about
        self._narrow = False  # the budget is short: no more than SEND_FREE may wait
        self._charged = 0  # bytes waiting for the peer that count against the budget
        self._partial = 0  # bytes of announced bodies that do
        self.channels: dict[int, Channel] = {}
        self.paused = False  # reading
        self.blocked = False  # writing
        self.opened_at = self.received_at = self.sent_at = door.engine.clock.mono()
        self.closing_at = 0  # when we gave it up
        self._dirty = False
        self._held: deque[events.Event] | None = None  # what came while messages are being judged
        self._methods = 0  # since the others had their turn
        self._breathing = False  # held for that reason
        self.intake = Intake(self)
        self.settling = Settling(self)
        self._before = 0  # the last LSN when the present method came

    # -- bytes

    def receive(self, data: bytes) -> None:
        """Handle what one read brought."""
        self.received_at = self.engine.clock.mono()
        self._methods = 0
        published = self._handle(data)
        while self.machine.unread and not self.closing:
            published |= self._handle(b"")
        if self.machine.partial_size != self._partial:
            self._count_partial()
        self.mark_dirty()
        if published and not self.closing:
            self._pace(len(data))
        if len(data) < LONE_READ:
            self.engine.finish_turn()
        else:
            self.engine.arm()

    def _handle(self, data: bytes) -> bool:
        """Act on the events of some bytes; whether messages were among them."""
        published = False
        for event in self.machine.receive(data):
            if self._held is not None:
                self._held.append(event)
            else:
                published = self._act(event) or published
        return published

    def _act(self, event: events.Event) -> bool:
        """Act on one event; whether it was messages."""
        if isinstance(event, events.PublishRun):
            self.intake.take(event)
            return True
        if isinstance(event, events.AckRun):
            self._ack(event)
        elif isinstance(event, events.MethodReceived):
            self._method(event)
            self._methods += 1
            if self._methods >= METHODS_MOST and self._held is None and not self.closing:
                self._breathe()
        else:
            self._other(event)
        return False

    def hold(self) -> None:
        """Act on nothing more and read nothing more until `go_on`: messages of this connection are being judged."""
        self._held = deque()
        if not self.paused:
            self.paused = True
            self.link.pause_reading()

    def _breathe(self) -> None:
        """Many methods in one read: the others have their turn before the next of them."""
        self._breathing = True
        self.hold()
        self.engine.call_soon(self._breathed)

    def _breathed(self) -> None:
        if self._breathing:
            self._breathing = False
            self._methods = 0
            self.go_on(_nothing)

    def go_on(self, first: Callable[[], None]) -> None:
        """Do this first, then what came meanwhile, in its order; then read on."""
        held = self._take_held()
        if held is None or self.closed or self.closing:
            return
        first()
        while held and self._held is None:
            self._act(held.popleft())
        if self._held is not None:  # the next of them has to be judged, too
            self._held.extend(held)
        else:
            self._resume()
        self.mark_dirty()
        self.engine.arm()

    def take_back(self, runs: Iterable[events.PublishRun]) -> None:
        """Act on publishes that were kept back elsewhere, before all that came after them."""
        waiting = deque[events.Event](runs)
        while waiting and self._held is None:
            self._act(waiting.popleft())
        if self._held is not None:  # the first of them has to be judged, or something did before
            self._held.extendleft(reversed(waiting))

    def _take_held(self) -> deque[events.Event] | None:
        held, self._held = self._held, None
        return held

    def mark_dirty(self) -> None:
        """See that `out` and the machine's bytes are written at the end of the turn."""
        if not self._dirty:
            self._dirty = True
            self.engine.on_flush.append(self.flush)

    def flush(self) -> None:
        """One write of everything this turn brought."""
        self._dirty = False
        data = self.machine.take_output()
        out = self.out
        if out:
            if data:
                out.append(data)
            data = b"".join(out)
            out.clear()
        if data and not self.closed:
            self.sent_at = self.engine.clock.mono()
            self.link.write(data)
            self.count_unsent()
        if self.unsent:
            self.unsent = 0
            if not self.blocked:
                self.engine.reopen(self)
                self._go_on_following()
        if self.machine.finished and not self.closed:
            self.link.close()

    def send(self, channel: int, method: methods.Method) -> None:
        """A method frame, in order with what is already in `out`."""
        self.machine.send(channel, method)
        self.take_machine_output()

    def take_machine_output(self) -> None:
        """What the machine has to say goes behind what is in `out` already."""
        data = self.machine.take_output()
        if data:
            self.out.append(data)
        self.mark_dirty()

    @property
    def full(self) -> bool:
        """Whether as much waits for the peer as may."""
        return (self.blocked or self.unsent > SEND_MOST) and not self.closed

    def count_unsent(self) -> None:
        """Charge what waits for the peer to the budget; when that is short, let less wait."""
        waiting = self.link.buffered()
        if waiting <= SEND_FREE and not self._charged:
            return
        caches = self.engine.bodies
        charge = max(waiting - SEND_FREE, 0)
        caches.sending.add(charge - self._charged)
        self._charged = charge
        narrow = charge > 0 and caches.tight
        if narrow != self._narrow:
            self._narrow = narrow
            self.link.keep_below(SEND_FREE if narrow else SEND_MOST)

    def _count_partial(self) -> None:
        """Charge the bodies that were announced; when the budget is short, the first to come goes first."""
        caches, size = self.engine.bodies, 0 if self.closed else self.machine.partial_size
        caches.partial.add(size - self._partial)
        self._partial = size
        if size and caches.partial.bytes > size and caches.budget.over > 0 and self.engine.broken is None:
            if not self.consumes:
                self.hold_reading(self.engine.on_room)
            elif size > (most := max(HELD_MOST, caches.budget.limit // 4)):  # its acks make room: it is read on
                channel = self.machine.largest_partial()
                error = DiskFull(f"there is no memory for it; a connection that consumes may have {most} bytes begun")
                self.fail_channel(channel, error, methods.BasicPublish)
                self._count_partial()

    @property
    def consumes(self) -> bool:
        """Whether it takes messages, so that acks come on it."""
        return any(one.consumers or one.subscriptions or one.getters for one in self.channels.values())

    def pause_writing(self) -> None:
        """The peer does not read: its consumers get nothing until it does."""
        self.blocked = True
        for channel in self.channels.values():
            for wish in channel.subscriptions.values():
                self.core.hold(wish)
            for consumer in channel.consumers.values():
                self.core.pause(consumer)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.blocked = False
        self.count_unsent()
        self.engine.reopen(self)
        self._go_on_following()
        now = self.engine.now()
        for channel in self.channels.values():
            for consumer in channel.consumers.values():
                self.core.resume(now, consumer)
            for wish in channel.subscriptions.values():
                self.core.go_on(now, wish)
        self.engine.arm()

    def _go_on_following(self) -> None:
        """Consumers with a bookmark have room again."""
        for channel in list(self.channels.values()):
            for following in list(channel.followings.values()):
                if following.follower is not None and not following.follower.live:
                    following.follower.step()

    def _pace(self, size: int) -> None:
        """Stop reading a publisher for the running commit, or until there is room for its bodies."""
        engine = self.engine
        if not engine.has_room():
            self.hold_reading(engine.on_room)
        elif size < PACED_READ and engine.log.waiting_since:
            unconfirmed = sum(channel.unconfirmed for channel in self.channels.values())
            if unconfirmed > PACED_UNCONFIRMED:
                self.hold_reading(engine.on_commit)

    def hold_reading(self, hooks: list[Callable[[], None]]) -> None:
        """Stop reading this connection until the hook that is added to `hooks` is called."""
        if not self.paused:
            self.paused = True
            self.link.pause_reading()
            hooks.append(self._resume)

    def _resume(self) -> None:
        if self._held is not None:
            return
        self.paused = False
        if not self.closed:
            self.received_at = self.engine.clock.mono()
            self.link.resume_reading()

    # -- settling

    def _ack(self, run: events.AckRun) -> None:
        channel = self.channels.get(run.channel)
        if channel is None or not channel.open or self.closing:
            return
        settled: Settled = []
        try:
            for low, high in run.spans:
                settled += channel.tags.settle(low, high)
        except UnknownTag as unknown:
            self.settle(settled, Verb.ACK)
            self.unknown_tag(channel, unknown.tag, methods.BasicAck)
            return
        self.settle(settled, Verb.ACK)

    def settle(self, settled: Settled, verb: Verb) -> None:
        """Settle chunks, those of one consumer together; see `Settling`."""
        if not settled:
            return
        if verb is Verb.ACK:
            self.counters.acknowledged += sum(len(chunk) for _, chunk in settled)
        self.settling.settle(settled, verb)

    def unknown_tag(self, channel: Channel, tag: int, method: type[methods.Method]) -> None:
        """A tag that is not outstanding: the channel's mistake."""
        self.machine.fail_channel(channel.number, 406, f"unknown delivery tag {tag}", method)
        self.close_channel(channel)
        self.mark_dirty()

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
        self._before = self.core.last_lsn
        try:
            commands.run(self, channel, method)
        except UnknownTag as unknown:
            self.unknown_tag(channel, unknown.tag, type(method))
        except PenstockError as error:
            self.fail_channel(event.channel, error, type(method))

    def reply(
        self,
        channel: Channel,
        method: methods.Method,
        *,
        durable: bool = False,
        needs: int = 0,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Answer a method; when it promises something durable, after the sync.  Replies keep their order.

        needs: the LSN of an older record that the answer rests on.  then: run when the answer is on its way.
        Raises LogBroken when the sync will never come.
        """
        lsn = max(needs, self.core.last_lsn if self.core.last_lsn > self._before else 0) if durable else 0
        waits = lsn > self.engine.log.durable
        if waits and self.engine.broken is not None:
            raise LogBroken(f"{self.engine.broken}; whether this will last is unknown")
        reply = self.reply_later(channel, method, then)
        reply.promise = waits
        if waits:
            self.engine.when_durable(lsn, partial(self.ready, channel, reply))
        else:
            self.ready(channel, reply)

    def reply_later(self, channel: Channel, method: methods.Method, then: Callable[[], None] | None = None) -> Reply:
        """An answer that takes its place in the order now and leaves when it is `ready`."""
        reply = Reply(method, then)
        channel.replies.append(reply)
        return reply

    def ready(self, channel: Channel, reply: Reply) -> None:
        """What an answer waited for has come."""
        reply.ready = True
        replies = channel.replies
        while replies and replies[0].ready and channel.open:
            first = replies.popleft()
            if first.method is not None:
                self.send(channel.number, first.method)
            if first.then is not None:
                first.then()

    def log_broken(self, reason: str) -> None:
        """The log is broken: of what was published and not confirmed, or declared and not answered, nobody knows."""
        for channel in list(self.channels.values()):
            if channel.confirming and channel.unconfirmed:
                channel.unconfirmed = 0
                self.machine.refuse(channel.number, channel.published, multiple=True)
                self.take_machine_output()
            if any(reply.promise and not reply.ready for reply in channel.replies):
                error = LogBroken(f"{reason}; whether this will last is unknown")
                self.fail_channel(channel.number, error, methods.Method)

    def answer_get(self, channel: Channel, effect: Deliver, piece: Piece) -> None:
        """The row that a basic.get asked for has come."""
        commands.answer_get(self, channel, effect, piece)

    def notify_cancel(self, channel: Channel, tag: str) -> None:
        """basic.cancel to a client that announced that it understands one."""
        if "consumer_cancel_notify" in self.machine.client_capabilities:
            self.send(channel.number, methods.BasicCancel(tag, True))

    def fail_channel(self, number: int, error: PenstockError, method: type[methods.Method]) -> None:
        """Close one channel for a refusal, or the connection where the code asks for that."""
        code, text, whole = reply_code(error)
        if whole:
            self.machine.fail_connection(code, text, method)
            self._close_all(lost=False)
        else:
            self.machine.fail_channel(number, code, text, method)
            self._channel_over(number)
        self.mark_dirty()

    # -- life

    def _other(self, event: events.Event) -> None:
        match event:
            case events.LoginAsked():
                self.door.login(self, event)
            case events.OpenAsked():
                self.door.open_vhost(self, event.vhost)
            case events.ChannelOpened():
                self.channels[event.channel] = Channel(self, event.channel)
                self.counters.channels_opened += 1
            case events.ChannelFailed():
                self._channel_over(event.channel)
            case events.ChannelClosed():
                self._channel_over(event.channel)
                self.send(event.channel, methods.ChannelCloseOk())
            case events.ConnectionFailed():
                self._close_all(lost=False)
            case events.ConnectionClosed():
                self._close_all(lost=False)
                self.send(0, methods.ConnectionCloseOk())
            case _:
                pass

    def _channel_over(self, number: int) -> None:
        channel = self.channels.get(number)
        if channel is not None:
            self.close_channel(channel)

    def close_channel(self, channel: Channel, *, lost: bool = False) -> None:
        """What the channel held goes back to its queues, each message to its own place."""
        channel.open = False
        self.channels.pop(channel.number, None)
        self.settling.finish()  # before it goes back
        self.counters.channels_closed += 1
        now = self.engine.now()
        self._silence([channel])
        for consumer in [*channel.consumers.values(), *channel.cancelled_consumers, *channel.getters.values()]:
            self.core.unsubscribe(now, consumer, requeue=True, lost=lost)
        for wish in channel.subscriptions.values():
            self.core.close(now, wish, lost=lost)
        channel.subscriptions.clear()
        for following in channel.followings.values():
            following.close()
        channel.followings.clear()
        channel.consumers.clear()
        channel.getters.clear()
        channel.encoders.clear()
        self.engine.arm()

    def _silence(self, channels: Iterable[Channel]) -> None:
        """What one consumer gives back must not be granted to the next one that goes."""
        for channel in channels:
            for consumer in channel.consumers.values():
                self.core.pause(consumer)
            for wish in channel.subscriptions.values():
                self.core.hold(wish)

    def _close_all(self, *, lost: bool) -> None:
        self.closing = True
        self.closing_at = self.engine.clock.mono()
        self._silence(self.channels.values())
        for channel in list(self.channels.values()):
            self.close_channel(channel, lost=lost)
        self.core.end_exclusive(self.engine.now(), self)
        self.engine.arm()

    def connection_lost(self) -> None:
        """The link is gone; leases return, exclusive queues end."""
        while self._breathing and not self.closed and not self.closing:
            self._breathed()  # what came before the end counts
        if not self.closed:
            self.closed = True
            self.engine.bodies.sending.add(-self._charged)
            self._charged = 0
            self._count_partial()
            self.engine.reopen(self)
            if not self.closing:
                self._close_all(lost=True)
            self.door.forget(self)

    def close_by_server(self, code: int, text: str) -> None:
        """connection.close from us: an operator's word, or the server stops."""
        self.machine.fail_connection(code, text)
        self._close_all(lost=False)
        self.mark_dirty()


def _nothing() -> None:
    """First of all."""
