"""Single values from environment variables and command line options, which win over the settings file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, cast, get_args, get_origin

from pydantic import BaseModel

from penstock.config.hints import known_name
from penstock.config.places import Path_
from penstock.config.settings import Settings
from penstock.config.telling import Problem

_VARIABLE = re.compile(r"PENSTOCK_([A-Z0-9_]+?)__([A-Z0-9_]+)\Z")


def overrides(
    environ: Mapping[str, str], options: Mapping[str, str], problems: list[Problem], labels: dict[Path_, str]
) -> Iterator[tuple[Path_, object, str]]:
    """Single values from the environment, then from options, as (path, value, label).

    problems, labels: get the variables that override nothing, and what to call each path in a message.
    """
    known = _single_values()
    for variable in sorted(environ):
        match = _VARIABLE.match(variable)
        if match is None:
            continue
        path = (match[1].lower(), *match[2].lower().split("__"))
        if path not in known:
            names = {variable_name(one): None for one in known}
            labels[path] = f"environment variable {variable}"
            problems.append(Problem(path, f"overrides no single setting{known_name(variable, names)}"))
            continue
        labels[path] = f"environment variable {variable}"
        yield path, _typed(environ[variable], known[path]), labels[path]
    for place, value in options.items():
        path = tuple(place.split("."))
        labels[path] = f"option --{path[-1].replace('_', '-')}"
        yield path, value, labels[path]


def variable_name(path: Sequence[str]) -> str:
    """`PENSTOCK_LOG__RETENTION__AGE` for ("log", "retention", "age")."""
    return "PENSTOCK_" + "__".join(path).upper()


@cache
def _single_values() -> dict[tuple[str, ...], frozenset[object]]:
    """Path of every value that a variable may override -> the types in its annotation."""
    found: dict[tuple[str, ...], frozenset[object]] = {}

    def walk(model: type[BaseModel], path: tuple[str, ...]) -> None:
        for name, field in model.model_fields.items():
            inner = field.annotation
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                walk(inner, (*path, name))
            elif path and get_origin(inner) not in {tuple, dict}:
                found[*path, name] = frozenset(_types(cast("object", inner)))

    walk(Settings, ())
    return found


def _types(annotation: object) -> Iterator[object]:
    if get_origin(annotation) is Annotated:
        metadata = get_args(annotation)[1:]
        unit_read = any(type(item).__name__ == "BeforeValidator" for item in metadata)
        yield from [str] if unit_read else _types(get_args(annotation)[0])
    elif get_args(annotation):
        for item in get_args(annotation):
            yield from _types(item)
    else:
        yield annotation


def _typed(text: str, types: frozenset[object]) -> object:
    """The text of a variable as the type its setting has; what cannot be is left as text for the check to refuse."""
    if bool in types and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if int in types and str not in types and re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    if float in types and str not in types and re.fullmatch(r"[+-]?\d{1,18}(\.\d{1,18})?", text):
        return float(text)
    return text
