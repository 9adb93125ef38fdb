"""Which queues a link makes one: those that show something that it carries, however the topics are written."""

from __future__ import annotations

import pytest

from penstock.core.links.carried import Carries, may_meet
from penstock.core.links.sharing import Site
from penstock.errors import PreconditionFailed
from penstock.expr import TopicPattern
from unit.core.world import World
from unit.core_links.test_linking import SITES, Linked

ORDERS = "^ORDERS$|^ORDERS_DIRECT$"
GROUP = {"kind": "group-local", "initial_owner": "c", "group_local_queue_domain": "d"}


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("ORDERS", ORDERS, True),
        ("ORDERS_DIRECT", ORDERS, True),
        ("OTHERS", ORDERS, False),
        (".*", ORDERS, True),
        ("^ORD", ORDERS, True),
        ("^ORDERS_.", ORDERS, True),
        ("^TRADES", ORDERS, False),
        ("^ORDERS$", ORDERS, True),
        ("^ORDERSX$", ORDERS, False),
        ("^TRADES|^ORDERS_D", ORDERS, True),
        ("^orders\\.", "^orders\\.(new|changed)$", True),
        ("^trades\\.", "^orders\\.(new|changed)$", False),
        ("^o?x", "^x", True),
        ("^a|b", "^c", True),
        ("^(a|b)$", "^c", True),
    ],
)
def test_two_patterns_are_taken_to_meet_unless_they_cannot(one: str, other: str, meet: bool) -> None:
    assert may_meet(TopicPattern(one), TopicPattern(other)) is meet
    assert may_meet(TopicPattern(other), TopicPattern(one)) is meet


@pytest.mark.parametrize("carried", [("ORDERS", "ORDERS_DIRECT"), ("^ORD",), (ORDERS,), ("ORDERS",)])
def test_a_queue_over_a_pattern_is_shared_by_a_link_that_carries_its_topics(carried: tuple[str, ...]) -> None:
    a, b = Linked("a"), Linked("b")
    for site, other in ((a, b), (b, a)):
        site.declare("q", underlying_topic=ORDERS, default_publish_target="ORDERS_DIRECT")
        site.core.carries(other.name, [Carries(one) for one in carried])
    for site, other in ((a, b), (b, a)):
        assert site.link(other, *map(Carries, carried)) == []
    a.publish("ORDERS", b"0")
    a.send(b)
    assert (a.q().ready, b.q().ready, b.q().foreign_count) == (1, 0, 1)
    assert a.core.await_sites(a.now, ["b"]) == ["b"]


def test_a_link_that_carries_a_queues_topic_one_way_alone_is_refused_and_the_one_back_is_not() -> None:
    """The other one says nothing of the queue, so whoever it calls has nothing to refuse."""
    a, b = Linked("a"), Linked("b")
    for site in (a, b):
        site.declare("q")
    a.core.carries("b", [Carries("q")])
    b.core.carries("a", [Carries("other")])
    line = "queue 'q' in vhost '/': no link carries its topic from here to the other side"
    assert b.core.share("a", a.core.said_to("b")) == [line]
    assert a.core.share("b", b.core.said_to("a")) == []


EITHER, FILTER = "^x$|^y$", "/n > 1"


