"""The actions of a server, compiled once and found by what happens, and the templates that their steps fill in.

An action whose condition is not TRUE of its message does nothing.  Its steps run in order, and a failing one stops the
rest.  The first steps that only work values out and publish are the lead: when a queue expires a message they become
rows of the same group as the removal; everything else runs after what set it off is durable.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime

from penstock.errors import InvalidArgument, ProtocolError, told_as
from penstock.expr import Filter, TopicPattern, Value, compile_filter, compile_value
from penstock.records import properties as header_codec
from penstock.records.cron import Schedule, parse_schedule
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.records.event_actions import (
    BYTE,
    REASONS,
    Action,
    DeleteStep,
    ExecuteStep,
    ExtractStep,
    OnDelete,
    OnDeliver,
    OnExpire,
    OnLink,
    OnOof,
    OnPublish,
    OnSchedule,
    PublishStep,
    QueryStep,
    Step,
    Variable,
    parts,
    texts,
    unfit,
)


@dataclass(slots=True)
class Happening:
    """What a template may speak of.  An event without a message has an empty one."""

    time: int  # microseconds since the epoch
    instance: str
    topic: str = ""
    data: bytes = b""
    properties: bytes = header_codec.EMPTY
    reason: str = ""  # comma-separated
    bookmark: str = ""
    client: str = ""
    stamp: int = 0  # when the message was published, microseconds
    previous: bytes = b""
    lsn: int = 0  # of the message; 0 without one
    why: str = ""  # it left its queue, in the words of who refused it
    added: dict[str, bytes] = field(default_factory=dict[str, bytes])  # by earlier steps


def copied(happening: Happening) -> Happening:
    """A copy with variables of its own: each action of a message begins without those of the others."""
    return replace(happening, added=dict(happening.added))


def iso_time(micros: int) -> str:
    """Seconds in UTC, as `2026-11-20T08:00:00Z`."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _correlation(happening: Happening) -> bytes:
    if happening.properties == header_codec.EMPTY:
        return b""
    try:
        return (header_codec.decode(happening.properties).correlation_id or "").encode()
    except ProtocolError:
        return b""


