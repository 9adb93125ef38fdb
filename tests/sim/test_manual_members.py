"""A person says who leads: nothing that was confirmed is lost unless somebody said so, whoever is told to lead when.

Each planted fault is a rule left out; the same schedules must find each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from choices import EFFORT, SEED
from penstock.errors import LogDamaged
from penstock.log.simdisk import SimDisk
from penstock.records.chunks import LSN_LIMIT
from penstock.replication import election as elections
from penstock.replication import register
from penstock.replication.election import Election
from penstock.replication.insync import InSync
from penstock.replication.messages import Copy
from penstock.replication.register import ClusterState, Verdict
from penstock.server.cluster import member as members
from penstock.server.cluster import talking
from penstock.server.cluster.following import Following
from penstock.server.cluster.side_sending import SideSending
from sim import manual_members
from sim.manual_members import Machine, Parted
from sim.members_faults import run
from sim.members_machine import Broken
from sim.members_walks import unheard, walked

STEPS = 1500
SHAPES = ((2, 1), (3, 2), (3, 1), (4, 2))
"""Members, and how many of them a confirm needs at least."""


def walk(seeds: Iterable[int], shape: tuple[int, int]) -> tuple[str | None, Counter[str]]:
    """The first thing that did not hold in these schedules, and what was seen in them."""
    return walked(lambda seed: Parted(seed, members=shape[0], min_in_sync=shape[1]), seeds, lambda one: run(one, STEPS))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_was_confirmed_is_there_or_a_person_gave_it_up(shape: tuple[int, int]) -> None:
    first = 1000 * (SEED - 1)
    broken, seen = walk(range(first, first + (6 if EFFORT == 1 else 8 * EFFORT)), shape)
    assert broken is None
    assert min(seen["terms"], seen["confirmed"], seen["orders"], seen["crashes"], seen["parted"]) > 10, seen
    assert min(seen["both stopped"], seen["gave up"], seen["level"]) > 2, seen


# a rule left out

Plant = Callable[[pytest.MonkeyPatch], None]


class _DropsWhoIsSilent(InSync):
    def __init__(self, *arguments: Any, waits: bool, **more: Any) -> None:
        super().__init__(*arguments, **more)


_led_by = ClusterState.led_by
_read = Election.read


def _higher_term_wins(ours: ClusterState, theirs: ClusterState) -> Verdict:
    newer = (theirs.term, theirs.beat) > (ours.term, ours.beat)
    return Verdict.NEW if newer else Verdict.OLD


def _makes_terms_again(self: ClusterState, candidate: str, last: int, above: int = 0) -> ClusterState:
    return _led_by(self, candidate, last, 0)


def _any_order_gives_up(self: Election, version: int, state: ClusterState, now: int) -> None:
    _read(self, version, replace(state, given_up=state.order), now)


def _in_haste(disk: object, copy: ClusterState, key: str, lose: int | None) -> ClusterState:
    return replace(copy, in_sync=frozenset({key}), to=key)


def _all_as_one(terms: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return ()


def _puts_checkpoints_ahead(patch: pytest.MonkeyPatch) -> None:
    """Neither end asks how far the copy is."""
    look, take = SideSending.look, Following._take_file
    patch.setattr(SideSending, "look", lambda self, acked: look(self, LSN_LIMIT))
    patch.setattr(Following, "_take_file", lambda self, message: take(self, message._replace(lsn=0)))


PLANTED: dict[str, Plant] = {
    "who is silent is dropped": lambda patch: patch.setattr(elections, "InSync", _DropsWhoIsSilent),
    "terms are not made in lanes": lambda patch: patch.setattr(register, "next_term", lambda number, above: above + 1),
    "a term that was given up is made again": lambda patch: patch.setattr(ClusterState, "led_by", _makes_terms_again),
    "what was set aside is forgotten": lambda patch: patch.setattr(register, "runs", _all_as_one),
    "the higher term wins": lambda patch: patch.setattr(talking, "compared", _higher_term_wins),
    "what was set aside stays in the log": lambda patch: patch.setattr(members, "end_of_line", lambda state, log: None),
    "nobody asks whether it is in sync": lambda patch: patch.setattr(manual_members, "promoted", _in_haste),
    "a checkpoint is put into place before its log": _puts_checkpoints_ahead,
}


SOONEST = {
    "a term that was given up is made again": ((3, 1), 19), "what was set aside stays in the log": ((3, 1), 0),
    "nobody asks whether it is in sync": ((3, 1), 0), "who is silent is dropped": ((4, 2), 6),
}  # fmt: skip
"""The shape in which it is found soonest, where it takes more than the first few schedules of all, and which of its
schedules is tried before the others."""


@pytest.mark.parametrize("fault", PLANTED)
def test_each_rule_that_is_left_out_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[fault](monkeypatch)
    if fault in WRITTEN:
        with pytest.raises((Broken, LogDamaged)):
            WRITTEN[fault]()
        return
    soonest = [SOONEST[fault]] if fault in SOONEST else []
    shapes = [shape for shape, _ in soonest] or SHAPES
    tried = ((range(at, at + 5), shape) for at in range(0, 60, 5) for shape in shapes)
    found = (walk(seeds, shape)[0] for seeds, shape in chain((([seed], shape) for shape, seed in soonest), tried))
    assert any(one is not None for one in found)


def _ordered_as_it_leaves() -> Machine:
    """One that is told to lead while its server ends: it has said that nobody need wait for it, and nobody does.

    It is started again with the order, which gives nothing up, and lacks what was confirmed meanwhile; who led is away.
    """
    world = Parted(1)
    world.answers, world.told_of_ends, world.failing_syncs = 1.0, 1.0, 0.0
    leader = next(one for one in world.hosts.values() if one.log is not None)
    other = next(one for one in world.hosts.values() if one is not leader)
    before = len(world.confirmed)
    assert other.promote(insist=False)
    other.leave()
    for link in world.links:
        if link.host is leader:
            link.come()
    for _ in range(100):
        world.turn([leader], publishes=True)
    assert len(world.confirmed) > before
    leader.stop()
    for _ in range(300):
        world.turn([other], publishes=False)
    return other


def test_members_at_rest_tell_each_other_their_copies_about_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leader and follower answered each other's copies by the stream of the log, thousands of times a second."""
    world = Parted(1)
    world.answers, world.told_of_ends, world.failing_syncs = 1.0, 1.0, 0.0
    world.quiet()
    tell, told = talking.Talks.tell, Counter[int]()

    def counted(talks: talking.Talks, link: Any) -> None:
        told[id(talks)] += 1
        tell(talks, link)

    monkeypatch.setattr(talking.Talks, "tell", counted)
    hosts = list(world.hosts.values())
    began = hosts[0].now()
    for _ in range(500):
        world.turn(hosts, publishes=False)
    times = [host.member.terms.times for host in hosts if host.member is not None]
    looks = (hosts[0].now() - began) / min(one.renew for one in times)
    assert looks >= 10
    assert max(told.values()) <= 3 * looks + 3, "each tells the other, and answers it; who leads tells of its beat, too"


