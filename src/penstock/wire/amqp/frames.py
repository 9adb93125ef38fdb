"""Frames: the envelope of everything after the protocol header, and the limits that hold before anything is allocated.

u8 type (1 method, 2 header, 3 body, 8 heartbeat) | u16 channel | u32 size | payload | 0xCE
header payload   u16 class | u16 weight (0) | u64 body size | property flags and list

Reply codes, their names, and the text that a close carries stand here too.
"""

from __future__ import annotations

import struct

from penstock.records.dataclass import dataclass

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
END = b"\xce"

OVERHEAD = 8
"""Bytes of a frame around its payload; `frame_max` counts them."""

FRAME_MAX_LEAST = 4096
"""No peer may ask for less (AMQP 0-9-1, frame-min-size)."""

BASIC = 60
CONTENT_LEAST = 14
"""Payload bytes of a content header without properties."""

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
OLD_PROTOCOL_HEADER = b"AMQP\x01\x01\x00\x09"
"""How the first 0-9 clients wrote the same version."""

HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"

read_border = struct.Struct(">BHI").unpack_from
pack_border = struct.Struct(">BHI").pack


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may ask of the server.  Sizes in bytes."""

    frame_max: int = 131_072  # a frame with its overhead
    channel_max: int = 2047  # the highest channel number, and how many may be open
    heartbeat: int = 60  # seconds, offered in tune
    max_message_size: int = 16 * 1024 * 1024  # one body
    max_partial_size: int = 64 * 1024 * 1024  # bodies announced and not yet complete, whole connection
    handshake_frame: int = 8192  # a frame before connection.open
    handshake_bytes: int = 65_536  # all bytes before connection.open is answered
    target_cache: int = 1024  # distinct publish targets remembered


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One whole frame."""
    return pack_border(kind, channel, len(payload)) + payload + END


REPLY_SUCCESS = 200
CONTENT_TOO_LARGE = 311
NO_ROUTE = 312
NO_CONSUMERS = 313
CONNECTION_FORCED = 320
INVALID_PATH = 402
ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
FRAME_ERROR = 501
SYNTAX_ERROR = 502
COMMAND_INVALID = 503
CHANNEL_ERROR = 504
UNEXPECTED_FRAME = 505
RESOURCE_ERROR = 506
NOT_ALLOWED = 530
NOT_IMPLEMENTED = 540
INTERNAL_ERROR = 541

REPLY_NAMES = {
    REPLY_SUCCESS: "REPLY_SUCCESS",
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE",
    NO_ROUTE: "NO_ROUTE",
    NO_CONSUMERS: "NO_CONSUMERS",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    INVALID_PATH: "INVALID_PATH",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}

TEXT_MOST = 255
"""Bytes of a short string."""

END_KEPT = 110
"""Bytes at the end of a text that is too long."""


def reply_text(code: int, text: str) -> str:
    """`NAME - text`, as clients compare it, in the 255 bytes of a short string.

    What is longer loses its middle, which is the name of something, and keeps its end, which says what is allowed.  No
    character is broken.
    """
    name = REPLY_NAMES.get(code)
    whole = (f"{name} - {text}" if name and text else name or text).encode("utf-8", "replace")
    if len(whole) > TEXT_MOST:
        whole = whole[: TEXT_MOST - END_KEPT - 3] + b"..." + whole[-END_KEPT:]
    return whole.decode("utf-8", "ignore")
