"""Server-sent events of a broker, read off a socket of the test's own."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Event:
    """One event as it came."""

    name: str
    data: Mapping[str, Any]
    id: str = ""


class EventReader:
    """`with EventReader(url, "interval=off") as reader: reader.until("queue.created")`."""

    def __init__(
        self, url: str, query: str = "", *, user: str = "guest", password: str | None = None, last: str = "",
        receive_buffer: int | None = None,
    ) -> None:  # fmt: skip
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(30)
        self._socket.connect((parts.hostname, parts.port))
        login = base64.b64encode(f"{user}:{user if password is None else password}".encode()).decode()
        lines = [f"GET /api/events?{query} HTTP/1.1", "host: test", f"authorization: Basic {login}"]
        lines += [f"last-event-id: {last}"] if last else []
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers = dict[str, str]()
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            self.headers[name.lower()] = value
        self.comments = 0
        self._left = b""
        self._events = self._parsed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._socket.close()

    def _lines(self) -> Iterator[bytes]:
        """Lines of the body, without the frames of chunked coding."""
        while True:
            size = int(self._file.readline() or b"0", 16)
            self._left += self._file.read(size)
            self._file.readline()
            *lines, self._left = self._left.split(b"\n")
            yield from lines
            if not size:
                return

    def events(self) -> Iterator[Event]:
        """As they come, until the stream ends; each comes once."""
        return self._events

    def _parsed(self) -> Iterator[Event]:
        fields: dict[str, str] = {}
        for line in self._lines():
            if line.startswith(b":"):
                self.comments += 1
            elif line:
                name, _, value = line.decode().partition(": ")
                fields[name] = value
            elif fields:
                yield Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
                fields = {}

    def until(self, name: str, **wanted: object) -> Event:
        """The next event of this name with these values in its data."""
        for event in self.events():
            if event.name == name and all(event.data.get(key) == value for key, value in wanted.items()):
                return event
        raise AssertionError(f"the stream ended before {name} {wanted}")
