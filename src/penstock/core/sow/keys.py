"""Keys of records: which field values make one, and the number that stands for it.

    number = first 8 bytes of BLAKE2b over  domain 0x1F value 0x1F value ...

The number is what the index and the log hold, and what people see as the key of a record whose key comes from fields:
an unsigned 64-bit decimal.  Of a million keys two share a number with a probability of 3 in 100 million; the later
record then replaces the other.  It knows no topic and no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import cast

import orjson

from penstock.records.dataclass import dataclass
from penstock.records.message_bodies import read_exact

SEPARATOR = b"\x1f"

EXACT = float(1 << 53)
"""Doubles of this size may stand for several whole numbers."""

GIVEN_MOST = 255
"""Bytes of a key that a publisher gives."""


@dataclass(frozen=True, slots=True)
class KeyRule:
    """How the records of one topic are told apart."""

    domain: bytes
    paths: tuple[tuple[str, ...], ...] = ()  # fields of the body; none: the publisher gives the key

    @property
    def given(self) -> bool:
        """Whether the publisher gives the key."""
        return not self.paths

    def of_text(self, text: str) -> int | str:
        """The number of a key that a publisher gave; a sentence if it cannot be one."""
        data = text.encode()
        if not data or len(data) > GIVEN_MOST:
            return f"a key has 1 to {GIVEN_MOST} bytes, not {len(data)}"
        return number_of(self.domain, (data,))

    def of_body(self, body: bytes) -> int | str:
        """The number of the key that a body holds; a sentence if it holds none."""
        try:
            value: object = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            return f"the body is no JSON, so it has no key {self.spelled()}: {str(error)[:100]}"
        return self._of_value(value, body)

    def of_bodies(self, bodies: Sequence[bytes]) -> list[int] | None:
        """The number of each key; None when one of the bodies has none (`of_body` says which)."""
        out: list[int] = []
        name = self.paths[0][0] if len(self.paths) == 1 and len(self.paths[0]) == 1 else None
        loads, whole, prefix = orjson.loads, int.from_bytes, self.domain + SEPARATOR
        for body in bodies:
            if name is not None:  # the usual key, of one field, without a call for each step
                try:
                    value: object = loads(body)
                except orjson.JSONDecodeError:
                    return None
                found = cast("dict[str, object]", value).get(name) if type(value) is dict else None
                if type(found) is str:
                    text = found.encode()
                elif type(found) is int:
                    text = b"%d" % found
                else:
                    text = None
                if text is not None:
                    out.append(whole(blake2b(prefix + text, digest_size=8).digest(), "little"))
                    continue
            number = self.of_body(body)
            if isinstance(number, str):
                return None
            out.append(number)
        return out

    def _of_value(self, value: object, body: bytes) -> int | str:
        parts: list[bytes] = []
        for path in self.paths:
            found = _at(value, path)
            if isinstance(found, float) and abs(found) >= EXACT:
                try:
                    found = _at(read_exact(body), path)
                except ValueError as error:
                    return f"the body has no key {self.spelled()} that could be read exactly: {error}"
            part = _text(found)
            if part is None:
                why = "is null or missing" if found is None else "is no single value"
                return f"the key field /{'/'.join(path)} {why}"
            parts.append(part)
        return number_of(self.domain, parts)

    def spelled(self) -> str:
        """The fields as people write them."""
        return ", ".join(f"/{'/'.join(path)}" for path in self.paths)


def number_of(domain: bytes, values: Sequence[bytes]) -> int:
    """The number of a key."""
    digest = blake2b(SEPARATOR.join((domain, *values)), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _at(value: object, path: Sequence[str]) -> object:
    """What stands at a path; None where nothing does."""
    for name in path:
        value = cast("dict[str, object]", value).get(name) if isinstance(value, dict) else None
    return value


def _text(value: object) -> bytes | None:
    """The text of one key field; None for what cannot be one.  Equal texts are equal keys, 1 and "1" too."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int | float):
        return repr(value).encode()
    return None


def domain_of(vhost: str, exchange: str, name: str) -> bytes:
    """The domain of a topic's keys: its name; with exchange and vhost where they are not the default ones."""
    text = name if not exchange and vhost == "/" else f"{vhost}\x1e{exchange}\x1e{name}"
    return text.encode("utf-8", "surrogatepass")


def parse_number(text: str) -> int | None:
    """A key as people see it, an unsigned 64-bit decimal; None for anything else."""
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        return None
    value = int(text)
    return value if value < 1 << 64 else None
