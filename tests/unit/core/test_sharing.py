"""A queue that another site shares: what is given away, what is heard, and what becomes of it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.config.queue_arguments import read_policy
from penstock.core.audit_log import Audit
from penstock.core.commands.links import UNKNOWN
from penstock.core.effects import Verb
from penstock.core.links.lasting import LinkState
from penstock.core.links.ownership import Claim, Grant
from penstock.core.links.sharing import Site
from penstock.core.queue.explaining import explain_message, explain_queue
from penstock.core.state.durable import canonical
from penstock.errors import PreconditionFailed
from penstock.operations.story import Teller
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings
from penstock.records.schema import SITES_MOST
from unit.core.world import DURABLE, SECOND, World, header


@pytest.fixture
def world() -> Iterator[World]:
    world = World(origin=7)
    world.declare("q", dead_letter_exchange="", dead_letter_routing_key="letters")
    world.declare("letters")
    for name, origin in (("a", 7), ("b", 8), ("c", 9)):
        world.core.meet(world.now, Site(name, origin, "east"))
    yield world
    for queue in world.core.queues():
        queue.check()


def grant(world: World, first: int, stop: int, asker: str = "b") -> list[Grant]:
    queue = world.core.queue("/", "q")
    out = world.core.grant(world.now, queue, [(first, stop)], asker)
    world.turn()
    return out


def hear(world: World, first: int, stop: int, claim: Claim) -> int:
    out = world.core.own(world.now, world.core.queue("/", "q"), [(first, stop)], claim)
    world.turn()
    return out


def test_what_is_ready_is_given_to_who_asks_and_nobody_here_gets_it(world: World) -> None:
    queue, first = world.core.queue("/", "q"), world.publish("q", b"0", b"1", b"2").first
    assert grant(world, first, first + 2) == [Grant(first, first + 2, Claim("b", 1, "transfer"))]
    consumer = world.subscribe(queue)
    assert world.inbox[consumer] == [first + 2]
    assert (queue.ready, queue.leased, queue.foreign_count) == (0, 1, 2)
    stats = world.core.stats(queue, world.now)
    assert [stats[key] for key in ("foreign", "owned", "transferred_in", "transferred_out")] == [2, 1, 0, 2]
    assert grant(world, first, first + 3, "c") == [], "the first who asked has it, and the other is leased"


def test_nobody_is_given_what_a_halted_queue_has(world: World) -> None:
    first = world.publish("q", b"0").first
    world.core.pause_queue(world.now, world.core.queue("/", "q"))
    assert grant(world, first, first + 1) == []


def test_what_was_given_to_this_site_is_ready(world: World) -> None:
    queue, first = world.core.queue("/", "q"), world.publish("q", b"0", b"1").first
    assert hear(world, first, first + 2, Claim("b", 1, "transfer")) == 2
    consumer = world.subscribe(queue)
    assert hear(world, first + 1, first + 2, Claim("a", 2, "transfer")) == 1
    assert world.inbox[consumer] == [first + 1]
    assert hear(world, first, first + 2, Claim("b", 1, "transfer")) == 0, "an older claim changes nothing"
    assert world.core.stats(queue, world.now)["transferred_in"] == 1


def test_a_lease_goes_on_when_its_message_changes_its_owner(world: World) -> None:
    queue, first = world.core.queue("/", "q"), world.publish("q", b"0", b"1").first
    consumer = world.subscribe(queue, no_ack=False)
    assert hear(world, first, first + 2, Claim("b", 1, "proxied")) == 2
    assert (queue.leased, queue.foreign_count) == (2, 0)
    world.core.settle(world.now, queue, [range(first, first + 1)], Verb.ACK, by=consumer)
    world.core.settle(world.now, queue, [range(first + 1, first + 2)], Verb.RELEASE, by=consumer)
    world.turn()
    assert (queue.ready, queue.leased, queue.foreign_count) == (0, 0, 1)
    assert world.inbox[consumer] == [first, first + 1]


def test_an_ack_from_anywhere_settles_it(world: World) -> None:
    queue, first = world.core.queue("/", "q"), world.publish("q", b"0", b"1").first
    grant(world, first, first + 2)
    assert world.core.acknowledge(world.now, queue, {7: range(first, first + 1)}) == 1
    assert queue.foreign_count == 1
    assert grant(world, first, first + 1, "c") == []


def test_what_expires_elsewhere_has_its_dead_letter_there(world: World) -> None:
    queue, letters = world.core.queue("/", "q"), world.core.queue("/", "letters")
    first = world.publish("q", b"0", b"1", properties=header(expiration="5000")).first
    grant(world, first, first + 1)
    world.advance(6)
    assert (queue.ready, queue.foreign_count, letters.ready) == (0, 0, 1)


def test_all_of_it_lasts(world: World) -> None:
    first = world.publish("q", *(b"%d" % n for n in range(6))).first
    grant(world, first, first + 2)
    hear(world, first + 1, first + 3, Claim("c", 4, "proxied"))
    hear(world, first + 2, first + 3, Claim("a", 5, "transfer"))
    before = list(world.core.queue("/", "q").claims(world.core.peers).spans())
    world.restart(clean=False)
    queue = world.core.queue("/", "q")
    assert list(queue.claims(world.core.peers).spans()) == before
    assert [claim.owner for _, _, claim in queue.foreign_spans()] == ["b", "c"]
    assert (queue.ready, queue.foreign_count) == (4, 2)
    assert world.core.peers.sites == {0: Site("a", 7, "east"), 1: Site("b", 8, "east"), 2: Site("c", 9, "east")}


def test_a_site_may_be_called_otherwise(world: World) -> None:
    first = world.publish("q", b"0", b"1").first
    grant(world, first, first + 1)
    hear(world, first + 1, first + 2, Claim("a", 2, "transfer"))
    assert world.core.meet(world.now, Site("a2", 7, "west")) == 0
    with pytest.raises(PreconditionFailed, match="every site needs a name of its own"):
        world.core.meet(world.now, Site("b", 99))
    world.turn()
    queue = world.core.queue("/", "q")
    assert (queue.ready, queue.foreign_count) == (1, 1)
    assert [claim.owner for _, _, claim in queue.claims(world.core.peers).spans()] == ["b", "a2"]


def test_a_queue_whose_order_needs_all_its_messages_is_not_shared(world: World) -> None:
    grouped = world.declare("grouped", group_key="/n")
    first = world.publish("grouped", b"{}").first
    with pytest.raises(PreconditionFailed, match="queue 'grouped' has groups: other sites cannot own"):
        world.core.own(world.now, grouped, [(first, first + 1)], Claim("b", 1, "transfer"))
    with pytest.raises(PreconditionFailed, match="no site is called 'd'"):
        hear(world, first, first + 1, Claim("d", 1, "transfer"))
    mine = world.publish("q", b"0").first
    grant(world, mine, mine + 1)
    with pytest.raises(PreconditionFailed, match="cannot have last values while other sites own 1 of its messages"):
        world.core.alter_queue(world.now, world.core.queue("/", "q"), QueueSettings(last_value_key="/k"))


def test_of_a_policy_nothing_comes_that_a_shared_queue_cannot_have(world: World) -> None:
    """All of it is left out and said, and the rest holds."""
    first = world.publish("q", b"0").first
    grant(world, first, first + 1)
    definition = {"group-key": "/g", "non-destructive": True, "max-length": 5}
    world.core.set_policy(world.now, read_policy("/", "p", "q", definition))
    settings, ruling = world.core.queue("/", "q").settings, world.core.queue("/", "q").ruling
    assert (settings.group_key, settings.non_destructive, settings.max_length) == (None, False, 5)
    assert ruling is not None
    assert [name for name, _ in ruling.unapplied] == ["group_key"]
    assert dict(ruling.sources) == {"max_length": "policy p"}


def test_a_proxy_takes_what_owners_that_are_away_have(world: World) -> None:
    queue, first = world.core.queue("/", "q"), world.publish("q", b"0", b"1").first
    grant(world, first, first + 1)
    grant(world, first + 1, first + 2, "c")
    taken = world.core.take_by_proxy(world.now, queue, [(first, first + 2)], ["c"])
    assert taken == [Grant(first + 1, first + 2, Claim("a", 2, "proxied"))]
    assert (queue.ready, queue.foreign_count) == (1, 1)


def test_looking_says_whose_a_message_is(world: World) -> None:
    queue, first = world.core.queue("/", "q"), world.publish("q", b"0").first
    hear(world, first, first + 1, Claim("b", 2, "proxied"))
    code, text = explain_message(queue, first, world.now, first)[0]
    said = "site 'b' owns it, by proxied transfer, since 2023-11-14T22:13:20.000Z; it was transferred twice"
    assert (code, text) == ("foreign", said)
    said = dict(explain_queue(queue, world.now))
    assert said["foreign"] == "1 message is owned by another site: b"
    record = next(entry for entry in world.entries if getattr(entry, "kind", None) is Kind.OWN)
    assert b'"site":"b"' in record.header.replace(b" ", b"")  # type: ignore[union-attr]
    assert Kind.OWN in Teller.TELLS


def test_a_message_of_another_site_is_not_moved_and_not_rescheduled(world: World) -> None:
    queue, first = world.core.queue("/", "q"), world.publish("q", b"0").first
    grant(world, first, first + 1)
    wanted = range(first, first + 1)
    assert world.core.reschedule_messages(world.now, [queue], wanted, world.wall + 5 * SECOND) == []
    assert (queue.delayed, queue.ready, queue.foreign_count) == (0, 0, 1), (
        "its owner would give it to somebody meanwhile"
    )
    batch = world.rows[first][0]
    assert world.core.move_messages(world.now, queue, world.core.queue("/", "letters"), [first], batch, "moved") == 0


# -- what comes from other sites


def carry(world: World, origin: int, there: list[int], owner: str) -> int:
    batch = Publishes(world.core.topic("/", "", "q"), DURABLE, [b"%d" % lsn for lsn in there])
    count = world.core.carry(world.now, [origin], batch, there, {world.core.queue("/", "q"): owner})
    world.turn()
    return count


def test_what_comes_from_another_site_is_stored_once_and_is_its_own(world: World) -> None:
    queue = world.core.queue("/", "q")
    consumer = world.subscribe(queue)
    assert carry(world, 8, [40, 41, 45], "b") == 3
    assert carry(world, 8, [41, 45, 46], "b") == 1
    assert (queue.foreign_count, world.inbox[consumer]) == (4, [])
    first = min(chunk[0] for chunk in queue.chunks("foreign"))
    assert world.core.told_as(first, first + 3) == [(8, 40, 42), (8, 45, 46)]
    world.restart(clean=False)
    assert carry(world, 8, [40, 46], "b") == 0
    queue = world.core.queue("/", "q")
    world.core.each_owned_at(world.now, queue, "b", [([(8, 41, 42)], Claim("a", 1, "transfer"))])
    assert (queue.ready, queue.foreign_count) == (1, 3)


def test_what_this_site_published_does_not_come_back(world: World) -> None:
    first = world.publish("q", b"0").first
    assert carry(world, 7, [first], "a") == 0
    with pytest.raises(PreconditionFailed, match="no site with the log 99 has been met"):
        carry(world, 99, [1], "b")


def test_of_a_group_local_queue_this_site_owns_what_others_published(world: World) -> None:
    queue = world.core.queue("/", "q")
    consumer = world.subscribe(queue)
    assert carry(world, 8, [40, 41], "a") == 2
    assert (queue.foreign_count, len(world.inbox[consumer])) == (0, 2)


def test_of_a_group_local_queue_its_initial_owner_owns_what_is_published_anywhere(world: World) -> None:
    theirs = world.declare("theirs", kind="group-local", initial_owner="b", group_local_queue_domain="d")
    ours = world.declare("ours", kind="group-local", initial_owner="a", group_local_queue_domain="d")
    unmet = world.declare("unmet", kind="group-local", initial_owner="z", group_local_queue_domain="d")
    for queue in (theirs, ours, unmet):
        consumer = world.subscribe(queue)
        world.publish(queue.name, b"0", b"1")
        world.publish(queue.name, b"2", properties=header(headers={"x-delay": 2000}))
        world.advance(3)
        assert len(world.inbox[consumer]) == (3 if queue is ours else 0)
    assert (theirs.foreign_count, ours.foreign_count, unmet.foreign_count) == (3, 0, 3)
    first = theirs.floor()
    assert theirs.claims(world.core.peers).of(first) == Claim("b")
    assert world.core.take_by_proxy(world.now, unmet, [(unmet.floor(), unmet.floor() + 1)], ["z"])
    world.turn()
    assert unmet.leased == 1
    world.core.meet(world.now, Site("z", 44, "west"))
    world.core.alter_queue(world.now, theirs, QueueSettings(kind="group-local", initial_owner="a"))
    world.publish("theirs", b"3")
    assert (theirs.foreign_count, theirs.leased) == (3, 1)
    for _ in range(2):
        world.restart(clean=False)
        assert canonical(world.core.durable_state()) == canonical(world.folded())
        world.publish("unmet", b"3")
    queue = world.core.queue("/", "unmet")
    assert (queue.foreign_count, queue.ready) == (4, 1)
    group = [entry for table in world.tables for entry in table["kind"].to_pylist()]
    assert Kind.OWN in group


def test_l4_a_settle_that_crosses_a_grant_ends_the_lease(world: World) -> None:
    queue = world.core.queue("/", "q")
    carry(world, 8, [40], "b")
    world.core.each_owned_at(world.now, queue, "b", [([(8, 40, 41)], Claim("a", 1, "transfer"))])
    consumer = world.subscribe(queue, max_backlog=1)
    assert queue.leased == 1
    assert world.core.settled_at(world.now, queue, "b", [(8, 40, 41)]) == 1
    world.turn()
    assert (queue.leased, consumer.room) == (0, 1)
    assert world.core.settled_at(world.now, queue, "b", [(8, 40, 41)]) == 0


def test_l7_a_settle_before_its_message_is_remembered(world: World) -> None:
    queue = world.core.queue("/", "q")
    assert world.core.settled_at(world.now, queue, "c", [(8, 40, 42)]) == 0
    world.turn()
    world.restart(clean=False)
    assert world.core.deferred_acks(world.core.queue("/", "q")) == 2
    assert carry(world, 8, [40, 41, 42], "b") == 3
    queue = world.core.queue("/", "q")
    assert (queue.foreign_count, world.core.deferred_acks(queue)) == (1, 0)


def test_a_claim_to_what_has_not_come_yet_waits_for_it(world: World) -> None:
    queue = world.core.queue("/", "q")
    world.core.each_owned_at(world.now, queue, "c", [([(8, 40, 42)], Claim("c", 1, "transfer"))])
    world.core.each_owned_at(world.now, queue, "c", [([(8, 40, 43)], Claim("a", 2, "transfer"))])
    world.core.each_owned_at(world.now, queue, "c", [([(8, 40, 43)], Claim("c", 1, "transfer"))])
    world.turn()
    assert [entry.kind for entry in world.entries[-2:]] == [Kind.CLAIMED, Kind.CLAIMED]  # type: ignore[union-attr]
    world.restart(clean=False)
    carry(world, 8, [40, 41], "b")
    queue = world.core.queue("/", "q")
    assert (queue.ready, queue.foreign_count) == (2, 0)
    assert [one[2:4] for one in world.core.early] == [(42, 43)]
    world.core.settled_at(world.now, queue, "c", [(8, 42, 43)])
    world.turn()
    assert not world.core.early, "an ack holds against all claims"
    assert canonical(world.core.durable_state()) == canonical(world.folded())
    world.core.each_owned_at(world.now, queue, "c", [([(8, 50, 51)], Claim("a", 2, "transfer"))])
    world.core.delete_queue(world.now, queue)
    world.turn()
    assert not world.core.early
    assert canonical(world.core.durable_state()) == canonical(world.folded())


def test_what_a_link_has_lasts(world: World) -> None:
    queue = world.core.queue("/", "q")
    world.core.note_link(world.now, "b", heard=5, acked=7)
    world.core.note_link(world.now, "b", paused=True, heard=9)
    world.core.proxy(world.now, queue, True, by="ann")
    world.core.proxy(world.now, queue, True, by="bob")
    world.turn()
    world.restart(clean=False)
    assert world.core.link_state("b") == LinkState(9, 7, True)
    assert world.core.link_state("nobody") == LinkState()
    queue = world.core.queue("/", "q")
    assert world.core.proxied == {queue.id: "ann"}
    assert world.core.stats(queue, world.now)["proxied_transfer"] is True
    before = len(world.entries)
    world.core.note_link(world.now, "b", paused=True)
    world.turn()
    assert len(world.entries) == before
    world.core.proxy(world.now, queue, False)
    world.turn()
    assert canonical(world.core.durable_state()) == canonical(world.folded())
    assert not world.folded().proxied


def test_where_messages_stand_is_forgotten_and_they_are_known_all_the_same(world: World) -> None:
    carry(world, 8, [40, 41, 45, 46], "b")
    queue = world.core.queue("/", "q")
    world.core.settled_at(world.now, queue, "b", [(8, 40, 42)])
    world.turn()
    world.core.forget_carried(world.now, "b", queue.floor())
    world.turn()
    assert [run[0] for run in world.core.carried[1].runs if run[1]] == [45]
    world.restart(clean=False)
    assert [run[0] for run in world.core.carried[1].runs if run[1]] == [45]
    assert carry(world, 8, [40, 41, 44, 45], "b") == 1
    assert canonical(world.core.durable_state()) == canonical(world.folded())
    queue = world.core.queue("/", "q")
    world.core.settled_at(world.now, queue, "c", [(8, 40, 50)])
    assert world.core.deferred_acks(queue) == 5, "what has been here is none that comes"


# -- the audit


def audited(world: World) -> list[str]:
    audit = Audit()
    for table in world.tables:
        for batch in table.to_batches():
            audit.feed(batch)
    return [f"{one.guarantee}: {one.text}" for one in audit.finish(world.folded()).findings]


def test_the_audit_finds_a_grant_of_what_another_site_owns(world: World) -> None:
    queue, first = world.core.queue("/", "q"), world.publish("q", b"0", b"1").first
    grant(world, first, first + 2)
    hear(world, first + 1, first + 2, Claim("a", 2, "transfer"))
    world.subscribe(queue)
    assert audited(world) == []
    foreign = queue.ensure_foreign(world.core.peers)
    foreign.claims.put(first, first + 1, Claim("a", 3, "proxied"))  # in memory alone: as if it were forgotten
    for run in foreign.extract(range(first, first + 1)):
        queue.put_back(run)
    queue.go_on(world.now, world.core._out)
    world.turn()
    assert audited(world) == ["one owner: queue 'q': messages were granted that another site owns"]


def test_names_of_owners_in_settings_of_queues_leave_room_for_sites_that_are_there(world: World) -> None:
    """Beyond them a declare is refused before anything is written, and every start goes on."""
    for n in range(SITES_MOST):
        world.core.meet(world.now, Site(f"named {n}", UNKNOWN))
    world.turn()
    owned = {"kind": "group-local", "group_local_queue_domain": "d"}
    with pytest.raises(PreconditionFailed, match=f"initial_owner of queue 'g': site 'one' .* {SITES_MOST} that"):
        world.declare("g", initial_owner="one", **owned)
    assert (world.core.find_queue("/", "g"), world.core.take_journal()) == (None, [])
    queue = world.declare("g", initial_owner="b", **owned)
    with pytest.raises(PreconditionFailed, match="initial_owner"):
        world.core.alter_queue(world.now, queue, replace(queue.settings, initial_owner="one"))
    for n in range(SITES_MOST - 3):
        world.core.meet(world.now, Site(f"there {n}", 100 + n))
    with pytest.raises(PreconditionFailed, match=f"more than the {SITES_MOST} that may be known"):
        world.core.meet(world.now, Site("one", 10))
    world.turn()
    world.restart(clean=True)
    assert len(world.core.peers.sites) == 2 * SITES_MOST
