"""What is told of a message before it comes holds for the queue of its name, whichever is there when it does.

One link has brought what became of it, another has still to bring it; the queue ends meanwhile, and is declared.
"""

from __future__ import annotations

import pytest

from penstock.core.links.ownership import FORETOLD_MOST, NOBODY, Claim, Foretold, Name, done_by, is_done, is_twin
from penstock.core.state.durable import canonical
from penstock.records.causes import TWIN
from sim.sites_house import SiteWorld
from sim.sites_steps import Steps
from sim.test_sites_delete import delete, level, owners, renew


def given(steps: Steps) -> None:
    """The third site has published a message and given it to the second; the first one has heard of neither."""
    b, c = steps.b, steps.sites["c"]
    c.publish("q", b"0")
    c.sync()
    steps.send("cb")
    steps.work(b)
    assert steps.grant(b) == 1
    c.sync()
    steps.send("cb")


def kill(steps: Steps, site: SiteWorld) -> None:
    site.sync()
    site.kill()
    for pair in steps.pairs():
        if site.name in pair:
            steps.heal(pair)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("when", ["before it ends", "while there is none", "before and while there is none"])
def test_a_settle_that_came_before_its_message_holds_for_the_next_queue(when: str, killed: bool) -> None:
    steps = Steps("abc")
    a, b = steps.a, steps.b
    given(steps)
    [worker] = b.queue.consumers
    steps.ack(b, worker)
    b.sync()
    if when.startswith("before"):
        steps.send("ba")
        assert a.core.deferred_acks(a.queue) == 1
    delete(a)
    if "while" in when:
        steps.heal(("b", "a"))
        steps.send("ba")
    if killed:
        kill(steps, a)
    assert [is_done(one[3]) for one in a.core.foretold] == [True]
    a.declare("q")
    assert not a.core.foretold
    assert a.core.deferred_acks(a.queue) == 1
    if killed:
        kill(steps, a)
    renew(steps, "ab", "ac")
    level(steps)
    assert (a.queue.ready, a.queue.foreign_count, a.core.deferred_acks(a.queue)) == (0, 0, 0)
    assert canonical(a.core.durable_state()) == canonical(a.folded(3))


@pytest.mark.parametrize("when", ["before it ends", "while there is none"])
def test_a_claim_that_came_before_its_message_holds_for_the_next_queue(when: str) -> None:
    steps = Steps("abc")
    a = steps.a
    given(steps)
    steps.b.sync()
    if when == "before it ends":
        steps.send("ba")
        assert a.core.early
    delete(a)
    steps.send("ba")
    assert a.core.foretold
    assert not a.core.early
    a.declare("q")
    renew(steps, "ab", "ac")
    steps.send("ca")
    assert owners(steps, "a") == {"a": ["b"]}
    assert not a.core.early
    assert canonical(a.core.durable_state()) == canonical(a.folded(3))


def test_what_comes_while_there_is_no_queue_is_remembered_no_more() -> None:
    """A queue that nobody shares has the message, or none."""
    steps = Steps("abc")
    a = steps.a
    given(steps)
    steps.b.sync()
    delete(a)
    a.declare("copied", kind="local", underlying_topic="q")
    steps.send("ba")
    assert a.core.foretold
    steps.send("ca")
    assert not a.core.foretold
    assert canonical(a.core.durable_state()) == canonical(a.folded(3))


@pytest.mark.parametrize("killed", [False, True])
def test_what_went_by_through_a_site_between_is_not_waited_for(killed: bool) -> None:
    """No link tells how far the other end has told: what follows says so, also where nothing here takes that."""
    steps = Steps("abc", row=True)
    a, b, c = steps.a, steps.b, steps.sites["c"]
    delete(a)
    c.publish("q", b"0")
    level(steps)
    if killed:
        kill(steps, a)
    a.declare("q")
    renew(steps, "ab")
    steps.work(b)
    assert steps.grant(b) == 1
    level(steps)
    assert not a.core.early
    assert canonical(a.core.durable_state()) == canonical(a.folded(3))


