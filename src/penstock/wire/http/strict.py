"""HTTP/1.1, its framing read strictly, so that nobody before us reads another request out of the same bytes.

h11 parses; what it lets pass and a proxy may take for something else is refused here, before it becomes a request:

    bare LF or CR, continued (folded) header lines, NUL     RFC 9112, 2.2 and 5.2; RFC 9110, 5.5
    Content-Length beside Transfer-Encoding, or twice       RFC 9112, 6.1 and 6.3
    Transfer-Encoding in HTTP/1.0, versions other than 1.x  RFC 9112, 6.1; HTTP/2's preface is one of these
    chunk extensions, trailers, a bare LF behind a chunk    RFC 9112, 7.1; nobody needs them here

After any of it the connection has to be closed: where the next request begins is not known.  The body of a request is
not read before its sender has logged in: chunks of a byte each would cost seconds.  Bytes in, events out; knows no
socket.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import h11

LINES_MOST = 128
"""Lines of a request's head."""

_LINE = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)|\n[ \t]|\0")
"""A bare LF, a bare CR (not the last byte so far), a line that continues the one before, a zero byte."""

_CHUNK = re.compile(rb"\r?\n?(?:[0-9A-Fa-f]{1,16}\r\n)?(?:\r\n)?")
"""What one event of a chunked body has beside its data; a line end before it may have come in two parts."""

Event: TypeAlias = "type[h11.NEED_DATA | h11.PAUSED] | h11.Event"


class StrictConnection(h11.Connection):
    """The server's side of one connection."""

    def __init__(self, head_most: int) -> None:
        """head_most: bytes of a request line with its headers, and of a chunk's line."""
        super().__init__(h11.SERVER, head_most)
        self.trusted = False  # bodies are read
        self._most = head_most
        self._unread = bytearray()  # what h11 has and has not taken yet
        self._judged = 0  # bytes of it that are no wrong lines
        self._chunked = False
        self._body = False  # of the present request: there is one
        self._wrong: h11.RemoteProtocolError | None = None

    def receive_data(self, data: bytes) -> None:
        super().receive_data(data)
        self._unread += data

    def next_event(self) -> Event:
        """h11's.  Raises RemoteProtocolError, with the status to answer in `error_status_hint`."""
        if self._wrong is not None:
            raise self._wrong
        if self.their_state is h11.IDLE:
            return self._head()
        if self.withheld:
            return h11.NEED_DATA
        if self._chunked and self.their_state is h11.SEND_BODY:
            return self._piece()
        event, _ = self._next()
        return event

    @property
    def begun(self) -> bool:
        """Whether a request has begun and its headers have not ended."""
        return self.their_state is h11.IDLE and bool(self._unread)

    @property
    def withheld(self) -> bool:
        """Whether there is a body that is not read: its sender is not trusted."""
        return self._body and not self.trusted and self.their_state is h11.SEND_BODY

    def _next(self) -> tuple[Event, bytes]:
        """The next event, and the bytes that it took."""
        event = super().next_event()
        size = len(self._unread) - len(self._receive_buffer)
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return event, taken

    def _head(self) -> Event:
        end = self._unread.find(b"\r\n\r\n", max(0, self._judged - 3))
        size = len(self._unread) if end < 0 else end
        if (wrong := _LINE.search(self._unread, max(0, self._judged - 2), size)) is not None:
            self._refuse(f"byte {wrong.start()} of the request ends or continues a line as none may be, or is zero")
        self._judged = size
        if size > self._most:
            self._refuse(f"the request line and the headers have {size} bytes, {self._most} are allowed", 431)
        if end >= 0 and (lines := self._unread.count(b"\r\n", 0, end)) > LINES_MOST:
            self._refuse(f"the request has {lines} headers, {LINES_MOST} are allowed", 431)
        event, head = self._next()
        if isinstance(event, h11.Request):
            self._judged = 0
            self._judge(event, head)
        return event

    def _judge(self, request: h11.Request, head: bytes) -> None:
        if request.http_version not in {b"1.0", b"1.1"}:
            self._refuse(f"HTTP/{request.http_version.decode()} is not spoken here, HTTP/1.1 is", 505)
        lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        if len(lengths) > 1 or any(b"," in line for line in lengths):
            self._refuse("Content-Length is there twice")
        headers = dict(request.headers)
        self._chunked = b"transfer-encoding" in headers
        if self._chunked and lengths:
            self._refuse("Content-Length stands beside Transfer-Encoding")
        if self._chunked and request.http_version == b"1.0":
            self._refuse("HTTP/1.0 has no Transfer-Encoding")
        self._body = self._chunked or int(headers.get(b"content-length", b"0")) > 0

    def _piece(self) -> Event:
        """The next of a chunked body."""
        event, taken = self._next()
        beside = taken[: len(taken) - len(event.data)] if isinstance(event, h11.Data) else taken
        if _CHUNK.fullmatch(beside) is None:
            self._refuse("a chunk has more than a size")
        if isinstance(event, h11.EndOfMessage) and (event.headers or not taken.endswith(b"\r\n")):
            self._refuse("what follows the last chunk is no empty line")
        return event

    def _refuse(self, why: str, status: int = 400) -> None:
        self._wrong = h11.RemoteProtocolError(why, error_status_hint=status)
        raise self._wrong
