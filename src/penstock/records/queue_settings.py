"""Settings of a queue as the core sees them, and where they come from: plain values, as the log keeps them.

Durations are in microseconds, sizes in bytes, nothing left as text.
Names are those of the settings file; `interface.md`'s kebab-case AMQP arguments and the TOML keys both become this.

A queue has settings of its own, some of which somebody gave.  A policy, an operator policy and address settings say
more of many queues at once.  What comes of all that is decided when something of it changes, and logged: the `Ruling`
of each queue says what is in force and where it came from, so that nothing is matched again when the log is folded.

A recovery point says from where a queue takes what the log has already: `now` means from now on, `creation` from the
queue's own declare on, `epoch` from the beginning of the log; a bookmark `<origin>|<lsn>|` means that message and what
follows it, a timestamp what was published at that moment or later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields, replace
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias, cast, get_args

from penstock.records.dataclass import dataclass
from penstock.records.declared_types import QUEUE_TYPES, QueueType, TypeName
from penstock.records.message_types import JSON, MessageType, typed
from penstock.units import epoch_micros

Semantics = Literal["at-least-once", "at-most-once"]
Leasing = Literal["sublet", "strict"]
FairnessModel = Literal["fast", "round-robin", "proportional"]
ExpirationModel = Literal["default", "queue", "latest", "earliest"]
Deliver = Literal["early", "durable"]
WithoutSubscribers = Literal["hold", "drop"]
Sharing = Literal["distributed", "local", "group-local"]
Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx", "drop-newest", "block"]


class Overflowing(NamedTuple):
    """What becomes of messages for which there is no room."""

    victim: str = "nothing"  # in a person's words
    drops_head: bool = False  # what stands at the head gives way
    rejects: bool = False  # newcomers are refused
    drops_newest: bool = False  # and nobody is told
    buries: bool = False  # and become dead letters
    blocks: bool = False  # and whoever can wait for room does

    @property
    def nacks(self) -> bool:
        """Whether publishers are told that newcomers are refused."""
        return self.rejects and not self.drops_newest


MODES: Mapping[Overflow, Overflowing] = {
    "drop-head": Overflowing("the oldest ready messages", drops_head=True),
    "reject-publish": Overflowing("the newcomer, whose publisher is told", rejects=True),
    "reject-publish-dlx": Overflowing("the newcomer as a dead letter", rejects=True, buries=True),
    "drop-newest": Overflowing("the newcomer without a word to its publisher", rejects=True, drops_newest=True),
    "block": Overflowing("nothing: its publisher is held up", rejects=True, blocks=True),
}
"""What a queue does at a limit, by its `overflow`."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Back-off: attempt n waits `initial * factor ** (n - 1)`, at most `max`, plus or minus jitter."""

    initial: int = 1_000_000  # microseconds
    factor: float = 2.0
    max: int = 300_000_000  # microseconds
    jitter: float = 0.2  # 0..1, the share of the delay that chance may add or take
    attempts: int = 0  # deliveries in all that may fail; 0: no limit


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Every setting a queue may have.  The defaults cost nothing and promise what most people expect."""

    underlying_topic: str | None = None  # None: the queue's own name, literally
    exchange: str = ""  # whose keys `underlying_topic` matches
    default_publish_target: str | None = None
    filter: str | None = None
    semantics: Semantics = "at-least-once"
    lease_period: int = 0  # microseconds; 0: a lease never ends by time
    leasing: Leasing = "sublet"
    max_backlog: int = 0  # leased at once, whole queue; 0: no limit
    max_per_subscription_backlog: int = 0  # 0: no limit of the queue's own
    fairness_model: FairnessModel = "proportional"
    max_deliveries: int = 0  # 0: no limit
    max_cancels: int = 0
    delivery_limit: int = -1  # -1: no limit; n allows n + 1 deliveries
    retry: Retry | None = None
    expiration: int | None = None  # microseconds after the log's time; None: never
    expiration_model: ExpirationModel = "default"
    message_ttl: int | None = None  # microseconds; RabbitMQ's name for the same, the smaller wins
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    expiry_address: str | None = None  # of the default exchange: where expired ones go instead; empty: nowhere
    deliver: Deliver = "early"
    deferred_ack_expiration: int = 86_400_000_000  # microseconds that an ack of what is not there is remembered
    barrier_expression: str | None = None  # what matches it waits for all before it, and holds back all after it
    barrier_without_subscribers: WithoutSubscribers = "hold"
    priority_expression: str | None = None  # its value, unsigned 64 bits: higher is served first, older first on ties
    max_priority: int = 0  # 0..255, RabbitMQ's x-max-priority: the property `priority`, up to this; 0: no order by it
    priority_ageing: int = 0  # microseconds of age that count as much as one level of it; 0: none
    target_queue_depth: int = 0  # active messages; what arrives beyond them is inactive.  0: no bound
    group_key: str | None = None  # of the messages for which it gives one value one is leased at a time, the oldest
    fairness_key: str | None = None  # its values are tenants, who take turns
    weights: tuple[tuple[str, float], ...] = ()  # of tenants, by key: messages in a round; others have 1
    max_leased: tuple[int, int] = (0, 0)  # whole queue, each tenant; 0: no limit
    rate_limit: tuple[int, int, int, int] = (0, 1, 0, 1)  # messages and microseconds, whole queue, each tenant; 0: none
    dedup_key: str | None = None  # an expression: a message whose key the queue knows does not enter
    dedup_window: int = 0  # microseconds that it knows the key of what it took; 0: it has no window
    unique: bool = False  # it knows the keys of what is in it
    file_backed_metadata: bool | str = False  # its state may leave memory for a file; text: the path of one of its own
    recovery_point: str = "now"  # from where a new queue takes what the log has; a bookmark or a time, too
    single_active_consumer: bool = False  # one consumer gets all; the others wait in order of arrival
    max_consumers: int = -1  # -1: any number
    consumers_before_dispatch: int = 0  # so many must be there before the first gets anything; 0: none
    delay_before_dispatch: int | None = None  # microseconds after the first of them; None: wait for all
    purge_on_no_consumers: bool = False  # it keeps messages only while somebody consumes
    non_destructive: bool = False  # consumers read it as browsers do: nothing is leased, an ack removes nothing
    last_value_key: str | None = None  # an expression: of messages with equal values of it only the newest waits
    queue_expires: int | None = None  # microseconds without consumer, get or declare, then it is deleted; None: never
    consumer_timeout: int = 0  # microseconds that a delivery may stay unsettled; 0: any time
    queue_type: TypeName = "classic"
    message_type: MessageType = JSON  # what its expressions read bodies as
    kind: Sharing = "distributed"  # which sites share it, where there are links
    initial_owner: str | None = None  # of a group-local queue: the instance that owns its messages at first
    group_local_queue_domain: str | None = None  # what it is known by beside its name; None: the instance's group
    max_length: int | None = None  # ready messages; None: no limit
    max_length_bytes: int | None = None  # bytes of their bodies; None: no limit
    overflow: Overflow = "drop-head"  # what gives way where a limit is met
    ring_size: int = -1  # ready messages; each arrival beyond them replaces the one at the head.  -1: no ring

    @property
    def type(self) -> QueueType:
        """What its type promises and refuses."""
        return QUEUE_TYPES[self.queue_type]

    def letters_to(self, reason: str) -> tuple[str, str | None] | None:
        """The exchange and key of what ends for this reason, a None for the key it came by; None: nowhere."""
        if self.expiry_address is not None and reason.split(",")[0] == "time_limit":
            return ("", self.expiry_address) if self.expiry_address else None
        if self.dead_letter_exchange is None:
            return None
        return self.dead_letter_exchange, self.dead_letter_routing_key

    @property
    def rank_text(self) -> str | None:
        """What orders its messages, if not their arrival: an expression, or `LEVELS` and its two numbers."""
        if self.max_priority:
            return f"{LEVELS}{self.max_priority},{self.priority_ageing}"
        return self.reading("priority_expression")

    def reading(self, key: str) -> str | None:
        """One of its expressions, which says of what type the bodies are that it reads; None: there is none."""
        text = cast("str | None", getattr(self, key))
        return None if not text else typed(text, self.message_type)

    @property
    def attended(self) -> bool:
        """Whether it matters to the queue who consumes from it, and when nobody does."""
        return self.single_active_consumer or self.consumers_before_dispatch > 0 or self.queue_expires is not None


LEVELS = "\0levels:"
"""How a `rank_text` begins that is no expression."""


ApplyTo: TypeAlias = Literal["queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all"]
APPLY_TO: tuple[ApplyTo, ...] = get_args(ApplyTo)

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
        return self.apply_to in ("all", "queues", QUEUE_TYPES.get(queue_type, QUEUE_TYPES["classic"]).policies)

    @property
    def is_for_exchanges(self) -> bool:
        """Whether it may rule exchanges."""
        return self.alternate_exchange is not None and self.apply_to in ("all", "exchanges")


_FOR_OTHERS = frozenset(
    {"alternate-exchange", "dead-letter-strategy", "max-in-memory-bytes", "max-in-memory-length", "target-group-size"}
)
"""Keys that say nothing of a classic queue: they are for exchanges, or for RabbitMQ's quorum queues."""


