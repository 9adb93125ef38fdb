"""The sentences of the documents that name tests, and where those tests stand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
NAMED = re.compile(r"`(test_[a-z0-9_]+)`")


@dataclass(frozen=True)
class Claim:
    """A test that a document names as the proof of a sentence."""

    test: str
    file: Path
    document: str
    sentence: str

    @property
    def node(self) -> str:
        """As pytest names it."""
        return f"{self.file}::{self.test}"


def documents() -> list[Path]:
    """The pages that users read."""
    return [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]


def claims() -> list[Claim]:
    """Each test that a page names, with the first sentence that does, by file and name."""
    said: dict[str, tuple[str, str]] = {}
    for page in documents():
        for line in page.read_text(encoding="utf-8").splitlines():
            for name in NAMED.findall(line):
                said.setdefault(name, (page.name, _sentence(line)))
    found: list[Claim] = []
    for file in sorted(TESTS.rglob("test_*.py")):
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE):
            if name in said:
                found.append(Claim(name, file, *said[name]))
    return found


def tests_of(file: Path) -> list[Claim]:
    """Every test of a file, as if a document named it."""
    names = re.findall(r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    return [Claim(name, file, "", "") for name in names]


def _sentence(line: str) -> str:
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
    return " / ".join(cell for cell in cells if cell and not NAMED.search(cell)) or line.strip()
