"""Holds of readers: what they keep, and for how long."""

from __future__ import annotations

import pytest

from penstock.errors import Unavailable
from penstock.server.people.access import Share, Shares, Terms, Who
from penstock.server.upkeep.retention import HOLD_US, Holds
from sim.serverkit import clock

ANN, BOB = Who("ann"), Who("bob")


def test_the_lowest_hold_counts_until_ten_minutes_after_it_was_asked_for_last() -> None:
    time = clock()
    holds = Holds(time, Shares().of("holds"))
    assert holds.floor() is None
    holds.put(ANN, "a", 50)
    holds.put(ANN, "b", 70)
    time.advance(HOLD_US - 1)
    holds.put(ANN, "b", 90)
    assert holds.floor() == 50
    time.advance(1)
    assert holds.floor() == 70
    time.advance(HOLD_US)
    assert holds.floor() is None
    holds.put(ANN, "b", 90)
    assert holds.floor() == 90
    holds.drop("ann", "b")
    holds.drop("ann", "never there")
    assert holds.floor() is None


def test_there_is_a_limit_for_each_user_and_for_all() -> None:
    time, share = clock(), Share(Terms("reads", "hold the log", 4, kept=1))
    holds = Holds(time, share)
    for name in ("a", "b", "a"):
        holds.put(ANN, name, 1)
    with pytest.raises(Unavailable, match="2 reads of user 'ann' hold the log, and 2 are allowed"):
        holds.put(ANN, "c", 1)
    holds.put(BOB, "a", 1)
    holds.drop("ann", "a")
    holds.put(ANN, "c", 1)
    time.advance(HOLD_US)
    assert holds.floor() is None
    assert share.taken == 0
