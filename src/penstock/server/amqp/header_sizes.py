"""Headers that no frame of a connection carries.

A body is cut into frames, a header is not (AMQP 0-9-1, 4.2.6.1), and a client whose frames are small must not get a
larger one (4.2.3).  Such a message came from a client with larger frames or by another door, or the server has added
to its header; it is sent to no client that cannot take it, and that client's channel is told why.
"""

from __future__ import annotations

from penstock.errors import ProtocolError
from penstock.wire.amqp.frames import CONTENT_TOO_LARGE
from penstock.wire.amqp.pieces import properties_most


def too_large(properties: bytes | list[bytes], frame_max: int) -> int | None:
    """The first row whose header does not fit a frame."""
    most = properties_most(frame_max)
    if isinstance(properties, bytes):
        return 0 if len(properties) > most else None
    if max(map(len, properties)) <= most:
        return None
    return next(row for row, one in enumerate(properties) if len(one) > most)


def header_too_large(what: str, size: int, frame_max: int) -> ProtocolError:
    """The refusal that ends the channel."""
    return ProtocolError(
        f"the header of {what} has {size} bytes, more than a frame of this connection carries "
        f"({properties_most(frame_max)} of frame_max {frame_max})",
        reply_code=CONTENT_TOO_LARGE,
        scope="channel",
    )
