"""What a mistake in the settings is told as: its place in the file it came from, and a sentence.

TOML is told as `penstock.toml:8: [[queue]] "to-ship" retry.factor: ...`, files of others in their writer's words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from penstock.config.foreign import Converted
from penstock.config.places import Path_, Place


class Problem(NamedTuple):
    """One mistake: where, and a sentence."""

    path: Path_
    text: str


def told(
    problem: Problem, data: Mapping[str, object], source: str, text: str | None, overrides: Mapping[Path_, str]
) -> str:
    """A mistake in TOML or in a mapping; `overrides` are labels of values from the environment and options."""
    for length in range(len(problem.path), 0, -1):
        label = overrides.get(problem.path[:length])
        if label is not None:
            return f"{label}: {problem.text}"
    line = line_of(text, problem.path) if text is not None else None
    return f"{source}{f':{line}' if line else ''}: {place_of(problem.path, data)}: {problem.text}"


def told_at(problem: Problem, converted: Converted, overrides: Mapping[Path_, str]) -> str:
    """A mistake in a file of others."""
    for length in range(len(problem.path), 0, -1):
        label = overrides.get(problem.path[:length])
        if label is not None:
            return f"{label}: {problem.text}"
    return place_at(problem, converted).told(problem.text)


def place_at(problem: Problem, converted: Converted) -> Place:
    """The place of the value, or the nearest around it with the rest in our own words."""
    for length in range(len(problem.path), 0, -1):
        place = converted.places.get(problem.path[:length])
        if place is not None:
            rest = ".".join(str(part) for part in problem.path[length:])
            return place._replace(what=f"{place.what} {rest}".rstrip())
    return Place(converted.source, 0, place_of(problem.path, converted.settings))


def place_of(path: Path_, data: Mapping[str, object]) -> str:
    """`[server] sync`, `[[queue]] "to-ship" retry.factor`."""
    section, *rest = path
    if rest and isinstance(rest[0], int):
        tables = data.get(str(section))
        name: object = None
        if isinstance(tables, (list, tuple)) and rest[0] < len(cast("Sequence[object]", tables)):
            table = cast("Sequence[object]", tables)[rest[0]]
            name = cast("Mapping[str, object]", table).get("name") if isinstance(table, Mapping) else None
        which = f'"{name}"' if isinstance(name, str) and name else f"number {rest[0] + 1}"
        head, rest = f"[[{section}]] {which}", rest[1:]
    else:
        head = f"[{section}]"
    keys = ""
    for key in rest:
        keys += f"[{key + 1}]" if isinstance(key, int) else f"{'.' if keys else ''}{key}"
    return f"{head} {keys}".rstrip()


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*[.=]""")


def lines_of(text: str) -> dict[Path_, int]:
    """The line, from 1, of every section and key that the text shows plainly."""
    seen: dict[str, int] = {}
    lines: dict[Path_, int] = {}
    inside: Path_ = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        key = _KEY.match(line) if header is None else None
        if header is not None:
            first, *rest = [part.strip("\"' ") for part in header[2].split(".")]
            if header[1] == "[[" and not rest:
                seen[first] = seen.get(first, -1) + 1
            inside = (first, seen[first], *rest) if first in seen else (first, *rest)
            lines.setdefault(inside, number)
        elif key is not None:
            lines.setdefault((*inside, key[1]), number)
    return lines


def line_of(text: str, path: Path_) -> int | None:
    """Line, from 1, of the key at `path`, or of its section; None where the text does not show it plainly."""
    names = [part for part in path if isinstance(part, str)]
    index = next((part for part in path if isinstance(part, int)), None)
    seen = -1
    inside: list[str] = []
    best: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            inside = [part.strip("\"' ") for part in header[2].split(".")]
            if header[1] == "[[" and inside == names[:1]:
                seen += 1
            if inside == names[: len(inside)] and index in {None, seen} and best is None:
                best = number
            continue
        key = _KEY.match(line)
        if key is not None and index in {None, seen} and [*inside, key[1]] == names[: len(inside) + 1]:
            return number
    return best
