"""Avro: a body is one datum, bare or behind the id of its schema; what JSON has not is told in text, as of MessagePack.

A schema decides how much a few bytes may become, so those are refused that leave it without a bound: one that contains
itself, lists of what takes no bytes, and more than `VALUES_MOST` values in one datum beside what its lists hold.  A
decimal takes time by the square of its bytes, and has few.
"""

from __future__ import annotations

# fastavro has no complete types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
import struct
from base64 import b64encode
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Context, Decimal
from io import BytesIO
from typing import Any, cast
from uuid import UUID

import fastavro
import orjson
from fastavro.read import LOGICAL_READERS
from fastavro.schema import SchemaParseException, UnknownType

from penstock.expr.bodies.body_type import NOT_UTF8, Reading, Whole, Words, refusal
from penstock.expr.bodies.packed import Told, plain
from penstock.records.message_types import BARE, PREFIX, Schemas, unregistered
from penstock.units import as_text

VALUES_MOST = 10_000
"""Values of one datum beside those of its lists."""

DEPTH_MOST = 64
"""Levels of a schema."""

RATIO_MOST = 4
"""Values of an item of a list for each byte that it takes."""

DIGITS_MOST, DECIMAL_MOST = 308, 160
"""Digits of a decimal as its schema says, and bytes of one: these are 129, and some writers fill up."""

_DECIMAL = "penstock-decimal"
"""What schemas of ours call a decimal, so that it is read here, and those of others in this process by fastavro."""

_SIZES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


def _moment(value: datetime) -> str:
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z")


_TOLD: Mapping[type, Told] = {
    bytes: lambda one: b64encode(one).decode(),
    datetime: _moment,
    date: date.isoformat,
    time: time.isoformat,
    Decimal: as_text,
    UUID: str,
}


class _LongDecimal(ArithmeticError):
    """One that has more bytes than are read."""


_WORDS: Words = {
    re.compile("UnicodeDecodeError"): NOT_UTF8,
    re.compile("EOFError|error"): "it ends too soon, or a length in it is too large",
    re.compile("IndexError|KeyError"): "it has a branch of a union, or a word of an enum, that its schema has not",
    re.compile("ValueError|OverflowError|TypeError"): "a date, a time or a UUID in it is none",
}


def _decimal(data: bytes, schema: Any, _: Any = None) -> Decimal:
    if len(data) > DECIMAL_MOST:
        raise _LongDecimal(f"a decimal of {len(data)} bytes, {DECIMAL_MOST} are allowed")
    return Decimal(int.from_bytes(data, signed=True)).scaleb(-int(schema.get("scale", 0)), _EXACT)


_EXACT = Context(prec=3 * DECIMAL_MOST)  # a byte has two digits and a half
LOGICAL_READERS[f"bytes-{_DECIMAL}"] = LOGICAL_READERS[f"fixed-{_DECIMAL}"] = _decimal


def avro_reading(schemas: Schemas) -> Reading:
    """What reads bodies of these schemas.  ValueError for one that is none, or without bounds."""
    read = {number: _parsed(str(text)) for number, text in schemas.by_id.items()}
    bare = read.get(BARE)
    told = dict(_TOLD)

    def reading(body: Whole) -> object:
        stream = BytesIO(body)
        schema = bare
        if schema is None:
            number = schemas.id_of(body)
            schema = read.get(number)
            if schema is None:
                raise unregistered(number)
            stream.seek(PREFIX)
        try:
            value = fastavro.schemaless_reader(stream, cast("Any", schema), None)
        except (EOFError, ValueError, LookupError, TypeError, ArithmeticError, struct.error) as error:
            raise refusal(error, _WORDS) from None
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes follow")
        return plain(value, told)

    return reading


