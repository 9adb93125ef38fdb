"""Artemis `broker.xml`: addresses with their queues, and address-settings.

A queue of an address becomes a queue over the topic of that name; address-settings become `[[address]]`, key by key.
A filter there is a JMS selector, another language than ours, so it is never taken over unread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.config.foreign.converted import Book, Converted, Element, Place, Table, Verdict
from penstock.config.queue_values import COUNT_MAX
from penstock.records.address_settings import ADDRESS_KEYS, ELSEWHERE, LAST_VALUE, last_value
from penstock.units import format_duration

_MILLISECONDS = frozenset({"redelivery-delay", "max-redelivery-delay", "expiry-delay", "default-delay-before-dispatch"})
_SIZES = frozenset({"max-size-bytes"})

_OF_QUEUE = {
    "ring-size": "ring_size",
    "max-consumers": "max_consumers",
    "purge-on-no-consumers": "purge_on_no_consumers",
    "exclusive": "single_active_consumer",
    "consumers-before-dispatch": "consumers_before_dispatch",
    "delay-before-dispatch": "delay_before_dispatch",
    "last-value-key": "last_value_key",
    "non-destructive": "non_destructive",
}
"""Attributes of a queue that are settings here."""

_NEUTRAL = {
    "delay-before-dispatch": "-1",
    "last-value": "false",
    "group-rebalance": "false",
    "group-rebalance-pause-dispatch": "false",
    "group-buckets": "-1",
    "enabled": "true",
    "user": "",
}
"""Values that ask for nothing.  What a setting here can say is none of them: it goes before the address setting's."""

_NEUTRAL_OF_ADDRESS = {
    "max-size-bytes-reject-threshold": "-1",
    "default-group-rebalance": "false",
    "default-group-buckets": "-1",
    "no-expiry": "false",
    "min-expiry-delay": "-1",
    "max-expiry-delay": "-1",
    "slow-consumer-threshold": "-1",
    "retroactive-message-count": "0",
    "auto-create-dead-letter-resources": "false",
    "auto-create-expiry-resources": "false",
}

_PINS = ("group-rebalance", "group-rebalance-pause-dispatch", "group-buckets", "group-first-key")

_REFUSED_OF_QUEUE = {
    "last-value": "neither true nor false",
    **dict.fromkeys(_PINS, "groups are not pinned to a consumer: see `group_key`"),
    "enabled": "a queue takes messages as long as it is there",
}
_READ = frozenset({"name", "addresses", "address-settings", "queues", "literal-match-markers"})
_SERVED = frozenset({"acceptors", "connectors"})
_REFUSED = {
    "diverts": "no copying or moving from address to address",
    "bridges": "no bridges to other brokers",
    "federations": "no federation",
    "broker-plugins": "no plugins",
    "wildcard-addresses": "the wildcards are `*` and `#`, and words end at dots",
}
_RIGHTS = "rights by role: write an [[entitlement]] for each user"
_TEN = (
    "no max-delivery-attempts for all addresses: Artemis ends a message after ten deliveries, here it is delivered for "
    "ever unless a setting says otherwise"
)


def read_broker(root: Element, shown: str) -> Converted:
    """Our settings out of `<configuration>` or `<core>`.  Raises SettingsError with every mistake and its line."""
    book = Book()
    cores = [root] if root.name == "core" else root.all("core")
    if not cores:
        book.wrong(root.place(), "has no <core>")
    for core in cores:
        _core(book, core)
    return book.close("Artemis broker.xml", shown)


def _core(book: Book, core: Element) -> None:
    markers = ""
    for element in core.children:
        _part(book, element)
        if element.name == "literal-match-markers":
            markers = element.text
            if len(markers) != 2:
                book.wrong(element.place(), f"{markers!r} is not two characters")
    for address in _within(core, "addresses", "address"):
        _address(book, address)
    for queue in _within(core, "queues", "queue"):
        addresses = queue.all("address")
        if addresses:
            _queue(book, queue, addresses[0].text)
        else:
            book.wrong(queue.place(), "has no address")
    for setting in _within(core, "address-settings", "address-setting"):
        _setting(book, setting, markers)
    if not any(one.get("pattern") == "#" and "max_delivery_attempts" in one for one in book.tables("address")):
        book.remark(Verdict.DIFFERS, core.place(), _TEN)


def _within(element: Element, part: str, name: str) -> Iterator[Element]:
    for one in element.all(part):
        yield from one.all(name)


