"""A queue is deleted at a site while a claim to its messages is under way, at each place of the way.

What a site was granted and could not take goes back, and is worked by whoever has the queue: nothing of it is lost,
and nothing waits for a site that does not know of it.
"""

from __future__ import annotations

import pytest

from penstock.core.effects import Verb
from penstock.core.state.durable import canonical
from penstock.errors import PreconditionFailed
from penstock.records.entries import Control
from penstock.records.kinds import Kind
from sim.sites_house import SiteWorld
from sim.sites_steps import Steps


def delete(site: SiteWorld) -> None:
    site.core.delete_queue(site.now, site.queue)
    site.turn()


def renew(steps: Steps, *pairs: str) -> None:
    """Both sides say anew what queues they have, as they do when these have changed."""
    for pair in pairs:
        one, other = steps.sites[pair[0]], steps.sites[pair[1]]
        one.core.share(other.name, other.core.said_to(one.name))
        other.core.share(one.name, one.core.said_to(other.name))


def level(steps: Steps) -> None:
    """Everybody has heard everything."""
    for _ in range(5):
        for site in steps.sites.values():
            site.sync()
        for pair in steps.pairs():
            steps.bring(pair, 1000)


def worked(steps: Steps, site: SiteWorld) -> int:
    """How many messages a new worker of a site is given, who asks for all that he may have."""
    worker = steps.work(site)
    for _ in range(3):
        steps.grant(site)
        level(steps)
    return len(site.inbox[worker])


def owners(steps: Steps, *names: str) -> dict[str, list[str]]:
    """Of each site the owners that it knows of what is in its queue."""
    return {
        name: sorted({
            steps.sites[name].queue.claims(steps.sites[name].core.peers).of(lsn).owner
            for chunk in steps.sites[name].queue.snapshot()[0] for lsn in chunk
        })
        for name in names
    }  # fmt: skip


def granted(names: str, count: int = 3) -> Steps:
    """The first site has granted messages to the second, whose link has not brought that yet."""
    steps = Steps(names)
    steps.a.publish("q", *[b"0"] * count)
    level(steps)
    steps.work(steps.b)
    assert steps.grant(steps.b) == count
    steps.a.sync()
    return steps


@pytest.mark.parametrize("killed", ["", "a", "b", "ab"])
@pytest.mark.parametrize("told", ["before", "after", "twice"])
def test_the_asker_deletes_its_queue_before_it_hears(told: str, killed: str) -> None:
    """told: when the owner hears that the other has no such queue any more."""
    steps = granted("ab")
    a, b = steps.a, steps.b
    delete(b)
    b.sync()
    if told != "after":
        renew(steps, "ab")
    steps.send("ab")
    for name in killed:
        steps.sites[name].sync()
        steps.sites[name].kill()
        steps.heal(("a", "b"))
        steps.heal(("b", "a"))
    level(steps)
    if told != "before":
        renew(steps, "ab")
    level(steps)
    assert (a.queue.ready, a.queue.foreign_count) == (3, 0)
    assert worked(steps, a) == 3
    a.queue.check()


def test_the_asker_has_a_new_queue_of_the_name_when_it_hears() -> None:
    steps = granted("ab")
    a, b = steps.a, steps.b
    delete(b)
    b.declare("q")
    b.sync()
    renew(steps, "ab")
    level(steps)
    assert (a.queue.ready, a.queue.foreign_count) == (3, 0)
    assert worked(steps, a) == 3
    a.publish("q", b"new")
    level(steps)
    assert b.queue.foreign_count == 1


def test_the_asker_has_forgotten_where_they_stand_when_it_hears() -> None:
    steps = granted("ab")
    a, b = steps.a, steps.b
    delete(b)
    b.declare("q")
    b.core.forget_carried(b.now, "a", b.core.last_lsn + 1)
    b.turn()
    renew(steps, "ab")
    level(steps)
    assert worked(steps, a) == 3


