"""The rate of a replay: messages or bytes a second, or a speed beside that at which the messages came."""

from __future__ import annotations

import re
from math import ceil
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.units import SIZE_UNITS

if TYPE_CHECKING:
    from penstock.server.replaying.page import Page


SLACK_US = 100_000

_FORM = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*\Z")


@dataclass(frozen=True, slots=True)
class Rate:
    """One of the three is set; `max_gap` belongs to `speed`."""

    messages: float = 0.0  # a second
    size: float = 0.0  # bytes a second
    speed: float = 0.0  # 2.0: twice as fast as they came
    max_gap: int | None = None  # microseconds that two messages are apart at most


def parse_rate(text: str, max_gap: int | None = None) -> Rate:
    """`1000` or `1000/s` messages, `500KB`, `2X`.  InvalidArgument."""
    match = _FORM.match(text.removesuffix("/s"))
    if match is None or not float(match[1]):
        raise InvalidArgument(f"rate {text[:40]!r} is none: write 1000 (messages a second), 500KB (a second) or 2X")
    number, unit = float(match[1]), match[2]
    if unit.upper() == "X":
        return Rate(speed=number, max_gap=max_gap)
    if max_gap is not None:
        raise InvalidArgument(f"rate_max_gap is for a rate like 2X, not for {text[:40]!r}")
    if not unit:
        return Rate(messages=number)
    size = {known.upper(): value for known, value in SIZE_UNITS.items()}.get(unit.upper())
    if size is None:
        raise InvalidArgument(
            f"rate {text[:40]!r} has the unknown unit {unit!r}: there is {' '.join(SIZE_UNITS)} and X"
        )
    return Rate(size=number * size)


class Pace:
    """One subscription's rate at work.  Times in microseconds on the monotonic clock."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._due: float | None = None  # when the next message may go; None: at once
        self._before: int | None = None  # wall time of the last message, for `speed`
        self._row: int | None = None  # LSN of the message that `_due` was worked out for

    def admit(self, page: Page, now: int) -> int:
        """How many rows of the page may go now; they count as gone."""
        if self.rate.speed:
            return self._as_they_came(page, now)
        due = now if self._due is None else max(self._due, now - SLACK_US)
        count = 0
        while count < len(page) and due <= now:
            due += 1e6 / self.rate.messages if self.rate.messages else 1e6 * len(page.bodies[count]) / self.rate.size
            count += 1
        self._due = due
        return count

    def _as_they_came(self, page: Page, now: int) -> int:
        count = 0
        while count < len(page):
            if page.lsns[count] != self._row:
                time = page.time_of(count)
                if self._before is None or self._due is None:
                    self._due = now
                else:
                    gap = (time - self._before) / self.rate.speed
                    gap = gap if self.rate.max_gap is None else min(gap, self.rate.max_gap)
                    self._due = max(self._due + gap, now - SLACK_US)
                self._before, self._row = time, page.lsns[count]
            if self._due is not None and self._due > now:
                break
            count += 1
        return count

    def due(self) -> int:
        """When the next message may go, as far as is known."""
        return ceil(self._due or 0)
