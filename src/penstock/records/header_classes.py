"""Classes of headers: what a header says to the server when its message is published, without reading it anew.

A client's messages differ by an id, a time, a correlation; what stands before these, flags, table of headers and
delivery mode, is the same in most of them, and alone says what the server has to do.  So that beginning is judged once
and remembered (bounded); of the rest only the sizes are checked.
"""

from __future__ import annotations

from penstock.errors import ProtocolError
from penstock.records.properties import peek

ASKING = frozenset(
    {
        "CC", "BCC", "x-delay", "x-deliver-at", "_AMQ_SCHED_DELIVERY", "x-delta", "x-dedup-key", "x-publisher",
        "x-sequence",
    }
)  # fmt: skip
"""Names in the table of headers by which a publisher asks something of the server: `core.publishing` reads them.

Topics with records of their own, exchanges of type headers and filters look at a header themselves, whatever its class.
"""

ASKS = -1
"""The class of a header that asks for something, or that may be broken: whoever has it reads it."""

_TELLING = 0x0B13
"""Flags of priority, reply-to, expiration and user id, and those that mean nothing."""

_TIME = 8

_STARTS_MOST = 4096
_START_SIZE_MOST = 1024
"""Of what is remembered: the headers are strangers'."""


_known: dict[bytes, tuple[int, tuple[int, ...]]] = {}
"""By beginning: the delivery mode, and what follows it: 0 is a text, anything else so many bytes."""


class HeaderClasses:
    """What headers say, asked by one who sees many that begin alike."""

    __slots__ = ("_mode", "_rest", "_start")

    def __init__(self) -> None:
        self._start = b"\xff\xff"  # of the last; flags that no header has
        self._mode = ASKS
        self._rest: tuple[int, ...] = ()

    def mode(self, data: bytes) -> int:
        """The delivery mode (0 when absent) of a well-formed header that asks for nothing else; else `ASKS`."""
        start = self._start
        if not data.startswith(start) and not (start := self._begin(data)):
            return ASKS
        at = len(start)
        try:
            for size in self._rest:
                end = at + (size or 1 + data[at])
                if not size and not (text := data[at + 1 : end]).isascii():
                    text.decode()  # it may be no text
                at = end
        except (IndexError, UnicodeDecodeError):
            return ASKS
        return self._mode if at == len(data) else ASKS

    def _begin(self, data: bytes) -> bytes:
        """The beginning of a header, whose class is the last one's from now on; empty: it has none."""
        start = data[: _end_of_start(data)]
        told = _known.get(start)
        if told is None:
            if not start or (told := _judge(start)) is None:
                return b""
            if len(_known) >= _STARTS_MOST:
                _known.clear()
            if len(start) <= _START_SIZE_MOST:
                _known[start] = told
        self._start = start
        self._mode, self._rest = told
        return start


def _end_of_start(data: bytes) -> int:
    """Where what comes behind the delivery mode begins; 0: nowhere, or the header asks for something by its flags."""
    size = len(data)
    if size < 2:
        return 0
    flags = data[0] << 8 | data[1]
    if flags & _TELLING:
        return 0
    at = 2
    try:
        if flags & 0x8000:
            at += 1 + data[at]
        if flags & 0x4000:
            at += 1 + data[at]
        if flags & 0x2000:
            at += 4 + int.from_bytes(data[at : at + 4], "big")
        if flags & 0x1000:
            at += 1
    except IndexError:
        return 0
    return at if at <= size else 0


def _judge(start: bytes) -> tuple[int, tuple[int, ...]] | None:
    """The delivery mode of what begins so, and the sizes of what follows; None where it asks for something."""
    flags = start[0] << 8 | start[1]
    rest: list[int] = []
    for flag, size in ((0x0400, 0), (0x0080, 0), (0x0040, _TIME), (0x0020, 0), (0x0008, 0), (0x0004, 0)):
        if flags & flag:
            rest.append(size)
    try:
        told = peek(start + b"".join([bytes(size or 1) for size in rest]))
    except ProtocolError:
        return None
    if told.headers is not None and not ASKING.isdisjoint(told.headers):
        return None
    return told.delivery_mode, tuple(rest)
