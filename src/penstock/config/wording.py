"""What is wrong with a value, in our words: pydantic's findings, unknown names, and names of later versions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from penstock.config.hints import known_name
from penstock.config.places import Path_
from penstock.config.queues import LATER_QUEUE_KEYS
from penstock.config.settings import Settings
from penstock.config.telling import Problem
from penstock.units import format_size

LATER_SECTIONS = frozenset(
    {
        "archive",
        "bulk",
        "dashboard",
        "otel",
        "replication",
        "schedule",
    }
)
"""Sections that are taken and refused for now."""

LATER_KEYS: Mapping[str, frozenset[str]] = {
    "topic": frozenset({"schema", "retention"}),
    "queue": LATER_QUEUE_KEYS,
}
"""Keys of known sections that are taken and refused for now."""

NOT_YET = "is not supported in this version"


FORMS: Mapping[str, str] = {
    r"^[\w.]+:[\w.]+$": "module:function, as in busy:busy",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "a name of letters, digits and _ that begins with no digit",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]*$": "a name of letters, digits, _, . and - that begins with a letter or digit",
}
"""What patterns mean."""


def unknown(path: Path_, known: Sequence[str]) -> Problem:
    """A section or key that is not there, or not yet; `known` are those that are."""
    section, key = str(path[0]), str(path[-1])
    if len(path) == 1:
        if section in LATER_SECTIONS:
            return Problem(path, f"the section {NOT_YET}")
        return Problem(path, f"unknown section{known_name(section, list(known))}")
    if key in LATER_KEYS.get(section, ()):
        return Problem(path, NOT_YET)
    return Problem(path, f"unknown key{known_name(key, list(known))}")


def in_our_words(details: ErrorDetails) -> Problem:
    """pydantic's finding in our words."""
    path: Path_ = details["loc"]
    value: object = details["input"]
    context = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            return unknown(path, _keys_at(path[:-1]))
        case "missing":
            return Problem(path, "is missing")
        case "value_error":
            return Problem(path, str(context.get("error", details["msg"])))
        case "literal_error":
            expected = str(context.get("expected", ""))
            choices = re.findall(r"'([^']*)'", expected)
            hint = known_name(value, choices) if isinstance(value, str) else ""
            return Problem(path, f"{value!r} is not {'one of ' if len(choices) > 1 else ''}{expected}{hint}")
        case "model_type" | "model_attributes_type" | "dict_type":
            return Problem(path, f"{value!r} is not a table")
        case "tuple_type":
            if len(path) == 1:
                return Problem(path, f"is a list of tables: write [[{path[0]}]]")
            return Problem(path, f"{value!r} is not a list")
        case "too_short":
            return Problem(path, f"needs at least {context.get('min_length', 1)} of them, and there is none")
        case "string_too_short":
            return Problem(path, "is empty")
        case "string_pattern_mismatch":
            pattern = str(context.get("pattern", ""))
            return Problem(path, f"{value!r} is not {FORMS.get(pattern, f'of the form {pattern}')}")
        case "greater_than_equal" | "less_than_equal" if _is_size(path):
            low = details["type"] == "greater_than_equal"
            limit = format_size(context["ge" if low else "le"])
            given = format_size(value) if isinstance(value, int) else value
            return Problem(path, f"must be at {'least' if low else 'most'} {limit}, not {given}")
        case _:
            shown = "" if "password" in path else f", not {value!r}"
            wording = details["msg"].replace("Input should be", "must be")
            return Problem(path, f"{wording[:1].lower()}{wording[1:]}{shown}")


def without_consequences(found: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Without the remark that a list is too short whose items were all wrong: those are told of."""
    inside = {one["loc"][:length] for one in found for length in range(len(one["loc"]))}
    return [one for one in found if one["type"] != "too_short" or one["loc"] not in inside]


def _is_size(path: Path_) -> bool:
    """Whether the value there is a number of bytes."""
    model = _model_at(path[:-1])
    field = None if model is None else model.model_fields.get(str(path[-1]))
    if field is None:
        return False
    inner = (mark for one in get_args(field.annotation) for mark in getattr(one, "__metadata__", ()))
    return any(isinstance(one, FieldInfo) and one.json_schema_extra == {"unit": "size"} for one in (field, *inner))


def _keys_at(path: Path_) -> list[str]:
    """Keys that the table at `path` may have."""
    model = _model_at(path)
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _model_at(path: Path_) -> type[BaseModel] | None:
    """What the table at `path` is; None where it has names of its own."""
    model: type[BaseModel] = Settings
    keyed = False
    for name in path:
        if isinstance(name, int) or keyed:  # a place in a list, or a name that the file gave
            keyed = False
            continue
        field = next((one for key, one in model.model_fields.items() if name in {key, one.alias}), None)
        inner = None if field is None else _model_in(field.annotation)
        if inner is None:
            return None
        model, keyed = inner, _origin(field) is dict
    return model


def _origin(field: FieldInfo | None) -> object:
    return None if field is None else get_origin(field.annotation)


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for item in get_args(annotation) if (found := _model_in(item)) is not None), None)
