"""Holds of readers: what they keep, and for how long."""

from __future__ import annotations

import pytest

from penstock.errors import Unavailable
from penstock.server.people.access import THINGS, Share, Shares, Terms, Who
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


@pytest.mark.parametrize("name", [one for one, terms in THINGS.items() if terms.whole >= 64])
def test_two_users_who_take_all_they_can_leave_some_to_each_other_one(name: str) -> None:
    """Of a whole of which each may have half, or three quarters, they had all, and nobody else anything."""
    share = Share(THINGS[name])
    step = max(1, share.whole // 512)
    greedy = [Who(f"greedy-{n}") for n in range(2)]
    for who in greedy:
        while share.refusal(who, step) is None:
            share.take(who, step)
    few = share.whole // 16
    assert share.of("greedy-0") > share.of_user - step, "one alone has what it had"
    assert share.of("greedy-1") >= few - step + 1
    newcomer = Who("newcomer")
    for _ in range(2):
        share.take(newcomer, step)
    share.give("newcomer", 2 * step)
    for who in greedy:
        share.give(who.user, share.of(who.user))
    share.take(greedy[0], share.of_user)
    assert share.taken == share.of_user


def test_who_has_much_is_told_that_the_last_are_for_others() -> None:
    share = Share(Terms("Flight streams", "stand still", 256))
    for user in ("ann", "bob"):
        share.put(user, 112)
    told = "224 Flight streams stand still, and 224 are allowed to users who have more than 16: end some, or try again"
    with pytest.raises(Unavailable, match=told):
        share.take(ANN)
    for _ in range(16):
        share.take(Who("eve"))
    with pytest.raises(Unavailable, match="240 Flight streams stand still, and 224 are allowed to users"):
        share.take(Who("eve"))


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
