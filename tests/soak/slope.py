"""Whether a series of measurements rises: Theil-Sen slopes within each life of a server, and limits that are stated.

The slope is the median of the slopes of all pairs of points, both from one life and both after its warm-up, so neither
a restart nor a third of wild points moves it.  A series fails when its slope, kept up over the measured time, makes
more than the limit: an amount an hour, but never less than what an honest run of that length shows as noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIB = 2**20
FEWEST = 12
"""Points of a life below which it has nothing to say."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How much a series may rise: `an_hour`, or `noise` over a measured time too short to tell."""

    unit: str
    an_hour: float
    noise: float
    scale: float = 1.0  # one unit of the table, in units of the points

    def over(self, seconds: float) -> float:
        """The most that it may rise in so many seconds."""
        return max(self.noise, self.an_hour * seconds / 3600)


LIMITS: Mapping[str, Limit] = {
    "memory": Limit("MiB", 32, 32, MIB),
    "descriptors": Limit("", 10, 12),
    "disk": Limit("MiB", 256, 256, MIB),
    "p99": Limit("ms", 10, 150),
}
"""Resident bytes and descriptors of all server processes, bytes of the data folder, p99 of a confirm.

Noise is what honest runs have shown: the p99 of a minute beside the type checkers rose by 106 ms once.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one series, in the unit of its limit."""

    name: str
    unit: str
    median: float
    an_hour: float  # the slope
    risen: float  # the slope kept up over `seconds`
    limit: float
    seconds: float  # of the longest life after its warm-up
    points: int

    @property
    def good(self) -> bool:
        """Whether it rose no more than it may, and there was enough to tell."""
        return self.points >= FEWEST and self.risen <= self.limit


def theil_sen(lives: Sequence[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]) -> float:
    """The median slope over all pairs within each of the lives, given as (seconds, values); 0 without pairs.

    Pairs closer than a quarter of their life say more about noise than about slope, and are left out.
    """
    slopes = list[npt.NDArray[np.float64]]()
    for times, values in lives:
        if len(times) < FEWEST:
            continue
        a, b = np.triu_indices(len(times), 1)
        apart = times[b] - times[a]
        far = apart >= (times[-1] - times[0]) / 4
        slopes.append((values[b] - values[a])[far] / apart[far])
    return float(np.median(np.concatenate(slopes))) if slopes else 0.0


def judge(
    name: str, points: Sequence[tuple[int, float, float]], warm_up: float, limits: Mapping[str, Limit] = LIMITS
) -> Verdict:
    """Judge one series.  A point is (life, seconds since the life began, value)."""
    limit = limits[name]
    lives = list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]()
    for life in sorted({point[0] for point in points}):
        mine = [(at, value) for number, at, value in points if number == life and at >= warm_up]
        if len(mine) >= FEWEST:
            lives.append((np.array([at for at, _ in mine]), np.array([value / limit.scale for _, value in mine])))
    span = max((float(times[-1] - times[0]) for times, _ in lives), default=0.0)
    slope = theil_sen(lives)
    return Verdict(
        name,
        limit.unit,
        float(np.median(np.concatenate([values for _, values in lives]))) if lives else 0.0,
        slope * 3600,
        slope * span,
        limit.over(span),
        span,
        sum(len(times) for times, _ in lives),
    )
