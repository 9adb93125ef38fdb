"""How long nothing is confirmed where machines are slow: of some seeds, each over two minutes of simulated time.

`make soak-cluster` ended now and then since nothing was confirmed for a minute, with 25 busy processes for two cores.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.replication import election as elections
from penstock.replication.insync import InSync, Times
from sim.members_walks import unheard
from sim.slow_members import SECOND, Slow, Slowness

SEEDS = range(3)
DROPS = Slowness(gap=0.4, register=(0.001, 0.01))
DROPPING = Times(lease=8 * SECOND, ack_timeout=SECOND, stall=10 * SECOND)
"""An ack may take longer, for follower and leader each wait for the processor now and then; no lease ends."""


def silences(slow: Slowness, times: Times) -> list[tuple[float, Slow]]:
    with unheard():
        made = [Slow(seed, slow, times) for seed in SEEDS]
        return [(world.longest_silence(120), world) for world in made]


def test_who_is_dropped_again_and_again_does_not_keep_a_leader_from_confirming() -> None:
    for silence, world in silences(DROPS, DROPPING):
        assert world.seen["terms"] == 1
        assert silence < 8


class _HasTime(InSync):
    def acked(self, member: str, *arguments: Any, **more: Any) -> None:
        there, self._fewest = self._fewest, self._fewest if member in self._counted else frozenset("abc")
        super().acked(member, *arguments, **more)
        if len(self._fewest) == len("abc"):
            self._fewest = there


def test_if_it_had_to_keep_up_for_a_while_all_the_same_that_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "InSync", _HasTime)
    assert max(silence for silence, _ in silences(DROPS, DROPPING)) > 15


@pytest.mark.parametrize(
    "slow",
    [
        Slowness(gap=0.8, register=(0.1, 0.6), opening=(2, 10)),
        Slowness(gap=0.2, register=(0.8, 2.2), opening=(2, 10)),
    ],
    ids=["processes", "register"],
)
def test_somebody_leads_for_long_with_the_times_that_a_cluster_has(slow: Slowness) -> None:
    for silence, world in silences(slow, Times()):
        assert world.seen["terms"] <= 3
        assert silence < 45
