"""Settings as TOML for a person: sections, lists of tables, and above each table of a list the place it came from.

What it wrote reads back equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import cast

import tomli_w

from penstock.config.places import Path_, Place


def to_toml(
    settings: Mapping[str, object], places: Mapping[Path_, Place] | None = None, heading: Sequence[str] = ()
) -> str:
    """The text of a settings file; `heading` are comment lines at its top.

    Raises TypeError for a value that TOML has no form for.
    """
    where = places or {}
    plain = {name: value for name, value in settings.items() if not isinstance(value, (Mapping, list))}
    parts = ["".join(f"# {_comment(line)}\n" for line in heading), tomli_w.dumps(plain)]
    for name, value in settings.items():
        if isinstance(value, Mapping):
            parts.append(_section(name, cast("Mapping[str, object]", value)))
        elif isinstance(value, list):
            for index, table in enumerate(cast("list[Mapping[str, object]]", value)):
                place = where.get((name, index))
                said = f"# {_comment(place.where)} {_comment(place.what)}\n" if place is not None else ""
                parts.append(f"{said}{_section(name, table, listed=True)}")
    return "\n".join(part for part in parts if part)


def _section(name: str, table: Mapping[str, object], *, listed: bool = False) -> str:
    header = tomli_w.dumps({name: {}})
    body = tomli_w.dumps({name: table}).removeprefix(header)
    return f"[{header.rstrip()}]\n{body}" if listed else header + body


def _comment(text: str) -> str:
    """Text without what a comment cannot hold."""
    return re.sub(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]", " ", text)
