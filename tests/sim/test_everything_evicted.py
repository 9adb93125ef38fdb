"""The power cuts, faults and starts of the simulated server again, with caches that have no room for any body."""

from __future__ import annotations

import pytest

from choices import EFFORT, spread
from sim import test_server_faults
from sim.serverkit import Life
from sim.test_server_faults import test_the_disk_fails_once_at_every_commit as test_faults
from sim.test_server_lives import live
from sim.test_server_starts import test_a_power_cut_at_each_step_of_a_start as test_starts
from sim.test_server_starts import (
    test_the_same_state_comes_back_with_and_without_checkpoints as test_checkpoints,
)

__all__ = ["test_checkpoints", "test_faults", "test_starts"]


@pytest.fixture(autouse=True)
def _no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each life begins with a budget of nothing; in a usual run every fourth commit does not come about here."""
    monkeypatch.setattr(test_server_faults, "EACH", 4 if EFFORT == 1 else 1)
    begin = Life.__init__

    def evicting(self: Life, *args: object, **how: object) -> None:
        how["budget"] = 0
        begin(self, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Life, "__init__", evicting)


@pytest.mark.parametrize("seed", spread(range(100, 108), 2))
def test_lives(seed: int, effort: int) -> None:
    for extra in range(effort):
        live(seed + 1000 * extra)


def test_bodies_come_from_the_log() -> None:
    """What these tests rely on: with this budget a durable body is in no cache."""
    from penstock.log.simdisk import SimDisk
    from sim.serverkit import clock

    life = Life(SimDisk(), clock())
    life.declare("q")
    life.client().publish("q", *(b"%d" % n for n in range(50)))
    life.run()
    reads = []
    read = life.log.read
    life.log.read = lambda *args, **how: reads.append(1) or read(*args, **how)  # type: ignore[method-assign, func-returns-value]
    client = life.client()
    client.consume("q")
    life.run()
    client.got.pop(0)
    assert client.bodies() == [b"%d" % n for n in range(50)]
    assert reads
