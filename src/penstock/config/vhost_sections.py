"""Sections about vhosts and what is in them: topics, exchanges, queues; who may do what, and which rules queues follow.

`[[vhost]]`, `[[topic]]`, `[[exchange]]`, `[[binding]]`, `[[queue]]`, `[[permission]]`, `[[topic_permission]]`,
`[[entitlement]]` (the first that fits decides), `[[policy]]`, `[[operator_policy]]`, `[[address]]`, `[[view]]`,
`[[conflated_topic]]`.  Owns the keys, and what cannot be together in one of them; expressions are read where views are
made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self, TypeAlias, cast

import orjson
from pydantic import (
    BeforeValidator,
    Field,
    InstanceOf,
    JsonValue,
    StrictBool,
    StrictInt,
    StringConstraints,
    field_validator,
    model_validator,
)

from penstock.config.queue_arguments import read_policy
from penstock.config.queue_values import COUNT_MAX, of_files
from penstock.config.sections import Duration, Name, Section
from penstock.errors import InvalidArgument, told_as
from penstock.records.address_settings import wrong_pattern
from penstock.records.declared_types import ExchangeType, TypeName
from penstock.records.message_types import JSON, MESSAGE_TYPE, MESSAGE_TYPES, SCHEMA_TYPES, wrong_type
from penstock.records.queue_settings import AddressSetting, ApplyTo, Policy, QueueSettings
from penstock.records.regular_expressions import PatternError, compile_pattern, topic_pattern
from penstock.records.rights import Tag
from penstock.records.sow_settings import JSON_SCHEMA, JSON_SCHEMA_CHECK, wrong

Right: TypeAlias = StrictBool | Name
"""Yes, no, or an expression: of the messages that it is TRUE of."""


def _expression(value: str) -> str:
    with told_as(ValueError, instead=PatternError):
        compile_pattern(value)
    return value


class PermissionSection(Section):
    """`[[permission]]`: what a user may do in a vhost, as RabbitMQ has it.  With one, who has none may do nothing."""

    user: Name
    """The user."""
    vhost: Name = "/"
    """The vhost that the user may open."""
    configure: str = ""
    """Names of what may be declared and deleted: a regular expression."""
    write: str = ""
    """Names of exchanges that may be published to, and what may be bound."""
    read: str = ""
    """Queues that may be consumed, and exchanges that may be bound to, or read topics of."""

    _readable = field_validator("configure", "write", "read")(_expression)


class TopicPermissionSection(Section):
    """`[[topic_permission]]`: narrows a permission by routing key, in one exchange of type topic."""

    user: Name
    """The user."""
    vhost: Name = "/"
    """The vhost of the permission."""
    exchange: str
    """The exchange; empty is the default one."""
    write: str = ".*"
    """Keys that may be published to: a regular expression."""
    read: str = ".*"
    """Keys that may be bound and read."""

    _readable = field_validator("write", "read")(_expression)


class EntitlementSection(Section):
    """`[[entitlement]]`.  Without any, whoever may log in may do everything; with one, what none allows is refused."""

    user: Name | None = None
    """A name or a pattern of names; everybody without."""
    tag: Tag | None = None
    """Only users with this tag."""
    topic: Name | None = None
    """A topic's name, or a pattern of names."""
    queue: Name | None = None
    """Or a queue's, or a pattern.  Without either: all topics and queues of the vhost."""
    vhost: Name = "/"
    """Their vhost."""
    exchange: str = ""
    """The topics' exchange."""
    read: Right = False
    """Subscribe, query and acknowledge: true, false, or an expression over the message."""
    write: Right = False
    """Publish, for a queue through it: true, false, or an expression over the message."""

    select: Name | None = None
    """Which fields of JSON bodies of a topic are read: `-/, +/id`; all without."""

    @model_validator(mode="after")
    def _fits(self) -> EntitlementSection:
        if self.select is not None and self.topic is None:
            raise ValueError("a select list goes with a topic; the work of a queue comes whole")
        if self.topic is not None and self.queue is not None:
            raise ValueError("an entitlement is for a topic or for a queue; write two")
        if "exchange" in self.model_fields_set and self.topic is None:
            raise ValueError("an exchange goes with a topic")
        for name in (self.user, self.topic, self.queue):
            if name is not None:
                topic_pattern(name)
        return self


_Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
_Fields: TypeAlias = Annotated[
    tuple[_Text, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]


class ViewSection(Section):
    """`[[view]]`"""

    name: Name
    """Its name, to read it by."""
    vhost: Name = "/"
    """Its vhost, and that of its source."""
    source: Name | None = None
    """The queue, topic with a key, or earlier view that it gathers."""
    join: tuple[_Text, ...] = ()
    """Or several that are joined, as in "[orders]./customer = [customers]./id"."""
    select: _Fields = Field(min_length=1)
    """What it shows: "/region, SUM(/total) AS /total"."""
    group_by: _Fields = ()
    """Expressions, one row for each of their values."""
    filter: str | None = None
    """Gather only messages of which this is TRUE."""
    conflation: Literal["none", "inline"] = "none"
    """With `inline` a row that changes again before it was told is told once."""
    engine: Literal["server", "spark"] = "server"
    """Who computes it: the server itself, or Spark, as `penstock up` runs it."""
    trigger: Duration = Field(default=5_000_000, ge=0)
    """With Spark, time between two batches of changes."""
    join_null_equivalency: StrictBool = False
    """Whether a missing value equals another in a join."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.source is None) != bool(self.join):
            raise ValueError("a view has either a source or a join")
        if self.join and self.filter is not None:
            raise ValueError("a filter belongs to a view of one source; this one joins")
        if self.engine == "spark" and self.join:
            raise ValueError("engine 'spark' computes a view of one queue, and this one joins: leave it to the server")
        if self.engine == "server" and "trigger" in self.model_fields_set:
            raise ValueError("trigger goes with engine 'spark'; the server's own views change at once")
        if self.join_null_equivalency and not self.join:
            raise ValueError("join_null_equivalency goes with a join")
        return self


class ConflatedSection(Section):
    """`[[conflated_topic]]`"""

    name: Name
    """Its name, to read and subscribe to it by."""
    vhost: Name = "/"
    """Its vhost, and that of its source."""
    source: Name
    """The topic with a key, view or earlier conflated topic that it slows down."""
    interval: Duration = Field(default=5_000_000, ge=100_000)
    """Of the changes of a key within it only the last is told."""
    filter: str | None = None
    """Only records of which this is TRUE."""


class PolicySection(Section):
    """`[[policy]]`: settings for all queues, or exchanges, whose name a pattern is found in."""

    operator: ClassVar[bool] = False

    name: Name
    """Its name."""
    vhost: Name = "/"
    """The vhost whose queues and exchanges it is for."""
    pattern: str
    """A regular expression (RE2), found anywhere in a name."""
    definition: dict[str, JsonValue]
    """RabbitMQ's keys, in milliseconds and bytes, and settings of queues in kebab case."""
    priority: StrictInt = Field(default=0, ge=-COUNT_MAX, le=COUNT_MAX)
    """Of those that match the highest rules alone; of equal ones the name that comes first."""
    apply_to: ApplyTo = "all"
    """What it is for."""

    def policy(self) -> Policy:
        """As the core takes it.  Raises InvalidArgument."""
        return read_policy(
            self.vhost, self.name, self.pattern, self.definition, priority=self.priority, apply_to=self.apply_to,
            operator=self.operator, origin="file",
        )  # fmt: skip

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        with told_as(ValueError, instead=InvalidArgument):
            self.policy()
        return self


class OperatorPolicySection(PolicySection):
    """`[[operator_policy]]`: limits that hold whatever policies say, key by key beside the policy of a queue."""

    operator: ClassVar[bool] = True


class AddressSection(Section):
    """`[[address]]`: Artemis's address settings; pattern, vhost, literal, the keys of `records.address_settings`."""

    pattern: Name
    """An address: words between dots, `*` for any one, `#` last for any more."""
    vhost: Name = "/"
    """Its vhost."""
    literal: StrictBool = False
    """Whether the pattern is a name, `*` and `#` included."""
    values: InstanceOf[dict[str, object]]

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        why = None if self.literal else wrong_pattern(self.pattern)
        if why is not None:
            raise ValueError(why)
        return self

    def setting(self) -> AddressSetting:
        """As the core takes it."""
        values: Mapping[str, object] = self.values
        return AddressSetting(self.vhost, self.pattern, dict(values), self.literal)


class Vhost(Section):
    """`[[vhost]]`.  `/` is always there, and may have limits."""

    name: Name
    """Name of the vhost."""
    max_connections: StrictInt | None = Field(default=None, ge=0, le=COUNT_MAX)
    """AMQP connections that it may have."""
    max_queues: StrictInt | None = Field(default=None, ge=0, le=COUNT_MAX)
    """Queues that it may have."""
    default_queue_type: TypeName | None = None
    """The type of queues whose declares name none, where such a queue may be of it."""


class TopicSection(Section):
    """`[[topic]]`: a topic that keeps messages which no queue takes; with a key also the last one of each key."""

    name: Name
    """The key; without `key` also a pattern of keys, such as ^orders[.]."""
    exchange: str = ""
    """Its exchange; empty is the default one."""
    vhost: Name = "/"
    """Its vhost."""
    key: tuple[str, ...] = ()
    """Fields of the body that tell its records apart, such as ["/id"]: a SOW topic."""
    key_from: Literal["publisher"] | None = None
    """Or the publisher gives the key of each message, in the header x-sow-key."""
    key_domain: Name | None = None
    """Topics with one key domain have the same number for equal key values."""
    message_type: str = Field(
        default=JSON,
        description=f"What its bodies are read as: {', '.join((*MESSAGE_TYPES, *SCHEMA_TYPES))} "
        "([message types](message-types.md)).",
    )
    expiration: Duration | None = Field(default=None, ge=0)
    """Records expire so long after their publish, unless the message says otherwise."""
    index: Literal["memory", "file"] | None = None
    """Where the index of its records is: in memory, or paged to a file that saves memory."""
    body_schema: str | None = Field(default=None, alias="schema")
    """The columns of its JSON bodies, "id bigint, total double": what readers such as Spark are told."""

    json_schema: str | dict[str, object] | None = None
    """A JSON Schema that bodies are held to as they are published, as a table or as text of JSON."""
    json_schema_check: Literal["off", "warn", "reject"] | None = None
    """What becomes of a body that does not fit it: nothing, it is counted and stored, or it is refused, which is so
    without this setting."""

    @field_validator("message_type", mode="before")
    @classmethod
    def _of_files(cls, value: object) -> object:
        return of_files(cast("Mapping[str, object]", value)) if isinstance(value, Mapping) else value

    @field_validator("message_type")
    @classmethod
    def _known(cls, value: str) -> str:
        if why := wrong_type(value, in_file=True):
            raise ValueError(why)
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        why = wrong(self.declared())
        if why is not None:
            raise ValueError(why)
        return self

    def declared(self) -> dict[str, object]:
        """The settings as the topic's declare has them."""
        held = self.json_schema
        given: dict[str, object] = {
            "key": list(self.key) or None,
            "key_from": self.key_from,
            "key_domain": self.key_domain,
            "expiration": self.expiration,
            "index": self.index,
            MESSAGE_TYPE: None if self.message_type == JSON else self.message_type,
            "schema": self.body_schema,
            JSON_SCHEMA: held if held is None or isinstance(held, str) else orjson.dumps(held).decode(),
            JSON_SCHEMA_CHECK: self.json_schema_check,
        }
        return {name: value for name, value in given.items() if value is not None}


class Exchange(Section):
    """`[[exchange]]`"""

    name: Name
    """Name of the exchange."""
    type: ExchangeType = "direct"
    """How it matches keys; `x-delayed-message` with the argument `x-delayed-type` says how it does so."""
    vhost: Name = "/"
    """Its vhost."""
    durable: StrictBool = True
    """Whether it survives a restart."""
    auto_delete: StrictBool = False
    """Whether it goes with its last binding."""
    internal: StrictBool = False
    """Whether clients are refused to publish to it."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """AMQP arguments."""


class Binding(Section):
    """`[[binding]]`"""

    source: Name
    """The exchange that messages come from."""
    destination: Name
    """The queue or exchange they go to."""
    destination_type: Literal["queue", "exchange"] = "queue"
    """What the destination is."""
    key: str = ""
    """The binding key."""
    vhost: Name = "/"
    """Their vhost."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """AMQP arguments."""


class Queue(Section):
    """`[[queue]]`: name, vhost, durable, and the keys of `config.queue_settings`, read into `settings`."""

    name: Name
    """Name of the queue."""
    vhost: Name = "/"
    """Its vhost."""
    durable: StrictBool = True
    """Whether it survives a restart."""
    auto_delete: StrictBool = False
    """Whether it goes with its last consumer."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """What the declares of AMQP clients are compared with."""
    settings: InstanceOf[QueueSettings]
    given: frozenset[str] = frozenset()
    """The keys that are written there."""
