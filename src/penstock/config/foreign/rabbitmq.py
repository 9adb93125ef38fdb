"""RabbitMQ's `definitions.json`: users, vhosts, permissions, policies, exchanges, queues, bindings.

JSON has no lines that a parser keeps, so a place is `queues[3] "jobs"`.  Durations are milliseconds there, text with a
unit here; a queue keeps its arguments too, for the declares of clients are compared with them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from penstock.config.foreign.converted import Book, Converted, Place, Table, Verdict
from penstock.config.foreign.rabbitmq_people import (
    VHOST_LIMITS,
    Permission,
    TopicPermission,
    limits_of,
    lost_by,
    permit,
    user_table,
    voids_in,
)
from penstock.config.queue_arguments import DEDUPLICATES, DEDUPLICATION, HARMLESS_ARGUMENTS, MIRRORS, NO_MIRRORS
from penstock.config.queue_settings import KEY_ALIASES, QUEUE_KEYS
from penstock.config.queue_values import Kind, argument_name
from penstock.errors import SettingsError
from penstock.records.declared_types import EXCHANGE_TYPES, MAX_AGE, QUEUE_TYPES, QueueType
from penstock.units import format_duration, parse_age

_OURS = {argument_name(name): name for name in QUEUE_KEYS} | {
    argument_name(alias): name for alias, name in KEY_ALIASES.items()
}
_HALF = re.compile("[\ud800-\udfff]")
DEPTH_MAX = 16
_ABOUT = frozenset(
    {
        "rabbit_version",
        "rabbitmq_version",
        "product_name",
        "product_version",
        "rabbitmq_definition_format",
        "original_vhost_name",
        "original_cluster_name",
        "explanation",
        "vhost",
    }
)
_ABOUT_US = {
    "global_parameters": "belongs to the cluster",
}
_USUAL: Mapping[str, object] = {
    "vhost": "/",
    "durable": True,
    "auto_delete": False,
    "internal": False,
    "arguments": dict[str, object](),
    "destination_type": "queue",
    "key": "",
}
_USUAL_OF_POLICIES: Mapping[str, object] = {"vhost": "/", "apply_to": "all", "priority": 0}
VHOST_COMPONENT = "vhost-limits"
OPERATOR_COMPONENT = "operator_policy"
_SECTIONS = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "parameters",
    "policies",
    "exchanges",
    "queues",
    "bindings",
)


class Item(NamedTuple):
    """One object of one list."""

    values: Mapping[str, object]
    place: Place


def read_definitions(data: bytes, shown: str) -> Converted:
    """Our settings out of an export.  Raises SettingsError with what cannot be read."""
    top = _document(data, shown)
    book = Book()
    default_vhost = _default_vhost(top)
    vhosts = _vhosts(book, top, shown, default_vhost)
    users = _users(book, top, shown)
    for policy in _items(book, top, "policies", shown):
        _policy(book, policy, default_vhost)
    for exchange in _items(book, top, "exchanges", shown):
        _exchange(book, exchange, default_vhost)
    for queue in _items(book, top, "queues", shown):
        _queue(book, queue, default_vhost)
    for binding in _items(book, top, "bindings", shown):
        _binding(book, binding, default_vhost)
    _parameters(book, top, shown, default_vhost)
    _permissions(book, top, shown, users, vhosts)
    for section, why in _ABOUT_US.items():
        for item in _items(book, top, section, shown):
            book.remark(Verdict.NO_MEANING, item.place, why)
    for name in top:
        if name not in {*_SECTIONS, *_ABOUT, *_ABOUT_US}:
            book.remark(Verdict.NO_MEANING, Place(shown, 0, name), "is not read")
    return book.close("RabbitMQ definitions", shown)


def _document(data: bytes, shown: str) -> Mapping[str, object]:
    try:
        document: object = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise SettingsError(f"{shown}:{error.lineno}: is not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, a number of thousands of digits, lists in lists in lists
        raise SettingsError(f"{shown}: is not JSON that can be read: {error}") from None
    if not isinstance(document, dict):
        raise SettingsError(f"{shown}: is not the JSON object of a definitions file")
    top = cast("dict[str, object]", document)
    if not any(name in top for name in (*_SECTIONS, *_ABOUT)):
        raise SettingsError(
            f"{shown}: has none of {', '.join(_SECTIONS)}: JSON that is known here is RabbitMQ's definitions.json"
        )
    return top


def _vhosts(book: Book, top: Mapping[str, object], shown: str, default_vhost: str) -> list[str]:
    """Their names."""
    names, limited = list[str](), _limits_of_vhosts(book, top, shown, default_vhost)
    for vhost in _items(book, top, "vhosts", shown):
        name = _text(book, vhost, "name")
        if name:
            names.append(name)
        limits = limits_of(book, limited.get(name or "") or vhost.values.get("limits"), VHOST_LIMITS, vhost.place)
        more: dict[str, object] = dict(limits)
        kind = vhost.values.get("default_queue_type")
        if kind in QUEUE_TYPES and kind != "classic":
            more["default_queue_type"] = kind
        elif kind not in (None, "classic", "undefined"):
            book.remark(Verdict.DIFFERS, vhost.place, f"default_queue_type {kind!r} is no type of queues here")
        if name and (name != "/" or more):
            book.add("vhost", Table({"name": name, **more}), vhost.place)
    return names


def _default_vhost(top: Mapping[str, object]) -> str:
    """The vhost of an export of one vhost, whose objects do not name it."""
    name = top.get("vhost")
    return name if isinstance(name, str) and name else "/"


def _items(book: Book, top: Mapping[str, object], section: str, shown: str) -> Iterator[Item]:
    found = top.get(section, [])
    if not isinstance(found, list):
        book.wrong(Place(shown, 0, section), "is not a list")
        return
    for index, value in enumerate(cast("list[object]", found)):
        place = Place(shown, 0, f"{section}[{index}]")
        if not isinstance(value, dict):
            book.wrong(place, "is not an object")
            continue
        values = cast("dict[str, object]", value)
        name = values.get("name")
        if isinstance(name, str):
            place = place._replace(what=f'{place.what} "{name}"')
        why = _unwritable(values, DEPTH_MAX)
        if why is not None:
            book.wrong(place, why)
            continue
        yield Item(values, place)


def _unwritable(value: object, depth: int) -> str | None:
    """Why a value has no form in our settings, None where it has one."""
    if value is None:
        return "holds null, which settings do not have"
    if isinstance(value, float) and not math.isfinite(value):
        return f"holds {value}, which settings do not have"
    if isinstance(value, str):
        return "holds half of a surrogate pair, which is no text" if _HALF.search(value) else None
    if isinstance(value, (dict, list)):
        if depth == 0:
            return f"is nested deeper than {DEPTH_MAX}"
        inner = cast("dict[str, object] | list[object]", value)
        parts = [*inner, *inner.values()] if isinstance(inner, dict) else inner
        return next((why for part in parts if (why := _unwritable(part, depth - 1)) is not None), None)
    return None


def _text(book: Book, item: Item, key: str, default: str | None = None) -> str | None:
    """A text of an object; None where it is missing or no text, which is in the book."""
    value = item.values.get(key, default)
    if isinstance(value, str):
        return value
    book.wrong(item.place, f"{key} is missing" if value is None else f"{key} {value!r} is not text")
    return None


def _truth(book: Book, item: Item, key: str, *, default: bool) -> bool:
    value = item.values.get(key, default)
    if isinstance(value, bool):
        return value
    book.wrong(item.place, f"{key} {value!r} is neither true nor false")
    return default


def _arguments(book: Book, item: Item) -> Mapping[str, object]:
    value = item.values.get("arguments", {})
    if isinstance(value, dict):
        return cast("dict[str, object]", value)
    book.wrong(item.place, "arguments is not an object")
    return {}


def _users(book: Book, top: Mapping[str, object], shown: str) -> list[str]:
    names = list[str]()
    for user in _items(book, top, "users", shown):
        table = user_table(book, user.values, user.place)
        if table is not None:
            names.append(str(table["name"]))
            book.add("user", Table(table), user.place)
    return names


def _permissions(book: Book, top: Mapping[str, object], shown: str, users: list[str], vhosts: list[str]) -> None:
    found = [Permission(**texts, place=place) for texts, place in _rights(book, top, shown, "permissions", Permission)]
    narrower = list[TopicPermission]()
    for texts, place in _rights(book, top, shown, "topic_permissions", TopicPermission):
        if texts["exchange"] == "amq.default":
            texts["exchange"] = ""
        narrower.append(TopicPermission(**texts, place=place))
    permit(book, found, narrower, users, vhosts)


def _rights(
    book: Book, top: Mapping[str, object], shown: str, key: str, kind: type[Permission | TopicPermission]
) -> Iterator[tuple[dict[str, str], Place]]:
    """The texts of each item of a list of rights, by field of `kind`; one with a wrong text is told and left out."""
    default_vhost = _default_vhost(top)
    for right in _items(book, top, key, shown):
        texts = {
            field: _text(book, right, field, default_vhost if field == "vhost" else None)
            for field in kind._fields
            if field != "place"
        }
        whole = {field: text for field, text in texts.items() if text is not None}
        if len(whole) == len(texts):
            yield whole, right.place


def _limits_of_vhosts(book: Book, top: Mapping[str, object], shown: str, default_vhost: str) -> dict[str, object]:
    """Limits that parameters set, by vhost; a vhost that the document does not list has no place to put them."""
    out: dict[str, object] = {}
    names = top.get("vhosts")
    there = cast("list[object]", names) if isinstance(names, list) else []
    listed = [cast("dict[str, object]", one).get("name") for one in there if isinstance(one, dict)]
    for item in _items(book, top, "parameters", shown):
        if item.values.get("component") == VHOST_COMPONENT:
            vhost = _text(book, item, "vhost", default_vhost) or ""
            out[vhost] = item.values.get("value")
            if vhost not in listed:
                limits = limits_of(book, out[vhost], VHOST_LIMITS, item.place)
                if limits:
                    book.add("vhost", Table({"name": vhost, **limits}), item.place)
    return out


def _parameters(book: Book, top: Mapping[str, object], shown: str, default_vhost: str) -> None:
    for item in _items(book, top, "parameters", shown):
        component, value = item.values.get("component"), item.values.get("value")
        if component == OPERATOR_COMPONENT and isinstance(value, dict):
            about = {key: item.values[key] for key in ("vhost", "name") if key in item.values}
            _policy(book, Item({**cast("dict[str, object]", value), **about}, item.place), default_vhost, operator=True)
        elif component != VHOST_COMPONENT:
            book.remark(Verdict.REFUSED, item.place, f"belongs to the plugin {component!r}")


def _policy(book: Book, item: Item, default_vhost: str, *, operator: bool = False) -> None:
    name, pattern = _text(book, item, "name"), _text(book, item, "pattern")
    given = item.values.get("definition", {})
    if not isinstance(given, dict):
        book.wrong(item.place, "definition is not an object")
        return
    definition = dict(cast("dict[str, object]", given))
    for key in [key for key in definition if key in MIRRORS]:
        del definition[key]
        book.remark(Verdict.NO_MEANING, item.place._replace(what=f"{item.place.what} {key}"), NO_MIRRORS)
    if not definition:
        return
    table: dict[str, object] = {
        "name": name,
        "vhost": _text(book, item, "vhost", default_vhost),
        "pattern": pattern,
        "apply_to": _text(book, item, "apply-to", "queues" if operator else "all"),
        "priority": item.values.get("priority", 0),
        "definition": definition,
    }
    kept = {key: value for key, value in table.items() if value != _USUAL_OF_POLICIES.get(key)}
    book.add("operator_policy" if operator else "policy", Table(kept), item.place)


def _exchange(book: Book, item: Item, default_vhost: str) -> None:
    name, kind = _text(book, item, "name"), _text(book, item, "type", "direct")
    if not name or name.startswith("amq."):
        return  # the predeclared ones are there
    if kind not in EXCHANGE_TYPES:
        book.remark(Verdict.REFUSED, item.place, f"an exchange of type {kind!r}")
        return
    life = _life(book, item, default_vhost, "durable", "auto_delete", "internal")
    table = {"name": name, "type": kind, **life, "arguments": dict(_arguments(book, item))}
    book.add("exchange", Table(_unusual(table)), item.place)


def _life(book: Book, item: Item, default_vhost: str, *keys: str) -> dict[str, object]:
    """Where it is, and what is said of it by yes and no."""
    vhost = _text(book, item, "vhost", default_vhost)
    return {"vhost": vhost, **{key: _truth(book, item, key, default=_USUAL[key] is True) for key in keys}}


def _unusual(table: Mapping[str, object]) -> dict[str, object]:
    """What of it does not go without saying."""
    return {key: value for key, value in table.items() if value != _USUAL.get(key)}


def _queue(book: Book, item: Item, default_vhost: str) -> None:
    name, life = _text(book, item, "name"), _life(book, item, default_vhost, "durable", "auto_delete")
    if not name:
        return
    arguments = _arguments(book, item)
    if lost := lost_by(arguments):
        book.remark(Verdict.DIFFERS, item.place, lost)
    table = Table({"name": name, **_unusual(life), "fairness_model": "round-robin"})
    kind = QUEUE_TYPES.get(str(arguments.get(argument_name("queue_type"))), QUEUE_TYPES["classic"])
    for argument, value in arguments.items():
        place = item.place._replace(what=f"{item.place.what} {argument}")
        _argument(book, table, argument, value, place, kind)
    if arguments:
        table.values["arguments"] = dict(arguments)
    book.add("queue", table, item.place)


def _goes_without_saying(key: str | None, harmless: tuple[object, ...] | None, value: object) -> bool:
    """Whether a queue is as this argument says anyway.  harmless: values of it that say nothing."""
    if key == "queue_type":
        return value == "classic"
    return harmless is not None and any(value == one and type(value) is type(one) for one in harmless)


def _argument(book: Book, table: Table, argument: str, value: object, place: Place, kind: QueueType) -> None:
    if argument == DEDUPLICATION and isinstance(value, bool):
        table.values |= DEDUPLICATES if value else {}
        return
    key, harmless = _OURS.get(argument), HARMLESS_ARGUMENTS.get(argument)
    if key == "queue_type" and value not in QUEUE_TYPES:
        book.remark(Verdict.REFUSED, place, f"{value!r} is another kind of queue")
        return
    if argument in kind.idle or _goes_without_saying(key, harmless, value):
        return
    if argument == MAX_AGE:
        try:
            key, value = "expiration", format_duration(parse_age(str(value)))
        except ValueError as error:
            book.remark(Verdict.REFUSED, place, str(error))
            return
    if key is None:
        verdict = Verdict.NO_MEANING if harmless is None else Verdict.REFUSED
        book.remark(verdict, place, f"{value!r} is {'not known' if harmless is None else 'another kind of queue'}")
        return
    table.put(key, _with_unit(key, value), place)


def _with_unit(key: str, value: object) -> object:
    """A setting as our file has it: RabbitMQ's numbers are milliseconds and bytes."""
    row = QUEUE_KEYS[key]
    if isinstance(value, int) and not isinstance(value, bool):
        if row.kind is Kind.DURATION and value >= 0:
            return format_duration(value * 1000)
        if row.kind is Kind.SIZE:
            return f"{value}B"
    return value


def _binding(book: Book, item: Item, default_vhost: str) -> None:
    source, destination = _text(book, item, "source"), _text(book, item, "destination")
    if not source or not destination:
        return  # the default exchange needs no bindings
    arguments = _arguments(book, item)
    table: dict[str, object] = {
        "source": source,
        "destination": destination,
        "destination_type": _text(book, item, "destination_type", "queue"),
        "key": _text(book, item, "routing_key", ""),
        "vhost": _text(book, item, "vhost", default_vhost),
        "arguments": dict(arguments),
    }
    place = item.place._replace(what=f'{item.place.what} "{source}" to "{destination}"')
    if voids := voids_in(arguments):
        book.remark(Verdict.DIFFERS, place, voids)
    book.add("binding", Table(_unusual(table)), place)
