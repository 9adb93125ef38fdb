"""The process of an AMQP door and its clients: `python -m penstock.server.amqp.front CONTROL LINES MEMORY`.

It listens beside other doors at the same address (SO_REUSEPORT) and takes clients with TLS or without; what they want
goes to the core over one socket (`way`), which begins as the door does.  It has no rights, no queue and no log.  It
ends when its control socket or that way does, in the middle of whatever it does.

    Hosted.receive -> rows and events -> Host: gathered over all clients -> a batch for the core
    core -> Host.receive: frames -> machines of clients -> one write a round for each client

`Host` knows no socket and decides nothing: who may log in, what a name means and who gets what, the core says
(`doorway`).  What the protocol alone decides is decided here, by the same machine as in the core's process: the order
of the handshake, frames, bodies of several frames, channels' states, hearts.

While the core has two batches that it has not decided the rest gathers here (`Gathered`), and clients that bring more
than should gather are not read.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from penstock.errors import ProtocolError
from penstock.server.amqp import way
from penstock.server.amqp.hosted import CORE, GATHERS, Gathered, Hosted
from penstock.server.amqp.links import SEND_FREE, SEND_MOST, AmqpLink, Came, WayLink
from penstock.server.amqp.way import Down, Frame, Up
from penstock.server.base.rounds import Pulse, Soon, Turns
from penstock.server.doors import front
from penstock.server.doors.front import Front, Identities
from penstock.server.doors.line import Broken, handed
from penstock.server.sockets.listening import Entry, Listener
from penstock.server.sockets.tls_transport import cut_off
from penstock.wire.amqp.conversation import Phase, silence
from penstock.wire.amqp.frames import Limits, decode_method
from penstock.wire.amqp.machine import ServerConnection
from penstock.wire.amqp.pieces import delivery

UNSENT = 128 << 20
"""Bytes that may wait for all clients together."""

Off = Callable[[Callable[[], bytes], Callable[[bytes], None]], None]
"""Do the first beside the loop, then, there, the second with what came of it."""


class Host:
    """All clients of one door."""

    def __init__(
        self,
        limits: Limits,
        *,
        version: str,
        external: bool,
        write: Callable[[bytes], object],
        mono: Callable[[], int],
        soon: Soon,
        at_round_end: Soon,
        off: Off,
        failed: Callable[[Exception], object],
    ) -> None:
        """write: to the core.  mono: microseconds that never go back.  off: does what takes long.

        failed: told of a fault that ends one client, as asyncio tells of those in what it calls itself.
        """
        self.sessions = dict[int, Hosted]()
        self.dirty = list[Hosted]()
        self.held = list[Hosted]()
        self.gathered = Gathered()
        self.mono = mono
        self.failed = failed
        self.turns = Turns(mono, soon, lambda work: work())
        self._limits = limits
        self._version = version
        self._external = external
        self._share = SEND_MOST  # of `UNSENT`, one client's
        self._write = write
        self._at_round_end = at_round_end
        self._off = off
        self._armed = False
        self._last = 0  # number of the newest session
        self._cutter = way.Cutter(way.DOWN_MOST)
        self._undecided = 0
        self._over = False

    def connect(self, came: Came) -> Hosted:
        """A client has come: its machine, and its number for the core."""
        self._last += 1
        link, peer, local, tls, stranger = came
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
        share = max(SEND_FREE, min(SEND_MOST, UNSENT // len(self.sessions)))
        if not self._share // 2 < share < self._share * 2:
            self._share = share
            for one in self.sessions.values():
                one.link.keep_below(share)

    def forget(self, one: Hosted) -> None:
        """Its link is gone: the core is told, once."""
        if self.sessions.pop(one.number, None) is not None:
            self.add((way.text_piece(Up.LOST, one.number, 0, 0, one.cut),))
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
        self.turns.number += 1

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

    def _derived(self, one: Hosted, digest: bytes) -> None:
        if one.number in self.sessions:
            self.add((way.head(Up.DERIVED, len(digest), one.number), digest))

    def _confirms(self, frame: Frame) -> None:
        sessions = self.sessions
        for session, channel, tag, how in way.rows_of(frame, way.CONFIRMS):
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
                one.fail_channel(frame.channel, *way.failure_of(frame))
            case Down.FAIL:
                machine.fail_connection(*way.failure_of(frame))
                one.go_on()
            case Down.DERIVE:
                self._off(partial(way.slow_of(frame).digest, one.password), partial(self._derived, one))
            case Down.LET_IN:
                one.password = ""
                machine.accept_login()
                one.go_on()
            case Down.REFUSE:
                one.password = ""
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
            case Down.ABORT:
                one.link.abort()
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
        now, figures = self.mono(), way.Rows(Up.FIGURES, way.FIGURES)
        for one in list(self.sessions.values()):
            waiting = one.link.buffered()
            seen = one.received, one.reads & 0xFFFFFFFF, one.sent, one.writes & 0xFFFFFFFF, min(waiting, 0xFFFFFFFF)
            if seen != one.told:
                one.told = seen
                figures.rows.append((one.number, *seen))
            interval = one.machine.heartbeat * 1_000_000
            if not interval or not one.opened or one.machine.finished:
                continue
            if now - one.heard_at > 2 * interval + 1_000_000 and not one.unread:
                one.cut = silence(one.machine.heartbeat)
                one.link.abort()
            elif now - one.sent_at > interval // 2:
                one.machine.send_heartbeat()
                one.mark_dirty()
        if figures.rows:
            self.add(figures.pieces())
        if self.sessions:
            self._look_at_share()
        self.arm()


BEAT_S = 1.0


def mono() -> int:
    """Microseconds that never go back."""
    return time.monotonic_ns() // 1000


class AmqpFront(Front):
    """AMQP's door."""

    def __init__(self, control: socket.socket, lines: socket.socket, pulse: Pulse) -> None:
        super().__init__(control, lines)
        self._pulse = pulse
        self._host: Host | None = None
        self._way: WayLink | None = None
        self._beat: asyncio.TimerHandle | None = None

    async def begin(self, told: Mapping[str, Any]) -> None:
        """Have a way to the core."""
        ours = handed(self.lines)
        ours.setblocking(False)

        def write(data: bytes) -> None:
            link.transport.write(data)

        host = self._host = Host(
            Limits(**told["limits"]),
            version=told["version"],
            external=told["external"],
            write=write,
            mono=mono,
            soon=self.loop.call_soon,
            at_round_end=self._pulse.at_round_end(self.loop),
            off=self._derive,
            failed=self._tell,
        )
        link = WayLink(host.receive, self.over.set, lambda _: None)
        await self.loop.create_connection(lambda: link, sock=ours)
        self._way = link
        self._beats()

    def listener(self, entry: Entry, name: str, identity: Identities | None) -> Listener:
        """Of sessions that the host has."""
        assert self._host is not None
        return entry.listener(name, partial(AmqpLink, self._host.connect), identity)

    @property
    def owes(self) -> bool:
        """Whether a session has something to write."""
        return self._host is not None and self._host.owes

    def end(self) -> None:
        """Cut everybody off."""
        if self._beat is not None:
            self._beat.cancel()
        if self._host is not None:
            self._host.end()
        if self._way is not None:
            cut_off(self._way.transport)

    def _tell(self, error: Exception) -> None:
        self.loop.call_exception_handler({"message": "what an AMQP client sent is not heard", "exception": error})

    def _derive(self, work: Callable[[], bytes], then: Callable[[bytes], None]) -> None:
        def made(done: asyncio.Future[bytes]) -> None:
            if not done.cancelled():
                then(done.result())

        self.off(work).add_done_callback(made)

    def _beats(self) -> None:
        self._beat = self.loop.call_later(BEAT_S, self._beats)
        if self._host is not None:
            self._host.beat()


def run(control: socket.socket, lines: socket.socket) -> None:
    """The door in a thread of the server's own process."""
    pulse = Pulse()
    with asyncio.Runner(loop_factory=pulse.new_loop) as runner:
        runner.run(AmqpFront(control, lines, pulse).run())


def main() -> None:
    """The door as a process; never returns."""
    front.main(run)


if __name__ == "__main__":
    main()