@pytest.mark.parametrize(
    ("shown", "carried", "whole"),
    [
        ("x", [("x", None)], True),
        ("x", [("x", FILTER)], False),
        ("x", [(".*", FILTER), ("^x", None)], True),
        (EITHER, [("x", None), ("y", None)], True),
        (EITHER, [("x", None)], False),
        (EITHER, [("x", None), ("y", FILTER)], False),
        ("^x.*", [("x", None)], False),
        ("^x.*", [("^x", FILTER)], False),
        ("^x.*", [("^x", None)], True),
    ],
)
def test_the_first_owner_hears_of_all_that_is_published_elsewhere_or_the_link_to_it_is_refused(
    shown: str, carried: list[tuple[str, str | None]], whole: bool
) -> None:
    """What the link left out was nobody's: its owner never heard of it, and nobody else might work it."""
    a, b = Linked("a"), Linked("b")
    settings = {"kind": "group-local", "group_local_queue_domain": "d", "default_publish_target": "x"}
    topics = [Carries(pattern, filter=filter_) for pattern, filter_ in carried]
    for site, other in ((a, b), (b, a)):
        site.declare("q", underlying_topic=shown, initial_owner="a", **settings)
        site.core.carries(other.name, topics)
    why = (
        "queue 'q' in vhost '/': its initial_owner 'a' would not hear of what the link to it leaves out, and nobody "
        "would own that: have it carry all of the topic, without a filter"
    )
    assert b.link(a, *topics) == [], "what is published at its first owner stays that one's"
    assert a.link(b, *topics) == ([] if whole else [why])


def test_a_queue_over_other_topics_is_nobodys_business() -> None:
    a, b = Linked("a"), Linked("b")
    for site, other in ((a, b), (b, a)):
        site.declare("q", underlying_topic=ORDERS, default_publish_target="ORDERS", filter=f"/{site.name} > 1")
        site.core.carries(other.name, [Carries("TRADES")])
    for site, other in ((a, b), (b, a)):
        assert site.link(other, Carries("TRADES")) == []


def test_what_is_published_where_a_group_has_no_queue_is_its_first_owners_all_the_same() -> None:
    """Some sites host it, and any site may publish."""
    a, b, c = (Linked(name) for name in "abc")
    sites = (a, b, c)
    for site in sites:
        for other in sites:
            if site is not other:
                site.core.carries(other.name, [Carries(".*")])
    a.core.declare_topic(a.now, "/", "", "q", {})
    for site in (b, c):
        site.declare("q", **GROUP)
    for site in sites:
        for other in sites:
            if site is not other:
                assert site.link(other) == []
    a.publish("q", b"0", b"1")
    a.send(b)
    a.send(c)
    assert [(one.q().ready, one.q().foreign_count) for one in (b, c)] == [(0, 2), (2, 0)]
    b.subscribe(b.q(), max_backlog=1)
    b.advance(1)
    [asked] = b.core.asks(b.now)
    assert (asked.owner, c.core.answer(c.now, "b", asked.ask)) == ("c", 1)
    c.send(b)
    assert [(one.q().ready, one.q().leased, one.q().foreign_count) for one in (b, c)] == [(0, 1, 1), (1, 0, 1)]


def test_who_was_named_and_not_met_is_whoever_comes_by_that_name() -> None:
    """Sites tell each other whom they know; some of them know a first owner by its name alone."""
    a, b = World(origin=SITES["a"].origin), Linked("b")
    a.core.meet(a.now, SITES["a"])
    a.declare("q", **GROUP)
    named = list(a.core.peers.sites.values())
    assert [one.name for one in named] == ["a", "c"]
    for one in named:
        b.core.meet(b.now, one)
    assert [one.origin for one in b.core.peers.sites.values()] == [SITES[name].origin for name in "bac"]
    assert b.core.meet(b.now, Site("b", 0)) == 0
    assert b.core.peers.sites[0] == SITES["b"]
    with pytest.raises(PreconditionFailed, match="every site needs a name of its own"):
        b.core.meet(b.now, Site("c", 44))


def test_what_others_give_each_other_is_no_transfer_of_ones_own() -> None:
    sites = a, b, c = Linked("a"), Linked("b"), Linked("c")
    for site in sites:
        site.declare("q")
        for other in sites:
            if site is not other:
                site.core.carries(other.name, [Carries(".*")])
    for site in sites:
        for other in sites:
            if site is not other:
                assert site.link(other) == []
    a.publish("q", b"0", b"1")
    c.publish("q", b"2")
    for site in sites:
        for other in sites:
            if site is not other:
                site.send(other)
    b.subscribe(b.q(), max_backlog=1)
    b.advance(1)
    for asked in b.core.asks(b.now):
        assert asked.owner == "a"
        a.core.answer(a.now, "b", asked.ask)
    for other in (b, c):
        a.send(other)
    assert [one.q().transfers[:2] for one in sites] == [(0, 1), (1, 0), (0, 0)]


