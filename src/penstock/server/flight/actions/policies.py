"""Actions about policies and operator policies: what there is, and changing it.

Policies are for users with the tag policymaker or administrator, operator policies for administrators alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.config.policies import read_policy
from penstock.errors import LogBroken
from penstock.records.policies import Policy
from penstock.records.rights import ADMINISTERS, RULES, SEES, Right
from penstock.server.flight.actions.action import Action, Body, Reply, Table
from penstock.server.flight.calls import Caller
from penstock.wire.flight.commands import DEFAULT_VHOST
from penstock.wire.flight.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.handover import Handover


PRIORITY_MOST = 2**31 - 1


def policy_item(policy: Policy) -> dict[str, object]:
    """One policy, in RabbitMQ's words."""
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


def _ruling(body: Body) -> Right:
    return ADMINISTERS if body.get("operator") else RULES


class PolicyActions:
    """These actions, as rows of the table of all actions."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self.table: Table = {
            "policies": Action(self._list, "operator: the policies, or operator policies, of a vhost", SEES),
            "policy_set": Action(
                self._set,
                "policy, pattern, definition, priority, apply_to, operator: this policy is there",
                _ruling,
            ),
            "policy_delete": Action(self._delete, "policy, operator: what it did is undone", _ruling),
        }

    def _list(self, caller: Caller, f: Fields) -> Reply:
        vhost, operator = f.text("vhost", DEFAULT_VHOST), f.flag("operator")
        f.finish()

        def work() -> Reply:
            core = self._handover.engine.core
            found = core.policies(vhost, operator=operator)
            return {"policies": [{**policy_item(one), "origin": one.origin} for one in found]}

        return self._handover.call(work, caller.gone, durable=False)

    def _set(self, caller: Caller, f: Fields) -> Reply:
        name, vhost, operator = f.name("policy"), f.text("vhost", DEFAULT_VHOST), f.flag("operator")
        pattern, definition = f.optional_text("pattern"), f.table("definition")
        priority = f.optional_count("priority", -PRIORITY_MOST, PRIORITY_MOST)
        apply_to = f.text("apply_to", "queues" if operator else "all")
        f.finish()
        policy = read_policy(
            vhost, name, pattern, definition, priority=priority or 0, apply_to=apply_to, operator=operator
        )

        def work() -> Reply:
            engine = self._handover.engine
            if engine.broken is not None:
                raise LogBroken(f"the log is broken: {engine.broken}")
            return {"policy": name, "new": engine.core.set_policy(engine.now(), policy)}

        return self._handover.call(work, caller.gone)

    def _delete(self, caller: Caller, f: Fields) -> Reply:
        name, vhost, operator = f.name("policy"), f.text("vhost", DEFAULT_VHOST), f.flag("operator")
        f.finish()

        def work() -> Reply:
            engine = self._handover.engine
            if engine.broken is not None:
                raise LogBroken(f"the log is broken: {engine.broken}")
            engine.core.delete_policy(engine.now(), vhost, name, operator=operator)
            return {"policy": name}

        return self._handover.call(work, caller.gone)
