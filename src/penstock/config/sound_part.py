"""Paths in what was given as settings, and what of it is sound beside mistakes.

Filters and patterns are read by floors above this one, from settings that hold.  That their mistakes may be told with
all others, they are given what is left without the values that are wrong, and what such a value cannot be missing from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from pydantic import ValidationError

from penstock.config.foreign.converted import Path_
from penstock.config.settings import Settings

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


def as_written(path: Path_, data: object) -> Path_:
    """Without the number 0 where a table stands for a list of one, and names of the types that a value is none of."""
    out: list[str | int] = []
    for part in path:
        table = table_of(data)
        if _is_value(data):
            break
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
