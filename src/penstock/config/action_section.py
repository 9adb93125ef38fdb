"""`[[action]]`: on what it runs, if, and what it does.

`on` and `do` are a table or a list of tables.  Each table of `do` has one key, which names the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from penstock.config.sections import Duration, Name, Section
from penstock.errors import InvalidArgument, told_as
from penstock.records.cron import parse_schedule
from penstock.records.event_actions import (
    LINK_EVENTS,
    Action,
    DeleteStep,
    DowngradeStep,
    EchoStep,
    ExecuteStep,
    ExtractStep,
    IncrementStep,
    OnDelete,
    OnDeliver,
    OnExpire,
    OnLink,
    OnOof,
    OnPublish,
    OnSchedule,
    ProxyStep,
    PublishStep,
    QueryStep,
    Reason,
    Step,
    Trigger,
    UpgradeStep,
    unfit,
)
from penstock.records.regular_expressions import topic_pattern

_ONLY: Mapping[str, tuple[str, ...]] = {
    "reason": ("expire",),
    "filter": ("publish",),
    "source": ("publish",),
    "type": ("oof",),
    "exchange": ("publish", "deliver"),
}
"""Keys of `on` that belong to some events alone."""


def _listed(value: object) -> object:
    """One table stands for a list of one."""
    return [cast("object", value)] if isinstance(value, Mapping) else value


Event: TypeAlias = Literal[
    "expire", "delete", "publish", "deliver", "oof", "schedule", "up", "down", "level", "downgrade", "upgrade"
]
"""What an action can wait for."""


class ActionOn(Section):
    """`on` of an action."""

    queue: Name | None = None
    """The queue it watches."""
    topic: Name | None = None
    """Or the topic; with publish and deliver perhaps a pattern."""
    schedule: str | None = None
    """Or the time: `4h`, `02:00`, `Saturday at 11:00`; with Z at the end in UTC."""
    link: Name | None = None
    """Or a link to another site, by its name or a pattern; `.*` is any."""
    event: Event = "expire"
    """What must happen; of a link `up`, `down`, `level`, `downgrade` or `upgrade`."""
    reason: tuple[Reason, ...] = ()
    """Why it expires; empty for any reason."""
    filter: str | None = None
    """An expression: which published messages."""
    source: Literal["all", "local", "replicated"] = "all"
    """Where they were published."""
    type: Literal["match", "delete", "expire", "all"] = "all"
    """How it leaves the focus."""
    name: str = ""
    """Name of the schedule, for the log."""
    vhost: Name = "/"
    """The queue's or topic's vhost."""
    exchange: str = ""
    """The topic's exchange."""

    @model_validator(mode="after")
    def _fits(self) -> ActionOn:
        given = [key for key in ("queue", "topic", "schedule", "link") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError("an action watches exactly one of queue, topic, schedule and link")
        event = self.happens
        if (self.link is not None) != (event in LINK_EVENTS):
            words = ", ".join(map(repr, LINK_EVENTS))
            raise ValueError(f"a link goes with the events {words}, and they with a link; this one is {event!r}")
        self._is_timed()
        if event == "oof" and self.queue is not None:
            raise ValueError("a queue has no last values that leave the focus: oof is for topics")
        for key, events in _ONLY.items():
            if key in self.model_fields_set and event not in events:
                raise ValueError(f"{key} goes with event {' or '.join(map(repr, events))}, not with {event!r}")
        if event in {"publish", "deliver"} or self.link is not None:
            topic_pattern(self.watched)
        return self

    def _is_timed(self) -> None:
        """A schedule has no event beside it, and can be read; the event `schedule` has no other way to be said."""
        if self.schedule is not None:
            if "event" in self.model_fields_set and self.event != "schedule":
                raise ValueError(f"event {self.event!r} needs a queue or a topic, not a schedule")
            parse_checked(self.schedule)
        elif self.event == "schedule":
            raise ValueError('write on = { schedule = "4h" }')

    @property
    def happens(self) -> str:
        return "schedule" if self.schedule is not None else self.event

    @property
    def watched(self) -> str:
        """The queue's, the topic's or the link's name."""
        return self.queue or self.topic or self.link or ""

    def trigger(self) -> Trigger:
        """As the core takes it."""
        match self.happens:
            case "expire":
                return OnExpire(self.watched, self.reason, self.vhost)
            case "delete":
                return OnDelete(self.watched, self.vhost)
            case "publish":
                return OnPublish(self.watched, self.filter, self.source, self.vhost, self.exchange)
            case "deliver":
                return OnDeliver(self.watched, self.vhost, self.exchange)
            case "oof":
                return OnOof(self.watched, self.type, self.vhost)
            case "up" | "down" | "level" | "downgrade" | "upgrade" as event:
                return OnLink(self.watched, event)
            case _:
                return OnSchedule(self.schedule or "", self.name)


def parse_checked(text: str) -> None:
    """ValueError for what is no schedule."""
    with told_as(ValueError, instead=InvalidArgument):
        parse_schedule(text)


class ActionPublish(Section):
    """`publish` of an action."""

    topic: Name
    """The key to publish to; may use the same words as data."""
    data: str = "{{AMPS_DATA}}"
    """The body; {{AMPS_DATA}}, {{AMPS_REASON}} and others are filled in."""
    delta: StrictBool = False
    """Merge it into the last value of its key."""
    exchange: str = ""
    """The exchange to publish to."""
    vhost: Name = "/"
    """Its vhost."""


class ActionDelete(Section):
    """`delete_sow` of an action."""

    topic: Name
    """A topic that keeps last values."""
    filter: Name
    """Which of them go."""
    vhost: Name = "/"
    """Its vhost."""


class ActionQuery(Section):
    """`query_sow` of an action."""

    topic: Name
    """A queue, or a topic that keeps last values."""
    capture: Name
    """The variable that takes the first message."""
    filter: str | None = None
    """Which messages."""
    default: str = ""
    """What the variable takes when there is none."""
    vhost: Name = "/"
    """Its vhost."""


class ActionExtract(Section):
    """`extract_values` of an action."""

    values: dict[str, str] = Field(min_length=1)
    """Variable = expression."""
    data: str = "{{AMPS_DATA}}"
    """What the expressions look at."""


class ActionIncrement(Section):
    """`increment_counter` of an action."""

    counter: Name
    """Its name; it begins with 0 when the server starts."""
    capture: Name
    """The variable that takes the new count."""


class ActionEcho(Section):
    """`echo_message` of an action."""

    message: str
    """The line for the server's own log."""


class ActionExecute(Section):
    """`execute_system` of an action."""

    command: Name
    """Program and arguments; there is no shell."""


class ActionProxy(Section):
    """`enable_proxied_transfer` and `disable_proxied_transfer` of an action."""

    queue: Name
    """A queue that is shared with other sites."""
    vhost: Name = "/"
    """Its vhost."""


class ActionDowngrade(Section):
    """`downgrade_replication` of an action."""

    age: Duration = Field(gt=0)
    """Of the oldest thing that a synchronous link owes."""
    grace_period: Duration = Field(default=0, ge=0)
    """So long after the start of the server nothing is downgraded."""


class ActionUpgrade(Section):
    """`upgrade_replication` of an action."""

    age: Duration = Field(gt=0)
    """It owes nothing that is older."""


class ActionDo(Section):
    """One step of `do`."""

    publish: ActionPublish | None = None
    """Publish a message."""
    delete_sow: ActionDelete | None = None
    """Delete last values."""
    query_sow: ActionQuery | None = None
    """Look for a message; never leases."""
    extract_values: ActionExtract | None = None
    """Values of a message into variables."""
    increment_counter: ActionIncrement | None = None
    """Count."""
    echo_message: ActionEcho | None = None
    """Write to the server's own log."""
    execute_system: ActionExecute | None = None
    """Run a program, if that is allowed."""

    enable_proxied_transfer: ActionProxy | None = None
    """Have this site act for owners of a queue's messages that are away: see links.md."""
    disable_proxied_transfer: ActionProxy | None = None
    """Do so no longer."""
    downgrade_replication: ActionDowngrade | None = None
    """Confirms wait no longer for synchronous links that owe what is older."""
    upgrade_replication: ActionUpgrade | None = None
    """Confirms wait again for links that owe nothing older."""

    @model_validator(mode="after")
    def _one(self) -> ActionDo:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"each step has exactly one of {', '.join(type(self).model_fields)}")
        return self

    @property
    def key(self) -> str:
        """The name of the step."""
        return next(iter(self.model_fields_set))

    def step(self) -> Step:
        """As the core takes it."""
        section: Section = getattr(self, self.key)
        return _STEPS[self.key](**{name: getattr(section, name) for name in type(section).model_fields})


