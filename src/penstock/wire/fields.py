"""Reading a stranger's JSON object field by field: types, ranges, defaults, unknown names, for every door.

Owns the wording of what is wrong with a value: its field, the value, what is allowed.  `Fields` reads commands of our
own, `wire.http.bodies` what tools of RabbitMQ send.  A list of `Field` declares what an operation takes, and
`Fields.read` reads all of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, cast

import orjson

from penstock.errors import InvalidArgument, known_name, shown, told_as
from penstock.units import format_duration, parse_duration

COMMAND_LIMIT = 1 << 20
"""Bytes of JSON in one command, ticket or action."""

PROPERTIES_MOST = 128 << 10
"""Bytes of a message's properties, encoded, as a frame of AMQP has by default: each value of them is looked at on the
loop, and three million kept it for five seconds.
"""

NAME_LIMIT = 255
"""Bytes of a name: what an AMQP short string holds, so that every door can say it."""

LSN_MAX = 2**53 - 1

NUMBER_MOST = 2**63 - 1
"""The highest batch of a sink's: writers with numbers of their own may count in nanoseconds."""

DEPTH_MOST = 32
"""Objects and lists inside each other: as many as an AMQP table may have."""


TEXTS_MOST = 100_000
"""Texts of one list."""

T = TypeVar("T")


class Field(NamedTuple):
    """One declared argument: what it is called, its kind, its bounds, and what it is where nobody gives it."""

    name: str
    kind: Literal[
        "name", "text", "count", "flag", "duration", "table", "texts", "names", "numbers", "list", "value", "inner",
        "inners",
    ]  # fmt: skip
    default: Any = None
    low: int = 0
    high: int = LSN_MAX  # of a number; of a text its bytes, of a list its length
    needed: bool = False  # it must be there
    known: tuple[str, ...] = ()  # of names


def name(of: str, most: int = NAME_LIMIT) -> Field:
    """A text that must be there and not be empty."""
    return Field(of, "name", high=most, needed=True)


def text(of: str, default: str | None = None, most: int = NAME_LIMIT, *, least: int = 0) -> Field:
    """A text of so many bytes."""
    return Field(of, "text", default, least, most)


def count(of: str, low: int = 0, high: int = LSN_MAX, default: int | None = None, *, needed: bool = False) -> Field:
    """A whole number in a range."""
    return Field(of, "count", default, low, high, needed)


def flag(of: str, default: bool | None = False) -> Field:
    return Field(of, "flag", default)


def duration(of: str, default: int | None = None) -> Field:
    """Microseconds, of text with a unit or of a number of seconds."""
    return Field(of, "duration", default)


def table(of: str) -> Field:
    """An object; empty when absent."""
    return Field(of, "table", MappingProxyType({}))


def texts(of: str, most: int = TEXTS_MOST, default: tuple[str, ...] | None = None) -> Field:
    """A list of texts."""
    return Field(of, "texts", default, high=most)


def names(of: str, known: Iterable[str]) -> Field:
    """A list of distinct names of these, or None when absent."""
    return Field(of, "names", known=tuple(known))


def numbers(of: str, most: int) -> Field:
    """A list of LSNs, or None when absent."""
    return Field(of, "numbers", high=most)


VHOST = text("vhost", "/")
"""The vhost that an operation works in."""


def read_json(data: bytes, what: str) -> dict[str, object]:
    """A JSON object, or InvalidArgument that says what came instead."""
    if len(data) > COMMAND_LIMIT:
        raise InvalidArgument(f"{what} has {len(data)} bytes of JSON; at most {COMMAND_LIMIT} are read")
    with told_as(InvalidArgument, f"{what} is no JSON: ", instead=orjson.JSONDecodeError):
        value: object = orjson.loads(data)
    if why := too_long_a_number(data):
        raise InvalidArgument(f"{what}: {why}")
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is {shown(value)}, not a JSON object")
    return cast("dict[str, object]", value)


_LONG = re.compile(rb"[:,\[]\s*-?[0-9]{19}")


def too_long_a_number(data: bytes) -> str:
    """Which whole number of JSON that was read has more than 64 bits, which its reader makes a fraction; or nothing."""
    if _LONG.search(data) is None:
        return ""
    try:
        return _not_json(json.loads(data))
    except (ValueError, RecursionError) as error:  # it goes less deep than the other reader, and takes fewer digits
        return str(error)


