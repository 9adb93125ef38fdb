"""The queues of `SOW`: every element of Queue, LocalQueue and GroupLocalQueue, their defaults, and what excludes what.

A default of AMPS that is another here is written into our settings: `MaxPerSubscriptionBacklog` is 1, and
`RecoveryPoint` is the beginning of the log.
"""

from __future__ import annotations

from penstock.config.ampsconfig.elements import QUEUE, QUEUE_KINDS
from penstock.config.ampsconfig.reading import Fields, read_fields, said, seen
from penstock.config.foreign.converted import Book, Verdict
from penstock.config.foreign.document import Element
from penstock.config.message_types import NATIVE_TYPE
from penstock.config.places import Path_, Place
from penstock.config.queues import QUEUE_KEYS
from penstock.records.regular_expressions import SPECIAL

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
    table: dict[str, object] = {"name": fields.values["name"]}
    places: dict[Path_, Place] = {("name",): fields.place("name")}
    if kind != "distributed":
        table["kind"] = kind
        places["kind",] = element.place()
        book.remark(Verdict.DIFFERS, element.place(), "there is one instance, which owns all messages of the queue")
    typed(fields, table, places)
    for key in fields.values:
        if key not in {"name", "message_type"} and fields.values[key] is not False:
            table[key] = fields.values[key]
            places[key,] = fields.place(key)
    for key, value in _DEFAULTS.items():
        if key in QUEUE_KEYS:
            table.setdefault(key, value)
    _topics(book, element, fields)
    place = Place(element.file, element.line, said(element))
    book.add("queue", table, place, places)


def named(book: Book, element: Element, fields: Fields) -> bool:
    """Whether an element of `SOW` has its name and its message type; what is missing is in the book."""
    for key, tag in (("name", "Name"), ("message_type", "MessageType")):
        if key not in fields.elements:
            book.wrong(Place(element.file, element.line, said(element)), f"has no <{tag}>")
    return "name" in fields and "message_type" in fields


def typed(fields: Fields, table: dict[str, object], places: dict[Path_, Place]) -> None:
    """The message type, where it is not the one that goes without saying."""
    if fields.values["message_type"] != NATIVE_TYPE:
        table["message_type"] = fields.values["message_type"]
        places["message_type",] = fields.place("message_type")


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
