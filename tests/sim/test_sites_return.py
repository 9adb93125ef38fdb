"""What a site is given and cannot take goes to one that can: once, and to an end, also over restarts."""

from __future__ import annotations

import pytest

from penstock.core.state.durable import canonical
from penstock.records.entries import Control
from penstock.records.kinds import Kind
from sim.sites_house import SiteWorld
from sim.sites_steps import Steps
from sim.test_sites_delete import delete, granted, level, owners, renew, worked


def returns(site: SiteWorld) -> list[bytes]:
    """What a site has said of what it could not take."""
    some = [one for one in site.entries if isinstance(one, Control) and one.kind is Kind.CLAIMED]
    return [one.header for one in some if b'"vhost"' in one.header]


def test_an_echo_after_a_restart_names_no_second_heir() -> None:
    """That it gave them back is on its disk, that it heard of the grant is not; and who had them has no queue now."""
    steps = granted("abc")
    a, b, c = steps.a, steps.b, steps.sites["c"]
    delete(b)
    b.sync()
    steps.send("ab")
    [said] = returns(b)
    assert b'"site":"a"' in said
    b.durable = 1 + max(at for at, one in enumerate(b.entries) if isinstance(one, Control) and one.header == said)
    assert b.durable < len(b.entries), "the record that it heard of it follows"
    b.kill()
    delete(a)
    steps.level()
    assert returns(b) == [said]
    assert owners(steps, "c") == {"c": ["c"]}
    assert worked(steps, c) == 3


@pytest.mark.parametrize("killed", [False, True])
def test_what_would_be_a_sites_from_the_first_is_who_publishes_its_while_it_has_no_such_queue(killed: bool) -> None:
    """Its `initial_owner` has deleted the queue, or not declared it yet."""
    steps = Steps("ab", kind="group-local", initial_owner="a", group_local_queue_domain="d")
    a, b = steps.a, steps.b
    delete(a)
    renew(steps, "ab")
    b.publish("q", b"0", b"1")
    level(steps)
    if killed:
        a.sync()
        a.kill()
    a.declare("q", **a.settings)
    a.sync()
    b.publish("q", b"2")
    steps.level()
    assert (a.queue.ready, b.queue.ready) == (1, 2)
    assert worked(steps, b) == 3, "of which one is asked for"
    assert len(returns(a)) == 1


def test_what_no_queue_has_goes_round_once() -> None:
    """Each of the three has deleted and declared its queue, since the grant was made."""
    steps = granted("abc")
    sites = [steps.a, steps.b, steps.sites["c"]]
    for site in sites:
        delete(site)
        site.declare("q")
        site.sync()
    for _ in range(12):
        steps.level()
    assert not any(steps.bring(pair, 1000) for pair in steps.pairs()), "there is nothing left to tell"
    assert sum(len(returns(site)) for site in sites) <= 6, "each says it to each of the others once at most"
    assert not any(site.core.early for site in sites)


def test_what_was_given_back_before_it_came_may_be_given_again() -> None:
    """The queue was declared anew before the message came, and has it."""
    steps = Steps("abc")
    a, b, c = steps.a, steps.b, steps.sites["c"]
    a.publish("q", b"0")
    a.sync()
    steps.send("ac")
    worker = steps.work(c)
    assert steps.grant(c) == 1
    a.sync()
    steps.send("ac")
    c.core.unsubscribe(c.now, worker, requeue=True)
    c.turn()
    [[lsn]] = c.queue.snapshot()[0]
    claim = c.queue.claims(c.core.peers).of(lsn)
    c.core.own(c.now, c.queue, [(lsn, lsn + 1)], claim.to("b", "transfer"))
    c.turn()
    c.sync()
    steps.send("cb")
    assert b.core.early
    delete(b)
    b.declare("q")
    b.sync()
    renew(steps, "ab", "cb")
    assert len(returns(b)) == 1
    level(steps)
    assert owners(steps, "a", "b", "c") == {"a": ["a"], "b": ["a"], "c": ["a"]}
    assert worked(steps, b) == 1
    assert owners(steps, "a", "b", "c") == {"a": ["b"], "b": ["b"], "c": ["b"]}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("without", [False, True])
def test_what_went_round_before_a_queue_had_it_goes_to_who_asks(killed: bool, without: bool) -> None:
    """The site that keeps it cannot have it, nor has a queue at all; the next queue of another one has it."""
    steps = Steps("abc", kind="group-local", initial_owner="a", group_local_queue_domain="d")
    a, b, c = steps.a, steps.b, steps.sites["c"]
    delete(a)
    renew(steps, "ab", "ac")
    c.publish("q", b"0", b"1")
    delete(c)
    c.sync()
    renew(steps, "ac", "bc")
    steps.send("ca")
    a.declare("q", **a.settings)
    c.declare("q", **c.settings)
    renew(steps, "ab", "ac")
    a.sync()
    steps.send("ab")
    delete(b)
    b.declare("q", **b.settings)
    renew(steps, "ab", "bc")
    for way in ("ba", "ac", "ca", "ab", "ba", "ac", "ca"):
        steps.sites[way[0]].sync()
        steps.send(way)
    if without:
        delete(a)
        renew(steps, "ab", "ac")
    if killed:
        a.sync()
        a.kill()
        renew(steps, "ab", "ac")
    level(steps)
    assert owners(steps, "b") == {"b": ["a"]}, "as everybody says"
    assert worked(steps, b) == 2
    said = returns(a)
    assert worked(steps, c) == 0
    level(steps)
    assert returns(a) == said, "it is given once"


