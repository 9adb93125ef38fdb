"""When an action with a schedule runs next: `4h`, `02:00`, `Saturday at 11:00`; `Z` at the end is UTC.

Pure: the clock and the zone are handed in.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.units import parse_duration

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_CLOCK = re.compile(r"(?:([A-Za-z]+)\s+at\s+)?([0-9]{1,2}):([0-9]{2})(Z?)")

LEAST_US = 1_000
"""The shortest interval."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Either an interval, or a time of day, perhaps of one day of the week."""

    interval: int = 0  # microseconds
    day: int | None = None  # 0 is Monday
    hour: int = 0
    minute: int = 0
    utc: bool = False

    def after(self, now: int, zone: tzinfo | None) -> int:
        """The next time after `now`, both in microseconds since the epoch; `zone`: of times without Z."""
        if self.interval:
            return now + self.interval
        here = datetime.fromtimestamp(now / 1e6, UTC if self.utc else zone)
        day = here.replace(hour=self.hour, minute=self.minute, second=0, microsecond=0)
        for ahead in range(9):  # a week and a day: today's time may be over
            then = day + timedelta(days=ahead)
            if zone is None and not self.utc:
                then = then.replace(tzinfo=None).astimezone()  # the machine's zone: an offset of that day
            moment = int(then.timestamp()) * 1_000_000
            if moment > now and (self.day is None or then.weekday() == self.day):
                return moment
        raise AssertionError("a week has seven days")


def parse_schedule(text: str) -> Schedule:
    """Read one.  Raises InvalidArgument."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        try:
            interval = parse_duration(text)
        except ValueError:
            raise InvalidArgument(f"{text!r} is no schedule: write 4h, 02:00, 02:00Z, or Saturday at 11:00") from None
        if interval < LEAST_US:
            raise InvalidArgument(f"{text!r} is shorter than 1ms")
        return Schedule(interval)
    day, hour, minute = match[1], int(match[2]), int(match[3])
    if hour > 23 or minute > 59:
        raise InvalidArgument(f"{text!r}: there is no {match[2]}:{match[3]} in a day")
    if day is not None and day.lower() not in DAYS:
        raise InvalidArgument(f"{text!r}: {day!r} is no day of the week")
    return Schedule(0, None if day is None else DAYS.index(day.lower()), hour, minute, bool(match[4]))
