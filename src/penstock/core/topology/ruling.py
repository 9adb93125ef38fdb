"""The settings in force for one queue: its own, and what policies and address settings add; and all these as JSON.

    argument > policy, operator policy > address setting > default

Of numeric limits the smaller of those present wins, whoever says it, address settings aside: these speak only where
nobody else does.  A value that cannot be beside the others is left out, and said.  In records and in the durable state
a ruling lies beside the settings in force, so of a queue's own settings only those are written that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TypeAlias, cast

from penstock.core.state.encoding import Shape, as_table, load_settings, plain, wrap
from penstock.records.address_settings import as_settings, is_prefix
from penstock.records.queue_settings import (
    NAMES,
    AddressSetting,
    ExchangeRule,
    Policy,
    QueueSettings,
    Ruling,
    following,
    ruling_of,
    told,
    values_of,
)
from penstock.records.regular_expressions import Compiled, compile_pattern, to_bytes
from penstock.records.remembered import Remembered

LIMITS = frozenset({"max_length", "max_length_bytes", "message_ttl", "queue_expires", "delivery_limit"})
"""Settings of which the smaller wins."""


def smaller(name: str, a: object, b: object) -> object:
    """The stricter of two values of a limit; a delivery limit below 0 is none at all."""
    assert isinstance(a, int)
    assert isinstance(b, int)
    if name == "delivery_limit" and min(a, b) < 0:
        return max(a, b)
    return min(a, b)


def said(policy: Policy | None, operator: Policy | None) -> dict[str, tuple[object, str]]:
    """What the two policies of a queue say together, with who says it; limits are the smaller, else the operator's."""
    out: dict[str, tuple[object, str]] = {}
    if policy is not None:
        out = {name: (value, f"policy {policy.name}") for name, value in policy.settings.items()}
    if operator is not None:
        for name, value in operator.settings.items():
            mine = out.get(name)
            if mine is None or name not in LIMITS or (value != mine[0] and smaller(name, value, mine[0]) == value):
                out[name] = value, f"operator policy {operator.name}"
    return out


def merged(addresses: Iterable[AddressSetting]) -> dict[str, tuple[object, str]]:
    """What address settings say together, the closest first: a key that one leaves out is the next one's to say."""
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for setting in addresses:
        for key, value in setting.values.items():
            if key not in values:
                values[key], origins[key] = value, setting.origin
    return {name: (value, origins[key]) for name, (value, key) in as_settings(values).items()}


def rule(
    own: QueueSettings,
    given: frozenset[str],
    policy: Policy | None,
    operator: Policy | None,
    addresses: Sequence[AddressSetting],
    refuse: Callable[[QueueSettings], str | None],
) -> tuple[QueueSettings, Ruling]:
    """The settings in force, and the ruling.

    addresses: those for its address, the closest first.  refuse: why settings cannot be together, None where they can.
    """
    wanted: dict[str, tuple[object, str]] = {}
    for name, (value, source) in merged(addresses).items() if addresses else ():
        if name not in given and getattr(own, name) != value:
            wanted[name] = value, source
    for name, (value, source) in said(policy, operator).items():
        mine = getattr(own, name)
        if name not in given or (name in LIMITS and value != mine and smaller(name, value, mine) == value):
            wanted[name] = value, source
    settings, unapplied = _applied(own, given, wanted, refuse)
    return settings, Ruling(
        own,
        given,
        None if policy is None else policy.name,
        None if operator is None else operator.name,
        tuple(sorted([(name, source) for name, (_, source) in wanted.items() if name not in unapplied])),
        tuple(sorted(unapplied.items())),
    )


def _with(settings: QueueSettings, values: Mapping[str, object], said: frozenset[str]) -> QueueSettings:
    """Settings with some of them replaced, and what follows from that.  said: what somebody else says."""
    return following(settings, with_some(settings, values), said | values.keys())


