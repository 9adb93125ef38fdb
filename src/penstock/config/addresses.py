"""`[[address]]`: Artemis's address settings, key by key, with durations and sizes as the settings file has them.

A key whose rule has no equal here is refused by name, so that nobody counts on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.config.hints import known_name
from penstock.config.queue_values import COUNT_MAX, BadValue
from penstock.records.addresses import BESIDE, MAKERS
from penstock.units import parse_duration


def _duration(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a duration with a unit, as '5s'")
    return parse_duration(value)


def _count(low: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{value!r} is not a whole number")
        if not low <= value <= COUNT_MAX:
            raise ValueError(f"{value} is not in {low}..{COUNT_MAX}")
        return value

    return read


def _share(low: float, high: float) -> Callable[[object], float]:
    def read(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{value!r} is not a number")
        if not low <= value <= high:
            raise ValueError(f"{value} is not in {low:g}..{high:g}")
        return float(value)

    return read


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not text")
    return value


ADDRESS_KEYS: Mapping[str, tuple[Callable[[object], object], str]] = {
    "dead_letter_address": (_text, "Where messages go that failed too often: this key of the default exchange."),
    "max_delivery_attempts": (_count(-1), "Deliveries before that; -1 for ever."),
    "redelivery_delay": (_duration, "How long a failed message waits for its next delivery."),
    "redelivery_delay_multiplier": (_share(1, 1000), "What that grows by with each failure."),
    "max_redelivery_delay": (_duration, "What it grows to; without it ten times the delay."),
    "redelivery_collision_avoidance_factor": (_share(0, 1), "The share of it that chance may add or take."),
}
"""Keys with an effect here, how each is read, and a sentence."""

OWN = ("pattern", "vhost", "literal")

LATER_ADDRESS_KEYS = frozenset({"default_ring_size", "expiry_address"})
"""Keys that are taken and refused for now."""

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


def read_address(table: Mapping[str, object]) -> dict[str, object]:
    """The values of one address setting, as kept inside.  Raises BadValue for the first that cannot be."""
    return {key: read_address_value(key, value) for key, value in table.items() if key not in OWN}


def read_address_value(key: str, value: object) -> object:
    """One of them.  Raises BadValue."""
    row = ADDRESS_KEYS.get(key)
    if row is None:
        if key in LATER_ADDRESS_KEYS:
            raise BadValue(key, "is not supported in this version")
        raise BadValue(key, ELSEWHERE.get(key) or f"has no equal here{known_name(key, [*OWN, *ADDRESS_KEYS])}")
    try:
        return row[0](value)
    except ValueError as error:
        raise BadValue(key, str(error)) from None