def test_that_they_are_done_holds_against_every_claim() -> None:
    name, foretold = Name("/", "q", 7), Foretold()
    foretold.add(name, [(1, 5)], Claim("b", 3, "transfer"))
    foretold.add(name, [(2, 4)], done_by("c"))
    foretold.add(name, [(1, 9)], Claim("d", 8, "proxied"))
    assert [(*one[1:3], is_done(one[3])) for one in foretold] == [(1, 2, False), (2, 4, True), (4, 9, False)]
    assert foretold.new(name, [(2, 3), (8, 10)], Claim("e", 9, "transfer")) == [(8, 10)]
    foretold.came(8, 1, 9)
    foretold.came(7, 1, 8)
    assert foretold.take("v", "q") == []
    assert foretold.take("/", "q") == [(7, 8, 9, Claim("d", 8, "proxied"))]
    assert not foretold


def test_of_more_than_are_remembered_all_is_forgotten() -> None:
    foretold = Foretold((Name("/", "q", 7), 10 * at, 10 * at + 5, Claim("b", 1)) for at in range(FORETOLD_MOST))
    assert len(list(foretold.copy())) == FORETOLD_MOST
    foretold.add(Name("/", "r", 7), [(1, 2)], Claim("b", 1))
    assert [one[0].queue for one in foretold] == ["r"]


@pytest.mark.parametrize("anew", [False, True])
def test_a_barrier_that_is_purged_at_one_site_is_let_go_at_one_that_hears_of_it_before_it_comes(anew: bool) -> None:
    """A purge of it holds where it is given, and an ack; each site lets its own go."""
    steps = Steps("abc", barrier_expression="/k = 0")
    a, b, c = steps.a, steps.b, steps.sites["c"]
    c.publish("q", b'{"k": 0}', b'{"k": 1}')
    c.sync()
    steps.send("cb")
    b.core.purge_queue(b.now, b.queue)
    b.turn()
    assert b.queue.foreign_count == 1, "the barrier went, what is another site's did not"
    b.sync()
    steps.send("ba")
    if anew:
        delete(a)
        a.declare("q", barrier_expression="/k = 0")
        renew(steps, "ab", "ac")
    assert a.core.deferred_acks(a.queue) == 1
    steps.send("ca")
    worker = steps.work(a)
    assert a.contents(a.queue) == [b'{"k": 1}']
    assert [a.rows[lsn][0].bodies[a.rows[lsn][1]] for lsn in a.inbox[worker]] == [b'{"k": 0}']
    assert canonical(a.core.durable_state()) == canonical(a.folded(3))


@pytest.mark.parametrize("killed", [False, True])
def test_that_one_of_two_went_for_the_other_is_no_ack_of_it_where_that_is_heard_before_it_comes(killed: bool) -> None:
    """A publisher has sent it to two sites; who let its own go told a third one first, which tells it on."""
    steps = Steps("abc")
    a, c = steps.a, steps.sites["c"]
    steps.numbered(a, [b"0"])
    steps.numbered(c, [b"0"])
    for way in ("ac", "cb", "ba"):
        steps.sites[way[0]].sync()
        steps.send(way)
    assert a.core.deferred_acks(a.queue) == 1
    if killed:
        kill(steps, a)
    level(steps)
    assert (a.queue.ready, a.core.deferred_acks(a.queue)) == (1, 0)
    assert [steps.sites[name].queue.foreign_count for name in "bc"] == [1, 1]
    assert canonical(a.core.durable_state()) == canonical(a.folded(3))


@pytest.mark.parametrize("twins", [False, True])
def test_why_it_is_done_is_known_to_the_next_queue(twins: bool) -> None:
    steps = Steps("abc")
    a = steps.a
    a.core.settled_at(a.now, a.queue, "b", [(33, 50, 52)], twins=twins)
    delete(a)
    assert [is_twin(one[3]) for one in a.core.foretold] == [twins]
    a.declare("q")
    [entry] = a.core.durable_state().deferred[a.queue.id]
    assert (entry.verb == TWIN, entry.by, entry.pairs()) == (twins, "b", [50, 52])


def test_what_nobody_has_waits_for_who_has_a_queue_and_not_for_its_message() -> None:
    name, foretold = Name("/", "q", 7), Foretold()
    foretold.add(name, [(1, 5)], Claim(NOBODY))
    foretold.add(name, [(8, 9)], Claim("b", 1, "transfer"))
    foretold.came(7, 1, 9)
    assert foretold.take("/", "q") == []
    assert foretold.unplaced() == [(name, 1, 5, Claim(NOBODY))]
    foretold.placed(name, [(1, 3)])
    foretold.placed(Name("/", "r", 7), [(1, 9)])
    assert [one[1:3] for one in Foretold(foretold)] == [(3, 5)]
    foretold.placed(name, [(3, 9)])
    assert not foretold
