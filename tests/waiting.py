"""Waiting for what happens elsewhere: in another process, or in another thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

FIRST_LOOK_S, LOOK_S = 0.005, 0.05
"""Between looks: soon at first, then less often, for each of them costs whoever is asked."""


PUMPED_S = 30.0
"""How long pika is worked for what has to come."""


def wait_for(channel: Any, done: Callable[[], object], seconds: float | None = None) -> None:
    """Let pika work on a blocking channel until something is so.  AssertionError when that takes too long."""
    until = time.monotonic() + min(PUMPED_S, seconds or PUMPED_S)
    while not done():
        assert time.monotonic() < until, "it did not come about"
        channel.connection.process_data_events(0.02)


def eventually(
    holds: Callable[[], bool], why: str | Callable[[], str] = "it did not happen", seconds: float = 60.0
) -> None:
    """Until it holds.  AssertionError with the reason when that takes too long."""
    until, pause = time.monotonic() + seconds, FIRST_LOOK_S
    while not holds():
        assert time.monotonic() < until, why if isinstance(why, str) else why()
        time.sleep(pause)
        pause = min(1.2 * pause, LOOK_S)
