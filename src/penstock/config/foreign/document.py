"""XML with line numbers, and nothing that reaches outside the file.

A document type declaration is refused, and with it every entity but the five of XML; nesting, elements and bytes have
bounds.  Namespaces are left as they are written.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from xml.parsers import expat

from penstock.config.setting_places import Place
from penstock.errors import SettingsError
from penstock.records.dataclass import dataclass

BYTES_MAX = 5_000_000
DEPTH_MAX = 64
ELEMENTS_MAX = 100_000


@dataclass(slots=True)
class Element:
    """One element.  `line` is that of its opening tag, from 1."""

    name: str
    file: str
    line: int
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    children: list[Element] = field(default_factory=list["Element"])
    raw: str = ""

    @property
    def text(self) -> str:
        """Its own text without the blanks around it."""
        return self.raw.strip()

    def place(self, of: str = "") -> Place:
        """Where it stands, as `<Name> of <Queue> "Jobs"`."""
        return Place(self.file, self.line, f"<{self.name}>{' of ' + of if of else ''}")

    def all(self, *names: str) -> list[Element]:
        """Children with one of these names, in the order of the file."""
        return [child for child in self.children if child.name in names]


def read_bytes(path: Path, shown: str) -> bytes:
    """The bytes of a settings file.  Raises SettingsError where there are too many or none to be had."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"{shown}: cannot be read: {error.strerror or error}") from error
    if len(data) > BYTES_MAX:
        raise SettingsError(f"{shown}: is larger than {BYTES_MAX:,} bytes, the limit for a settings file")
    return data


def parse_xml(data: bytes, shown: str) -> Element:
    """The root element.  Raises SettingsError with the line of what cannot be read."""
    parser = expat.ParserCreate()
    parser.buffer_text = True
    open_elements: list[Element] = []
    roots: list[Element] = []
    count = 0

    def refuse(why: str) -> SettingsError:
        return SettingsError(f"{shown}:{parser.CurrentLineNumber}: {why}")

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > ELEMENTS_MAX:
            raise refuse(f"there are more than {ELEMENTS_MAX:,} elements")
        if len(open_elements) >= DEPTH_MAX:
            raise refuse(f"<{name}> is nested deeper than {DEPTH_MAX} elements")
        element = Element(name, shown, parser.CurrentLineNumber, dict(attributes))
        (open_elements[-1].children if open_elements else roots).append(element)
        open_elements.append(element)

    def end(_name: str) -> None:
        open_elements.pop()

    def text(data: str) -> None:
        if open_elements:
            open_elements[-1].raw += data

    def doctype(_name: str, _system: str | None, _public: str | None, _internal: int) -> None:
        raise refuse("a document type declaration (<!DOCTYPE>) is not accepted: write the values themselves")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise SettingsError(f"{shown}:{error.lineno}: is not XML: {expat.ErrorString(error.code)}") from None
    except (LookupError, ValueError) as error:  # an encoding that Python does not have
        raise SettingsError(f"{shown}:1: is not XML that can be read: {error}") from None
    return roots[0]
