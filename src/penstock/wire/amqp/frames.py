"""Frames: the envelope of everything after the protocol header, and the limits that hold before anything is allocated.

u8 type (1 method, 2 header, 3 body, 8 heartbeat) | u16 channel | u32 size | payload | 0xCE
header payload   u16 class | u16 weight (0) | u64 body size | property flags and list
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
