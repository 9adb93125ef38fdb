"""When a scheduled pipeline runs next: `every 5m`, `02:00`, `Saturday at 11:00`, or five fields as cron has them.

    minute hour day-of-month month day-of-week      30 2 * * 1-5      */15 * * * *      0 6 1,15 * *

Times are those of the zone that is handed in; `Z` at the end makes them UTC.  Pure: the clock is handed in too.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.records.schedules import Schedule, parse_schedule

FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
"""Of cron, in order, with the values they may have; 0 and 7 are Sunday."""

NAMES = {
    "month": ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    "weekday": ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}

DAYS_AHEAD = 366 * 8
"""The 29th of February is at most eight years away."""

_PART = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?")


@dataclass(frozen=True, slots=True)
class Cron:
    """Sets of minutes, hours, days, months and weekdays (0 is Sunday)."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool  # both kinds of days are named, and one of them is enough, as cron has it
    utc: bool = False

    def after(self, now: int, zone: tzinfo | None) -> int:
        """The next time after `now`, both in microseconds since the epoch.

        A time that a clock skips in spring is that much later; one that comes twice in autumn is the first.
        """
        zone = UTC if self.utc else zone
        here = datetime.fromtimestamp(now / 1e6, zone)
        today = here.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        for ahead in range(DAYS_AHEAD):
            day = today + timedelta(days=ahead)
            if not self._on(day):
                continue
            for hour in self.hours:
                for minute in self.minutes:
                    then = day.replace(hour=hour, minute=minute)
                    moment = then.astimezone() if zone is None else then.replace(tzinfo=zone)
                    at = int(moment.timestamp()) * 1_000_000
                    if at > now:
                        return at
        raise InvalidArgument("this schedule never comes")

    def _on(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_day or by_week if self.either else by_day and by_week


def parse_cron(text: str) -> Cron | Schedule:
    """Read a schedule.  Raises InvalidArgument with what to write."""
    words = text.split()
    if words and words[0].lower() == "every":
        return parse_schedule(" ".join(words[1:]))
    utc = bool(words) and words[-1] == "Z"
    fields = words[:-1] if utc else words
    if len(fields) != len(FIELDS) or words[1:2] == ["at"]:
        try:
            return parse_schedule(text)
        except InvalidArgument:
            raise InvalidArgument(
                f"{text!r} is no schedule: write every 5m, 02:00, Saturday at 11:00, or the five fields of cron"
            ) from None
    minute, hour, day, month, weekday = (
        _values(field, *kind, text) for field, kind in zip(fields, FIELDS, strict=True)
    )
    either = not fields[2].startswith("*") and not fields[4].startswith("*")
    weekdays = frozenset(value % 7 for value in weekday)
    made = Cron(tuple(sorted(minute)), tuple(sorted(hour)), frozenset(day), frozenset(month), weekdays, either, utc)
    made.after(0, UTC)  # the 31st of February is told now
    return made


def _values(field: str, name: str, low: int, high: int, text: str) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise InvalidArgument(f"{text!r}: {part!r} is no {name}")
        star, first, last, step = match.groups()
        start, end = (low, high) if star else (_value(first, name, low, high, text), 0)
        if not star:
            end = _value(last, name, low, high, text) if last else high if step else start
        if end < start or (step is not None and int(step) < 1):
            raise InvalidArgument(f"{text!r}: {part!r} is no range of {name}s")
        found.update(range(start, end + 1, int(step or 1)))
    return found


def _value(word: str, name: str, low: int, high: int, text: str) -> int:
    names = NAMES.get(name, ())
    if word.lower()[:3] in names and not word.isdigit():
        return names.index(word.lower()[:3]) + low
    if not (word.isascii() and word.isdigit()) or not low <= int(word) <= high:
        raise InvalidArgument(f"{text!r}: {word!r} is no {name} from {low} to {high}")
    return int(word)
