"""The columns of JSON bodies as text, as Spark writes a schema: `id bigint, lines array<struct<sku: string, n: int>>`.

Owns which types there are and how they nest.  What becomes of a body under a schema is the reader's to say.

    schema  name [:] type, ...                       type  a simple name | decimal(p, s) | array<type>
    name    letters, digits, _ and more, or `any`          | map<string, type> | struct<schema>

Readers may say more of a column, as Spark's own schemas do: NOT NULL, and then COMMENT 'text'.
"""

from __future__ import annotations

import re
from typing import TypeAlias

SIMPLE = (
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp",
    "timestamp_ntz",
)  # fmt: skip
ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}

Columns: TypeAlias = "tuple[tuple[str, str], ...]"
"""Names and types, in order; a type is spelled as Spark spells it."""

COLUMNS_MOST = 1_000
DEPTH_MOST = 16
TEXT_MOST = 64 * 1024

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s`,:<>()]+)|([,:<>()]))")

_TAIL = re.compile(
    r"""(\s+NOT\s+NULL\b)?(\s+COMMENT\s+(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"))?""", re.IGNORECASE | re.DOTALL
)


def parse_ddl(text: str) -> Columns:
    """Names and types.  ValueError with a sentence for what is no schema."""
    return _parsed(text, tails=False)


def for_spark(text: str) -> str:
    """The schema of a reader with all names in back quotes, at every level: without them Spark takes few letters.

    Columns may be NOT NULL and have a comment.  ValueError with a sentence for what is no schema.
    """
    return ", ".join(f"{quoted_name(name)} {kind}" for name, kind in _parsed(text, tails=True))


def _parsed(text: str, *, tails: bool) -> Columns:
    if len(text) > TEXT_MOST:
        raise ValueError(f"a schema has {len(text)} letters; {TEXT_MOST} are allowed")
    reader = _Reader(text, tails=tails)
    columns = reader.columns("", 0)
    reader.end()
    return columns


class _Reader:
    def __init__(self, text: str, *, tails: bool) -> None:
        """tails: what is said behind a type is taken, and stays a part of it."""
        self._text = text
        self._at = 0
        self._tails = tails

    def _look(self) -> tuple[str, bool, int]:
        """The next token, whether it is a name in back quotes, and where it ends.  Nothing at the end."""
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            if self._text[self._at :].strip():
                raise ValueError(f"{self._text[self._at :].strip()[:40]!r} is no part of a schema")
            return "", False, len(self._text)
        return (match[1] or match[2] or match[3]).replace("``", "`"), match[1] is not None, match.end()

    def _take(self) -> tuple[str, bool]:
        token, quoted, self._at = self._look()
        return token, quoted

    def _needs(self, wanted: str, where: str) -> None:
        token, quoted = self._take()
        if token != wanted or quoted:
            raise ValueError(f"{wanted!r} should follow {where}, not {token or 'the end'!r}")

    def end(self) -> None:
        token, _ = self._take()
        if token:
            known = not self._tails and token.upper() in ("NOT", "COMMENT")
            hint = "; columns may be null and have no comment" if known else ""
            raise ValueError(f"{token[:40]!r} follows a column where a comma should{hint}")

    def columns(self, inside: str, depth: int) -> Columns:
        """Columns up to a `>` or the end."""
        found: dict[str, str] = {}
        spelled: dict[str, str] = {}  # as Spark compares them
        while True:
            name, quoted = self._take()
            if not name or (name in ",:<>()" and not quoted):
                raise ValueError(f"a column's name should stand where {name or 'the end'!r} does{inside}")
            if name in found:
                raise ValueError(f"column {name[:60]!r} is there twice{inside}")
            other = spelled.setdefault(name.lower(), name)
            if other != name:
                names = f"{other[:60]!r} and {name[:60]!r}"
                raise ValueError(f"columns {names} differ in case alone, and Spark takes them for one{inside}")
            if self._look()[0] == ":":
                self._take()
            found[name] = self._type(name, depth) + self._tail()
            if len(found) > COLUMNS_MOST:
                raise ValueError(f"a schema has at most {COLUMNS_MOST} columns")
            if self._look()[:2] != (",", False):
                return tuple(found.items())
            self._take()

    def _tail(self) -> str:
        match = _TAIL.match(self._text, self._at) if self._tails else None
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def _type(self, column: str, depth: int) -> str:
        if depth > DEPTH_MOST:
            raise ValueError(f"types lie more than {DEPTH_MOST} deep in each other")
        token, quoted = self._take()
        if not token:
            raise ValueError(f"column {column[:60]!r} has no type: write one behind its name, as in id BIGINT")
        kind = ALIASES.get(token.lower(), token.lower())
        where = f"{kind} of column {column[:60]!r}"
        if kind in SIMPLE and not quoted:
            return kind
        if kind in ("decimal", "numeric"):
            return self._decimal()
        if kind in ("array", "map", "struct"):
            self._needs("<", where)
            inner = self._inner(kind, where, column, depth + 1)
            self._needs(">", where)
            return f"{kind}<{inner}>"
        shown = token[:40] or "the end"
        raise ValueError(
            f"column {column[:60]!r} has the type {shown!r}; there are {', '.join(SIMPLE)}, decimal, array, map and "
            "struct"
        )

    def _inner(self, kind: str, where: str, column: str, depth: int) -> str:
        if kind == "struct":
            fields = self.columns(f" in column {column[:60]!r}", depth)
            return ",".join(f"{quoted_name(name)}:{one}" for name, one in fields)
        first = self._type(column, depth)
        if kind == "array":
            return first
        if first != "string":
            raise ValueError(f"the keys of a JSON object are string, and those of column {column[:60]!r} {first}")
        self._needs(",", where)
        return f"string,{self._type(column, depth)}"

    def _decimal(self) -> str:
        if self._look()[0] != "(":
            return "decimal(10,0)"
        self._take()
        numbers = [self._take()[0]]
        if self._look()[0] == ",":
            self._take()
            numbers.append(self._take()[0])
        self._needs(")", "decimal's numbers")
        if not all(one.isdigit() and one.isascii() for one in numbers):
            raise ValueError(f"decimal({', '.join(numbers)}) has no whole numbers")
        precision, scale = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise ValueError(f"decimal({precision}, {scale}): at most 38 digits, of which the scale is a part")
        return f"decimal({precision},{scale})"


def quoted_name(name: str) -> str:
    """A name as a schema may always have it."""
    return f"`{name.replace('`', '``')}`"
