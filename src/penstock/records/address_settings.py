"""What an Artemis address setting means for a queue: its keys, merged over all settings that match, as our settings.

Values are as kept inside: microseconds, numbers, text.  A key that no queue setting stands for is not here; who reads
settings refuses it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from penstock.records.queue_settings import QueueSettings, Retry

Values: TypeAlias = "Mapping[str, object]"
Maker: TypeAlias = "Callable[[Values], dict[str, object]]"


def _number(values: Values, key: str, default: float) -> float:
    value = values.get(key, default)
    return float(value) if isinstance(value, int | float) else default


def _deliveries(values: Values) -> dict[str, object]:
    return {"max_deliveries": max(int(_number(values, "max_delivery_attempts", -1)), 0)}  # below 0: for ever


def _dead_letters(values: Values) -> dict[str, object]:
    return {"dead_letter_exchange": "", "dead_letter_routing_key": values["dead_letter_address"], **_expiry(values)}


def _expiry_delay(values: Values) -> dict[str, object]:
    delay = int(_number(values, "expiry_delay", -1))
    return {"expiration": None if delay < 0 else delay}


def _ring(values: Values) -> dict[str, object]:
    size = int(_number(values, "default_ring_size", -1))
    return {"ring_size": QueueSettings().ring_size if size < 0 else size}


def _retry(values: Values) -> dict[str, object]:
    initial = int(_number(values, "redelivery_delay", 0))
    if initial == 0:
        return {"retry": None}
    return {
        "retry": Retry(
            initial=initial,
            factor=_number(values, "redelivery_delay_multiplier", 1.0),
            max=max(initial, int(_number(values, "max_redelivery_delay", 10 * initial))),
            jitter=_number(values, "redelivery_collision_avoidance_factor", 0.0),
            attempts=0,
        )
    }


def _expiry(values: Values) -> dict[str, object]:
    return {"expiry_address": values.get("expiry_address", "")}  # without one they are dropped, dead letters or not


def _delay_before_dispatch(values: Values) -> dict[str, object]:
    delay = int(_number(values, "default_delay_before_dispatch", -1))
    return {"delay_before_dispatch": None if delay < 0 else delay}


_OVERFLOW = {"FAIL": "reject-publish", "DROP": "drop-newest", "BLOCK": "block"}
"""What a policy for a full address says of its queues."""


def _full(values: Values) -> dict[str, object]:
    """FAIL tells who publishes, DROP tells nobody, BLOCK has who publishes wait."""
    overflow = _OVERFLOW.get(str(values["address_full_policy"]))
    return {} if overflow is None else {"overflow": overflow}


def _same(key: str, name: str) -> Maker:
    """A value that stands for itself."""
    return lambda values: {name: values[key]}


LAST_VALUE = "_AMQ_LVQ_NAME"
"""The header that Artemis looks at where no other is named."""


def last_value(header: str) -> str:
    """The expression for a header's value."""
    return f"/@headers/{header}"


def _last_value(values: Values) -> dict[str, object]:
    key = values.get("default_last_value_key")
    if isinstance(key, str):
        return {"last_value_key": last_value(key)}
    return {"last_value_key": last_value(LAST_VALUE) if values.get("default_last_value_queue") else None}


def _limit(key: str, name: str) -> Maker:
    """A limit of an address, which holds here where its policy is one of these; below 0 there is none."""

    def make(values: Values) -> dict[str, object]:
        value = values[key]
        if not isinstance(value, int) or value < 0 or values.get("address_full_policy") not in _OVERFLOW:
            return {}
        return {name: value}

    return make


MAKERS: Mapping[str, Maker] = {
    "max_delivery_attempts": _deliveries,
    "dead_letter_address": _dead_letters,
    "expiry_address": _expiry,
    "expiry_delay": _expiry_delay,
    "redelivery_delay": _retry,
    "default_ring_size": _ring,
    "default_max_consumers": _same("default_max_consumers", "max_consumers"),
    "default_purge_on_no_consumers": _same("default_purge_on_no_consumers", "purge_on_no_consumers"),
    "default_exclusive_queue": _same("default_exclusive_queue", "single_active_consumer"),
    "default_consumers_before_dispatch": _same("default_consumers_before_dispatch", "consumers_before_dispatch"),
    "default_delay_before_dispatch": _delay_before_dispatch,
    "default_non_destructive": _same("default_non_destructive", "non_destructive"),
    "default_last_value_queue": _last_value,
    "default_last_value_key": _last_value,
    "max_size_messages": _limit("max_size_messages", "max_length"),
    "max_size_bytes": _limit("max_size_bytes", "max_length_bytes"),
    "address_full_policy": _full,
}
"""By the key without which nothing comes of it: the settings of a queue, out of all merged values."""

BESIDE: Mapping[str, str] = {
    "redelivery_delay_multiplier": "redelivery_delay",
    "max_redelivery_delay": "redelivery_delay",
    "redelivery_collision_avoidance_factor": "redelivery_delay",
}
"""Keys that say more of another one."""


def as_settings(values: Values) -> dict[str, tuple[object, str]]:
    """Settings of a queue by name, each with the key that it comes from."""
    out: dict[str, tuple[object, str]] = {}
    for key, make in MAKERS.items():
        if key in values:
            out |= {name: (value, key) for name, value in make(values).items()}
    return out


def is_prefix(pattern: str) -> bool:
    """Whether a pattern is the beginning of names, as `activemq.management#`: text, and a `#` at its end."""
    begin = pattern[:-1]
    return pattern.endswith("#") and begin != "" and begin[-1] != "." and {"*", "#"}.isdisjoint(begin)


def wrong_pattern(pattern: str) -> str | None:
    """Why a pattern cannot be, None where it can."""
    words = pattern.split(".")
    if is_prefix(pattern):
        return None
    if "#" in words[:-1]:
        return f"'{pattern}' has a '#' before its end; '#' stands for the rest of an address, so it is the last word"
    for word in words:
        if len(word) > 1 and not {"*", "#"}.isdisjoint(word):
            return f"'{word}' of '{pattern}' mixes a wildcard with text; '*' and '#' are whole words, or say literal"
    return None