def _applied(
    own: QueueSettings, given: frozenset[str], wanted: Mapping[str, tuple[object, str]],
    refuse: Callable[[QueueSettings], str | None],
) -> tuple[QueueSettings, dict[str, str]]:  # fmt: skip
    """Own settings with what was wanted, as far as it can be; and why the rest cannot."""
    if not wanted:
        return own, {}
    settings = _with(own, {name: value for name, (value, _) in wanted.items()}, given)
    if refuse(settings) is None:
        return settings, {}
    settings, left, why = own, sorted(wanted), dict[str, str]()
    while True:  # some need others beside them, so each is tried until none fits any more
        still = list[str]()
        for name in left:
            value, source = wanted[name]
            tried = _with(settings, {name: value}, given | wanted.keys())
            refused = refuse(tried)
            if refused is None:
                settings = tried
            else:
                still.append(name)
                why[name] = f"{source}: {refused}"
        if len(still) == len(left):
            return settings, {name: why[name] for name in still}
        left = still


def combined(policy: Policy | None, operator: Policy | None) -> dict[str, object]:
    """The same as `said`, in the words of their definitions: RabbitMQ's keys, milliseconds and bytes."""
    out: dict[str, object] = {} if policy is None else dict(policy.definition)
    if operator is None:
        return out
    for key, value in operator.definition.items():
        mine = out.get(key)
        name = key.replace("-", "_")
        if mine is not None and ("queue_expires" if name == "expires" else name) in LIMITS:
            value = smaller(name, mine, value)
        elif mine is not None and key == "target-group-size":
            value = max(cast(int, mine), cast(int, value))
        elif mine is not None and key in ("max-in-memory-length", "max-in-memory-bytes"):
            value = min(cast(int, mine), cast(int, value))
        out[key] = value
    return out


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
        self._patterns: dict[Key, Compiled] = {}  # of those that have stood in an order
        self._ruled = Remembered[tuple[object, ...], tuple[QueueSettings, Ruling]](REMEMBERED)

    # -- one method for each kind of record

    def put(self, policy: Policy) -> None:
        self.all[policy.key] = policy
        self._patterns.pop(policy.key, None)
        self._forget()

    def delete(self, key: Key) -> None:
        self.all.pop(key, None)
        self._patterns.pop(key, None)
        self._forget()

    def put_address(self, setting: AddressSetting) -> None:
        self.addresses[setting.key] = setting
        self._forget()

    def delete_address(self, key: tuple[str, str, bool]) -> None:
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
        return not self.all and not self.addresses

    def of_queue(self, vhost: str, name: str, queue_type: str) -> tuple[Policy | None, Policy | None]:
        """The policy of a queue, and its operator policy."""
        data, found = to_bytes(name), dict[bool, Policy]()
        for operator in (False, True):
            for policy, pattern in self._order(operator, vhost):
                if pattern.search(data) is not None and policy.is_for(queue_type):
                    found[operator] = policy
                    break
        return found.get(False), found.get(True)

    def rules_exchanges(self, vhost: str) -> bool:
        """Whether a policy of a vhost says anything of exchanges."""
        return vhost in {one.vhost for one in self.all.values() if one.alternate_exchange is not None}

    def of_exchange(self, vhost: str, name: str) -> ExchangeRule | None:
        """The rule of an exchange.  The default one has none."""
        if not name:
            return None
        data = to_bytes(name)
        for one, pattern in self._order(False, vhost):
            if one.is_for_exchanges and one.alternate_exchange is not None and pattern.search(data) is not None:
                return ExchangeRule(one.name, one.alternate_exchange)
        return None

    def _order(self, operator: bool, vhost: str) -> list[tuple[Policy, Compiled]]:
        """The policies of a vhost of one kind, the strongest first."""
        order = self._orders.get((operator, vhost))
        if order is None:
            found = dict[tuple[int, str], Policy]()
            for one in self.all.values():
                if one.operator == operator and one.vhost == vhost:
                    found[-one.priority, one.name] = one
            order = self._orders[operator, vhost] = []
            for place in sorted(found):
                order.append((found[place], self._compiled(found[place])))
        return order

    def _compiled(self, policy: Policy) -> Compiled:
        """Its pattern, kept here: of very many each change would else compile them all anew."""
        pattern = self._patterns.get(policy.key)
        if pattern is None:
            pattern = self._patterns[policy.key] = compile_pattern(policy.pattern)
        return pattern

    def rule(
        self,
        vhost: str,
        name: str,
        queue_type: str,
        own: QueueSettings,
        given: frozenset[str],
        refuse: Callable[[QueueSettings], str | None],
    ) -> tuple[QueueSettings, Ruling]:
        """The settings in force for a queue, and its ruling.  `refuse`: see `core.commands.common_parts.CoreParts`."""
        policy, operator = self.of_queue(vhost, name, queue_type)
        addresses = list[AddressSetting]()
        if self.addresses:
            mine = [one for one in self.addresses.values() if one.vhost == vhost]
            addresses = closest_first(mine, own.underlying_topic or name)
        if policy is None and operator is None and not addresses:
            return own, Ruling(own, given)
        names = policy and policy.name, operator and operator.name
        known = vhost, own, given, names, tuple([one.key for one in addresses])
        found = self._ruled.get(known)
        return found or self._ruled.keep(known, rule(own, given, policy, operator, addresses, refuse))


