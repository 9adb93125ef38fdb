"""What a session knows of its client and says to him: the port that is the same wherever the client's bytes are read.

A client whose bytes come to this process has a wire machine, `session.Outgoing` and a link (`reading`); one at a door
that is a process has `far.Far` in place of all three.  A session knows these shapes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.server.amqp.links import Guarded, Link

if TYPE_CHECKING:
    from penstock.records.entries import Topic
    from penstock.records.field_tables import FieldValue
    from penstock.wire.amqp.deliver import DeliveryEncoder
    from penstock.wire.amqp.frames import Bytes
    from penstock.wire.amqp.methods import Method


class Client(Protocol):
    """What was negotiated, and what is said; what the client could not hear any more is dropped."""

    mechanism: str
    frame_max: int
    channel_max: int
    heartbeat: int
    partial_size: int
    """Bytes of bodies that were announced and are not complete."""
    client_capabilities: frozenset[str]

    @property
    def client_properties(self) -> Mapping[str, FieldValue]:
        """As its client has told them."""
        ...

    def largest_partial(self) -> int:
        """The channel with the largest body that is not complete; only where there is one."""
        ...

    def accept_login(self) -> None:
        """The credentials are good: tune the connection."""

    def refuse_login(self) -> None:
        """The credentials are not good: close with ACCESS_REFUSED."""

    def accept_open(self) -> None:
        """The vhost may be used."""

    def send(self, channel: int, method: Method, /) -> None:
        """Send a method on a channel."""

    def send_pieces(self, channel: int, pieces: Iterable[Bytes], /) -> None:
        """Encoded frames of a channel."""

    def confirm(self, channel: int, tag: int, /, *, multiple: bool = False) -> None:
        """A publish is durable, with `multiple` all up to it."""

    def refuse(self, channel: int, tag: int, /, *, multiple: bool = False) -> None:
        """A publish is refused: basic.nack."""

    def fail_channel(self, channel: int, code: int, text: str, method: type[Method] | None = None, /) -> None:
        """Close a channel with a code and a text."""

    def fail_connection(self, code: int, text: str, method: type[Method] | None = None, /) -> None:
        """Close the connection with a code and a text."""


class Sending(Protocol):
    """What goes out to one client, in order, and how much of it waits."""

    blocked: bool
    """The client does not read."""
    unsent: int
    """Bytes of deliveries of this turn, about."""
    sent_at: int
    sent: int
    writes: int

    @property
    def taken(self) -> int:
        """Of the bytes sent, those that the kernel has taken."""
        ...

    @property
    def full(self) -> bool:
        """Whether as much waits for the client as may."""
        ...

    def deliver(self, channel: int, pieces: Sequence[Bytes], size: int, /) -> None:
        """Encoded deliveries of a channel, with about so many bytes of messages."""

    def deliver_one(
        self, channel: int, encoder: DeliveryEncoder, tag: int, again: bool, topic: Topic, header: bytes, body: bytes, /
    ) -> None:
        """One delivery of a channel."""

    def send(self, channel: int, method: Method, /) -> None:
        """A method frame, in order with deliveries."""

    def confirm_up_to(self, channel: int, sequence: int, /) -> None:
        """Everything that was published up to a number is durable."""

    def take_machine_output(self) -> None:
        """What the machine has to say goes behind the deliveries so far."""

    def mark_dirty(self) -> None:
        """See that it leaves at the end of the turn."""

    def speak(self) -> None:
        """The same, whatever became of it before."""

    def count_unsent(self) -> None:
        """Charge what waits to the budget."""

    def end(self) -> None:
        """The link is gone: nothing is written any more, and nothing waits."""

    def part(self) -> None:
        """The session is over, and is not held by what comes late."""


class Apart(Client, Sending, Guarded, Link, Protocol):
    """A client whose bytes another process reads: all of it in one."""
