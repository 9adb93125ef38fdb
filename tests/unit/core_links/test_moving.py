"""What an administrator does to a shared queue, with what is this site's; and that it is so at every site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import orjson
import pytest

from penstock.core.effects import Verb
from penstock.core.links.carried import Carries
from penstock.core.links.parcels import read
from penstock.core.queue.explaining import explain_message
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import canonical
from penstock.records.entries import Publishes
from unit.core.world import DURABLE
from unit.core_links.test_linking import Linked

HOUR = 3_600_000_000
SHARED = ("q", "other")


@pytest.fixture
def sites() -> Iterator[tuple[Linked, Linked, Linked]]:
    """a -> b -> c and back; two queues are shared, one shows the topic of another, one is each site's own."""
    a, b, c = Linked("a"), Linked("b"), Linked("c")
    for site in (a, b, c):
        for name in SHARED:
            site.declare(name)
        site.declare("too", underlying_topic="q")
        site.declare("own", kind="local")
    for site, other in 2 * ((a, b), (b, c), (b, a), (c, b)):  # each agrees once the other carries them, too
        site.link(other, Carries("q"), Carries("other"), pass_through=("east", "west", "south"))
    yield a, b, c
    for site in (a, b, c):
        for queue in site.core.queues():
            queue.check()
        assert canonical(site.core.durable_state()) == canonical(site.folded())


def move(site: Linked, source: str, target: str, lsns: Sequence[int]) -> int:
    """As `operations.moving` does: each keeps its topic."""
    rows = site.read(list(lsns))
    topics = [site.core.topic("/", "", source)] * len(lsns)
    batch = Publishes(topics, rows.properties, rows.bodies)
    out = site.core.move_messages(site.now, site.q(source), site.q(target), lsns, batch, "moved")
    site.turn()
    return out


def told(*ways: tuple[Linked, Linked]) -> None:
    for site, other in ways:
        site.send(other)


def stands(queue: Queue) -> tuple[int, int]:
    """What is this site's, and what is another's."""
    return queue.ready + queue.held + queue.delayed, queue.foreign_count


@pytest.mark.parametrize("over_a_start", [False, True])
@pytest.mark.parametrize("target", ["other", "own"])
def test_what_is_moved_is_in_its_new_queue_alone(
    sites: tuple[Linked, Linked, Linked], target: str, over_a_start: bool
) -> None:
    a, b, c = sites
    lsns = list(a.publish("q", b"0", b"1", b"2").positions)
    told((a, b), (b, c))
    assert move(a, "q", target, lsns[:2]) == 2
    assert stands(a.q()) == (1, 0)
    assert stands(a.q(target)) == (2, 0)
    if over_a_start:
        a.send(b)
        b.restart(clean=False)
        b.link(c, Carries("q"), Carries("other"), pass_through=("east", "west", "south"))
        b.send(c)
    else:
        told((a, b), (b, c))
    for site in (b, c):
        assert stands(site.q()) == (0, 1), site.name
        assert stands(site.q("too")) == (0, 3), site.name
        assert stands(site.q(target)) == (0, 2 if target == "other" else 0), site.name
    worker = a.subscribe(a.q(target), max_backlog=9)
    for lsn in list(a.inbox[worker]):
        a.core.settle(a.now, a.q(target), [range(lsn, lsn + 1)], Verb.ACK, by=worker)
    a.turn()
    told((a, b), (b, c))
    assert [stands(site.q(target)) for site in sites] == [(0, 0)] * 3


def test_what_was_moved_can_be_worked_at_another_site(sites: tuple[Linked, Linked, Linked]) -> None:
    a, b, _ = sites
    lsns = list(a.publish("q", b"0").positions)
    a.send(b)
    move(a, "q", "other", lsns)
    a.send(b)
    worker = b.subscribe(b.q("other"))
    b.advance(10)
    [asked] = b.core.asks(b.now)
    assert a.core.answer(a.now, "b", asked.ask) == 1
    a.send(b)
    assert len(b.inbox[worker]) == 1


def test_who_does_not_have_the_queue_is_told_of_the_end_alone(sites: tuple[Linked, Linked, Linked]) -> None:
    a, b, _ = sites
    a.declare("new")
    lsns = list(a.publish("q", b"0").positions)
    a.send(b)
    move(a, "q", "new", lsns)
    a.send(b)
    assert [stands(b.q(name)) for name in ("q", "too", "other")] == [(0, 0), (0, 1), (0, 0)]


@pytest.mark.parametrize("delay", [0, HOUR])
def test_what_another_site_owns_is_not_moved_and_not_delayed(sites: tuple[Linked, Linked, Linked], delay: int) -> None:
    """Whether it waits, or for its time."""
    a, b, _ = sites
    late = [a.now.wall + delay] * 2 if delay else None
    a.core.publish(a.now, Publishes(a.core.topic("/", "", "q"), DURABLE, [b"0", b"1"], not_before=late))
    a.turn()
    a.send(b)
    lsns = [lsn for chunk in b.q().chunks() for lsn in chunk]
    assert len(lsns) == 2
    before = stands(b.q())
    assert move(b, "q", "own", lsns) == 0
    assert b.core.reschedule_messages(b.now, [b.q()], range(lsns[0], lsns[-1] + 1), b.now.wall + 2 * HOUR) == []
    b.turn()
    assert stands(b.q()) == before
    assert stands(b.q("own")) == (0, 0)
    for site, owned in ((a, 2), (b, 0)):
        assert site.core.stats(site.q(), site.now)["owned"] == owned
    [reason] = explain_message(b.q(), lsns[0], b.now, b.core.last_lsn)
    assert "site 'a' owns it, where it was published" in reason.text


@pytest.mark.parametrize("leased", [False, True])
def test_a_later_recovery_point_lets_go_what_is_this_sites_alone(
    sites: tuple[Linked, Linked, Linked], leased: bool
) -> None:
    a, b, _ = sites
    for site in (a, b):
        site.core.alter_queue(site.now, site.q(), replace(site.q().settings, recovery_point="epoch"))
        site.turn()
    a.publish("q", b"0", b"1")
    b.publish("q", b"2", b"3")
    told((a, b), (b, a))
    worker = b.subscribe(b.q(), max_backlog=1) if leased else None
    later = replace(b.q().settings, recovery_point="now")
    left = b.core.alter_queue(b.now, b.q(), later, {"recovery_point"})
    b.turn()
    assert left == 2
    assert worker is None or worker.outstanding == 0
    told((a, b), (b, a))
    assert (stands(a.q()), stands(b.q())) == ((2, 0), (0, 2))


@pytest.mark.parametrize("lie", [1, "", None, [], {"0": 1}, {"1": "q"}, {"0": "x" * 2000}])
def test_a_parcel_says_of_its_pieces_which_queue_they_are_for(lie: object) -> None:
    with pytest.raises(ValueError, match="a parcel of a link cannot be read"):
        read(orjson.dumps({"upto": 9, "pieces": [[[22], "/", "", [], 1, 0]], "into": lie}), None)