def matches(setting: AddressSetting, address: str) -> bool:
    """Whether a setting is for an address."""
    if setting.literal or setting.pattern == address:
        return setting.pattern == address
    if is_prefix(setting.pattern):
        return address.startswith(setting.pattern[:-1])
    pattern, words = setting.pattern.split("."), address.split(".")
    if pattern[-1] == "#":
        pattern.pop()
        words = words[: len(pattern)]
    return len(pattern) == len(words) and all(one in ("*", word) for one, word in zip(pattern, words, strict=True))


def closest_first(settings: Iterable[AddressSetting], address: str) -> list[AddressSetting]:
    """Those that are for an address, the closest first.

    Its very name; then a literal; then one without `#` before one with; of those with `#` the longer text; of the
    others word by word a word before a `*`, then the shorter.  Where that leaves two alike, by their texts.
    """
    found = [setting for setting in settings if matches(setting, address)]
    found.sort(key=lambda setting: _rank(setting, address))
    return found


PENDING_MOST = 16
"""Changes whose patterns are asked; of more every queue is worked out, which costs less then."""


class Changes:
    """Policies and address settings that came, changed or went: of which queues they may make something else.

    Asked of a queue before its ruling is worked out, which costs tens of times as much.
    """

    def __init__(self) -> None:
        self._policies: dict[str, dict[str, Compiled]] = {}  # by vhost and pattern
        self._addresses: dict[tuple[str, str, bool], AddressSetting] = {}
        self._all = False  # what changed is not known, or too much

    def note(self, one: Policy | AddressSetting) -> None:
        """This came, or is gone."""
        if isinstance(one, Policy):
            patterns = self._policies.setdefault(one.vhost, {})
            patterns[one.pattern] = compile_pattern(one.pattern)
            self._all = self._all or len(patterns) > PENDING_MOST
        else:
            self._addresses[one.key] = one
            self._all = self._all or len(self._addresses) > PENDING_MOST

    def note_all(self) -> None:
        """Anything may have changed."""
        self._all = True

    def clear(self) -> None:
        """Every queue was asked about."""
        self._policies.clear()
        self._addresses.clear()
        self._all = False

    def concern(self, vhost: str, name: str, settings: QueueSettings, ruling: Ruling | None) -> bool:
        """Whether a queue with these settings in force may have others now.

        One that lacks something which its policies say is asked each time: what stood against it may have gone.
        """
        if self._all or (ruling is not None and ruling.unapplied):
            return True
        if (patterns := self._policies.get(vhost)) is not None:
            data = to_bytes(name)
            for pattern in patterns.values():
                if pattern.search(data) is not None:
                    return True
        if not self._addresses:
            return False
        address = ruling_of(settings, ruling).own.underlying_topic or name
        return any(one.vhost == vhost and matches(one, address) for one in self._addresses.values())


