"""What an Artemis address setting means for a queue: its keys, merged over all settings that match, as our settings.

Values are as kept inside: microseconds, numbers, text.  A key that no queue setting stands for is not here; who reads
settings refuses it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.records.settings import Retry

Values = Mapping[str, object]


def _number(values: Values, key: str, default: float) -> float:
    value = values.get(key, default)
    return float(value) if isinstance(value, int | float) else default


def _deliveries(values: Values) -> dict[str, object]:
    return {"max_deliveries": max(int(_number(values, "max_delivery_attempts", -1)), 0)}  # below 0: for ever


def _dead_letters(values: Values) -> dict[str, object]:
    return {"dead_letter_exchange": "", "dead_letter_routing_key": values["dead_letter_address"]}


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


MAKERS: Mapping[str, Callable[[Values], dict[str, object]]] = {
    "max_delivery_attempts": _deliveries,
    "dead_letter_address": _dead_letters,
    "redelivery_delay": _retry,
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


def wrong_pattern(pattern: str) -> str | None:
    """Why a pattern cannot be, None where it can."""
    words = pattern.split(".")
    if "#" in words[:-1]:
        return f"'{pattern}' has a '#' before its end; '#' stands for the rest of an address, so it is the last word"
    for word in words:
        if len(word) > 1 and not {"*", "#"}.isdisjoint(word):
            return f"'{word}' of '{pattern}' mixes a wildcard with text; '*' and '#' are whole words, or say literal"
    return None
