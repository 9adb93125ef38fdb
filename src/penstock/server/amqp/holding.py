"""Publishes that cannot be taken now and are held, a line for each channel, until there is room again.

While the log has no room publishes on a confirming channel are nacked at once.  On any other channel nobody would learn
of a refusal, so they are held, a line for each channel, in order, until there is room again.  A connection that only
publishes is not read from meanwhile.  The alarm knows no byte of the disk; it asks the log, once a second and whenever
a publish is refused.

While a channel has a line, all that it publishes goes behind it, and so does the close of the channel; acks and other
methods pass, for they make room.  A connection that consumes is read on and may have `HELD_MOST` bytes in lines: the
channel that passes that is closed with 506.  Any other is not read any more once it has `READ_ON` of them.  A channel
whose line stands still while memory is short is closed with 506, too (`penstock.memory`).  Clients that
announced `connection.blocked` are told when the first line begins and when the last one has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import DiskFull, MemoryShort
from penstock.memory import Held
from penstock.server.amqp.incoming import HELD
from penstock.server.gates import Waiter
from penstock.wire.amqp import events, methods
from penstock.wire.amqp.frames import reply_text

if TYPE_CHECKING:
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session
    from penstock.server.engine import Engine


HELD_MOST = 1 << 20
"""Bytes of held publishes a connection that also consumes may have."""

READ_ON = 64 << 10
"""Bytes that one may have that does not: what it sent behind them may be a consumer that makes room."""

ROW_COST = 128
"""Bytes a held message counts for beyond its body and header."""

PART = 64
"""Messages of a line that are tried at once: of more, each new try would look at all again."""

CLOSING_US = 10_000_000
"""How long the close of a channel or connection that may itself have what makes room waits for what it published."""


class Line(Waiter):
    """What one channel waits with."""

    __slots__ = ("channel", "events", "going", "passed", "session", "waiting")

    def __init__(self, holding: Holding, session: Session, channel: int) -> None:
        super().__init__(partial(holding.go_on, self))
        self.session = session
        self.channel = channel
        self.events: deque[events.PublishRun | events.ChannelClosed] = deque()
        self.going = False  # its first is being tried
        self.waiting = 0  # bytes of it all
        self.passed = 0  # bytes that went on, so far


class Waiting:
    """What one connection waits with."""

    __slots__ = ("closing", "closing_at", "disk", "lines", "size", "told")

    def __init__(self) -> None:
        self.lines: dict[int, Line] = {}
        self.size = 0
        self.told = False  # connection.blocked was sent
        self.disk = False  # and the alarm says when that is over
        self.closing: events.ConnectionClosed | None = None  # it comes behind all lines
        self.closing_at = 0  # when the first close came that waits; 0: none


def weight(event: events.PublishRun | events.ChannelClosed) -> int:
    """Bytes that an event counts for."""
    if not isinstance(event, events.PublishRun):
        return ROW_COST
    size = sum(map(len, event.bodies)) + ROW_COST * len(event.bodies)
    return size + sum(map(len, event.properties)) if isinstance(event.properties, list) else size


def _parts(run: events.PublishRun) -> Sequence[events.PublishRun]:
    if len(run.bodies) <= PART:
        return (run,)
    return [run.part(low, low + PART) for low in range(0, len(run.bodies), PART)]


class Holding:
    """The lines of all connections of the door."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.held: dict[Session, Waiting] = {}
        self.bytes = 0  # in all lines
        engine.bodies.budget.hold("held", self)
        engine.relief.register("held", self._lines)

    def __bool__(self) -> bool:
        return bool(self.held)

    def holds(self, session: Session) -> bool:
        """Whether a connection waits with something."""
        return session in self.held

    def tell(self, session: Session, reason: str) -> Waiting:
        """The connection is held up from now on, for this reason."""
        held = self.held.get(session)
        if held is None:
            held = self.held[session] = Waiting()
            if "connection.blocked" in session.machine.client_capabilities:
                session.send(0, methods.ConnectionBlocked(reply_text(0, reason)))  # it may name what has a long name
                held.told = True
        return held

    def behind(self, session: Session, channel: int, run: events.PublishRun) -> bool:
        """Put a run behind what its channel waits with; False: it waits with nothing."""
        held = self.held.get(session)
        line = None if held is None else held.lines.get(channel)
        if line is None or line.going:
            return False
        self._add(line, run)
        return True

    def hold(self, session: Session, channel: int, run: events.PublishRun, reason: str) -> Line:
        """Keep what cannot be taken now; the line in which it stands, which is over where that was too much."""
        held = self.tell(session, reason)
        line = held.lines.get(channel)
        if line is None:
            line = held.lines[channel] = Line(self, session, channel)
        self._add(line, run)
        return line

    def _add(self, line: Line, run: events.PublishRun) -> None:
        session, held = line.session, self.held[line.session]
        size = weight(run)
        consumes = session.consumes
        if consumes and not line.going and held.size + size > HELD_MOST:
            why = DiskFull(f"more than {HELD_MOST} bytes of publishes wait on this connection for room")
            session.fail_channel(line.channel, why, methods.BasicPublish)
            return
        if line.going:  # what is left of what was tried
            line.events.extendleft(reversed(_parts(run)))
        else:
            line.events.extend(_parts(run))
        self._weigh(held, line, size)
        if not consumes and held.size >= READ_ON:
            session.incoming.stop(HELD)

    def go_on(self, line: Line) -> None:
        """Try what a channel waits with, until something has to wait again or to be judged first."""
        session, held = line.session, self.held.get(line.session)
        if held is None or held.lines.get(line.channel) is not line or line.going:
            return
        incoming = session.incoming
        line.going = True
        tried, waited = True, incoming.holding
        while line.events and tried and not incoming.holding:
            first, left = line.events.popleft(), len(line.events)
            self._weigh(held, line, -weight(first))
            session.act(first)
            tried = len(line.events) <= left
        line.going = False
        if held.lines.get(line.channel) is not line:
            pass  # the channel is over
        elif line.events and tried:  # it waits for something else, as a whole or from where it has come to
            self._weigh(held, line, -line.waiting)
            del held.lines[line.channel]
            if waited:
                incoming.put_back(line.events)
            else:
                incoming.keep(line.events)
        elif not line.events:
            del held.lines[line.channel]
        self.settle(session)
        session.acted()

    def settle(self, session: Session) -> None:
        """Nobody waits for anything any more, or a little less: say so, and read on."""
        held = self.held.get(session)
        if held is None:
            return
        if held.lines or held.disk:
            if session.consumes or (held.size < READ_ON and not held.disk):
                session.incoming.start(HELD)
            return
        del self.held[session]
        if session.closed:
            return
        session.incoming.start(HELD)
        if session.closing:
            return
        if held.told:
            session.send(0, methods.ConnectionUnblocked())
        if held.closing is not None:
            session.incoming.act_last(held.closing)

    def closes_later(self, session: Session, event: events.ChannelClosed | events.ConnectionClosed) -> bool:
        """Whether a close waits for what was published before it."""
        held = self.held.get(session)
        if held is None or not held.lines or session.closing:
            return False
        if isinstance(event, events.ConnectionClosed):
            held.closing = event
        else:
            line = held.lines.get(event.channel)
            if line is None or line.going:
                return False
            line.events.append(event)
            self._weigh(held, line, weight(event))
        held.closing_at = held.closing_at or self._engine.clock.mono()
        return True

    def mute(self, session: Session, channel: int) -> None:
        """What the channel waits with came before it asked for confirms, or for transactions."""
        held = self.held.get(session)
        line = None if held is None else held.lines.get(channel)
        for event in () if line is None else line.events:
            if isinstance(event, events.PublishRun):
                event.early = True

    def drop(self, session: Session, number: int) -> None:
        """A channel is over: what it waited with is gone, and nobody was promised anything of it."""
        held = self.held.get(session)
        line = None if held is None else held.lines.pop(number, None)
        if held is None or line is None:
            return
        self._engine.rooms.leave(line)
        self._weigh(held, line, -line.waiting)
        line.events.clear()
        self.settle(session)

    def forget(self, session: Session) -> None:
        held = self.held.get(session)
        if held is not None:
            for number in list(held.lines):
                self.drop(session, number)
            self.held.pop(session, None)

    def beat(self) -> None:
        """Once a second: a close does not wait for ever for what its own connection may be asked to consume."""
        now = self._engine.clock.mono()
        for session, held in list(self.held.items()):
            if held.closing_at and now - held.closing_at > CLOSING_US and session.consumes:
                closes = [one for line in held.lines.values() for one in line.events]
                for event in closes:
                    if isinstance(event, events.ChannelClosed):
                        self.drop(session, event.channel)
                        session.act(event)
                held.closing_at = 0
                if held.closing is not None:
                    for number in list(held.lines):
                        self.drop(session, number)
                session.acted()

    def _lines(self) -> Iterator[Held]:
        """What each channel waits with, for when memory is short."""
        for session, held in list(self.held.items()):
            for line in list(held.lines.values()):
                if not line.going:
                    name = f"what channel {line.channel} of {session.peer} waits with"
                    yield Held(line, session.user, name, line.waiting, line.passed, partial(_give_up, line))

    def _weigh(self, held: Waiting, line: Line, size: int) -> None:
        held.size += size
        line.waiting += size
        self.bytes += size
        line.passed += max(0, -size)


