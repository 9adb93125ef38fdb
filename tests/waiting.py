"""Waiting for what happens elsewhere: in another process, or in another thread."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_LOOK_S, LOOK_S = 0.005, 0.05
"""Between looks: soon at first, then less often, for each of them costs whoever is asked."""


def eventually(
    holds: Callable[[], bool], why: str | Callable[[], str] = "it did not happen", seconds: float = 30.0
) -> None:
    """Until it holds.  AssertionError with the reason when that takes too long."""
    until, pause = time.monotonic() + seconds, FIRST_LOOK_S
    while not holds():
        assert time.monotonic() < until, why if isinstance(why, str) else why()
        time.sleep(pause)
        pause = min(1.2 * pause, LOOK_S)