GETTERS: Mapping[str, Callable[[Happening], bytes]] = {
    "AMPS_DATA": lambda h: h.data,
    "AMPS_REASON": lambda h: h.reason.encode(),
    "PENSTOCK_WHY": lambda h: h.why.encode(),
    "AMPS_TOPIC": lambda h: h.topic.encode(),
    "AMPS_DATA_LENGTH": lambda h: b"%d" % len(h.data),
    "AMPS_BOOKMARK": lambda h: h.bookmark.encode(),
    "AMPS_CORRELATION_ID": _correlation,
    "AMPS_CLIENT_NAME": lambda h: h.client.encode(),
    "AMPS_TIMESTAMP": lambda h: iso_time(h.stamp).encode(),
    "AMPS_PREVIOUS_DATA": lambda h: h.previous,
    "AMPS_DATETIME": lambda h: iso_time(h.time).encode(),
    "AMPS_UNIX_TIMESTAMP": lambda h: b"%d" % (h.time // 1_000_000),
    "AMPS_INSTANCE_NAME": lambda h: h.instance.encode(),
}


class Template:
    """A text with variables, parsed once.  Its variables are known to be there: `records.event_actions.unfit`."""

    __slots__ = ("_parts", "json")

    def __init__(self, text: str, *, json: bool = True) -> None:
        """`json`: values inside quotes are escaped."""
        self.json = json
        self._parts: list[bytes | Variable] = []
        for part in parts(text):
            if isinstance(part, str):
                self._parts.append(part.encode())
            elif part.name not in GETTERS and (byte := BYTE.fullmatch(part.name)) is not None:
                value = bytes.fromhex(byte.group(1))
                self._parts.append(escaped(value) if part.quoted and json else value)
            else:
                self._parts.append(part)

    def render(self, happening: Happening) -> bytes:
        """The text for one happening."""
        out = list[bytes]()
        for part in self._parts:
            if isinstance(part, bytes):
                out.append(part)
                continue
            value = happening.added.get(part.name)
            if value is None:
                value = GETTERS[part.name](happening)
            out.append(escaped(value) if part.quoted and self.json else value)
        return b"".join(out)


def escaped(value: bytes) -> bytes:
    """A value as it stands inside a JSON string."""
    return json.dumps(value.decode(errors="replace"), ensure_ascii=False)[1:-1].encode()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step whose templates and expressions are compiled once."""

    step: Step
    texts: Mapping[str, Template]  # by field of the step
    filter: Filter | None = None  # which messages are looked for, or removed
    values: tuple[tuple[str, Value], ...] = ()  # by variable
    words: tuple[Template, ...] = ()  # of a program

    def name(self, field: str, happening: Happening) -> str:
        """What a template says that is the name of a thing."""
        return self.texts[field].render(happening).decode(errors="replace")

    def extract(self, happening: Happening) -> None:
        """Add the variables that are values of a message; NULL is the empty text."""
        data = self.texts["data"].render(happening)
        topic = Topic("", "", happening.topic)
        for name, value in self.values:
            [found] = value.values([data], happening.properties, topic, now=happening.time)
            happening.added[name] = told(found)


def told(value: object) -> bytes:
    """A value of an expression as the text of a variable."""
    if value is None:
        return b""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode(errors="surrogateescape")


@dataclass(slots=True, eq=False)
class Rule:
    """One action of the settings file, its expressions and templates compiled once."""

    name: str
    condition: Filter | None
    steps: tuple[Prepared, ...]
    lead: int  # steps that only compute and publish, at the front
    reads: bool  # an expression of its own looks into the body

    @property
    def publishes_once(self) -> bool:
        """Whether it does nothing but publish one message, at its end."""
        publishing = [isinstance(one.step, PublishStep) for one in self.steps]
        return self.lead == len(self.steps) and publishing.count(True) == 1 and publishing[-1]

    def wants(self, happenings: Sequence[Happening]) -> list[bool]:
        """For each of these whether the action's condition is TRUE."""
        if self.condition is None or not happenings:
            return [True] * len(happenings)
        return self.condition.matches(
            [one.data for one in happenings],
            [one.properties for one in happenings],
            [Topic("", "", one.topic) for one in happenings],
            lsns=[one.lsn for one in happenings],
            times=[one.stamp for one in happenings],
            now=happenings[0].time,
        )


class Rules:
    """All actions, by what sets them off.  Raises InvalidArgument or ExpressionError for one that cannot be."""

    def __init__(self, actions: Iterable[Action] = ()) -> None:
        self.expire: dict[tuple[str, str], list[tuple[OnExpire, Rule]]] = {}
        self.delete: dict[tuple[str, str], list[Rule]] = {}
        self.publish: list[tuple[OnPublish, TopicPattern, Filter | None, Rule]] = []
        self.deliver: list[tuple[OnDeliver, TopicPattern, Rule]] = []
        self.oof: list[tuple[OnOof, Rule]] = []
        self.schedule: list[tuple[OnSchedule, Schedule, Rule]] = []
        self.link: list[tuple[OnLink, TopicPattern, Rule]] = []
        for action in actions:
            self._add(action)

    def _add(self, action: Action) -> None:
        for wrong in unfit(action):
            raise InvalidArgument(f"action {action.name!r}: {wrong.why}")
        rule = compiled(action)
        for on in action.on:
            match on:
                case OnExpire():
                    if unknown := set(on.reasons) - set(REASONS):
                        raise InvalidArgument(
                            f"an action knows no reason {min(unknown)!r}; there are {', '.join(REASONS)}"
                        )
                    self.expire.setdefault((on.vhost, on.topic), []).append((on, rule))
                case OnDelete():
                    self.delete.setdefault((on.vhost, on.topic), []).append(rule)
                case OnPublish():
                    chosen = None if on.filter is None else compile_filter(on.filter)
                    self.publish.append((on, pattern(on.topic), chosen, rule))
                case OnDeliver():
                    self.deliver.append((on, pattern(on.topic), rule))
                case OnOof():
                    self.oof.append((on, rule))
                case OnSchedule():
                    self.schedule.append((on, parse_schedule(on.every), rule))
                case OnLink():
                    self.link.append((on, pattern(on.link), rule))

    def on_queue(self, vhost: str, name: str) -> tuple[OnExpire | OnDelete, ...]:
        """What a queue has to tell of."""
        watched = tuple(on for on, _ in self.expire.get((vhost, name), ()))
        return (*watched, OnDelete(name, vhost)) if (vhost, name) in self.delete else watched

    def expiring(self, vhost: str, name: str, reasons: Iterable[str]) -> list[Rule]:
        """The actions that a message with these reasons sets off, each once."""
        found = [
            rule
            for on, rule in self.expire.get((vhost, name), ())
            if not on.reasons or not set(on.reasons).isdisjoint(reasons)
        ]
        return list(dict.fromkeys(found))


def pattern(text: str) -> TopicPattern:
    """A name or a pattern.  Raises InvalidArgument."""
    with told_as(InvalidArgument):
        return TopicPattern(text)


def compiled(action: Action) -> Rule:
    """An action whose variables are known to fit."""
    lead = next((at for at, step in enumerate(action.do) if not _leads(step)), len(action.do))
    condition = None if action.condition is None else compile_filter(action.condition)
    reads = condition is not None or any(isinstance(step, ExtractStep) for step in action.do)
    return Rule(action.name, condition, tuple(map(_prepared, action.do)), lead, reads)


def _leads(step: Step) -> bool:
    return isinstance(step, ExtractStep) or (isinstance(step, PublishStep) and not step.delta)


_BODIES = ("data", "default")
"""Templates of bodies: what they quote is escaped.  Names, lines and words are taken as they are."""


def _prepared(step: Step) -> Prepared:
    chosen = step.filter if isinstance(step, (DeleteStep, QueryStep)) else None
    values = step.values if isinstance(step, ExtractStep) else ()
    program = words(step.command) if isinstance(step, ExecuteStep) else ()
    return Prepared(
        step,
        {field: Template(text, json=field in _BODIES) for field, text in texts(step)},
        None if chosen is None else compile_filter(chosen),
        tuple((name, compile_value(text)) for name, text in values),
        tuple(Template(word, json=False) for word in program),
    )


def words(command: str) -> list[str]:
    """The words of a command, as a shell would part them.  Raises InvalidArgument."""
    with told_as(InvalidArgument, f"command {command!r}: "):
        found = shlex.split(command)
    if not found:
        raise InvalidArgument("a command needs at least the name of a program")
    return found
