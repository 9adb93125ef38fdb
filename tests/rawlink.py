"""A bare socket that speaks frames with pika's codec: for what no client library would ever send."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from pika import frame, spec


class RawLink:
    """`with RawLink(port) as link:` - then `greet`, `log_in`, or send whatever you like."""

    def __init__(self, port: int, timeout: float = 30) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def method(self, method: Any, channel: int = 1) -> None:
        self.send(frame.Method(channel, method).marshal())

    def read(self) -> Any:
        """The next frame; EOFError when the server has closed."""
        while True:
            used, found = frame.decode_frame(self.buffer)
            if found is not None:
                self.buffer = self.buffer[used:]
                return found
            data = self.socket.recv(65_536)
            if not data:
                raise EOFError
            self.buffer += data

    def expect(self, kind: type[Any]) -> Any:
        """The next method, which must be of this class; heartbeats are passed over."""
        found = self.read()
        while isinstance(found, frame.Heartbeat):
            found = self.read()
        assert isinstance(found, frame.Method), found
        assert isinstance(found.method, kind), found.method
        return found.method

    def closed(self) -> None:
        """The server has nothing more to say and closes."""
        try:
            while True:
                found = self.read()
                assert isinstance(found, frame.Heartbeat), found
        except (EOFError, ConnectionResetError):
            pass

    def leave(self) -> None:
        """Close the connection, and the socket once the server has closed it: its log has a line of who does not."""
        with suppress(OSError):
            self.method(spec.Connection.Close(200, "done", 0, 0), 0)
            while self.socket.recv(65_536):
                pass
        self.socket.close()

    def greet(self) -> Any:
        self.send(b"AMQP\x00\x00\x09\x01")
        return self.expect(spec.Connection.Start)

    def log_in(self, password: str = "guest", capabilities: dict[str, Any] | None = None) -> None:
        properties = {
            "capabilities": capabilities if capabilities is not None else {"authentication_failure_close": True}
        }
        response = b"\0guest\0" + password.encode()
        self.method(
            spec.Connection.StartOk(client_properties=properties, mechanism="PLAIN", response=response, locale="en_US"),
            0,
        )

    def open(self, vhost: str = "/", tune: tuple[int, int, int] = (10, 131_072, 0)) -> None:
        """The whole handshake."""
        self.greet()
        self.log_in()
        self.expect(spec.Connection.Tune)
        self.method(spec.Connection.TuneOk(*tune), 0)
        self.method(spec.Connection.Open(vhost), 0)

    def open_channel(self, number: int = 1) -> None:
        self.method(spec.Channel.Open(), number)
        self.expect(spec.Channel.OpenOk)

    def ready(self) -> RawLink:
        """Handshake done and channel 1 open."""
        self.open()
        self.expect(spec.Connection.OpenOk)
        self.open_channel()
        return self


def raw_frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def header(size: int, kind: int = 60) -> bytes:
    """Payload of a content header without properties."""
    return struct.pack(">HHQH", kind, 0, size, 0)
