"""One setting of a queue: its name, how its value is written, and reading that, whoever wrote it; and the way back.

A value over AMQP, in the settings file or in Python becomes what is kept inside.  Which settings there are is in
`queue_settings`; what a queue does with them is the core's.  What `written` gives, `read_value` reads again as the same
value in the same style; a path of `file_backed_metadata` alone may not be said over AMQP or in Python, where `true`
stands for it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import orjson

from penstock.errors import InvalidArgument, known_name, shown, told_as
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import Timestamp
from penstock.records.message_types import AVRO, PROTOBUF, UNPACKED_MOST, packed, wrong_type
from penstock.records.queue_settings import QueueSettings, Retry
from penstock.units import DURATION_UNITS, format_duration, parse_duration, parse_size, to_micros

Style: TypeAlias = Literal["amqp", "file", "python"]
"""Who wrote a value: durations are milliseconds, text with a unit, or seconds."""

TEN_YEARS_US = 315_360_000_000_000
"""Longest duration a queue takes: ten years, RabbitMQ's own limit for a time to live."""

COUNT_MAX = 2**53 - 1

LIMIT_MOST = 2**63 - 1
"""Of a limit of length: the largest number that AMQP has, which stands for none in clients of RabbitMQ."""

NAME_MOST = 255
"""Bytes of an exchange's name, or of a routing key: no client could say a longer one."""


class Kind(Enum):
    """How a value is read."""

    TEXT = "text"
    CHOICE = "one of"
    BODIES = "message type"
    COUNT = "whole number"
    DURATION = "duration"
    SIZE = "size"
    RETRY = "table"
    FILE = "true, false or a path"
    WEIGHTS = "table of numbers"
    LEASED = "number, or table of queue and key"
    RATE = "messages in a time, or table of queue and key"
    FLAG = "true or false"


@dataclass(frozen=True, slots=True)
class QueueKey:
    """One setting of a queue.  `low` and `high` are in the unit kept inside: microseconds for durations."""

    kind: Kind
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = COUNT_MAX
    rabbitmq: bool = False  # RabbitMQ's own argument: over AMQP a duration is a number of milliseconds and never text
    name: str = ""

    @property
    def argument(self) -> str:
        """Its name among AMQP arguments."""
        return argument_name(self.name)


def argument_name(key: str) -> str:
    """`max_backlog` is `x-max-backlog` among AMQP arguments."""
    return "x-" + key.replace("_", "-")


