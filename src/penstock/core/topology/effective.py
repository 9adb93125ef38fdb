"""The settings in force for one queue: its own, and what policies and address settings add.

    argument > policy, operator policy > address setting > default

Of numeric limits the smaller of those present wins, whoever says it, address settings aside: these speak only where
nobody else does.  A value that cannot be beside the others is left out, and said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import cast

from penstock.records.addresses import as_settings
from penstock.records.policies import AddressSetting, Policy, Ruling
from penstock.records.settings import QueueSettings

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
    addresses: Iterable[AddressSetting],
    refuse: Callable[[QueueSettings], str | None],
) -> tuple[QueueSettings, Ruling]:
    """The settings in force, and the ruling.

    addresses: those for its address, the closest first.  refuse: why settings cannot be together, None where they can.
    """
    wanted: dict[str, tuple[object, str]] = {}
    for name, (value, source) in merged(addresses).items():
        if name not in given and getattr(own, name) != value:
            wanted[name] = value, source
    for name, (value, source) in said(policy, operator).items():
        mine = getattr(own, name)
        if name not in given or (name in LIMITS and value != mine and smaller(name, value, mine) == value):
            wanted[name] = value, source
    settings, unapplied = _applied(own, wanted, refuse)
    return settings, Ruling(
        own,
        given,
        None if policy is None else policy.name,
        None if operator is None else operator.name,
        tuple(sorted((name, source) for name, (_, source) in wanted.items() if name not in unapplied)),
        tuple(sorted(unapplied.items())),
    )


def _applied(
    own: QueueSettings, wanted: Mapping[str, tuple[object, str]], refuse: Callable[[QueueSettings], str | None]
) -> tuple[QueueSettings, dict[str, str]]:
    """Own settings with what was wanted, as far as it can be; and why the rest cannot."""
    if not wanted:
        return own, {}
    settings = _with(own, {name: value for name, (value, _) in wanted.items()})
    if refuse(settings) is None:
        return settings, {}
    settings, left, why = own, sorted(wanted), dict[str, str]()
    while True:  # some need others beside them, so each is tried until none fits any more
        still = list[str]()
        for name in left:
            value, source = wanted[name]
            tried = _with(settings, {name: value})
            refused = refuse(tried)
            if refused is None:
                settings = tried
            else:
                still.append(name)
                why[name] = f"{source}: {refused}"
        if len(still) == len(left):
            return settings, {name: why[name] for name in still}
        left = still


def _with(settings: QueueSettings, values: Mapping[str, object]) -> QueueSettings:
    return replace(settings, **values)  # type: ignore[arg-type]


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