def _as_durations(name: str, low: int, high: int) -> str:
    """Bounds of what counts time, as its asker may have written them: ` (1s to 1w)`; of all else nothing."""
    unit = 1_000_000 if name.endswith("_s") else 1 if name == "wait" else 0
    return f" ({format_duration(low * unit)} to {format_duration(high * unit)})" if unit else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, else what is known."""
    names = sorted(known)
    return known_name(name, names, f"; known: {', '.join(names)}" if names else "; it takes none")


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

    def take(self, name: str) -> object:
        """Whatever it is, or None when absent."""
        self._asked.append(name)
        return self._left.pop(name, None)

    def _typed(self, name: str, kind: type[T], wanted: str) -> T | None:
        """A value of a type, or None when absent."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.bad(name, value, wanted)
        return value

    def _list(self, name: str, wanted: str) -> list[object] | None:
        """A list, or None when absent."""
        return cast("list[object] | None", self._typed(name, list, wanted))

    def has(self, name: str) -> bool:
        """Whether the field was given."""
        return self._left.get(name) is not None

    @property
    def place(self) -> str:
        """What a sentence about a field begins with."""
        return f"{self.where}: "

    def bad(self, name: str, value: object, wanted: str) -> InvalidArgument:
        """The error for a value that is not what was wanted."""
        return InvalidArgument(f"{self.place}{name} is {shown(value)}, not {wanted}")

    def missing(self, name: str) -> InvalidArgument:
        """The error for a field that must be there."""
        return InvalidArgument(f"{self.place}{name} is missing")

    def optional_text(self, name: str, limit: int = NAME_LIMIT) -> str | None:
        """Text of at most `limit` bytes, or None when absent."""
        value = self._typed(name, str, "text")
        if value is not None and len(value.encode()) > limit:
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
            missing = "missing" if value is None else "empty, and must be a text of one character at least"
            raise InvalidArgument(f"{self.where}: {name} is {missing}")
        return value

    def optional_count(self, name: str, low: int = 0, high: int = LSN_MAX) -> int | None:
        """A whole number in low..high, or None when absent."""
        value = self._typed(name, int, "a whole number")
        if value is not None and not low <= value <= high:
            raise InvalidArgument(
                f"{self.where}: {name} is {value}, not in {low}..{high}{_as_durations(name, low, high)}"
            )
        return value

    def count(self, name: str, default: int = 0, low: int = 0, high: int = LSN_MAX) -> int:
        """A whole number, or the default when absent."""
        value = self.optional_count(name, low, high)
        return default if value is None else value

    def number(self, name: str, low: int = 0, high: int = LSN_MAX) -> int:
        """A whole number that must be there."""
        value = self.optional_count(name, low, high)
        if value is None:
            raise self.missing(name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._typed(name, bool, "true or false")
        return default if value is None else value

    def duration(self, name: str, default: int) -> int:
        """Microseconds of text with a unit or of a number of seconds."""
        value = self.take(name)
        if value is None:
            return default
        with told_as(InvalidArgument, f"{self.place}{name}: ", instead=InvalidArgument):
            micros = to_micros(value)
        if micros is None:
            raise self.bad(name, value, "a duration such as '30s' or a number of seconds")
        return micros

    def names(self, name: str, allowed: Sequence[str]) -> tuple[str, ...] | None:
        """A list of distinct known names, or None when absent."""
        if (items := self._list(name, "a list of names")) is None:
            return None
        out: list[str] = []
        for item in items:
            if not isinstance(item, str) or item not in allowed:
                hint = nearest(item if isinstance(item, str) else "", allowed)
                raise InvalidArgument(f"{self.where}: {name} has the unknown {shown(item)}{hint}")
            if item not in out:
                out.append(item)
        if not out:
            raise InvalidArgument(f"{self.where}: {name} is an empty list{nearest('', allowed)}")
        return tuple(out)

    def texts(self, name: str, limit: int = TEXTS_MOST) -> list[str]:
        """A list of texts; empty when absent."""
        items = self._list(name, "a list of texts") or []
        if len(items) > limit:
            raise InvalidArgument(f"{self.where}: {name} has {len(items)} items; at most {limit} are allowed")
        out = [item for item in items if isinstance(item, str)]
        if len(out) != len(items):
            raise self.bad(name, next(i for i in items if not isinstance(i, str)), "text")
        return out

    def objects(self, name: str) -> list[object]:
        """A list of whatever JSON has; empty when absent."""
        return self._list(name, "a list") or []

    def numbers(self, name: str, limit: int) -> list[int] | None:
        """A list of LSNs; None when there is none."""
        if (items := self._list(name, "a list of LSNs")) is None:
            return None
        if len(items) > limit:
            raise InvalidArgument(f"{self.where}: {name} has {len(items)} LSNs, and {limit} are the most")
        for one in items:
            if not isinstance(one, int) or isinstance(one, bool) or not 0 < one <= LSN_MAX:
                raise self.bad(name, one, f"a list of LSNs, each in 1..{LSN_MAX}")
        return cast("list[int]", items)

    def table(self, name: str) -> dict[str, object]:
        """An object; empty when absent."""
        return cast("dict[str, object] | None", self._typed(name, dict, "a JSON object")) or {}

    def inner(self, name: str) -> Fields | None:
        """The fields of a nested object, or None when absent."""
        value = self.take(name)
        return None if value is None else Fields.of(f"{self.where}: {name}", value)

    def inners(self, name: str) -> list[Fields]:
        """The fields of each of several nested objects, or of one that stands alone."""
        value = self.take(name)
        several = cast("list[object]", value) if isinstance(value, list) else [] if value is None else [value]
        return [Fields.of(f"{self.where}: {name}", one) for one in several]

    def read(self, declared: Sequence[Field]) -> dict[str, Any]:
        """What an operation takes, by name; whatever else was given is refused."""
        found = {one.name: self.one(one) for one in declared}
        self.finish()
        return found

    def given(self, declared: Mapping[str, Field]) -> dict[str, Any]:
        """The same of what was given, lists as tuples: what it is otherwise, who takes it says."""
        found = dict[str, Any]()
        for name, said in list(self._left.items()):
            if name not in declared:
                raise InvalidArgument(f"{self.where}: unknown field {name!r}{nearest(name, declared)}")
            if said is not None:
                value = _READERS[declared[name].kind](self, declared[name])
                found[name] = value if (some := as_list(value)) is None else tuple(some)
        for name, one in declared.items():
            if one.needed and name not in found:
                raise self.missing(name)
        return found

    def one(self, field: Field) -> Any:
        """The value of one declared field."""
        if not self.has(field.name) and field.kind not in ("name", "table"):
            self.take(field.name)
            if field.needed:
                raise self.missing(field.name)
            return field.default
        return _READERS[field.kind](self, field)

    def rest(self) -> dict[str, object]:
        """Everything that was not taken."""
        left, self._left = self._left, {}
        return left

    def finish(self) -> None:
        """Refuse fields that nobody asked for."""
        for name in self._left:
            raise InvalidArgument(f"{self.where}: unknown field {name!r}{nearest(name, self._asked)}")


_READERS: Mapping[str, Callable[[Fields, Field], Any]] = {
    "name": lambda fields, one: fields.name(one.name, one.high),
    "text": lambda fields, one: (fields.name if one.low else fields.optional_text)(one.name, one.high),
    "count": lambda fields, one: fields.optional_count(one.name, one.low, one.high),
    "flag": lambda fields, one: fields.flag(one.name),
    "duration": lambda fields, one: fields.duration(one.name, 0),
    "table": lambda fields, one: fields.table(one.name),
    "texts": lambda fields, one: fields.texts(one.name, one.high),
    "names": lambda fields, one: fields.names(one.name, one.known),
    "numbers": lambda fields, one: fields.numbers(one.name, one.high),
    "list": lambda fields, one: fields.objects(one.name),
    "inner": lambda fields, one: fields.inner(one.name),
    "inners": lambda fields, one: fields.inners(one.name),
    "value": lambda fields, one: fields.take(one.name),
}
"""How a field of each kind is read."""


_KINDS = {
    "bool": "true or false", "int": "a number", "float": "a number", "str": "a text", "list": "a list",
    "dict": "an object",
}  # fmt: skip


def kind_of(value: object) -> str:
    """What JSON calls it, for a person."""
    return _KINDS.get(type(value).__name__, "null")


def as_list(value: object) -> list[object] | None:
    """A list of anything; None: it is none."""
    return cast("list[object]", value) if isinstance(value, list) else None


def too_deep(value: object, most: int) -> bool:
    """Whether objects and lists nest deeper than `most`."""
    level: list[Any] = [value] if isinstance(value, (dict, list)) else []
    for _ in range(most):
        inner: list[Iterable[Any]] = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for one in chain.from_iterable(inner) if isinstance(one, (dict, list))]
        if not level:
            return False
    return bool(level)


