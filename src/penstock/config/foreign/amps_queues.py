"""`SOW`: topics with keys, views and conflated topics, queues, and the names that may stand once only.

Of queues every element of Queue, LocalQueue and GroupLocalQueue, their defaults, and what excludes what.  A default of
AMPS that is another here is written into our settings: `MaxPerSubscriptionBacklog` is 1, and `RecoveryPoint` is the
beginning of the log.
"""

from __future__ import annotations

from typing import cast

from penstock.config.foreign import amps_elements
from penstock.config.foreign.amps_elements import (
    CONFLATED_TOPIC,
    QUEUE,
    QUEUE_KINDS,
    SOW_KINDS,
    TOPIC,
    VIEW,
    Fields,
    lacks,
    read_fields,
    said,
    seen,
    stray,
    unknown,
)
from penstock.config.foreign.converted import Book, Element, Place, Table, Verdict
from penstock.records.message_types import JSON
from penstock.records.regular_expressions import SPECIAL

_CHANGES = "a message is stored as it was published"
_TOPIC_REFUSED = {
    "preprocessing": _CHANGES,
    "enrichment": _CHANGES,
    "history": "one value is kept for each key; the log has the earlier ones",
    "pattern": "each topic with a key has a name of its own",
    "key_generator": "a key is the value of <Key> fields",
}
_CONFLATED_REFUSED = {
    "enrichment": _CHANGES,
    "topic_format": "each conflated topic has a name of its own",
}


def read_sow(book: Book, sections: list[Element]) -> None:
    """Every object of the State of the World."""
    first: dict[str, Element] = {}
    for section in sections:
        stray(book, section)
        for element in section.children:
            kind = SOW_KINDS.get(element.name)
            if kind is None:
                unknown(book, element, "<SOW>", SOW_KINDS)
                continue
            if not _first(book, element, first):
                continue
            if element.name in QUEUE_KINDS:
                read_queue(book, element)
            elif kind == "topic":
                _read_topic(book, element)
            elif kind == "view":
                _read_view(book, element)
            else:
                _read_conflated(book, element)


def _first(book: Book, element: Element, first: dict[str, Element]) -> bool:
    """Whether an object is to be read: nothing else of its name was before, or that is a mistake and told."""
    name = next((child.text for child in element.children if child.name in {"Name", "Topic"}), None)
    if not name:
        return True
    before = first.setdefault(name, element)
    if before is element:
        return True
    place = Place(element.file, element.line, said(element))
    there = f"{name!r} is there already: <{before.name}>, {seen(before, element)}"
    if len({_type(before), _type(element)} - {""}) < 2:
        book.wrong(place, there)
        return True
    book.remark(Verdict.REFUSED, place, f"{there}; a message type does not tell topics apart")
    return False


def _type(element: Element) -> str:
    return next((child.text for child in element.all("MessageType")), "")


def _start(book: Book, element: Element, fields: Fields) -> Table | None:
    return begun(fields) if named(book, element, fields) else None


def begun(fields: Fields) -> Table:
    """A table with the name, and the message type where it is not the one that goes without saying."""
    table = Table()
    fields.into(table, "name")
    _typed(fields, table)
    return table


def _typed(fields: Fields, table: Table) -> None:
    if fields.values.get("message_type", JSON) != JSON:
        fields.into(table, "message_type")


def _refused(book: Book, fields: Fields, reasons: dict[str, str]) -> None:
    for key, why in reasons.items():
        if key in fields.elements:
            book.remark(Verdict.REFUSED, fields.place(key), why)


def _close(book: Book, section: str, element: Element, table: Table) -> None:
    book.add(section, table, Place(element.file, element.line, said(element)))


def _read_topic(book: Book, element: Element) -> None:
    fields = read_fields(book, element, TOPIC)
    table = _start(book, element, fields)
    _refused(book, fields, _TOPIC_REFUSED)
    if table is None:
        return
    if "key" in fields:
        fields.into(table, "key", "key_domain")
    elif "key_generator" not in fields.elements:
        table.values["key_from"] = "publisher"  # as the documents have it: no <Key>, so each message brings its own
    if "key_domain" in fields and "key" not in fields:
        book.wrong(fields.place("key_domain"), "belongs to keys that come from <Key>")
    lifetime = fields.text("expiration")
    if lifetime == "enabled":
        book.remark(Verdict.DIFFERS, fields.place("expiration"), "the expiration of a message itself always holds")
    elif lifetime is not None:
        try:
            read = amps_elements.interval_or_none(lifetime)
        except ValueError as error:
            book.wrong(fields.place("expiration"), f"{error}, enabled or disabled")
            read = None
        if read is not None:
            table.put("expiration", read, fields.place("expiration"))
    _close(book, "topic", element, table)