def _part(book: Book, element: Element) -> None:
    if element.name == "name":
        if element.text:
            book.put("server", "name", element.text, element.place())
    elif element.name in _SERVED:
        book.remark(Verdict.NO_MEANING, element.place(), "served by AMQP 0-9-1, Flight and HTTP: see [listen]")
    elif element.name in _REFUSED:
        book.remark(Verdict.REFUSED, element.place(), _REFUSED[element.name])
    elif element.name == "security-settings":
        book.remark(Verdict.DIFFERS, element.place(), _RIGHTS)
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
        book.add("topic", Table({"name": address}), place)
    for queue in (*anycast, *multicast):
        _queue(book, queue, address)


def _queue(book: Book, element: Element, address: str) -> None:
    name = _named(book, element, "name")
    if name is None:
        return
    place = element.place()._replace(what=f'<queue> "{name}"')
    table = Table({"name": name})
    if name != address:
        table.values["underlying_topic"] = address
    for attribute, value in element.attributes.items():
        at = place._replace(what=f"{attribute} of {place.what}")
        if attribute == "name" or value == _NEUTRAL.get(attribute):
            continue
        key = _OF_QUEUE.get(attribute)
        if key is not None:
            table.put(key, last_value(value) if attribute == "last-value-key" else _typed(attribute, value), at)
        elif attribute == "last-value" and value == "true":
            table.values.setdefault("last_value_key", last_value(LAST_VALUE))
        elif attribute in _REFUSED_OF_QUEUE:
            book.remark(Verdict.REFUSED, at, _REFUSED_OF_QUEUE[attribute])
        else:
            book.remark(Verdict.NO_MEANING, at, "is not read")
    for child in element.children:
        _part_of_queue(book, table.values, child, child.place(place.what))
    book.add("queue", table, place)


def _part_of_queue(book: Book, table: dict[str, object], child: Element, at: Place) -> None:
    if child.name == "filter":
        selector = child.attributes.get("string", "")
        book.remark(Verdict.REFUSED, at, f"{selector!r} is a JMS selector: write it as `filter` of the queue")
    elif child.name == "durable":
        if child.text not in {"true", "false"}:
            book.wrong(at, f"{child.text!r} is not one of true, false")
        elif child.text == "false":
            table["durable"] = False
    elif child.name != "address":
        book.remark(Verdict.NO_MEANING, at, "is not read")


def _setting(book: Book, element: Element, markers: str) -> None:
    match = _named(book, element, "match")
    if match is None:
        return
    place = element.place()._replace(what=f'<address-setting> "{match}"')
    table = Table({"pattern": match})
    if len(markers) == 2 and len(match) > 2 and (match[0], match[-1]) == (markers[0], markers[1]):
        table = Table({"pattern": match[1:-1], "literal": True})
    for child in element.children:
        key, at = child.name.replace("-", "_"), child.place(place.what)
        table.places[key,] = at
        if key in ELSEWHERE:
            book.remark(Verdict.NO_MEANING, at, ELSEWHERE[key])
            continue
        if child.text == _NEUTRAL_OF_ADDRESS.get(child.name):
            continue
        if key not in ADDRESS_KEYS:
            book.remark(Verdict.REFUSED, at, f"{child.text!r} has no equal here")
            continue
        if key in table.values:
            book.wrong(at, "is there twice")
        table.values[key] = _value(child)
    book.add("address", table, place)


def _value(element: Element) -> object:
    if element.name in _SIZES:
        return _size(element.text)
    if element.name in _TEXTS:
        return element.text
    return _typed(element.name, element.text)


_TEXTS = frozenset({"dead-letter-address", "expiry-address", "default-last-value-key", "address-full-policy"})


def _typed(name: str, text: str) -> object:
    """A value by what it looks like; milliseconds as a duration."""
    value = _number(text)
    if (name in _MILLISECONDS or f"default-{name}" in _MILLISECONDS) and isinstance(value, int):
        return format_duration(value * 1000) if 0 <= value <= COUNT_MAX else value
    return {"true": True, "false": False}.get(text, value)


def _size(text: str) -> object:
    """Bytes as our settings write them: `100Mb` there is `100MiB` here."""
    found = re.fullmatch(r"(\d{1,15})\s*([kKmMgG]?)[bB]?", text)
    if found is None:
        return _number(text)
    return found[1] + (f"{found[2].upper()}iB" if found[2] else "B")


def _number(text: str) -> object:
    """A whole number where the text is one, another number where it is that."""
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d{1,18}\.\d{1,18}", text) else text