@pytest.mark.parametrize("anew", [False, True])
def test_what_came_of_a_queue_that_went_is_not_for_a_site_without_one(anew: bool) -> None:
    """Its publisher's site deletes the queue, or has another by then; a third has the message."""
    steps = Steps("abc", kind="group-local", initial_owner="a", group_local_queue_domain="d")
    a, b, c = steps.a, steps.b, steps.sites["c"]
    delete(a)
    renew(steps, "ab", "ac")
    c.publish("q", b"0")
    delete(c)
    if anew:
        c.declare("q", **c.settings)
    renew(steps, "ac", "bc")
    level(steps)
    a.declare("q", **a.settings)
    steps.level()
    assert (a.queue.ready, b.queue.foreign_count) == (0, 0)
    assert worked(steps, b) == 1


def test_what_went_by_before_a_queue_was_declared_is_not_waited_for() -> None:
    """It came while the site had no such queue; what happens to it is told by a third one, too."""
    steps = Steps("abc")
    a, b, c = steps.a, steps.b, steps.sites["c"]
    delete(a)
    c.publish("q", b"0", b"1")
    level(steps)
    a.declare("q")
    renew(steps, "ab", "ac")
    worker = steps.work(b)
    assert steps.grant(b) == 2
    for way in ("cb", "ba"):
        steps.sites[way[0]].sync()
        steps.send(way)
    assert not a.core.early
    steps.ack(b, worker)
    b.sync()
    steps.send("ba")
    assert a.core.deferred_acks(a.queue) == 0


@pytest.mark.parametrize("killed", [False, True])
def test_a_queue_that_began_and_ended_before_anybody_was_told_was_one(killed: bool) -> None:
    """Its messages were first another site's, which has none; a third one has."""
    steps = Steps("abc", kind="group-local", initial_owner="a", group_local_queue_domain="d")
    a, b, c = steps.a, steps.b, steps.sites["c"]
    delete(b)
    renew(steps, "ab", "bc")
    delete(a)
    renew(steps, "ab", "ac")
    b.declare("q", **b.settings)
    b.publish("q", b"0", b"1")
    delete(b)
    b.sync()
    steps.send("ba")
    a.sync()
    if killed:
        b.kill()
        steps.heal(("b", "c"))
    level(steps)
    assert owners(steps, "c") == {"c": ["c"]}
    assert worked(steps, c) == 2


def test_what_was_worked_is_heard_before_whose_it_would_be() -> None:
    """A third site tells of the grant when its messages are done and the queue is gone: what goes back is gone, too."""
    steps = Steps("abc")
    a, b, c = steps.a, steps.b, steps.sites["c"]
    c.publish("q", b"0", b"1")
    level(steps)
    worker = steps.work(b)
    assert steps.grant(b) == 2
    for way in ("cb", "ca"):
        c.sync()
        steps.send(way)
    steps.ack(b, worker)
    delete(b)
    a.sync()
    steps.send("ab")
    assert len(returns(b)) == 1
    there = steps.work(a)
    b.sync()
    steps.send("ba")
    assert a.inbox[there] == []
    level(steps)
    assert (a.queue.foreign_count, c.queue.ready, c.queue.foreign_count) == (0, 0, 0)


@pytest.mark.parametrize("killed", [False, True])
def test_what_no_site_would_have_as_far_as_one_knows_goes_to_the_first_that_says_so(killed: bool) -> None:
    """Its first owner has no queue, its publisher's has gone, and the third was not heard of since a start."""
    steps = Steps("abc", kind="group-local", initial_owner="a", group_local_queue_domain="d")
    a, b = steps.a, steps.b
    delete(a)
    renew(steps, "ab", "ac")
    b.publish("q", b"0", b"1")
    delete(b)
    for site in (a, b):
        site.sync()
    a.kill()
    steps.heal(("b", "a"))
    steps.send("ba")
    assert [one[0][:2] for one in a.core.foretold.unplaced()] == [("/", "q")]
    if killed:
        a.sync()
        a.kill()
    steps.level()
    a.core.asks(a.now)
    a.turn()
    assert not a.core.foretold
    assert canonical(a.core.durable_state()) == canonical(a.folded(3))
    level(steps)
    assert owners(steps, "c") == {"c": ["c"]}
    assert worked(steps, steps.sites["c"]) == 2