def short(text: str, what: str) -> str:
    """A name or key as AMQP can carry it.  InvalidArgument names `what`."""
    size = len(text.encode())
    if size > NAME_LIMIT:
        raise InvalidArgument(f"{what} has {size} bytes, {NAME_LIMIT} are allowed")
    return text


def bounded(properties: bytes) -> bytes:
    """A message's properties.  InvalidArgument for more than `PROPERTIES_MOST` bytes."""
    if len(properties) > PROPERTIES_MOST:
        raise InvalidArgument(f"the message's properties have {len(properties)} bytes, {PROPERTIES_MOST} are allowed")
    return properties


def write_json(value: object, where: str) -> bytes:
    """The JSON of a command.  InvalidArgument for what it cannot hold: types, long integers, no texts."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise InvalidArgument(f"{where}: {_not_json(value) or error}") from None


def _not_json(value: object, place: str = "") -> str:
    """Which integer has more than 64 bits, or which text has what is no character, in words; nothing where none has."""
    if isinstance(value, int):
        fits = -(1 << 63) <= value < 1 << 64
        return "" if fits else f"{place} is {value}, and numbers from {-(1 << 63)} to {(1 << 64) - 1} are allowed"
    if isinstance(value, str):
        plain = value.isascii() or value == value.encode(errors="replace").decode()
        return "" if plain else f"{place} is {shown(value)}, which is no text in UTF-8"
    inner: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        inner = cast("Mapping[object, object]", value).items()
    elif isinstance(value, list | tuple):
        inner = enumerate(cast("Sequence[object]", value))
    return next(filter(None, (_not_json(one, f"{place}/{name}".lstrip("/")) for name, one in inner)), "")


def to_micros(value: object) -> int | None:
    """Microseconds of text with a unit or of a number of seconds, not negative; None for anything else."""
    if isinstance(value, str):
        with told_as(InvalidArgument):
            return parse_duration(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
        return round(value * 1_000_000)
    return None
