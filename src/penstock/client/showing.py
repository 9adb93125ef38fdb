"""What notebooks show of results, queues and messages: HTML tables, of a bounded size, with everything escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from penstock.units import as_text

ROWS = 20
"""Rows of a table that are shown."""

CELL = 200
"""Characters of a value that are shown."""


def cell(value: object) -> str:
    """One value, cut where it is long."""
    if isinstance(value, bytes):
        value = value[: 4 * CELL + 1].decode(errors="replace")
    text = "" if value is None else as_text(value)
    return escape(text if len(text) <= CELL else f"{text[:CELL]}…")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], below: str = "") -> str:
    """A table with a line below it."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell(value)}</td>' for value in row)}</tr>" for row in rows)
    under = f"<p>{escape(below)}</p>" if below else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{under}"


def facts(values: Mapping[str, object]) -> str:
    """Names with their values, those that say something."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{cell(value)}</td></tr>"
        for name, value in values.items()
        if value not in (None, "", [], {})
    )
    return f"<table><tbody>{rows}</tbody></table>"


def counted(shown: int, more: bool) -> str:
    """What stands below a table."""
    return f"the first {shown:,} rows" if more else f"{shown:,} row{'' if shown == 1 else 's'}"


class Facts(dict[str, Any]):
    """A dict that notebooks show as a table."""

    def _repr_html_(self) -> str:
        return facts(self)


class Listed(list[dict[str, Any]]):
    """A list of dicts that notebooks show as a table, each with a row."""

    def __init__(self, rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> None:
        super().__init__(rows)
        self._columns = columns

    def _repr_html_(self) -> str:
        rows = ([row.get(name) for name in self._columns] for row in self[:ROWS])
        return table(self._columns, rows, counted(min(len(self), ROWS), len(self) > ROWS))
