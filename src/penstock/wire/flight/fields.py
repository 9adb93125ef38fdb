"""Reading a stranger's JSON object field by field: types, ranges, unknown names.

Owns the wording of what is wrong with a command.  Refuses to know any command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import cast

import orjson

from penstock.errors import InvalidArgument
from penstock.units import parse_duration

COMMAND_LIMIT = 1 << 20
"""Bytes of JSON in one command, ticket or action."""

NAME_LIMIT = 255
"""Bytes of a name: what an AMQP short string holds, so that every door can say it."""

LSN_MAX = 2**53 - 1

NUMBER_MOST = 2**63 - 1
"""The highest batch of a sink's: writers with numbers of their own may count in nanoseconds."""


def read_json(data: bytes, what: str) -> dict[str, object]:
    """A JSON object, or InvalidArgument that says what came instead."""
    if len(data) > COMMAND_LIMIT:
        raise InvalidArgument(f"{what} has {len(data)} bytes of JSON; at most {COMMAND_LIMIT} are read")
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"{what} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is {shown(value)}, not a JSON object")
    return cast("dict[str, object]", value)


def shown(value: object) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, else what is known."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"


class Fields:
    """One object of a command.  Each method takes a field out; `finish` refuses what nobody took."""

    def __init__(self, where: str, values: Mapping[str, object]) -> None:
        self.where = where
        self._left = dict(values)
        self._asked: list[str] = []

    @classmethod
    def of(cls, where: str, value: object) -> Fields:
        """The fields of a nested object."""
        if not isinstance(value, dict):
            raise InvalidArgument(f"{where} is {shown(value)}, not a JSON object")
        return cls(where, cast("dict[str, object]", value))

    def _take(self, name: str) -> object:
        self._asked.append(name)
        return self._left.pop(name, None)

    def has(self, name: str) -> bool:
        """Whether the field was given."""
        return self._left.get(name) is not None

    def bad(self, name: str, value: object, wanted: str) -> InvalidArgument:
        """The error for a value that is not what was wanted."""
        return InvalidArgument(f"{self.where}: {name} is {shown(value)}, not {wanted}")

    def optional_text(self, name: str, limit: int = NAME_LIMIT) -> str | None:
        """Text of at most `limit` bytes, or None when absent."""
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.bad(name, value, "text")
        if len(value.encode()) > limit:
            raise InvalidArgument(f"{self.where}: {name} has {len(value.encode())} bytes; at most {limit} are allowed")
        return value

    def text(self, name: str, default: str = "", limit: int = NAME_LIMIT) -> str:
        """Text, or the default when absent."""
        value = self.optional_text(name, limit)
        return default if value is None else value

    def name(self, name: str, limit: int = NAME_LIMIT) -> str:
        """Text that must be there and not be empty."""
        value = self.optional_text(name, limit)
        if not value:
            raise InvalidArgument(f"{self.where}: {name} is {'missing' if value is None else 'empty'}")
        return value

    def optional_count(self, name: str, low: int = 0, high: int = LSN_MAX) -> int | None:
        """A whole number in low..high, or None when absent."""
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.bad(name, value, "a whole number")
        if not low <= value <= high:
            raise InvalidArgument(f"{self.where}: {name} is {value}, not in {low}..{high}")
        return value

    def count(self, name: str, default: int = 0, low: int = 0, high: int = LSN_MAX) -> int:
        """A whole number, or the default when absent."""
        value = self.optional_count(name, low, high)
        return default if value is None else value

    def number(self, name: str, low: int = 0, high: int = LSN_MAX) -> int:
        """A whole number that must be there."""
        value = self.optional_count(name, low, high)
        if value is None:
            raise InvalidArgument(f"{self.where}: {name} is missing")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(name, value, "true or false")
        return value

    def duration(self, name: str, default: int) -> int:
        """Microseconds of text with a unit or of a number of seconds."""
        value = self._take(name)
        if value is None:
            return default
        micros = to_micros(value)
        if micros is None:
            raise self.bad(name, value, "a duration such as '30s' or a number of seconds")
        return micros

    def names(self, name: str, known: Iterable[str]) -> tuple[str, ...] | None:
        """A list of distinct known names, or None when absent."""
        value = self._take(name)
        if value is None:
            return None
        allowed = list(known)
        if not isinstance(value, list):
            raise self.bad(name, value, "a list of names")
        out: list[str] = []
        for item in cast("list[object]", value):
            if not isinstance(item, str) or item not in allowed:
                hint = nearest(item, allowed) if isinstance(item, str) else ""
                raise InvalidArgument(f"{self.where}: {name} has the unknown {shown(item)}{hint}")
            if item not in out:
                out.append(item)
        if not out:
            raise InvalidArgument(f"{self.where}: {name} is an empty list")
        return tuple(out)

    def texts(self, name: str, limit: int = 100_000) -> list[str]:
        """A list of texts; empty when absent."""
        value = self._take(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.bad(name, value, "a list of texts")
        items = cast("list[object]", value)
        if len(items) > limit:
            raise InvalidArgument(f"{self.where}: {name} has {len(items)} items; at most {limit} are allowed")
        out = [item for item in items if isinstance(item, str)]
        if len(out) != len(items):
            raise self.bad(name, next(i for i in items if not isinstance(i, str)), "text")
        return out

    def numbers(self, name: str, limit: int) -> list[int] | None:
        """A list of LSNs; None when there is none."""
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.bad(name, value, "a list of LSNs")
        items = cast("list[object]", value)
        if len(items) > limit:
            raise InvalidArgument(f"{self.where}: {name} has {len(items)} LSNs, and {limit} are the most")
        for one in items:
            if not isinstance(one, int) or isinstance(one, bool) or not 0 < one <= LSN_MAX:
                raise self.bad(name, one, "a list of LSNs")
        return cast("list[int]", items)

    def table(self, name: str) -> dict[str, object]:
        """An object; empty when absent."""
        value = self._take(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.bad(name, value, "a JSON object")
        return cast("dict[str, object]", value)

    def inner(self, name: str) -> Fields | None:
        """The fields of a nested object, or None when absent."""
        value = self._take(name)
        return None if value is None else Fields.of(f"{self.where}: {name}", value)

    def inners(self, name: str) -> list[Fields]:
        """The fields of each of several nested objects, or of one that stands alone."""
        value = self._take(name)
        several = cast("list[object]", value) if isinstance(value, list) else [] if value is None else [value]
        return [Fields.of(f"{self.where}: {name}", one) for one in several]

    def rest(self) -> dict[str, object]:
        """Everything that was not taken."""
        left, self._left = self._left, {}
        return left

    def finish(self) -> None:
        """Refuse fields that nobody asked for."""
        for name in self._left:
            raise InvalidArgument(f"{self.where}: unknown field {name!r}{nearest(name, self._asked)}")


def write_json(value: object, where: str) -> bytes:
    """The JSON of a command.  InvalidArgument for what JSON cannot hold: other types, integers beyond 64 bits."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise InvalidArgument(f"{where}: {error}") from None


def to_micros(value: object) -> int | None:
    """Microseconds of text with a unit or of a number of seconds, not negative; None for anything else."""
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
        return round(value * 1_000_000)
    return None
