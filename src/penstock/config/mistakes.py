"""Mistakes in the settings, and how each is told: by its place in the file it came from, and a sentence;
and what of the settings is sound beside them.

Filters and patterns are read by floors above this one, from settings that hold.  That their mistakes may be told with
all others, they are given what is left without the values that are wrong, and what such a value cannot be missing from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from penstock.config.foreign import Converted
from penstock.config.foreign.converted import Path_, Place
from penstock.config.settings import Settings
from penstock.errors import known_name, shown
from penstock.units import format_duration, format_size

T = TypeVar("T")


class Problem(NamedTuple):
    """One mistake: where, and a sentence.

    near    a wrong name, and those that are known: the nearest is looked for when the mistake is told, for of very many
            mistakes few are
    """

    path: Path_
    text: str
    near: tuple[str, Collection[str]] | None = None

    @property
    def sentence(self) -> str:
        """The text, with the name that may have been meant."""
        return self.text if self.near is None else self.text + known_name(*self.near)


def around(known: Mapping[Path_, T], path: Path_) -> tuple[int, T] | None:
    """What is known of a place, or of the nearest thing around it, and how much of the path that is."""
    lengths = range(len(path), 0, -1)
    return next(((length, known[path[:length]]) for length in lengths if path[:length] in known), None)


def told(
    problem: Problem,
    data: Mapping[str, object],
    source: str,
    lines: Mapping[Path_, int],
    overrides: Mapping[Path_, str],
) -> str:
    """A mistake in TOML or in a mapping; `overrides` are labels of values from the environment and options."""
    path = problem.path
    if (override := around(overrides, path)) is not None:
        return f"{override[1]}: {problem.sentence}"
    where = line_in(source, lines, (*path[:2], *(part for part in path[2:] if isinstance(part, str))))
    return f"{where}: {place_of(path, data)}: {problem.sentence}"


def line_in(source: str, lines: Mapping[Path_, int], path: Path_) -> str:
    """The file, with the line of the value or of the nearest thing around it."""
    line = around(lines, path)
    return source if line is None else f"{source}:{line[1]}"


def told_at(problem: Problem, converted: Converted, labels: Mapping[Path_, str]) -> str:
    """A mistake in a file of others."""
    if (override := around(labels, problem.path)) is not None:
        return f"{override[1]}: {problem.sentence}"
    return place_at(problem, converted).told(problem.sentence)


def place_at(problem: Problem, converted: Converted) -> Place:
    """The place of the value, or the nearest around it with the rest in our own words."""
    if (found := around(converted.places, problem.path)) is not None:
        length, place = found
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
                lines.setdefault((first,), number)
            inside = (first, seen[first], *rest) if first in seen else (first, *rest)
            lines.setdefault(inside, number)
        elif key is not None:
            lines.setdefault((*inside, key[1]), number)
    return lines


LATER_SECTIONS = frozenset({"archive", "bulk", "dashboard", "otel", "replication", "schedule"})
"""Sections that are taken and refused for now."""

LATER_KEYS = frozenset({("topic", "retention")})
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
        return Problem(path, "unknown section", (section, known))
    if (section, key) in LATER_KEYS:
        return Problem(path, NOT_YET)
    return Problem(path, "unknown key", (key, known))


_BOUNDS = {
    "greater_than_equal": ("ge", "at least"), "less_than_equal": ("le", "at most"),
    "greater_than": ("gt", "more than"), "less_than": ("lt", "less than"),
}  # fmt: skip
"""pydantic's names for a value beyond a limit: where its context has that, and in words."""

_UNITS: Mapping[object, Callable[[int], str]] = {"size": format_size, "duration": format_duration}


def in_our_words(details: ErrorDetails) -> Problem:
    """pydantic's finding in our words."""
    path: Path_ = details["loc"]
    value: object = details["input"]
    context = details.get("ctx", {})
    kind = details["type"]
    if kind == "extra_forbidden":
        return unknown(path, _keys_at(path[:-1]))
    if kind in _BOUNDS and (in_units := _UNITS.get(_unit_at(path))) is not None:
        given = in_units(value) if isinstance(value, int) else value
        mark, words = _BOUNDS[kind]
        return Problem(path, f"must be {words} {in_units(context[mark])}, not {given}")
    if kind in _SENTENCES:
        return Problem(path, _SENTENCES[kind](path, value, {"msg": details["msg"], **context}))
    given = "" if _is_secret(path) else f", not {shown(value)}"
    wording = details["msg"].replace("Input should be", "must be")
    return Problem(path, f"{wording[:1].lower()}{wording[1:]}{given}")


