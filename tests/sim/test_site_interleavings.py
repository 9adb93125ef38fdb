"""The twelve interleavings of sites that were thought of before there were any links, each step by step.

L1 to L8 are of messages and their owners; M1 to M4 are what a failure of a site or a link means for a queue.  The
random schedules of `test_sites` go through all of these, too; here each stands by itself, with what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.core.state.lsns import flat
from penstock.records.entries import Publishes
from sim.sites_house import SiteWorld
from sim.sites_steps import Steps
from unit.core.world import DURABLE, header

NOTHING = (0, 0, 0)


@pytest.fixture
def steps() -> Iterator[Steps]:
    made = Steps()
    yield made
    for site in made.sites.values():
        site.queue.check()


def send_numbered(site: SiteWorld, sequence: int) -> int:
    batch = Publishes(site.core.topic("/", "", "q"), DURABLE, [b"0"])
    published = site.core.publish(site.now, batch, publisher="p", sequence=sequence)
    site.turn()
    site.sync()
    return published.first


@pytest.mark.parametrize("leased", [False, True], ids=["ready", "leased"])
def test_l1_a_publisher_sends_one_message_to_two_sites(steps: Steps, leased: bool) -> None:
    """The site of the lower origin works it; the other one yields, or finishes what it works on, which settles both."""
    a, b = steps.a, steps.b
    send_numbered(a, 1)
    send_numbered(b, 1)
    mine = steps.work(b) if leased else None
    steps.level()
    b.core.asks(b.now)
    b.turn()
    if mine is not None:
        assert b.queue.leased == 1
        steps.ack(b, mine)
        b.core.asks(b.now)
        b.turn()
    steps.level()
    a.core.asks(a.now)
    a.turn()
    yours = steps.work(a)
    assert len(a.inbox[yours]) == (0 if leased else 1)
    steps.ack(a, yours)
    steps.level()
    assert steps.told() == {"a": NOTHING, "b": NOTHING}


def test_l2_an_owner_dies_between_the_grant_and_its_sending(steps: Steps) -> None:
    """The grant is in its log: it goes out when the link comes up."""
    a, b = steps.a, steps.b
    a.publish("q", b"0", b"1")
    steps.level()
    mine = steps.work(b)
    assert steps.grant(b) == 2
    a.sync()
    a.kill()
    assert a.queue.foreign_count == 2
    steps.level()
    assert len(b.inbox[mine]) == 2


def test_l2_a_grant_that_was_not_durable_never_was(steps: Steps) -> None:
    a, b = steps.a, steps.b
    a.publish("q", b"0")
    steps.level()
    mine = steps.work(b)
    assert steps.grant(b) == 1
    steps.send("ab")
    assert b.inbox[mine] == [], "it is not on the disk, so it does not leave"
    a.kill()
    assert (a.queue.ready, a.queue.foreign_count) == (1, 0)


def test_l3_who_was_granted_dies_for_good(steps: Steps) -> None:
    """What a dead one owns waits, until an operator has somebody act for it."""
    a, b = steps.a, steps.b
    a.publish("q", b"0")
    steps.level()
    steps.work(b)
    assert steps.grant(b) == 1
    a.sync()
    mine = steps.work(a)
    a.advance(3600)
    assert (a.inbox[mine], steps.ask(a)[0][0]) == ([], "b"), "nobody takes it by himself"
    steps.act_for("b", a)
    assert len(a.inbox[mine]) == 1


def test_l4_an_ack_crosses_a_grant() -> None:
    """Whoever was granted it hears that it is done: the lease is stale, and the slot is free."""
    steps = Steps("abc")
    a, b, c = steps.a, steps.b, steps.sites["c"]
    first = a.publish("q", b"0").first
    steps.level()
    mine = steps.work(c, 1)
    assert steps.grant(c) == 1
    b.core.acknowledge(b.now, b.queue, {11: range(first, first + 1)})
    b.turn()
    a.sync()
    b.sync()
    steps.send("ac")
    assert c.queue.leased == 1
    steps.send("bc")
    steps.send("ba")
    assert (c.queue.leased, mine.room) == (0, 1)
    steps.level()
    assert steps.told() == {"a": NOTHING, "b": NOTHING, "c": NOTHING}


def test_l5_it_expires_while_it_is_granted() -> None:
    """The time is absolute, and each site lets it go; whoever owns it then has the dead letter, and nobody else."""
    steps = Steps(dead_letter_exchange="", dead_letter_routing_key="dead")
    a, b = steps.a, steps.b
    for site in (a, b):
        site.declare("dead", kind="local")
    a.publish("q", b"0", properties=header(expiration="5000"))
    steps.level()
    steps.work(b)
    assert steps.grant(b) == 1
    b.core.unsubscribe(b.now, next(iter(b.queue.consumers)), requeue=True)
    steps.level()
    for site in (a, b):
        site.advance(10)
    letters = [site.core.queue("/", "dead") for site in (a, b)]
    assert [one.ready for one in letters if one is not None] == [0, 1]
    steps.level()
    assert steps.told() == {"a": NOTHING, "b": NOTHING}


def test_l6_an_operator_acts_for_an_owner_that_lives(steps: Steps) -> None:
    """Both deliver; when the link is back that is counted, and both know one owner."""
    a, b = steps.a, steps.b
    a.publish("q", b"0")
    steps.level()
    mine = steps.work(b)
    steps.act_for("a", b)
    yours = steps.work(a)
    assert len(a.inbox[yours]) == len(b.inbox[mine]) == 1
    owners = []
    steps.level()
    for site in (a, b):
        [lsn] = flat(site.queue.snapshot()[0]).tolist()
        owners.append(site.queue.claims(site.core.peers).of(lsn).owner)
    assert owners == ["b", "b"]
    steps.ack(a, yours)
    steps.level()
    assert (b.queue.leased, mine.room) == (0, 10), "what one has settled nobody works on after hearing of it"


def test_l7_a_settle_comes_before_its_message() -> None:
    steps = Steps("abc")
    a, b, c = steps.a, steps.b, steps.sites["c"]
    mine = steps.work(b)
    steps.level()
    b.core.asks(b.now)
    a.publish("q", b"0")
    a.sync()
    steps.send("ab")
    assert steps.grant(b) == 1
    a.sync()
    steps.send("ab")
    steps.ack(b, mine)
    b.sync()
    steps.send("bc")
    c.sync()
    c.kill()
    steps.level()
    assert steps.told() == {"a": NOTHING, "b": NOTHING, "c": NOTHING}
    assert c.core.carried, "it came, and was done"


def test_l8_a_site_goes_back_to_what_was_durable(steps: Steps) -> None:
    """What had come and was not on the disk comes again, and is known by its origin and LSN."""
    a, b = steps.a, steps.b
    a.publish("q", b"0", b"1")
    a.sync()
    steps.send("ab")
    b.sync()
    a.publish("q", b"2", b"3")
    a.sync()
    steps.send("ab")
    assert b.queue.foreign_count == 4
    b.kill()
    assert b.queue.foreign_count == 2
    steps.heal(("a", "b"))
    steps.send("ab")
    steps.heal(("a", "b"))
    steps.send("ab")
    assert b.queue.foreign_count == 4


# -- what a failure means


def test_m1_a_site_is_gone_and_what_it_owns_waits(steps: Steps) -> None:
    a, b = steps.a, steps.b
    a.publish("q", b"0")
    steps.level()
    mine = steps.work(b)
    assert [owner for owner, _ in steps.ask(b)] == ["a"]
    b.advance(86_400)
    assert (b.inbox[mine], b.queue.foreign_count) == ([], 1)
    a.kill()
    steps.level()
    assert steps.grant(b) == 1


def test_m2_a_site_is_cut_off_and_works_its_own(steps: Steps) -> None:
    a, b = steps.a, steps.b
    steps.cut |= {("a", "b"), ("b", "a")}
    mine, yours = steps.work(a), steps.work(b)
    a.publish("q", b"0")
    b.publish("q", b"1")
    assert (len(a.inbox[mine]), len(b.inbox[yours])) == (1, 1)
    steps.ack(a, mine)
    steps.ack(b, yours)
    steps.level()
    assert steps.told() == {"a": NOTHING, "b": NOTHING}


def test_m3_at_least_once_is_given_again_where_its_owner_is(steps: Steps) -> None:
    """A site dies with what it leases: it comes again there, and nowhere else."""
    a, b = steps.a, steps.b
    a.publish("q", b"0")
    steps.level()
    steps.work(b)
    assert steps.grant(b) == 1
    steps.level()
    mine = steps.work(a)
    b.kill()
    steps.level()
    assert (a.inbox[mine], b.queue.ready) == ([], 1)
    again = steps.work(b)
    steps.ack(b, again)
    steps.level()
    assert steps.told() == {"a": NOTHING, "b": NOTHING}


def test_m4_at_most_once_is_never_given_twice() -> None:
    """It was sent when its removal was durable: no death and no link brings it back."""
    steps = Steps(semantics="at-most-once", fairness_model="round-robin", deliver="durable")
    a, b = steps.a, steps.b
    a.publish("q", b"0")
    steps.level()
    mine = steps.work(b)
    assert steps.grant(b) == 1
    steps.level()
    assert len(b.inbox[mine]) == 1
    b.sync()
    for site in (a, b):
        site.kill()
    steps.level()
    others = [steps.work(site) for site in (a, b)]
    assert [site.inbox[one] for site, one in zip((a, b), others, strict=True)] == [[], []]
    assert steps.told() == {"a": NOTHING, "b": NOTHING}
