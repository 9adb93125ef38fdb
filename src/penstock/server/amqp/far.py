"""One client at a door that is a process, as its session knows it: its machine, what goes out and its link in one.

What is said to it goes to its door in order, with what is said to others (`doorway`).  What the client could not hear
any more is dropped there, where that is known.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from penstock.records.field_tables import NO_FIELDS, FieldValue, decode_table
from penstock.server.amqp import way
from penstock.server.amqp.incoming import GONE
from penstock.server.amqp.links import SEND_MOST
from penstock.server.amqp.way import Down
from penstock.server.doors.line import Broken

if TYPE_CHECKING:
    from penstock.records.entries import Topic
    from penstock.records.password_hashes import Slow
    from penstock.records.remembered import Remembered
    from penstock.server.amqp.connection import Connection
    from penstock.server.base.faults import Asker
    from penstock.server.sockets.tls import Peer
    from penstock.wire.amqp.deliver import DeliveryEncoder
    from penstock.wire.amqp.events import Target
    from penstock.wire.amqp.frames import Bytes, Limits, Method


MARKED_FROM = SEND_MOST // 2
"""Bytes on their way from which the door says when it has them."""


class Out(Protocol):
    """What goes to a door."""

    delivered: list[Far]
    """Those with many bytes of deliveries on their way."""

    deliveries: way.Deliveries | None
    """The last of what goes out, where that are deliveries."""

    def add(self, pieces: Sequence[Bytes]) -> None:
        """Append frames behind all that was said before."""

    def confirm(self, session: int, channel: int, tag: int, how: int) -> None:
        """The outcome of a publish, in the same order."""

    confirms: way.Rows | None
    """The same of outcomes of publishes."""

    def begin_confirms(self) -> way.Rows:
        """Columns for outcomes, in the same order."""
        ...

    heads: Remembered[Topic, bytes]
    """Of first deliveries: what stands behind the tag of one with this topic, where that is known."""

    def head(self, again: bool, topic: Topic) -> bytes:
        """What stands behind the tag."""
        ...

    def begin_deliveries(self) -> way.Deliveries:
        """Columns for deliveries, in the same order."""
        ...


class Stage(IntEnum):
    """What a session of a door may bring now."""

    FRESH = 0  # LOGIN
    ASKED = 1  # nothing: its login is being judged
    IN = 2  # VHOST
    ASKS = 3  # nothing: its vhost is being judged
    OPEN = 4  # everything of channels
    OVER = 5  # its last word is said


class Far:
    """One client at a door."""

    __slots__ = (
        "_held", "_marked", "_over", "_way", "blocked", "channel_max", "client_capabilities", "connection", "derived",
        "faulty", "frame_max", "heartbeat", "largest", "mechanism", "number", "opened", "partial_size", "sent",
        "sent_at", "slow", "stage", "targets", "told", "unsent", "waiting", "writes",
    )  # fmt: skip

    def __init__(self, doorway: Out, number: int, limits: Limits) -> None:
        self.told = NO_FIELDS  # what the client says of itself, a table
        self.client_capabilities: frozenset[str] = frozenset()
        self.mechanism = ""
        self.frame_max = limits.frame_max
        self.channel_max = limits.channel_max
        self.heartbeat = 0
        self.opened = 0  # a bit for each channel, as the door says; what it said of them may wait to be acted on
        self.partial_size = 0  # bytes of bodies begun, as the door says
        self.largest = 0  # the channel with the most of them
        self.stage = Stage.FRESH
        self.targets: Sequence[Target] = ()
        self.connection: Connection
        self.derived: Callable[[bytes | None], None] | None = None  # who waits for a digest
        self.faulty = False  # its session was ended by a fault
        self._held = False
        # what goes out
        self.blocked = False  # the peer does not read, or its door does not
        self.slow = False  # the peer does not
        self.unsent = 0  # bytes of deliveries that the door may not have given to the client's socket
        self._marked = 0  # of them, those before an ECHO
        self.sent_at = 0
        self.sent = self.writes = self.waiting = 0  # as the door says
        self.number = number
        self._way = doorway
        self._over = False

    @property
    def client_properties(self) -> dict[str, FieldValue]:
        """What the client says of itself."""
        return decode_table(self.told)

    @property
    def asker(self) -> Asker:
        """Its session."""
        return getattr(self, "connection", GONE)  # none once it has parted

    # -- what it is told

    def _say(self, kind: Down, payload: bytes = b"", channel: int = 0, count: int = 0) -> None:
        if not self._over:
            self._way.add((way.head(kind, len(payload), self.number, channel, count), payload))

    def send(self, channel: int, method: Method) -> None:
        """A method, in order with all that was said."""
        self._say(Down.METHOD, method.encode(), channel)

    def send_pieces(self, channel: int, pieces: Iterable[Bytes]) -> None:
        """Encoded frames of a channel."""
        some = list(pieces)
        if some and not self._over:
            self._way.add((way.head(Down.PIECES, sum(map(len, some)), self.number, channel), *some))

    def deliver(self, channel: int, pieces: Sequence[Bytes], size: int) -> None:
        """Encoded deliveries with about so many bytes of content."""
        if self._over:
            return
        self.unsent += size
        if self.unsent > MARKED_FROM and not self._marked:
            self._way.delivered.append(self)
        data = b"".join(pieces)
        self._way.add((way.head(Down.PIECES, len(data), self.number, channel), data))

    def deliver_one(
        self, channel: int, encoder: DeliveryEncoder, tag: int, again: bool, topic: Topic, header: bytes, body: bytes
    ) -> None:
        """One delivery, among those to others."""
        if self._over:
            return
        self.unsent += len(header) + len(body)
        if self.unsent > MARKED_FROM and not self._marked:
            self._way.delivered.append(self)
        out = self._way
        head = (out.heads.get(topic) if not again else None) or out.head(again, topic)
        columns = out.deliveries or out.begin_deliveries()
        columns.rows.append((self.number, channel, tag))
        columns.data += (encoder.name, head, header, body)

    def confirm(self, channel: int, tag: int, *, multiple: bool = False) -> None:
        """A publish of this channel is durable."""
        if not self._over:
            self._way.confirm(self.number, channel, tag, way.MULTIPLE if multiple else 0)

    def confirm_up_to(self, channel: int, sequence: int) -> None:
        """So are all up to a number."""
        if not self._over:
            out = self._way
            (out.confirms or out.begin_confirms()).rows.append((self.number, channel, sequence, way.MULTIPLE))

    def refuse(self, channel: int, tag: int, *, multiple: bool = False) -> None:
        """A publish of this channel is refused."""
        if not self._over:
            self._way.confirm(self.number, channel, tag, way.REFUSED | (way.MULTIPLE if multiple else 0))

    def fail_channel(self, channel: int, code: int, text: str, method: type[Method] | None = None, /) -> None:
        """The door sends channel.close with a code and a text."""
        self._fail(Down.FAIL_CHANNEL, channel, code, text, method)

    def fail_connection(self, code: int, text: str, method: type[Method] | None = None, /) -> None:
        """The door sends connection.close with a code and a text."""
        self._fail(Down.FAIL, 0, code, text, method)

    def _fail(self, kind: Down, channel: int, code: int, text: str, method: type[Method] | None) -> None:
        if not self._over:
            self._way.add((way.fail_piece(kind, self.number, channel, code, text, method.ID if method else 0),))

    def accept_login(self) -> None:
        """It is who it says."""
        if self.stage is Stage.ASKED:
            self.stage = Stage.IN
            self._say(Down.LET_IN)

    def refuse_login(self) -> None:
        """It is not who it says: the door answers late."""
        if self.stage is Stage.ASKED:
            self.stage = Stage.OVER
            self._say(Down.REFUSE)

    def accept_open(self) -> None:
        """The vhost is open, and channels may begin."""
        if self.stage is Stage.ASKS:
            self.stage = Stage.OPEN
            self._say(Down.LET_OPEN)

    def largest_partial(self) -> int:
        """The channel with the largest body begun, as the door has told."""
        return self.largest

    # -- as the stranger that the door guards

    def derive(self, how: Slow, heard: Callable[[bytes | None], None]) -> None:
        """Have its door make a digest of the password that it has told."""
        if self._over:
            heard(None)
        else:
            self.derived = heard
            self._way.add((way.slow_piece(self.number, how),))

    def known(self) -> None:
        """It has logged in, so that the bounds of strangers end."""
        self._say(Down.KNOWN)

    @property
    def held(self) -> bool:
        """Whether it waits for us, so that its time is not counted."""
        return self._held

    @held.setter
    def held(self, held: bool) -> None:
        if held != self._held:
            self._held = held
            self._say(Down.HELD, count=int(held))

    def tell(self, why: str) -> None:
        """Its door tells of strangers."""

    # -- what goes out

    @property
    def taken(self) -> int:
        """Bytes that the client's kernel has taken, as the door said last."""
        return self.sent - self.waiting

    @property
    def full(self) -> bool:
        """Whether as much waits for the peer as may."""
        return (self.blocked or self.unsent > SEND_MOST) and not self._over

    def mark_dirty(self) -> None:
        """It leaves at the end of the turn in any case."""

    def speak(self) -> None:
        """The same."""

    def take_machine_output(self) -> None:
        """It is in its order."""

    def count_unsent(self) -> None:
        """The door tells how much waits for the client; what waits for the door counts for the way."""

    def end(self) -> None:
        """The client is gone: nothing is said to it any more."""
        self._over = True

    def part(self) -> None:
        """The session is over: it and this are not each other's garbage."""
        del self.connection

    def mark(self) -> None:
        """Have the door say when it has all of this."""
        if not self._marked:
            self._marked = self.unsent
            self._say(Down.ECHO)

    def echo(self) -> bool:
        """It has; whether more may come now, and might not before."""
        was_full = self.full
        self.unsent -= self._marked
        self._marked = 0
        return was_full and not self.full

    # -- the link

    def write(self, data: bytes) -> None:
        """Nothing is written past the machine."""
        raise AssertionError("a door writes to its clients itself")

    def keep_below(self, size: int) -> None:
        """What waits for a client is bounded by its door."""

    def close(self) -> None:
        """Close the socket, once what was said is written."""
        self._say(Down.CLOSE)

    def abort(self) -> None:
        """Close the socket at once."""
        self._say(Down.ABORT)

    def end_writing(self) -> None:
        """Nothing follows: the door ends its side of the socket."""
        self._say(Down.END)

    def buffered(self) -> int:
        """Bytes that the kernel has not taken, when the door last said so."""
        return max(self.waiting, SEND_MOST + 1 if self.slow else 0)

    def pause_reading(self) -> None:
        """The door reads nothing of this client until it is told to."""
        self._say(Down.PAUSE)

    def resume_reading(self) -> None:
        """The door reads this client's bytes again."""
        self._say(Down.RESUME)


def peer_of(told: Any) -> Peer | None:
    """What a client has shown to its door."""
    if told is None:
        return None
    from penstock.server.sockets.tls import Peer  # for those who have TLS

    match told:
        case {"version": str(version), "cipher": str(cipher), "der": str(der)}:
            try:
                return Peer(version, cipher, b64decode(der, validate=True) or None)
            except ValueError:
                raise Broken("a certificate that is no base64") from None
        case _:
            raise Broken("a handshake that is none")
