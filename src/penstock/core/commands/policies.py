"""Commands about policies, operator policies and address settings, and what they make of each queue.

Each change writes one group: its own record, and a QUEUE_ALTER of every queue for which it changes what is in force.
What a definition may hold was checked where it was read (`config.policies`); who may ask is the doors' to know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from penstock.core.commands.queues import QueueCommands
from penstock.core.queue.view import Queue
from penstock.core.state.rulings import dump_address, dump_exchanges, dump_policy
from penstock.core.topology.effective import combined
from penstock.core.topology.refusals import check_expressions
from penstock.errors import NotFound
from penstock.records.chunks import Now
from penstock.records.kinds import Kind
from penstock.records.policies import NAMES, AddressSetting, ExchangeRule, Policy, ruling_of
from penstock.records.settings import QueueSettings

KINDS = {False: "policy", True: "operator policy"}


class PolicyCommands(QueueCommands):
    """Policies of both kinds, address settings, and what is in force."""

    # -- looking

    def policies(self, vhost: str | None = None, *, operator: bool = False) -> list[Policy]:
        """All of one kind, of one vhost or of all, by vhost and name."""
        found = [
            one
            for one in self._topology.policies.all.values()
            if one.operator == operator and (vhost is None or one.vhost == vhost)
        ]
        return sorted(found, key=_place)

    def policy(self, vhost: str, name: str, *, operator: bool = False) -> Policy:
        """One of them.  Raises NotFound."""
        found = self._topology.policies.all.get((operator, vhost, name))
        if found is None:
            raise NotFound(f"no {KINDS[operator]} '{name}' in vhost '{vhost}'")
        return found

    def address_settings(self) -> list[AddressSetting]:
        """All of them, by vhost and pattern."""
        return [one for _, one in sorted(self._topology.policies.addresses.items())]

    def exchange_rule(self, vhost: str, exchange: str) -> ExchangeRule | None:
        """The policy in force for an exchange."""
        return self._topology.policies.exchanges.get((vhost, exchange))

    def effective_policy_definition(self, queue: Queue) -> dict[str, object]:
        """What the policy and the operator policy of a queue say together, in their own words; {} without."""
        if queue.ruling is None:
            return {}
        every = self._topology.policies.all
        policy = every.get((False, queue.vhost, queue.ruling.policy or ""))
        operator = every.get((True, queue.vhost, queue.ruling.operator_policy or ""))
        return combined(policy, operator)

    def sources(self, queue: Queue) -> dict[str, str]:
        """Where each setting in force came from: "argument", a policy, an address setting, or "default"."""
        ruling = ruling_of(queue.settings, queue.ruling)
        return {name: "argument" if name in ruling.given else "default" for name in NAMES} | dict(ruling.sources)

    def policy_facts(self, queue: Queue) -> dict[str, object]:
        """What a person or a tool reads of a queue's policies."""
        ruling = queue.ruling
        return {
            "policy": None if ruling is None else ruling.policy,
            "operator_policy": None if ruling is None else ruling.operator_policy,
            "effective_policy_definition": self.effective_policy_definition(queue),
            "policy_unapplied": {} if ruling is None else dict(ruling.unapplied),
        }

    # -- changing

    def set_policy(self, now: Now, policy: Policy) -> bool:
        """This policy is there from now on, whatever was there under its name; whether it is new.

        Errors: ExpressionError or PreconditionFailed for an expression that no queue could take.
        """
        said = cast("dict[str, Any]", dict(policy.settings))
        kind = "operator policy" if policy.operator else "policy"
        check_expressions(f"{kind} '{policy.name}' in vhost '{policy.vhost}'", QueueSettings(**said))
        policies = self._topology.policies
        new = policy.key not in policies.all
        if policies.all.get(policy.key) != policy:
            self._change(now, [policy], (), ())
        return new

    def delete_policy(self, now: Now, vhost: str, name: str, *, operator: bool = False) -> None:
        """What it did is undone.  Raises NotFound."""
        self._change(now, (), [self.policy(vhost, name, operator=operator)], ())

    def rule_by_file(self, now: Now, policies: Iterable[Policy], addresses: Iterable[AddressSetting]) -> None:
        """What the settings file says, as one change; what it said before and says no longer is undone.

        Policies that were set while the server ran stay, unless the file has one of the same name.
        """
        present = self._topology.policies
        said = {one.key: one for one in policies}
        closest = {one.key: one for one in addresses}
        self._change(
            now,
            [
                *(one for key, one in said.items() if present.all.get(key) != one),
                *(one for key, one in closest.items() if present.addresses.get(key) != one),
            ],
            [one for key, one in present.all.items() if one.origin == "file" and key not in said],
            [one for key, one in present.addresses.items() if key not in closest],
        )

    def _change(
        self,
        now: Now,
        put: Iterable[Policy | AddressSetting],
        drop: Iterable[Policy],
        forget: Iterable[AddressSetting],
    ) -> None:
        now = self._at(now)
        policies = self._topology.policies
        records = list[tuple[Kind, str, dict[str, object]]]()
        vhosts = set[str]()
        for old in drop:
            policies.delete(old.key)
            records.append((Kind.POLICY_DELETE, old.name, {"vhost": old.vhost, "operator": old.operator}))
            vhosts.add(old.vhost)
        for gone in forget:
            policies.delete_address(gone.key)
            records.append((Kind.ADDRESS_SETTING, gone.pattern, {"vhost": gone.vhost, "literal": gone.literal}))
            vhosts.add(gone.vhost)
        for one in put:
            if isinstance(one, Policy):
                policies.put(one)
                records.append((Kind.POLICY, one.name, dump_policy(one)))
            else:
                policies.put_address(one)
                records.append((Kind.ADDRESS_SETTING, one.pattern, dump_address(one)))
            vhosts.add(one.vhost)
        if not records:
            return
        exchanges = self._admin.rules_of_exchanges(sorted(vhosts))
        if exchanges:
            records[-1][2]["exchanges"] = dump_exchanges(exchanges)
            policies.rule_exchanges(exchanges)
            self._topology.version += 1
        self._out.begin()
        for kind, name, header in records:
            self._out.record(kind, name, header)
        for queue in [queue for queue in self._admin.by_id.values() if queue.vhost in vhosts]:
            present = ruling_of(queue.settings, queue.ruling)
            settings, ruling = self._admin.ruled(queue.vhost, queue.name, queue.arguments, present.own, present.given)
            if settings != queue.settings or ruling != queue.ruling:
                self._rule(now, queue, settings, ruling)
        self._out.end()


def _place(policy: Policy) -> tuple[str, str]:
    return policy.vhost, policy.name


__all__ = ["PolicyCommands"]
