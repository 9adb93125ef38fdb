"""`ServerConnection`: the server's side of one AMQP 0-9-1 connection, without a socket.

Bytes in, events out; methods and pieces in, bytes out.  Owns the order of the handshake, which channels are open, the
assembly of bodies, and the judgement of everything that can be judged without the broker: a peer that breaks the
protocol is answered here, with the reply code of RabbitMQ, and the smallest scope closes.  Refuses to know queues,
exchanges, users, time and sockets.

    connection   header -> starting -> (login asked) -> tuning -> opening -> (open asked) -> running -> closing | closed
    channel      absent -> open -> closed by the client, until our close-ok -> absent
                            '---> failed by us, until the client's close-ok -> absent

Nothing here raises for what a peer sends.  Nothing is kept beyond `Limits`: one unfinished frame, announced bodies up
to `max_partial_size`, or one that is larger, `target_cache` targets.
"""

from __future__ import annotations

import struct

from penstock.errors import ProtocolError
from penstock.records.field_tables import encode_table
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.conversation import (
    EXTERNAL,
    FAILED,
    MECHANISMS,
    OPEN,
    PAUSED,
    PEER_CLOSED,
    Content,
    Conversation,
    Phase,
    check_tune,
    client_capabilities,
    credentials,
    foreign,
    server_properties,
)
from penstock.wire.amqp.events import (
    AckRun,
    ChannelClosed,
    ChannelFailed,
    ChannelOpened,
    ConnectionClosed,
    ConnectionFailed,
    Event,
    HeartbeatReceived,
    LoginAsked,
    MethodReceived,
    OpenAsked,
)
from penstock.wire.amqp.frames import (
    BODY,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_END,
    FRAME_ERROR,
    HEADER,
    HEARTBEAT,
    METHOD,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    OLD_PROTOCOL_HEADER,
    OVERHEAD,
    PRECONDITION_FAILED,
    PROTOCOL_HEADER,
    RESOURCE_ERROR,
    UNEXPECTED_FRAME,
    Limits,
    frame,
    read_border,
    reply_text,
)
from penstock.wire.amqp.publishes import PLAN_HEAD, Lone, PublishReader, ack_prefix, walk_acks

_read_u32 = struct.Struct(">I").unpack_from
LONE_LEAST = PLAN_HEAD
"""No message is shorter."""

_HEARD = HeartbeatReceived()
_PUBLISH_ID = m.BasicPublish.ID
_ACK_ID = m.BasicAck.ID


