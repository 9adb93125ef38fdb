"""`[[policy]]`, `[[operator_policy]]` and `[[address]]`: what rules queues that others declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, InstanceOf, JsonValue, StrictBool, StrictInt, model_validator

from penstock.config.policy_settings import read_policy
from penstock.config.sections import Name, Section
from penstock.errors import InvalidArgument
from penstock.records.address_settings import wrong_pattern
from penstock.records.queue_settings import AddressSetting, Policy


class PolicySection(Section):
    """`[[policy]]`: settings for all queues, or exchanges, whose name a pattern is found in."""

    operator: ClassVar[bool] = False

    name: Name = Field(description="Its name.")
    vhost: Name = Field(default="/", description="The vhost whose queues and exchanges it is for.")
    pattern: str = Field(description="A regular expression (RE2), found anywhere in a name.")
    definition: dict[str, JsonValue] = Field(
        description="RabbitMQ's keys, in milliseconds and bytes, and settings of queues in kebab case."
    )
    priority: StrictInt = Field(
        default=0, description="Of those that match the highest rules alone; of equal ones the name that comes first."
    )
    apply_to: Literal["queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all"] = Field(
        default="all", description="What it is for."
    )

    def policy(self) -> Policy:
        """As the core takes it.  Raises InvalidArgument."""
        return read_policy(
            self.vhost, self.name, self.pattern, self.definition, priority=self.priority, apply_to=self.apply_to,
            operator=self.operator, origin="file",
        )  # fmt: skip

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        try:
            self.policy()
        except InvalidArgument as error:
            raise ValueError(str(error)) from None
        return self


class OperatorPolicySection(PolicySection):
    """`[[operator_policy]]`: limits that hold whatever policies say, key by key beside the policy of a queue."""

    operator: ClassVar[bool] = True


class AddressSection(Section):
    """`[[address]]`: Artemis's address settings; pattern, vhost, literal, and the keys of `config.address_settings`."""

    pattern: Name = Field(description="An address: words between dots, `*` for any one, `#` last for any more.")
    vhost: Name = Field(default="/", description="Its vhost.")
    literal: StrictBool = Field(default=False, description="Whether the pattern is a name, `*` and `#` included.")
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