def _no_choice(path: Path_, value: object, context: Mapping[str, object]) -> str:
    expected = str(context.get("expected", ""))
    choices = re.findall(r"'([^']*)'", expected)
    hint = known_name(value, choices) if isinstance(value, str) else ""
    return f"{shown(value)} is not {'one of ' if len(choices) > 1 else ''}{expected}{hint}"


def _no_table(path: Path_, value: object, context: Mapping[str, object]) -> str:
    return f"{shown(value)} is not a table"


def _no_list(path: Path_, value: object, context: Mapping[str, object]) -> str:
    return f"is a list of tables: write [[{path[0]}]]" if len(path) == 1 else f"{shown(value)} is not a list"


def _no_form(path: Path_, value: object, context: Mapping[str, object]) -> str:
    pattern = str(context.get("pattern", ""))
    return f"{shown(value)} is not {FORMS.get(pattern, f'of the form {pattern}')}"


_SENTENCES: Mapping[str, Callable[[Path_, object, Mapping[str, object]], str]] = {
    "missing": lambda path, value, context: "is missing",
    "value_error": lambda path, value, context: str(context.get("error", context["msg"])),
    "literal_error": _no_choice,
    "model_type": _no_table,
    "model_attributes_type": _no_table,
    "dict_type": _no_table,
    "tuple_type": _no_list,
    "too_short": lambda path, value, context: (
        f"needs at least {context.get('min_length', 1)} of them, and there is none"
    ),
    "string_too_short": lambda path, value, context: "is empty",
    "string_pattern_mismatch": _no_form,
}
"""What is wrong, by pydantic's name for it."""


