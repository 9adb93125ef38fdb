"""The publishers of the AMQP door: whether anything can be taken now, what becomes of what cannot, and their confirms.

While the log has no room publishes on a confirming channel are nacked at once.  On any other channel nobody would learn
of a refusal, so they are held, in order, until there is room again (`holding`).  A connection that only publishes is
not read from meanwhile.  The alarm knows no byte of the disk; it asks the log, once a second and whenever a publish is
refused.  Confirms are gathered: one a channel and commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import DiskFull, Draining, Refused
from penstock.server.amqp.gathering import Gathering
from penstock.server.amqp.holding import Holding
from penstock.wire.amqp import events

if TYPE_CHECKING:
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.holding import Line
    from penstock.server.amqp.session import Session
    from penstock.server.engine import Engine

REASON = "the disk of the log is full"
DRAINS = "the server drains"


class DiskAlarm:
    """Holds publishes of sessions while the log is full, or the server drains."""

    def __init__(self, engine: Engine, holding: Holding) -> None:
        self._engine = engine
        self._holding = holding
        self._told: dict[Session, None] = {}
        self._lines: dict[Line, None] = {}

    @property
    def raised(self) -> bool:
        """Whether anything is held, or anybody was told."""
        return bool(self._told)

    def holds(self, session: Session, channel: Channel, run: events.PublishRun) -> bool:
        """Keep a run that cannot be taken now; False: it is to be stored or refused as usual."""
        if not self._on():
            return False
        reason = REASON if self._engine.log.full else DRAINS
        self._told[session] = None
        self._holding.tell(session, reason).disk = True
        if channel.confirming and not run.early:
            return False
        self._lines[self._holding.hold(session, channel.number, run, reason)] = None
        if not session.consumes and not session.closing:
            session.incoming.stop()
        return True

    def _on(self) -> bool:
        return self._engine.broken is None and (self._engine.log.full or self._engine.core.draining)

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
        """The connection is gone."""
        self._told.pop(session, None)


class Publishers:
    """Those of all connections of the door."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.holding = Holding(engine)
        self.alarm = DiskAlarm(engine, self.holding)
        self.gathering = Gathering(self)
        self._confirms: dict[Channel, int] = {}

    def refusal(self) -> Refused | None:
        """Why no message can be taken at present, if so."""
        if self.engine.broken is not None:
            return Refused(f"the log is broken: {self.engine.broken}")
        if self.engine.log.full:
            return DiskFull("the log has no room")
        if self.engine.core.draining:
            return Draining("the server drains: it takes no new messages")
        return None

    def confirm(self, channel: Channel, sequence: int) -> None:
        """Everything up to `sequence` is durable: told once a channel and commit."""
        if not self._confirms:
            self.engine.on_flush.insert(0, self.flush_confirms)
        self._confirms[channel] = max(sequence, self._confirms.get(channel, 0))

    def flush_confirms(self) -> None:
        """Send the gathered confirms."""
        confirms, self._confirms = self._confirms, {}
        for channel, sequence in confirms.items():
            if channel.open:
                channel.session.outgoing.confirm(channel.number, sequence)
