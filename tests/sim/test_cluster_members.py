"""Members with real logs and streams: nothing confirmed is lost, whatever dies, breaks or comes late, and all agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from choices import EFFORT, SEED, USUAL, seeds, tried
from penstock.log import checkpoints
from penstock.log.group_commit import Committing
from penstock.log.replica import Replica
from penstock.log.writer import Appender, Commit
from penstock.records.kinds import FORMAT
from penstock.replication import election as elections
from penstock.replication.election import Election
from penstock.replication.insync import InSync
from penstock.replication.messages import Ack, Hello
from penstock.replication.register import ClusterState
from penstock.replication.terms import Written
from penstock.server.cluster import log_sending
from penstock.server.cluster import member as members
from penstock.server.cluster.following import Following
from penstock.server.cluster.member import Member
from sim import members_machine
from sim.members_faults import CROWDED, DARK, FULL, IDLING, LEADING, REVERTING, STAGING, TORN, directed, run
from sim.members_links import SimLink
from sim.members_walks import begun, walked
from sim.members_world import Mood, World

STEPS = 1500
SHAPES = ((3, 2), (2, 1), (3, 1))
"""Members, and how many of them a confirm needs at least."""
RANDOM, CHAIN = 20 * EFFORT, 5
CHAINS = dict(zip(SHAPES, (40, 20, 20), strict=True)) if EFFORT == 1 else dict.fromkeys(SHAPES, 80 * EFFORT)
"""For each shape: random schedules, and chains of directed ones, each of which begins with all members in sync; what
has to happen does in so many, in a usual run of all shapes.  Each rule that is left out is found by the first 33 of
these chains or the first four of those of `FEW`, by five of its own mood; `make soak-members` has no end."""
FEW = 6 if EFFORT == 1 else 10 * EFFORT
"""Chains in which disks are full, or lose what was not synced."""

Found = tuple[str | None, Counter[str]]


def walk(seeds: Iterable[int], shape: tuple[int, int]) -> Found:
    """The first thing that did not hold in random schedules, and what was seen in them."""
    return walked(
        lambda seed: World(seed, members=shape[0], min_in_sync=shape[1]), seeds, lambda world: run(world, STEPS)
    )


def chained(seeds: Iterable[int], shape: tuple[int, int], mood: Mood | None = None) -> Found:
    """The same of chains of directed schedules."""
    after = begun(*shape)
    return walked(
        lambda seed: World(seed, members=shape[0], min_in_sync=shape[1], mood=mood, after=after),
        seeds,
        lambda world: directed(world, CHAIN),
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nothing_confirmed_is_lost_and_all_members_agree(shape: tuple[int, int]) -> None:
    broken, seen = walk(seeds(RANDOM), shape)
    assert broken is None
    assert min(seen["terms"], seen["confirmed"], seen["crashes"]) > 20, seen
    assert seen["syncs beside"] > 50, seen
    assert seen["decided"] > 1, seen


@pytest.mark.parametrize("shapes", [SHAPES] if EFFORT == 1 else [(one,) for one in SHAPES], ids=str)
def test_nothing_confirmed_is_lost_in_disasters_that_follow_each_other(shapes: Sequence[tuple[int, int]]) -> None:
    chains, seen = sum(CHAINS[shape] for shape in shapes), Counter[str]()
    for shape in shapes:
        broken, some = chained(seeds(CHAINS[shape]), shape)
        assert broken is None
        seen += some
    assert seen["disasters"] == chains * CHAIN
    assert min(seen["toppled"], seen["black-outs"], seen["terms"], seen["confirmed"]) > chains, seen
    assert min(seen["reverts"], seen["decided"], seen["rewritten"], seen["retired"]) > 5, seen


def test_one_that_was_put_back_leads_with_its_stages_or_not_at_all() -> None:
    """Its log is level again before its stages have come, and its leader dies."""
    broken, seen = chained([216], (2, 1))
    assert broken is None
    assert seen["reverts"], seen


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_a_full_disk_had_taken_back_is_nowhere(shape: tuple[int, int]) -> None:
    broken, seen = chained(seeds(FEW), shape, FULL)
    assert broken is None
    assert min(seen["taken back"], seen["terms"]) > FEW, seen


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_leader_whose_disk_stays_full_gives_the_lead_to_one_with_room(shape: tuple[int, int]) -> None:
    """Where those with room are enough without it; where disks of too many are full, the lead stays where it is."""

    def one(seed: int) -> Counter[str]:
        broken, seen = chained([seed - USUAL], shape, CROWDED)
        assert broken is None
        return seen

    seen = tried(one, FEW, ("relieved", "kept"))  # of ten chains the one or the other is in one, or in nine
    assert SEED != USUAL or min(seen["relieved"], seen["kept"]) > FEW // 4, seen


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_a_log_claims_is_there_after_a_power_cut(shape: tuple[int, int]) -> None:
    broken, seen = chained(seeds(FEW), shape, TORN)
    assert broken is None
    assert seen["opened alone"] > FEW // 2, seen


def test_what_a_leader_found_is_not_claimed_of_the_disks_of_others() -> None:
    """It alone has the last of another term, and copies it to one that loses power before its sync."""
    broken, seen = chained([497], (3, 1))
    assert broken is None
    assert seen["opened alone"], seen


def test_what_was_decided_below_a_base_needs_no_file() -> None:
    """A file of the log that has the decision is there, and the one behind it, with its end, was emptied since."""
    broken, seen = walk([78200061], (2, 1))
    assert broken is None
    assert min(seen["rewritten"], seen["decided"]) > 0, seen


def test_so_many_schedules_are_tried() -> None:
    assert len(SHAPES) * RANDOM + sum(CHAINS.values()) * CHAIN >= (460 if EFFORT == 1 else 1000)


def test_one_that_counts_is_dropped_before_it_is_emptied() -> None:
    """Until then its disk is one of those that a confirm has promised."""
    world = World(1)
    world.quiet()
    [leader] = [one.member for one in world.hosts.values() if one.log is not None]
    assert leader is not None
    assert leader.election.in_sync is not None
    sending = next(iter(leader.sendings.values()))
    [follower] = [one.member for one in world.hosts.values() if one.member and one.member.me == sending.member]
    sending.seeds = True
    leader._look_at(sending)
    assert sending.member not in leader.election.in_sync.wanted(leader.now())
    assert sending not in leader.sendings.values()
    assert follower.replica is not None
    assert follower.replica.last > 0
    assert follower.known.intact
    world.quiet()
    world.compare()


def test_a_leader_that_is_called_by_one_it_does_not_know_looks_at_the_register(monkeypatch: pytest.MonkeyPatch) -> None:
    """That one was listed since: it need not wait for the next beat, which with a long lease is minutes away."""
    world = World(1)
    world.quiet()
    [leader] = [one for one in world.hosts.values() if one.log is not None]
    assert leader.member is not None
    looked = list[bool]()
    monkeypatch.setattr(leader, "read", lambda: looked.append(True))
    for name, looks in (("m-p1", []), ("m-new", [True])):
        link, theirs = SimLink(leader), SimLink(world.hosts["p1"])
        link.other, theirs.other = theirs, link
        hello = Hello("c", world.value.origin, name, FORMAT, intact=True, terms=(), term=0)
        leader.member.taken(link)
        leader.member.heard(link, hello)
        assert looked == looks


def test_who_begins_before_anybody_leads_follows_soon_however_long_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows of nobody to follow, and looks again within a second, not with the next beat, here after 30."""
    monkeypatch.setattr(members_machine, "TIMES", members_machine.TIMES._replace(lease=300_000_000))
    world = World(1)
    first, *others = world.hosts.values()
    world.turns(others, 8)
    assert world.value.leader is None
    world.quiet(16)  # of a quarter of a second
    assert first.log is not None


