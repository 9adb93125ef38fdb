"""What reading somebody else's settings file gives, the book it is gathered in, and the same as TOML for a person.

A mistake is what the other server would refuse too, or what nobody can read: all are told at once.  A remark is what is
right in the file and not the same here.  In TOML the place that a table of a list came from stands above it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import NamedTuple, cast

import tomli_w

from penstock.config.setting_places import Path_, Place
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
