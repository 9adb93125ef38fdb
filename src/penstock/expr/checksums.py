"""CRC-32 (zlib) and CRC-64/XZ (ECMA-182, reflected) of a text's bytes, as unsigned integers."""

from __future__ import annotations

import zlib
from functools import cache

from penstock.expr.values import Value, text, to_bytes

CRC64_TEXT_LIMIT = 1 << 16
"""Bytes of a text beyond which CRC64 is NULL: it goes byte by byte, 4 ms for as many."""

_POLYNOMIAL = 0xC96C5795D7870F42  # 0x42F0E1EBA9EA3693 with its bits reversed
_ONES = (1 << 64) - 1


@cache
def _table() -> tuple[int, ...]:
    out: list[int] = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        out.append(value)
    return tuple(out)


def crc32(value: Value) -> int | None:
    """CRC-32 (zlib) of the text's bytes, unsigned."""
    found = text(value)
    return None if found is None else zlib.crc32(to_bytes(found))


def crc64(value: Value) -> int | None:
    """CRC-64/XZ of the text's bytes, unsigned; NULL for a text over 64 KiB."""
    found = text(value)
    if found is None:
        return None
    data = to_bytes(found)
    if len(data) > CRC64_TEXT_LIMIT:
        return None
    table = _table()
    state = _ONES
    for byte in data:
        state = table[(state ^ byte) & 255] ^ (state >> 8)
    return state ^ _ONES