def test_who_is_to_lead_next_has_the_newest_checkpoint_before_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it has next to nothing to fold."""
    world = World(1)
    world.quiet()
    [leader] = [one for one in world.hosts.values() if one.log is not None]
    follower = next(one for one in world.hosts.values() if one.log is None)
    log, name = leader.log, checkpoints.name_of(leader.log.durable)  # type: ignore[union-attr]
    leader.disk.mkdir("checkpoints")
    file = leader.disk.open(name, create=True)
    file.pwrite(b"state", 0)
    file.sync()
    there = list[bool]()
    swap = world.swap

    def look(version: int, value: ClusterState) -> int | str:
        if value.to == follower.id:
            there.append(name in follower.disk.files())
        return swap(version, value)

    monkeypatch.setattr(world, "swap", look)
    assert log is not None
    assert leader.member is not None
    leader.log = None
    log.close()
    leader.member.hand_over(follower.id)
    assert there == [], "it is on its way"
    world.quiet()
    assert there[:1] == [True]
    assert follower.log is not None
    world.compare()


# a rule left out


class _OwnDiskAlone(InSync):
    def _commit(self) -> None:
        self.committed = max(self.committed, self._synced)


class _JumpsByItself(Election):
    def _won(self, state: ClusterState, now: int) -> None:
        start = self._last_lsn + 5
        super()._won(replace(state, terms=(*state.terms[:-1], state.terms[-1]._replace(start=start))), now)


def _acks_what_came(self: Following) -> None:
    if self._dirty and self.term:
        self._dirty = False
        self.link.send(Ack(self.term, self._replica.last, self._received, self._files, self._intact))
    elif self.term:
        self._replica.sync()
        self._ack()


def _keeps_its_tail(self: Replica, lsn: int) -> None:
    self.drop_part()


_cut = Replica.cut


def _keeps_its_marks(self: Replica, lsn: int) -> None:
    if self.last > lsn:
        _cut(self, lsn)
    else:
        self.drop_part()


def _all_up_to_here(state: ClusterState, last: int) -> list[Written]:
    return [Written(one.term, one.start, last) for one in state.terms if one.start <= last]


_read = Election.read


def _any_folder_is_believed(self: Election, version: int, state: ClusterState, now: int) -> None:
    _read(self, version, replace(state, committed=0), now)


def _decides_before_it_is_everywhere(patch: pytest.MonkeyPatch) -> None:
    keep = Member.keep

    def kept(self: Member, name: str, number: int) -> None:
        keep(self, name, number)
        self._out.kept(number)

    patch.setattr(Member, "keep", kept)


def _counts_without_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_sending.Sending, "kept", property(lambda self: 1 << 60))


_write = Appender._write


def _tells_each_batch(self: Appender, size: int, head: bytearray, rest: Sequence[bytes | memoryview] = ()) -> None:
    _write(self, size, head, rest)
    if self.told is not None:
        self.told(self.segment.first, self._offset + size, self._last)


_run = Committing._run


def _claims_what_it_has_itself(self: Committing, commit: Commit) -> None:
    commit.claim = self.synced
    _run(self, commit)


Plant = Callable[[pytest.MonkeyPatch], None]


def _in_both(rule: Callable[[ClusterState, int], list[Written]]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(log_sending, "written", rule)
        patch.setattr(members, "written", rule)

    return plant


PLANTED: dict[str, Plant] = {
    "a confirm waits for the own disk alone": lambda patch: patch.setattr(elections, "InSync", _OwnDiskAlone),
    "a jump instead of the ceiling": lambda patch: patch.setattr(members, "Election", _JumpsByItself),
    "acked before it was synced": lambda patch: patch.setattr(Following, "gathered", _acks_what_came),
    "nothing is cut": lambda patch: patch.setattr(Replica, "cut", _keeps_its_tail),
    "marks are not cut": lambda patch: patch.setattr(Replica, "cut", _keeps_its_marks),
    "every term is taken to go on to the end": _in_both(_all_up_to_here),
    "a folder is believed whatever the register says": lambda patch: patch.setattr(
        Election, "read", _any_folder_is_believed
    ),
    "a batch is decided before its stages are everywhere": _decides_before_it_is_everywhere,
    "a follower counts without the files beside the log": _counts_without_files,
    "a commit is copied before all of it is written": lambda patch: patch.setattr(
        Appender, "_write", _tells_each_batch
    ),
    "a batch claims what the own disk alone has": lambda patch: patch.setattr(
        Committing, "_run", _claims_what_it_has_itself
    ),
}


WHERE: dict[str, tuple[tuple[int, int], Mood]] = {
    "acked before it was synced": ((3, 2), DARK),
    "nothing is cut": ((3, 2), IDLING),
    "every term is taken to go on to the end": ((3, 2), IDLING),
    "marks are not cut": ((3, 2), IDLING),
    "a folder is believed whatever the register says": ((3, 2), REVERTING),
    "a batch is decided before its stages are everywhere": ((3, 1), STAGING),
    "a follower counts without the files beside the log": ((3, 1), STAGING),
    "a commit is copied before all of it is written": ((3, 2), FULL),
    "a batch claims what the own disk alone has": ((3, 2), TORN),
}
"""In which schedules it is found soonest, where not in those of `LEADING` with the first shape."""


@pytest.mark.parametrize("fault", PLANTED)
def test_each_rule_that_is_left_out_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, mood = WHERE.get(fault, (SHAPES[0], LEADING))
    begun(*shape)  # before the rule is gone
    PLANTED[fault](monkeypatch)
    broken, _ = chained(range(100), shape, mood)
    assert broken is not None
