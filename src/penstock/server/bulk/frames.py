"""Frames between the server and its bulk child, over one stream socket a request.

    0   u32  bytes of the head: H
    4   u32  zero
    8   u64  bytes of the payload: P
    16       head, a JSON object; empty (H = 0) for a batch of a stream
    16+H     payload: Arrow bytes, or what the head says

The request is one frame.  Answers are {"taken"} when the work begins, any number of {"progress": [done, total]} and
of batches with an empty head, and last {"end": ...} or {"error": ...}.  Closing the socket cancels; a socket that ends
without a last frame means that the other process is gone.  It knows bytes, not jobs.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson

_PREFIX = struct.Struct("<IIQ")
HEAD_MAX = 64 << 20
PAYLOAD_MAX = 1 << 31
SMALL = 1 << 14
"""Larger pieces live in memory that is not cleared first."""
SPARE_PIECES = 4
_UNSHARED = 3  # references to a piece: of its list, of the loop that looks, of the question itself
POLL_MS = 50
"""How often a wait for the other side looks whether it is still wanted."""


class Ended(Exception):
    """The other side is gone."""


class TooLarge(Ended):
    """The other side announced a frame beyond the bound; nothing of it was taken."""


def send(sock: socket.socket, head: Mapping[str, object] | None, *payload: bytes | memoryview) -> None:
    """One frame.  Ended when nobody reads any more."""
    encoded = b"" if head is None else orjson.dumps(head)
    size = sum(len(piece) for piece in payload)
    try:
        sock.sendall(_PREFIX.pack(len(encoded), 0, size) + encoded)
        for piece in payload:
            sock.sendall(piece)
    except OSError as error:
        raise Ended from error


class Spare:
    """Memory of payloads that is used again once nobody refers to it: fresh pages would cost more than the copying."""

    def __init__(self) -> None:
        self._pieces = list["npt.NDArray[np.uint8]"]()

    def take(self, size: int) -> memoryview:
        """So many bytes, with whatever is in them.  MemoryError when there are none."""
        for piece in self._pieces:
            if len(piece) >= size and sys.getrefcount(piece) <= _UNSHARED:
                return piece.data[:size].cast("B")
        piece = np.empty(size + size // 8, np.uint8)
        self._pieces = [piece, *self._pieces[: SPARE_PIECES - 1]]
        return piece.data[:size].cast("B")


def receive(
    sock: socket.socket,
    wanted: Callable[[], bool] | None = None,
    spare: Spare | None = None,
    *,
    head_most: int = HEAD_MAX,
    most: int = PAYLOAD_MAX,
) -> tuple[dict[str, Any] | None, memoryview]:
    """One frame: its head, None when empty, and its payload, in memory of `spare` if that is given.

    `wanted` is asked while nothing comes; False gives up with Ended.  Ended too when the other side is gone, TooLarge
    for a head or a payload of more bytes than these.
    """
    if wanted is not None:
        _wait(sock, wanted)
    try:
        prefix = _exactly(sock, _PREFIX.size)
        head_size, _, size = _PREFIX.unpack(prefix)
        if head_size > head_most or size > most:
            raise TooLarge(f"a head of {head_size} bytes and {size} bytes behind it, of {head_most} and {most}")
        head = cast("dict[str, Any]", orjson.loads(_exactly(sock, head_size))) if head_size else None
        return head, _exactly(sock, size, spare)
    except OSError as error:
        raise Ended from error


def gone(sock: socket.socket) -> bool:
    """Whether the other side has closed."""
    poller = select.poll()
    poller.register(sock, 0)
    return bool(poller.poll(0))


def _wait(sock: socket.socket, wanted: Callable[[], bool]) -> None:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while not poller.poll(POLL_MS):
        if not wanted():
            raise Ended


def _exactly(sock: socket.socket, size: int, spare: Spare | None = None) -> memoryview:
    """So many bytes in one piece: the kernel gathers them, so that a thread asks for the interpreter once."""
    try:
        if size < SMALL:
            view = memoryview(bytearray(size))
        else:
            view = (spare or Spare()).take(size)
    except MemoryError:
        _drain(sock, size)  # so that the sender comes to its end and can be told
        raise
    got = 0
    while got < size:
        came = sock.recv_into(view[got:], 0, socket.MSG_WAITALL)
        if not came:
            raise Ended
        got += came
    return view


def _drain(sock: socket.socket, size: int) -> None:
    scratch = bytearray(SMALL)
    while size > 0 and (came := sock.recv_into(scratch, min(size, SMALL))):
        size -= came


def pack(values: Mapping[str, object]) -> tuple[dict[str, object], list[bytes | memoryview]]:
    """Plain values for a head, and those that are bytes apart, for the payload."""
    plain = dict[str, object]()
    pieces = list[bytes | memoryview]()
    blobs = list[tuple[str, int]]()
    for name, value in values.items():
        if isinstance(value, (bytes, bytearray, memoryview)):
            piece = memoryview(cast("bytes", value)).cast("B")
            pieces.append(piece)
            blobs.append((name, len(piece)))
        else:
            plain[name] = value
    return {"values": plain, "blobs": blobs}, pieces


def unpack(head: Mapping[str, Any], payload: memoryview) -> dict[str, Any]:
    """The inverse; bytes come as memoryviews."""
    values = dict(cast("dict[str, Any]", head["values"]))
    at = 0
    for name, size in cast("list[tuple[str, int]]", head["blobs"]):
        values[name] = payload[at : at + size]
        at += size
    return values
