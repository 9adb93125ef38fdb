"""Policies and operator policies: for users with the tag policymaker, or administrators alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.config.queue_arguments import read_policy
from penstock.operations.operation import Answer, Body, Operation
from penstock.records.rights import ADMINISTERS, RULES, SEES, Right
from penstock.wire.fields import VHOST, count, flag, name, table, text

if TYPE_CHECKING:
    from penstock.operations.house import House
    from penstock.records.queue_settings import Policy
    from penstock.server.access import Who

PRIORITY_MOST = 2**31 - 1


def ruling(body: Body) -> Right:
    """What changing a policy asks."""
    return ADMINISTERS if body.get("operator") else RULES


def policies(house: House, who: Who, vhost: str | None, operator: bool) -> Iterator[dict[str, object]]:
    """Those of one vhost or of all, in RabbitMQ's words."""
    for one in house.core.policies(vhost, operator=operator):
        yield {
            "vhost": one.vhost,
            "name": one.name,
            "pattern": one.pattern,
            "apply-to": one.apply_to,
            "definition": dict(one.definition),
            "priority": one.priority,
            "origin": one.origin,
        }


def set_policy(
    house: House, who: Who, policy: str, vhost: str, operator: bool, pattern: object, definition: Mapping[str, object],
    priority: int, apply_to: str | None,
) -> Answer:  # fmt: skip
    """One of that name is replaced as a whole."""
    found = policy_of(policy, vhost, operator, pattern, definition, priority, apply_to)
    return {"policy": policy, "new": house.core.set_policy(house.now(), found)}


def policy_of(
    policy: str, vhost: str, operator: bool, pattern: object, definition: object, priority: int, apply_to: str | None
) -> Policy:
    """A policy that can be.  InvalidArgument says why it cannot."""
    applies = apply_to if apply_to is not None else "queues" if operator else "all"
    return read_policy(vhost, policy, pattern, definition, priority=priority, apply_to=applies, operator=operator)


def delete_policy(house: House, who: Who, policy: str, vhost: str, operator: bool) -> Answer:
    """What it did is undone.  NotFound."""
    house.core.delete_policy(house.now(), vhost, policy, operator=operator)
    return {"policy": policy}


POLICIES = Operation(
    "policies", policies, "list", "operator: the policies, or operator policies, of a vhost", SEES,
    (VHOST, flag("operator")), key="policies", sdk="policies", cli="policy list",
)  # fmt: skip
SET_POLICY = Operation(
    "policy_set", set_policy, "decide",
    "policy, pattern, definition, priority, apply_to, operator: this policy is there", ruling,
    (name("policy"), VHOST, flag("operator"), text("pattern"), table("definition"),
     count("priority", -PRIORITY_MOST, PRIORITY_MOST, 0), text("apply_to")),
    sdk="set_policy", cli="policy set",
)  # fmt: skip
DELETE_POLICY = Operation(
    "policy_delete", delete_policy, "decide", "policy, operator: what it did is undone", ruling,
    (name("policy"), VHOST, flag("operator")), sdk="delete_policy", cli="policy delete",
)  # fmt: skip
