"""When a scheduled pipeline runs next: `every 5m`, `02:00`, `Saturday at 11:00`, or five fields as cron has them.

    minute hour day-of-month month day-of-week      30 2 * * 1-5      */15 * * * *      0 6 1,15 * *

Times are those of the zone that is handed in; `Z` at the end makes them UTC.  Pure: the clock is handed in too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from cronsim import CronSim, CronSimError

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.records.schedules import Schedule, parse_schedule

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
