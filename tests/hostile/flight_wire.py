"""Arrow Flight as bytes: protobuf messages written by hand, sent by a gRPC channel that knows nothing of Arrow.

No client library would send what strangers do, so nothing here checks anything: headers, bodies and commands go out as
they are given.  `Outcome` is what came back.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

SERVICE = "/arrow.flight.protocol.FlightService/"
WAIT_S = 20.0


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def field(number: int, data: bytes) -> bytes:
    """A field of bytes, text or a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def descriptor(command: bytes) -> bytes:
    """A FlightDescriptor that is a command."""
    return varint(1 << 3) + varint(2) + field(2, command)


def path(*parts: bytes) -> bytes:
    """A FlightDescriptor that is a path."""
    return varint(1 << 3) + varint(1) + b"".join(field(3, part) for part in parts)


def flight_data(header: bytes = b"", body: bytes = b"", metadata: bytes = b"", described: bytes = b"") -> bytes:
    """A FlightData; parts that are empty are left out, as clients do."""
    out = field(1, described) if described else b""
    out += field(2, header) if header else b""
    out += field(3, metadata) if metadata else b""
    return out + (field(1000, body) if body else b"")


def action(kind: bytes, body: bytes) -> bytes:
    """An Action.  One of two gigabytes is copied once."""
    return b"".join((field(1, kind), varint(2 << 3 | 2), varint(len(body)), body))


def ticket(data: bytes) -> bytes:
    """A Ticket; Criteria have the same shape."""
    return field(1, data)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended."""

    code: grpc.StatusCode
    details: str
    answers: int

    @property
    def cut(self) -> bool:
        """Whether the connection went with it."""
        lost = ("Socket closed", "Connection reset", "Connection refused", "failed to connect", "Broken pipe")
        return self.code is grpc.StatusCode.UNAVAILABLE and any(one in self.details for one in lost)


class FlightWire:
    """`with FlightWire(address) as wire: wire.put([...])`."""

    def __init__(self, address: str, user: str = "guest", password: str = "guest") -> None:
        """address: host:port."""
        self._address = address
        self.again()
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._login = (("authorization", f"Basic {pair}"),)

    def again(self) -> None:
        """A connection of its own, that waits for nothing after a failed one."""
        self._channel = grpc.insecure_channel(
            self._address, [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def put(self, messages: Iterable[bytes], timeout: float = WAIT_S) -> Outcome:
        """DoPut."""
        return self._streamed("DoPut", messages, timeout)

    def exchange(self, messages: Iterable[bytes], timeout: float = WAIT_S) -> Outcome:
        """DoExchange."""
        return self._streamed("DoExchange", messages, timeout)

    def one(self, method: str, message: bytes, timeout: float = WAIT_S) -> Outcome:
        """Any call to which one message is sent, and of which any number of answers is read."""
        streams = method in ("DoAction", "DoGet", "ListFlights", "ListActions")
        make: Any = self._channel.unary_stream if streams else self._channel.unary_unary
        call = make(SERVICE + method, request_serializer=_as_it_is, response_deserializer=_as_it_is)
        if not streams:
            return _outcome(lambda: iter((call(message, timeout=timeout, metadata=self._login),)))
        return _outcome(lambda: call(message, timeout=timeout, metadata=self._login))

    def opened(self, method: str, messages: Iterator[bytes]) -> Any:
        """A call with a stream in both directions, as gRPC gives it: read from it, or cancel it."""
        make = self._channel.stream_stream(
            SERVICE + method, request_serializer=_as_it_is, response_deserializer=_as_it_is
        )
        return make(messages, metadata=self._login)

    def _streamed(self, method: str, messages: Iterable[bytes], timeout: float) -> Outcome:
        make = self._channel.stream_stream(
            SERVICE + method, request_serializer=_as_it_is, response_deserializer=_as_it_is
        )
        return _outcome(lambda: make(iter(messages), timeout=timeout, metadata=self._login))


def _as_it_is(data: bytes) -> bytes:
    return data


def _outcome(begin: Any) -> Outcome:
    answers = 0
    try:
        for _ in begin():
            answers += 1
    except grpc.RpcError as error:
        told: Any = error
        return Outcome(told.code(), str(told.details()), answers)
    return Outcome(grpc.StatusCode.OK, "", answers)
