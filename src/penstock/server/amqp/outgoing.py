"""Bytes to one AMQP peer: gathered during a turn, written once at its end, and counted while they wait for it.

What waits counts against the budget of bodies, and no more than a little may wait when that is short.  It knows no
channel and no consumer; the session tells those when there is room again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.server.amqp.links import SEND_MOST
from penstock.wire.amqp import methods

if TYPE_CHECKING:
    from penstock.server.amqp.links import Link
    from penstock.server.runtime import Runtime
    from penstock.wire.amqp.machine import ServerConnection

SEND_FREE = 64 << 10
"""Bytes that may wait for any peer, however short the budget is; more only as long as that has room."""


class Outgoing:
    """What one connection has to send.  Deliveries add to `frames` and `unsent`, and mark it dirty."""

    def __init__(
        self,
        runtime: Runtime,
        machine: ServerConnection,
        link: Link,
        on_room: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        """on_room: called when deliveries were written and the link takes more.  on_end: with the last word."""
        self.frames: list[bytes] = []
        self.unsent = 0  # bytes of deliveries in `frames`, about
        self.blocked = False  # the peer does not read
        self.sent_at = runtime.clock.mono()
        self.sent = self.writes = 0  # bytes; how often some went out
        self._runtime = runtime
        self._machine = machine
        self._link = link
        self._on_room = on_room
        self._on_end = on_end
        self._ended = False  # the last word was said
        self._dirty = False
        self._over = False
        self._narrow = False  # the budget is short: no more than SEND_FREE may wait
        self._charged = 0  # bytes waiting for the peer that count against the budget

    @property
    def full(self) -> bool:
        """Whether as much waits for the peer as may."""
        return (self.blocked or self.unsent > SEND_MOST) and not self._over

    def mark_dirty(self) -> None:
        """See that `frames` and the machine's bytes are written at the end of the turn."""
        if not self._dirty:
            self._dirty = True
            self._runtime.on_flush.append(self.flush)

    def send(self, channel: int, method: methods.Method) -> None:
        """A method frame, in order with what is already in `frames`."""
        self._machine.send(channel, method)
        self.take_machine_output()

    def confirm(self, channel: int, sequence: int) -> None:
        """Everything that was published up to a number is durable."""
        self._machine.confirm(channel, sequence, multiple=True)
        if self.frames:
            self.take_machine_output()
        else:
            self.mark_dirty()

    def take_machine_output(self) -> None:
        """What the machine has to say goes behind what is in `frames` already."""
        data = self._machine.take_output()
        if data:
            self.frames.append(data)
        self.mark_dirty()

    def flush(self) -> None:
        """One write of everything this turn brought."""
        self._dirty = False
        data = self._machine.take_output()
        frames = self.frames
        if frames:
            if data:
                frames.append(data)
            data = b"".join(frames)
            frames.clear()
        if data and not self._over:
            self.sent_at = self._runtime.clock.mono()
            self.sent += len(data)
            self.writes += 1
            self._link.write(data)
            self.count_unsent()
        if self.unsent:
            self.unsent = 0
            if not self.blocked:
                self._on_room()
        if self._machine.finished and not self._ended:
            self._ended = True
            if not self._over:
                self._on_end()

    def count_unsent(self) -> None:
        """Charge what waits for the peer to the budget; when that is short, let less wait."""
        waiting = self._link.buffered()
        if waiting == self._charged and not self._narrow and waiting <= SEND_FREE:
            return
        caches = self._runtime.bodies
        caches.sending.add(waiting - self._charged)
        self._charged = waiting
        narrow = waiting > SEND_FREE and caches.tight
        if narrow != self._narrow:
            self._narrow = narrow
            self._link.keep_below(SEND_FREE if narrow else SEND_MOST)

    def end(self) -> None:
        """The link is gone: nothing is written any more, and nothing waits."""
        self._over = True
        self._runtime.bodies.sending.add(-self._charged)
        self._charged = 0
