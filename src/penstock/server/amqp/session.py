"""One AMQP connection, as whoever acts for it knows it: its core, its machine, what goes out, and how it is refused.

`Connection` is one that has a peer, and turns its events into calls of these; nothing here knows what an event means.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from penstock.core.effects import Verb
from penstock.errors import PenstockError, PreconditionFailed, ProtocolError
from penstock.server.amqp.incoming import Incoming
from penstock.server.amqp.outgoing import Outgoing
from penstock.server.amqp.settling import Settling
from penstock.server.amqp.tags import Settled
from penstock.wire.amqp import events, methods

if TYPE_CHECKING:
    from penstock.server.amqp.links import Link
    from penstock.server.counters import Counters
    from penstock.server.engine import Engine
    from penstock.server.entitlements import Rights
    from penstock.server.logins import Logins
    from penstock.server.tls import Peer
    from penstock.wire.amqp.machine import ServerConnection


class Session(ABC):
    """A connection that has a link."""

    def __init__(
        self,
        engine: Engine,
        logins: Logins,
        counters: Counters,
        machine: ServerConnection,
        link: Link,
        peer: str,
        local: str,
        tls: Peer | None,
    ) -> None:
        """tls: what the client showed in its handshake; None without TLS."""
        self.engine = engine
        self.core = engine.core
        self.logins = logins
        self.counters = counters
        self.machine = machine
        self.link = link
        self.peer = peer
        self.local = local
        self.tls = tls
        self.user = ""
        self.rights: Rights | None = None  # None: nothing is limited
        self.vhost = "/"
        self.opened = False
        self.closing = False
        self.closed = False
        self.opened_at = engine.clock.mono()
        self.closing_at = 0  # when we gave it up, or said our last word
        self.outgoing = Outgoing(engine, machine, link, self.go_on_delivering, self.linger)
        self.incoming = Incoming(engine, link, self)
        self.settling = Settling(engine)
        self.began_after = 0  # the last LSN when the present method came

    # -- events

    @abstractmethod
    def act(self, event: events.Event) -> bool:
        """Act on one event; whether it was messages."""

    def acted(self) -> None:
        """Events were acted on outside a read."""
        self.outgoing.mark_dirty()
        self.engine.arm()

    @property
    @abstractmethod
    def consumes(self) -> bool:
        """Whether it takes messages, so that acks come on it."""

    @abstractmethod
    def mute(self, channel: int) -> None:
        """What a channel waits with came before it asked for confirms, or for transactions."""

    @abstractmethod
    def send_back(self, channel: int, unroutable: list[tuple[events.PublishRun, int]]) -> None:
        """Return to a channel what nobody wanted and whose publisher asked to be told; count all of it."""

    # -- what goes out

    def send(self, channel: int, method: methods.Method) -> None:
        """A method frame, in order with what waits to be written."""
        self.outgoing.send(channel, method)

    @abstractmethod
    def go_on_delivering(self) -> None:
        """The link takes deliveries again."""

    @abstractmethod
    def linger(self) -> None:
        """Our last word is said."""

    # -- settling

    def settle(self, settled: Settled, verb: Verb) -> None:
        """Settle chunks, those of one consumer together; see `Settling`."""
        if not settled:
            return
        if verb is Verb.ACK:
            self.counters.acknowledged += sum([len(chunk) for _, chunk in settled])
        self.settling.settle(settled, verb)

    # -- refusals

    @abstractmethod
    def fail_channel(
        self, number: int, error: PenstockError, method: type[methods.Method], *, lost: bool = False
    ) -> None:
        """Close one channel for a refusal, or the connection where the code asks for that.

        lost: of each consumer the oldest delivery counts as failed.
        """

    def unknown_tag(self, channel: int, tag: int, method: type[methods.Method]) -> None:
        """A tag that is not outstanding: the channel's mistake."""
        self.fail_channel(channel, PreconditionFailed(f"unknown delivery tag {tag}"), method)


def generated_name(prefix: str) -> str:
    """A name nobody else has."""
    return prefix + secrets.token_urlsafe(16)


def refuse_reuse(tag: str) -> ProtocolError:
    """A consumer of this tag is there already."""
    return ProtocolError(f"attempt to reuse consumer tag '{tag}'", reply_code=530)
