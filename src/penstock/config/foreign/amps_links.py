"""`Replication` into `[[link]]`: a `Destination` is a link, its transport our Flight door at that address.

A destination is known by its `Name`, which the other instance has to have; where there is none by its `Group`, which
has to be the name of the instance then, and that is said.
"""

from __future__ import annotations

from penstock.config.foreign import amps_values
from penstock.config.foreign.amps_elements import stray, unknown
from penstock.config.foreign.converted import Book, Element, Verdict
from penstock.config.known_names import Path_, Place
from penstock.records.message_types import JSON

_KNOWN = ("Name", "Group", "SyncType", "Topic", "PassThrough", "Transport")
_OF_TOPIC = ("Name", "MessageType", "Filter")

_SECURE = ("amps-replication-secure", "amps-secure-replication", "tcps")
"""Types of transports that speak TLS."""


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
    table, places = dict[str, object](), dict[Path_, Place]()
    for child in element.children:
        if child.name not in _KNOWN:
            book.remark(Verdict.NO_MEANING, child.place(of), "links have nothing like it")
    for tag in ("SyncType", "Topic", "Transport"):
        if not element.all(tag):
            book.wrong(element.place("<Replication>"), f"has no <{tag}>")
    _read_name(book, element, table, places)
    for kind in element.all("SyncType"):
        try:
            if amps_values.words("sync", "async")(kind.text) == "sync":
                table["sync"] = True
                places["sync",] = kind.place(of)
        except ValueError as error:
            book.wrong(kind.place(of), str(error))
    groups = [one.text for one in element.all("PassThrough")]
    if groups:
        table["pass_through"] = groups
        places["pass_through",] = element.all("PassThrough")[0].place(of)
    topics = [_topic(book, topic, places, number) for number, topic in enumerate(element.all("Topic"))]
    table["topic"] = topics
    if element.all("Topic"):
        places["topic",] = element.all("Topic")[0].place(of)
    table["to"] = _addresses(book, element, places)
    if len(book.mistakes) == before:
        book.add("link", table, Place(element.file, element.line, of), places)


def _read_name(book: Book, element: Element, table: dict[str, object], places: dict[Path_, Place]) -> None:
    names, groups = element.all("Name"), element.all("Group")
    if not names and not groups:
        book.wrong(element.place("<Replication>"), "has neither <Name> nor <Group>: which instance is it?")
        return
    one = (names or groups)[0]
    table["name"] = one.text
    places["name",] = one.place("<Destination>")
    if not names:
        why = f"a link is to one instance, which has to be called {one.text!r}"
        book.remark(Verdict.DIFFERS, one.place("<Destination>"), why)
    elif groups:
        table["group"] = groups[0].text
        places["group",] = groups[0].place("<Destination>")


def _topic(book: Book, element: Element, places: dict[Path_, Place], number: int) -> dict[str, object]:
    found = dict[str, object]()
    for child in element.children:
        if child.name not in _OF_TOPIC:
            book.remark(Verdict.NO_MEANING, child.place("<Topic>"), "both sides compare all that matters, always")
    for tag in ("Name", "MessageType"):
        if not any(child.text for child in element.all(tag)):
            book.wrong(element.place("<Destination>"), f"has no <{tag}>")
    for tag, key in (("Name", "pattern"), ("Filter", "filter"), ("MessageType", "message_type")):
        for child in element.all(tag)[:1]:
            if key != "message_type" or child.text != JSON:
                found[key] = child.text
                places["topic", number, key] = child.place("<Topic>")
    if "filter" not in found:
        found.pop("message_type", None)
    return found


def _addresses(book: Book, element: Element, places: dict[Path_, Place]) -> list[str]:
    """Those of all transports, in their order: the next is tried where one does not answer."""
    out = list[str]()
    for transport in element.all("Transport"):
        kind = next((one.text for one in transport.all("Type")), "")
        scheme = "penstocks" if kind in _SECURE else "penstock"
        found = [one for one in transport.all("InetAddr") if one.text]
        if not found:
            book.wrong(transport.place("<Destination>"), "has no <InetAddr>")
        for one in found:
            places.setdefault(("to",), one.place("<Transport>"))
            out.append(f"{scheme}://{one.text}")
            book.remark(
                Verdict.DIFFERS,
                one.place("<Transport>"),
                f"{one.text!r} is to be the Flight door of that instance, where `user` of [[link]] logs in, else guest",
            )
    return out
