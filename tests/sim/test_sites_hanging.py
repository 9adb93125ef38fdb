"""Sites whose workers let leases end: each message is worked as often as that allows, and by others first."""

from __future__ import annotations

from collections import Counter

import pytest

from choices import EFFORT, tried
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.roster import Roster
from sim.sites_hanging import Hanging

SCHEDULES = 40


def hang(seed: int) -> Counter[str]:
    """One schedule."""
    fabric = Hanging(seed, "ab" if seed % 4 else "abc", kills=seed % 3 == 0, deletes=seed % 5 == 0)
    return fabric.run_named(str(seed))


HAPPENS = ("granted", "killed", "deleted", "ended", "silent was given", "others first")
"""What has to be among what a run tries."""


def test_what_a_worker_let_end_comes_again_to_others_first() -> None:
    tried(hang, 30 if EFFORT == 1 else SCHEDULES * EFFORT, HAPPENS)


def test_a_site_that_serves_the_silent_as_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stays(roster: Roster, consumer: Consumer, *, silent: bool) -> None:
        """Nobody is ever silent."""

    monkeypatch.setattr(Roster, "rank", stays)
    with pytest.raises(AssertionError, match="let leases end"):
        list(map(hang, range(SCHEDULES // 2)))
