"""An action as the settings name it: on which events it runs, under which condition, and what it does.

Plain values: texts are templates and expressions that nobody has compiled.  `core.actions` compiles them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from penstock.records.dataclass import dataclass

End: TypeAlias = Literal["forced_expire", "time_limit", "max_cancels", "max_deliveries", "poison"]
ENDS: tuple[str, ...] = get_args(End)
"""Why a queue expires a message."""

Reason: TypeAlias = Literal[End, "maxlen", "replaced"]
REASONS: tuple[str, ...] = get_args(Reason)
"""Why it lets one go without success: the same, and for others that need its place."""

Event: TypeAlias = Literal["expire", "delete", "publish", "deliver", "oof", "schedule"]


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


Trigger: TypeAlias = OnExpire | OnDelete | OnPublish | OnDeliver | OnOof | OnSchedule


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


Step: TypeAlias = PublishStep | DeleteStep | QueryStep | ExtractStep | IncrementStep | EchoStep | ExecuteStep


@dataclass(frozen=True, slots=True)
class Action:
    """One `[[action]]`."""

    name: str
    on: tuple[Trigger, ...]
    do: tuple[Step, ...]
    condition: str | None = None  # of the message that set it off
