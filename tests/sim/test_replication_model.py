"""Nothing confirmed is lost, and no LSN used twice, whatever dies, is cut, is late or goes wrong by the clock.

Each planted fault is a rule of the design left out; the same schedules must find each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from choices import EFFORT, seeds
from penstock.replication import election as elections
from penstock.replication.election import Election, Outcome
from penstock.replication.insync import InSync
from penstock.replication.register import ClusterState
from penstock.replication.terms import Written
from sim.cluster_model import Broken, Rules, World

STEPS = 900
SHAPES = ((3, 2), (2, 1), (2, 2), (5, 3))
"""Members, and how many of them a confirm needs at least."""


def walk(rules: Rules, seeds: Iterable[int], shape: tuple[int, int]) -> tuple[str | None, Counter[str]]:
    """The first thing that did not hold in these schedules, and what was seen in them."""
    seen = Counter[str]()
    for seed in seeds:
        world = World(seed, rules, members=shape[0], min_in_sync=shape[1])
        try:
            world.run(STEPS)
        except Broken as broken:
            return f"seed {seed}: {broken}", seen
        seen += world.seen
        seen["confirmed"] += len(world.confirmed)
    return None, seen


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nothing_confirmed_is_lost_over_any_schedule(shape: tuple[int, int]) -> None:
    broken, seen = walk(Rules(), seeds(90 if EFFORT == 1 else 120 * EFFORT), shape)
    assert broken is None
    assert seen["terms"] > 150, "leaders change"
    assert min(seen["confirmed"], seen["cut"], seen["late swaps"]) > 20, seen


# a rule left out


class _DropsAtOnce(InSync):
    def gone(self, member: str) -> None:
        super().gone(member)
        self._counted.pop(member, None)
        self._heard.pop(member, None)
        self._adding.pop(member, None)
        self._commit()


class _AddsUncounted(InSync):
    def _commit(self) -> None:
        if self.enough:
            counted = [lsn for one, lsn in self._counted.items() if one not in self._adding]
            self.committed = max(self.committed, min([self._synced, *counted]))


class _TrustsAReading(InSync):
    def read(self, members: frozenset[str], now: int) -> None:
        super().read(members, now)
        for one in self._adding.keys() - members:
            self._forget(one, now)
        self._commit()


def _with(kind: type[InSync], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "InSync", kind)


class _JumpsByItself(Election):
    """Begins its term a little behind what it knows, as a single server does, and not where the register says."""

    def _won(self, state: ClusterState, now: int) -> None:
        start = self._last_lsn + 1000
        ours = replace(state, terms=(*state.terms[:-1], state.terms[-1]._replace(start=start)))
        super()._won(ours, now)


class _BelievesALostSwap(Election):
    """Takes a swap without an answer for one that happened."""

    def swapped(self, outcome: Outcome, now: int) -> None:
        super().swapped(self._version + 1 if outcome == "unknown" else outcome, now)


def _lowest(ours: list[Written], theirs: list[Written]) -> int:
    known = {one.term: one.last for one in ours}
    both = [(one.term, min(one.last, known[one.term])) for one in theirs if one.term in known]
    return min(both)[1] if both else 0


PLANTED: dict[str, tuple[Rules, type[InSync]]] = {
    "dropped before the swap is known": (Rules(), _DropsAtOnce),
    "added without counting first": (Rules(), _AddsUncounted),
    "a reading trusted after a lost answer": (Rules(), _TrustsAReading),
    "a jump instead of the ceiling": (Rules(election=_JumpsByItself), InSync),
    "a lost swap believed": (Rules(election=_BelievesALostSwap), InSync),
    "cut too low": (Rules(common=_lowest), InSync),
    "acked before it was synced": (Rules(acks_before_sync=True), InSync),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_each_rule_that_is_left_out_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, insync = PLANTED[fault]
    _with(insync, monkeypatch)
    found = (walk(rules, range(at, at + 100), shape)[0] for at in range(0, 2000, 100) for shape in SHAPES[:2])
    assert any(one is not None for one in found)
