"""What would be served first is asked for first, granted first, and given out first: also where an owner answers late.

Asks and answers are under way for as long as a test says.
"""

from __future__ import annotations

import pytest

from penstock.core.links.parcels import read_ask
from penstock.core.queue import owning
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.expr import compile_filter
from penstock.records.chunks import LSN_LIMIT
from penstock.records.kinds import HEAD
from sim.sites_house import SiteWorld
from sim.sites_steps import Steps

RANKED: dict[str, object] = {"priority_expression": "/k"}


def bodies(site: SiteWorld, consumer: Consumer) -> list[bytes]:
    """What somebody was given, in its order."""
    return [batch.bodies[row] for batch, row in (site.rows[lsn] for lsn in site.inbox[consumer])]


def of(*ranks: int, key: str = "k") -> list[bytes]:
    return [b'{"%s": %d}' % (key.encode(), k) for k in ranks]


def ranked(names: str = "ab", *ranks: int) -> Steps:
    """Sites with a queue of priorities, and messages with these at the first one, of which all have heard."""
    steps = Steps(names, **RANKED)
    if ranks:
        steps.a.publish("q", *of(*ranks))
    steps.level()
    return steps


def worked(steps: Steps, site: SiteWorld, consumer: Consumer, rounds: int) -> list[bytes]:
    """What somebody is given who acknowledges all that he has, and asks again, so often."""
    for _ in range(rounds):
        steps.ack(site, consumer)
        steps.level()
        steps.grant(site)
        steps.level()
    return bodies(site, consumer)


@pytest.mark.parametrize("asked", [1, 2, 3, 4])
def test_an_owner_that_answers_late_gives_what_was_asked_for_and_nothing_besides(asked: int) -> None:
    steps = ranked("ab", 0, 1, 2, 3)
    a, b = steps.a, steps.b
    there = steps.work(b, 1)
    late = [ask for _ in range(asked) for ask in steps.ask(b)]
    assert len(late) == asked, "it was asked for again and again"
    given = 0
    for _, ask in late:
        given += a.core.answer(a.now, "b", ask)
        a.turn()
    steps.level()
    assert (given, bodies(b, there)) == (1, of(3))
    assert worked(steps, b, there, 1) == of(3, 2)
    here = steps.work(a, 2)
    assert bodies(a, here) == of(1, 0)


def test_an_answer_that_is_late_itself_is_not_given_twice() -> None:
    """The owner has answered, its grant is under way, and the ask comes once more."""
    steps = ranked("ab", 0, 1, 2, 3)
    b = steps.b
    steps.work(b, 2)
    assert [steps.grant(b) for _ in range(4)] == [2, 0, 0, 0]
    steps.level()
    assert steps.told() == {"a": (2, 0, 2), "b": (0, 2, 2)}


MANY = [n for low in range(150) for n in (low, 1000 + low)]
"""Ranks of which no two neighbours are of the better half: what is named is many pieces."""


@pytest.mark.parametrize(("ranks", "second"), [([0, 1, 2, 3], 2), (MANY, 1148)])
def test_of_what_would_do_as_well_the_first_in_rank_is_granted(ranks: list[int], second: int) -> None:
    """What was asked for is leased at its owner."""
    steps = ranked("ab", *ranks)
    a, b = steps.a, steps.b
    steps.work(a, 1)
    there = steps.work(b, 1)
    assert [steps.grant(b) for _ in range(2)] == [0, 1]
    steps.level()
    assert bodies(b, there) == of(second)


def test_what_one_grant_has_in_several_records_is_given_out_by_rank() -> None:
    """One was transferred before and the other was not, so they are two claims."""
    steps = ranked()
    a, b = steps.a, steps.b
    a.publish("q", *of(5))
    steps.level()
    for site in (b, a):  # over there, and back
        worker = steps.work(site, 1)
        assert steps.grant(site) == 1
        steps.level()
        site.core.unsubscribe(site.now, worker, requeue=True)
        site.turn()
        site.sync()
    a.publish("q", *of(9))
    steps.level()
    there = steps.work(b, 2)
    assert steps.grant(b) == 2
    steps.level()
    assert bodies(b, there) == of(9, 5)


