"""`Actions`: what happens when a queue expires a message, and the refusal of every other module.

One `On` and one `Do` make one `[[action]]` of ours; several make one for each pair, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.config.ampsconfig import values
from penstock.config.ampsconfig.elements import NATIVE_TYPE, Row
from penstock.config.ampsconfig.reading import Fields, read_fields, stray, unknown
from penstock.config.foreign.converted import Book, Verdict
from penstock.config.foreign.document import Element
from penstock.config.places import Place

ON_EXPIRE = "amps-action-on-sow-expire-message"
DO_PUBLISH = "amps-action-do-publish-message"
REASONS = ("time_limit", "forced_expire", "max_cancels", "max_deliveries")

_STEP = {"Module": Row("module", values.name), "Options": Row("options", inner=True)}
_ACTION_NAMES = ("On", "If", "Do")


def _reasons(value: str) -> list[str]:
    found = [part.strip() for part in value.split(",")]
    for part in found:
        values.words(*REASONS)(part)
    return found


_ON_OPTIONS = {
    "Topic": Row("queue", values.name),
    "MessageType": Row("message_type"),
    "Reason": Row("reason", _reasons),
}
_DO_OPTIONS = {
    "Topic": Row("topic", values.name),
    "MessageType": Row("message_type"),
    "Data": Row("data"),
    "Delta": Row("delta", values.yes_or_no),
    "UpdateOnly": Row("update_only", values.yes_or_no),
}


class Step(NamedTuple):
    """An `On` or a `Do` that is done here."""

    element: Element
    fields: Fields


def read_actions(book: Book, sections: list[Element]) -> None:
    """Every action into `[[action]]`."""
    for section in sections:
        stray(book, section)
        for element in section.children:
            if element.name != "Action":
                unknown(book, element, "<Actions>", ["Action"])
                continue
            _read_action(book, element)


def _read_action(book: Book, element: Element) -> None:
    stray(book, element)
    for child in element.children:
        if child.name not in _ACTION_NAMES:
            unknown(book, child, "<Action>", _ACTION_NAMES)
        elif child.name == "If":
            book.remark(Verdict.REFUSED, child.place("<Action>"), "an action has no condition here")
    for tag in ("On", "Do"):
        if not element.all(tag):
            book.wrong(element.place(), f"has no <{tag}>")
    ons = [_step(book, on, ON_EXPIRE, _ON_OPTIONS, ("queue",)) for on in element.all("On")]
    dos = [_step(book, do, DO_PUBLISH, _DO_OPTIONS, ("topic", "data")) for do in element.all("Do")]
    for on in ons:
        for do in dos:
            if on is not None and do is not None:
                _add(book, element, on, do)


def _step(book: Book, element: Element, module: str, rows: Mapping[str, Row], needed: tuple[str, ...]) -> Step | None:
    """One step with its options; None where it is not done here, which is in the book."""
    step = read_fields(book, element, _STEP)
    name = step.text("module")
    if name is None:
        if "module" not in step.elements:
            book.wrong(element.place("<Action>"), "has no <Module>")
        return None
    if name != module:
        book.remark(Verdict.REFUSED, step.place("module"), f"{name!r}; there is {module!r} alone")
        return None
    options = step.values.get("options")
    if not isinstance(options, Element):
        book.wrong(element.place("<Action>"), "has no <Options>")
        return None
    mistakes = len(book.mistakes)
    fields = read_fields(book, options, rows)
    fields.of = f"<Options> of <{element.name}>"
    for key in needed:
        if key not in fields.elements:
            tag = next(tag for tag, row in rows.items() if row.key == key)
            book.wrong(options.place(f"<{element.name}>"), f"has no <{tag}>")
    for key in ("delta", "update_only"):
        if fields.values.get(key):
            book.remark(Verdict.REFUSED, fields.place(key), "an action publishes the whole message here")
    return Step(element, fields) if len(book.mistakes) == mistakes else None


def _add(book: Book, element: Element, on: Step, do: Step) -> None:
    for fields in (on.fields, do.fields):
        if fields.values.get("message_type", NATIVE_TYPE) != NATIVE_TYPE:
            book.remark(Verdict.DIFFERS, fields.place("message_type"), "a message type does not tell topics apart")
    watch: dict[str, object] = {"queue": on.fields.values["queue"], "event": "expire"}
    if "reason" in on.fields:
        watch["reason"] = on.fields.values["reason"]
    publish: dict[str, object] = {key: do.fields.values[key] for key in ("topic", "data")}
    book.add(
        "action",
        {"on": watch, "do": {"publish": publish}},
        Place(element.file, element.line, "<Action>"),
        {
            **{("on", key): on.fields.place(key) for key in ("queue", "reason") if key in on.fields},
            **{("do", "publish", key): do.fields.place(key) for key in ("topic", "data")},
        },
    )
