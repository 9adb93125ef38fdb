"""Every field of every command of Flight and of every operation: what cannot be read is told by its name and value.

The tables say which fields there are.  A sentence also says what may stand there: a type, a range, a bound, the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson
import pytest

from penstock.errors import InvalidArgument, shown
from penstock.operations import OPERATIONS
from penstock.wire.fields import COMMAND_LIMIT, LSN_MAX, Field, Fields
from penstock.wire.flight import tickets
from penstock.wire.flight.tickets import parse_exchange, parse_get, parse_put
from penstock.wire.http.bodies import Lenient


class Bad(NamedTuple):
    """A value that a field may not have, and what a sentence says of it."""

    value: object
    says: str
    allowed: str


def _texts(field: Field) -> Iterator[Bad]:
    yield Bad(5, "5", "not text")
    yield Bad([], "[]", "not text")
    if field.high < COMMAND_LIMIT // 2:  # else the command is too long
        yield Bad("x" * (field.high + 1), f"has {field.high + 1} bytes", f"at most {field.high} are allowed")
    if field.needed or field.low:
        yield Bad("", "is empty", "")


def _counts(field: Field) -> Iterator[Bad]:
    yield Bad("x", "'x'", "whole number")
    yield Bad(True, "true", "whole number")
    yield Bad(1.5, "1.5", "whole number")
    for value in (field.low - 1, field.high + 1):
        if abs(value) < 1 << 63:
            seconds = " (1s to 1w)" if field.name == "lasts_s" else ""  # as who asks may have written them
            yield Bad(value, str(value), f"{field.low}..{field.high}{seconds}")


def _flags(_: Field) -> Iterator[Bad]:
    yield Bad(1, "1", "not true or false")
    yield Bad("yes", "'yes'", "not true or false")


def _durations(_: Field) -> Iterator[Bad]:
    yield Bad("5", "'5'", "use one of us ms s m h d w")
    yield Bad("5 lightyears", "'5 lightyears'", "use one of us ms s m h d w")
    yield Bad("soon", "'soon'", "as in 30s")
    yield Bad("9999999999d", "'9999999999d'", "at most")
    yield Bad(-1, "-1", "such as '30s'")
    yield Bad(True, "true", "such as '30s'")
    yield Bad([], "[]", "such as '30s'")
    yield Bad(1e300, "1e+300", "such as '30s'")


def _tables(_: Field) -> Iterator[Bad]:
    yield Bad(5, "5", "not a JSON object")
    yield Bad(["x"], "['x']", "not a JSON object")


def _lists_of_texts(field: Field) -> Iterator[Bad]:
    yield Bad(5, "5", "not a list of texts")
    yield Bad(["x", 5], "5", "not text")
    yield Bad(["x"] * (field.high + 1), f"has {field.high + 1} items", f"at most {field.high} are allowed")


def _names(field: Field) -> Iterator[Bad]:
    yield Bad(5, "5", "not a list of names")
    yield Bad([5], "5", field.known[0])
    yield Bad([field.known[0], "no such thing"], "'no such thing'", field.known[0])
    yield Bad([], "empty", field.known[0])


def _numbers(field: Field) -> Iterator[Bad]:
    yield Bad(5, "5", "not a list of LSNs")
    yield Bad([1, 0], "0", f"1..{LSN_MAX}")
    yield Bad(["x"], "'x'", f"1..{LSN_MAX}")
    if field.high < 1 << 20:
        yield Bad([1] * (field.high + 1), f"has {field.high + 1} LSNs", f"{field.high} are the most")


def _lists(_: Field) -> Iterator[Bad]:
    yield Bad(5, "5", "not a list")


BAD: Mapping[str, Callable[[Field], Iterator[Bad]]] = {
    "name": _texts, "text": _texts, "count": _counts, "flag": _flags, "duration": _durations, "table": _tables,
    "texts": _lists_of_texts, "names": _names, "numbers": _numbers, "list": _lists, "value": lambda _: iter(()),
}  # fmt: skip
"""By kind.  What is a value is anything for JSON; who takes it judges it."""

GOOD: Mapping[str, object] = {"name": "7", "count": 1, "table": {}, "texts": ["x"], "list": [], "value": 1}

COMMANDS = {
    name: (parse, wanted)
    for parse, known in ((parse_put, tickets._PUT), (parse_exchange, tickets._EXCHANGE), (parse_get, tickets._GET))
    for name, wanted in known.items()
}


def _with(fields: Iterator[Field] | Any, one: Field, value: object) -> dict[str, Any]:
    """What is needed, and a field with this value."""
    return {**{other.name: GOOD[other.kind] for other in fields if other.needed}, one.name: value}


def assert_told(read: Callable[[], object], where: str, field: Field, bad: Bad) -> None:
    with pytest.raises(InvalidArgument) as told:
        read()
    text = str(told.value)
    case = f"{where}: {field.name} as {shown(bad.value)}: {text[:300]}"
    assert text.startswith(where), case
    assert re.search(rf"\b{field.name}\b", text.removeprefix(where)), case
    assert bad.says in text, case
    assert bad.allowed in text, case


def test_all_kinds_of_fields_have_values_that_are_none() -> None:
    kinds = {one.kind for _, wanted in COMMANDS.values() for one in wanted.fields.values()}
    kinds |= {one.kind for operation in OPERATIONS.values() for one in operation.fields}
    assert kinds <= BAD.keys()


@pytest.mark.parametrize("operation", COMMANDS)
def test_of_a_command(operation: str) -> None:
    parse, wanted = COMMANDS[operation]
    for field in wanted.fields.values():
        for bad in BAD[field.kind](field):
            command = {operation: _with(wanted.fields.values(), field, bad.value)}
            assert_told(lambda command=command: parse(orjson.dumps(command)), f"{operation}: ", field, bad)  # type: ignore[misc]


@pytest.mark.parametrize("name", OPERATIONS)
def test_of_an_operation(name: str) -> None:
    """As an action of Flight, and as HTTP's paths of our own read their bodies."""
    declared = OPERATIONS[name].fields
    for field in declared:
        for bad in BAD[field.kind](field):
            given = _with(declared, field, bad.value)
            assert_told(lambda given=given: Fields(name, given).read(declared), f"{name}: ", field, bad)  # type: ignore[misc]


@pytest.mark.parametrize("name", OPERATIONS)
def test_of_an_operation_in_a_query(name: str) -> None:
    """All is text there."""
    declared = OPERATIONS[name].fields
    for field in declared:
        for bad in BAD[field.kind](field):
            if isinstance(bad.value, str) and field.kind not in ("name", "text", "table", "texts", "names", "numbers"):
                given = _with(declared, field, bad.value)

                def read(given: dict[str, Any] = given) -> object:
                    return Fields(name, Lenient(given).loosely(declared)).read(declared)

                with pytest.raises(InvalidArgument) as told:
                    read()
                assert field.name in str(told.value)
                assert bad.says in str(told.value)
