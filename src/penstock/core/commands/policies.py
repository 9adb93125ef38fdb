"""Commands about policies, operator policies and address settings, and what they make of each queue.

Each change writes one group: its own record, and a QUEUE_ALTER of every queue for which it changes what is in force.
Of more queues than one step looks at, the others follow a portion at a time, each in a group; a queue that somebody
publishes to or consumes from comes first, and a start goes on where a crash stopped.  What a definition may hold was
checked where it was read (`config.policy_settings`); who may ask is the doors' to know.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Unpack, cast

from penstock.core.commands.deliveries import DeliveryCommands
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.roster import Terms
from penstock.core.queue.view import Queue
from penstock.core.state.rulings import dump_address, dump_exchanges, dump_policy
from penstock.core.topology.refusals import check_expressions
from penstock.core.topology.ruling import combined
from penstock.errors import NotFound
from penstock.records.chunks import Now
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind
from penstock.records.queue_settings import NAMES, AddressSetting, Policy, QueueSettings, ruling_of

KINDS = {False: "policy", True: "operator policy"}


AT_ONCE = 128
"""Queues that one step looks at: a change of one takes 25 to 50 us, so a step some 5 ms."""


class PolicyCommands(DeliveryCommands):
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
        every = self._admin.by_id
        first = list(islice((number for number, queue in every.items() if queue.vhost in vhosts), AT_ONCE))
        more = len(first) == AT_ONCE
        self._out.begin()
        for kind, name, header in records:
            if more and kind is Kind.POLICY_DELETE:
                header["more"] = True  # queues that it ruled follow in other groups
            self._out.record(kind, name, header)
        self._rule_some(now, first)
        self._out.end()
        if more:  # or just so many
            self._unruled.update(dict.fromkeys(every))

    # -- in portions

    def tick(self, now: Now) -> None:
        super().tick(now)
        if self._unruled:
            some = [self._unruled.popitem()[0] for _ in range(min(AT_ONCE, len(self._unruled)))]
            self._rule_some(self._at(now), some)

    def next_deadline(self) -> tuple[int | None, int | None]:
        """When to `tick` next: (wall, monotonic) microseconds, None for never; 0 is at once."""
        wall, mono = super().next_deadline()
        return (0, mono) if self._unruled else (wall, mono)

    def _attend(self, now: Now, queue: Queue, **terms: Unpack[Terms]) -> Consumer:
        """As before; the queue has its policies first."""
        if queue.id in self._unruled:
            self._rule_some(self._at(now), [queue.id])
        return super()._attend(now, queue, **terms)

    def _go_on_ruling(self, now: Now) -> None:
        """A crash may have come between the portions of a change."""
        nothing = self._topology.policies.empty
        numbers = [one.id for one in self._admin.by_id.values() if one.ruling is not None or not nothing]
        self._unruled = dict.fromkeys(numbers[AT_ONCE:])
        self._rule_some(self._at(now), numbers[:AT_ONCE])

    def _rule_takers(self, now: Now, batch: Publishes) -> None:
        """The queues that may take some of a batch are ruled by the policies of now."""
        numbers = sorted(queue.id for queue in self._publisher.queues_of(batch) if queue.id in self._unruled)
        if numbers:
            self._rule_some(now, numbers)

    def _rule_some(self, now: Now, numbers: Iterable[int]) -> None:
        self._out.begin()
        for number in numbers:
            self._unruled.pop(number, None)
            queue = self._admin.by_id.get(number)
            if queue is not None:
                self._rule_by_policies(now, queue)
        self._out.end()

    def _rule_by_policies(self, now: Now, queue: Queue) -> None:
        present = ruling_of(queue.settings, queue.ruling)
        settings, ruling = self._admin.ruled(queue.vhost, queue.name, queue.arguments, present.own, present.given)
        if settings == queue.settings and ruling == queue.ruling:
            return
        settings, ruling = self._possible(queue, settings, ruling)
        if settings != queue.settings or ruling != queue.ruling:
            self._rule(now, queue, settings, ruling)


def _place(policy: Policy) -> tuple[str, str]:
    return policy.vhost, policy.name
