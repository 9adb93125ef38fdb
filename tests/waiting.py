"""Waiting for what happens elsewhere: in another process, or in another thread."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 0.01


def eventually(
    holds: Callable[[], bool], why: str | Callable[[], str] = "it did not happen", seconds: float = 30.0
) -> None:
    """Until it holds.  AssertionError with the reason when that takes too long."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, why if isinstance(why, str) else why()
        time.sleep(LOOK_S)
