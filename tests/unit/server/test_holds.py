"""Holds of readers: what they keep, and for how long."""

from __future__ import annotations

import pytest

from penstock.errors import Unavailable
from penstock.server.upkeep import holds as module
from penstock.server.upkeep.holds import HOLD_US, Holds
from sim.serverkit import clock


def test_the_lowest_hold_counts_until_ten_minutes_after_it_was_asked_for_last() -> None:
    time = clock()
    holds = Holds(time)
    assert holds.floor() is None
    holds.put("a", 50)
    holds.put("b", 70)
    time.advance(HOLD_US - 1)
    holds.put("b", 90)
    assert holds.floor() == 50
    time.advance(1)
    assert holds.floor() == 70
    time.advance(HOLD_US)
    assert holds.floor() is None
    holds.put("b", 90)
    assert holds.floor() == 90
    holds.drop("b")
    holds.drop("never there")
    assert holds.floor() is None


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLDS_MAX", 2)
    time = clock()
    holds = Holds(time)
    holds.put("a", 1)
    holds.put("b", 1)
    holds.put("a", 2)
    with pytest.raises(Unavailable, match="2 reads hold"):
        holds.put("c", 1)
    time.advance(HOLD_US)
    holds.put("c", 1)
