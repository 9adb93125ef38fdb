"""When something scheduled runs next, pure: the clock and the zone are handed in; `Z` at the end makes times UTC.

pipelines   every 5m    02:00    Saturday at 11:00    or five fields as cron has them
actions     4h          02:00    Saturday at 11:00

minute hour day-of-month month day-of-week      30 2 * * 1-5      */15 * * * *      0 6 1,15 * *
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from cronsim import CronSim, CronSimError

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


WRITE = "4h, 02:00, 02:00Z, or Saturday at 11:00"
WRITE_CRON = "every 5m, 02:00, Saturday at 11:00, or the five fields of cron"


def parse_schedule(text: str, whole: str | None = None, write: str = WRITE) -> Schedule:
    """Read one.  Raises InvalidArgument, which says of the whole text what else to write."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        try:
            interval = parse_duration(text)
        except ValueError:
            raise InvalidArgument(f"{(text if whole is None else whole)!r} is no schedule: write {write}") from None
        if interval < LEAST_US:
            raise InvalidArgument(f"{text!r} is shorter than 1ms")
        return Schedule(interval)
    day, hour, minute = match[1], int(match[2]), int(match[3])
    if hour > 23 or minute > 59:
        raise InvalidArgument(f"{text!r}: there is no {match[2]}:{match[3]} in a day")
    if day is not None and day.lower() not in DAYS:
        raise InvalidArgument(f"{text!r}: {day!r} is no day of the week")
    return Schedule(0, None if day is None else DAYS.index(day.lower()), hour, minute, bool(match[4]))


FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
"""Of cron, in order, with the values they may have; 0 and 7 are Sunday."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a time on the wall, of whatever zone
_SHIFT = timedelta(hours=3)
"""More than any zone moves its clocks."""


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields of cron, as the parser takes them."""

    fields: str
    utc: bool = False

    def after(self, now: int, zone: tzinfo | None) -> int:
        """The next time after `now`, both in microseconds since the epoch.

        A time that a clock skips in spring is that much later; one that comes twice in autumn is the first.
        """
        zone = UTC if self.utc else zone
        wall = datetime.fromtimestamp(now / 1e6, zone).replace(tzinfo=None)
        for then in _times(self.fields, wall - _SHIFT):
            moment = then.astimezone() if zone is None else then.replace(tzinfo=zone)
            at = int(moment.timestamp()) * 1_000_000
            if at > now:
                return at
        raise InvalidArgument("this schedule never comes")


def parse_cron(text: str) -> Cron | Schedule:
    """Read a schedule.  Raises InvalidArgument with what to write."""
    words = text.split()
    if words and words[0].lower() == "every":
        return parse_schedule(" ".join(words[1:]), text, WRITE_CRON)
    utc = bool(words) and words[-1] == "Z"
    fields = words[:-1] if utc else words
    if len(fields) != len(FIELDS) or words[1:2] == ["at"]:
        return parse_schedule(text, text, WRITE_CRON)
    for place, field in enumerate(fields):
        for part in field.split(","):
            _judge(part, place, text)
    made = Cron(" ".join(map(_short, fields)), utc)
    made.after(0, UTC)  # the 31st of February is told now
    return made


def _times(fields: str, start: datetime) -> Iterator[datetime]:
    """All times on the wall from `start`; none where there is no such day in any year."""
    try:
        yield from CronSim(fields, start)
    except CronSimError:
        return


def _judge(part: str, place: int, text: str) -> None:
    """Raise InvalidArgument for what is no value, or no range of values, of a field."""
    name, low, high = FIELDS[place]
    for value in re.findall(r"[^-*/]+", part.partition("/")[0]):
        if not _fits(value, place):
            raise InvalidArgument(f"{text!r}: {value!r} is no {name} from {low} to {high}")
    if not _fits(part, place):
        raise InvalidArgument(f"{text!r}: {part!r} is no range of {name}s")


def _fits(part: str, place: int) -> bool:
    fields = ["*"] * len(FIELDS)
    fields[place] = _short(part)
    try:
        CronSim(" ".join(fields), _EPOCH)
    except CronSimError:
        return False
    return True


def _short(field: str) -> str:
    """A field as the parser knows it: names by three letters, and steps over a range of one value left out."""
    return re.sub(r"\b(\w+)-\1/\d+", r"\1", re.sub(r"[A-Za-z]{4,}", lambda found: found[0][:3], field))
