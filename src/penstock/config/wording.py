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
        case _:
            shown = "" if "password" in path else f", not {value!r}"
            wording = details["msg"].replace("Input should be", "must be")
            return Problem(path, f"{wording[:1].lower()}{wording[1:]}{shown}")


def _keys_at(path: Path_) -> list[str]:
    """Keys that the table at `path` may have."""
    model: type[BaseModel] = Settings
    keyed = False
    for name in path:
        if isinstance(name, int) or keyed:  # a place in a list, or a name that the file gave
            keyed = False
            continue
        field = next((one for key, one in model.model_fields.items() if name in {key, one.alias}), None)
        inner = None if field is None else _model_in(field.annotation)
        if inner is None:
            return []
        model, keyed = inner, _origin(field) is dict
    return [field.alias or name for name, field in model.model_fields.items()]


def _origin(field: FieldInfo | None) -> object:
    return None if field is None else get_origin(field.annotation)


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for item in get_args(annotation) if (found := _model_in(item)) is not None), None)
