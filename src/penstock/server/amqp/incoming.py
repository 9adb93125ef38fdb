"""Events from one AMQP peer in their order, and whether its link is read.

Events wait while messages before them are judged off the loop, or while the others have their turn; reading pauses for
that, for a running commit, and for room for bodies.  It does not know what an event means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.wire.amqp import events

if TYPE_CHECKING:
    from penstock.server.amqp.links import Link
    from penstock.server.runtime import Runtime

METHODS_MOST = 128
"""Methods of one read that are acted on in one turn; a declare takes 60 microseconds."""

PACED_READ = 16 * 1024
"""Reads shorter than this come from a publisher that sends one message a call: pacing them saves a third of the CPU."""

PACED_UNCONFIRMED = 32
"""Only publishers that pipeline at least this many are paced; one that waits for each confirm never is."""


HELD, BEGUN = 1, 2
"""Why a connection is not read until it is told so: publishes of it are held, memory is wanted for its bodies."""


class Actor(Protocol):
    """Who acts on the events."""

    closing: bool
    closed: bool

    def act(self, event: events.Event) -> bool:
        """Act on one event; whether it was messages."""
        ...

    def acted(self) -> None:
        """Events were acted on outside a read: see that the answers leave."""
        ...


class Incoming:
    """What one connection brings."""

    __slots__ = (
        "_actor", "_breathing", "_link", "_methods", "_runtime", "held", "paused", "reads", "received",
        "received_at", "stops",
    )  # fmt: skip

    def __init__(self, runtime: Runtime, link: Link, actor: Actor) -> None:
        self.paused = False  # the link is not read
        self.stops = 0  # why it is not to be until `start`
        self.received_at = runtime.clock.mono()
        self.received = self.reads = 0  # bytes; how often some came
        self._runtime = runtime
        self._link = link
        self._actor = actor
        self.held: deque[events.Event] | None = None  # what came while messages are being judged
        self._methods = 0  # since the others had their turn
        self._breathing = False  # held for that reason

    def begin(self, size: int) -> int:
        """A read of so many bytes came: now, in microseconds on the monotonic clock."""
        now = self.received_at = self._runtime.clock.mono()
        self.received += size
        self.reads += 1
        self._methods = 0
        return now

    def count(self, size: int, mono: int) -> None:
        """A read of so many bytes came about now, and was acted on by other means."""
        self.received_at = mono
        self.received += size
        self.reads += 1

    def take(self, some: Iterable[events.Event]) -> bool:
        """Act on events, or keep them; whether messages were acted on."""
        published = False
        for event in some:
            if self.held is not None:
                self.held.append(event)
            else:
                published = self._actor.act(event) or published
        return published

    def count_method(self) -> None:
        """A method was acted on.  After many of one read the others have their turn before the next of them."""
        self._methods += 1
        if self._methods >= METHODS_MOST and self.held is None and not self._actor.closing:
            self._breathing = True
            self.hold()
            self._runtime.call_soon(self._breathed)

    def _breathed(self) -> None:
        if self._breathing:
            self._breathing = False
            self._methods = 0
            self.go_on(_nothing)

    # -- events that wait

    def hold(self) -> None:
        """Act on nothing more and read nothing more until `go_on`: messages of this connection are being judged."""
        if self.held is None:
            self.held = deque()
        if not self.paused:
            self.paused = True
            self._link.pause_reading()

    def go_on(self, first: Callable[[], None]) -> None:
        """Do this first, then what came meanwhile, in its order; then read on."""
        held = self._released()
        if held is None or self._actor.closed or self._actor.closing:
            return
        first()
        self._act_on(held)
        if self.held is None:
            self.resume()
        else:  # the next of them has to be judged, too
            self.held.extend(held)
        self._actor.acted()

    def _released(self) -> deque[events.Event] | None:
        held, self.held = self.held, None
        return held

    @property
    def holding(self) -> bool:
        """Whether events wait for `go_on`."""
        return self.held is not None

    def put_back(self, some: Sequence[events.Event]) -> None:
        """Have events that were kept back elsewhere come before all that waits for `go_on`."""
        assert self.held is not None
        self.held.extendleft(reversed(some))

    def act_last(self, event: events.Event) -> None:
        """Act on an event that was kept back elsewhere, after all that waits."""
        if self.held is not None:
            self.held.append(event)
        else:
            self._actor.act(event)

    def _act_on(self, waiting: deque[events.Event]) -> None:
        """Act on these until something has to be judged; leaves what has to wait for that."""
        while waiting and self.held is None:
            self._actor.act(waiting.popleft())

    def end(self) -> None:
        """The link is gone; what came before the end counts, but for what is being judged."""
        while self._breathing and not self._actor.closed and not self._actor.closing:
            self._breathed()

    # -- reading

    def pace(self, size: int, unconfirmed: Callable[[], int]) -> None:
        """After a read of so many bytes: stop reading a publisher for the running commit, or until there is room.

        unconfirmed: counts the messages that wait for their confirm on this connection.
        """
        runtime = self._runtime
        if not runtime.has_room():
            self.hold_reading(runtime.on_room)
        elif size < PACED_READ and runtime.log.waiting_since and unconfirmed() > PACED_UNCONFIRMED:
            self.hold_reading(runtime.on_commit)

    def hold_reading(self, hooks: list[Callable[[], None]]) -> None:
        """Stop reading this connection until the hook that is added to `hooks` is called."""
        if not self.paused:
            self.paused = True
            self._link.pause_reading()
            hooks.append(self.resume)

    def stop(self, why: int) -> None:
        """Read nothing more until `start`."""
        self.stops |= why
        if not self.paused:
            self.paused = True
            self._link.pause_reading()

    def start(self, why: int) -> None:
        """Read again, where `stop` has ended that, and nothing else keeps it from being read."""
        if self.stops & why:
            self.stops &= ~why
            self.resume()

    def pass_over(self) -> None:
        """Nobody acts on what comes any more: read it all, whatever it waited for."""
        self.held, self._breathing, self.stops = None, False, 0
        self.resume()

    def resume(self) -> None:
        """Read again, unless events wait."""
        if not self.paused or self.held is not None or self.stops:
            return
        self.paused = False
        if not self._actor.closed:
            self.received_at = self._runtime.clock.mono()
            self._link.resume_reading()


def _nothing() -> None:
    """First of all."""
