"""`[[entitlement]]`: who may read and write which topics and queues.  The first that fits decides."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field, StrictBool, field_validator, model_validator

from penstock.config.sections import Name, Section
from penstock.config.topic_patterns import topic_pattern
from penstock.records.regular_expressions import PatternError, compile_pattern

Right: TypeAlias = StrictBool | Name
"""Yes, no, or an expression: of the messages that it is TRUE of."""


def _expression(value: str) -> str:
    try:
        compile_pattern(value)
    except PatternError as error:
        raise ValueError(str(error)) from None
    return value


class PermissionSection(Section):
    """`[[permission]]`: what a user may do in a vhost, as RabbitMQ has it.  With one, who has none may do nothing."""

    user: Name = Field(description="The user.")
    vhost: Name = Field(default="/", description="The vhost that the user may open.")
    configure: str = Field(default="", description="Names of what may be declared and deleted: a regular expression.")
    write: str = Field(default="", description="Names of exchanges that may be published to, and what may be bound.")
    read: str = Field(default="", description="Names of queues that may be consumed, and exchanges bound to.")

    _readable = field_validator("configure", "write", "read")(_expression)


class TopicPermissionSection(Section):
    """`[[topic_permission]]`: narrows a permission by routing key, in one exchange of type topic."""

    user: Name = Field(description="The user.")
    vhost: Name = Field(default="/", description="The vhost of the permission.")
    exchange: str = Field(description="The exchange; empty is the default one.")
    write: str = Field(default=".*", description="Keys that may be published to: a regular expression.")
    read: str = Field(default=".*", description="Keys that may be bound and read.")

    _readable = field_validator("write", "read")(_expression)


class EntitlementSection(Section):
    """`[[entitlement]]`.  Without any, whoever may log in may do everything; with one, what none allows is refused."""

    user: Name | None = Field(default=None, description="A name or a pattern of names; everybody without.")
    tag: Literal["administrator", "policymaker", "monitoring", "management", "impersonator"] | None = Field(
        default=None, description="Only users with this tag."
    )
    topic: Name | None = Field(default=None, description="A topic's name, or a pattern of names.")
    queue: Name | None = Field(
        default=None, description="Or a queue's, or a pattern.  Without either: all topics and queues of the vhost."
    )
    vhost: Name = Field(default="/", description="Their vhost.")
    exchange: str = Field(default="", description="The topics' exchange.")
    read: Right = Field(
        default=False, description="Subscribe, query and acknowledge: true, false, or an expression over the message."
    )
    write: Right = Field(
        default=False, description="Publish, for a queue through it: true, false, or an expression over the message."
    )

    select: Name | None = Field(
        default=None, description="Which fields of JSON bodies of a topic are read: `-/, +/id`; all without."
    )

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
