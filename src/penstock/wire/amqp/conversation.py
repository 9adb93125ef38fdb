"""What both directions of a connection share: its handshake, its phase, its channels, and everything that is sent.

Owns who may still be spoken to, the two ways to close, what the server says of itself, and messages that come frame by
frame (bodies of several frames, and all that the walk declines).  Reads no frames: `machine.ServerConnection` does.
Knows no users and checks no password.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterable
from enum import Enum

from penstock.errors import ProtocolError
from penstock.records.field_tables import NO_FIELDS, FieldValue, decode_table, read_table
from penstock.records.properties import peeked
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.events import Target
from penstock.wire.amqp.frames import (
    ACCESS_REFUSED,
    BASIC,
    BODY,
    COMMAND_INVALID,
    CONTENT_LEAST,
    FRAME_END,
    FRAME_ERROR,
    FRAME_MAX_LEAST,
    HEADER,
    HEARTBEAT_FRAME,
    METHOD,
    NOT_ALLOWED,
    OVERHEAD,
    PROTOCOL_HEADER,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    Bytes,
    Limits,
    frame,
    reply_text,
)
from penstock.wire.amqp.methods import ConnectionStartOk, ConnectionTuneOk


class Content:
    """What has come of a message since its basic.publish.  `header` is None until the content header has come."""

    __slots__ = ("_body", "_whole", "charged", "header", "size", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.header: bytes | None = None  # property flags and list
        self.size = 0  # of the whole body, as announced
        self.charged = 0  # of it, what the connection has counted
        self._whole: bytes | None = None  # the body, if it came in one frame
        self._body = bytearray()  # one buffer, so that a million tiny frames cost no more than their bytes

    @property
    def complete(self) -> bool:
        """Whether the whole body has come."""
        return self._whole is not None or len(self._body) == self.size

    def take_header(self, kind: int, payload: bytes) -> None:
        """The content header.  ProtocolError 505 when it is another frame, 501 or 502 when it is malformed."""
        if kind != HEADER:
            raise ProtocolError(
                f"expected content header for class {BASIC}, got non content header frame instead",
                reply_code=UNEXPECTED_FRAME,
            )
        if len(payload) < CONTENT_LEAST:
            raise ProtocolError("a content header is cut short", reply_code=FRAME_ERROR)
        class_id = payload[0] << 8 | payload[1]
        if class_id != BASIC:
            raise ProtocolError(
                f"expected content header for class {BASIC}, got one for class {class_id} instead",
                reply_code=UNEXPECTED_FRAME,
            )
        header = payload[12:]
        peeked(header)
        self.header = header
        self.size = int.from_bytes(payload[4:12], "big")

    def take_body(self, kind: int, payload: bytes) -> None:
        """A body frame.  ProtocolError 505 when it is another frame, 501 when it is more than was announced."""
        if kind != BODY:
            raise ProtocolError(
                "expected content body, got non content body frame instead", reply_code=UNEXPECTED_FRAME
            )
        if len(self._body) + len(payload) > self.size:
            raise ProtocolError(
                f"body frames exceed the announced {self.size} bytes of the message", reply_code=FRAME_ERROR
            )
        if len(payload) == self.size:
            self._whole = payload
        else:
            self._body += payload

    def take(self) -> bytes:
        """The complete body."""
        return bytes(self._body) if self._whole is None else self._whole


class Phase(Enum):
    """Where a connection is; the value is the name that error texts use."""

    HEADER = "header"
    STARTING = "starting"
    LOGIN = "login"  # LoginAsked: the shell must answer
    TUNING = "tuning"
    OPENING = "opening"
    OPEN_ASKED = "open asked"  # OpenAsked: the shell must answer
    RUNNING = "running"
    PEER_CLOSED = "closed by the client"  # connection.close read, the shell must answer
    CLOSING = "closing"  # our connection.close sent
    FINISHED = "finished"  # nothing more is read; write what is due and close the socket


PAUSED = (Phase.LOGIN, Phase.OPEN_ASKED)
OPEN, PEER_CLOSED, FAILED = 1, 2, 3
"""States of a channel; see the diagram in `machine`."""


_pack_confirm = struct.Struct(">BHIIQBB").pack


class Conversation:
    """State and sending side of one connection."""

    def __init__(self, limits: Limits | None = None, *, version: str = "") -> None:
        self.limits = limits or Limits()
        self.phase = Phase.HEADER
        self.finished = False  # nothing more will be read or answered: write what is due and close the socket
        self.frame_max = self.limits.frame_max  # as negotiated, once OpenAsked was seen
        self.channel_max = self.limits.channel_max
        self.heartbeat = 0  # seconds, as negotiated; 0: none
        self.told = NO_FIELDS  # what the client says of itself, a table; as values it would take twenty times the room
        self.client_capabilities: frozenset[str] = frozenset()
        self.partial_size = 0  # bytes of bodies announced and not yet complete
        self.begun = 0  # how many bodies were announced
        self._version = version
        self.mechanism = ""
        self._payload_max = self.limits.handshake_frame - OVERHEAD
        self._kept = bytearray()  # an unfinished frame, or what waits for the shell's answer
        self._need = len(PROTOCOL_HEADER)  # bytes of `_kept` without which nothing can be read
        self._out: list[Bytes] = []
        self._channels: dict[int, int] = {}
        self._contents: dict[int, Content] = {}

    # what the shell reads

    @property
    def client_properties(self) -> dict[str, FieldValue]:
        """What the client says of itself."""
        return decode_table(self.told)

    @property
    def unread(self) -> bool:
        """Bytes wait that an answer of the shell has released: call `receive(b"")`."""
        return bool(self._kept) and len(self._kept) >= self._need and self.phase not in PAUSED and not self.finished

    def is_open(self, channel: int) -> bool:
        """Whether methods may be sent on a channel."""
        return self._channels.get(channel, FAILED) != FAILED and self.phase is not Phase.FINISHED

    def take_output(self) -> bytes:
        """Everything due to the peer, in order; empty when nothing is."""
        out = self._out
        if not out:
            return b""
        self._out = []
        return b"".join(out)

    # what the shell says

    def accept_login(self) -> None:
        """The credentials of LoginAsked are good.  Then call `receive(b"")` if `unread`."""
        if self.phase is Phase.LOGIN:
            limits = self.limits
            self._answer(0, m.ConnectionTune(limits.channel_max, limits.frame_max, limits.heartbeat))
            self.phase = Phase.TUNING

    def refuse_login(self) -> None:
        """They are not.  A client that announced it can take it gets 403, any other a closed socket."""
        if self.phase is not Phase.LOGIN:
            return
        if "authentication_failure_close" not in self.client_capabilities:
            self._finish()
            return
        self.fail_connection(
            ACCESS_REFUSED,
            f"Login was refused using authentication mechanism {self.mechanism}. For details see the broker logfile.",
            m.ConnectionStartOk,
        )

    def accept_open(self) -> None:
        """The vhost of OpenAsked may be used.  Then call `receive(b"")` if `unread`."""
        if self.phase is Phase.OPEN_ASKED:
            self._answer(0, m.ConnectionOpenOk())
            self.phase = Phase.RUNNING
            self._payload_max = self.frame_max - OVERHEAD

    def send(self, channel: int, method: m.Method) -> None:
        """Send a method; dropped when the channel or the connection is no longer there to hear it."""
        if channel:
            state = self._channels.get(channel)
            if state is None or state == FAILED:
                return
            if type(method) is m.ChannelCloseOk:
                if state != PEER_CLOSED:
                    return
                del self._channels[channel]
            self._answer(channel, method)
        elif self.phase in (Phase.RUNNING, Phase.PEER_CLOSED):
            self._answer(0, method)
            if type(method) is m.ConnectionCloseOk:
                self._finish()

    def send_pieces(self, channel: int, pieces: Iterable[Bytes]) -> None:
        """Send encoded frames of a channel, as `deliver` makes them; dropped as in `send`."""
        if self._channels.get(channel, FAILED) != FAILED:
            self._out += pieces

    def confirm(self, channel: int, tag: int, *, multiple: bool = False) -> None:
        """basic.ack of a publish, with `multiple` of all up to it."""
        if self._channels.get(channel, FAILED) != FAILED:
            self._out.append(_pack_confirm(METHOD, channel, 13, m.BasicAck.ID, tag, multiple, FRAME_END))

    def refuse(self, channel: int, tag: int, *, multiple: bool = False) -> None:
        """basic.nack of a publish, with `multiple` of all up to it."""
        if self._channels.get(channel, FAILED) != FAILED:
            self._out.append(_pack_confirm(METHOD, channel, 13, m.BasicNack.ID, tag, multiple, FRAME_END))

    def send_heartbeat(self) -> None:
        """A heartbeat, unless the connection is over."""
        if self.phase is not Phase.FINISHED:
            self._out.append(HEARTBEAT_FRAME)

    def fail_channel(self, channel: int, code: int, text: str, method: type[m.Method] | None = None) -> None:
        """Send channel.close, naming the offending method; frames of the channel are ignored until close-ok.

        Nothing happens when the channel is absent or has failed already.  Causes no event: the caller knows.
        """
        self._close_channel(channel, code, text, method.ID if method else 0)

    def in_use(self, channel: int) -> bool:
        """Whether a channel is open, and neither side has said that it ends."""
        return self._channels.get(channel, FAILED) not in (FAILED, PEER_CLOSED)

    def fail_connection(self, code: int, text: str, method: type[m.Method] | None = None) -> None:
        """Send connection.close; everything but close and close-ok is ignored from now on.  Causes no event."""
        self._close_connection(code, text, method.ID if method else 0)

    # closing

    def _close_channel(self, channel: int, code: int, text: str, method: int) -> None:
        state = self._channels.get(channel, FAILED)
        if state == FAILED:
            return
        self._forget_content(channel)
        self._answer(channel, m.ChannelClose(code, reply_text(code, text), method >> 16, method & 0xFFFF))
        if state == PEER_CLOSED:
            self._answer(channel, m.ChannelCloseOk())
        self._channels[channel] = FAILED

    def _close_connection(self, code: int, text: str, method: int) -> None:
        if self.phase in (Phase.CLOSING, Phase.FINISHED):
            return
        if self.phase is Phase.PEER_CLOSED:
            self._answer(0, m.ConnectionCloseOk())
            self._finish()
            return
        if self.phase is Phase.HEADER:
            self._finish()
            return
        self._answer(0, m.ConnectionClose(code, reply_text(code, text), method >> 16, method & 0xFFFF))
        self._release()
        self.phase = Phase.CLOSING

    def _finish(self) -> None:
        self._release()
        self._kept.clear()
        self.phase, self.finished = Phase.FINISHED, True

    def _forget_content(self, channel: int) -> None:
        content = self._contents.pop(channel, None)
        if content is not None:
            self.partial_size -= content.charged

    def largest_partial(self) -> int:
        """The channel with the largest body that was announced and is not complete; only when there is one."""
        return max(self._contents, key=lambda channel: self._contents[channel].charged)

    def _release(self) -> None:
        self._channels.clear()
        self._contents.clear()
        self.partial_size = 0

    def _answer(self, channel: int, method: m.Method) -> None:
        self._out.append(frame(METHOD, channel, method.encode()))


MECHANISMS = b"PLAIN AMQPLAIN"

EXTERNAL = "EXTERNAL"
"""The user is who the client's certificate says it is (RFC 4422, appendix A); for clients that showed one."""

