"""Times and durations as a person types them, and as he reads them."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.errors import InvalidArgument
from penstock.units import parse_duration


def when_of(text: str, what: str) -> datetime | str:
    """A duration as it is, anything else as a time; without a zone it is UTC.  InvalidArgument names `what` it is."""
    try:
        parse_duration(text)
    except ValueError:
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            raise InvalidArgument(
                f"{what} {text!r} is neither a duration such as 10m nor a time such as 2026-12-01T08:00:00Z"
            ) from None
    return text


def until_or_for(text: str) -> str:
    """A duration or a time, with the word that goes before it."""
    return f"for {text}" if isinstance(when_of(text, "it"), str) else f"until {text}"


def moment(seconds: float) -> str:
    """Seconds since the epoch, for people."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s after 1970"
