"""Three sites in a row whose links come up in any order, over again, and one of which has the queue later."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from choices import tried
from penstock.core.links.parcels import Parcel
from penstock.core.links.sharing import Site
from penstock.records.schema import SITES_MOST
from penstock.server.base.rounds import TURN_US, Turns
from penstock.wire.flight.linking import Said
from sim.sites_calling import Calling

SCHEDULES = 12


def calling(seed: int) -> Counter[str]:
    """One schedule."""
    return Calling(seed, kills=seed % 3 == 0).run_named(str(seed))


def test_what_sites_say_of_themselves_is_known_in_the_end(effort: int) -> None:
    tried(calling, SCHEDULES * effort, ("granted", "killed", "up", "late"))


def test_a_welcome_that_comes_late_takes_back_nothing_that_was_said_since() -> None:
    """It was given before a queue was there, of which the other link has told by then."""
    fabric = Calling(1)
    b, c = fabric.of("b"), fabric.of("c")
    fabric.quiet()
    c.links.outgoing["b"].renew("as another site is there")
    fabric.call(("c", "b"))
    late = fabric.newest(("c", "b"))
    assert late is not None
    assert fabric.hear_there(late)
    b.declare_again()
    fabric.quiet(late)
    assert c.links.engine.core.sharing.with_site(c.queue.id, "b") is not None
    fabric.quiet()
    assert c.links.outgoing["b"].up
    fabric.publish_at("a", 2)
    fabric.settle_down()


def test_a_link_stays_up_while_queues_come_and_go_and_the_other_site_hears_of_those_that_it_carries() -> None:
    """With each queue that began or ended, of whatever name, all links used to begin anew."""
    fabric = Calling(1)
    a, b, c = (fabric.of(name) for name in "abc")
    fabric.quiet()
    before = fabric.counts["up"]
    b.declare("other")
    b.declare_again()
    b.core.delete_queue(b.now, b.core.queue("/", "other"))  # type: ignore[arg-type]  # it is there
    b.turn()
    fabric.quiet()
    assert [site.core.sharing.with_site(site.queue.id, "b") is not None for site in (a, c)] == [True, True]
    assert "other" not in str(a.core.sharing.offered)
    for site in (a, b, c):
        site.core.alter_queue(site.now, site.queue, replace(site.queue.settings, recovery_point="epoch"))
        site.turn()
    fabric.quiet()
    agreed = a.core.sharing.with_site(a.queue.id, "b")
    assert agreed is not None
    assert (agreed.takes, agreed.since) == (0, b.queue.id), "it looks back since"
    assert fabric.counts["up"] == before


def test_what_two_sites_differ_on_since_their_link_is_up_has_it_refused_until_that_is_mended() -> None:
    fabric = Calling(1)
    b, c = fabric.of("b"), fabric.of("c")
    b.declare_again()
    fabric.quiet()
    for expression, state in (("/k = 1", "refused"), (None, "up")):
        fabric.differ = expression is not None
        c.core.alter_queue(c.now, c.queue, replace(c.queue.settings, barrier_expression=expression))
        c.turn()
        for _ in range(6):
            fabric.once()
        for site, other in ((b, "c"), (c, "b")):
            link = site.links.outgoing[other]
            assert link.state == state, f"{site.name} to {other}: {link.why}"
            assert expression is None or "its barrier_expression is" in (link.why or "")


def test_sites_are_told_of_as_many_others_as_they_hear_of() -> None:
    """One more used to be refused by every site, for ever."""
    fabric = Calling(1)
    b = fabric.of("b")
    fabric.quiet()
    for n in range(SITES_MOST - 3):
        b.links.meet(Site(f"s{n}", 100 + n))
        b.core._meet(b.now, Site(f"named {n}", 0))
    b.turn()
    assert len(b.core.peers.sites) > SITES_MOST
    fabric.quiet()
    assert [b.links.outgoing[other].state for other in "ac"] == ["up", "up"]
    assert fabric.of("a").core.peers.number(f"s{SITES_MOST - 4}") is not None


@pytest.mark.parametrize("said", ["granted", "done"])
def test_what_is_told_of_a_queue_while_two_sites_differ_on_it_is_told_again_when_they_do_not(said: str) -> None:
    """Who is between the others tells what the owner has decided, as somebody has just altered the queue here."""
    fabric = Calling(1)
    a, b, c = (fabric.of(name) for name in "abc")
    fabric.quiet()
    b.declare_again()
    fabric.quiet()
    fabric.publish_at("a", 2)
    fabric.quiet()
    assert c.queue.foreign_count == 2
    if said == "granted":
        c.subscribe(c.queue, max_backlog=2)
        for _ in range(3):
            c.advance(1)
            for site in (c, b):
                fabric.asked_by(site)
            for pair in (("c", "b"), ("b", "a")):
                fabric.pass_on(pair)
        assert a.queue.foreign_count == 2
    else:
        fabric.take(a, a.subscribe(a.queue, max_backlog=2))
    for site, pair in ((a, ("a", "b")), (b, ("b", "c"))):
        fabric.sync(site)
        if site is b:
            fabric.differ = True
            c.core.alter_queue(c.now, c.queue, replace(c.queue.settings, barrier_expression="/k = 1"))
            c.turn()
        fabric.pass_on(pair)
    c.core.alter_queue(c.now, c.queue, replace(c.queue.settings, barrier_expression=None))
    c.turn()
    fabric.differ = False
    fabric.settle_down()


def test_what_was_asked_of_an_owner_behind_another_site_is_asked_again_as_soon_as_that_one_is_back() -> None:
    """It was lost when the link ended, again and again, so that it would be repeated ten seconds later."""
    fabric = Calling(1)
    b, c = fabric.of("b"), fabric.of("c")
    b.declare_again()
    fabric.quiet()
    fabric.publish_at("a", 1)
    fabric.quiet()
    consumer = c.subscribe(c.queue, max_backlog=1)
    for _ in range(9):
        c.advance(20)
        fabric.asked_by(c)
        c.links.outgoing["b"].renew("it is broken")
        fabric.quiet()
    c.advance(0.1)
    for _ in range(2):
        for site in (c, b):
            fabric.asked_by(site)
        fabric.quiet()
    assert len(c.inbox.get(consumer, ())) == 1


def test_what_a_site_says_at_once_is_heard_by_turns_and_in_its_order() -> None:
    """However much came together: all of it was one turn of the loop, in which nobody else was served."""
    fabric = Calling(1)
    fabric.quiet()
    stream, site = fabric.newest(("a", "b")), fabric.of("b")
    assert stream is not None
    assert stream.there is not None
    there, heard, later = stream.there, site.core.heard("a"), deque[Callable[[], None]]()
    engine = site.links.engine
    clock = SimpleNamespace(mono=lambda: (there.parcels + there.asks) * TURN_US // 2)  # each is half a turn
    engine.turns = Turns(clock.mono, later.append, engine.faults.run)
    says: list[Callable[[int, Mock], None]] = [
        lambda n, answer: there._came(Parcel(heard + n).head, None, 0, answer),
        lambda n, answer: there._asked(Said(), answer),
    ]
    for say in says:
        answers = [Mock() for _ in range(7)]
        for n, answer in enumerate(answers, 1):
            say(n, answer)
        given = [sum(answer.give.called for answer in answers)]
        while later:
            engine.turns.number += 1
            later.popleft()()
            given.append(sum(answer.give.called for answer in answers))
        assert given == [2, 4, 6, 7]
        engine.turns.number += 1
    site.turn()
    assert site.core.heard("a") == heard + 7
