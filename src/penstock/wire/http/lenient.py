"""Fields of JSON as tools of RabbitMQ send them: `wire.fields` with less asked of who writes.

How a value of theirs is read, and no path of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self, cast

from penstock.errors import InvalidArgument
from penstock.wire.fields import DEPTH_MOST, LSN_MAX, NAME_LIMIT, Field, Fields, kind_of, too_deep


class Lenient(Fields):
    """The same as tools of RabbitMQ send it: numbers and truths may be text, what a path does not know is passed over.

    Fields may be read again and again; null is as absent.
    """

    def __init__(self, values: Mapping[str, object], where: str = "") -> None:
        """where: what a sentence about a field begins with."""
        super().__init__(where, values)
        self.values = values

    def holding(self, values: Mapping[str, object]) -> Self:
        """Other values, at the same place."""
        return type(self)(values, self.where)

    def told(self, reason: str) -> str:
        """A reason with the place of these fields before it."""
        return reason if not self.where or reason.startswith(self.where) else f"{self.where}{reason}"

    @property
    def place(self) -> str:
        """As it was given."""
        return self.where

    def take(self, name: str) -> object:
        return self.values.get(name)

    def only(self, *known: str) -> Self:
        """These fields, and none besides: a path of our own, where a misspelled one would do something else."""
        for name in self.values:
            if name not in known:
                allowed = f"not one of {', '.join(known)}" if known else "and none is known here"
                raise InvalidArgument(f"unknown field {name!r}, {allowed}")
        return self

    def finish(self) -> None:
        pass

    def optional_text(self, name: str, limit: int = NAME_LIMIT) -> str | None:
        """A text however long, or None when absent."""
        return self._typed(name, str, "a text")

    def text(self, name: str, default: str | None = None, limit: int = NAME_LIMIT) -> str:
        """A text; without a default it must be there."""
        value = self.optional_text(name)
        if value is None and default is None:
            raise self.missing(name)
        return value if value is not None else default or ""

    def choice(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        """One of some texts."""
        value = self.text(name, default)
        if value not in allowed:
            raise self.bad(name, value, f"one of {', '.join(allowed)}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false, or the same as text."""
        value = self.take(name)
        return value == "true" if value in ("true", "false") else super().flag(name, default)

    def optional_count(self, name: str, low: int = 0, high: int = LSN_MAX) -> int | None:
        """A whole number in a range, or the same as text; None when absent."""
        value = number = self.take(name)
        if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal() and value.isascii():
            number = int(value)
        if number is None:
            return None
        if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
            raise self.bad(name, value, f"a whole number from {low} to {high}")
        return number

    def table(self, name: str) -> dict[str, object]:
        """An object; an absent one, and the empty list that some tools send, are empty."""
        value = self.take(name)
        if value is None or value == []:
            return {}
        if not isinstance(value, dict):
            raise self.bad(name, value, "an object")
        return cast("dict[str, object]", self.shallow(name, cast("object", value)))

    def loosely(self, declared: Iterable[Field]) -> dict[str, object]:
        """Declared fields that are there, with numbers and truths for texts that say them; `Fields` judges the rest."""
        found = dict[str, object]()
        for field in declared:
            value = self.take(field.name)
            if value is None and field.needed:
                raise self.missing(field.name)
            if value is not None and field.kind == "count":
                value = self.optional_count(field.name, field.low, field.high)
            elif value is not None and field.kind == "flag":
                value = self.flag(field.name)
            if value is not None:
                found[field.name] = value
        return found

    def shallow(self, name: str, value: object) -> object:
        """A value that nests no deeper than an AMQP table may."""
        if too_deep(value, DEPTH_MOST):
            raise InvalidArgument(f"{self.where}{name} nests deeper than {DEPTH_MOST}")
        return value

    def items(self, name: str) -> list[Self]:
        """The objects of a list; an absent one is empty."""
        found = list[Self]()
        for place, item in enumerate(self._list(name, "a list") or []):
            if not isinstance(item, dict):
                raise InvalidArgument(f"{self.where}{name}[{place}] is {kind_of(item)}, not an object")
            found.append(type(self)(cast("dict[str, object]", item), f"{self.where}{name}[{place}]: "))
        return found
