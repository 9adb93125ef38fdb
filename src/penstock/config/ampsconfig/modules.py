"""Modules of actions: what sets one off, what it does, the options of each, and the modules that are not run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from penstock.config.ampsconfig import values
from penstock.config.ampsconfig.elements import Row
from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.records.event_actions import ENDS
from penstock.records.schedules import parse_schedule

STEP: Mapping[str, Row] = {"Module": Row("module", values.name), "Options": Row("options", inner=True)}


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
        values.words(*ENDS)(part)
    return found


def _schedule(value: str) -> str:
    try:
        parse_schedule(value)
    except InvalidArgument as error:
        raise ValueError(str(error)) from None
    return value


def _assignment(value: str) -> tuple[str, str]:
    name, equals, expression = value.partition("=")
    if not equals or not name.strip() or not expression.strip():
        raise ValueError(f"{value!r} is no assignment: write NAME=expression")
    return name.strip(), expression.strip()


_TOPIC = {"Topic": Row("topic", values.name), "MessageType": Row("message_type")}
_WHOLE = "the first message in order is taken here"

ON: Mapping[str, Module] = {
    "amps-action-on-sow-expire-message": Module("expire", {**_TOPIC, "Reason": Row("reason", _reasons)}),
    "amps-action-on-sow-delete-message": Module("delete", _TOPIC),
    "amps-action-on-publish-message": Module(
        "publish",
        {
            **_TOPIC,
            "MessageSource": Row("source", values.words("all", "local", "replicated")),
            "Filter": Row("filter"),
        },
    ),
    "amps-action-on-deliver-message": Module("deliver", _TOPIC),
    "amps-action-on-oof-message": Module(
        "oof", {**_TOPIC, "Type": Row("type", values.words("match", "delete", "expire", "all"))}
    ),
    "amps-action-on-schedule": Module(
        "schedule", {"Every": Row("schedule", _schedule), "Name": Row("name", values.name)}, ("schedule",)
    ),
}
"""What sets an action off."""

DO: Mapping[str, Module] = {
    "amps-action-do-publish-message": Module(
        "publish",
        {
            **_TOPIC,
            "Data": Row("data"),
            "Delta": Row("delta", values.yes_or_no),
            "UpdateOnly": Row("update_only", values.yes_or_no),
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
            "CaptureData": Row("capture", values.name),
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
        {"Key": Row("counter", values.name), "Value": Row("capture", values.name)},
        ("counter", "capture"),
    ),
    "amps-action-do-echo-message": Module("echo_message", {"Message": Row("message")}, ("message",)),
    "amps-action-do-execute-system": Module("execute_system", {"Command": Row("command")}, ("command",)),
}
"""What an action does."""

_OWNS_ALL = "one instance owns all of its messages: there is nothing to transfer"

NOT_HERE: Mapping[str, str] = {
    "amps-action-do-enable-proxied-transfer": _OWNS_ALL,
    "amps-action-do-disable-proxied-transfer": _OWNS_ALL,
}
"""Modules whose refusal has a reason of its own."""