def _parsed(text: str) -> object:
    try:
        schema = orjson.loads(text)
        names: dict[str, Any] = {}
        if "__fastavro_parsed__" in text or "__named_schemas" in text:
            raise ValueError("it says that it was parsed")
        fastavro.parse_schema(schema)
        parsed = fastavro.parse_schema(_with_decimals(schema), names)
    except UnknownType as error:
        raise ValueError(f"no Avro schema: no type is called {error.name!r:.200}") from None
    except KeyError as error:
        raise ValueError(f"no Avro schema: a part of it has no {error.args[0]!r:.200}") from None
    except (ValueError, RecursionError, SchemaParseException) as error:
        raise ValueError(f"no Avro schema: {str(error)[:200]}") from None
    except (LookupError, TypeError, AttributeError):  # of code that takes its parts for what they are not
        raise ValueError("no Avro schema: a part of it is of another kind than Avro has there") from None
    _Bounds(names).of(parsed, ())
    return parsed


def _with_decimals(schema: Any) -> Any:
    """The same, in which decimals are ours.  ValueError for one of too many digits."""
    if isinstance(schema, list):
        return [_with_decimals(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: _with_decimals(schema[name]) for name in ("type", "items", "values", "fields") if name in schema}
    if schema.get("logicalType") == "decimal":
        if schema["precision"] > DIGITS_MOST:
            raise ValueError(f"a decimal of {schema['precision']} digits, {DIGITS_MOST} are allowed")
        parts["logicalType"] = _DECIMAL
    return {**schema, **parts}


class _Bounds:
    """How many values a datum is beyond `RATIO_MOST` for each of its bytes, how many beside its lists, how many levels.

    Where the first is none for the items of each list, a body has so many values at most for each of its bytes.
    fastavro reads levels by calls in C, which nothing but the end of the stack stops.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._known: dict[str, tuple[int, int, int]] = {}

    def of(self, schema: Any, inside: tuple[str, ...], levels: int = DEPTH_MOST) -> tuple[int, int, int]:
        """All three.  ValueError for what has no bounds.  inside: names of what is open."""
        if levels < 0:
            raise _too_deep()
        if isinstance(schema, list):
            found = [self.of(one, inside, levels - 1) for one in schema]
            if not found:
                raise ValueError("a choice of nothing")
            beyond, width, height = map(max, zip(*found, strict=True))
            return beyond - RATIO_MOST, width, height + 1
        if isinstance(schema, str):
            return (1 - RATIO_MOST * _SIZES[schema], 1, 0) if schema in _SIZES else self._named(schema, inside, levels)
        kind = schema["type"]
        match kind:
            case "array" | "map":
                beyond, width, height = self.of(schema["items" if kind == "array" else "values"], inside, levels - 1)
                if beyond + (1 - RATIO_MOST) * (kind == "map") > 0:
                    raise ValueError(f"a list whose items are {width} values in next to no bytes: it has no bounds")
                return 1 - RATIO_MOST, 1, height + 1
            case "record" | "error" | "enum" | "fixed":
                return self._named(schema["name"], inside, levels)
            case _:
                return self.of(kind, inside, levels - 1)

    def _named(self, name: str, inside: tuple[str, ...], levels: int) -> tuple[int, int, int]:
        if name in inside:
            raise ValueError(f"{name} contains itself: it has no bounds")
        found = self._known.get(name)
        if found is None:
            schema = self._names[name]
            match schema["type"]:
                case "enum":
                    found = 1 - RATIO_MOST, 1, 0
                case "fixed":
                    size = schema["size"]
                    if type(size) is not int or size < 0:
                        raise ValueError(f"{name} has a size of {str(size)[:60]}")
                    found = 1 - RATIO_MOST * size, 1, 0
                case _:
                    parts = [self.of(one["type"], (*inside, name), levels - 1) for one in schema["fields"]]
                    beyond, width = (1 + sum(part[at] for part in parts) for at in (0, 1))
                    found = beyond, width, 1 + max((height for _, _, height in parts), default=0)
            if found[1] > VALUES_MOST:
                raise ValueError(f"{name} has more than {VALUES_MOST} values")
            self._known[name] = found
        if found[2] > levels:
            raise _too_deep()
        return found


def _too_deep() -> ValueError:
    return ValueError(f"a schema that is nested more than {DEPTH_MOST} levels deep")
