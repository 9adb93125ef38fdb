"""What every table of the settings file is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from penstock.units import parse_duration, parse_size

MIB = 1 << 20

Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=255)]


def _duration(value: object) -> int:
    return parse_duration(_with_unit(value, "s"))


def _size(value: object) -> int:
    return parse_size(_with_unit(value, "B"))


def _with_unit(value: object, unit: str) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f"{value} needs a unit: write '{value}{unit}' if that is meant")
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text with a unit")
    return value


Duration: TypeAlias = Annotated[int, BeforeValidator(_duration), Field(json_schema_extra={"unit": "duration"})]
Size: TypeAlias = Annotated[int, BeforeValidator(_size), Field(json_schema_extra={"unit": "size"})]


class Section(BaseModel):
    """A table of the file: frozen, and without room for keys that nobody knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


S = TypeVar("S", bound=Section)

Refusals: TypeAlias = Sequence[tuple[Callable[[S], object], str | Callable[[S], str]]]
"""What cannot be: in which sections, and why, with the section as `{one}`."""


def refuse(one: S, refusals: Refusals[S]) -> None:
    """ValueError with the first that holds."""
    for holds, why in refusals:
        if holds(one):
            raise ValueError(why.format(one=one) if isinstance(why, str) else why(one))


def one_of(section: Section, keys: Sequence[str], rule: str) -> None:
    """ValueError with the rule unless exactly one of these keys is given."""
    named = [key for key in keys if getattr(section, key) not in (None, False)]
    if len(named) != 1:
        raise ValueError(
            f"{rule}: " + (f"{' and '.join(named)} are given, and one may be" if named else "none is given")
        )