def _give_up(line: Line, error: MemoryShort) -> None:
    line.session.fail_channel(line.channel, error, methods.BasicPublish)


REASON = "the disk of the log is full"
DRAINS = "the server drains"


class DiskAlarm:
    """Holds publishes of sessions while the log is full, or the server drains."""

    def __init__(self, engine: Engine, holding: Holding) -> None:
        self._engine = engine
        self._holding = holding
        self._told: dict[Session, None] = {}
        self._lines: dict[Line, None] = {}

    def holds(self, session: Session, channel: Channel, run: events.PublishRun) -> bool:
        """Keep a run that cannot be taken now; False: it is to be stored or refused as usual."""
        if not self._on():
            return False
        reason = REASON if self._engine.log.room.full else DRAINS
        self._told[session] = None
        self._holding.tell(session, reason).disk = True
        if channel.confirming and not run.early:
            return False
        self._lines[self._holding.hold(session, channel.number, run, reason)] = None
        if not session.consumes and not session.closing:
            session.incoming.stop(HELD)
        return True

    def _on(self) -> bool:
        return self._engine.broken is None and (self._engine.log.room.full or self._engine.core.draining)

    def look(self) -> None:
        """Let everything go once the log has room and the server does not drain (or broke: they are refused)."""
        if not self._told or self._on():
            return
        told, self._told = self._told, {}
        lines, self._lines = self._lines, {}
        for session in told:
            self._holding.tell(session, REASON).disk = False
        for line in lines:
            if line.queue is None:
                line.go_on()
        for session in told:
            self._holding.settle(session)
        self._engine.arm()

    def forget(self, session: Session) -> None:
        self._told.pop(session, None)
