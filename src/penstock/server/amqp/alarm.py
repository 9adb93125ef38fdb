"""The disk alarm of the AMQP door: what becomes of publishes while the log has no room.

On a confirming channel they are nacked at once.  On any other channel nobody would learn of a refusal, so they are
held, in order, until there is room again.  A connection that only publishes is not read from meanwhile; one that also
consumes is read on, for its acks make room, and its publishes are held up to a bound: the channel that passes it is
closed with 506.  Clients that announced `connection.blocked` are told when it begins and when it ends.

The alarm knows no byte of the disk; it asks the log, once a second and whenever a publish is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import DiskFull
from penstock.wire.amqp import events, methods

if TYPE_CHECKING:
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session
    from penstock.server.engine import Engine

HELD_MOST = 1 << 20
"""Bytes of held publishes a connection that also consumes may have."""

ROW_COST = 128
"""Bytes a held message counts for beyond its body and header."""

REASON = "the disk of the log is full"


class _Held:
    """What one connection waits with."""

    __slots__ = ("runs", "size", "told")

    def __init__(self) -> None:
        self.runs: list[events.PublishRun] = []
        self.size = 0
        self.told = False  # connection.blocked was sent


def _weight(run: events.PublishRun) -> int:
    """Bytes that a run counts for."""
    size = sum(map(len, run.bodies)) + ROW_COST * len(run.bodies)
    return size + sum(map(len, run.properties)) if isinstance(run.properties, list) else size


class DiskAlarm:
    """Holds publishes of sessions while the log is full."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: dict[Session, _Held] = {}
        self._resumes: list[Callable[[], None]] = []

    @property
    def raised(self) -> bool:
        """Whether anything is held, or anybody was told."""
        return bool(self._held)

    def holds(self, session: Session, channel: Channel, run: events.PublishRun) -> bool:
        """Keep a run that cannot be taken now; False: it is to be stored or refused as usual.

        While a run of a channel is held, all later ones of it are, so that their order stays.
        """
        full = self._engine.broken is None and self._engine.log.full
        held = self._held.get(session)
        if full and held is None:
            held = self._held[session] = _Held()
            self._tell(session, held)
        if channel.confirming or held is None:
            return False
        if not full and not any(earlier.channel == channel.number for earlier in held.runs):
            return False
        size = _weight(run)
        consumes = session.consumes
        if consumes and held.size + size > HELD_MOST:
            held.runs = [earlier for earlier in held.runs if earlier.channel != channel.number]
            held.size = sum(map(_weight, held.runs))
            error = DiskFull(f"{REASON}; more than {HELD_MOST} bytes of publishes wait on this connection")
            session.fail_channel(channel.number, error, methods.BasicPublish)
            return True
        held.runs.append(run)
        held.size += size
        if not consumes:
            session.incoming.hold_reading(self._resumes)
        return True

    def look(self) -> None:
        """Let everything go once the log has room (or is broken, when publishes are refused as usual)."""
        if not self._held or (self._engine.broken is None and self._engine.log.full):
            return
        waiting, self._held = self._held, {}
        for session, held in waiting.items():
            if session.closed:
                continue
            if held.told:
                session.send(0, methods.ConnectionUnblocked())
            session.incoming.take_back(held.runs)
        resumes, self._resumes = self._resumes, []
        for resume in resumes:
            resume()
        self._engine.arm()

    def forget(self, session: Session) -> None:
        """The connection is gone, and what it had not been promised with it."""
        self._held.pop(session, None)

    def _tell(self, session: Session, held: _Held) -> None:
        if "connection.blocked" in session.machine.client_capabilities:
            session.send(0, methods.ConnectionBlocked(REASON))
            held.told = True
