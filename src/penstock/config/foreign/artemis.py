"""Artemis `broker.xml`: addresses with their queues, and address-settings.

A queue of an address becomes a queue over the topic of that name; address-settings become `[[address]]`, key by key.
A filter there is a JMS selector, another language than ours, so it is never taken over unread.
"""

from __future__ import annotations

import re

from penstock.config.addresses import ADDRESS_KEYS, ELSEWHERE
from penstock.config.foreign.converted import Book, Converted, Verdict
from penstock.config.foreign.document import Element
from penstock.config.places import Path_, Place
from penstock.config.queue_values import COUNT_MAX
from penstock.units import format_duration

_MILLISECONDS = frozenset(
    {
        "redelivery-delay",
        "max-redelivery-delay",
        "expiry-delay",
        "min-expiry-delay",
        "max-expiry-delay",
        "auto-delete-queues-delay",
        "auto-delete-addresses-delay",
        "redistribution-delay",
        "default-delay-before-dispatch",
    }
)
_LATER_QUEUE = {"ring-size": "ring_size"}
_QUEUE_REFUSED = frozenset(
    {
        "max-consumers",
        "purge-on-no-consumers",
        "exclusive",
        "last-value",
        "last-value-key",
        "non-destructive",
        "consumers-before-dispatch",
        "delay-before-dispatch",
        "group-rebalance",
        "group-buckets",
        "group-first-key",
        "enabled",
    }
)
_NEUTRAL = {
    "max-consumers": "-1",
    "purge-on-no-consumers": "false",
    "exclusive": "false",
    "last-value": "false",
    "non-destructive": "false",
    "group-rebalance": "false",
    "enabled": "true",
}
_READ = frozenset({"name", "addresses", "address-settings"})
_SERVED = frozenset({"acceptors", "connectors"})
_REFUSED = {
    "diverts": "no copying or moving from address to address",
    "bridges": "no bridges to other brokers",
    "federations": "no federation",
    "broker-plugins": "no plugins",
}


def read_broker(root: Element, shown: str) -> Converted:
    """Our settings out of `<configuration>` or `<core>`.  Raises SettingsError with every mistake and its line."""
    book = Book()
    cores = [root] if root.name == "core" else root.all("core")
    if not cores:
        book.wrong(root.place(), "has no <core>")
    for core in cores:
        for element in core.children:
            _part(book, element)
        for address in (one for part in core.all("addresses") for one in part.all("address")):
            _address(book, address)
        for setting in (one for part in core.all("address-settings") for one in part.all("address-setting")):
            _setting(book, setting)
    return book.close("Artemis broker.xml", shown)


def _part(book: Book, element: Element) -> None:
    if element.name == "name":
        if element.text:
            book.put("server", "name", element.text, element.place())
    elif element.name in _SERVED:
        book.remark(Verdict.NO_MEANING, element.place(), "served by AMQP 0-9-1, Flight and HTTP: see [listen]")
    elif element.name in _REFUSED:
        book.remark(Verdict.REFUSED, element.place(), _REFUSED[element.name])
    elif element.name not in _READ:
        book.remark(Verdict.NO_MEANING, element.place(), "is not read")


def _named(book: Book, element: Element, attribute: str) -> str | None:
    name = element.attributes.get(attribute, "").strip()
    if name:
        return name
    book.wrong(element.place(), f"has no {attribute}")
    return None


def _address(book: Book, element: Element) -> None:
    address = _named(book, element, "name")
    if address is None:
        return
    anycast = [queue for kind in element.all("anycast") for queue in kind.all("queue")]
    multicast = [queue for kind in element.all("multicast") for queue in kind.all("queue")]
    place = element.place()._replace(what=f'<address> "{address}"')
    if len(anycast) > 1:
        book.remark(
            Verdict.REFUSED,
            place,
            f"{len(anycast)} anycast queues share its messages there; here each queue would have all of them",
        )
    if not anycast and not multicast:
        book.add("topic", {"name": address}, place, {})
    for queue in (*anycast, *multicast):
        _queue(book, queue, address)


def _queue(book: Book, element: Element, address: str) -> None:
    name = _named(book, element, "name")
    if name is None:
        return
    place = element.place()._replace(what=f'<queue> "{name}"')
    table: dict[str, object] = {"name": name}
    places: dict[Path_, Place] = {}
    if name != address:
        table["underlying_topic"] = address
    for attribute, value in element.attributes.items():
        at = place._replace(what=f"{attribute} of {place.what}")
        if attribute in _LATER_QUEUE:
            if value != "-1":
                table[_LATER_QUEUE[attribute]] = _number(value)
                places[_LATER_QUEUE[attribute],] = at
        elif attribute in _QUEUE_REFUSED:
            if value != _NEUTRAL.get(attribute):
                book.remark(Verdict.REFUSED, at, repr(value))
        elif attribute != "name":
            book.remark(Verdict.NO_MEANING, at, "is not read")
    for child in element.children:
        at = child.place(place.what)
        if child.name == "filter":
            selector = child.attributes.get("string", "")
            book.remark(Verdict.REFUSED, at, f"{selector!r} is a JMS selector: write it as `filter` of the queue")
        elif child.name == "durable":
            if child.text not in {"true", "false"}:
                book.wrong(at, f"{child.text!r} is not one of true, false")
            elif child.text == "false":
                table["durable"] = False
        else:
            book.remark(Verdict.NO_MEANING, at, "is not read")
    book.add("queue", table, place, places)


def _setting(book: Book, element: Element) -> None:
    match = _named(book, element, "match")
    if match is None:
        return
    place = element.place()._replace(what=f'<address-setting> "{match}"')
    table: dict[str, object] = {"pattern": match}
    for child in element.children:
        key = child.name.replace("-", "_")
        if key in ELSEWHERE:
            book.remark(Verdict.NO_MEANING, child.place(place.what), ELSEWHERE[key])
            continue
        if key not in ADDRESS_KEYS:
            book.remark(Verdict.REFUSED, child.place(place.what), f"{child.text!r} has no equal here")
            continue
        if key in table:
            book.wrong(child.place(place.what), "is there twice")
        table[key] = _value(child)
    book.add(
        "address",
        table,
        place,
        {(child.name.replace("-", "_"),): child.place(place.what) for child in element.children},
    )


def _value(element: Element) -> object:
    text = element.text
    value = _number(text)
    if element.name in _MILLISECONDS and isinstance(value, int) and 0 <= value <= COUNT_MAX:
        return format_duration(value * 1000)
    return {"true": True, "false": False}.get(text, value)


def _number(text: str) -> object:
    """A whole number where the text is one."""
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text
