"""docs/expressions.md as tests read it: its message, its tables, its examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "expressions.md").read_text(encoding="utf-8")
BODY = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
assert BODY is not None
MESSAGE = json.dumps(json.loads(BODY[1])).encode()


def tables() -> Iterator[tuple[str, list[list[str]]]]:
    """The tables of the page, each with the heading that it stands under: rows of cells, the header first."""
    rows: list[list[str]] = []
    section = ""
    for line in [*PAGE.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            yield section, [rows[0], *rows[2:]]
            rows = []
        if line.startswith("## "):
            section = line[3:]


def examples(*sections: str) -> list[tuple[str, str]]:
    """Expression and what it prints: of these sections, or of the page."""
    out: list[tuple[str, str]] = []
    for section, (header, *rows) in tables():
        if sections and section not in sections:
            continue
        for at, name in enumerate(header[:-1]):
            if name == "example":
                assert header[at + 1] == "prints"
                out += [(row[at].strip("`"), row[at + 1].strip("`")) for row in rows]
    return out


SECTION_3 = ("What an expression is made of", "Types, NULL and NaN", "Arrays", "Tests of text", "Functions")
"""What the tables of the language's semantics are called there."""
