"""Artemis's address settings, key by key: how `[[address]]` of the settings file has them, with durations and sizes,
and what they mean for a queue: the keys, merged over all settings that match, as our settings.

Values are kept inside as microseconds, numbers, text.  A key whose rule has no equal here is refused by name, so that
nobody counts on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from penstock.errors import known_name, shown
from penstock.records.chunks import LSN_LIMIT
from penstock.records.queue_settings import QueueSettings, Retry
from penstock.units import parse_duration, parse_size

Values: TypeAlias = "Mapping[str, object]"
Maker: TypeAlias = "Callable[[Values], dict[str, object]]"

COUNT_MAX = LSN_LIMIT - 1


def _duration(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a duration with a unit, as '5s'")
    return parse_duration(value)


def _count(low: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{shown(value)} is not a whole number")
        if not low <= value <= COUNT_MAX:
            raise ValueError(f"{value} is not in {low}..{COUNT_MAX}")
        return value

    return read


def _share(low: float, high: float) -> Callable[[object], float]:
    def read(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{shown(value)} is not a number")
        if not low <= value <= high:
            raise ValueError(f"{value} is not in {low:g}..{high:g}")
        return float(value)

    return read


def _delay(value: object) -> int:
    """A duration, or -1 for none."""
    return -1 if type(value) is int and value == -1 else _duration(value)


def _bytes(value: object) -> int:
    """A size, or -1 for none."""
    if type(value) is int and value == -1:
        return -1
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a size with a unit, as '10MiB'")
    return parse_size(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither true nor false")
    return value


def _full_policy(value: object) -> str:
    if value not in ("PAGE", "FAIL", "DROP", "BLOCK"):
        raise ValueError(f"{shown(value)} is not one of PAGE, FAIL, DROP, BLOCK")
    return str(value)


def _header(value: object) -> str:
    if not isinstance(value, str) or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) is None:
        raise ValueError(f"{shown(value)} is not the name of a header, in letters, digits and underscores")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{shown(value)} is not text")
    return value


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


class Key(NamedTuple):
    """One key.  `read` gives a value as kept inside; ValueError."""

    read: Callable[[object], object]
    means: Maker | str | None = None  # settings of a queue; a name: of that one, as it is; None: more of another key


class AddressKeys:
    """Keys with an effect here; below each stands what `docs/settings.md` says of it."""

    dead_letter_address = Key(_text, _dead_letters)
    """Where messages go that failed too often: this key of the default exchange."""
    max_delivery_attempts = Key(_count(-1), _deliveries)
    """Deliveries before that; -1 for ever."""
    expiry_address = Key(_text, _expiry)
    """Where expired messages go; without one they are dropped."""
    expiry_delay = Key(_delay, _expiry_delay)
    """After what time messages expire that do not say it themselves; -1 for never."""
    default_ring_size = Key(_count(-1), _ring)
    """Messages that wait: a newcomer takes the place of the oldest; -1 for no ring."""
    default_max_consumers = Key(_count(-1), "max_consumers")
    """Consumers at once; -1 for any number."""
    default_purge_on_no_consumers = Key(_truth, "purge_on_no_consumers")
    """Whether a queue keeps messages only while somebody consumes."""
    default_exclusive_queue = Key(_truth, "single_active_consumer")
    """Whether one consumer gets everything, and the next takes over."""
    default_consumers_before_dispatch = Key(_count(0), "consumers_before_dispatch")
    """Consumers that must be there before the first gets anything."""
    default_delay_before_dispatch = Key(_delay, _delay_before_dispatch)
    """How long after the first it begins anyway; -1 for never."""
    default_non_destructive = Key(_truth, "non_destructive")
    """Whether what is consumed stays."""
    default_last_value_queue = Key(_truth, _last_value)
    """The same by the header _AMQ_LVQ_NAME."""
    default_last_value_key = Key(_header, _last_value)
    """The header of which a queue keeps the last message for each value."""
    max_size_messages = Key(_count(-1), _limit("max_size_messages", "max_length"))
    """Messages that may wait where address_full_policy is FAIL, DROP or BLOCK; -1 for any number."""
    max_size_bytes = Key(_bytes, _limit("max_size_bytes", "max_length_bytes"))
    """The same in bytes of bodies."""
    address_full_policy = Key(_full_policy, _full)
    """A full queue: FAIL refuses what comes, DROP loses it, BLOCK holds it up; PAGE, the default, has no limit."""
    redelivery_delay = Key(_duration, _retry)
    """How long a failed message waits for its next delivery."""
    redelivery_delay_multiplier = Key(_share(1, 1000))
    """What that grows by with each failure."""
    max_redelivery_delay = Key(_duration)
    """What it grows to; without it ten times the delay."""
    redelivery_collision_avoidance_factor = Key(_share(0, 1))
    """The share of it that chance may add or take."""


ADDRESS_KEYS: Mapping[str, Key] = {name: key for name, key in vars(AddressKeys).items() if isinstance(key, Key)}
"""The same by name."""

OWN = ("pattern", "vhost", "literal")


_PAGES = "there is one log, so nothing is paged"
_ALONE = "there is one instance"
_MADE = "topics need no declaration, and clients declare their queues"
_STAYS = "queues and topics stay until somebody deletes them"
_METRICS = "figures are kept of every queue"

ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("page_size_bytes", "page_limit_bytes", "page_limit_messages", "page_full_policy"), _PAGES),
    **dict.fromkeys(("page_max_cache_size", "max_read_page_bytes", "max_read_page_messages"), _PAGES),
    **dict.fromkeys(("prefetch_page_bytes", "prefetch_page_messages", "page_sync_timeout"), _PAGES),
    **dict.fromkeys(("redistribution_delay", "send_to_dla_on_no_route"), _ALONE),
    **dict.fromkeys(("auto_create_queues", "auto_create_addresses", "auto_create_jms_queues"), _MADE),
    **dict.fromkeys(("auto_create_jms_topics", "default_queue_routing_type", "default_address_routing_type"), _MADE),
    **dict.fromkeys(("auto_delete_queues", "auto_delete_addresses", "config_delete_queues"), _STAYS),
    **dict.fromkeys(("config_delete_addresses", "auto_delete_created_queues", "auto_delete_queues_delay"), _STAYS),
    **dict.fromkeys(("auto_delete_queues_message_count", "auto_delete_addresses_delay"), _STAYS),
    **dict.fromkeys(("enable_metrics", "message_counter_history_day_limit", "management_browse_page_size"), _METRICS),
}
"""Keys that ask for nothing that a queue here does, and why."""


def read_address_value(key: str, value: object) -> object:
    """A value of an address setting, as kept inside.  ValueError."""
    row = ADDRESS_KEYS.get(key)
    if row is None:
        raise ValueError(ELSEWHERE.get(key) or f"has no equal here{known_name(key, [*OWN, *ADDRESS_KEYS])}")
    return row.read(value)


def as_settings(values: Values) -> dict[str, tuple[object, str]]:
    """Settings of a queue by name, each with the key that it comes from."""
    out: dict[str, tuple[object, str]] = {}
    for key, row in ADDRESS_KEYS.items():
        if key in values and row.means is not None:
            made = {row.means: values[key]} if isinstance(row.means, str) else row.means(values)
            out |= {name: (value, key) for name, value in made.items()}
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