class ServerConnection(Conversation):
    """One connection: `receive` bytes, act on the events, write `take_output()`; close the socket when `finished`."""

    def __init__(self, limits: Limits | None = None, *, version: str = "", external: bool = False) -> None:
        """external: the client has shown a certificate, which may be its login."""
        super().__init__(limits, version=version)
        self._external = external
        self._handshake_left = self.limits.handshake_bytes
        self._events: list[Event] = []
        self._publishes = PublishReader(self.limits)

    def receive(self, data: bytes) -> list[Event]:
        """Events of the bytes so far, in order; unfinished frames are kept for the next call.  Never raises."""
        if self.finished or self.phase is Phase.PEER_CLOSED:
            return []
        events: list[Event] = []
        self._events = events
        self._publishes.begin(events)
        if self.phase not in (Phase.RUNNING, Phase.CLOSING):
            self._handshake_left -= len(data)
            if self._handshake_left < 0:
                self._failed(ProtocolError("too many bytes before connection.open", reply_code=FRAME_ERROR), 0, 0)
                return events
        if self._kept:
            self._kept += data
            if len(self._kept) < self._need or self.phase in PAUSED:
                return events
            data = bytes(self._kept)
            self._kept.clear()
        pos = self._read(data)
        if self.phase is not Phase.FINISHED and pos < len(data):
            self._kept += data[pos:] if pos else data
        self._publishes.end()
        self._events = []
        return events

    def lone_message(self, data: bytes) -> Lone | None:
        """What `receive` would tell first, as one run of one row, if `data` begins with a message like one before.

        If it is not all of `data`, ask `lone_acks` what is behind it.  Nothing changes by this, nor by that `receive`
        would; None: `receive` has to judge it.
        """
        if self.phase is not Phase.RUNNING or self._kept or self._contents or len(data) < LONE_LEAST:
            return None
        found = self._publishes.lone(data, self._payload_max)
        return found if found is not None and self._channels.get(found[0].channel) == OPEN else None

    def lone_acks(self, data: bytes, start: int = 0) -> AckRun | None:
        """What `receive` would tell of `data` from `start` on, if it is nothing but regular acks of the channel at its
        beginning; as `lone_message`."""
        channel = data[1] << 8 | data[2]
        if self._channels.get(channel) != OPEN or self._kept or self._contents or self.phase is not Phase.RUNNING:
            return None
        spans: list[tuple[int, int]] = []
        after = walk_acks(data, start, ack_prefix(channel), spans)
        return AckRun(channel, spans) if spans and after == len(data) else None

    def _read(self, data: bytes) -> int:
        """Act on every whole frame; the position after the last.  `_need` is then how many bytes the next one takes."""
        pos, end = 0, len(data)
        if self.phase is Phase.HEADER:
            self._need = len(PROTOCOL_HEADER)
            if end < self._need:
                return 0
            pos = self._need
            self._protocol_header(data[:pos])
        while self.phase not in PAUSED:
            if self.phase in (Phase.FINISHED, Phase.PEER_CLOSED):
                return end
            self._need = 7
            if end - pos < 7:
                return pos
            kind, channel, size = read_border(data, pos)
            method = 0
            try:
                if size > self._payload_max:
                    limit = self._payload_max + OVERHEAD
                    raise ProtocolError(
                        f"type {kind}, channel {channel}: frame of {size + OVERHEAD} bytes, limit {limit}",
                        reply_code=FRAME_ERROR,
                    )
                if kind == METHOD and size >= 4 and end - pos >= 11:
                    method = _read_u32(data, pos + 7)[0]
                if method in (_PUBLISH_ID, _ACK_ID):
                    after = self._fast(data, pos, channel, method)
                    if after > pos:
                        pos = after
                        continue
                after = pos + OVERHEAD + size
                if after > end:
                    self._need = OVERHEAD + size
                    return pos
                if data[after - 1] != FRAME_END:
                    raise ProtocolError(
                        f"type {kind}, channel {channel}: end octet {data[after - 1]:#04x}, expected 0xce",
                        reply_code=FRAME_ERROR,
                    )
                self._frame(kind, channel, data[pos + 7 : after - 1], method)
                pos = after
            except ProtocolError as error:
                self._failed(error, channel, method or (_PUBLISH_ID if channel in self._contents else 0))
                pos = min(pos + OVERHEAD + size, end)
        self._need = 0
        return pos

    def _protocol_header(self, header: bytes) -> None:
        if header not in (PROTOCOL_HEADER, OLD_PROTOCOL_HEADER):
            self._out.append(PROTOCOL_HEADER)
            self._finish()
            self._events.append(ConnectionFailed(FRAME_ERROR, foreign(header), drop=True))
            return
        mechanisms = MECHANISMS + b" " + EXTERNAL.encode() if self._external else MECHANISMS
        self._answer(0, m.ConnectionStart(0, 9, server_properties(self._version), mechanisms))
        self.phase = Phase.STARTING

    def _fast(self, data: bytes, pos: int, channel: int, method: int) -> int:
        """Take publishes or acks in bulk; `pos` when nothing regular begins there."""
        if self._channels.get(channel) != OPEN or channel in self._contents or self.phase is not Phase.RUNNING:
            return pos
        if method == _PUBLISH_ID:
            return self._publishes.walk(data, pos, channel, self._payload_max)
        spans: list[tuple[int, int]] = []
        after = walk_acks(data, pos, ack_prefix(channel), spans)
        if spans:
            self._acknowledge(channel, spans)
        return after

    def _acknowledge(self, channel: int, spans: list[tuple[int, int]]) -> None:
        last = self._events[-1] if self._events else None
        if type(last) is AckRun and last.channel == channel:
            last.spans += spans
        else:
            self._events.append(AckRun(channel, spans))

    # frame by frame

    def _frame(self, kind: int, channel: int, payload: bytes, method: int) -> None:
        """One whole frame of any kind in any phase.  Errors: ProtocolError for the scope that must close."""
        if kind == HEARTBEAT:
            if channel:
                raise ProtocolError(f"heartbeat on channel {channel}", reply_code=UNEXPECTED_FRAME)
            if payload:
                raise ProtocolError("heartbeat with a payload", reply_code=FRAME_ERROR)
            self._events.append(_HEARD)
        elif kind not in (METHOD, HEADER, BODY):
            raise ProtocolError(f"unknown frame type {kind}", reply_code=FRAME_ERROR)
        elif self.phase is Phase.CLOSING:
            self._closing_frame(kind, channel, method)
        elif self.phase is not Phase.RUNNING:
            self._handshake_frame(kind, channel, payload)
        elif channel == 0:
            self._connection_frame(kind, payload)
        else:
            state = self._channels.get(channel)
            if state == OPEN:
                self._channel_frame(kind, channel, payload)
            elif state == FAILED:
                self._failed_channel_frame(kind, channel, method)
            elif state is None:
                self._first_channel_frame(kind, channel, payload, method)
            # else: the client has closed it and may not go on; what it sends before our close-ok is not looked at

    def _closing_frame(self, kind: int, channel: int, method: int) -> None:
        if kind != METHOD or channel:
            return
        if method == m.ConnectionClose.ID:
            self._out.append(frame(METHOD, 0, m.ConnectionCloseOk().encode()))
        elif method != m.ConnectionCloseOk.ID:
            return
        self._finish()
        self._events.append(ConnectionClosed(0, ""))

    def _handshake_frame(self, kind: int, channel: int, payload: bytes) -> None:
        state = self.phase.value
        if kind != METHOD or channel:
            raise ProtocolError(f"unexpected frame in connection state {state}", reply_code=CHANNEL_ERROR)
        method = m.decode_method(payload)
        if isinstance(method, m.ConnectionClose):
            self._closed_by_peer(method)
        elif isinstance(method, m.ConnectionStartOk) and self.phase is Phase.STARTING:
            self.told = encode_table(method.client_properties)
            self.client_capabilities = client_capabilities(method.client_properties)
            self.mechanism = method.mechanism
            user, password = credentials(method, external=self._external)
            self.phase = Phase.LOGIN
            self._events.append(LoginAsked(method.mechanism, user, password))
        elif isinstance(method, m.ConnectionTuneOk) and self.phase is Phase.TUNING:
            check_tune(method, self.limits)
            self.frame_max, self.channel_max = method.frame_max, method.channel_max
            self.heartbeat = method.heartbeat
            self._payload_max = min(self._payload_max, self.frame_max - OVERHEAD)
            self.phase = Phase.OPENING
        elif isinstance(method, m.ConnectionOpen) and self.phase is Phase.OPENING:
            self.phase = Phase.OPEN_ASKED
            self._events.append(OpenAsked(method.virtual_host))
        else:
            raise ProtocolError(f"unexpected method in connection state {state}", reply_code=CHANNEL_ERROR)

    def _connection_frame(self, kind: int, payload: bytes) -> None:
        method = m.decode_method(payload) if kind == METHOD else None
        if isinstance(method, m.ConnectionClose):
            self._closed_by_peer(method)
        elif isinstance(method, m.ConnectionUpdateSecret):
            self._events.append(MethodReceived(0, method))
        else:
            raise ProtocolError("unexpected method in connection state running", reply_code=CHANNEL_ERROR)

    def _first_channel_frame(self, kind: int, channel: int, payload: bytes, method: int) -> None:
        if kind != METHOD or method != m.ChannelOpen.ID:
            raise ProtocolError("expected 'channel.open'", reply_code=CHANNEL_ERROR)
        m.decode_method(payload)
        limit, count = self.channel_max, len(self._channels)
        if count >= limit:
            raise ProtocolError(
                f"number of channels opened ({count}) has reached the negotiated channel_max ({limit})",
                reply_code=NOT_ALLOWED,
            )
        self._channels[channel] = OPEN
        self._answer(channel, m.ChannelOpenOk())
        self._events.append(ChannelOpened(channel))

    def _failed_channel_frame(self, kind: int, channel: int, method: int) -> None:
        if kind != METHOD:
            return
        if method == m.ChannelCloseOk.ID:
            del self._channels[channel]
        elif method == m.ChannelClose.ID:  # the two closes crossed; ours still awaits its answer
            self._answer(channel, m.ChannelCloseOk())

    def _channel_frame(self, kind: int, channel: int, payload: bytes) -> None:
        content = self._contents.get(channel)
        if content is None:
            if kind != METHOD:
                raise ProtocolError("expected method frame, got non method frame instead", reply_code=UNEXPECTED_FRAME)
            self._method(channel, m.decode_method(payload), payload)
        elif content.header is None:
            content.take_header(kind, payload)
            if content.size > self.limits.max_message_size:
                raise ProtocolError(
                    f"message size {content.size} is larger than configured max size {self.limits.max_message_size}",
                    reply_code=PRECONDITION_FAILED,
                    scope="channel",
                )
            if self.partial_size and self.partial_size + content.size > self.limits.max_partial_size:
                raise ProtocolError("too many bytes in unfinished messages", reply_code=RESOURCE_ERROR)
            self.partial_size += content.size
            content.charged = content.size
            self.begun += 1
            self._complete(channel, content)
        else:
            content.take_body(kind, payload)
            self._complete(channel, content)

    def _complete(self, channel: int, content: Content) -> None:
        if content.header is None or not content.complete:
            return
        self._forget_content(channel)
        targets, properties, bodies = self._publishes.rows(channel)
        targets.append(content.target)
        properties.append(content.header)
        bodies.append(content.take())

    def _method(self, channel: int, method: m.Method, payload: bytes) -> None:
        """A method on an open channel, between messages."""
        match method:
            case m.BasicPublish():
                target = self._publishes.target(channel, frame(METHOD, channel, payload))
                assert target is not None
                self._contents[channel] = Content(target)
            case m.BasicAck():
                if not method.delivery_tag and not method.multiple:
                    raise ProtocolError("unknown delivery tag 0", reply_code=PRECONDITION_FAILED, scope="channel")
                low = 0 if method.multiple else method.delivery_tag
                self._acknowledge(channel, [(low, method.delivery_tag)])
            case m.ChannelClose():
                self._channels[channel] = PEER_CLOSED
                self._events.append(ChannelClosed(channel, method.reply_code, method.reply_text))
            case m.ChannelFlow(active=False):
                raise ProtocolError("active=false", reply_code=NOT_IMPLEMENTED)
            case m.ChannelFlowOk() | m.BasicCancelOk():
                pass  # answers to methods that need none
            case m.BasicQos() if method.prefetch_size:
                raise ProtocolError(f"prefetch_size!=0 ({method.prefetch_size})", reply_code=NOT_IMPLEMENTED)
            case m.BasicRecover(requeue=False) | m.BasicRecoverAsync(requeue=False):
                raise ProtocolError("requeue=false", reply_code=NOT_IMPLEMENTED)
            case m.ChannelOpen():
                raise ProtocolError("second 'channel.open' seen", reply_code=CHANNEL_ERROR)
            case m.ChannelCloseOk():
                raise ProtocolError("unexpected 'channel.close-ok'", reply_code=CHANNEL_ERROR)
            case _ if method.FROM_CLIENT and method.ID >> 16 != 10:
                self._events.append(MethodReceived(channel, method))
            case _:
                raise ProtocolError(f"{method.NAME} is not a server's to receive here", reply_code=COMMAND_INVALID)

    def _closed_by_peer(self, method: m.ConnectionClose) -> None:
        self.phase = Phase.PEER_CLOSED
        self._contents.clear()
        self.partial_size = 0
        self._events.append(ConnectionClosed(method.reply_code, method.reply_text))

    def _failed(self, error: ProtocolError, channel: int, method: int) -> None:
        """Close the scope of an error and say so.  After a frame error nothing can be trusted: the socket goes."""
        code, text = error.reply_code, str(error)
        if error.scope == "channel":
            self._close_channel(channel, code, text, method)
            self._events.append(ChannelFailed(channel, code, reply_text(code, text)))
            return
        drop = code == FRAME_ERROR
        if self.phase is not Phase.CLOSING:
            self._close_connection(code, text, method)
            self._events.append(ConnectionFailed(code, reply_text(code, text), drop))
        if drop:
            self._finish()

    def _release(self) -> None:
        super()._release()
        self._publishes.forget()
