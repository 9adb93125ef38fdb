"""What both directions of a connection share: its phase, its channels, and everything that is sent.

Owns who may still be spoken to, and the two ways to close.  Reads no bytes: `machine.ServerConnection` does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import Enum

from penstock.records.field_tables import FieldValue
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.content import Content
from penstock.wire.amqp.frames import FRAME_END, HEARTBEAT_FRAME, METHOD, OVERHEAD, PROTOCOL_HEADER, Limits, frame
from penstock.wire.amqp.replies import ACCESS_REFUSED, reply_text


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
        self.frame_max = self.limits.frame_max  # as negotiated, once OpenAsked was seen
        self.channel_max = self.limits.channel_max
        self.heartbeat = 0  # seconds, as negotiated; 0: none
        self.client_properties: dict[str, FieldValue] = {}
        self.client_capabilities: frozenset[str] = frozenset()
        self.partial_size = 0  # bytes of bodies announced and not yet complete
        self._version = version
        self.mechanism = ""
        self._payload_max = self.limits.handshake_frame - OVERHEAD
        self._kept = bytearray()  # an unfinished frame, or what waits for the shell's answer
        self._need = len(PROTOCOL_HEADER)  # bytes of `_kept` without which nothing can be read
        self._out: list[bytes] = []
        self._channels: dict[int, int] = {}
        self._contents: dict[int, Content] = {}

    # what the shell reads

    @property
    def finished(self) -> bool:
        """Nothing more will be read or answered: write what is due and close the socket."""
        return self.phase is Phase.FINISHED

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
        return out[0] if len(out) == 1 else b"".join(out)

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

    def send_pieces(self, channel: int, pieces: Iterable[bytes]) -> None:
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
        self.phase = Phase.FINISHED

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
