"""What reading somebody else's settings file gives, and the book it is gathered in.

A mistake is what the other server would refuse too, or what nobody can read: all are told at once.  A remark is what is
right in the file and not the same here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import NamedTuple

from penstock.config.places import Path_, Place
from penstock.errors import SettingsError
from penstock.records.dataclass import dataclass


class Verdict(Enum):
    """How far a part of the file holds here."""

    NO_MEANING = "no meaning here"
    DIFFERS = "differs here"
    LATER = "not in this version"
    REFUSED = "not done here"


BLOCKING = frozenset({Verdict.LATER, Verdict.REFUSED})
"""Verdicts with which the server does not start: somebody counts on what it would not do."""


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

    def add(self, section: str, table: dict[str, object], place: Place, places: Mapping[Path_, Place]) -> int:
        """One more table of a list of tables; `places` are those of its keys.  Returns its index."""
        tables = self.lists.setdefault(section, [])
        index = len(tables)
        tables.append(table)
        self.places.setdefault((section,), place)
        self.places[section, index] = place
        for path, where in places.items():
            self.places[(section, index, *path)] = where
        return index

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
            raise SettingsError("\n".join(place.told(text) for place, text in self.mistakes))
        self.remarks.sort(key=lambda remark: rank(remark.place))
        gathered: dict[str, object] = {**self.plain, **self.lists}
        settings = {name: gathered.pop(name) for name in ORDER if name in gathered} | gathered
        return Converted(kind, source, settings, self.places, tuple(self.remarks))
