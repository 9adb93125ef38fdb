"""What the machine tells the server's shell: plain values, in the order of the bytes that caused them.

A shell that has failed or closed a channel drops later events of it until `ChannelOpened`; one that has failed the
connection drops all the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from penstock.records.dataclass import dataclass
from penstock.records.one_or_each import rows_at
from penstock.wire.amqp.methods import Method

if TYPE_CHECKING:
    from penstock.records.entries import Topic  # with Arrow, which a door's process does without


@dataclass(slots=True, eq=False)
class Target:
    """Where a publish goes: one object per distinct method frame of a connection, for as long as the cache holds it."""

    frame: bytes  # the whole basic.publish frame: the key of the cache
    channel: int
    exchange: str
    key: str
    mandatory: bool
    topic: Topic | None = None  # the session's: the interned topic, or None before it was looked up
    version: int = -1  # the session's: the topology version `topic` was looked up under


@dataclass(frozen=True, slots=True)
class LoginAsked:
    """Answer with `accept_login` or `refuse_login`; nothing is read until then."""

    mechanism: str
    user: str
    password: str


@dataclass(frozen=True, slots=True)
class OpenAsked:
    """Answer with `accept_open` or `fail_connection(530, ...)`; nothing is read until then."""

    vhost: str


@dataclass(frozen=True, slots=True)
class ChannelOpened:
    """A channel begins; the machine has answered."""

    channel: int


@dataclass(frozen=True, slots=True)
class MethodReceived:
    """A method that the machine does not handle itself; channel 0 for connection.update-secret."""

    channel: int
    method: Method


@dataclass(slots=True, eq=False)
class PublishRun:
    """Messages published on one channel, in order.

    `targets` and `properties` are one value where all rows agree and lists of len(bodies) otherwise; property bytes are
    well formed.  `plain` is the delivery mode of all rows if it is known that their headers ask for nothing else.
    """

    channel: int
    targets: Target | list[Target]
    properties: bytes | list[bytes]
    bodies: list[bytes]
    early: bool = False  # the shell's: it came before its channel asked for confirms or transactions
    plain: int = -1  # as `plain_mode` says it of every header
    told: int = 0  # rows for which that holds, from the first on

    def target_of(self, row: int) -> Target:
        """The target of one row."""
        return self.targets[row] if isinstance(self.targets, list) else self.targets  # each row asks: no call

    def properties_of(self, row: int) -> bytes:
        """The header of one row."""
        return self.properties[row] if isinstance(self.properties, list) else self.properties

    def part(self, low: int, high: int) -> PublishRun:
        """Rows low..high-1."""
        rows = slice(low, high)
        targets, properties = rows_at(self.targets, rows), rows_at(self.properties, rows)
        return PublishRun(self.channel, targets, properties, self.bodies[rows], self.early, self.plain)


@dataclass(slots=True, eq=False)
class AckRun:
    """basic.ack, many at once.  A span (lo, hi) is the tags lo..hi inclusive; (0, hi) all up to hi; (0, 0) all."""

    channel: int
    spans: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ChannelFailed:
    """The machine has sent channel.close; frames of the channel are ignored until the client's close-ok."""

    channel: int
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class ChannelClosed:
    """The client closes a channel.  Answer with `send(channel, ChannelCloseOk())` after what is still due to it."""

    channel: int
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """The connection cannot go on.  With `drop` the stream of frames is lost: write what is due and close the socket;
    otherwise wait for `ConnectionClosed`, not for ever.
    """

    code: int
    text: str
    drop: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The client closes (answer with `send(0, ConnectionCloseOk())`), or has answered our close (`code` 0)."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """The peer lives.  Any other traffic says the same."""


Event: TypeAlias = (
    LoginAsked
    | OpenAsked
    | ChannelOpened
    | MethodReceived
    | PublishRun
    | AckRun
    | ChannelFailed
    | ChannelClosed
    | ConnectionFailed
    | ConnectionClosed
    | HeartbeatReceived
)
