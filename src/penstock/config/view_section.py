"""`[[view]]` and `[[conflated_topic]]`: what is shown of queues and topics, by groups or slowed down.

Owns the keys and what cannot be together; expressions are read where views are made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

from pydantic import BeforeValidator, Field, StrictBool, StringConstraints, model_validator

from penstock.config.sections import Name, Section
from penstock.units import parse_duration


def _interval(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text with a unit, as in '5s'")
    return parse_duration(value)


Interval: TypeAlias = Annotated[int, BeforeValidator(_interval), Field(json_schema_extra={"unit": "duration"})]
_Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
_Fields: TypeAlias = Annotated[
    tuple[_Text, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]


class ViewSection(Section):
    """`[[view]]`"""

    name: Name = Field(description="Its name, to read it by.")
    vhost: Name = Field(default="/", description="Its vhost, and that of its source.")
    source: Name | None = Field(
        default=None, description="The queue, topic with a key, or earlier view that it gathers."
    )
    join: tuple[_Text, ...] = Field(
        default=(), description='Or several that are joined, as in "[orders]./customer = [customers]./id".'
    )
    select: _Fields = Field(min_length=1, description='What it shows: "/region, SUM(/total) AS /total".')
    group_by: _Fields = Field(default=(), description="Expressions, one row for each of their values.")
    filter: str | None = Field(default=None, description="Gather only messages of which this is TRUE.")
    conflation: Literal["none", "inline"] = Field(
        default="none", description="With `inline` a row that changes again before it was told is told once."
    )
    engine: Literal["server", "spark"] = Field(
        default="server", description="Who computes it: the server itself, or Spark, as `penstock up` runs it."
    )
    trigger: Interval = Field(default=5_000_000, ge=0, description="With Spark, time between two batches of changes.")
    join_null_equivalency: StrictBool = Field(
        default=False, description="Whether a missing value equals another in a join."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.source is None) != bool(self.join):
            raise ValueError("a view has either a source or a join")
        if self.join and self.filter is not None:
            raise ValueError("a filter belongs to a view of one source; this one joins")
        if self.engine == "spark" and self.join:
            raise ValueError("engine 'spark' computes a view of one queue, and this one joins: leave it to the server")
        if self.engine == "server" and "trigger" in self.model_fields_set:
            raise ValueError("trigger goes with engine 'spark'; the server's own views change at once")
        if self.join_null_equivalency and not self.join:
            raise ValueError("join_null_equivalency goes with a join")
        return self


class ConflatedSection(Section):
    """`[[conflated_topic]]`"""

    name: Name = Field(description="Its name, to read and subscribe to it by.")
    vhost: Name = Field(default="/", description="Its vhost, and that of its source.")
    source: Name = Field(description="The topic with a key, view or earlier conflated topic that it slows down.")
    interval: Interval = Field(
        default=5_000_000, ge=100_000, description="Of the changes of a key within it only the last is told."
    )
    filter: str | None = Field(default=None, description="Only records of which this is TRUE.")


class WrongView(NamedTuple):
    """What cannot be, and where."""

    section: str
    place: int
    key: str
    why: str


def wrong_views(
    views: Sequence[ViewSection], conflated: Sequence[ConflatedSection], queues: Sequence[tuple[str, str]]
) -> Iterator[WrongView]:
    """Names of queues as (vhost, name)."""
    taken = dict.fromkeys(queues, "queue")
    sections: tuple[tuple[str, Sequence[ViewSection | ConflatedSection]], ...] = (
        ("view", views),
        ("conflated_topic", conflated),
    )
    for section, some in sections:
        names = [(one.vhost, one.name) for one in some]
        for place, one in enumerate(some):
            name = (one.vhost, one.name)
            if name in taken and name not in names[:place]:
                yield WrongView(section, place, "name", f"{one.name!r} is a {taken[name]} already")
            for key, why in _misplaced(one, names, place, taken):
                yield WrongView(section, place, key, why)
        taken |= dict.fromkeys(names, section.replace("_", " "))


def _misplaced(
    one: ViewSection | ConflatedSection,
    names: Sequence[tuple[str, str]],
    place: int,
    taken: Mapping[tuple[str, str], str],
) -> Iterator[tuple[str, str]]:
    """The key to blame, and why: what a view reads comes before it.  names: of its kind, of which it is at `place`."""
    name, source = (one.vhost, one.name), (one.vhost, one.source or "")
    for joined in _joined(one):
        if (one.vhost, joined) in names[place:]:
            yield "join", f"{joined!r} is this view or one after it; it must come first"
    if isinstance(one, ViewSection) and one.engine == "spark" and source in names[:place]:
        yield "source", f"{one.source!r} is a view, and engine 'spark' computes views of queues"
    if source == name:
        yield "source", f"{one.name!r} cannot be its own source"
    elif source in names[place:]:
        yield "source", f"{one.source!r} is defined after this one; it must come first"
    elif isinstance(one, ConflatedSection) and taken.get(source) == "queue":
        yield "source", f"{one.source!r} is a queue, and nothing of it is conflated"


def _joined(one: ViewSection | ConflatedSection) -> set[str]:
    """The topics that a view joins, as far as they can be told without reading expressions."""
    joins = one.join if isinstance(one, ViewSection) else ()
    return {name for text in joins for name in re.findall(r"\[([^\]]+)\]\s*\.\s*[/\[]", text)}
