"""Actions about policies and operator policies: what there is, and changing it.

Policies are for users with the tag policymaker or administrator, operator policies for administrators alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.config.policies import read_policy
from penstock.errors import LogBroken
from penstock.records.policies import Policy
from penstock.server.flight.calls import Caller
from penstock.wire.flight.commands import DEFAULT_VHOST
from penstock.wire.flight.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.handover import Handover

Reply = Mapping[str, object]

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


class PolicyActions:
    """These actions, as rows of the table of all actions."""

    def __init__(self, handover: Handover, check_vhost: Callable[[str], None]) -> None:
        """check_vhost: raises NotFound for a vhost that is not there."""
        self._handover = handover
        self._check_vhost = check_vhost
        self.table: dict[str, tuple[Callable[[Caller, Fields], Reply], str]] = {
            "policies": (self._list, "operator: the policies, or operator policies, of a vhost"),
            "policy_set": (
                self._set,
                "policy, pattern, definition, priority, apply_to, operator: this policy is there",
            ),
            "policy_delete": (self._delete, "policy, operator: what it did is undone"),
        }

    def _list(self, caller: Caller, f: Fields) -> Reply:
        vhost, operator = self._vhost(f), f.flag("operator")
        f.finish()

        def work() -> Reply:
            core = self._handover.engine.core
            found = core.policies(vhost, operator=operator)
            return {"policies": [{**policy_item(one), "origin": one.origin} for one in found]}

        return self._handover.call(work, caller.gone, durable=False)

    def _set(self, caller: Caller, f: Fields) -> Reply:
        name, vhost, operator = f.name("policy"), self._vhost(f), f.flag("operator")
        pattern, definition = f.optional_text("pattern"), f.table("definition")
        priority = f.optional_count("priority", -PRIORITY_MOST, PRIORITY_MOST)
        apply_to = f.text("apply_to", "queues" if operator else "all")
        f.finish()
        caller.make_policies("setting an operator policy" if operator else "setting a policy", operator=operator)
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
        name, vhost, operator = f.name("policy"), self._vhost(f), f.flag("operator")
        f.finish()
        caller.make_policies("deleting an operator policy" if operator else "deleting a policy", operator=operator)

        def work() -> Reply:
            engine = self._handover.engine
            if engine.broken is not None:
                raise LogBroken(f"the log is broken: {engine.broken}")
            engine.core.delete_policy(engine.now(), vhost, name, operator=operator)
            return {"policy": name}

        return self._handover.call(work, caller.gone)

    def _vhost(self, f: Fields) -> str:
        vhost = f.text("vhost", DEFAULT_VHOST)
        self._check_vhost(vhost)
        return vhost
