"""Durations as callers give them: text with a unit (`"30s"`), seconds, or a timedelta."""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.errors import InvalidArgument
from penstock.units import to_micros

_GIVEN = (str, int, float, timedelta)
Duration = str | float | timedelta
"""Text with a unit (`"30s"`), seconds, or a timedelta."""


def span(value: Duration, what: str) -> int:
    """Microseconds of a duration.

    InvalidArgument, which names `what` it is for, when it is none, too large, or below zero.
    """
    given: object = value
    if isinstance(given, bool) or not isinstance(given, _GIVEN):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f"{what} is {given!r}, not a duration such as '30s' or a number of seconds")
    try:
        micros = to_micros(given)
    except ValueError as error:
        raise InvalidArgument(f"{what}: {error}") from None
    if micros < 0:
        raise InvalidArgument(f"{what} is {given}: a duration is not negative")
    return micros


def moment(value: datetime | Duration | None, what: str) -> tuple[int | None, int | None]:
    """(microseconds since the epoch, None) of a time, (None, microseconds from now) of a duration; or neither.

    A time without a zone is local time.
    """
    if value is None:
        return None, None
    if isinstance(value, datetime):
        return round(value.timestamp() * 1_000_000), None
    return None, span(value, what)
