"""An action as the settings name it: on which events it runs, under which condition, and what it does.

Plain values: texts are templates and expressions that nobody has compiled.  `core.action_rules` compiles them.

Its texts may have variables, `{{NAME}}`.  A variable inside a JSON string is marked as quoted: whoever fills it in
escapes the value, so that `"why": "{{AMPS_REASON}}"` stays JSON whatever the text holds.  Outside of quotes it is
pasted as it is, so that `"message": {{AMPS_DATA}}` nests the message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass

End: TypeAlias = Literal["forced_expire", "time_limit", "max_cancels", "max_deliveries", "poison"]
ENDS: tuple[str, ...] = get_args(End)
"""Why a queue expires a message."""

Reason: TypeAlias = Literal[End, "maxlen", "replaced"]
REASONS: tuple[str, ...] = get_args(Reason)
"""Why it lets one go without success: the same, and for others that need its place."""

LinkEvent: TypeAlias = Literal["up", "down", "level", "downgrade", "upgrade"]
LINK_EVENTS: tuple[str, ...] = get_args(LinkEvent)
"""What happens to a link that leads to another site."""

Event: TypeAlias = Literal["expire", "delete", "publish", "deliver", "oof", "schedule"] | LinkEvent


@dataclass(frozen=True, slots=True)
class OnExpire:
    """A queue, or a topic that keeps last values, lets a message go without success."""

    topic: str
    reasons: tuple[str, ...] = ()  # empty: any
    vhost: str = "/"
    event: Literal["expire"] = "expire"


@dataclass(frozen=True, slots=True)
class OnDelete:
    """A queue's message is acknowledged, or a last value deleted."""

    topic: str
    vhost: str = "/"
    event: Literal["delete"] = "delete"


@dataclass(frozen=True, slots=True)
class OnPublish:
    """A message is published to a topic.  The name of a queue stands for the topics that it shows."""

    topic: str  # a name, or a pattern
    filter: str | None = None
    source: Literal["all", "local", "replicated"] = "all"
    vhost: str = "/"
    exchange: str = ""
    event: Literal["publish"] = "publish"


@dataclass(frozen=True, slots=True)
class OnDeliver:
    """A message is delivered to somebody."""

    topic: str  # a name, or a pattern
    vhost: str = "/"
    exchange: str = ""
    event: Literal["deliver"] = "deliver"


@dataclass(frozen=True, slots=True)
class OnOof:
    """A last value leaves the focus of whoever looks: deleted, expired, or changed beyond a filter."""

    topic: str
    kind: Literal["match", "delete", "expire", "all"] = "all"
    vhost: str = "/"
    event: Literal["oof"] = "oof"


@dataclass(frozen=True, slots=True)
class OnSchedule:
    """Time."""

    every: str  # `4h`, `02:00`, `Saturday at 11:00`; with Z in UTC
    name: str = ""
    event: Literal["schedule"] = "schedule"


@dataclass(frozen=True, slots=True)
class OnLink:
    """A link to another site comes up, goes down, has told all there was, or is waited for no longer or again."""

    link: str  # a name, or a pattern
    event: LinkEvent = "down"


Trigger: TypeAlias = OnExpire | OnDelete | OnPublish | OnDeliver | OnOof | OnSchedule | OnLink


@dataclass(frozen=True, slots=True)
class PublishStep:
    """Publish a message.  `delta`: merge it into the last value of its key."""

    topic: str
    data: str = "{{AMPS_DATA}}"
    delta: bool = False
    vhost: str = "/"
    exchange: str = ""


@dataclass(frozen=True, slots=True)
class DeleteStep:
    """Delete last values of a topic."""

    topic: str
    filter: str
    vhost: str = "/"


@dataclass(frozen=True, slots=True)
class QueryStep:
    """Look for the first message of a queue or topic; never leases."""

    topic: str
    capture: str  # the variable that takes the body
    filter: str | None = None
    default: str = ""  # of the variable when there is no such message
    vhost: str = "/"


@dataclass(frozen=True, slots=True)
class ExtractStep:
    """Values of a message into variables."""

    values: tuple[tuple[str, str], ...]  # (variable, expression)
    data: str = "{{AMPS_DATA}}"


@dataclass(frozen=True, slots=True)
class IncrementStep:
    """Add one to a counter of the process."""

    counter: str
    capture: str  # the variable that takes the new count


@dataclass(frozen=True, slots=True)
class EchoStep:
    """Write a line to the server's own log."""

    message: str


@dataclass(frozen=True, slots=True)
class ExecuteStep:
    """Run a program of the machine.  Words are split before variables are filled in; there is no shell."""

    command: str


@dataclass(frozen=True, slots=True)
class ProxyStep:
    """Have this site act for owners of a queue's messages that are away, or do so no longer."""

    queue: str
    on: bool
    vhost: str = "/"


@dataclass(frozen=True, slots=True)
class DowngradeStep:
    """Confirms wait no longer for synchronous links that owe something older than this.  Microseconds."""

    age: int
    grace_period: int = 0  # after the start of the server nothing is downgraded for so long


@dataclass(frozen=True, slots=True)
class UpgradeStep:
    """Confirms wait again for synchronous links that owe nothing older than this.  Microseconds."""

    age: int


Step: TypeAlias = (
    PublishStep | DeleteStep | QueryStep | ExtractStep | IncrementStep | EchoStep | ExecuteStep | ProxyStep
    | DowngradeStep | UpgradeStep
)  # fmt: skip