@dataclass(frozen=True, slots=True)
class AddressSetting:
    """Defaults of queues whose address matches: words between dots, `*` for one word, `#` for the rest."""

    vhost: str
    pattern: str
    values: Mapping[str, object]  # by Artemis's keys, as kept inside (`records.address_settings`)
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


OF_SEMANTICS: Mapping[Semantics, Mapping[str, str]] = {
    "at-least-once": {"fairness_model": "proportional", "deliver": "early"},
    "at-most-once": {"fairness_model": "round-robin", "deliver": "durable"},
}
"""Settings whose defaults are the semantics' own."""


def following(before: QueueSettings, after: QueueSettings, said: Collection[str]) -> QueueSettings:
    """What nobody says is, where the semantics changed, as the new ones have it.  said: names of what somebody says."""
    if before.semantics == after.semantics:
        return after
    values = {name: value for name, value in OF_SEMANTICS[after.semantics].items() if name not in said}
    return replace(after, **values)  # type: ignore[arg-type]


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


_BOOKMARK = re.compile(r"([0-9]{1,20})\|([0-9]{1,16})\|?\Z")


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """One point.  `lsn` with its `origin`, or `time` in microseconds since the epoch, or one of the words."""

    kind: Literal["epoch", "now", "creation", "lsn", "time"]
    origin: int = 0
    lsn: int = 0
    time: int = 0


