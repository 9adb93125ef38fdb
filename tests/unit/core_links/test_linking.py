"""Both ends of a link: what one site's log tells another, what that one makes of it, and who asks whom for what."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from choices import SEED
from penstock.core.effects import Verb
from penstock.core.links import parcels
from penstock.core.links.carried import Carries
from penstock.core.links.ownership import Claim
from penstock.core.links.parcels import Parcel, read
from penstock.core.links.sharing import Site
from penstock.core.links.telling import Telling
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import canonical
from penstock.errors import PreconditionFailed
from penstock.expr import compile_filter
from unit.core.world import DURABLE, SECOND, World, header

SITES = {"a": Site("a", 11, "east"), "b": Site("b", 22, "west"), "c": Site("c", 33, "south")}


class Linked(World):
    """A site with links to others."""

    def __init__(self, name: str) -> None:
        super().__init__(origin=SITES[name].origin)
        self.name = name
        self.told = dict[str, int]()  # by site: tables that were told
        self.tellings = dict[str, Telling]()
        for site in (SITES[name], *SITES.values()):
            self.core.meet(self.now, site)
        self.turn()

    def turn(self) -> None:
        super().turn()
        self.core.stamps.note(self.core.last_lsn, self.wall)  # as the server does

    def link(self, other: Linked, *topics: Carries, pass_through: Sequence[str] = ()) -> list[str]:
        """A link to another site; why queues of both cannot be one."""
        self.core.carries(other.name, topics or [Carries(".*")], pass_through)
        self.tellings[other.name] = self.core.telling(other.name, upto=other.core.heard(self.name))
        self.told[other.name] = 0
        other.core.link_up(self.name)
        return other.core.share(self.name, self.core.said_to(other.name))

    def send(self, other: Linked) -> list[Parcel]:
        """Tell another site all that is new."""
        out, telling = list[Parcel](), self.tellings[other.name]
        self.turn()
        while self.told[other.name] < len(self.tables):
            table = self.tables[self.told[other.name]]
            self.told[other.name] += 1
            for batch in table.combine_chunks().to_batches():
                for parcel in list(telling.parcels(batch)):
                    assert read(parcel.head, parcel.rows) == parcel
                    heard = other.core.hear(other.now, self.name, parcel.head, parcel.rows)
                    other.turn()
                    assert heard.faults == ()
                    out.append(parcel)
        return out

    def q(self, name: str = "q") -> Queue:
        found = self.core.queue("/", name)
        assert found is not None
        return found


@pytest.fixture
def pair() -> Iterator[tuple[Linked, Linked]]:
    a, b = Linked("a"), Linked("b")
    for site, other in ((a, b), (b, a)):
        site.declare("q")
        site.core.carries(other.name, [Carries(".*")])
    assert a.link(b) == b.link(a) == []
    yield a, b
    for site in (a, b):
        for queue in site.core.queues():
            queue.check()


def test_what_is_published_here_is_kept_there_and_worked_where_somebody_asks(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    first = a.publish("q", b"0", b"1", b"2").first
    assert [len(one.pieces) for one in a.send(b)] == [1]
    assert (a.q().ready, b.q().ready, b.q().foreign_count) == (3, 0, 3)
    consumer = b.subscribe(b.q(), max_backlog=2)
    assert b.core.asks(b.now) == [], "its owner has consumers, too, as a rule"
    b.advance(1)
    asked = b.core.asks(b.now)
    assert [one.owner for one in asked] == ["a"]
    assert b.core.asks(b.now) == [], "it is under way"
    assert a.core.answer(a.now, "b", asked[0].ask) == 2
    a.send(b)
    assert (a.q().ready, a.q().foreign_count, b.q().leased, b.q().foreign_count) == (1, 2, 2, 1)
    here = b.inbox[consumer]
    assert b.core.told_as(here[0], here[1] + 1) == [(11, first, first + 2)]
    b.core.settle(b.now, b.q(), [range(here[0], here[1] + 1)], Verb.ACK, by=consumer)
    assert len(b.core.asks(b.now)) == 1, "it has room again, and was answered"
    b.send(a)
    assert (a.q().ready, a.q().foreign_count, b.q().leased) == (1, 0, 0)
    assert a.send(b) == [], "who has told it need not hear it"


def test_what_a_durable_stream_settles_is_done_at_every_site(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    a.publish("q", b"0", b"1", b"2")
    a.send(b)
    streams = a.core.streams
    epoch = streams.open(a.now, "s", a.q()).epoch
    assert streams.plan(a.now, "s", epoch, 0, 2).batch == 1
    streams.settle(a.now, "s", epoch, 1)
    a.send(b)
    assert (a.q().ready, b.q().foreign_count) == (1, 1)


def test_a_link_tells_what_it_carries_and_nothing_twice(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    for site in pair:
        site.declare("other")
    a.link(b, Carries("q", filter="/n > 1"), Carries("x.*"))
    a.publish("other", b"{}")
    a.publish("q", b'{"n": 1}', b'{"n": 2}', b'{"n": 3}')
    table = a.tables[-1].to_batches()[0]
    assert [one.pieces[0].rows for one in a.send(b)] == [2]
    assert b.contents(b.q()) == [b'{"n": 2}', b'{"n": 3}']
    assert list(a.tellings["b"].parcels(table)) == []
    a.core.carries("b", [Carries("q")])
    [again] = a.core.telling("b").parcels(table)
    assert again.rows is not None
    assert again.rows.num_rows == 3
    assert b.core.heard("a") == again.upto
    b.core.hear(b.now, "a", again.head, again.rows)
    b.turn()
    assert sorted(b.contents(b.q())) == [b'{"n": %d}' % n for n in (1, 2, 3)], "each once"


def test_what_a_message_is_travels_with_it(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    ttl = header(expiration="5000", priority=3, headers={"x-delay": 2000, "k": "v"})
    a.publish("q", b"0", b"1", properties=ttl)
    a.publish("q", b"2", properties=header(headers={"CC": ["q"], "k": "w"}))
    b.advance(1.5)
    a.send(b)
    assert [(b.q().delayed, b.q().foreign_count) for b in (b,)] == [(2, 1)]
    assert b.headers(max(b.rows))["k"] == "w"
    b.advance(1)
    assert (b.q().delayed, b.q().foreign_count) == (0, 3), "it is due when it is due at its origin"
    b.advance(3)
    assert b.q().foreign_count == 1, "and is over then"


def test_what_is_told_goes_on_to_groups_that_a_link_passes_through() -> None:
    a, b, c = (Linked(name) for name in "abc")
    for site in (a, b, c):
        site.declare("q")
    for one, other in 2 * ((a, b), (b, a), (b, c), (c, b)):  # who is called first carries nothing back yet
        faults = one.link(other, pass_through=("east", "south") if one is b else ())
    assert faults == []
    first = a.publish("q", b"0", b"1").first
    a.send(b)
    assert [piece.path for one in b.send(c) for piece in one.pieces] == [(11, 22)]
    assert b.send(a) == [], "never where it has been"
    assert c.q().foreign_count == 2
    consumer = c.subscribe(c.q())
    here = c.q().floor()
    assert c.core.told_as(here, here + 2) == [(11, first, first + 2)]
    c.advance(1)
    ask = c.core.asks(c.now)[0]
    assert (ask.owner, a.core.answer(a.now, "c", ask.ask)) == ("a", 0), "no link says that both have the queue"
    assert a.core.answer(a.now, "c", ask.ask, via="b") == 2
    a.send(b)
    b.send(c)
    assert len(c.inbox[consumer]) == 2
    b.link(c)
    a.publish("q", b"2")
    a.send(b)
    assert b.send(c) == [], "a link without groups tells what was published here"


def test_queues_are_one_by_what_both_sides_say(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    a.declare("filtered", filter="/n > 1")
    b.declare("filtered")
    a.declare("mine", kind="local")
    b.declare("mine", kind="local")
    a.declare("ours")
    a.declare("grouped", group_key="/k")
    b.declare("grouped")
    told = ["queue 'filtered' in vhost '/': its filter is None here and '/n > 1' there"]
    assert a.link(b) == told
    assert b.link(a)[1:] == [
        "queue 'grouped' in vhost '/': it has groups here, and other sites cannot own messages of such a queue"
    ]
    a.publish("filtered", b'{"n": 2}')
    a.publish("mine", b"0")
    a.publish("ours", b"0")
    a.send(b)
    assert (b.q("filtered").foreign_count, b.q("mine").ready, b.core.find_queue("/", "ours")) == (1, 1, None)
    b.subscribe(b.q("filtered"))
    b.advance(10)
    assert b.core.asks(b.now) == [], "what is no one queue is not given away"


def test_what_a_site_published_before_it_had_the_queue_is_everybodys_own(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    b.declare("late")
    a.core.declare_topic(a.now, "/", "", "late", {})
    a.publish("late", b"0")
    a.declare("late")
    a.publish("late", b"1")
    b.link(a)
    a.link(b)
    a.tables = [pa.concat_tables(a.tables)]  # as if it had been one commit
    a.send(b)
    assert (b.q("late").ready, b.q("late").foreign_count) == (1, 1)


def test_of_an_exchange_that_is_not_here_it_is_said_what_is_left_out(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    a.core.declare_exchange(a.now, "/", "x", "topic")
    a.core.bind(a.now, "/", "x", "q", "queue", "k.*", {})
    a.link(b, Carries(".*", exchange="x"))
    a.publish("k.1", b"0", exchange="x")
    [parcel] = a.tellings["b"].parcels(a.tables[-1].to_batches()[0])
    said = b.core.hear(b.now, "a", parcel.head, parcel.rows).faults
    assert said == ("1 messages are left out: no exchange 'x' in vhost '/'",)


def test_a_parcel_that_cannot_be_read_is_refused(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    a.publish("q", b"0")
    [parcel] = a.tellings["b"].parcels(a.tables[-1].to_batches()[0])
    assert parcel.rows is not None
    for head, rows in (
        (b"{", parcel.rows), (b"{}", parcel.rows), (parcel.head, None), (parcel.head, parcel.rows.slice(1)),
        (parcel.head, parcel.rows.rename_columns([*parcel.rows.schema.names[1:], "x"])),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="parcel of a link"):
            b.core.hear(b.now, "a", head, rows)
    with pytest.raises(ValueError, match="ask of a link"):
        b.core.answer(b.now, "a", b"[1]")
    before = canonical(b.core.durable_state())
    random, said = Random(SEED), parcel.head
    for _ in range(400):
        head = bytearray(said)
        for _ in range(random.randint(1, 3)):
            head[random.randrange(len(head))] = random.choice(b'0123456789-[]{}",:aenru. ')
        try:
            changed = read(bytes(head), parcel.rows)
        except ValueError as error:
            assert "parcel of a link" in str(error)  # noqa: PT017
            with pytest.raises(ValueError, match="parcel of a link"):
                b.core.hear(b.now, "a", bytes(head), parcel.rows)
        else:
            assert changed.rows is parcel.rows
    for column, values in ((0, [None]), (0, [0]), (1, [None]), (6, [None])):
        wrong = parcel.rows.set_column(
            column, parcel.rows.schema.field(column), pa.array(values, parcel.rows.schema.types[column])
        )
        with pytest.raises(ValueError, match="parcel of a link"):
            b.core.hear(b.now, "a", said, wrong)
    for unmet in (
        parcel._replace(pieces=(parcel.pieces[0]._replace(path=(99,)),)),
        parcel._replace(told=(parcels.Told("/", "q", ((11, 1, 2),), Claim("d", 1, "transfer")),)),
    ):
        with pytest.raises(PreconditionFailed, match="no site"):
            b.core.hear(b.now, "a", unmet.head, unmet.rows)
    assert canonical(b.core.durable_state()) == before
    with pytest.raises(ValueError, match="what a site says of a queue"):
        b.core.share("a", [{"since": 1}])


def test_asking_stops_where_nobody_could_take_it(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    a.publish("q", b"0", b"1")
    a.send(b)
    b.advance(1)
    assert b.core.asks(b.now) == []
    b.subscribe(b.q(), max_backlog=5)
    b.core.pause_queue(b.now, b.q())
    assert b.core.asks(b.now) == []
    b.core.resume_queue(b.now, b.q())
    assert len(b.core.asks(b.now)) == 1
    b.wall += 10 * SECOND
    assert len(b.core.asks(b.now)) == 1, "nobody answered"


def test_what_is_much_goes_in_several_parcels(pair: tuple[Linked, Linked], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair
    monkeypatch.setattr(parcels, "SPANS_MOST", 2)
    monkeypatch.setattr(parcels, "PIECES_MOST", 3)
    a.core.declare_exchange(a.now, "/", "x", "topic")
    b.core.declare_exchange(b.now, "/", "x", "topic")
    for site in pair:
        site.core.bind(site.now, "/", "x", "q", "queue", "q", {})
    a.core.carries("b", [Carries("q"), Carries("q", exchange="x")])
    a.tellings["b"] = a.core.telling("b")
    topics = [a.core.topic("/", exchange, "q") for exchange in ("", "x")]
    a.publish_all(*((topics[n % 2], DURABLE, b"%d" % n) for n in range(8)))
    sent = a.send(b)
    assert [len(one.pieces) for one in sent] == [3, 3, 2]
    assert len({one.upto for one in sent[:-1]} | {b.core.heard("a")}) == 2
    assert b.contents(b.q()) == [b"%d" % n for n in range(8)]
    first = a.q().floor()
    wanted = array("q", [first, first + 2, first + 3, first + 5, first + 7])
    consumer = a.subscribe(a.q(), max_backlog=9)
    a.core.settle(a.now, a.q(), [wanted], Verb.ACK, by=consumer)
    sent = a.send(b)
    assert [sum(len(told.spans) for told in one.told) for one in sent] == [2, 2]
    assert b.q().foreign_count == 3
    monkeypatch.setattr(parcels, "BYTES_MOST", 300)
    a.publish("q", *(b"." * 200 for _ in range(4)))
    assert len(a.send(b)) > 1
    assert b.q().foreign_count == 7


def test_a_site_acts_for_one_that_is_away_where_an_operator_says_so(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    first = a.publish("q", b"0", b"1", b"2").first
    a.send(b)
    consumer = b.subscribe(b.q(), max_backlog=2)
    b.core.absent.add("a")
    b.core.asks(b.now)
    assert b.q().foreign_count == 3, "never by itself"
    b.core.proxy(b.now, b.q(), True, by="ann")
    b.core.asks(b.now)
    b.turn()
    assert (len(b.inbox[consumer]), b.q().foreign_count) == (2, 1)
    c = Site("c", 33)
    a.core.own(a.now, a.q(), [(first, first + 1)], a.q().claims(a.core.peers).of(first).to(c.name, "transfer"))
    a.send(b)
    b.send(a)
    assert [site.q().claims(site.core.peers).of(site.q().floor()).owner for site in pair] == ["c", "c"]
    assert [site.core.stats(site.q(), site.now)["double"] for site in pair] == [1, 1]


def test_what_is_over_is_forgotten_when_all_links_have_told_it(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    a.publish("q", b"0", b"1")
    a.send(b)
    consumer = a.subscribe(a.q(), max_backlog=9)
    a.core.settle(a.now, a.q(), [range(a.inbox[consumer][0], a.inbox[consumer][1] + 1)], Verb.ACK, by=consumer)
    a.publish("q", b"2")
    a.send(b)
    for _ in range(3):
        b.advance(2)
        b.core.asks(b.now)
    assert sum(run[2] for run in b.core.carried[1].runs) == 3, "a has not heard yet that they are settled here, too"
    b.send(a)
    b.core.note_link(b.now, "a", acked=b.core.last_lsn)
    b.advance(2)
    b.core.asks(b.now)
    b.turn()
    assert [run[2] for run in b.core.carried[1].runs if run[1]] == [1]
    assert canonical(b.core.durable_state()) == canonical(b.folded())


def test_of_queues_that_come_and_go_a_link_keeps_nothing(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    for number in range(9):
        queue = a.declare(f"passing {number}")
        a.send(b)
        a.core.alter_queue(a.now, queue, replace(queue.settings, max_length=number + 1))
        a.send(b)
        a.core.delete_queue(a.now, queue)
        a.send(b)
    assert not a.tellings["b"]._said
    assert set(b.core.sharing.offered["a"]) == {("/", "q")}


def test_who_asks_waits_for_as_long_as_acks_take(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    consumer = a.subscribe(a.q(), max_backlog=1)
    for _ in range(30):
        a.publish("q", b"0", b"1")
        a.send(b)
        for site in pair:
            site.advance(0.5)
        for _ in range(2):
            held = a.inbox[consumer][-1]
            a.core.settle(a.now, a.q(), [range(held, held + 1)], Verb.ACK, by=consumer)
            a.turn()
        a.send(b)
    a.publish("q", b"0", b"1")
    a.send(b)
    b.subscribe(b.q(), max_backlog=1)
    b.advance(0.3)
    assert b.core.asks(b.now) == []
    b.advance(0.3)
    assert len(b.core.asks(b.now)) == 1


def test_what_a_stream_has_settled_is_done_everywhere(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    a.publish("q", *(b"%d" % n for n in range(6)))
    epoch = a.core.streams.open(a.now, "s", a.q()).epoch
    for batch in range(2):
        a.core.streams.plan(a.now, "s", epoch, batch, 2)
    a.send(b)
    assert b.q().foreign_count == 4, "who plans the next one has done with the one before"
    a.core.streams.settle(a.now, "s", epoch, 2)
    a.turn()
    a.send(b)
    assert (a.q().ready, b.contents(b.q())) == (2, [b"4", b"5"])


def test_who_filters_asks_for_what_the_filter_wants(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    a.publish("q", *(b'{"n": %d}' % (n % 3) for n in range(9)))
    a.send(b)
    consumer = b.subscribe(b.q(), max_backlog=2, filter=compile_filter("/n = 1"))
    b.advance(1)
    for _ in range(3):
        asked = b.core.asks(b.now)
        b.turn()
        for one in asked:
            assert a.core.answer(a.now, "b", one.ask) == len(parcels.read_ask(one.ask)[2])
            a.send(b)
    assert [b.rows[lsn][0].bodies[b.rows[lsn][1]] for lsn in b.inbox[consumer]] == [b'{"n": 1}'] * 2
    assert (a.q().ready, a.q().foreign_count, b.q().foreign_count, b.q().ready) == (7, 2, 7, 0)
    b.core.settle(b.now, b.q(), [range(lsn, lsn + 1) for lsn in b.inbox[consumer]], Verb.ACK, by=consumer)
    b.turn()
    for one in b.core.asks(b.now):
        a.core.answer(a.now, "b", one.ask)
    a.send(b)
    assert len(b.inbox[consumer]) == 3
    assert b.core.asks(b.now) == [], "nothing else is wanted"


def test_an_ack_by_the_bookmark_of_another_site_is_one_here(pair: tuple[Linked, Linked]) -> None:
    """It was remembered for a message that had come already, and never applied."""
    a, b = pair
    first = a.publish("q", b"0", b"1", b"2").first
    a.send(b)
    assert b.core.acknowledge(b.now, b.q(), {11: range(first, first + 2)}) == 2
    b.turn()
    assert b.q().foreign_count == 1
    b.send(a)
    assert a.q().ready == 1
    later = a.publish("q", b"3", b"4").first
    b.core.acknowledge(b.now, b.q(), {11: range(first + 2, later + 1)})
    b.turn()
    a.send(b)
    assert b.q().foreign_count == 1, "what had not come is remembered for it"


def test_what_no_link_has_spoken_of_since_the_start_is_not_forgotten(pair: tuple[Linked, Linked]) -> None:
    """A site that had started asked before its links were up, and no longer knew where others' messages stand."""
    a, b = pair
    first = a.publish("q", b"0").first
    a.send(b)
    b.restart(clean=True)
    b.core.carries("a", [Carries(".*")])
    for _ in range(3):
        b.core.asks(b.now)
        b.core.note_link(b.now, "a", acked=b.core.last_lsn)
        b.advance(2)
    assert b.link(a) == a.link(b) == []
    a.core.settle(a.now, a.q(), [range(first, first + 1)], Verb.ACK)
    a.turn()
    a.send(b)
    assert b.q().foreign_count == 0


def test_what_only_came_from_a_site_says_nothing_to_it_and_is_not_looked_at(pair: tuple[Linked, Linked]) -> None:
    a, b = pair
    b.send(a)
    for _ in range(3):
        before = b.core.last_lsn
        a.publish("q", b"0", b"1")
        a.send(b)
        assert b.core.quiet["a"][0] <= before
        assert b.core.quiet["a"][1] == b.core.last_lsn
    b.publish("q", b"2")
    mine = b.core.last_lsn
    a.publish("q", b"3")
    a.send(b)
    assert b.core.quiet["a"] == (mine, b.core.last_lsn)
    assert len(b.send(a)) == 1
    upto = b.core.quiet["a"][1]
    a.publish("q", b"4", properties=header(expiration="1"))
    b.advance(5)
    a.send(b)
    assert b.core.quiet["a"][1] == upto < b.core.last_lsn, "it is over here, which may be news"