def without_consequences(found: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Without the remark that a list is too short whose items were all wrong: those are told of."""
    inside = {one["loc"][:length] for one in found for length in range(len(one["loc"]))}
    return [one for one in found if one["type"] != "too_short" or one["loc"] not in inside]


def together(problems: Iterable[Problem]) -> list[Problem]:
    """Types that one value is none of, in one sentence."""
    out: list[Problem] = []
    for problem in problems:
        path, (kind, is_not, value) = problem.path, problem.text.rpartition(", not ")
        before = out[-1].text if out and out[-1].path == path else ""
        other, no_choice = f"or {kind.removeprefix('must be ')}{is_not}{value}", f"{value} is not "
        if before.startswith(no_choice):  # a choice beside other types
            choice, hint, near = before.removeprefix(no_choice).partition("; did ")
            out[-1] = Problem(path, f"must be {choice} {other}{hint}{near}")
        elif kind.startswith("must be ") and before.endswith(is_not + value):
            out[-1] = Problem(path, f"{before.removesuffix(is_not + value)} {other}")
        else:
            out.append(problem)
    return out


def unit_of(field: FieldInfo) -> object:
    """`duration` or `size` where the type says so, also inside `| None`."""
    marks = (mark for one in get_args(field.annotation) for mark in getattr(one, "__metadata__", ()))
    extras = (cast("object", one.json_schema_extra) for one in (field, *marks) if isinstance(one, FieldInfo))
    return next((cast("dict[str, object]", extra).get("unit") for extra in extras if isinstance(extra, dict)), None)


def _unit_at(path: Path_) -> object:
    """`duration` or `size` for a value that is one."""
    model = _model_at(path[:-1])
    field = None if model is None else model.model_fields.get(str(path[-1]))
    return None if field is None else unit_of(field)


def _is_secret(path: Path_) -> bool:
    """Whether nobody else should read what stands there."""
    model = _model_at(path[:-1])
    field = None if model is None else model.model_fields.get(str(path[-1]))
    return field is not None and SecretStr in (field.annotation, *get_args(field.annotation))


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


ROUNDS = 3
"""How often items are left out whole: what was wrong with them may have hidden what is wrong with others."""


class SoundPart(NamedTuple):
    """Settings without what is wrong."""

    settings: Settings
    numbers: Mapping[str, Sequence[int]]  # of a section's items, where some are left out: which these were

    def path(self, path: Path_) -> Path_:
        """A path in these settings, in those that were given."""
        if len(path) > 1 and path[0] in self.numbers:
            return (path[0], self.numbers[str(path[0])][cast("int", path[1])], *path[2:])
        return path


def sound_part(data: Mapping[str, object], error: ValidationError) -> SoundPart | None:
    """What `data` holds beside that error; None where too little is left.  `data` stays as it is."""
    left = cast("dict[str, object]", copied(data))
    numbers = dict[str, list[int]]()
    for round_number in range(1 + ROUNDS):
        paths = [as_written(one["loc"], left) for one in error.errors()]
        if round_number:
            _leave_out_items(left, paths, numbers)
        else:
            for path in paths:
                _leave_out(left, path)
        try:
            return SoundPart(Settings.model_validate(left), numbers)
        except ValidationError as again:
            error = again
    return None


def _leave_out(data: dict[str, object], path: Path_) -> None:
    """The value there, if a table holds it."""
    inside, holder = cast("object", data), None
    for part in path:
        table = table_of(inside)
        if table is not None:
            if part not in table:
                break
            holder = (cast("dict[str | int, object]", table), part)
            inside = table[part]
        else:
            holder = None
            inside = item_of(inside, part)
    if holder is not None:
        holder[0].pop(holder[1], None)


def _leave_out_items(data: dict[str, object], paths: Iterable[Path_], numbers: dict[str, list[int]]) -> None:
    """The items of lists that the paths lead into, and sections that are none."""
    places = {(str(path[0]), path[1] if path[1:] and isinstance(path[1], int) else -1) for path in paths if path}
    for section, index in sorted(places, reverse=True):  # the last first: the numbers of others stay
        items = cast("list[object] | None", data.get(section))
        if not isinstance(items, list) or index < 0:
            data.pop(section, None)
        elif index < len(items):
            known = numbers.setdefault(section, list(range(len(items))))
            del items[index], known[index]


_TYPE = re.compile(r"(bool|int|float|str|dict|list|tuple)\Z|(constrained-|literal\[|function-|dict\[|list\[|tuple\[)")
"""How pydantic calls a type that a value may be, in the path of what is wrong with it."""


def as_written(path: Path_, data: object) -> Path_:
    """Without the number 0 where a table stands for a list of one, and names of the types that a value is none of."""
    out: list[str | int] = []
    for part in path:
        table, listed = table_of(data), isinstance(data, list)
        if _is_value(data):
            break
        if isinstance(part, str) and (listed or (table is not None and part not in table and _TYPE.match(part))):
            continue
        if table is not None and isinstance(part, int):
            if out[-1:] != ["expect"]:
                continue
            part = list(table)[part]  # rules with names
        if part == "that" and table is None:
            continue  # a rule that is its condition alone
        if table is not None and part == "from" and "inputs" in table:
            part = "inputs"
        if out[-1:] == ["from"] and table is not None and part not in table:
            continue  # the one input of a pipeline has no name there
        out.append(part)
        data = item_of(data, part) if table is None else table.get(part)
    return tuple(out)


def _is_value(data: object) -> bool:
    """Whether it holds nothing that could be named."""
    return data is not None and not isinstance(data, (Mapping, list))


def table_of(data: object) -> Mapping[str | int, object] | None:
    """What is a table; None for anything else."""
    return cast("Mapping[str | int, object]", data) if isinstance(data, Mapping) else None


def item_of(data: object, part: str | int) -> object:
    """What a list has at a number; None where it has none."""
    items = cast("list[object]", data) if isinstance(data, list) else []
    return items[part] if isinstance(part, int) and part < len(items) else None


def copied(value: object) -> object:
    """Tables and lists anew, what they hold as it is."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [copied(item) for item in cast("Sequence[object]", value)]
    return value