def _rank(setting: AddressSetting, address: str) -> tuple[int, int, tuple[int, ...], int, str]:
    pattern = setting.pattern
    if setting.literal:
        return 1, 0, (), 0, pattern
    if pattern == address and not has_wildcard(pattern):
        return 0, 0, (), 0, pattern
    if pattern.endswith("#"):
        return 3, -len(pattern), (), 0, pattern
    return 2, 0, tuple([int(word == "*") for word in pattern.split(".")]), len(pattern), pattern


def has_wildcard(pattern: str) -> bool:
    """Whether it may be for more than one address."""
    return pattern.endswith("#") or "*" in pattern.split(".")


def dump_some(values: Mapping[str, object]) -> dict[str, object]:
    """Some settings by name, as JSON holds them."""
    return {name: plain(values[name]) for name in sorted(values)}


def load_some(value: object) -> dict[str, object]:
    """The inverse of `dump_some`.  Raises ValueError for a name that this version does not know."""
    table = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if not table:
        return {}
    whole = load_settings(table)
    return {name: getattr(whole, name) for name in table}


def dump_difference(settings: QueueSettings, base: QueueSettings) -> dict[str, object]:
    """The settings that are others in `base`, as `dump_some`."""
    if settings is base:
        return {}
    both = zip(NAMES, values_of(settings), values_of(base), strict=True)
    return dict(sorted([(name, plain(mine)) for name, mine, other in both if mine != other], key=itemgetter(0)))


def with_some(settings: QueueSettings, values: Mapping[str, object]) -> QueueSettings:
    """Settings with some of them replaced."""
    return replace(settings, **values) if values else settings  # type: ignore[arg-type]


def dump_ruling(ruling: Ruling | None, settings: QueueSettings) -> dict[str, object]:
    """A ruling beside the settings in force; nothing where a reader finds it out by himself."""
    out: dict[str, object] = {}
    if ruling is None:
        return out
    if own := dump_difference(ruling.own, settings):
        out["own"] = own
    if ruling.given != told(ruling.own):
        out["given"] = sorted(ruling.given)
    if ruling.policy is not None:
        out["policy"] = ruling.policy
    if ruling.operator_policy is not None:
        out["operator_policy"] = ruling.operator_policy
    if ruling.sources:
        out["sources"] = dict(ruling.sources)
    if ruling.unapplied:
        out["unapplied"] = dict(ruling.unapplied)
    return out


def load_ruling(value: object, settings: QueueSettings) -> Ruling | None:
    table = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if not table:
        return None
    own = with_some(settings, load_some(table.get("own")))
    given = cast("list[str] | None", table.get("given"))
    return Ruling(
        own,
        told(own) if given is None else frozenset(given),
        cast("str | None", table.get("policy")),
        cast("str | None", table.get("operator_policy")),
        _pairs(table.get("sources")),
        _pairs(table.get("unapplied")),
    )


def _pairs(value: object) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(cast("dict[str, str]", value).items())) if isinstance(value, dict) else ()


POLICY = Shape(
    Policy, ("settings", "priority", "apply_to", "operator", "origin"), ("name",),
    definition=(wrap, as_table), settings=(dump_some, load_some),
)  # fmt: skip
"""A policy without its name, as its record and states have it."""

ADDRESS = Shape(AddressSetting, ("literal",), ("pattern",), values=(wrap, as_table))
"""An address setting without its pattern."""


def dump_exchanges(rules: Mapping[tuple[str, str], ExchangeRule | None]) -> list[list[object]]:
    """Exchanges with their rule; None takes one away."""
    return [
        [*key, *((None, None) if rule is None else (rule.policy, rule.alternate))]
        for key, rule in sorted(rules.items(), key=itemgetter(0))
    ]


def load_exchanges(value: object) -> dict[tuple[str, str], ExchangeRule | None]:
    rows = cast("list[list[str | None]]", value) if isinstance(value, list) else []
    return {
        (str(vhost), str(name)): None if policy is None else ExchangeRule(policy, str(alternate))
        for vhost, name, policy, alternate in rows
    }
