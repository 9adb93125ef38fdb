"""Policies, operator policies and address settings: which there are, and which is for whom.

What there is changes by one method for each kind of record, which the fold uses as well; what is for whom is asked when
something is declared or changed, never by the fold.  Of the policies that match, the one with the highest priority
rules alone; of equal priorities the one whose name comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from penstock.core.topology.effective import rule
from penstock.core.topology.wildcards import closest_first
from penstock.records.patterns import Compiled, compile_pattern
from penstock.records.policies import AddressSetting, ExchangeRule, Policy, Ruling
from penstock.records.settings import QueueSettings
from penstock.records.texts import to_bytes

Key: TypeAlias = "tuple[bool, str, str]"
"""Whether it is an operator's, vhost, name."""

REMEMBERED = 4096
"""Different rulings that are remembered, so that queues alike cost one look."""


class Policies:
    """All of them, of all vhosts."""

    def __init__(self) -> None:
        self.all: dict[Key, Policy] = {}
        self.addresses: dict[tuple[str, str, bool], AddressSetting] = {}
        self.exchanges: dict[tuple[str, str], ExchangeRule] = {}  # what is in force, by (vhost, name)
        self._orders: dict[tuple[bool, str], list[tuple[Policy, Compiled]]] = {}  # the strongest first
        self._ruled: dict[tuple[object, ...], tuple[QueueSettings, Ruling]] = {}

    # -- one method for each kind of record

    def put(self, policy: Policy) -> None:
        """POLICY."""
        self.all[policy.key] = policy
        self._forget()

    def delete(self, key: Key) -> None:
        """POLICY_DELETE."""
        self.all.pop(key, None)
        self._forget()

    def put_address(self, setting: AddressSetting) -> None:
        """ADDRESS_SETTING with values."""
        self.addresses[setting.key] = setting
        self._forget()

    def delete_address(self, key: tuple[str, str, bool]) -> None:
        """ADDRESS_SETTING without."""
        self.addresses.pop(key, None)
        self._forget()

    def rule_exchanges(self, rules: Mapping[tuple[str, str], ExchangeRule | None]) -> None:
        """What any of these records says of exchanges."""
        for key, one in rules.items():
            if one is None:
                self.exchanges.pop(key, None)
            else:
                self.exchanges[key] = one

    def _forget(self) -> None:
        self._orders.clear()
        self._ruled.clear()

    # -- who rules

    @property
    def empty(self) -> bool:
        """Whether nothing rules anything."""
        return not self.all and not self.addresses

    def of_queue(self, vhost: str, name: str, queue_type: str, operator: bool) -> Policy | None:
        """The policy of a queue."""
        return next((one for one in self._matching(operator, vhost, name) if one.is_for(queue_type)), None)

    def of_exchange(self, vhost: str, name: str) -> ExchangeRule | None:
        """The rule of an exchange.  The default one has none."""
        if not name:
            return None
        for one in self._matching(False, vhost, name):
            if one.is_for_exchanges and one.alternate_exchange is not None:
                return ExchangeRule(one.name, one.alternate_exchange)
        return None

    def _matching(self, operator: bool, vhost: str, name: str) -> Iterator[Policy]:
        order = self._orders.get((operator, vhost))
        if order is None:
            mine = [one for one in self.all.values() if one.operator == operator and one.vhost == vhost]
            mine.sort(key=lambda one: (-one.priority, one.name))
            order = self._orders[operator, vhost] = [(one, compile_pattern(one.pattern)) for one in mine]
        if order:
            data = to_bytes(name)
            for policy, pattern in order:
                if pattern.search(data) is not None:
                    yield policy

    def rule(
        self,
        vhost: str,
        name: str,
        queue_type: str,
        own: QueueSettings,
        given: frozenset[str],
        refuse: Callable[[QueueSettings], str | None],
    ) -> tuple[QueueSettings, Ruling]:
        """The settings in force for a queue, and its ruling.  `refuse`: see `core.topology.effective`."""
        if self.empty:
            return own, Ruling(own, given)
        policy = self.of_queue(vhost, name, queue_type, operator=False)
        operator = self.of_queue(vhost, name, queue_type, operator=True)
        mine = [one for one in self.addresses.values() if one.vhost == vhost]
        addresses = closest_first(mine, own.underlying_topic or name) if mine else []
        if policy is None and operator is None and not addresses:
            return own, Ruling(own, given)
        names = (policy and policy.name, operator and operator.name, *(one.key for one in addresses))
        known = vhost, own, given, names
        found = self._ruled.get(known)
        if found is None:
            if len(self._ruled) >= REMEMBERED:
                self._ruled.clear()
            found = self._ruled[known] = rule(own, given, policy, operator, addresses, refuse)
        return found


__all__ = ["Key", "Policies"]
