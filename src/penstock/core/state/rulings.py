"""Policies, address settings and rulings as JSON holds them, in records and in the durable state.

A ruling lies beside the settings in force, so of a queue's own settings only those are written that differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from penstock.core.state.plain import as_table, load_settings, plain, wrap
from penstock.records.queue_settings import (
    NAMES,
    AddressSetting,
    ApplyTo,
    ExchangeRule,
    Origin,
    Policy,
    QueueSettings,
    Ruling,
    told,
    values_of,
)


def dump_some(values: Mapping[str, object]) -> dict[str, object]:
    """Some settings by name."""
    return {name: plain(values[name]) for name in sorted(values)}


def load_some(value: object) -> dict[str, object]:
    """The inverse of `dump_some`.  Raises ValueError for a name that this version does not know."""
    table = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if not table:
        return {}
    whole = load_settings(table)
    return {name: getattr(whole, name) for name in table}


def difference(settings: QueueSettings, base: QueueSettings) -> dict[str, object]:
    """The settings by name that are others in `base`."""
    if settings is base:
        return {}
    both = zip(NAMES, values_of(settings), values_of(base), strict=True)
    return {name: mine for name, mine, other in both if mine != other}


def with_some(settings: QueueSettings, values: Mapping[str, object]) -> QueueSettings:
    """Settings with some of them replaced."""
    return replace(settings, **values) if values else settings  # type: ignore[arg-type]


def dump_ruling(ruling: Ruling | None, settings: QueueSettings) -> dict[str, object]:
    """A ruling beside the settings in force; nothing where a reader finds it out by himself."""
    out: dict[str, object] = {}
    if ruling is None:
        return out
    if own := difference(ruling.own, settings):
        out["own"] = dump_some(own)
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


def dump_policy(policy: Policy) -> dict[str, object]:
    """A policy without its name."""
    out: dict[str, object] = {
        "vhost": policy.vhost,
        "pattern": policy.pattern,
        "definition": wrap(policy.definition),
        "settings": dump_some(policy.settings),
        "priority": policy.priority,
        "apply_to": policy.apply_to,
        "operator": policy.operator,
        "origin": policy.origin,
    }
    if policy.alternate_exchange is not None:
        out["alternate_exchange"] = policy.alternate_exchange
    return out


def load_policy(name: str, value: Mapping[str, object]) -> Policy:
    return Policy(
        str(value["vhost"]),
        name,
        str(value["pattern"]),
        as_table(value["definition"]),
        load_some(value["settings"]),
        cast("str | None", value.get("alternate_exchange")),
        cast(int, value["priority"]),
        cast(ApplyTo, value["apply_to"]),
        bool(value["operator"]),
        cast(Origin, value["origin"]),
    )


def dump_address(setting: AddressSetting) -> dict[str, object]:
    """An address setting without its pattern."""
    return {
        "vhost": setting.vhost,
        "literal": setting.literal,
        "values": wrap(setting.values),
    }


def load_address(pattern: str, value: Mapping[str, object]) -> AddressSetting:
    return AddressSetting(str(value["vhost"]), pattern, as_table(value["values"]), bool(value["literal"]))


def dump_exchanges(rules: Mapping[tuple[str, str], ExchangeRule | None]) -> list[list[object]]:
    """Exchanges with their rule; None takes one away."""
    return [
        [*key, *((None, None) if rule is None else (rule.policy, rule.alternate))]
        for key, rule in sorted(rules.items(), key=_key)
    ]


def load_exchanges(value: object) -> dict[tuple[str, str], ExchangeRule | None]:
    rows = cast("list[list[str | None]]", value) if isinstance(value, list) else []
    return {
        (str(vhost), str(name)): None if policy is None else ExchangeRule(policy, str(alternate))
        for vhost, name, policy, alternate in rows
    }


def _key(item: tuple[tuple[str, str], object]) -> tuple[str, str]:
    return item[0]
