"""The clients of a door that is a process: their bytes, their machines, and what of it goes to the core.

    link -> Hosted.receive: machine -> rows and events -> Host: gathered over all clients -> a batch for the core
    core -> Host.receive: frames -> machines of clients -> one write a round for each client

It decides nothing: who may log in, what a name means and who gets what, the core says (`doorway`).  What the protocol
alone decides is decided here, by the same machine as in the core's process: the order of the handshake, frames, bodies
of several frames, channels' states, hearts.

While the core has two batches that it has not decided the rest gathers here (`gathered`), and clients that bring more
than should gather are not read.  Knows no socket.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import orjson

from penstock.errors import InvalidArgument, ProtocolError
from penstock.records.field_tables import encode_table
from penstock.server.amqp import way
from penstock.server.amqp.gathered import Gathered
from penstock.server.amqp.links import SEND_FREE, SEND_MOST
from penstock.server.amqp.way import Down, Frame, Up
from penstock.server.doors.line import Broken, with_head
from penstock.wire.amqp import events
from penstock.wire.amqp.conversation import PAUSED, SPEAKS_TLS, Phase
from penstock.wire.amqp.deliver import delivery
from penstock.wire.amqp.frames import SYNTAX_ERROR
from penstock.wire.amqp.machine import ServerConnection
from penstock.wire.amqp.method_codec import decode_method
from penstock.wire.amqp.walk import ACK, ACK_FRAME, PUBLISH, SMALL

if TYPE_CHECKING:
    from penstock.server.amqp.links import Link
    from penstock.server.strangers import Stranger
    from penstock.server.tls import Peer
    from penstock.wire.amqp.frames import Limits

FEW = 16
"""Messages of one read that go with those of others."""

FEW_BYTES = 64 << 10

TARGETS_MOST = 1000
"""Numbers of one session, beyond which they begin anew; the core takes a few more."""

UNSENT = 128 << 20

PARTIAL_STEP = 64 << 10
"""The core is told of bytes of bodies begun when they have changed by so much, or are none any more."""

CORE, GATHERS, ASKS = 1, 2, 4
"""Why a client is not read: the core says so, too much gathers, the core is asked about it."""


class Hosted:
    """One client: its machine, its link, and what the core knows of it."""

    __slots__ = (
        "_dirty", "_ended", "_host", "_stopped", "_told", "acked", "gathered", "heard_at", "link", "machine",
        "number", "opened", "reads", "received", "sent", "sent_at", "stranger", "targets", "told", "writes",
    )  # fmt: skip

    def __init__(
        self, host: Host, number: int, machine: ServerConnection, link: Link, stranger: Stranger | None
    ) -> None:
        self.number = number
        self.machine = machine
        self.link = link
        self.stranger = stranger
        self.opened = False  # its vhost
        self.gathered = self.acked = 0  # the number of the last batch that has messages of it, or acks behind these
        self.targets: dict[events.Target, int] = {}
        self.heard_at = self.sent_at = host.mono()
        self.received = self.reads = self.sent = self.writes = 0
        self.told: tuple[int, ...] = (0, 0, 0, 0, 0)  # of these, with what waits, as the core knows them
        self._host = host
        self._dirty = False
        self._ended = False  # the last word is said
        self._stopped = 0  # why it is not read
        self._told = 0  # bytes of bodies begun, as the core knows them

    # -- the link's calls

    def receive(self, data: bytes) -> int:
        """What one read brought; microseconds that this took."""
        host, machine = self._host, self.machine
        began = self.heard_at = host.mono()
        self.received += len(data)
        self.reads += 1
        if machine.finished:
            return 0  # it has not heard our last word yet
        if not (ACK_FRAME <= len(data) <= SMALL and self._small(data)):
            self._read(data)
        if host.gathered.full:
            host.hold(self)
        host.arm()
        return host.mono() - began

    def pause_writing(self) -> None:
        """The client does not read."""
        self._tell(Up.SLOW)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._tell(Up.FAST)

    def connection_lost(self) -> None:
        """The link is gone."""
        self._host.forget(self)

    # -- what comes

    def _small(self, data: bytes) -> bool:
        """Take a read that is one plain message, or some acks, or both; False: it is as any."""
        machine, host = self.machine, self._host
        run: events.AckRun | None = None
        if data[10] == PUBLISH:
            message = machine.lone_message(data)
            if message is None:
                return False
            target, header, body, _, end = message
            if end < len(data) and (run := machine.lone_acks(data, end)) is None:
                return False
            host.gathered.message(self, self.place_of(target), header, body)
        elif data[10] != ACK or (run := machine.lone_acks(data)) is None:
            return False
        if run is not None:
            host.gathered.acks(self, run)
        return True

    def _read(self, data: bytes) -> None:
        machine = self.machine
        try:
            for event in machine.receive(data):
                self._bring(event)
            while machine.unread:
                for event in machine.receive(b""):
                    self._bring(event)
        except InvalidArgument as error:  # a value of a table that can be read and not written
            machine.fail_connection(SYNTAX_ERROR, str(error))
            self._tell_code(Up.FAILED, 0, SYNTAX_ERROR, str(error)[:100])
        self._tell_partial()
        self.mark_dirty()
        if machine.phase in PAUSED:  # what it sends meanwhile is no mistake of its
            self.stop(ASKS)

    def go_on(self) -> None:
        """The core has answered what the machine waited for."""
        self.start(ASKS)
        if self.machine.unread:
            self._read(b"")
        self.mark_dirty()
        self._host.arm()

    def _tell_partial(self) -> None:
        size, told = self.machine.partial_size, self._told
        if size != told and (abs(size - told) >= PARTIAL_STEP or (told and not size)):
            self._told = size
            self._tell(Up.PARTIAL, channel=self.machine.largest_partial() if size else 0, count=min(size, 0xFFFFFFFF))

    def _bring(self, event: events.Event) -> None:
        host = self._host
        match event:
            case events.PublishRun():
                self._messages(event)
            case events.AckRun():
                host.gathered.acks(self, event)
            case events.MethodReceived():
                self._tell(Up.METHOD, event.method.encode(), event.channel)
            case events.ChannelOpened():
                self._tell(Up.CHANNEL, channel=event.channel)
            case events.ChannelClosed():
                self._tell_code(Up.CHANNEL_CLOSED, event.channel, event.code, event.text)
            case events.ChannelFailed():
                self._tell_code(Up.CHANNEL_FAILED, event.channel, event.code, event.text)
            case events.ConnectionClosed():
                self._tell_code(Up.CLOSED, 0, event.code, event.text)
            case events.ConnectionFailed():
                if event.drop and event.text == SPEAKS_TLS and self.stranger is not None:
                    self.stranger.tell(event.text)
                self._tell_code(Up.FAILED, 0, event.code, event.text)
            case events.LoginAsked():
                told: dict[str, object] = {"mechanism": event.mechanism, "user": event.user, "password": event.password}
                table = encode_table(self.machine.client_properties)
                self._tell(Up.LOGIN, b"".join(with_head(told, table)))
            case events.OpenAsked():
                machine = self.machine
                wanted: dict[str, object] = {
                    "vhost": event.vhost, "frame_max": machine.frame_max, "channel_max": machine.channel_max,
                    "heartbeat": machine.heartbeat,
                }  # fmt: skip
                self._tell(Up.VHOST, orjson.dumps(wanted))
            case events.HeartbeatReceived():
                pass

    def _messages(self, run: events.PublishRun) -> None:
        host, count = self._host, len(run.bodies)
        if count <= FEW and sum(map(len, run.bodies)) <= FEW_BYTES:
            for row, body in enumerate(run.bodies):
                host.gathered.message(self, self.place_of(run.target_of(row)), run.properties_of(row), body)
            return
        for low in range(0, count, way.ROWS_MOST):
            high = min(count, low + way.ROWS_MOST)
            some = run.targets[low:high] if isinstance(run.targets, list) else [run.targets]
            places = [self.place_of(target) for target in some]
            headers = run.properties[low:high] if isinstance(run.properties, list) else run.properties
            host.add(way.run_pieces(self.number, run.channel, places, headers, run.bodies[low:high]))

    def place_of(self, target: events.Target) -> int:
        """The number under which the core knows a target."""
        place = self.targets.get(target)
        return self._named(target) if place is None else place

    def _named(self, target: events.Target) -> int:
        anew = len(self.targets) >= TARGETS_MOST
        if anew:
            self._host.gathered.close()
            self.targets.clear()
        place = self.targets[target] = len(self.targets)
        piece = way.target_piece(
            self.number, target.channel, place, target.exchange, target.key, mandatory=target.mandatory, anew=anew
        )
        self._host.gathered.put((piece,))
        return place

    def _tell(self, kind: Up, payload: bytes = b"", channel: int = 0, count: int = 0) -> None:
        self._host.add((way.head(kind, len(payload), self.number, channel, count), payload))

    def _tell_code(self, kind: Up, channel: int, code: int, text: str) -> None:
        self._host.add((way.text_piece(kind, self.number, channel, code, text),))

    # -- reading

    def stop(self, why: int) -> None:
        """Read nothing more, for one reason more."""
        if not self._stopped:
            self.link.pause_reading()
        self._stopped |= why

    def start(self, why: int) -> None:
        """This reason is none any more."""
        if self._stopped & why:
            self._stopped &= ~why
            if not self._stopped:
                self.heard_at = self._host.mono()
                self.link.resume_reading()

    @property
    def unread(self) -> bool:
        """Whether we do not read, so that it need not be heard of."""
        return bool(self._stopped)

    # -- what goes out

    def mark_dirty(self) -> None:
        """See that what the machine has to say is written at the end of the round."""
        if not self._dirty:
            self._dirty = True
            self._host.dirty.append(self)

    def flush(self) -> None:
        """Write what the machine has to say, in one piece."""
        self._dirty = False
        data = self.machine.take_output()
        if data:
            self.sent_at = self._host.mono()
            self.sent += len(data)
            self.writes += 1
            self.link.write(data)
        if self.machine.finished and not self._ended:
            self._ended = True
            self._tell(Up.FINISHED)
            self.start(CORE | GATHERS | ASKS)
            self.link.end_writing()


class Host:
    """All clients of one door."""

    def __init__(
        self,
        limits: Limits,
        *,
        version: str,
        external: bool,
        unsent: int = UNSENT,
        write: Callable[[bytes], object],
        mono: Callable[[], int],
        at_round_end: Callable[[Callable[[], None]], object],
    ) -> None:
        """unsent: bytes that may wait for all clients.  write: to the core.  mono: microseconds that never go back."""
        self.sessions = dict[int, Hosted]()
        self.dirty = list[Hosted]()
        self.held = list[Hosted]()
        self.gathered = Gathered()
        self.mono = mono
        self._limits = limits
        self._version = version
        self._external = external
        self._unsent = unsent
        self._share = SEND_MOST  # of that, one client's
        self._write = write
        self._at_round_end = at_round_end
        self._armed = False
        self._last = 0  # number of the newest session
        self._cutter = way.Cutter(way.DOWN_MOST)
        self._undecided = 0
        self._over = False

    def connect(self, link: Link, peer: str, local: str, tls: Peer | None, stranger: Stranger | None) -> Hosted:
        """A client has come: its machine, and its number for the core."""
        self._last += 1
        external = self._external and tls is not None and tls.der is not None
        machine = ServerConnection(self._limits, version=self._version, external=external)
        one = self.sessions[self._last] = Hosted(self, self._last, machine, link, stranger)
        self._look_at_share()
        if self._share < SEND_MOST:
            link.keep_below(self._share)
        told: dict[str, object] = {"peer": peer, "local": local}
        if tls is not None:
            told["tls"] = {
                "version": tls.version, "cipher": tls.cipher, "der": b64encode(tls.der or b"").decode(),
            }  # fmt: skip
        payload = orjson.dumps(told)
        self.add((way.head(Up.OPENED, len(payload), one.number), payload))
        self.arm()
        return one

    def _look_at_share(self) -> None:
        """Of many clients less may wait for each; told to all of them where it is another by much."""
        share = max(SEND_FREE, min(SEND_MOST, self._unsent // len(self.sessions)))
        if not self._share // 2 < share < self._share * 2:
            self._share = share
            for one in self.sessions.values():
                one.link.keep_below(share)

    def forget(self, one: Hosted) -> None:
        """Its link is gone: the core is told, once."""
        if self.sessions.pop(one.number, None) is not None:
            self.add((way.head(Up.LOST, 0, one.number),))
            self.arm()

    @property
    def owes(self) -> bool:
        """Whether some client is not told yet that it is over, or has not taken it."""
        return any(one.machine.phase is Phase.RUNNING or one.link.buffered() for one in self.sessions.values())

    # -- what goes to the core

    def hold(self, one: Hosted) -> None:
        """It is not read until the core has taken what gathers."""
        one.stop(GATHERS)
        self.held.append(one)

    def add(self, pieces: Sequence[bytes]) -> None:
        """A frame, behind all that came before."""
        self.gathered.add(pieces)
        self.arm()

    def arm(self) -> None:
        """See that the round ends with what is to be said."""
        if not self._armed:
            self._armed = True
            self._at_round_end(self._end_round)

    def _end_round(self) -> None:
        self._armed = False
        while self.dirty:
            dirty, self.dirty = self.dirty, []
            for one in dirty:
                one.flush()
        self._send()

    def _send(self) -> None:
        if self._undecided >= way.WINDOW or self._over:
            return
        out = self.gathered.take()
        if not out:
            return
        self._undecided += 1
        self._write(b"".join((*out, way.head(Up.BATCH, 0))))
        held, self.held = self.held, []
        for one in held:
            one.start(GATHERS)

    # -- what the core says

    def receive(self, data: bytes) -> None:
        """Frames from the core.  Raises Broken, after which there is nothing left to do."""
        try:
            self._hear(data)
        except (ProtocolError, struct.error) as error:
            raise Broken(f"what the core should not say: {error}") from None
        self.arm()

    def _hear(self, data: bytes) -> None:
        for frame in self._cutter.feed(data):
            if frame.kind == Down.CONFIRMS:
                self._confirms(frame)
            elif frame.kind == Down.DELIVERIES:
                self._deliveries(frame)
            elif frame.kind == Down.TAKEN:
                self._undecided -= frame.number
            elif (one := self.sessions.get(frame.session)) is not None:  # else it is gone, which the core does not know
                self._told(one, frame)

    def _confirms(self, frame: Frame) -> None:
        sessions = self.sessions
        for session, channel, tag, how in way.confirms_of(frame):
            one = sessions.get(session)
            if one is None:
                continue
            if how & way.REFUSED:
                one.machine.refuse(channel, tag, multiple=bool(how & way.MULTIPLE))
            else:
                one.machine.confirm(channel, tag, multiple=bool(how & way.MULTIPLE))
            one.mark_dirty()

    def _deliveries(self, frame: Frame) -> None:
        sessions, (numbers, channels, tags, pieces) = self.sessions, way.deliveries_of(frame)
        rows = iter(pieces)
        columns = numbers, channels, tags, rows, rows, rows, rows
        for number, channel, tag, name, top, header, body in zip(*columns, strict=True):
            if (one := sessions.get(number)) is not None:
                machine = one.machine
                machine.send_pieces(channel, delivery(channel, tag, name, top, header, body, machine.frame_max))
                one.mark_dirty()

    def _told(self, one: Hosted, frame: Frame) -> None:
        machine = one.machine
        match frame.kind:
            case Down.PIECES:
                machine.send_pieces(frame.channel, (frame.payload,))
            case Down.METHOD:
                machine.send(frame.channel, decode_method(frame.payload))
            case Down.FAIL_CHANNEL:
                machine.fail_channel(frame.channel, *way.failure_of(frame))
            case Down.FAIL:
                machine.fail_connection(*way.failure_of(frame))
                one.go_on()
            case Down.LET_IN:
                machine.accept_login()
                one.go_on()
            case Down.REFUSE:
                machine.refuse_login()
                one.go_on()
            case Down.LET_OPEN:
                one.opened = True
                machine.accept_open()
                one.go_on()
            case Down.KNOWN if one.stranger is not None:
                one.stranger.known()
            case Down.HELD if one.stranger is not None:
                one.stranger.held = bool(frame.number)
            case Down.PAUSE:
                one.stop(CORE)
            case Down.RESUME:
                one.start(CORE)
            case Down.CLOSE:
                one.flush()
                one.link.close()
            case Down.ECHO:
                one.flush()  # where too much waits for it now, that is told first
                self.add((way.head(Up.ECHO, 0, one.number),))
            case Down.END:
                one.flush()
                one.link.end_writing()
            case _:
                pass
        one.mark_dirty()

    def end(self) -> None:
        """The core is gone: what was not confirmed is unknown, and nobody is served any more."""
        self._over = True
        for one in list(self.sessions.values()):
            one.link.close()

    # -- once a second

    def beat(self) -> None:
        """Heartbeats out, silent peers cut off, and figures for the core."""
        now, rows = self.mono(), list[way.Figure]()
        for one in list(self.sessions.values()):
            waiting = one.link.buffered()
            seen = one.received, one.reads & 0xFFFFFFFF, one.sent, one.writes & 0xFFFFFFFF, min(waiting, 0xFFFFFFFF)
            if seen != one.told:
                one.told = seen
                rows.append(way.Figure(one.number, *seen))
            interval = one.machine.heartbeat * 1_000_000
            if not interval or not one.opened or one.machine.finished:
                continue
            if now - one.heard_at > 2 * interval + 1_000_000 and not one.unread:
                one.link.close()
            elif now - one.sent_at > interval // 2:
                one.machine.send_heartbeat()
                one.mark_dirty()
        if rows:
            self.add(way.figures(rows))
        if self.sessions:
            self._look_at_share()
        self.arm()