_FOREIGN = {
    "TLS": rb"\x16\x03",  # a record of a handshake, version 3.x (RFC 8446, 5.1)
    "AMQP 1.0": rb"AMQP[\x00\x02\x03]\x01\x00\x00",
    "RabbitMQ's stream protocol": rb"[\x00-\xff]{4}\x00\x11\x00\x01",  # a length, then its command 17, version 1
    "MQTT": rb"\x10[\x80-\xff]{0,3}[\x00-\x7f]\x00[\x04\x06]M",
    "STOMP": rb"(CONNECT|STOMP)\r?\n",
    "the PROXY protocol": rb"PROXY |\r\n\r\n\x00\r\nQ",
    "HTTP": rb"[A-Z]+ ",
}
"""How clients of other protocols begin: the first that fits, so those in any capitals come last."""


def foreign(header: bytes) -> str:
    """What is wrong with eight bytes that begin no AMQP 0-9-1, as a sentence for the log."""
    for name, begins in _FOREIGN.items():
        if re.match(begins, header):
            return f"it speaks {name}, and this port does not"
    return f"what begins with {header!r} is not AMQP 0-9-1"


def silence(heartbeat: int) -> str:
    """Why a client is cut off that has said nothing, for the log.  heartbeat: seconds."""
    return f"nothing came from it for twice its heartbeat of {heartbeat} s"


_CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
"""What clients switch features on by; pika, for one, refuses confirms where they are not announced."""

QOS_OF_RUNNING = "basic.qos of running consumers"
"""It takes basic.qos without `global` to hold for the consumers of the channel that run, too."""

_KNOWN = {"py-amqp": frozenset([QOS_OF_RUNNING])}
"""By library.  kombu, and so Celery, asks for the server's name, and of all but RabbitMQ expects what AMQP says of
basic.qos: that it is for the channel.  At RabbitMQ it says `global` instead."""


def server_properties(version: str) -> dict[str, FieldValue]:
    """The table of connection.start."""
    return {
        "capabilities": dict[str, FieldValue].fromkeys(_CAPABILITIES, True),
        "product": "Penstock",
        "version": version,
        "platform": f"Python {sys.version_info.major}.{sys.version_info.minor}",
        "information": "Apache License 2.0",
        "copyright": "The Penstock authors",
    }


def credentials(start: ConnectionStartOk, *, external: bool = False) -> tuple[str, str]:
    """User and password of start-ok, both empty for EXTERNAL, which must be offered.

    ProtocolError 503 for an unknown mechanism, 502 for a response without form.  What an EXTERNAL response says is not
    looked at, as by RabbitMQ: some clients send the user's name there, others nothing.
    """
    if external and start.mechanism == EXTERNAL:
        return "", ""
    if start.mechanism == "PLAIN":
        parts = start.response.split(b"\x00")  # RFC 4616: an identity to act as (not offered), user, password
        if len(parts) != 3 or parts[0]:
            raise ProtocolError("the PLAIN response is not NUL user NUL password", reply_code=SYNTAX_ERROR)
        try:
            return parts[1].decode(), parts[2].decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("user or password is not UTF-8", reply_code=SYNTAX_ERROR) from error
    if start.mechanism == "AMQPLAIN":  # a field table without its size
        table, _ = read_table(len(start.response).to_bytes(4, "big") + start.response)
        user, password = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(user, str) or not isinstance(password, str):
            raise ProtocolError("the AMQPLAIN response has no LOGIN and PASSWORD", reply_code=SYNTAX_ERROR)
        return user, password
    raise ProtocolError(f"unknown authentication mechanism '{start.mechanism}'", reply_code=COMMAND_INVALID)