class Said(NamedTuple):
    """Of a kind of steps: its word in metrics, what the log calls doing it, and which of its fields are templates."""

    word: str
    doing: str
    texts: tuple[str, ...] = ()


SAID: Mapping[type[Step], Said] = {
    PublishStep: Said("publish", "publishing", ("topic", "data")),
    DeleteStep: Said("delete_sow", "deleting", ("topic",)),
    QueryStep: Said("query_sow", "querying", ("topic", "default")),
    ExtractStep: Said("extract_values", "extracting", ("data",)),
    IncrementStep: Said("increment_counter", "incrementing", ("counter",)),
    EchoStep: Said("echo_message", "echoing", ("message",)),
    ExecuteStep: Said("execute_system", "executing", ("command",)),
    ProxyStep: Said("proxied_transfer", "proxying", ("queue",)),
    DowngradeStep: Said("replication", "pacing"),
    UpgradeStep: Said("replication", "pacing"),
}


@dataclass(frozen=True, slots=True)
class Action:
    """One `[[action]]`."""

    name: str
    on: tuple[Trigger, ...]
    do: tuple[Step, ...]
    condition: str | None = None  # of the message that set it off


ALWAYS = ("AMPS_INSTANCE_NAME", "AMPS_DATETIME", "AMPS_UNIX_TIMESTAMP")
"""There at every event, beside AMPS_BYTE_XX, the byte of two upper-case hexadecimal digits."""

LINK = (
    "AMPS_REPLICATION_PEER_NAME", "AMPS_REPLICATION_GROUP_NAME", "AMPS_REPLICATION_REMOTE_ADDRESS",
    "AMPS_REPLICATION_CLIENT_NAME", "AMPS_REPLICATION_TRANSPORT_NAME",
)  # fmt: skip
"""Of a link: the other site's name and group, its address, who logs in there, and the scheme of the address."""

_MESSAGE = ("AMPS_TOPIC", "AMPS_DATA", "AMPS_DATA_LENGTH", "AMPS_BOOKMARK", "AMPS_CORRELATION_ID")

VARIABLES: dict[str, tuple[str, ...]] = {
    "expire": (*_MESSAGE, "AMPS_REASON", "PENSTOCK_WHY"),
    "delete": _MESSAGE,
    "publish": (*_MESSAGE, "AMPS_TIMESTAMP", "AMPS_CLIENT_NAME"),
    "deliver": (*_MESSAGE, "AMPS_TIMESTAMP", "AMPS_CLIENT_NAME"),
    "oof": (*_MESSAGE, "AMPS_PREVIOUS_DATA"),
    "schedule": (),
    **dict.fromkeys(LINK_EVENTS, (*LINK, "PENSTOCK_WHY")),
}
"""Event -> what its message gives beside those that are always there."""

BYTE = re.compile(r"AMPS_BYTE_([0-9A-F]{2})")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_VARIABLE = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}")


class Variable(NamedTuple):
    """A place of a text."""

    name: str
    quoted: bool  # inside a JSON string


def parts(text: str) -> list[str | Variable]:
    """A text taken apart."""
    out: list[str | Variable] = []
    end, quoted = 0, False
    for match in _VARIABLE.finditer(text):
        between = text[end : match.start()]
        quoted = _in_string(between, quoted)
        out += (between, Variable(match.group(1), quoted))
        end = match.end()
    out.append(text[end:])
    return out


def _in_string(text: str, quoted: bool) -> bool:
    """Whether a JSON string is open after `text`."""
    escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = quoted
        elif character == '"':
            quoted = not quoted
    return quoted


def check_text(text: str, known: Iterable[str]) -> None:
    """InvalidArgument for a variable that is not known, with those that are."""
    there = tuple(known)
    for part in parts(text):
        if isinstance(part, Variable) and part.name not in there and not BYTE.fullmatch(part.name):
            names = ", ".join((*there, "AMPS_BYTE_XX"))
            raise InvalidArgument(f"an action knows no variable {{{{{part.name}}}}} there; there are {names}")


class Unfit(NamedTuple):
    """What cannot be: the step, its field, and why."""

    step: int
    field: str
    why: str


def texts(step: Step) -> Iterator[tuple[str, str]]:
    """The templates of a step, by field."""
    return ((name, getattr(step, name)) for name in SAID[type(step)].texts)


def defined(step: Step) -> Sequence[str]:
    """The variables that a step adds for those behind it."""
    match step:
        case ExtractStep():
            return [name for name, _ in step.values]
        case QueryStep() | IncrementStep():
            return [step.capture]
        case _:
            return ()


def unfit(action: Action) -> Iterator[Unfit]:
    """What is wrong with the variables of an action: unknown ones, and names that cannot be."""
    given = [set(VARIABLES[one.event]) for one in action.on]
    known = [*ALWAYS, *(name for name in _in_order(action) if all(name in some for some in given))]
    for place, step in enumerate(action.do):
        for field, text in texts(step):
            try:
                check_text(text, known)
            except InvalidArgument as error:
                yield Unfit(place, field, str(error))
        for name in defined(step):
            if not NAME.fullmatch(name):
                yield Unfit(place, "", f"{name!r} is no name of a variable: letters, digits and _, no digit first")
            elif name not in known:
                known.append(name)


def _in_order(action: Action) -> list[str]:
    """What the events of an action give, each once."""
    return list(dict.fromkeys(name for one in action.on for name in VARIABLES[one.event]))