def test_claims_that_came_before_their_messages_are_given_out_by_rank() -> None:
    """The grant comes over one link, and the messages over another, later."""
    steps = Steps("abc", **RANKED)
    a, c = steps.a, steps.sites["c"]
    one, two = a.publish("q", *of(1, 2)).positions
    there = steps.work(c, 2)
    for lsn, serial in ((one, 1), (two, 2)):
        claim = a.queue.claims(a.core.peers).of(lsn)._replace(owner="c", serial=serial, why="transfer")
        c.core.each_owned_at(c.now, c.queue, "b", [([(a.origin, lsn, lsn + 1)], claim)])
    c.turn()
    a.sync()
    steps.send("ac")
    assert bodies(c, there) == of(2, 1)


def test_an_owner_that_does_not_answer_keeps_nobody_from_asking_another() -> None:
    """Though all that would be served first is that one's."""
    steps = Steps("abc", **RANKED)
    a, b, c = steps.a, steps.b, steps.sites["c"]
    c.publish("q", *of(7, 8, 9))
    a.publish("q", *of(1, 2, 3))
    steps.level()
    steps.work(b, 2)
    first, second = steps.ask(b), steps.ask(b)
    asked = [(owner, sum(stop - first for _, first, stop in read_ask(ask).spans)) for owner, ask in (*first, *second)]
    assert asked == [("c", 2), ("c", 2)], "as long as it may still answer"
    steps.cut |= {("b", "c"), ("c", "b")}
    owners = [owner for _ in range(4) for owner, _ in steps.ask(b)]
    assert "a" in owners


def test_consumers_with_filters_are_asked_for_by_rank() -> None:
    steps = ranked("ab", 0, 1, 2, 3)
    b = steps.b
    there = b.subscribe(b.queue, max_backlog=2, filter=compile_filter("/k < 3"))
    assert steps.ask(b) == [], "the filter looks"
    assert steps.grant(b) == 2
    steps.level()
    assert bodies(b, there) == of(2, 1)


def test_an_operator_has_taken_first_what_would_be_served_first() -> None:
    steps = ranked("ab", 0, 1, 2, 3)
    b = steps.b
    there = steps.work(b, 2)
    steps.act_for("a", b)
    assert bodies(b, there) == of(3, 2)


def test_what_came_back_to_the_front_is_asked_for_first() -> None:
    """Without priorities, too, messages have places that are not those of their LSNs."""
    steps = Steps("ab")
    a, b = steps.a, steps.b
    lsns = a.publish("q", *of(0, 1, 2, 3)).positions
    steps.level()
    for run in b.queue.foreign.extract(range(lsns[2], lsns[2] + 1)):  # type: ignore[union-attr]
        run.place = HEAD + lsns[2]
        b.queue.foreign.returned.push(run)  # type: ignore[union-attr]
    steps.work(b, 1)
    [(_, ask)] = steps.ask(b)
    assert read_ask(ask).spans == ((a.origin, lsns[2], lsns[2] + 1),)


@pytest.mark.parametrize("at_once", [2, 3, 1000])
def test_a_deep_queue_is_sorted_as_far_as_somebody_looks(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owning, "SORTED_AT_ONCE", at_once)
    ranks = [3, 1, 3, 0, 2, 2, 3, 1, 0]
    steps = ranked("ab", *ranks)
    spans = steps.b.queue.in_turn(LSN_LIMIT, lambda owner: owner == "a")
    found = [steps.b.rows[lsn] for first, stop, _ in spans for lsn in range(first, stop)]
    assert [batch.bodies[row] for batch, row in found] == of(*sorted(ranks, reverse=True))
    assert list(steps.b.queue.in_turn(LSN_LIMIT, lambda owner: owner == "c")) == []