def client_capabilities(properties: dict[str, FieldValue]) -> frozenset[str]:
    """Of the capabilities that there are those which a client announces as true, and what its library is known for."""
    table, known = properties.get("capabilities"), _KNOWN.get(str(properties.get("product")), frozenset())
    if not isinstance(table, dict):
        return known
    return known.union([name for name in _CAPABILITIES if table.get(name) is True])


def check_tune(tuned: ConnectionTuneOk, limits: Limits) -> None:
    """ProtocolError 530 when the client asks for more than was offered, or for frames below the protocol's least."""
    for name, asked, allowed in (
        ("frame_max", tuned.frame_max, limits.frame_max),
        ("channel_max", tuned.channel_max, limits.channel_max),
    ):
        if asked == 0 or asked > allowed:
            shown = "0 (no limit)" if asked == 0 else str(asked)
            raise ProtocolError(
                f"negotiated {name} = {shown} is higher than the maximum allowed value ({allowed})",
                reply_code=NOT_ALLOWED,
            )
    if tuned.frame_max < FRAME_MAX_LEAST:
        raise ProtocolError(
            f"negotiated frame_max = {tuned.frame_max} is lower than the minimum allowed value ({FRAME_MAX_LEAST})",
            reply_code=NOT_ALLOWED,
        )
