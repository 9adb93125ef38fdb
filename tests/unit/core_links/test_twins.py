"""Publishers that change sides: what they sent to two sites is worked once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest

from choices import SEED
from penstock.core.audit_log import Audit
from penstock.core.effects import Verb
from penstock.core.links.carried import KEPT, Carries, Numbered, Sequences, Twin
from penstock.core.state.durable import canonical
from penstock.records.entries import Publishes
from unit.core.world import DURABLE, World, header
from unit.core_links.test_linking import Linked


@pytest.fixture
def pair() -> Iterator[tuple[Linked, Linked]]:
    a, b = Linked("a"), Linked("b")
    for site, other in ((a, b), (b, a)):
        site.declare("q")
        site.core.carries(other.name, [Carries(".*")])
    assert a.link(b) == b.link(a) == []
    yield a, b
    for site in (a, b):
        site.q().check()
        assert canonical(site.core.durable_state()) == canonical(site.folded())
        audit = Audit()
        for table in site.tables:
            for batch in table.to_batches():
                audit.feed(batch)
        assert audit.finish(site.folded()).findings == []


def send(site: Linked, *sequences: int) -> None:
    """A publisher numbers its messages; their bodies are their numbers."""
    batch = Publishes(site.core.topic("/", "", "q"), DURABLE, [b"%d" % n for n in sequences])
    site.core.publish(site.now, batch, publisher="p", sequence=sequences[0])
    site.turn()


def level(a: Linked, b: Linked) -> None:
    """Both tell each other all that there is."""
    while a.send(b) or b.send(a):
        for site in (a, b):
            site.core.asks(site.now)
            site.turn()


def test_thousands_that_were_sent_to_two_sites_are_parted_at_once(pair: tuple[Linked, Linked]) -> None:
    """Each looked through all the others: a publisher that changed sides stopped a server for a minute."""
    a, b = pair
    began = time.process_time()
    for site in pair:
        send(site, *range(1, 8_001))
    level(a, b)
    assert (a.q().ready, b.q().ready, b.q().foreign_count) == (8_000, 0, 8_000)
    assert (a.core.twins, b.core.twins) == (set(), set())
    assert time.process_time() - began < 5


def bodies(site: Linked) -> list[bytes]:
    return site.contents(site.q())


def test_what_was_sent_to_two_sites_is_worked_at_the_lower_origin(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    send(a, 1, 2, 3, 4, 5)
    send(b, 3, 4, 5, 6, 7)
    level(a, b)
    for site in pair:
        assert sorted(bodies(site)) == [b"%d" % n for n in range(1, 8)]
    assert (a.q().ready, b.q().ready) == (5, 2)
    for site in pair:
        site.restart(clean=False)
        assert site.core.twins == set()


def test_what_somebody_works_on_is_done_for_both(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    send(a, 1, 2)
    send(b, 1, 2)
    worker = b.subscribe(b.q(), max_backlog=2)
    first, second = b.inbox[worker]
    level(a, b)
    assert (a.q().ready, a.q().foreign_count, b.q().leased, b.q().foreign_count) == (2, 2, 2, 2)
    b.core.settle(b.now, b.q(), [range(first, first + 1)], Verb.ACK, by=worker)
    b.core.unsubscribe(b.now, worker, requeue=True)
    level(a, b)
    assert bodies(a) == bodies(b) == [b"2"], "who was done is done at both; the other is the one of the lower origin"
    assert (a.q().ready, b.q().foreign_count) == (1, 1)
    assert second > first


@pytest.mark.parametrize("kept", [True, False])
def test_what_was_worked_before_the_other_one_came_is_not_worked_again(pair: tuple[Linked, Linked], kept: bool) -> None:
    a, b = pair
    done, late = (a, b) if kept else (b, a)
    send(done, 1, 2)
    worker = done.subscribe(done.q(), max_backlog=1)
    held = done.inbox[worker][0]
    done.core.settle(done.now, done.q(), [range(held, held + 1)], Verb.ACK, by=worker)
    done.core.unsubscribe(done.now, worker, requeue=True)
    done.turn()
    send(late, 1, 2)
    level(a, b)
    assert bodies(a) == bodies(b) == [b"2"]
    assert (a.q().ready, b.q().foreign_count) == (1, 1)


def test_what_has_come_already_is_a_duplicate(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    send(a, 1, 2, 3)
    a.send(b)
    send(b, 2, 3, 4)
    assert sorted(bodies(b)) == [b"1", b"2", b"3", b"4"]
    numbered = header(headers={"x-publisher": "p", "x-sequence": 4})
    b.publish("q", b"again", properties=numbered)
    assert len(bodies(b)) == 4
    b.publish("q", b"5", properties=header(headers={"x-publisher": "p", "x-sequence": 5}))
    level(a, b)
    send(a, 5, 6)
    level(a, b)
    assert sorted(bodies(a)) == sorted(bodies(b)) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_a_twin_that_goes_elsewhere_is_let_go_by_its_owner() -> None:
    """And its end there says nothing of the other one."""
    a, b, c = (Linked(name) for name in "abc")
    for site in (a, b, c):
        site.declare("q")
        for other in (a, b, c):
            site.core.carries(other.name, [Carries(".*")])
    for site in (a, b, c):
        for other in (a, b, c):
            if site is not other:
                assert site.link(other) == []
    send(a, 1)
    send(b, 1)
    b.send(c)
    c.subscribe(c.q(), max_backlog=1)
    c.advance(1)
    assert b.core.answer(b.now, "c", c.core.asks(c.now)[0].ask) == 1
    for _ in range(4):
        for site, other in ((b, c), (c, b), (a, c), (c, a), (a, b), (b, a)):
            site.send(other)
    held = c.q().floor()
    assert (a.q().ready, a.q().foreign_count, b.q().foreign_count, c.q().leased) == (1, 1, 2, 1)
    worker = c.q().consumers[0]
    c.core.unsubscribe(c.now, worker, requeue=True)
    c.core.asks(c.now)
    for _ in range(4):
        for site, other in ((c, b), (c, a), (a, c), (b, c), (a, b), (b, a)):
            site.send(other)
            other.core.asks(other.now)
    assert [bodies(site) for site in (a, b, c)] == [[b"1"]] * 3
    assert (a.q().ready, b.q().foreign_count, c.q().foreign_count) == (1, 1, 1)
    assert not c.q().lives(held)


# -- the table


def test_sequences_beside_a_dictionary() -> None:
    random = Random(SEED)
    for _ in range(20):
        table, known, found = Sequences(), dict[tuple[str, int], dict[int, int]](), set[Twin]()
        expected = set[frozenset[int]]()
        lsn = 10
        for _ in range(40):
            publisher, peer, count = random.choice("pq"), random.randrange(3), random.randrange(1, 6)
            sequence = random.randrange(1, 60)
            mine = known.setdefault((publisher, peer), {})
            if any(number in mine for number in range(sequence, sequence + count)):
                continue
            for n in range(count):
                mine[sequence + n] = lsn + n
                for (name, site), others in known.items():
                    if name == publisher and site != peer and sequence + n in others:
                        expected.add(frozenset((lsn + n, others[sequence + n])))
            found.update(table.add(Numbered(publisher, peer, sequence, lsn, count)))
            lsn += count + random.randrange(2)
        assert {frozenset((one.one, one.other)) for one in found} == expected
        again = Sequences(table)
        assert {frozenset((one.one, one.other)) for one in again.twins()} == expected
        assert list(again) == list(table)
        gone = set(random.sample(range(10, lsn), 5))
        again.forget(gone)
        assert {frozenset((one.one, one.other)) for one in again.twins()} == {one for one in expected if not one & gone}


def test_of_a_publisher_the_last_sequences_are_remembered() -> None:
    table = Sequences()
    for n in range(1, 3 * KEPT, 16):
        table.add(Numbered("p", 0, n, 10 * n, 8))
    runs = list(table)
    assert len(runs) < 3 * KEPT // 16
    assert runs[0].sequence < runs[-1].sequence - KEPT


def test_what_is_forgotten_of_twins_is_told_beside_messages_without_a_fault(pair: tuple[Linked, Linked]) -> None:
    """One batch of the log has both: a link read of a publisher that it does not name, and ended."""
    a, b = pair
    send(a, 1)
    send(b, 1)
    a.send(b)
    b.core.asks(b.now)
    b.publish("q", b"more")
    b.turn()
    telling = b.core.telling("a")
    whole = pa.concat_tables(b.tables).combine_chunks().to_batches()
    parcels = [parcel for batch in whole for parcel in telling.parcels(batch)]
    assert {one.publisher for parcel in parcels for one in parcel.numbers} == {"p"}


def test_a_log_says_of_a_publisher_only_what_is_more_than_before() -> None:
    """What a full queue refused for now holds back how far a publisher has come: nothing is said twice of that."""
    world = World()
    world.declare("q", max_length=1, overflow="reject-publish")
    topic = world.core.topic("/", "", "q")
    for sequence in (1, 2, 3, 2):
        world.core.publish(world.now, Publishes(topic, DURABLE, [b"0"]), publisher="p", sequence=sequence)
        world.turn()
    audit = Audit()
    for table in world.tables:
        for batch in table.to_batches():
            audit.feed(batch)
    assert not audit.finish(world.folded()).findings
    world.core.purge_queue(world.now, world.core.queue("/", "q"))
    for sequence in (2, 3, 4):
        world.core.purge_queue(world.now, world.core.queue("/", "q"))
        world.core.publish(world.now, Publishes(topic, DURABLE, [b"0"]), publisher="p", sequence=sequence)
        world.turn()
    assert world.folded().publishers == {"p": 4}