class BadValue(Exception):
    """A value that a key does not take: `str()` says why, `key` is the path of the key as the writer spells it."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(why)
        self.key = key


def read_value(key: QueueKey, value: object, style: Style, spelled: str) -> object:
    """One value as it is kept inside.  Raises BadValue."""
    if value is None:
        if style == "python":
            return getattr(QueueSettings(), key.name)
        raise BadValue(spelled, "it is null; leave it out where nothing is to be set")
    return _FORMS[key.kind].read(key, value, style, spelled)


def _choice(key: QueueKey, value: object, spelled: str) -> str:
    text = _text(value, spelled) if isinstance(value, bytes) else value
    if not isinstance(text, str) or text not in key.choices:
        hint = known_name(text, key.choices) if isinstance(text, str) else ""
        raise BadValue(spelled, f"{shown(text)} is not one of {', '.join(key.choices)}{hint}")
    return text


def _message_type(value: object, style: Style, spelled: str) -> str:
    if style == "file" and isinstance(value, Mapping):  # files are for the settings file alone
        with told_as(partial(BadValue, spelled)):
            return of_files(cast("Mapping[str, object]", value))
    text = _text(value, spelled)
    if why := wrong_type(text, in_file=style == "file"):
        raise BadValue(spelled, why)
    return text


def _short_text(value: object, most: int, spelled: str) -> str:
    text = _text(value, spelled)
    if (size := len(text.encode(errors="replace"))) > most:
        raise BadValue(spelled, f"{shown(text)} has {size} bytes, {most} are allowed")
    return text


def _flag(value: object, spelled: str) -> bool:
    if not isinstance(value, bool):
        raise BadValue(spelled, f"{shown(value)} is not true or false")
    return value


def _limits_of_leases(value: object, spelled: str) -> tuple[int, ...]:
    return tuple([0 if one is None else _count(one, 0, COUNT_MAX, at) for one, at in _two(value, spelled)])


def _rates(value: object, spelled: str) -> tuple[int, ...]:
    queue, of_key = _two(value, spelled)
    return (*_rate(*queue), *_rate(*of_key))


def _text(value: object, spelled: str) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise BadValue(spelled, "the text is not UTF-8") from None
    if not isinstance(value, str):
        raise BadValue(spelled, f"{shown(value)} is not text")
    return value


def _file(value: object, style: Style, spelled: str) -> bool | str:
    if isinstance(value, bool):
        return value
    if style != "file":  # who may declare a queue may not say where files are written
        raise BadValue(spelled, f"{shown(value)} is not true or false; a path is for the settings file alone")
    path = _text(value, spelled) if isinstance(value, bytes) else value
    if not isinstance(path, str) or not path or "\0" in path:
        raise BadValue(spelled, f"{shown(value)} is not true, false or the path of a file")
    return path


def _count(value: object, low: int, high: int, spelled: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool | Timestamp):
        raise BadValue(spelled, f"{shown(value)} is not a whole number")
    if not low <= value <= high:
        raise BadValue(spelled, f"{value} is not in {low}..{high}")
    return value


def _bytes(value: object, low: int, high: int, style: Style, spelled: str) -> int:
    """Bytes: a number over AMQP, text with a unit in the settings file, either in Python."""
    if style == "amqp" or (style == "python" and not isinstance(value, str)):
        return _count(value, low, high, spelled)
    if not isinstance(value, str):
        hint = f": write {str(value) + 'B'!r} if bytes are meant" if _is_number(value) else ""
        raise BadValue(spelled, f"{shown(value)} is not a size with a unit{hint}")
    with told_as(partial(BadValue, spelled)):
        return _count(parse_size(value), low, high, spelled)


def _micros(value: object, low: int, style: Style, spelled: str, *, text_too: bool = True) -> int:
    """Microseconds of a duration in the writer's own unit."""
    if isinstance(value, bytes):
        value = _text(value, spelled)
    if style == "amqp":
        if isinstance(value, str) and text_too:
            micros = _parsed(value, spelled)
        else:
            return _count(value, low // 1000, TEN_YEARS_US // 1000, spelled) * 1000
    elif style == "file":
        if not isinstance(value, str):
            hint = f": write {str(value) + 's'!r} if seconds are meant" if _is_number(value) else ""
            raise BadValue(spelled, f"{shown(value)} is not a duration with a unit{hint}")
        micros = _parsed(value, spelled)
    else:
        try:
            if isinstance(value, bool):
                raise TypeError
            micros = to_micros(value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a wrong type is what the handler is for
        except (TypeError, AttributeError, ValueError, OverflowError) as error:
            why = str(error) if isinstance(error, ValueError) and isinstance(value, str) else ""
            raise BadValue(
                spelled, why or f"{shown(value)} is not a duration: give text such as '30s', seconds or a timedelta"
            ) from None
    if not low <= micros <= TEN_YEARS_US:
        raise BadValue(spelled, f"{shown(value)} is not between {low} us and ten years")
    return micros


def _parsed(text: str, spelled: str) -> int:
    with told_as(partial(BadValue, spelled)):
        return parse_duration(text)


def _weights(value: object, spelled: str) -> tuple[tuple[str, float], ...]:
    """Weights by key, in the order of the keys."""
    if not isinstance(value, Mapping):
        raise BadValue(spelled, f"{shown(value)} is not a table of keys and numbers")
    table = cast("Mapping[object, object]", value)
    read = {str(name): _share(weight, WEIGHT_LEAST, WEIGHT_MOST, f"{spelled}.{name}") for name, weight in table.items()}
    return tuple(sorted(read.items()))


def _two(value: object, spelled: str) -> tuple[tuple[object, str], tuple[object, str]]:
    """What is said for the whole queue and for each key, each with the path of its key; None: nothing."""
    if not isinstance(value, Mapping):
        return (value, spelled), (None, f"{spelled}.key")
    table = cast("Mapping[object, object]", value)
    for name in table:
        if name not in ("queue", "key"):
            raise BadValue(
                f"{spelled}.{name}", f"unknown key{known_name(str(name), ['queue', 'key'], '; it has queue and key')}"
            )
    return (table.get("queue"), f"{spelled}.queue"), (table.get("key"), f"{spelled}.key")


def _rate(value: object, spelled: str) -> tuple[int, int]:
    """Messages and microseconds of `100/s`, `5/m`, `10/250ms`; 0 messages: no limit."""
    if value is None or (type(value) is int and value == 0):
        return 0, 1
    text = _text(value, spelled) if isinstance(value, bytes) else value
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise BadValue(spelled, f"{shown(value)} is no rate: write messages and a time, as in '100/s' or '10/250ms'")
    count, number, unit = match.groups()
    period = _parsed(f"{number or 1}{unit}", spelled)
    return _count(int(count), 1, RATE_MOST, spelled), _count(period, 1, DURATION_UNITS["d"], spelled)


_RATE = re.compile(r"\s*([0-9]{1,12})\s*/\s*([0-9]*)\s*([a-z]+)\s*")

RATE_MOST = 10**9
"""Messages of a rate."""

WEIGHT_LEAST, WEIGHT_MOST = 0.001, 1_000_000
"""Messages of a tenant in a round."""

_RETRY: Mapping[str, Callable[[object, Style, str], object]] = {
    "initial": lambda value, style, at: _micros(value, 0, style, at),
    "factor": lambda value, style, at: _share(value, 1, 1000, at),
    "max": lambda value, style, at: _micros(value, 0, style, at),
    "jitter": lambda value, style, at: _share(value, 0, 1, at),
    "attempts": lambda value, style, at: _count(value, 0, COUNT_MAX, at),
}
"""How each part of a back-off is read."""


def _retry(value: object, style: Style, spelled: str) -> Retry:
    if isinstance(value, Retry):
        return value
    if not isinstance(value, Mapping):
        raise BadValue(
            spelled, f"{shown(value)} is not a table of {', '.join(_RETRY)}, as in {{ initial = '1s', max = '5m' }}"
        )
    table = cast("Mapping[object, object]", value)
    read = dict[str, Any]()
    for name, item in table.items():
        part, place = _RETRY.get(str(name)), f"{spelled}.{name}"
        if part is None:
            rest = f"; it has {', '.join(_RETRY)}"
            raise BadValue(place, f"unknown key{known_name(str(name), list(_RETRY), rest)}")
        read[str(name)] = part(item, style, place)
    retry = replace(Retry(), **read)
    return retry if "max" in read else replace(retry, max=max(retry.max, retry.initial))


def _share(value: object, low: float, high: float, spelled: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise BadValue(spelled, f"{shown(value)} is not a number")
    if not low <= value <= high:  # false for a NaN too
        raise BadValue(spelled, f"{value} is not in {low:g}..{high:g}")
    return float(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def written(key: QueueKey, value: object, style: Style) -> object:
    """A value that is kept inside, as `style` writes it; None, which is no limit or nothing at all, stays None.

    value: of the key's own kind, as `QueueSettings` has it.
    """
    if value is None:
        return None
    return _FORMS[key.kind].write(key, value, style)


def _retry_text(value: object, style: Style) -> dict[str, object]:
    return {
        name: _duration(one, style, text_too=True) if name in ("initial", "max") else one
        for name, one in asdict(cast("Retry", value)).items()
    }


def _limits_text(value: object) -> object:
    queue, of_key = cast("tuple[int, int]", value)
    return {"queue": queue, "key": of_key} if of_key else queue


def _rates_text(value: object) -> object:
    count, period, of_key, its_period = cast("tuple[int, int, int, int]", value)
    whole = _rate_text(count, period)
    return {"queue": whole, "key": _rate_text(of_key, its_period)} if of_key else whole


def _duration(micros: int, style: Style, *, text_too: bool) -> object:
    """Text with a unit; over AMQP milliseconds, upwards where no text is taken that would say it exactly."""
    if style != "amqp" or (text_too and micros % 1000):
        return format_duration(micros)
    return -(-micros // 1000)


def _rate_text(count: int, period: int) -> str | int:
    """`100/s`, `10/250ms`; 0: no limit."""
    if not count:
        return 0
    unit = next((name for name in ("d", "h", "m", "s") if DURATION_UNITS[name] == period), None)
    return f"{count}/{unit or format_duration(period)}"


def in_line(value: object) -> str:
    """What `written` gives, in one line for a person: a table as TOML has it, text without quotes."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case Mapping():
            table = cast("Mapping[str, object]", value)
            return f"{{ {', '.join(f'{name} = {in_line(one)}' for name, one in table.items())} }}" if table else "{}"
        case _ if type(value) in (list, tuple):  # an address is a tuple with words of its own
            return ", ".join([in_line(one) for one in cast("Sequence[object]", value)]) or "none"
        case _:
            return str(value)


@dataclass(frozen=True, slots=True)
class _Form:
    """How a kind of value is read, and how it is written by a style."""

    read: Callable[[QueueKey, object, Style, str], object]
    write: Callable[[QueueKey, object, Style], object] = lambda key, value, style: value


_FORMS: Mapping[Kind, _Form] = {
    Kind.TEXT: _Form(lambda key, value, style, at: _short_text(value, key.high, at)),
    Kind.CHOICE: _Form(lambda key, value, style, at: _choice(key, value, at)),
    Kind.BODIES: _Form(lambda key, value, style, at: _message_type(value, style, at)),
    Kind.COUNT: _Form(lambda key, value, style, at: _count(value, key.low, key.high, at)),
    Kind.FLAG: _Form(lambda key, value, style, at: _flag(value, at)),
    Kind.DURATION: _Form(
        lambda key, value, style, at: _micros(value, key.low, style, at, text_too=not key.rabbitmq),
        lambda key, value, style: _duration(cast("int", value), style, text_too=not key.rabbitmq),
    ),
    Kind.SIZE: _Form(
        lambda key, value, style, at: _bytes(value, key.low, key.high, style, at),
        lambda key, value, style: f"{value}B" if style == "file" else value,
    ),
    Kind.RETRY: _Form(
        lambda key, value, style, at: _retry(value, style, at), lambda key, value, style: _retry_text(value, style)
    ),
    Kind.FILE: _Form(
        lambda key, value, style, at: _file(value, style, at),
        lambda key, value, style: value if style == "file" else bool(value),
    ),
    Kind.WEIGHTS: _Form(
        lambda key, value, style, at: _weights(value, at),
        lambda key, value, style: dict(cast("tuple[tuple[str, float], ...]", value)),
    ),
    Kind.LEASED: _Form(
        lambda key, value, style, at: _limits_of_leases(value, at), lambda key, value, style: _limits_text(value)
    ),
    Kind.RATE: _Form(lambda key, value, style, at: _rates(value, at), lambda key, value, style: _rates_text(value)),
}
"""A kind of value is a row here."""


_MESSAGE = "message"
_HEADER = "header"


def of_files(table: Mapping[str, object]) -> str:
    """The message type that a table means, which names the files of its schemas.  ValueError where it means none.

    message_type = { avro = "orders.avsc" }                            bodies of one schema, bare
    message_type = { avro = { 7 = "orders-7.avsc", 9 = "orders-9.avsc" } }    each begins with the id of its own
    message_type = { avro = { 7 = "orders-7.avsc" }, header = "schema-id" }    a header has the id
    message_type = { protobuf = "shop.pb", message = "shop.Order" }    what protoc --descriptor_set_out has written

    Files are read once, when the settings are; whether they are schemas is found out where bodies are read.
    """
    bases = [base for base in (AVRO, PROTOBUF) if base in table]
    message, header = table.get(_MESSAGE), table.get(_HEADER)
    if len(bases) != 1 or table.keys() - {*bases, _MESSAGE, _HEADER} or (message is None) == (bases == [PROTOBUF]):
        raise ValueError(
            f'{in_line(table)} is no type: write {{ avro = "FILE" }} or {{ protobuf = "FILE", message = "NAME" }}, '
            'or { ID = "FILE" } for "FILE", which may have header = "NAME" beside it'
        )
    base, given = bases[0], table[bases[0]]
    schemas: object
    if isinstance(given, Mapping):
        schemas = dict(_numbered(base, *one, str(message)) for one in cast("Mapping[str, object]", given).items())
    elif isinstance(given, str):
        schemas = _schema(base, given, str(message))
    else:
        raise ValueError(f"{base} = {given!r} is no file")
    with told_as(ValueError, instead=InvalidArgument):
        return packed(base, schemas, cast("str | None", header))


def _numbered(base: str, number: str, path: object, message: str) -> tuple[int, object]:
    if not number.isdecimal() or not isinstance(path, str):
        raise ValueError(f"{number} = {path!r} is no id and no file")
    return int(number), _schema(base, path, message)


def _schema(base: str, path: str, message: str) -> object:
    try:
        with Path(path).open("rb") as file:
            data = file.read(UNPACKED_MOST + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if base == PROTOBUF:
        return b64encode(data).decode(), message
    with told_as(ValueError, f"{path} is no JSON: ", instead=orjson.JSONDecodeError):
        return orjson.dumps(orjson.loads(data)).decode()