@pytest.mark.parametrize("first", ["ab", "cb"])
def test_who_tells_of_it_first_has_it_back_and_nobody_else(first: str) -> None:
    """Three sites that are all linked: two of them tell the third of the grant."""
    steps = granted("abc")
    a, b, c = steps.a, steps.b, steps.sites["c"]
    delete(b)
    b.sync()
    steps.send("ac")
    c.sync()
    for way in (first, "ab", "cb"):
        steps.send(way)
        b.sync()
    level(steps)
    [one] = {name for some in owners(steps, "a", "c").values() for name in some}
    assert one == first[0], "both know the same"
    assert [site.queue.claims(site.core.peers).doubled for site in (a, c)] == [0, 0]
    assert worked(steps, a) + worked(steps, c) == 3


def test_a_claim_that_came_before_its_message_goes_back_with_the_queue() -> None:
    """The grant came over one link, the message would have come over another."""
    steps = Steps("abc")
    a, b, c = steps.a, steps.b, steps.sites["c"]
    lsn = c.publish("q", b"0").first
    claim = c.queue.claims(c.core.peers).of(lsn).to("b", "transfer")
    c.core.own(c.now, c.queue, [(lsn, lsn + 1)], claim)
    c.turn()
    c.sync()
    steps.send("ca")
    a.sync()
    steps.send("ab")
    assert list(b.core.early)
    delete(b)
    level(steps)
    assert owners(steps, "a", "c") == {"a": ["c"], "c": ["c"]}
    assert worked(steps, a) == 1


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_both_delete_while_a_grant_is_under_way(names: str) -> None:
    """Where a third site has the queue, it has them in the end; nobody tells the other for ever."""
    steps = granted(names)
    a, b = steps.a, steps.b
    delete(b)
    delete(a)
    level(steps)
    assert not any(steps.bring(pair, 1000) for pair in steps.pairs()), "there is nothing left to tell"
    if names == "abc":
        assert worked(steps, steps.sites["c"]) == 3


def test_the_owner_deletes_its_queue_after_it_granted() -> None:
    """The grant stands before the end of the queue in its log."""
    steps = granted("ab", 2)
    a, b = steps.a, steps.b
    a.publish("q", b"stays here")
    delete(a)
    renew(steps, "ab")
    level(steps)
    [worker] = b.queue.consumers
    assert (len(b.inbox[worker]), b.queue.foreign_count) == (2, 0)


@pytest.mark.parametrize("killed", ["", "a", "b"])
def test_what_was_worked_before_its_queue_went_is_not_worked_again_where_that_is_heard_late(killed: str) -> None:
    """The link was cut when it was published, worked, and its queue deleted: it is told what there was before."""
    steps = Steps("ab")
    a, b = steps.a, steps.b
    a.publish("q", b"worked", b"purged")
    a.declare("copied", kind="local", underlying_topic="q")
    steps.ack(a, steps.work(a, 1))
    delete(a)
    a.publish("q", b"nobody's queue")
    a.sync()
    for name in killed:
        steps.sites[name].kill()
    steps.level()
    assert b.contents(b.queue) == [b"nobody's queue"]
    assert (b.queue.ready, b.queue.foreign_count) == (1, 0)


@pytest.mark.parametrize("told", ["as it happened", "late"])
def test_a_queue_is_deleted_and_declared_again(told: str) -> None:
    """What stands in the log between the two was in no queue there, and is the other site's own."""
    steps = Steps("ab")
    a, b = steps.a, steps.b
    a.publish("q", b"before")
    a.declare("copied", kind="local", underlying_topic="q")
    delete(a)
    a.publish("q", b"between")
    a.declare("q")
    a.publish("q", b"after")
    if told == "late":
        steps.level()
    else:
        level(steps)
    assert b.contents(b.queue) == [b"between", b"after"]
    assert (b.queue.ready, b.queue.foreign_count) == (1, 1)
    assert a.contents(a.queue) == [b"after"]


def test_what_follows_the_end_of_a_queue_is_nobodys_elsewhere() -> None:
    """The other site hears of the end with it, not when it says anew what queues it has."""
    steps = Steps("ab")
    a, b = steps.a, steps.b
    a.declare("copied", kind="local", underlying_topic="q")
    level(steps)
    delete(a)
    level(steps)
    a.publish("q", b"0")
    level(steps)
    assert (b.queue.ready, b.queue.foreign_count) == (1, 0)


