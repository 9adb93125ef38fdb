"""What reading somebody else's settings file gives, the book it is gathered in, and the same as TOML for a person.

A mistake is what the other server would refuse too, or what nobody can read: all are told at once.  A remark is what is
right in the file and not the same here.  In TOML the place that a table of a list came from stands above it.
A mistake in a setting is told in its writer's words: `jobs.xml:12: <MaxCancels> of <Queue> "Jobs"`.

XML is read with line numbers and reaches nothing outside the file: a document type declaration is refused, and with it
every entity but the five of XML; nesting, elements and bytes have bounds.  Namespaces are left as they are written.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar, cast
from xml.parsers import expat

import tomli_w

from penstock.errors import SettingsError
from penstock.records.dataclass import dataclass

T = TypeVar("T")

Path_: TypeAlias = tuple[str | int, ...]
"""Place of a value in our settings: section, index in a list of tables, key, deeper keys."""


class Place(NamedTuple):
    """Where a value was read.  `line` counts from 1; 0 where the format has no lines to speak of."""

    file: str
    line: int
    what: str

    @property
    def where(self) -> str:
        """`jobs.xml:12`"""
        return f"{self.file}:{self.line}" if self.line else self.file

    def told(self, text: str) -> str:
        """One line about this place."""
        return f"{self.where}: {self.what}: {text}"


class Verdict(Enum):
    """How far a part of the file holds here."""

    NO_MEANING = "no meaning here"
    DIFFERS = "differs here"
    REFUSED = "not done here"
    """The server does not start with it: somebody counts on what it would not do."""


ORDER = ("server", "listen", "log", "user", "vhost", "exchange", "topic", "queue", "binding", "view", "action")
"""Sections in the order in which a person reads them; others follow."""


class Remark(NamedTuple):
    """One thing of the file that is not the same here."""

    verdict: Verdict
    place: Place
    text: str


@dataclass(frozen=True, slots=True)
class Converted:
    """Our settings out of a foreign file.

    `settings` has the structure of the settings file; `places` says where each of its values was read, tables and
    lists included; `remarks` are in the order of the file.
    """

    kind: str
    source: str
    settings: dict[str, object]
    places: dict[Path_, Place]
    remarks: tuple[Remark, ...]


TOLD_MOST = 100
"""Mistakes that are told one by one: each is looked up in the file, and a person reads no more."""


def refusal(mistakes: Sequence[T], told: Callable[[T], str]) -> SettingsError:
    """All mistakes of a file, or the first of very many and how many more there are."""
    lines = list(map(told, mistakes[:TOLD_MOST]))
    if more := len(mistakes) - len(lines):
        lines.append(f"and {more:,} more mistakes")
    return SettingsError("\n".join(lines))


@dataclass(slots=True)
class Table:
    """One of a list of tables, and where its values were read."""

    values: dict[str, object] = field(default_factory=dict[str, object])
    places: dict[Path_, Place] = field(default_factory=dict[Path_, Place])

    def put(self, key: str, value: object, place: Place) -> None:
        """A value that was read there."""
        self.values[key] = value
        self.places[key,] = place


@dataclass(slots=True)
class Book:
    """What a reader has gathered so far."""

    plain: dict[str, dict[str, object]] = field(default_factory=dict[str, dict[str, object]])
    lists: dict[str, list[dict[str, object]]] = field(default_factory=dict[str, list[dict[str, object]]])
    places: dict[Path_, Place] = field(default_factory=dict[Path_, Place])
    remarks: list[Remark] = field(default_factory=list[Remark])
    mistakes: list[tuple[Place, str]] = field(default_factory=list[tuple[Place, str]])

    def put(self, section: str, key: str, value: object, place: Place) -> None:
        """A single value of a plain section."""
        self.plain.setdefault(section, {})[key] = value
        self.places[section, key] = place

    def add(self, section: str, table: Table, place: Place) -> None:
        """One more table of a list of tables."""
        tables = self.lists.setdefault(section, [])
        index = len(tables)
        tables.append(table.values)
        self.places.setdefault((section,), place)
        self.places[section, index] = place
        for path, where in table.places.items():
            self.places[(section, index, *path)] = where

    def tables(self, section: str) -> Sequence[Mapping[str, object]]:
        """The tables of a list so far."""
        return self.lists.get(section, ())

    def remark(self, verdict: Verdict, place: Place, text: str) -> None:
        """Something right that is not the same here."""
        self.remarks.append(Remark(verdict, place, text))

    def wrong(self, place: Place, text: str) -> None:
        """Something that nobody can take."""
        self.mistakes.append((place, text))

    def close(self, kind: str, source: str) -> Converted:
        """The result.  Raises SettingsError with every mistake."""

        def rank(place: Place) -> tuple[bool, str, int]:
            return place.file != source, place.file, place.line  # the main file first, each from its top

        if self.mistakes:
            self.mistakes.sort(key=lambda mistake: rank(mistake[0]))
            raise refusal(self.mistakes, lambda mistake: mistake[0].told(mistake[1]))
        self.remarks.sort(key=lambda remark: rank(remark.place))
        gathered: dict[str, object] = {**self.plain, **self.lists}
        settings = {name: gathered.pop(name) for name in ORDER if name in gathered} | gathered
        return Converted(kind, source, settings, self.places, tuple(self.remarks))


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
    """The bytes of a settings file, without the mark that Windows' editors begin one with.

    Raises SettingsError where there are too many or none to be had.
    """
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"{shown}: cannot be read: {error.strerror or error}") from error
    if len(data) > BYTES_MAX:
        raise SettingsError(f"{shown}: is larger than {BYTES_MAX:,} bytes, the limit for a settings file")
    return data.removeprefix(BOM_UTF8)


def parse_xml(data: bytes, shown: str) -> Element:
    """The root element.  Raises SettingsError with the line of what cannot be read."""
    parser = expat.ParserCreate()
    parser.buffer_text = True
    open_elements: list[Element] = []
    pieces: list[list[str]] = []  # the text of each open element: joined once, however often others cut it
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
        pieces.append([])

    def end(_name: str) -> None:
        open_elements.pop().raw = "".join(pieces.pop())

    def text(data: str) -> None:
        if pieces:
            pieces[-1].append(data)

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
