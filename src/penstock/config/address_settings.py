"""`[[address]]`: Artemis's address settings, key by key, with durations and sizes as the settings file has them.

A key whose rule has no equal here is refused by name, so that nobody counts on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from penstock.config.queue_values import COUNT_MAX, BadValue
from penstock.errors import known_name, shown
from penstock.records.address_settings import BESIDE, MAKERS
from penstock.units import parse_duration, parse_size


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


ADDRESS_KEYS: Mapping[str, tuple[Callable[[object], object], str]] = {
    "dead_letter_address": (_text, "Where messages go that failed too often: this key of the default exchange."),
    "max_delivery_attempts": (_count(-1), "Deliveries before that; -1 for ever."),
    "expiry_address": (_text, "Where expired messages go; without one they are dropped."),
    "expiry_delay": (_delay, "After what time messages expire that do not say it themselves; -1 for never."),
    "default_ring_size": (_count(-1), "Messages that wait: a newcomer takes the place of the oldest; -1 for no ring."),
    "default_max_consumers": (_count(-1), "Consumers at once; -1 for any number."),
    "default_purge_on_no_consumers": (_truth, "Whether a queue keeps messages only while somebody consumes."),
    "default_exclusive_queue": (_truth, "Whether one consumer gets everything, and the next takes over."),
    "default_consumers_before_dispatch": (_count(0), "Consumers that must be there before the first gets anything."),
    "default_delay_before_dispatch": (_delay, "How long after the first it begins anyway; -1 for never."),
    "default_non_destructive": (_truth, "Whether what is consumed stays."),
    "default_last_value_queue": (_truth, "The same by the header _AMQ_LVQ_NAME."),
    "default_last_value_key": (_header, "The header of which a queue keeps the last message for each value."),
    "max_size_messages": (
        _count(-1),
        "Messages that may wait where address_full_policy is FAIL, DROP or BLOCK; -1 for any number.",
    ),
    "max_size_bytes": (_bytes, "The same in bytes of bodies."),
    "address_full_policy": (
        _full_policy,
        "A full queue: FAIL refuses what comes, DROP loses it, BLOCK holds it up; PAGE, the default, has no limit.",
    ),
    "redelivery_delay": (_duration, "How long a failed message waits for its next delivery."),
    "redelivery_delay_multiplier": (_share(1, 1000), "What that grows by with each failure."),
    "max_redelivery_delay": (_duration, "What it grows to; without it ten times the delay."),
    "redelivery_collision_avoidance_factor": (_share(0, 1), "The share of it that chance may add or take."),
}
"""Keys with an effect here, how each is read, and a sentence."""

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

assert {*MAKERS, *BESIDE} == set(ADDRESS_KEYS)


def read_address_value(key: str, value: object) -> object:
    """A value of an address setting, as kept inside.  Raises BadValue."""
    row = ADDRESS_KEYS.get(key)
    if row is None:
        raise BadValue(key, ELSEWHERE.get(key) or f"has no equal here{known_name(key, [*OWN, *ADDRESS_KEYS])}")
    try:
        return row[0](value)
    except ValueError as error:
        raise BadValue(key, str(error)) from None