def test_what_is_published_where_a_distributed_queue_is_missing_is_everybodys_own() -> None:
    """Every site that takes publishes of a distributed queue has to host it; nobody can say whose it is else."""
    sites = a, b, c = Linked("a"), Linked("b"), Linked("c")
    a.core.declare_topic(a.now, "/", "", "q", {})
    for site in sites:
        for other in sites:
            if site is not other:
                site.core.carries(other.name, [Carries(".*")])
    for site in (b, c):
        site.declare("q")
    for site in sites:
        for other in sites:
            if site is not other:
                assert site.link(other) == []
    a.publish("q", b"0", b"1")
    for other in (b, c):
        a.send(other)
    assert [(one.q().ready, one.q().foreign_count) for one in (b, c)] == [(2, 0), (2, 0)]


def left_out(link: str) -> list[str]:
    why = f"queue 'q' in vhost '/': its initial_owner 'c' would not hear of what {link} out, and nobody would own that"
    return [why + ": have it carry all of the topic, without a filter"]


@pytest.mark.parametrize("has", [True, False])
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("filtered", ["ab", "bc", ""])
def test_a_first_owner_behind_another_site_hears_of_all_or_a_link_on_the_way_is_refused(
    *, has: bool, direct: bool, filtered: str
) -> None:
    """A row of three, whose middle may lack the queue; direct: its ends have links, too, and it says nothing then."""
    sites = a, b, c = (Linked("a"), Linked("b"), Linked("c"))
    for site in sites:
        if has or site is not b:
            site.declare("q", **GROUP)
    pairs = [(a, b), (b, a), (b, c), (c, b), *([(a, c), (c, a)] if direct else [])]
    topics = {(one, other): Carries(".*", filter=FILTER if one.name + other.name == filtered else None)
              for one, other in pairs}  # fmt: skip
    through = [SITES["a"].group]
    for (one, other), topic in topics.items():
        one.core.carries(other.name, [topic], through)
    said = {
        one.name + other.name: one.link(other, topic, pass_through=through) for (one, other), topic in topics.items()
    }
    wanted = dict[str, list[str]]()
    if filtered == "ab" and not direct:
        wanted = {"ba": left_out("all links from here leave")} if has else {}  # else doctor says it, at a
    if filtered == "bc":
        if has:
            wanted["cb"] = left_out("the link to it leaves")
        elif not direct:
            wanted["ab"] = left_out("the link to it from 'b' leaves")
    assert {link: lines for link, lines in said.items() if lines} == wanted


def test_what_a_slow_link_brings_behind_what_came_before_it_by_another_one_is_stored() -> None:
    """The link from a to b carries x alone, y goes by c; what has come of x is done and forgotten meanwhile."""
    sites = a, b, c = Linked("a"), Linked("b"), Linked("c")
    for site in sites:
        site.core.declare_topic(site.now, "/", "", "y")
        site.turn()
    for site, name in ((a, "x"), (b, "x"), (b, "y")):
        site.declare(name)
    for _ in range(2):
        for one, other, topic in ((a, b, "x"), (b, a, "x"), (a, c, ".*"), (c, a, ".*"), (c, b, ".*"), (b, c, ".*")):
            one.link(other, Carries(topic), pass_through=["east"] if one is c else ())
    a.publish("y", b"slow")
    a.publish("x", b"quick")
    a.send(c)
    a.send(b)
    a.core.purge_queue(a.now, a.q("x"))
    a.send(b)
    assert b.q("x").foreign_count == 0
    for _ in range(2):
        b.core.acked = dict.fromkeys("ac", b.core.last_lsn)
        b.advance(2)
        b.core.asks(b.now)
    assert b.core.carried[1].here(0, 100) == [], "where it stood is forgotten"
    c.send(b)
    assert b.contents(b.q("y")) == [b"slow"]