def test_queues_that_are_gone_are_remembered_until_every_site_has_been_told() -> None:
    steps = Steps("abc")
    a, b = steps.a, steps.b
    number = a.queue.id
    delete(a)
    assert a.core.sharing.with_site(number, "b") is None, "nothing is agreed of what is not there"
    assert len(a.core.said_to("b")) == 1
    steps.send("ab")
    for site, upto in ((b, a.core.last_lsn), (steps.sites["c"], a.core.last_lsn)):
        for _ in range(3):
            a.advance(2)
            a.core.asks(a.now)
            a.turn()
        assert len(a.core.departed) == 1, "the other one has not heard"
        assert canonical(a.core.durable_state()) == canonical(a.folded(3))
        a.core.note_link(a.now, site.name, acked=upto)
    for _ in range(3):
        a.advance(2)
        a.core.asks(a.now)
        a.turn()
    assert not a.core.departed
    assert a.core.said_to("b") == []
    assert canonical(a.core.durable_state()) == canonical(a.folded(3))


def test_a_site_hears_of_no_queue_that_its_link_does_not_carry() -> None:
    steps = Steps("ab")
    a, b = steps.a, steps.b
    for site in (a, b):
        site.declare("mine")
    a.publish("mine", b"0")
    worker = a.subscribe(a.core.queue("/", "mine"))  # type: ignore[arg-type]
    level(steps)
    a.core.settle(a.now, a.core.queue("/", "mine"), [a.inbox[worker]], Verb.ACK, by=worker)  # type: ignore[arg-type, list-item]
    a.turn()
    a.core.delete_queue(a.now, a.core.queue("/", "mine"))  # type: ignore[arg-type]
    a.turn()
    a.sync()
    assert not steps.bring(("a", "b"), 1000)
    assert len(a.core.said_to("b")) == 1, "of q alone"


def test_the_owner_deletes_its_queue_while_it_is_asked() -> None:
    steps = Steps("ab")
    a, b = steps.a, steps.b
    a.publish("q", b"0")
    level(steps)
    steps.work(b)
    asks = steps.ask(b)
    delete(a)
    for _, ask in asks:
        assert a.core.answer(a.now, "b", ask) == 0
    level(steps)
    assert (b.queue.ready, b.queue.leased, b.queue.foreign_count) == (0, 0, 0), "it is purged everywhere"


@pytest.mark.parametrize("when", ["asked", "granted", "told"])
def test_a_site_between_others_does_not_delete_what_is_granted_through_it(when: str) -> None:
    steps = Steps("abc")
    steps.ways = {("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")}
    a, b, c = steps.a, steps.b, steps.sites["c"]
    for site in (a, b, c):
        for other in "abc":
            site.core.carries(other, [])
            if (site.name, other) in steps.ways:
                site.core.carries(other, site.topics(), {""})
    for pair in steps.pairs():
        steps.heal(pair)
    a.publish("q", b"0")
    level(steps)
    worker = steps.work(c)
    for to, ask in [(one.to, one.ask) for one in _asks(c)]:
        steps.sites[to].core.answer(b.now, "c", ask)
    if when != "asked":
        for one in _asks(b):
            assert a.core.answer(a.now, "b", one.ask) == 1
        a.turn()
        a.sync()
    if when == "told":
        steps.send("ab")
    with pytest.raises(PreconditionFailed, match="1 messages of other sites"):
        b.core.delete_queue(b.now, b.queue)
    for _ in range(2):
        for one in _asks(b):
            a.core.answer(a.now, "b", one.ask)
            a.turn()
        level(steps)
    assert len(c.inbox[worker]) == 1


def _asks(site: SiteWorld) -> list:  # type: ignore[type-arg]
    site.advance(1)
    asked = site.core.asks(site.now)
    site.turn()
    return asked


def test_what_goes_back_is_one_record_however_many_they_are() -> None:
    steps = Steps("ab")
    a, b = steps.a, steps.b
    for _ in range(20):
        a.publish("q", b"0")
        a.declare("between")
        a.publish("between", b"0")
    level(steps)
    steps.work(b, 20)
    assert steps.grant(b) == 20
    delete(b)
    level(steps)
    back = [one for one in b.entries if isinstance(one, Control) and one.kind is Kind.CLAIMED]
    assert len(back) == 1
    assert (a.queue.ready, a.queue.foreign_count) == (20, 0)