def _extract(values: Mapping[str, str], data: str) -> ExtractStep:
    return ExtractStep(tuple(values.items()), data)


_STEPS: Mapping[str, Callable[..., Step]] = {
    "publish": PublishStep,
    "delete_sow": DeleteStep,
    "query_sow": QueryStep,
    "extract_values": _extract,
    "increment_counter": IncrementStep,
    "echo_message": EchoStep,
    "execute_system": ExecuteStep,
    "enable_proxied_transfer": partial(ProxyStep, on=True),
    "disable_proxied_transfer": partial(ProxyStep, on=False),
    "downgrade_replication": DowngradeStep,
    "upgrade_replication": UpgradeStep,
}
"""What each step becomes, made with the values of its table."""


class ActionSection(Section):
    """`[[action]]`"""

    name: str = ""
    """Its name in metrics and in the log; its number if not given."""
    on: Annotated[tuple[ActionOn, ...], BeforeValidator(_listed)] = Field(min_length=1)
    """When: a table, or a list of which any one is enough."""
    condition: str | None = Field(default=None, alias="if")
    """An expression over the message."""
    do: Annotated[tuple[ActionDo, ...], BeforeValidator(_listed)] = Field(min_length=1)
    """What: a table, or a list of steps; one that fails stops the rest."""

    def action(self, number: int) -> Action:
        """As the core takes it; `number`: its place in the file, from 1."""
        return Action(
            self.name or f"action {number}",
            tuple(on.trigger() for on in self.on),
            tuple(do.step() for do in self.do),
            self.condition,
        )


def wrong_steps(
    section: ActionSection, number: int, *, allow_execute: bool
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Places in `do`, and what cannot be there: unknown variables, and programs that nobody allowed."""
    action = section.action(number)
    for one in unfit(action):
        yield (one.step, section.do[one.step].key, *([one.field] if one.field else [])), one.why
    for place, step in enumerate(action.do):
        if isinstance(step, ExecuteStep) and not allow_execute:
            yield (place, "execute_system"), "programs are run only with server.allow_execute = true"