_WORDS = {
    "epoch": RecoveryPoint("epoch"), "now": RecoveryPoint("now"), "creation": RecoveryPoint("creation"),
}  # fmt: skip

POINT_WORDS = {
    **dict.fromkeys(_WORDS), "earliest": "epoch", "0": "epoch", "latest": "now", "0|1|": "now",
}  # fmt: skip
"""Words for a recovery point, in lower case, and for which other one they stand: those that bookmarks have."""


def plain_point(text: str) -> str:
    """A recovery point as it is kept: of several words that mean one always the same, as another one moves a queue."""
    word = text.lower()
    return POINT_WORDS[word] or word if word in POINT_WORDS else text


@lru_cache(64)
def parse_recovery_point(text: str) -> RecoveryPoint:
    """Raises ValueError with the forms there are."""
    if (word := _WORDS.get(plain_point(text))) is not None:
        return word
    match = _BOOKMARK.match(text)
    if match is not None:
        return RecoveryPoint("lsn", origin=int(match[1]), lsn=int(match[2]))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text[:60]!r} is not one of epoch, now, creation, a bookmark <origin>|<lsn>|, "
            "a timestamp such as 20260131T235959Z"
        ) from None
    return RecoveryPoint("time", time=epoch_micros(moment))


def time_of(recovery_point: str) -> int | None:
    """The time (microseconds) that a recovery point is, if it is one; of what cannot be read others tell."""
    try:
        point = parse_recovery_point(recovery_point)
    except ValueError:
        return None
    return point.time if point.kind == "time" else None
