"""Of `definitions.json`: what is left out where a broker is taken over with plugins that there are not here.

A file is corrected by who wrote it, so there such things are mistakes (`rabbitmq`); a broker that is taken over as it
runs has no file to correct.  Everything that is left out is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from penstock.config.foreign.rabbitmq import OPERATOR_COMPONENT, VHOST_COMPONENT
from penstock.config.queue_arguments import NOT_HERE
from penstock.errors import InvalidArgument, shown
from penstock.records.declared_types import EXCHANGE_TYPES

COMPONENTS = (OPERATOR_COMPONENT, VHOST_COMPONENT)
"""Of the parameters, those that no plugin has."""


class Item(NamedTuple):
    """One object of a section, and how a person finds it."""

    place: str
    values: dict[str, Any]


def without_plugins(definitions: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The document without them, and a sentence for each thing that is left out."""
    told: list[str] = []
    parameters = [*_parameters(definitions, told)]
    taken = dict(definitions)
    taken["parameters"] = parameters
    taken["policies"] = [*_policies(definitions, told)]
    strange: set[tuple[str, str]] = set()
    taken["exchanges"] = [*_exchanges(definitions, strange, told)]
    taken["bindings"] = [*_bindings(definitions, strange, told)]
    return taken, told


def objects(definitions: object, section: str) -> list[dict[str, Any]]:
    """A section of the document.  InvalidArgument where it, or the document, is no such thing."""
    if not isinstance(definitions, Mapping):
        raise InvalidArgument(f"{shown(definitions)} is not an object")
    found: Any = cast("Mapping[str, Any]", definitions).get(section, [])
    given = cast("list[object]", found)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in given):
        raise InvalidArgument(f"{section}: {shown(given)} is not a list of objects")
    return cast("list[dict[str, Any]]", given)


def _items(definitions: Mapping[str, Any], section: str) -> Iterator[Item]:
    for index, values in enumerate(objects(definitions, section)):
        place = f"{section}[{index}]"
        name = values.get("name")
        yield Item(f'{place} "{name}"' if name else place, values)


def _parameters(definitions: Mapping[str, Any], told: list[str]) -> Iterator[dict[str, Any]]:
    for place, values in _items(definitions, "parameters"):
        component = values.get("component")
        if component in COMPONENTS:
            yield values
        else:
            told.append(f"{place} is left out: it belongs to the plugin {component!r}")


def _policies(definitions: Mapping[str, Any], told: list[str]) -> Iterator[dict[str, Any]]:
    for place, values in _items(definitions, "policies"):
        found = values.get("definition", {})
        if not isinstance(found, dict):
            raise InvalidArgument(f"{place}: definition {shown(found)} is not an object")
        given = cast("dict[str, Any]", found)
        kept = {key: value for key, value in given.items() if key not in NOT_HERE}
        told += [f"{place}: {key} is left out: {NOT_HERE[key]}" for key in given if key in NOT_HERE]
        if kept or not given:
            yield {**values, "definition": kept}
        else:
            told.append(f"{place} is left out, for it says nothing else: another policy may rule what it ruled")


def _exchanges(
    definitions: Mapping[str, Any], strange: set[tuple[str, str]], told: list[str]
) -> Iterator[dict[str, Any]]:
    for place, values in _items(definitions, "exchanges"):
        kind = values.get("type", "direct")
        if kind in EXCHANGE_TYPES:
            yield values
        else:
            strange.add((values.get("vhost", "/"), values.get("name", "")))
            told.append(f"{place} is left out, with its bindings: there are no exchanges of type {kind!r}")


def _bindings(
    definitions: Mapping[str, Any], strange: set[tuple[str, str]], told: list[str]
) -> Iterator[dict[str, Any]]:
    left = 0
    for _, values in _items(definitions, "bindings"):
        vhost = values.get("vhost", "/")
        ends = [values.get("source", "")]
        if values.get("destination_type") == "exchange":
            ends.append(values.get("destination", ""))
        if any((vhost, end) in strange for end in ends):
            left += 1
        else:
            yield values
    if left:
        told.append(f"{left} of the bindings are left out with exchanges that are")
