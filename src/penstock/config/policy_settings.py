"""Policies as people write them: RabbitMQ's own keys with milliseconds and bytes, and our queue settings in kebab case.

From JSON or TOML to a `Policy` whose values are checked; what cannot be is refused with the key, the value and what is
allowed.  Which queue a policy rules is the core's to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from penstock.config.exclusions import refuse_impossible
from penstock.config.known_names import known_name
from penstock.config.queue_settings import KEY_ALIASES, LATER_QUEUE_KEYS, QUEUE_KEYS
from penstock.config.queue_values import BadValue, read_value
from penstock.errors import InvalidArgument
from penstock.records.queue_settings import APPLY_TO, Origin, Policy, QueueSettings
from penstock.records.regular_expressions import PatternError, compile_pattern

ALTERNATE = "alternate-exchange"

DECLARED = frozenset(
    {
        "underlying_topic",
        "exchange",
        "default_publish_target",
        "recovery_point",
        "kind",
        "initial_owner",
        "group_local_queue_domain",
    }
)
"""Settings that say what a queue is: they come with its declare and not from outside."""

_KEYS: Mapping[str, str] = {
    **{name.replace("_", "-"): name for name in QUEUE_KEYS if name not in DECLARED},
    **{alias.replace("_", "-"): name for alias, name in KEY_ALIASES.items()},
}

_HARMLESS: Mapping[str, tuple[object, ...] | type] = {
    "queue-mode": ("default", "lazy"),
    "queue-version": (1, 2),
    "queue-master-locator": str,
    "queue-leader-locator": str,
    "dead-letter-strategy": ("at-most-once", "at-least-once"),
    "max-in-memory-length": int,
    "max-in-memory-bytes": int,
    "target-group-size": int,
}
"""RabbitMQ's keys that ask for nothing that is not done anyway, with the values they take.

Bodies live under one budget, there is one store and one instance, and a dead letter moves in one step.
"""

MIRRORS = frozenset(
    {
        "ha-mode",
        "ha-params",
        "ha-sync-mode",
        "ha-sync-batch-size",
        "ha-promote-on-failure",
        "ha-promote-on-shutdown",
    }
)
"""Keys of mirrored queues, which RabbitMQ itself has given up."""

NO_MIRRORS = "there is one instance, so there are no mirrors"

OPERATOR_KEYS = frozenset(
    {
        "expires",
        "message-ttl",
        "max-length",
        "max-length-bytes",
        "max-in-memory-length",
        "max-in-memory-bytes",
        "delivery-limit",
        "queue-version",
        "overflow",
        "target-group-size",
    }
)
"""What an operator policy may say."""


def read_policy(
    vhost: str,
    name: object,
    pattern: object,
    definition: object,
    *,
    priority: object = 0,
    apply_to: object = "all",
    operator: bool = False,
    origin: Origin = "command",
) -> Policy:
    """A policy out of what somebody gave.  Raises InvalidArgument with the reason."""
    what = "operator policy" if operator else "policy"
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"a {what} needs a name, not {name!r}")
    where = f"{what} '{name}'"
    if not isinstance(pattern, str):
        raise InvalidArgument(f"{where}: the pattern {'is missing' if pattern is None else f'{pattern!r} is not text'}")
    try:
        compile_pattern(pattern)
    except PatternError as error:
        raise InvalidArgument(f"{where}: pattern '{pattern}': {error}") from None
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 2**31:
        raise InvalidArgument(f"{where}: priority {priority!r} is not a whole number of 32 bits")
    if apply_to not in APPLY_TO:
        hint = known_name(apply_to, list(APPLY_TO)) if isinstance(apply_to, str) else ""
        raise InvalidArgument(f"{where}: apply-to {apply_to!r} is not one of {', '.join(APPLY_TO)}{hint}")
    if not isinstance(definition, Mapping):
        raise InvalidArgument(f"{where}: the definition {definition!r} is not an object of keys and values")
    table = cast("Mapping[str, object]", definition)
    try:
        settings, alternate = read_definition(table, operator=operator)
    except BadValue as bad:
        raise InvalidArgument(f"{where}: {bad.key}: {bad}") from None
    return Policy(
        vhost, name, pattern, dict(table), settings, alternate, priority, apply_to, operator, origin
    )  # fmt: skip


def read_definition(definition: Mapping[str, object], *, operator: bool) -> tuple[dict[str, object], str | None]:
    """Settings of queues by name, and the alternate exchange of exchanges.  Raises BadValue with the key."""
    if not definition:
        raise BadValue("definition", "it is empty: name at least one key")
    settings: dict[str, object] = {}
    alternate: str | None = None
    for key, value in definition.items():
        if operator and key not in OPERATOR_KEYS:
            raise BadValue(key, f"an operator policy may not say it{known_name(key, sorted(OPERATOR_KEYS))}")
        if key == ALTERNATE:
            if not isinstance(value, str):
                raise BadValue(key, f"{value!r} is not text")
            alternate = value
        elif key in _HARMLESS:
            _check_harmless(key, value)
        else:
            name = _KEYS.get(key)
            if name is None:
                raise BadValue(key, _why_unknown(key))
            if name in settings:
                raise BadValue(key, "it is there twice, under two names")
            settings[name] = _value(key, name, value)
    return settings, alternate


def _value(key: str, name: str, value: object) -> object:
    if name == "delivery_limit" and isinstance(value, int) and not isinstance(value, bool):
        value = max(value, -1)  # RabbitMQ takes any integer; below 0 there is no limit
    return read_value(QUEUE_KEYS[name], value, "amqp", key)


def _check_harmless(key: str, value: object) -> None:
    allowed = _HARMLESS[key]
    if isinstance(allowed, tuple):
        if not any(value == one and type(value) is type(one) for one in allowed):
            raise BadValue(key, f"{value!r} is not one of {', '.join(map(str, allowed))}")
    elif not isinstance(value, allowed) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
        raise BadValue(key, f"{value!r} is not {'text' if allowed is str else 'a whole number from 0 on'}")


def _why_unknown(key: str) -> str:
    name = key.replace("-", "_")
    if key in MIRRORS:
        return NO_MIRRORS
    if name in DECLARED:
        return "it belongs to the declare of a queue, and no policy changes it"
    if name in LATER_QUEUE_KEYS:
        return "it is not supported in this version"
    return f"no key of a policy{known_name(key.replace('_', '-'), [*_KEYS, *_HARMLESS, ALTERNATE])}"


def parse_definition(text: str | bytes) -> dict[str, object]:
    """A definition out of JSON.  Raises InvalidArgument for what is none, and for a key that is there twice."""
    try:
        value: object = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the definition is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArgument("the definition is not a JSON object of keys and values")
    return cast("dict[str, object]", value)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgument(f"the definition has the key '{twice}' twice")
    return table


def why_impossible(settings: QueueSettings) -> str | None:
    """Why settings of a queue cannot be together; None where they can.  For the core, which asks it of policies."""
    try:
        refuse_impossible(settings)
    except BadValue as bad:
        return f"{bad.key}: {bad}"
    return None
