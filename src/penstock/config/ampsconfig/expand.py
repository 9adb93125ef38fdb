"""`${NAME}` and `<Include>`: the document as it is meant, each element still knowing its own file and line.

A variable is one of the environment, or AMPS_CONFIG_DIRECTORY and AMPS_CONFIG_PATH.  An included file lies in the
folder of the main file or below it; its root element takes the place of `<Include>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from penstock.config.foreign.converted import Book
from penstock.config.foreign.document import BYTES_MAX, Element, parse_xml, read_bytes
from penstock.config.known_names import known_name

LEVELS_MAX = 8
FILES_MAX = 64

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Expander:
    """One main file and what it includes."""

    def __init__(self, book: Book, path: Path, environ: Mapping[str, str]) -> None:
        self._book = book
        self._folder = path.resolve().parent
        self._shown_folder = path.parent
        self._main = str(path)
        self._variables = {
            **environ,
            "AMPS_CONFIG_DIRECTORY": str(self._folder),
            "AMPS_CONFIG_PATH": str(path.resolve()),
        }
        self._open = [path.resolve()]
        self._files = 1
        self._bytes = 0

    def expand(self, element: Element) -> None:
        """Put values and included elements in place, all the way down."""
        if "${" in element.raw:
            element.raw = self._filled(element)
        if any(child.name == "Include" for child in element.children):
            element.children = [one for child in element.children for one in self._with_included(child)]
        else:
            for child in element.children:
                self.expand(child)

    def _filled(self, element: Element) -> str:
        def filled(match: re.Match[str]) -> str:
            name = match[1]
            if name not in self._variables:
                hint = known_name(name, list(self._variables))
                self._book.wrong(element.place(), f"the environment has no variable {name}{hint}")
                return match[0]
            value = self._variables[name]
            if any("\ud800" <= sign <= "\udfff" for sign in value):
                self._book.wrong(element.place(), f"the environment variable {name} is not UTF-8")
                return match[0]
            return value

        return _VARIABLE.sub(filled, element.raw)

    def _with_included(self, element: Element) -> list[Element]:
        if element.name != "Include":
            self.expand(element)
            return [element]
        mistakes = len(self._book.mistakes)
        element.raw = self._filled(element)
        if len(self._book.mistakes) > mistakes:
            return []
        root = self._included(element)
        return [] if root is None else [root]

    def _included(self, element: Element) -> Element | None:
        name = element.text
        path = (Path(element.file).parent / name).resolve()
        wrong: str | None = None
        if not name:
            wrong = "names no file"
        elif not path.is_relative_to(self._folder):
            wrong = f"{name!r} is outside of the folder of {self._main}"
        elif path in self._open:
            wrong = f"{name!r} includes itself"
        elif len(self._open) > LEVELS_MAX:
            wrong = f"{name!r} is more than {LEVELS_MAX} levels deep"
        elif self._files >= FILES_MAX:
            wrong = f"{name!r} is one file more than {FILES_MAX}"
        if wrong is not None:
            self._book.wrong(element.place(), wrong)
            return None
        shown = str(self._shown_folder / path.relative_to(self._folder))
        data = read_bytes(path, f"{element.file}:{element.line}: <Include>: {shown}")
        self._files += 1
        self._bytes += len(data)
        if self._bytes > BYTES_MAX:
            self._book.wrong(element.place(), f"all included files together are larger than {BYTES_MAX:,} bytes")
            return None
        root = parse_xml(data, shown)
        self._open.append(path)
        self.expand(root)
        self._open.pop()
        return root