def test_an_order_gives_up_what_is_lacking_only_where_a_person_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    other = _ordered_as_it_leaves()
    assert other.log is None
    other.world.quiet()
    assert other.log is None, "the order is void: it follows again"
    monkeypatch.setattr(Election, "read", _any_order_gives_up)
    with pytest.raises(Broken, match="was not told to give up anything, and lacks"):
        _ordered_as_it_leaves()


def _ordered_and_overruled() -> Parted:
    """Three lead by themselves.  One is told to give up what the second has, which hears from it, and begins no term.

    For the third begins one: it was told to give up what the first has, and knows nothing of the second.
    """
    world = Parted(1, members=3)
    world.answers, world.told_of_ends, world.failing_syncs = 1.0, 1.0, 0.0
    world.quiet()
    third, second, first = world.hosts.values()

    def alone(host: Machine) -> None:
        before = len(world.confirmed)
        assert host.promote(insist=False)
        for n in range(300):
            world.turn([host], publishes=n % 10 == 9)
        assert len(world.confirmed) > before
        host.stop()

    def met(host: Machine, other: Machine) -> None:
        for _ in range(100):
            world.turn([host, other], publishes=False)
        assert host.promote(insist=True)
        host.stop()
        other.stop()

    for host in world.hosts.values():
        host.stop()
    for host in (first, second, third):
        alone(host)
    met(third, first)
    met(first, second)
    for _ in range(100):
        for host in (first, second):
            world.at(host, lambda host=host: world._turn_of(host, publishes=False))
        for link in world.links:
            if link.host is second:  # the first waits for its answer
                world.at(second, link.come)
    assert first.log is None
    first.stop()
    second.stop()
    for _ in range(300):
        world.turn([third], publishes=False)
    assert third.log is not None
    world.quiet()
    return world


