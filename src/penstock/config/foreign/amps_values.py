"""How AMPS writes a value, and what our settings file writes for it.

Intervals `250us 15m 2h 1d` (a bare number is seconds), sizes `64KB 1GB 2G`, words for yes and no, recovery points.
Each reader takes the text of an element and raises ValueError with a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from penstock.config.queue_values import COUNT_MAX, TEN_YEARS_US
from penstock.errors import known_name
from penstock.units import format_duration, parse_duration, parse_size

Read: TypeAlias = Callable[[str], object]

YES = frozenset({"true", "yes", "on", "enabled", "1"})
NO = frozenset({"false", "no", "off", "disabled", "0"})

_INTERVAL = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ns|us|ms|s|m|h|d|w|)\Z", re.IGNORECASE)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)b?\Z", re.IGNORECASE)
_BOOKMARK = re.compile(r"[0-9]+\|[0-9]+\|\Z")
_TIMESTAMP = re.compile(r"[0-9]{8}T[0-9]{6}(?:\.[0-9]{1,9})?Z?\Z")


def text(value: str) -> str:
    """Any text but none."""
    if not value:
        raise ValueError("is empty")
    return value


def name(value: str) -> str:
    """A name of at most 255 bytes."""
    if len(text(value).encode()) > 255:
        raise ValueError(f"is {len(value.encode())} bytes long; a name has at most 255")
    return value


def words(*known: str) -> Read:
    """One of some words."""

    def read(value: str) -> str:
        if value not in known:
            raise ValueError(f"{value!r} is not one of {', '.join(known)}{known_name(value, list(known))}")
        return value

    return read


def count(low: int) -> Read:
    """A whole number from `low` on."""

    def read(value: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
            raise ValueError(f"{value!r} is not a whole number")
        number = int(value)
        if not low <= number <= COUNT_MAX:
            raise ValueError(f"{number} is not in {low}..{COUNT_MAX}")
        return number

    return read


def interval(value: str) -> str:
    """A duration above zero, as text with a unit."""
    match = _INTERVAL.match(value)
    if match is None:
        raise ValueError(f"{value!r} is not an interval: write a number and a unit, as in 15m or 2h")
    number, unit = match[1], match[2].lower() or "s"
    written = f"{number}{unit}"
    micros = int(float(number) / 1000) if unit == "ns" else parse_duration(written)
    if not 0 < micros <= TEN_YEARS_US:
        raise ValueError(f"{value!r} is not between 1us and ten years")
    return format_duration(micros) if unit == "ns" else written


def interval_or_none(value: str) -> str | None:
    """A duration; None for `0`, `disabled` and the other words for no."""
    if value.lower() in NO or re.fullmatch(r"0+(\.0+)?\s*[a-z]*", value.lower()):
        return None
    return interval(value)


def size(value: str) -> str:
    """Bytes as text with a unit; K, M, G and T are powers of a thousand, as `KB` is in our own settings."""
    match = _SIZE.match(value)
    if match is None:
        raise ValueError(f"{value!r} is not a size: write a number and a unit, as in 64MB or 1GB")
    written = f"{match[1]}{match[2].upper()}B"
    parse_size(written)
    return written


def yes_or_no(value: str) -> bool:
    """Any of the words for yes and no."""
    word = value.lower()
    if word not in YES | NO:
        raise ValueError(f"{value!r} is not one of enabled, disabled, true, false")
    return word in YES


def recovery_point(value: str) -> str:
    """`epoch`, `now`, `creation`, a bookmark or a timestamp."""
    if value in {"epoch", "now", "creation"} or _BOOKMARK.match(value) or _TIMESTAMP.match(value):
        return value
    raise ValueError(
        f"{value!r} is not one of epoch, now, creation, a bookmark such as 1234|56| "
        f"or a timestamp such as 20260131T235959Z{known_name(value, ['epoch', 'now', 'creation'])}"
    )
