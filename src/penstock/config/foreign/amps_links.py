"""`Replication` into `[[link]]`: a `Destination` is a link, its transport our Flight door at that address.

A destination is known by its `Name`, which the other instance has to have; where there is none by its `Group`, which
has to be the name of the instance then, and that is said.  A topic that names a queue means what the queue shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import cast

from penstock.config.foreign import amps_elements
from penstock.config.foreign.amps_elements import needs, once, stray, unknown
from penstock.config.foreign.converted import Book, Element, Path_, Place, Table, Verdict
from penstock.errors import known_name
from penstock.records.message_types import JSON
from penstock.records.regular_expressions import SPECIAL, topic_pattern

_KNOWN = ("Name", "Group", "SyncType", "Topic", "PassThrough", "Transport")
_OF_TOPIC = ("Name", "MessageType", "Filter")
_OF_TRANSPORT = ("Type", "InetAddr", "Name")

_PLAIN = ("amps-replication", "tcp")
_SECURE = ("amps-replication-secure", "amps-secure-replication", "tcps")
"""Types of transports, and those of them that speak TLS."""

_FILES = {"Certificate": "certificate", "PrivateKey": "key", "CAFile": "ca"}
"""Elements of a transport that are keys of a link."""

_LEFT_OUT = {
    "Authenticator": (Verdict.DIFFERS, "who logs in there is `user` of [[link]], with its password or password_file"),
    "VerifyClient": (Verdict.NO_MEANING, "with TLS the certificate of the other site is always checked"),
    "CAPath": (Verdict.DIFFERS, "write <CAFile>: without it the authorities of the system are those that count"),
}
_NOTHING = "links have nothing like it"
_COMPARED = "both sides compare all that matters, always"


def read_replication(book: Book, element: Element) -> None:
    """Every destination into a link."""
    stray(book, element)
    for child in element.children:
        if child.name != "Destination":
            unknown(book, child, "<Replication>", ["Destination"])
            continue
        _read_destination(book, child)


def _read_destination(book: Book, element: Element) -> None:
    of, before = "<Destination>", len(book.mistakes)
    table = Table()
    _others(book, element, of, _KNOWN, _NOTHING)
    needs(book, element, "<Replication>", "SyncType", "Topic", "Transport")
    once(book, element, "Name", "Group", "SyncType")
    _read_name(book, element, table)
    for kind in element.all("SyncType")[:1]:
        try:
            if amps_elements.words("sync", "async")(kind.text) == "sync":
                table.put("sync", True, kind.place(of))
        except ValueError as error:
            book.wrong(kind.place(of), str(error))
    groups = [one.text for one in element.all("PassThrough")]
    if groups:
        table.put("pass_through", groups, element.all("PassThrough")[0].place(of))
    topics = [_topic(book, topic, table.places, number) for number, topic in enumerate(element.all("Topic"))]
    table.values["topic"] = topics
    if element.all("Topic"):
        table.places["topic",] = element.all("Topic")[0].place(of)
    if len(book.mistakes) == before:
        _topics_of_queues(book, topics, table.places)
    table.values["to"] = _addresses(book, element, table)
    if len(book.mistakes) == before:
        book.add("link", table, Place(element.file, element.line, of))


def _others(book: Book, element: Element, of: str, known: Iterable[str], why: str) -> None:
    """Elements that are not known: a remark, and a mistake where a known one seems to be meant."""
    stray(book, element)
    names = list(known)
    for child in element.children:
        if child.name in names:
            continue
        if any(name.lower() == child.name.lower() for name in names) or get_close_matches(child.name, names, 1, 0.8):
            unknown(book, child, of, names)
        else:
            book.remark(Verdict.NO_MEANING, child.place(of), why)


def _read_name(book: Book, element: Element, table: Table) -> None:
    names, groups = element.all("Name"), element.all("Group")
    if not names and not groups:
        book.wrong(element.place("<Replication>"), "has neither <Name> nor <Group>: which instance is it?")
        return
    one = (names or groups)[0]
    table.put("name", one.text, one.place("<Destination>"))
    if not names:
        why = f"a link is to one instance, which has to be called {one.text!r}"
        book.remark(Verdict.DIFFERS, one.place("<Destination>"), why)
    elif groups:
        table.put("group", groups[0].text, groups[0].place("<Destination>"))


def _topic(book: Book, element: Element, places: dict[Path_, Place], number: int) -> dict[str, object]:
    found = dict[str, object]()
    _others(book, element, "<Topic>", _OF_TOPIC, _COMPARED)
    for tag in ("Name", "MessageType"):
        if not any(child.text for child in element.all(tag)):
            book.wrong(element.place("<Destination>"), f"has no <{tag}>")
    once(book, element, *_OF_TOPIC)
    for tag, key in (("Name", "pattern"), ("Filter", "filter"), ("MessageType", "message_type")):
        for child in element.all(tag)[:1]:
            if key != "message_type" or child.text != JSON:
                found[key] = child.text
                places["topic", number, key] = child.place("<Topic>")
    if "filter" not in found:
        found.pop("message_type", None)
    return found


def _topics_of_queues(book: Book, topics: list[dict[str, object]], places: dict[Path_, Place]) -> None:
    """Who replicates the topic of a queue means what it shows: the topics below it go, too."""
    said = [(str(topic["pattern"]), _matcher(str(topic["pattern"]))) for topic in topics]
    for queue in book.tables("queue"):
        name, below = str(queue["name"]), str(queue.get("underlying_topic", queue["name"]))
        if below == name or queue.get("kind") == "local":
            continue
        named = next((at for at, (_, matches) in enumerate(said) if matches(name)), None)
        if named is None or any(text == below or matches(below) for text, matches in said):
            continue
        topics.append({**topics[named], "pattern": below})
        place = places["topic", named, "pattern"]
        for key in topics[named]:
            places["topic", len(topics) - 1, key] = places["topic", named, key]
        book.remark(Verdict.DIFFERS, place, f"{name!r} is a queue: what it shows, {below!r}, is what goes there")


def _matcher(pattern: str) -> Callable[[str], bool]:
    try:
        matches = topic_pattern(pattern)
    except ValueError:
        return lambda _: False  # which is told when the settings are judged
    return lambda name: not SPECIAL.intersection(name) and bool(matches(name))


def _addresses(book: Book, element: Element, table: Table) -> list[str]:
    """Those of all transports, in their order: the next is tried where one does not answer."""
    out = list[str]()
    for transport in element.all("Transport"):
        _transport(book, transport, table)
        kind = next((one.text for one in transport.all("Type")), "")
        scheme = "penstocks" if kind in _SECURE else "penstock"
        found = [one for one in transport.all("InetAddr") if one.text]
        if not found:
            book.wrong(transport.place("<Destination>"), "has no <InetAddr>")
        for one in found:
            if one.text.isdigit():
                book.wrong(one.place("<Transport>"), f"{one.text!r} names no host: write host:port")
                continue
            table.places.setdefault(("to",), one.place("<Transport>"))
            out.append(f"{scheme}://{one.text}")
            book.remark(
                Verdict.DIFFERS,
                one.place("<Transport>"),
                f"{one.text!r} is to be the Flight door of that instance, where `user` of [[link]] logs in, else guest",
            )
    return out


def _transport(book: Book, element: Element, table: Table) -> None:
    """Its type, and the files of its TLS; what of it is said elsewhere here."""
    of = "<Transport>"
    _others(book, element, of, (*_OF_TRANSPORT, *_FILES, *_LEFT_OUT), _NOTHING)
    for one in element.all("Type"):
        if one.text not in (*_PLAIN, *_SECURE):
            known = ["amps-replication", "amps-replication-secure"]
            hint = known_name(one.text, known)
            book.wrong(one.place(of), f"{one.text!r} is not one of {', '.join(known)}{hint}")
    for tag, key in _FILES.items():
        for one in element.all(tag):
            before = cast("str", table.values.setdefault(key, one.text))
            table.places.setdefault((key,), one.place(of))
            if before != one.text:
                book.remark(
                    Verdict.DIFFERS, one.place(of), f"a link has one {key} for all of its addresses: {before!r}"
                )
    for tag, (verdict, why) in _LEFT_OUT.items():
        for one in element.all(tag):
            book.remark(verdict, one.place(of), why)
