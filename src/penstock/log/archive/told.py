"""Manifests as JSON with the sum of all that they say, and what they say read field by field.

A sum finds what a disk has done; whoever may write a manifest writes its sum, too.  So each value is looked at before
it is believed, and one that is none is told with its field and what was expected there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, TypeAlias, cast

import orjson
from crc32c import crc32c

from penstock.errors import told_as
from penstock.ports import Disk

LSN_MOST = 2**53 - 1
NUMBER_MOST = 2**63 - 1
SUM_MOST = 2**32 - 1
SHOWN_MOST = 120
"""Characters of a value that are told."""

Table: TypeAlias = "dict[str, Any]"


def with_sum(said: Table) -> bytes:
    """JSON for a person to read, with the sum of all that it says."""
    return orjson.dumps({**said, "check": _sum(said)}, option=orjson.OPT_INDENT_2)


def said_by(data: bytes, version: str) -> Table:
    """The inverse.  ValueError where its sum differs, or it does not say this."""
    try:
        said = cast("Table", orjson.loads(data))
        if said.pop("check") == _sum(said) and version in said:
            return said
    except (KeyError, AttributeError, TypeError):
        pass
    raise ValueError("is not what was written")


BYTES_MOST = 1 << 30
"""Of a manifest: of some million files."""


def read(disk: Disk, name: str, version: str) -> Table:
    """What a file says.  OSError, ValueError as `said_by`, and where it is too large to be looked at."""
    with closing(disk.open(name, readonly=True)) as file:
        if (size := file.size()) > BYTES_MOST:
            raise ValueError(f"has {size:,} bytes, a manifest has at most {BYTES_MOST:,}")
        return said_by(file.pread(size, 0), version)


def _sum(said: Table) -> int:
    return crc32c(orjson.dumps(said, option=orjson.OPT_SORT_KEYS))


def below(path: object) -> str:
    """The path of a file below a folder.  ValueError for any other: a stranger may have written it, and its sum."""
    if not isinstance(path, str) or "\0" in path or {"", ".", ".."}.intersection(path.split("/")):
        raise ValueError(f"{_shown(path)}, not the path of a file below its folder")
    return path


class Told:
    """An object of a manifest: each field is taken once, with what it may be.  ValueError names the first that is not.

    place: where it stands, as `files[0].`
    """

    def __init__(self, table: object, place: str = "") -> None:
        if not isinstance(table, dict):
            raise _wrong(place.rstrip("."), table, "an object")
        self._left = dict(cast("Table", table))
        self._place = place

    def take(self, name: str, *absent: object) -> Any:
        """Any value.  absent: what it is where nobody says it."""
        if name not in self._left:
            if absent:
                return absent[0]
            raise ValueError(f"{self._place}{name} is missing")
        return self._left.pop(name)

    def number(self, name: str, low: int = 0, high: int = LSN_MOST, *absent: int) -> int:
        return number(f"{self._place}{name}", self.take(name, *absent), low, high)

    def text(self, name: str) -> str:
        return text(f"{self._place}{name}", self.take(name))

    def text_or_none(self, name: str) -> str | None:
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise _wrong(f"{self._place}{name}", value, "a text or null")
        return value

    def path(self, name: str) -> str:
        return _path(f"{self._place}{name}", self.take(name))

    def paths(self, name: str) -> tuple[str, ...]:
        return tuple(_path(at, one) for at, one in self._items(name))

    def objects(self, name: str) -> Iterator[Told]:
        """Those of a list; who has taken all of one ends it with `finish`."""
        for at, one in self._items(name):
            yield Told(one, f"{at}.")

    def lists_of_texts(self, name: str) -> dict[str, list[str]]:
        """An object of lists of texts."""
        value, place = self.take(name), f"{self._place}{name}"
        if not isinstance(value, dict):
            raise _wrong(place, value, "an object")
        found = cast("dict[str, object]", value)
        return {key: [text(*each) for each in items(f"{place}.{_key(key)}", one)] for key, one in found.items()}

    def spans(self, name: str) -> tuple[tuple[int, int], ...]:
        """LSNs [a, b), ascending, apart from each other."""
        out, end = list[tuple[int, int]](), 0
        for at, one in self._items(name):
            pair = [each for _, each in items(at, one, "two LSNs")]
            if len(pair) != 2:
                raise _wrong(at, pair, "two LSNs")
            a, b = (number(*each, 1, LSN_MOST + 1) for each in items(at, pair))
            if a >= b:
                raise ValueError(f"{at} is [{a}, {b}], which is no span of LSNs")
            if a <= end:
                raise ValueError(f"{at} is [{a}, {b}], and the one before ends at {end}")
            out.append((a, b))
            end = b
        return tuple(out)

    def finish(self) -> None:
        """ValueError where more is said than was taken."""
        if self._left:
            raise ValueError(f"{self._place}{_key(next(iter(self._left)))} is not known")

    def _items(self, name: str) -> Iterator[tuple[str, object]]:
        return items(f"{self._place}{name}", self.take(name))


def items(place: str, value: object, expected: str = "a list") -> Iterator[tuple[str, object]]:
    """The values of a list, each with its place."""
    if not isinstance(value, list):
        raise _wrong(place, value, expected)
    for at, one in enumerate(cast("list[object]", value)):
        yield f"{place}[{at}]", one


def number(place: str, value: object, low: int = 0, high: int = LSN_MOST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(place, value, f"a whole number from {low} to {high}")
    return value


def text(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(place, value, "a text")
    return value


def _path(place: str, value: object) -> str:
    with told_as(ValueError, f"{place} is "):
        return below(value)


def _wrong(place: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{place} is {_shown(value)}, not {expected}")


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN_MOST else f"{shown[:SHOWN_MOST]}..."


def _key(name: str) -> str:
    return name if len(name) <= SHOWN_MOST else f"{name[:SHOWN_MOST]}..."
