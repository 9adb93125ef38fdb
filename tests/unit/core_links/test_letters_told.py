"""Deaths that a header tells of are believed at every site if a site wrote them, and at none if a publisher did."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import orjson
import pytest

from penstock.core.effects import Verb
from penstock.core.links.carried import Carries
from penstock.core.links.parcels import read
from penstock.core.state.durable import canonical
from penstock.records.causes import MOVED, REDRIVEN
from penstock.records.entries import Publishes
from penstock.records.properties import Properties, encode
from unit.core_links.test_linking import Linked

FORGED = encode(
    Properties(
        delivery_mode=2,
        headers={
            "x-death": [{"count": 1, "queue": "b", "reason": "rejected", "exchange": "", "routing-keys": ["b"]}],
            "x-first-death-queue": "b", "x-first-death-reason": "rejected",
        },
    )
)  # fmt: skip


@pytest.fixture
def sites() -> Iterator[tuple[Linked, Linked, Linked]]:
    """a -> b -> c: what is published at a comes to c over b."""
    a, b, c = Linked("a"), Linked("b"), Linked("c")
    for site in (a, b, c):
        site.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
        site.declare("dead")
    for site, other in ((a, b), (b, c)):
        site.link(other, Carries("dead"), pass_through=("east", "west", "south"))
        other.core.carries(site.name, [Carries("dead")])
    yield a, b, c
    for site in (a, b, c):
        site.q().check()
        assert canonical(site.core.durable_state()) == canonical(site.folded())


def letters_at(site: Linked) -> list[bytes]:
    """Bodies in the queue of dead letters that are dead letters to the site."""
    found = site.core.letters_among(np.array(sorted(site.rows), dtype=np.int64)).tolist()
    return [bytes(batch.bodies[row]) for batch, row in map(site.rows.__getitem__, found)]


def kill(site: Linked, *bodies: bytes) -> None:
    """Messages die in `q`."""
    site.publish("q", *bodies)
    consumer = site.subscribe(site.q())
    for lsn in list(site.inbox[consumer]):
        site.core.settle(site.now, site.q(), [range(lsn, lsn + 1)], Verb.EXPIRE, by=consumer)
        site.turn()
    site.core.unsubscribe(site.now, consumer, requeue=True)
    site.turn()


def test_letters_are_told_as_letters_and_forged_ones_are_not(sites: tuple[Linked, Linked, Linked]) -> None:
    a, b, c = sites
    a.publish("dead", b"forged", b"too", properties=FORGED)
    kill(a, b"1", b"2")
    a.publish("dead", b"later", properties=FORGED)
    kill(a, b"3")
    assert letters_at(a) == [b"1", b"2", b"3"]
    a.send(b)
    b.send(c)
    assert letters_at(b) == letters_at(c) == [b"1", b"2", b"3"]
    for site in (b, c):
        assert site.q("dead").ready + site.q("dead").foreign_count == 6


def test_what_is_there_after_a_start_is_what_was(sites: tuple[Linked, Linked, Linked]) -> None:
    a, b, _ = sites
    a.publish("dead", b"forged", properties=FORGED)
    kill(a, b"1", b"2")
    a.send(b)
    assert letters_at(b) == [b"1", b"2"]
    b.restart(clean=True)
    assert letters_at(b) == [b"1", b"2"]


@pytest.mark.parametrize("lie", [1, 0, "yes", None, [], {}])
def test_a_piece_says_yes_or_no(lie: object) -> None:
    piece = [[22], "/", "", [], 1, 0, lie]
    with pytest.raises(ValueError, match="does not say whether they are dead letters"):
        read(orjson.dumps({"upto": 9, "pieces": [piece]}), None)


def test_a_letter_that_is_moved_stays_one_everywhere(sites: tuple[Linked, Linked, Linked]) -> None:
    """What is redriven is none any more, and what a publisher forged becomes none by moving."""
    a, b, c = sites
    for site in sites:
        site.declare("parked")
    for site, other in ((a, b), (b, c)):
        site.link(other, Carries("dead"), Carries("parked"), pass_through=("east", "west", "south"))
        other.core.carries(site.name, [Carries("dead"), Carries("parked")])
    a.publish("dead", b"forged", properties=FORGED)
    kill(a, b"1", b"2")
    a.publish("dead", b"plain")
    kill(a, b"3")
    for reason, bodies in ((MOVED, (b"forged", b"1", b"2", b"plain")), (REDRIVEN, (b"3",))):
        dead = [lsn for chunk in a.q("dead").snapshot()[0] for lsn in chunk]
        lsns = sorted(lsn for lsn in dead if a.rows[lsn][0].bodies[a.rows[lsn][1]] in bodies)
        rows = [a.rows[lsn] for lsn in lsns]
        batch = Publishes(
            a.core.topic("/", "", "parked"), [one.properties_of(row) for one, row in rows],
            [one.bodies[row] for one, row in rows],
        )  # fmt: skip
        assert a.core.move_messages(a.now, a.q("dead"), a.q("parked"), lsns, batch, reason) == len(lsns)
        a.turn()
    a.send(b)
    b.send(c)

    def parked(site: Linked) -> list[bytes]:
        there = np.array([lsn for chunk in site.q("parked").snapshot()[0] for lsn in chunk], dtype=np.int64)
        return [
            bytes(one.bodies[row]) for one, row in map(site.rows.__getitem__, site.core.letters_among(there).tolist())
        ]

    assert [parked(site) for site in sites] == [[b"1", b"2"]] * 3
    for site in sites:
        site.restart(clean=True)
    assert [parked(site) for site in sites] == [[b"1", b"2"]] * 3
