"""Policies, address settings, and what they make of a queue: plain values, as the log keeps them.

A queue has settings of its own, some of which somebody gave.  A policy, an operator policy and address settings say
more of many queues at once.  What comes of all that is decided when something of it changes, and logged: the `Ruling`
of each queue says what is in force and where it came from, so that nothing is matched again when the log is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Literal, TypeAlias

from penstock.records.dataclass import dataclass
from penstock.records.settings import QueueSettings

ApplyTo: TypeAlias = Literal["queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all"]
APPLY_TO: tuple[ApplyTo, ...] = ("queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all")

Origin: TypeAlias = Literal["command", "file"]
"""Who set it: somebody while the server ran, or the settings file, with which it goes."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy or operator policy."""

    vhost: str
    name: str
    pattern: str  # RE2, found anywhere in a name
    definition: Mapping[str, object]  # as it was given: RabbitMQ's keys in milliseconds and bytes
    settings: Mapping[str, object] = field(default_factory=dict[str, object])  # of queues, by name, as kept inside
    alternate_exchange: str | None = None  # of exchanges
    priority: int = 0
    apply_to: ApplyTo = "all"
    operator: bool = False
    origin: Origin = "command"

    @property
    def key(self) -> tuple[bool, str, str]:
        """What no two of them share."""
        return self.operator, self.vhost, self.name

    def is_for(self, queue_type: str) -> bool:
        """Whether it may rule queues of this type: it says something of queues, and is meant for them."""
        if self.definition.keys() <= _FOR_OTHERS:
            return False
        return self.apply_to in ("all", "queues", _TYPES.get(queue_type, "classic_queues"))

    @property
    def is_for_exchanges(self) -> bool:
        """Whether it may rule exchanges."""
        return self.alternate_exchange is not None and self.apply_to in ("all", "exchanges")


_FOR_OTHERS = frozenset(
    {"alternate-exchange", "dead-letter-strategy", "max-in-memory-bytes", "max-in-memory-length", "target-group-size"}
)
"""Keys that say nothing of a classic queue: they are for exchanges, or for RabbitMQ's quorum queues."""

_TYPES: Mapping[str, ApplyTo] = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}


@dataclass(frozen=True, slots=True)
class AddressSetting:
    """Defaults of queues whose address matches: words between dots, `*` for one word, `#` for the rest."""

    vhost: str
    pattern: str
    values: Mapping[str, object]  # by Artemis's keys, as kept inside (`records.addresses`)
    literal: bool = False  # the pattern is a name, whatever is in it

    @property
    def key(self) -> tuple[str, str, bool]:
        """What no two of them share."""
        return self.vhost, self.pattern, self.literal

    @property
    def origin(self) -> str:
        """As a person reads it."""
        return f"address {self.pattern}"


@dataclass(frozen=True, slots=True)
class ExchangeRule:
    """The policy of one exchange."""

    policy: str
    alternate: str  # where it sends what none of its bindings takes, unless its own argument says


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a queue says itself, and which policies and address settings are in force for it."""

    own: QueueSettings  # without policies
    given: frozenset[str]  # names of the settings that somebody gave the queue
    policy: str | None = None
    operator_policy: str | None = None
    sources: tuple[tuple[str, str], ...] = ()  # by name: who else gave the setting that is in force
    unapplied: tuple[tuple[str, str], ...] = ()  # by name: who says something that cannot be, and why

    @property
    def plain(self) -> bool:
        """Whether nothing but its own settings rules the queue."""
        return not (self.policy or self.operator_policy or self.sources or self.unapplied)


_REST = QueueSettings()
NAMES: tuple[str, ...] = tuple(one.name for one in fields(QueueSettings))


values_of: Callable[[QueueSettings], tuple[object, ...]] = attrgetter(*NAMES)
"""All settings, in the order of `NAMES`."""


@lru_cache(maxsize=1024)
def told(settings: QueueSettings) -> frozenset[str]:
    """The settings that differ from their default: those that were given, where nobody remembers."""
    both = zip(NAMES, values_of(settings), values_of(_REST), strict=True)
    return frozenset([name for name, value, rest in both if value != rest])


def kept(ruling: Ruling) -> Ruling | None:
    """A ruling as it is kept: None where the settings alone say the same, as of a queue that nothing else rules."""
    return None if ruling.plain and ruling.given == told(ruling.own) else ruling


def ruling_of(settings: QueueSettings, ruling: Ruling | None) -> Ruling:
    """The inverse of `kept`; `settings` are those in force."""
    return ruling or Ruling(settings, told(settings))


def given_after(own: QueueSettings, given: frozenset[str], settings: QueueSettings) -> frozenset[str]:
    """What was given after own settings became others: those that changed, but not what went back to its default."""
    changed = {name for name in NAMES if getattr(own, name) != getattr(settings, name)}
    return (given - changed) | {name for name in changed if getattr(settings, name) != getattr(_REST, name)}
