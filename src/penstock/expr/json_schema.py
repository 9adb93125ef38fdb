"""Whether a body fits a JSON Schema, and where it does not.  The library is loaded by those alone who have one.

A schema comes from whoever may declare topics, and bodies from whoever may publish, so both are bounded: nothing is
fetched, patterns run in linear time, references, which recur, go only as deep as the stack has room for whatever
the schema makes of a level, and a body is not looked at for which it would make too many steps (`schema_work`).  What
an error says has no value of the body, for it is shown to others as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from typing import Any, cast

import orjson

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.expr.bodies.type_table import body_type
from penstock.expr.schema_work import work_of
from penstock.records.message_types import JSON, MessageType

BODY_MOST = 1 << 20
"""Bytes of a body that is looked at: a mebibyte takes 40 ms."""

DEEPEST = 64
"""Levels of a body whose schema has references, unless each level takes many steps."""

STEPS = 20_000
"""Of the validator on its stack, at the deepest: a thread of a mebibyte has room for 12,000 of the costliest kind on
200 levels, and where schemas are looked at the stack has eight."""

PARTS_MOST = 2_000
"""Objects and lists of a schema with references."""

WORK_MOST = 1 << 27
"""Bytes of a body times the steps that its schema makes for one: less than a second, and 128 steps for the largest."""

DEPTH_MOST = 200
"""Levels of a schema itself; the library's own limit is about the same."""

SHOWN = 300
"""Letters of a reason."""

REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


class BodyCheck:
    """A schema, ready to be asked.  Of a body of another type than JSON it sees the JSON that readers see of it."""

    __slots__ = ("_deepest", "_type", "_validator", "_work", "name")

    def __init__(self, text: str, kind: MessageType = JSON) -> None:
        """kind: of the bodies.

        InvalidArgument for what is no schema; PreconditionFailed without the library."""
        schema = _read(text)
        parts, depth, refers = _measured(schema)
        if depth > DEPTH_MOST:
            raise InvalidArgument(f"json_schema is nested {depth} levels deep; {DEPTH_MOST} are allowed")
        if refers and parts > PARTS_MOST:
            raise InvalidArgument(
                f"json_schema has references and {parts} objects and lists; with references {PARTS_MOST} are allowed"
            )
        self.name = f"json_schema [{kind}] {text}"  # of its answers, among those of filters
        self._type = None if kind == JSON else body_type(kind)
        self._deepest = max(8, min(DEEPEST, STEPS // parts)) if refers else 1 << 62
        self._validator = _validator(schema)
        self._work = list(accumulate(work_of(schema), max))  # by the levels of a body
        if self._work[0] > WORK_MOST:
            raise InvalidArgument(f"json_schema makes {self._work[0]} steps for a byte; {WORK_MOST} are allowed")

    def fits(self, body: bytes) -> bool:
        """Whether a body is JSON within the bounds and as its schema asks."""
        try:
            body = self._shown(body)
            value: object = orjson.loads(body)
        except ValueError:
            return False
        brackets = body.count(b"{") + body.count(b"[")  # no fewer than its levels
        if brackets > self._deepest or self._steps(body, brackets) > WORK_MOST:
            depth = _measured(value)[1]
            if depth > self._deepest or self._steps(body, depth) > WORK_MOST:
                return False
        return bool(self._validator.is_valid(value))

    def _shown(self, body: bytes) -> bytes:
        """A body as JSON.  ValueError for one that is none of its type, or too large."""
        if self._type is not None and len(body) <= BODY_MOST:
            try:
                body = self._type.json(body)
            except ValueError as error:
                raise ValueError(f"it is no {self._type.title}: {error}") from None
        if len(body) > BODY_MOST:
            raise ValueError(f"it has {len(body)} bytes, and no more than {BODY_MOST} are looked at")
        return body

    def _steps(self, body: bytes, depth: int) -> int:
        """For a body of so many levels, at most."""
        return len(body) * self._work[min(depth, len(self._work) - 1)]

    def why(self, body: bytes) -> str:
        """The first thing that is wrong with a body that does not fit, and where; no value of it."""
        try:
            body = self._shown(body)
            value: object = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            return f"it is no JSON: {error}"
        except ValueError as error:
            return str(error)
        depth = _measured(value)[1]
        if depth > self._deepest:
            return f"it is nested {depth} levels deep, and no more than {self._deepest} are looked at"
        if (steps := self._steps(body, depth)) > WORK_MOST:
            return f"its schema would make {steps} steps, and no more than {WORK_MOST} are made"
        for wrong in self._validator.iter_errors(value):
            place = "".join(f"/{step}" for step in cast("Iterable[object]", wrong.instance_path)) or "/"
            return f"{place}: {wrong.message}"[:SHOWN]
        return "it fits"


@lru_cache(maxsize=256)
def compile_check(text: str, kind: MessageType = JSON) -> BodyCheck:
    """The check that a text spells, of bodies of a type."""
    return BodyCheck(text, kind)


def _read(text: str) -> Any:
    try:
        schema: Any = orjson.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"json_schema is no JSON: {error}") from None
    if type(schema) not in (dict, bool):
        raise InvalidArgument(f"json_schema is an object, not {text[:60]!r}")
    return schema


def _validator(schema: Any) -> Any:
    try:
        import jsonschema_rs
    except ImportError:
        raise PreconditionFailed("json_schema needs the library jsonschema-rs: penstock[json-schema]") from None
    try:
        return jsonschema_rs.validator_for(
            schema, pattern_options=jsonschema_rs.RegexOptions(), offline=True, mask="the value"
        )
    except (ValueError, jsonschema_rs.ValidationError) as error:
        said = getattr(error, "message", None) or str(error)
        raise InvalidArgument(f"json_schema: {said[:SHOWN]}") from None


def _measured(value: object) -> tuple[int, int, bool]:
    """Objects and lists in a value, its levels, and whether a key of it is one of a reference."""
    parts, depth, refers = 0, 0, False
    level: list[Any] = [value]
    while level:
        tables = [one for one in level if one.__class__ is dict]
        lists = [one for one in level if one.__class__ is list]
        parts += len(tables) + len(lists)
        depth += bool(tables or lists)
        refers = refers or not all(map(REFERENCES.isdisjoint, tables))
        level = [each for one in tables for each in one.values()] + [each for one in lists for each in one]
    return parts, depth, refers
