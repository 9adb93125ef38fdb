"""What the log tells of clients that have logged in: what they were refused, and how those ended that did not close.

    amqp: 'worker-7' (user 'guest', 10.0.0.7:53422): channel 3 was closed at basic.ack: PRECONDITION_FAILED - ...
    amqp: 'worker-7' (user 'guest', 10.0.0.7:53422): the connection was closed: NOT_ALLOWED - ...
    amqp: 'worker-7' (user 'guest', 10.0.0.7:53422): the connection was cut off: nothing came from it for ...
    amqp: 'worker-7' (user 'guest', 10.0.0.7:53422): the connection ended without a close

The first word is the connection's name, where its client has told one.  A client that comes again and again with the
same mistake has one line in `TOLD_S`, whatever its port and its channel are then; all lines are bounded as those about
strangers are.  Who is closed by an operator, or because the server stops, has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import shown
from penstock.server.sockets.strangers import TOLD_S, Complaints
from penstock.wire.amqp.frames import reply_text

if TYPE_CHECKING:
    from penstock.server.amqp.session import Session
    from penstock.wire.amqp.methods import Method

DOOR, CONNECTION = "amqp", "the connection"


class ClientsLog:
    """Lines about the clients of one server."""

    def __init__(self, now: Callable[[], int]) -> None:
        """now: microseconds that never go back."""
        self._now = now
        self._due = list[tuple[int, Callable[[], None]]]()
        self._lines = Complaints(self._later, f"such lines about clients in {TOLD_S:g} s")

    def channel_closed(self, session: Session, number: int, code: int, text: str, method: type[Method] | None) -> None:
        """One of its channels was closed, at a method of it where one was the reason.  No text: it has been told."""
        if not text:
            return
        at = f" at {name}" if (name := getattr(method, "NAME", "")) else ""
        self._tell(session, f"channel {number}", f"was closed{at}: {reply_text(code, text)}")

    def connection_closed(self, session: Session, code: int, text: str) -> None:
        """We have closed it for a mistake, or did not let it in."""
        self._tell(session, CONNECTION, f"was closed: {reply_text(code, text)}")

    def ended(self, session: Session) -> None:
        """Its socket is gone, and neither side had closed the connection.  Strangers are no clients."""
        if session.user:
            self._tell(session, CONNECTION, f"was cut off: {session.cut}" if session.cut else "ended without a close")

    def beat(self) -> None:
        """Called once a second: a span of lines may be over."""
        while self._due and self._due[0][0] <= self._now():
            self._due.pop(0)[1]()

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._due.append((self._now() + int(seconds * 1e6), what))

    def _tell(self, session: Session, which: str, what: str) -> None:
        called: Any = session.machine.client_properties.get("connection_name")
        name = f"{shown(called)} " if isinstance(called, str) else ""
        host = session.peer.rpartition(":")[0]
        line = f"{name}(user {shown(session.user)}, {session.peer}): {which} {what}"
        self._lines.say(DOOR, (name, session.user, host, what), line)
