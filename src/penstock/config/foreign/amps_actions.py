"""`Actions`: each `Action` with its `On`, `If` and `Do` becomes one `[[action]]`; modules that are not run are listed.

A module says what sets an action off, or what it does; each has options of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple, cast

from penstock.config.foreign import amps_elements
from penstock.config.foreign.amps_elements import Fields, Row, needs, read_fields, stray, unknown
from penstock.config.foreign.converted import Book, Element, Path_, Place, Table, Verdict
from penstock.errors import InvalidArgument, known_name, told_as
from penstock.records.cron import parse_schedule
from penstock.records.dataclass import dataclass
from penstock.records.event_actions import ENDS, LINK_EVENTS
from penstock.records.message_types import JSON, typed, untyped

_ACTION_NAMES = ("On", "If", "Do")


class Step(NamedTuple):
    """An `On` or a `Do` that is done here."""

    element: Element
    module: Module
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
    for again in element.all("If")[1:]:
        book.wrong(again.place("<Action>"), "is there twice")
    needs(book, element, "", "On", "Do")
    found = [_step(book, on, ON) for on in element.all("On")], [_step(book, do, DO) for do in element.all("Do")]
    condition = _condition(book, element)
    ons, dos = ([one for one in some if one is not None] for some in found)
    if ons and dos and (len(ons), len(dos)) == tuple(map(len, found)):
        _add(book, element, ons, dos, condition)


def _condition(book: Book, element: Element) -> Element | None:
    for one in element.all("If")[:1]:
        if one.children:
            book.remark(Verdict.REFUSED, one.place("<Action>"), "a condition is an expression here, not a module")
        elif not one.text:
            book.wrong(one.place("<Action>"), "is empty")
        else:
            return one
    return None


def _module(book: Book, element: Element, step: Fields, modules: Mapping[str, Module]) -> Module | None:
    """What a step does; None where it names nothing that is done here, which is in the book."""
    name = step.text("module")
    if name is None:
        if "module" not in step.elements:
            book.wrong(element.place("<Action>"), "has no <Module>")
        return None
    if name not in modules:
        book.remark(Verdict.REFUSED, step.place("module"), f"{name!r} is not run here{_instead(name, modules)}")
    return modules.get(name)


def _end(name: str) -> str:
    """`publish-message` of `amps-action-do-publish-message`"""
    return name.split("-", 3)[-1]


def _instead(name: str, modules: Mapping[str, Module]) -> str:
    """What somebody may have meant, or what does it here."""
    if name.endswith("-journal"):
        return ": leave the action out, for [log] retention and archive say what becomes of old files of the log"
    return known_name(_end(name), list(map(_end, modules)))  # all begin alike, so that each would be near to each


def _step(book: Book, element: Element, modules: Mapping[str, Module]) -> Step | None:
    """One step with its options; None where it is not done here, which is in the book."""
    step = read_fields(book, element, STEP)
    module = _module(book, element, step, modules)
    if module is None:
        return None
    options = step.values.get("options")
    if options is None and "options" not in step.elements and not module.needed:
        return Step(element, module, Fields({}, {}, f"<{element.name}>"))
    if not isinstance(options, Element):
        book.wrong(element.place("<Action>"), "has no <Options>")
        return None
    mistakes = len(book.mistakes)
    fields = read_fields(book, options, module.rows)
    fields.of = f"<Options> of <{element.name}>"
    needs(book, options, f"<{element.name}>", *(tag for tag, row in module.rows.items() if row.key in module.needed))
    for key, why in module.refused.items():
        if fields.values.get(key):
            book.remark(Verdict.REFUSED, fields.place(key), why)
    return Step(element, module, fields) if len(book.mistakes) == mistakes else None


def _add(book: Book, element: Element, ons: list[Step], dos: list[Step], condition: Element | None) -> None:
    table = Table()
    on = [_on(book, step, ("on", at), table.places) for at, step in enumerate(ons)]
    do = [_do(book, step, ("do", at), table.places) for at, step in enumerate(dos)]
    table.values["on"] = on[0] if len(on) == 1 else on
    if condition is not None:
        table.put("if", condition.text, condition.place("<Action>"))
    table.values["do"] = do[0] if len(do) == 1 else do
    _as_written(table.places, len(on), len(do))
    book.add("action", table, Place(element.file, element.line, "<Action>"))


def _as_written(places: dict[Path_, Place], ons: int, dos: int) -> None:
    """Of a list of one its table stands alone: the place has no number then."""
    for path in list(places):
        if len(path) > 1 and ((path[0] == "on" and ons == 1) or (path[0] == "do" and dos == 1)):
            places[path[0], *path[2:]] = places.pop(path)


def _message_type(book: Book, fields: Fields) -> None:
    if fields.values.get("message_type", JSON) != JSON:
        book.remark(Verdict.DIFFERS, fields.place("message_type"), "a message type does not tell topics apart")


def _values(step: Step, places: dict[Path_, Place], path: Path_) -> dict[str, object]:
    """The options that are keys of ours, and where they stand."""
    out = dict[str, object]()
    skipped = {"message_type", *step.module.refused}
    kind = str(step.fields.values.get("message_type", JSON))
    for key, value in step.fields.values.items():
        if key not in skipped:
            out[key] = _reading(key, value, kind)
            places[*path, key] = step.fields.place(key)
    places[path] = step.element.place("<Action>")
    return out


def _reading(key: str, value: object, kind: str) -> object:
    """A value whose expressions read bodies of this type, where they do not say one themselves."""
    if kind == JSON:
        return value
    if key == "filter":
        return _typed(str(value), kind)
    if key == "values":
        return [(name, _typed(text, kind)) for name, text in cast("list[tuple[str, str]]", value)]
    return value


def _typed(text: str, kind: str) -> str:
    return text if untyped(text)[0] != JSON else typed(text, kind)


def _on(book: Book, step: Step, path: Path_, places: dict[Path_, Place]) -> dict[str, object]:
    _message_type(book, step.fields)
    values = _values(step, places, path)
    event = step.module.key
    if event == "schedule":
        return values
    if event in LINK_EVENTS:
        return {"link": ".*", "event": event, **values}
    watched = "topic"
    if event in {"expire", "delete"} and not any(one.get("name") == values["topic"] for one in book.tables("topic")):
        watched = "queue"
        queues = [str(one["name"]) for one in book.tables("queue")]
        if queues and values["topic"] not in queues:  # an action alone, as an example, may mean any
            text = f"'{values['topic']}' is no queue of this file, and no topic with a key"
            book.wrong(step.fields.place("topic"), text + known_name(str(values["topic"]), queues))
    topic = values.pop("topic")
    places[*path, watched] = places.pop((*path, "topic"))
    return {watched: topic, "event": event, **values}


def _do(book: Book, step: Step, path: Path_, places: dict[Path_, Place]) -> dict[str, object]:
    _message_type(book, step.fields)
    key = step.module.key
    values = _values(step, places, (*path, key))
    places[path] = step.element.place("<Action>")
    if key == "extract_values":
        values["values"] = dict(cast("list[tuple[str, str]]", values["values"]))
    return {key: values}


STEP: Mapping[str, Row] = {"Module": Row("module", amps_elements.name), "Options": Row("options", inner=True)}


@dataclass(frozen=True, slots=True)
class Module:
    """One module: our key for it, its options, those it needs, and those that are not done here with the reason."""

    key: str
    rows: Mapping[str, Row]
    needed: tuple[str, ...] = ("topic",)
    refused: Mapping[str, str] = field(default_factory=dict[str, str])


def _reasons(value: str) -> list[str]:
    found = [part.strip() for part in value.split(",")]
    for part in found:
        amps_elements.words(*ENDS)(part)
    return found


def _schedule(value: str) -> str:
    with told_as(ValueError, instead=InvalidArgument):
        parse_schedule(value)
    return value


def _assignment(value: str) -> tuple[str, str]:
    name, equals, expression = value.partition("=")
    if not equals or not name.strip() or not expression.strip():
        raise ValueError(f"{value!r} is no assignment: write NAME=expression")
    return name.strip(), expression.strip()


_TOPIC = {"Topic": Row("topic", amps_elements.name), "MessageType": Row("message_type")}
_QUEUE = {"Topic": Row("queue", amps_elements.name), "MessageType": Row("message_type")}
_WHOLE = "the first message in order is taken here"

ON: Mapping[str, Module] = {
    "amps-action-on-sow-expire-message": Module("expire", {**_TOPIC, "Reason": Row("reason", _reasons)}),
    "amps-action-on-sow-delete-message": Module("delete", _TOPIC),
    "amps-action-on-publish-message": Module(
        "publish",
        {
            **_TOPIC,
            "MessageSource": Row("source", amps_elements.words("all", "local", "replicated")),
            "Filter": Row("filter"),
        },
    ),
    "amps-action-on-deliver-message": Module("deliver", _TOPIC),
    "amps-action-on-oof-message": Module(
        "oof", {**_TOPIC, "Type": Row("type", amps_elements.words("match", "delete", "expire", "all"))}
    ),
    "amps-action-on-schedule": Module(
        "schedule", {"Every": Row("schedule", _schedule), "Name": Row("name", amps_elements.name)}, ("schedule",)
    ),
    "amps-action-on-connect-replication": Module("up", {}, ()),
    "amps-action-on-disconnect-replication": Module("down", {}, ()),
    "amps-action-on-replication-resync-complete": Module("level", {}, ()),
    "amps-action-on-downgrade-replication": Module("downgrade", {}, ()),
    "amps-action-on-upgrade-replication": Module("upgrade", {}, ()),
}
"""What sets an action off."""

DO: Mapping[str, Module] = {
    "amps-action-do-publish-message": Module(
        "publish",
        {
            **_TOPIC,
            "Data": Row("data"),
            "Delta": Row("delta", amps_elements.yes_or_no),
            "UpdateOnly": Row("update_only", amps_elements.yes_or_no),
        },
        ("topic", "data"),
        {"update_only": "an action publishes whether or not the key is there"},
    ),
    "amps-action-do-delete-sow": Module("delete_sow", {**_TOPIC, "Filter": Row("filter")}, ("topic", "filter")),
    "amps-action-do-query-sow": Module(
        "query_sow",
        {
            **_TOPIC,
            "Filter": Row("filter"),
            "CaptureData": Row("capture", amps_elements.name),
            "DefaultData": Row("default"),
            "OrderBy": Row("order_by"),
            "Options": Row("options"),
        },
        ("topic", "capture"),
        {"order_by": _WHOLE, "options": _WHOLE},
    ),
    "amps-action-do-extract-values": Module(
        "extract_values",
        {"MessageType": Row("message_type"), "Data": Row("data"), "Value": Row("values", _assignment, many=True)},
        ("data", "values"),
    ),
    "amps-action-do-increment-counter": Module(
        "increment_counter",
        {"Key": Row("counter", amps_elements.name), "Value": Row("capture", amps_elements.name)},
        ("counter", "capture"),
    ),
    "amps-action-do-echo-message": Module("echo_message", {"Message": Row("message")}, ("message",)),
    "amps-action-do-execute-system": Module("execute_system", {"Command": Row("command")}, ("command",)),
    "amps-action-do-enable-proxied-transfer": Module("enable_proxied_transfer", _QUEUE, ("queue",)),
    "amps-action-do-disable-proxied-transfer": Module("disable_proxied_transfer", _QUEUE, ("queue",)),
    "amps-action-do-downgrade-replication": Module(
        "downgrade_replication",
        {"Age": Row("age", amps_elements.interval), "GracePeriod": Row("grace_period", amps_elements.interval)},
        ("age",),
    ),
    "amps-action-do-upgrade-replication": Module(
        "upgrade_replication", {"Age": Row("age", amps_elements.interval)}, ("age",)
    ),
}
"""What an action does."""
