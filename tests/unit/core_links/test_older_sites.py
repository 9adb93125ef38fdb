"""Sites of two versions that are linked, and what an older version has left: words and bytes as that one wrote them.

The older one knew of queues that are gone their names alone, in its checkpoints, and said nothing of them over links.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.core.effects import Verb
from penstock.core.links.lasting import Gone, LinkState, load_gone
from penstock.core.links.sharing import (
    ENDED_MOST,
    Ended,
    Identity,
    Lacking,
    Sharing,
    dump_ends,
    load_ends,
    load_offer,
    says_end,
)
from penstock.core.sizes import Sizes
from penstock.core.state.durable import DurableState, canonical
from penstock.core.state.objects import Objects
from penstock.records.entries import Control
from penstock.records.kinds import Kind
from penstock.server.links.calling import hello_words
from penstock.wire.flight.commands import Link
from penstock.wire.flight.linking import read_heard
from penstock.wire.flight.tickets import parse_exchange
from sim.sites_steps import Steps
from unit.core.world import World
from unit.core_links.test_deleting import delete, lend, pair, states
from unit.core_links.test_linking import Linked

DATA = Path(__file__).resolve().parents[2] / "data"

OFFER = (
    b'{"identity":["/","q","distributed",""],"topic":["","q"],"filter":null,"initial_owner":null,"logged":true,'
    b'"sends":true,"barriers":null,"since":%d}'
)
SITES = b'"sites":[["a","11",""],["b","22",""]]'

HELLO = b'{"link":{"name":"b","site":"a","origin":"11","group":"","sync":false,"offers":[%s],%s}}' % (OFFER % 4, SITES)
WELCOME = b'{"welcome":{"site":"b","origin":"22","group":"","has":0,"offers":[%s],%s}}' % (OFFER % 4, SITES)
PARCELS = (
    b'{"upto":11,"told":[["/","q",[11,6,8]]]}',
    b'{"upto":13,"told":[["/","q",[11,8,9]]]}',
    b'{"upto":14,"offers":[%s]}' % (OFFER % 14),
)
"""As the older one wrote them, whose queue took the messages 6 to 8, and went and came again."""

END = b'{"identity":["/","q","distributed",""],"since":4,"until":13}'
"""As one version has said it among offers."""

KNOWN = {
    "hello": {"name", "site", "origin", "group", "sync", "offers", "sites"},
    "welcome": {"site", "origin", "group", "has", "offers", "sites"},
}
"""What the older one takes: a further word it refuses."""


def as_older(state: DurableState) -> bytes:
    """The bytes that the older version wrote of a state."""
    data = state.encode()
    magic, version, length = struct.unpack_from("<8sII", data)
    head = orjson.loads(data[16 : 16 + length])
    assert head.pop("gone")
    assert head["departed"]
    words = orjson.dumps(head)
    return struct.pack("<8sII", magic, version, len(words)) + words + data[16 + length :]


def older_takes(offers: list[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """The queues that the older one hears of: everything in the list was an offer to it, with words it passes over."""
    return {offer.identity[:2] for offer, _ in map(load_offer, offers)}


def test_a_state_of_an_older_version_knows_the_queues_that_are_gone() -> None:
    """Their names are all that it had; they ended before it was written."""
    state = DurableState.decode((DATA / "state_v4_departed.bin").read_bytes())
    assert state.gone == {
        1: Gone("/", "q", "", None, ("", ""), 99), 2: Gone("v", "gone", "", None, ("", ""), 99),
    }  # fmt: skip
    assert state.links == {1: LinkState(heard=7, acked=8, floor=3)}
    assert [one[:4] for one in state.early] == [(4, 22, 50, 52)]
    again = state.encode()
    assert DurableState.decode(again) == state
    assert orjson.loads(again[16 : 16 + struct.unpack_from("<8sII", again)[2]])["departed"] == [
        [1, "/", "q"], [2, "v", "gone"],
    ], "a member that is older reads it"  # fmt: skip


def test_what_was_done_in_a_queue_that_went_is_told_from_an_older_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair()
    worker = lend(a, b, 2, b"0", b"1")
    first = b.inbox[worker][0]
    b.core.settle(b.now, b.q(), [range(first, first + 2)], Verb.ACK, by=worker)
    b.turn()
    delete(b)
    monkeypatch.setattr(World, "folded", lambda site, cuts: DurableState.decode(as_older(_folded(site, cuts))))
    b.restart(clean=False)
    monkeypatch.undo()
    [gone] = b.core.departed.values()
    assert not gone.kind
    b.link(a)
    assert b.core.ends("a") == [], "from when to when it was one queue nobody knows"
    b.send(a)
    assert states((a,)) == [(0, 0, 0)]
    b.core.note_link(b.now, "a", acked=b.core.last_lsn)
    for _ in range(3):
        b.advance(2)
        b.core.asks(b.now)
        b.turn()
    assert not b.core.departed


_folded = World.folded


def spoken(site: Linked, to: Linked) -> Link:
    sites = site.core.peers.sites
    found = parse_exchange(hello_words(to.name, sites[0], site.core.said_to(to.name), sites.values(), sync=False))
    assert isinstance(found, Link)
    return found


def test_a_site_takes_what_an_older_one_says() -> None:
    steps = Steps("ab")
    a, b = steps.a, steps.b
    hello, welcome = parse_exchange(HELLO), read_heard(WELCOME).welcome
    assert isinstance(hello, Link)
    assert welcome is not None
    assert b.core.share("a", hello.offers) == []  # type: ignore[arg-type]
    assert a.core.share("b", welcome.offers) == []  # type: ignore[arg-type]
    assert b.core.sharing.with_site(b.queue.id, "a") == (4, (), 4, None)
    a.publish("q", b"0", b"1", b"2")
    a.sync()
    steps.send("ab")
    assert b.queue.foreign_count == 3
    for head in PARCELS:
        assert b.core.hear(b.now, "a", head, None).faults == ()
    b.turn()
    assert b.queue.foreign_count == 0
    assert b.core.sharing.with_site(b.queue.id, "a") == (14, (), 14, None)


@pytest.mark.parametrize("alone", [False, True])
def test_both_ways_to_say_that_a_queue_is_gone_are_heard(alone: bool) -> None:
    """Among offers, each by itself; and as a word beside an offer of no queue."""
    steps = Steps("ab")
    b = steps.b
    beside = {**orjson.loads(OFFER % 0), "identity": ["", "", "", ""], "ends": [orjson.loads(END)]}
    said = orjson.loads(END) if alone else beside
    assert says_end(said)
    assert b.core.share("a", [said], more=True) == []
    assert b.core.sharing.with_site(b.queue.id, "a") is None
    one = Identity("/", "q", "distributed", "")
    assert [b.core.sharing.had(b.queue.id, one, "a", lsn) for lsn in (3, 4, 12, 13)] == [False, True, True, False]


def test_who_owned_the_messages_of_a_queue_first_that_is_gone_stands_where_an_older_one_does_not_look() -> None:
    """In checkpoints, and in what is said of it."""
    gone = Gone("/", "q", "group-local", "d", ("x", "k"), 60, "b")
    vhost, name, kind, domain, topic, until = gone.dump()
    assert load_gone(*gone.dump()) == gone  # type: ignore[arg-type]
    assert Gone(vhost, name, kind, domain, (topic[0], topic[1]), until) == gone._replace(owner="")  # type: ignore[index, arg-type]
    assert load_gone("/", "q", "distributed", None, ["x", "k"], 60).owner == ""
    one = Identity("/", "q", "group-local", "d")
    [said] = dump_ends([(one, Ended(4, 13, "b", ("x", "k")))])
    assert load_ends(said) == [(one, Ended(4, 13, "b", ("x", "k")))]
    assert load_ends({"ends": [orjson.loads(END)]})[0][1] == Ended(4, 13)
    known = Sharing()
    known.hear("a", [], load_ends(said), more=True)
    assert list(known.first_owned_by("b")) == [Lacking(one, ("x", "k"))]
    assert list(known.first_owned_by("c")) == []


def test_an_older_site_takes_what_is_said_of_queues_that_are_gone() -> None:
    a, b = pair()
    b.publish("q", b"0")
    delete(b)
    b.declare("q")
    b.publish("q", b"1")
    for head in [one.head for one in b.send(a)]:
        table = orjson.loads(head)
        assert table.keys() <= {"upto", "pieces", "told", "numbers", "offers"}
        assert older_takes(table.get("offers", [])) <= {("/", "q"), ("", "")}
    said = b.core.said_to("a")
    assert any(says_end(one) for one in said)
    assert older_takes(said) == {("/", "q"), ("", "")}, "and no queue is called nothing"
    assert orjson.loads(HELLO)["link"].keys() == KNOWN["hello"]
    hello = hello_words("a", b.core.peers.sites[0], said, b.core.peers.sites.values(), sync=False)
    assert orjson.loads(hello)["link"].keys() == KNOWN["hello"]
    assert orjson.loads(WELCOME)["welcome"].keys() == KNOWN["welcome"]
    assert len(spoken(b, a).offers) == 2


def test_that_all_have_heard_of_an_end_says_nothing_to_an_older_member() -> None:
    """It takes the record for one of the links to some other site, and reads no word in it that it knows."""
    _, b = pair()
    delete(b)
    b.core.note_link(b.now, "a", acked=b.core.last_lsn)
    for _ in range(3):
        b.advance(2)
        b.core.asks(b.now)
        b.turn()
    assert not b.core.departed
    [record] = [
        one for one in b.entries if isinstance(one, Control) and one.kind is Kind.LINK and b'"ended"' in one.header
    ]  # fmt: skip
    header = orjson.loads(record.header)
    assert header.keys() == {"peer", "ended"}
    assert b.core.peers.sites[header["peer"]].name == record.name == "a"
    before = LinkState(heard=7, acked=8)
    assert before.told(header) == before
    assert canonical(b.core.durable_state()) == canonical(b.folded(3))


def test_a_record_that_named_this_site_is_still_read() -> None:
    _, b = pair()
    delete(b)
    state = b.folded(1)
    assert state.gone
    objects = Objects(state, Sizes())
    objects.fold(Kind.LINK, state.last_lsn + 1, "", b'{"peer":0,"ended":%d}' % state.last_lsn, b"", 0, 0)
    assert not objects.save(state.last_lsn + 1).gone
    assert objects.save(state.last_lsn + 1).links == state.links


def test_so_many_ends_of_a_site_are_remembered() -> None:
    """The youngest of them; and no more are read at once."""
    steps = Steps("ab")
    b = steps.b
    ends = [{"identity": ["/", "q", "distributed", ""], "since": 3 * n, "until": 3 * n + 2} for n in range(2000)]
    for at in range(0, 2000, 100):
        b.core.share("a", [{**orjson.loads(OFFER % 0), "identity": [""] * 4, "ends": ends[at : at + 100]}], more=True)
    one = Identity("/", "q", "distributed", "")
    b.core.sharing.say("a", {})
    had = [n for n in range(2000) if b.core.sharing.had(b.queue.id, one, "a", 3 * n)]
    assert had == list(range(2000 - ENDED_MOST, 2000))
    with pytest.raises(ValueError, match="there are 2000 of them"):
        b.core.share("a", [{"ends": ends}], more=True)


def test_a_queue_that_is_declared_anew_here_knows_what_ended_there_before() -> None:
    """The order in which the two sites have theirs anew is of no account."""
    steps = Steps("ab")
    a, b = steps.a, steps.b
    a.publish("q", b"0")
    a.sync()
    delete_q(a)
    steps.heal(("a", "b"))
    delete_q(b)
    b.declare("q")
    steps.send("ab")
    assert (b.queue.ready, b.queue.foreign_count) == (0, 0), "what was a's own went with its queue"


def delete_q(site: Any) -> None:
    site.core.delete_queue(site.now, site.queue)
    site.turn()
    site.sync()
