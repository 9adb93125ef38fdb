"""Keys of messages: 64 bits of a hash of what an expression or a header gave.

Two of a million keys share one with a probability of 3 in 100 million.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import cast

NO_KEY = 0


def key_of(value: object) -> int:
    """The key of what an expression gave: equal texts and numbers are one key, 1 and 1.0 too; NULL is none."""
    if isinstance(value, list):
        value = next(iter(cast("list[object]", value)), None)
    if isinstance(value, bool):
        data = b"b%d" % value
    elif isinstance(value, int):
        data = b"n%d" % value
    elif isinstance(value, float):
        data = b"n%d" % int(value) if value.is_integer() else b"n" + repr(value).encode()
    elif isinstance(value, str) and value:
        data = b"t" + value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes) and value:
        data = b"t" + value
    else:
        return NO_KEY
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True) or 1
