"""One message on its way in, frame by frame: for bodies of several frames and all that the walk declines."""

from __future__ import annotations

from penstock.errors import ProtocolError
from penstock.records.properties import peeked
from penstock.wire.amqp.events import Target
from penstock.wire.amqp.frames import BASIC, BODY, CONTENT_LEAST, HEADER
from penstock.wire.amqp.replies import FRAME_ERROR, UNEXPECTED_FRAME


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