def test_an_order_that_never_came_about_has_set_nothing_aside() -> None:
    with unheard():
        _ordered_and_overruled().compare()


def _promoted_as_it_catches_up(most: int) -> Parted:
    """One that was away loses power after so many messages of a stream, whose leader has a checkpoint; then it leads.

    A person gives up what it lacks: the checkpoint is of that, too.
    """
    world = Parted(1)
    world.answers, world.told_of_ends, world.failing_syncs = 1.0, 1.0, 0.0
    leader = next(one for one in world.hosts.values() if one.log is not None)
    other = next(one for one in world.hosts.values() if one is not leader)
    other.leave()
    for link in world.links:
        if link.host is leader:
            link.come()
    for n in range(100):
        world.turn([leader], publishes=n < 8)
    assert leader.log is not None
    assert leader.log.durable == leader.next_lsn - 1
    leader.log.write_checkpoint(b"state", leader.log.durable)
    left = most
    for _ in range(200):
        for host in (leader, other):
            world.at(host, lambda host=host: world._turn_of(host, publishes=False))
        for link in world.links:
            if link.host is leader:
                link.deliver(len(link.inbox))
            while link.host is other and left and link.inbox and not link.closed:
                left -= not isinstance(link.inbox[0], Copy)
                link.hear(1)
    assert not left
    leader.stop()
    other.stop(power=True)
    assert other.promote(insist=True)
    for _ in range(300):
        world.turn([other], publishes=False)
    assert other.log is not None, "it leads"
    world.quiet()
    world.compare()
    return world


def _catches_up() -> None:
    """The power may go after each of its first messages."""
    for most in range(2, 14):
        _promoted_as_it_catches_up(most)


def test_one_that_was_catching_up_can_be_told_to_lead() -> None:
    with unheard():
        _catches_up()


WRITTEN: dict[str, Callable[[], None]] = {"a checkpoint is put into place before its log": _catches_up}
"""What chance would hardly ever find, and the schedule that does."""


def _put_back(world: Parted) -> Machine:
    """A leader whose machine gets an older copy of its disk, from before it last began a term."""
    host = next(one for one in world.hosts.values() if one.log is not None)
    files, copy, version = dict(host.disk.files()), host.copy_of, host.version
    host.stop()
    world.quiet()
    assert host.log is not None
    host.stop(power=True)
    host.disk, host.copy_of, host.version = SimDisk(files), copy, version
    return host


def test_a_leader_that_was_put_back_to_an_older_copy_of_its_folder_is_told_so() -> None:
    world = Parted(1)
    _put_back(world)
    with pytest.raises(Broken, match="it is an older copy, or another process has it"):
        world.quiet()


def test_one_that_was_put_back_and_leads_alone_takes_nothing_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes the same term again, and the other's records of that term are not to be cut to its own."""
    world = Parted(1)
    host = _put_back(world)
    [other] = [one for one in world.hosts.values() if one is not host]
    assert other.member is not None
    assert other.member.replica is not None
    last = other.member.replica.last
    world.alone = host.name
    made = list[int]()
    monkeypatch.setattr(world, "begins", lambda host, state: made.append(state.term))
    monkeypatch.setattr(world, "judge_leader", lambda host, term, start, have: None)
    host.start()
    for _ in range(400):
        host.clock += 20_000
        while host.events:
            host.step()
        assert host.member is not None
        host.member.tick()
    assert made == [65]
    with pytest.raises(Broken, match="TWO FOLDERS"):
        world.quiet()
    assert other.member is not None
    assert other.member.replica is not None
    assert other.member.replica.last == last