def _read_view(book: Book, element: Element) -> None:
    fields = read_fields(book, element, VIEW)
    table = _start(book, element, fields)
    lists = {key: _texts(book, fields, key, "Field") for key in ("select", "group_by")}
    for key, tag in (("source", "UnderlyingTopic"), ("select", "Projection"), ("group_by", "Grouping")):
        if key not in fields:
            book.wrong(Place(element.file, element.line, fields.of), f"has no <{tag}>")
    if table is None or "source" not in fields:
        return
    source = cast("Element", fields.values["source"])
    joins = _texts(book, fields, "source", "Join") if source.children else []
    if joins:
        table.values["join"] = joins
        if "filter" in fields:
            book.wrong(
                fields.place("filter"),
                f"belongs to a view of one topic; this one joins ({seen(source, fields.elements['filter'])})",
            )
    elif not source.text:
        book.wrong(fields.place("source"), "is empty")
    else:
        table.put("source", source.text, fields.place("source"))
    for key, value in (("select", ", ".join(lists["select"])), ("group_by", lists["group_by"])):
        table.values[key] = value
        if key in fields.elements:
            table.places[key,] = fields.place(key)
    fields.into(table, "filter", "conflation", "join_null_equivalency")
    _close(book, "view", element, table)


def _texts(book: Book, fields: Fields, key: str, tag: str) -> list[str]:
    """The texts of the `tag` children of an inner element."""
    element = fields.values.get(key)
    if not isinstance(element, Element):
        return []
    for child in element.children:
        if child.name != tag:
            book.wrong(child.place(f"<{element.name}>"), f"is unknown there: it holds <{tag}> only")
        elif not child.text:
            book.wrong(child.place(f"<{element.name}>"), "is empty")
    found = [child.text for child in element.all(tag)]
    if not found:
        book.wrong(fields.place(key), f"holds no <{tag}>")
    return found


def _read_conflated(book: Book, element: Element) -> None:
    fields = read_fields(book, element, CONFLATED_TOPIC)
    table = _start(book, element, fields)
    _refused(book, fields, _CONFLATED_REFUSED)
    lacks(book, Place(element.file, element.line, fields.of), fields, source="UnderlyingTopic")
    if table is None:
        return
    fields.into(table, "source", "interval", "filter")
    table.values.setdefault("interval", "5s")
    _close(book, "conflated_topic", element, table)


_ONE_OF = ("priority_expression", "barrier_expression", "target_queue_depth")
_DEFAULTS: dict[str, object] = {
    "max_per_subscription_backlog": 1,
    "recovery_point": "epoch",
}
"""Defaults that are others here."""


def read_queue(book: Book, element: Element) -> None:
    """One queue into `[[queue]]`."""
    fields = read_fields(book, element, QUEUE)
    if not named(book, element, fields):
        return
    _impossible(book, element, fields)
    kind = QUEUE_KINDS[element.name]
    table = Table()
    fields.into(table, "name")
    if kind != "distributed":
        table.put("kind", kind, element.place())
    _typed(fields, table)
    skipped = ("name", "message_type")
    fields.into(table, *(key for key, value in fields.values.items() if key not in skipped and value is not False))
    for key, value in _DEFAULTS.items():
        table.values.setdefault(key, value)
    _topics(book, element, fields)
    _close(book, "queue", element, table)


def named(book: Book, element: Element, fields: Fields) -> bool:
    """Whether an element of `SOW` has its name and its message type; what is missing is in the book."""
    place = Place(element.file, element.line, said(element))
    lacks(book, place, fields, name="Name", message_type="MessageType")
    return "name" in fields and "message_type" in fields


def _impossible(book: Book, element: Element, fields: Fields) -> None:
    present = sorted((key for key in _ONE_OF if key in fields.elements), key=lambda key: fields.elements[key].line)
    for key in present[1:]:
        first = fields.elements[present[0]]
        book.wrong(fields.place(key), f"cannot stand beside <{first.name}> ({seen(first, fields.elements[key])})")
    if fields.values.get("semantics") == "at-most-once":
        model = fields.text("fairness_model")
        if model is not None and model != "round-robin":
            book.wrong(
                fields.place("fairness_model"),
                f"{model!r} needs at-least-once; at-most-once "
                f"({seen(fields.elements['semantics'], fields.elements['fairness_model'])}) allows round-robin only",
            )
    if element.name == "GroupLocalQueue":
        if "initial_owner" not in fields.elements:
            book.wrong(Place(element.file, element.line, fields.of), "has no <InitialOwner>, which this kind needs")
        return
    for key in ("initial_owner", "group_local_queue_domain"):
        if key in fields.elements:
            book.wrong(fields.place(key), "belongs to a <GroupLocalQueue> only")


def _topics(book: Book, element: Element, fields: Fields) -> None:
    """What the queue shows, and where a publish to its own name goes."""
    topic, target, name = fields.text("underlying_topic"), fields.text("default_publish_target"), fields.text("name")
    if topic is None:
        if target is not None and target != name:
            book.wrong(
                fields.place("default_publish_target"),
                f"{target!r} is not in the queue: without <UnderlyingTopic> it holds {name!r} alone",
            )
        return
    if SPECIAL.intersection(topic):
        if "default_publish_target" not in fields.elements:
            book.wrong(
                fields.place("underlying_topic"),
                f"{topic!r} is a pattern, so <{element.name}> needs a <DefaultPublishTarget>",
            )
    elif "." in topic:
        book.remark(
            Verdict.DIFFERS,
            fields.place("underlying_topic"),
            f"{topic!r}: a dot alone makes no pattern here; write [.] elsewhere in it if one is meant",
        )
