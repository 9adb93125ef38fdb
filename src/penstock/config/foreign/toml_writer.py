"""Settings as TOML for a person: sections, lists of tables, and beside each table the place it came from.

Writes what our settings hold: text, numbers, booleans, lists and tables.  What it wrote reads back equal.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import cast

from penstock.config.places import Path_, Place

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def to_toml(
    settings: Mapping[str, object], places: Mapping[Path_, Place] | None = None, heading: Sequence[str] = ()
) -> str:
    """The text of a settings file; `heading` are comment lines at its top.

    Raises TypeError for a value that TOML has no form for.
    """
    where = places or {}
    parts = ["".join(f"# {_comment(line)}\n" for line in heading)] if heading else []
    plain = {name: value for name, value in settings.items() if not isinstance(value, (Mapping, list))}
    if plain:
        parts.append(_lines(plain))
    for name, value in settings.items():
        if isinstance(value, Mapping):
            parts.append(f"[{_key(name)}]\n{_lines(cast('Mapping[str, object]', value))}")
        elif isinstance(value, list):
            for index, table in enumerate(cast("list[Mapping[str, object]]", value)):
                place = where.get((name, index))
                said = f"# {_comment(place.where)} {_comment(place.what)}\n" if place is not None else ""
                parts.append(f"{said}[[{_key(name)}]]\n{_lines(table)}")
    return "\n".join(parts)


def _comment(text: str) -> str:
    """Text without what a comment cannot hold."""
    return re.sub(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]", " ", text)


def _lines(table: Mapping[str, object]) -> str:
    return "".join(f"{_key(name)} = {_value(value)}\n" for name, value in table.items())


def _key(name: str) -> str:
    return name if _BARE.match(name) else _text(name)


def _text(text: str) -> str:
    """A basic string, or a literal one where that spares escapes."""
    if ('"' in text or "\\" in text) and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON leaves DEL as it is, TOML does not


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return repr(value)
        case str():
            return _text(value)
        case Mapping():
            table = cast("Mapping[str, object]", value)
            inner = ", ".join(f"{_key(name)} = {_value(item)}" for name, item in table.items())
            return f"{{ {inner} }}" if inner else "{}"
        case list() | tuple():
            return "[" + ", ".join(_value(item) for item in cast("Sequence[object]", value)) + "]"
        case _:
            raise TypeError(f"TOML has no form for {value!r}")
