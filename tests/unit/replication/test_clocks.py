"""A member whose clock is not that of its leader says so before it leads, and ends what expires in that time."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from penstock.log.replica import Replica
from penstock.log.simdisk import SimDisk
from penstock.replication.messages import Beat, Message, Welcome
from penstock.server.cluster.following import Following, Mine
from penstock.server.cluster.troubles import ADVICE, ENOUGH, SPACED_US, Apart, news

SECOND, HOUR = 1_000_000, 3_600_000_000


class Link:
    def send(self, message: Message) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_follower_knows_by_how_much_its_clock_is_ahead(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    following = Following(
        cast("Any", Link()), Replica(SimDisk(), 0), Mine("b", "c", True, ()), lambda _: True, lambda _: True
    )
    following.heard(Welcome(1, 1, 0, False))
    wall, mono = 1_800_000_000_000_000, 0
    monkeypatch.setattr(time, "time_ns", lambda: (wall + hours * HOUR) * 1000)
    monkeypatch.setattr(time, "monotonic_ns", lambda: mono * 1000)
    for _ in range(ENOUGH):
        assert following.clock.ahead is None
        mono += SPACED_US
        following.heard(Beat(1, 1, 0, 0, wall))
    assert following.clock.ahead == hours * HOUR


def test_who_was_stopped_does_not_take_what_it_missed_for_another_clock() -> None:
    """It hears all beats of that time at once when it wakes up, each of which is late."""
    clock, missed = Apart(), 10
    for second in range(30):
        for beat in range(second - missed, second + 1) if second == 20 else [second]:
            if second >= 20 or second <= 20 - missed:
                clock.hear(beat * SECOND, second * SECOND + 2000, second * SECOND)
        assert clock.ahead in (None, 2000)
    assert clock.ahead == 2000


def test_it_is_said_when_it_begins_and_when_it_is_over() -> None:
    said = list[str]()
    before = dict[str, object]()
    for ahead in (None, 0.2, 3600.1, 3600.2, 0.1, -3600.0, None, -3599.0, -0.5, 3600.0, -3600.0):
        known = dict[str, object]() if ahead is None else {"clock_ahead_seconds": ahead}
        if line := news(before, known):
            said.append(line.removesuffix(f"; {ADVICE}"))
        before = known
    assert said == [
        "this machine's clock is 3600 s ahead of the leader's: what expires then may be over once this member leads",
        "this machine's clock and the leader's are together again",
        "this machine's clock is 3600 s behind the leader's: times go on a tenth slower once this member leads",
        "this machine's clock is 3599 s behind the leader's: times go on a tenth slower once this member leads",
        "this machine's clock and the leader's are together again",
        "this machine's clock is 3600 s ahead of the leader's: what expires then may be over once this member leads",
        "this machine's clock is 3600 s behind the leader's: times go on a tenth slower once this member leads",
    ]
