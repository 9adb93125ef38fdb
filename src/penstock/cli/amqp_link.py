"""A connection to a broker that speaks AMQP 0-9-1, as its client: one channel, blocking.

For commands that carry messages from one broker to another: headers go on as the bytes that they came as.  It asks for
no heartbeats, so it may be as slow as the other side.  Refuses to know what a message means.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar, cast
from urllib.parse import parse_qsl, unquote

from penstock.client.urls import Trust
from penstock.errors import AccessRefused, InvalidArgument, NotFound, PenstockError, ProtocolError, Unavailable, told_as
from penstock.records.field_tables import FieldValue
from penstock.units import format_address, parted_address, shown_address, split_url
from penstock.wire.amqp import frames
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import Method, decode_method

if TYPE_CHECKING:
    from penstock.client import Client

M = TypeVar("M", bound=Method)

READ_BYTES = 1 << 18
WRITE_BYTES = 1 << 18
TIMEOUT_S = 30.0
CLOSE_S = 5.0
"""What the answer to a close may take."""


TRUSTED_BY = ("ca", "cert", "key")
"""What a URL may say of TLS: files in PEM."""

AS_REACHED = frozenset({"", "0.0.0.0", "::", "127.0.0.1", "::1"})
"""Hosts of a listener that say nothing to who came from elsewhere: the one that he came by stands."""


class Broker(NamedTuple):
    """Where a broker is, and who asks: `amqp://user:password@host:port/vhost`, `amqps://` with TLS (`?ca=FILE`)."""

    host: str
    port: int
    user: str
    password: str
    vhost: str
    tls: bool
    trust: Trust = Trust()

    @property
    def name(self) -> str:
        """The address for a person, without the password."""
        return format_address(self.host, self.port)

    def of(self, vhost: str) -> Broker:
        """The same, in another vhost."""
        return self._replace(vhost=vhost)


FORM = "write amqp://user:password@host:port/vhost"


def read_address(url: str) -> Broker:
    """A URL of RabbitMQ taken apart.  Raises InvalidArgument."""
    try:
        parts = split_url(url)
        port = parts.port
    except ValueError:
        raise InvalidArgument(f"{shown_address(url)!r} is no address: {FORM}") from None
    if parts.scheme not in {"amqp", "amqps"} or not parts.hostname:
        raise InvalidArgument(f"{shown_address(url)!r} is no address of a broker: {FORM}")
    tls = parts.scheme == "amqps"
    port = (5671 if tls else 5672) if port is None else port
    secret = parts.password if parts.password is not None else "" if parts.username else "guest"
    return Broker(
        parts.hostname, port, unquote(parts.username or "guest"), unquote(secret), unquote(parts.path[1:]) or "/", tls,
        _trust_of(url, parts.query),
    )  # fmt: skip


def _trust_of(url: str, query: str) -> Trust:
    """The files that a URL names for TLS."""
    said = dict(parse_qsl(query, keep_blank_values=True))
    for name in said:
        if name not in TRUSTED_BY:
            raise InvalidArgument(f"{name!r} of {url.split('?')[-1]!r} is not one of {', '.join(TRUSTED_BY)}")
    return Trust(said.get("ca"), said.get("cert"), said.get("key"))


def broker_at(url: str, user: str, password: str) -> Broker:
    """The same, where a URL without a login goes with this one."""
    broker = read_address(url)
    return broker if "@" in url else broker._replace(user=user, password=password)


def door_of(client: Client, name: str, host: str) -> tuple[bool, str, int | None]:
    """Of a server that was reached at a host, its door without TLS where there is one, else that with it.

    Whether it has TLS, its host, and its port; None where the server does not say.
    """
    doors = cast("Mapping[str, str]", client.overview().get("addresses") or {})
    tls = name not in doors and f"{name}s" in doors
    told, port = parted_address(doors.get(f"{name}s" if tls else name, ""))
    return tls, host if told in AS_REACHED else told, int(port) if port else None


class Delivered(NamedTuple):
    """One message as it came."""

    tag: int
    redelivered: bool
    exchange: str
    key: str
    properties: bytes
    body: bytes


class Answered(NamedTuple):
    """What a broker says of publishes: up to `tag`, or that one alone."""

    tag: int
    multiple: bool
    taken: bool


class Link:
    """Raises Unavailable where the other side is gone, AccessRefused for a login, and what a channel ends with."""

    def __init__(self, broker: Broker, timeout_s: float = TIMEOUT_S) -> None:
        self.broker = broker
        self.delivered: deque[Delivered] = deque()
        self.answered: deque[Answered] = deque()
        self.returned = 0
        self._timeout_s = timeout_s
        self._in, self._out = bytearray(), bytearray()
        self._methods: deque[Method] = deque()
        self._begun: m.BasicDeliver | m.BasicGetOk | None = None  # a delivery whose body is not whole
        self._empty = 0  # answers of gets that nothing waits
        self._header, self._left, self._body = b"", 0, list[bytes]()
        self._frame_max = frames.FRAME_MAX_LEAST
        self._sock = self._dial()
        try:
            self._log_in()
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _dial(self) -> socket.socket:
        broker = self.broker
        with told_as(Unavailable, f"no broker answers at {broker.name}: ", instead=OSError):
            sock = socket.create_connection((broker.host, broker.port), self._timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if broker.tls:
                return broker.trust.context().wrap_socket(sock, server_hostname=broker.host)
        return sock

    def _log_in(self) -> None:
        broker = self.broker
        self._out += frames.PROTOCOL_HEADER
        self._await(m.ConnectionStart, 0)
        capabilities: dict[str, FieldValue] = {
            "publisher_confirms": True, "basic.nack": True, "consumer_cancel_notify": True,
            "authentication_failure_close": True,
        }  # fmt: skip
        told: dict[str, FieldValue] = {"product": "Penstock", "capabilities": capabilities}
        response = f"\0{broker.user}\0{broker.password}".encode()
        self._send(m.ConnectionStartOk(told, "PLAIN", response), 0)
        with told_as(
            AccessRefused, f"{broker.name} does not let user '{broker.user}' in: ", instead=(PenstockError, OSError)
        ):
            tune = self._await(m.ConnectionTune, 0)
        self._frame_max = tune.frame_max or 131_072
        self._send(m.ConnectionTuneOk(tune.channel_max, self._frame_max, 0), 0)
        self._send(m.ConnectionOpen(broker.vhost), 0)
        self._await(m.ConnectionOpenOk, 0)
        self.call(m.ChannelOpen(), m.ChannelOpenOk)

    # -- methods

    def call(self, method: Method, answer: type[M]) -> M:
        """What is answered; deliveries and confirms that come meanwhile are kept."""
        self._send(method)
        return self._await(answer)

    def tell(self, method: Method) -> None:
        """Something without an answer; it leaves with the next read."""
        self._send(method)

    def publish(
        self, exchange: str, key: str, properties: bytes, body: bytes, *, mandatory: bool = False
    ) -> None:  # fmt: skip
        """A message; it leaves with the next read, or when there are many.

        mandatory: `returned` counts what nobody takes
        """
        out, most = self._out, self._frame_max - frames.OVERHEAD
        out += frames.frame(frames.METHOD, 1, m.BasicPublish(0, exchange, key, mandatory).encode())
        out += frames.frame(
            frames.HEADER, 1, frames.BASIC.to_bytes(2, "big") + b"\0\0" + len(body).to_bytes(8, "big") + properties
        )
        for start in range(0, len(body), most):
            out += frames.frame(frames.BODY, 1, body[start : start + most])
        if len(out) > WRITE_BYTES:
            self.flush()

    def _send(self, method: Method, channel: int = 1) -> None:
        self._out += frames.frame(frames.METHOD, channel, method.encode())

    def _await(self, answer: type[M], channel: int = 1) -> M:
        while True:
            while self._methods:
                found = self._methods.popleft()
                if isinstance(found, answer):
                    return found
            if not self.read(self._timeout_s):
                raise Unavailable(f"{self.broker.name} says nothing for {self._timeout_s:g} seconds")

    def ready(self, queue: str) -> int:
        """How many messages wait in a queue.  NotFound."""
        return self.call(m.QueueDeclare(0, queue, passive=True), m.QueueDeclareOk).message_count

    def consume(
        self, queue: str, prefetch: int, arguments: Mapping[str, FieldValue], tag: str = "penstock-migrate"
    ) -> None:
        """Have a queue's messages delivered; 0: without a bound."""
        self.call(m.BasicQos(0, prefetch), m.BasicQosOk)
        self.call(m.BasicConsume(0, queue, tag, arguments=dict(arguments)), m.BasicConsumeOk)

    def renew(self) -> None:
        """The channel anew: what was delivered and not acknowledged goes back to its queue."""
        self.call(m.ChannelClose(200, "done"), m.ChannelCloseOk)
        self.delivered.clear()
        self.answered.clear()
        self._begun, self._body = None, []
        self.call(m.ChannelOpen(), m.ChannelOpenOk)

    def get(self, queue: str, count: int) -> None:
        """Have so many of its messages delivered, or all that wait, as no consumer: some queues go with their last."""
        for _ in range(count):
            self._send(m.BasicGet(0, queue))
        answers, self._empty = len(self.delivered) + count, 0
        while len(self.delivered) + self._empty < answers:
            if not self.read(self._timeout_s):
                raise Unavailable(f"{self.broker.name} says nothing for {self._timeout_s:g} seconds")

    # -- bytes

    def flush(self) -> None:
        """Send what is to be sent."""
        if self._out:
            data, self._out = self._out, bytearray()
            with told_as(Unavailable, f"the connection to {self.broker.name} is lost: ", instead=OSError):
                self._sock.settimeout(self._timeout_s)
                self._sock.sendall(data)

    def read(self, timeout_s: float) -> bool:
        """Take what comes, once, waiting so long for it; whether anything came."""
        self.flush()
        try:
            self._sock.settimeout(timeout_s)
            data = self._sock.recv(READ_BYTES)
        except TimeoutError:
            return False
        except OSError as error:
            raise Unavailable(f"the connection to {self.broker.name} is lost: {error}") from error
        if not data:
            raise Unavailable(f"{self.broker.name} closed the connection")
        self._in += data
        self._take_frames()
        return True

    def _take_frames(self) -> None:
        data, at = self._in, 0
        while len(data) - at >= frames.OVERHEAD:
            if data.startswith(b"AMQP", at):
                raise ProtocolError(f"{self.broker.name} does not speak AMQP 0-9-1")
            kind, _, size = frames.read_border(data, at)
            if len(data) - at < size + frames.OVERHEAD:
                break
            payload = bytes(data[at + 7 : at + 7 + size])
            at += size + frames.OVERHEAD
            if kind == frames.METHOD:
                self._take_method(decode_method(payload))
            elif kind == frames.HEADER:
                self._left, self._header = int.from_bytes(payload[4:12], "big"), payload[12:]
                self._take_body(b"")
            elif kind == frames.BODY:
                self._take_body(payload)
            else:
                self._out += frames.HEARTBEAT_FRAME
        del data[:at]

    def _take_method(self, method: Method) -> None:
        match method:
            case m.BasicDeliver() | m.BasicGetOk():
                self._begun = method
            case m.BasicGetEmpty():
                self._empty += 1
            case m.BasicAck():
                self.answered.append(Answered(method.delivery_tag, method.multiple, True))
            case m.BasicNack():
                self.answered.append(Answered(method.delivery_tag, method.multiple, False))
            case m.BasicReturn():
                self.returned += 1
            case m.BasicCancel():
                raise NotFound(f"a queue of {self.broker.name} went away while it was read")
            case m.ChannelClose() | m.ConnectionClose():
                raise _error(method.reply_code, f"{self.broker.name}: {method.reply_text}")
            case _:
                self._methods.append(method)

    def _take_body(self, part: bytes) -> None:
        self._body.append(part)
        self._left -= len(part)
        begun = self._begun
        if begun is None:
            self._body.clear()  # of one that came back
        elif self._left == 0:
            self.delivered.append(
                Delivered(
                    begun.delivery_tag, begun.redelivered, begun.exchange, begun.routing_key, self._header,
                    b"".join(self._body),
                )
            )  # fmt: skip
            self._begun, self._body = None, []

    def close(self) -> None:
        """What was not acknowledged stays in its queue.  RabbitMQ answers, and leaves it to its client to hang up."""
        try:
            self._send(m.ConnectionClose(200, "done"), 0)
            while not any(isinstance(one, m.ConnectionCloseOk) for one in self._methods) and self.read(CLOSE_S):
                self.delivered.clear()
        except (OSError, PenstockError):
            pass
        finally:
            self._sock.close()


def _error(code: int, text: str) -> PenstockError:
    if code == 404:
        return NotFound(text)
    if code == 403:
        return AccessRefused(text)
    if code == 320:  # somebody closes the connection, or the broker stops
        return Unavailable(text)
    return ProtocolError(text, reply_code=code)
