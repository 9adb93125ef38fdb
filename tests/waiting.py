"""Waiting for what happens elsewhere: in another process, or in another thread.

When the time of a wait is over on a machine that is slow by turns, it goes on for as long as those who are waited for
work, or get no CPU (`progress`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from progress import Progress, delayed, everybody

FIRST_LOOK_S, LOOK_S = 0.005, 0.05
"""Between looks: soon at first, then less often, for each of them costs whoever is asked."""


PUMPED_S, HAPPENS_S = 30.0, 60.0
"""How long pika is worked for what has to come, and how long anything else is waited for where nobody says."""


class Patience:
    """So many seconds, and then for as long as the processes below this one do something, or somebody is starved."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._progress: Progress | None = None  # from when the time is over

    def is_over(self) -> bool:
        """Whether it is time to give up."""
        if time.monotonic() < self._until:
            return False
        if self._progress is None:
            self._progress = Progress(min(self._seconds, LONGER_S), in_line=lambda: delayed(everybody()))
        return self._progress.is_over()


LONGER_S = 10.0
"""When the time of a wait is over, how long somebody may do nothing before it is given up."""


def wait_for(channel: Any, done: Callable[[], object], seconds: float | None = None) -> None:
    """Let pika work on a blocking channel until something is so.  AssertionError when that takes too long."""
    patience = Patience(min(PUMPED_S, seconds or PUMPED_S))
    while not done():
        assert not patience.is_over(), "it did not come about"
        channel.connection.process_data_events(0.02)


def eventually(
    holds: Callable[[], bool], why: str | Callable[[], str] = "it did not happen",
    seconds: float | None = None, look: float = LOOK_S,
) -> None:  # fmt: skip
    """Until it holds.  AssertionError with the reason when that takes too long.  look: seconds between looks."""
    patience, pause = Patience(HAPPENS_S if seconds is None else seconds), FIRST_LOOK_S
    while not holds():
        assert not patience.is_over(), why if isinstance(why, str) else why()
        time.sleep(pause)
        pause = min(1.2 * pause, look)
