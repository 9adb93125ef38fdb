"""What a member says of others and of its disk: a leader that a member has left, a follower that is nearly full."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest

from penstock.config.settings import Settings
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.server.alarms import Alarms, FollowerAlarms, alarms
from penstock.server.cluster import leading
from penstock.server.cluster.leading import Cluster
from penstock.server.cluster.troubles import FullDisk, confirms_nothing
from sim.serverkit import Life, clock

if TYPE_CHECKING:
    from penstock.log.log import Log

MIB = 1 << 20
SECOND = 1_000_000
MEMBERS = {key: {"name": f"node-{key}", "address": f"node-{key}:8817"} for key in "123"}
LEADS: dict[str, Any] = {
    "role": "leading", "member": "1", "members": MEMBERS, "in_sync": ["1", "2", "3"], "enough": True, "cut_records": 0,
    "waited_for": [],
}  # fmt: skip


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one.getMessage() for one in caplog.records if one.name == "penstock.server"]
    caplog.clear()
    return found


def cluster(say: Callable[[str], object] = len, **known: Any) -> Cluster:
    section = {"registry": "file:/nowhere", "listen": "127.0.0.1:7000", "secret": "s" * 32}
    settings = Settings.model_validate({"server": {"name": "one"}, "cluster": section})
    made = Cluster(settings, say, lambda: 0.0)
    made.known |= known
    return made


def test_a_leader_says_once_of_each_change_who_is_not_in_sync(caplog: pytest.LogCaptureFixture, life: Life) -> None:
    """A line and an event: nobody heard of a member that had died, until the next one did."""
    member = cluster(**LEADS)
    looks = Alarms(life.engine, lambda: 0, members=member.out_of_sync)
    for seconds, in_sync in enumerate(("123", "12", "12", "1", "1", "13", "123", "123")):
        life.clock.advance(1_000_000)
        member.known["in_sync"] = list(in_sync)
        looks.beat()
        assert ("members" in looks.now) == (len(in_sync) < 3), seconds
    assert lines(caplog) == [
        "alarm members: 2 of 3 members are in sync: node-3 is not; `GET /api/cluster` says how far each is",
        "alarm members: 1 of 3 members are in sync: node-2, node-3 are not; `GET /api/cluster` says how far each is",
        "alarm members: 2 of 3 members are in sync: node-2 is not; `GET /api/cluster` says how far each is",
        "alarm members is over, after 5 s",
    ]
    told = [(one.name, one.fields["alarm"]) for one in life.engine.notices.feed.since(0, 100) if "alarm" in one.fields]
    assert told == [*3 * [("alarm.set", "members")], ("alarm.cleared", "members")]


def test_a_member_whose_folder_was_emptied_is_told_by_its_id(life: Life) -> None:
    """The old one is listed until it is removed: its name is that of another."""
    member = cluster(**{**LEADS, "members": {**MEMBERS, "0": MEMBERS["3"]}})
    assert member.out_of_sync() == (
        "3 of 4 members are in sync: node-3 (0) is not; `GET /api/cluster` says how far each is"
    )


def test_a_reason_that_says_how_much_is_no_news(caplog: pytest.LogCaptureFixture, life: Life) -> None:
    looks = Alarms(life.engine, iter((2500, 3000, 3500, 0)).__next__)
    for _ in range(4):
        life.clock.advance(15_000_000)
        looks.beat()
    assert lines(caplog) == [
        "alarm upkeep: the log has outgrown log.retention: each batch of publishes waits 3 ms",
        "alarm upkeep is over, after 45 s",
    ]


def test_health_tells_how_many_are_in_sync() -> None:
    """Without a login: no names."""
    shown = cluster(**{**LEADS, "in_sync": ["1", "2"]}).shown()
    assert (shown["members"], shown["in_sync"]) == (3, 2)
    assert "members" not in cluster().shown(), "it has not seen the register yet"


def test_a_leader_whose_confirms_wait_for_one_that_is_away_is_not_well() -> None:
    """With a register of its own: who is in sync and silent is waited for, and a person is to decide."""
    assert confirms_nothing(LEADS) == ""
    away = {**LEADS, "waited_for": ["3"]}
    assert confirms_nothing(away) == "confirms wait for a member in sync that does not answer"
    away["waited_for"].append("2")
    assert confirms_nothing(away) == "confirms wait for 2 members in sync that do not answer"
    assert confirms_nothing({**away, "confirm": "local"}) == "", "they wait for its own disk alone"
    assert confirms_nothing({**away, "enough": False}).startswith("fewer members are in sync than min_in_sync")


def test_a_leader_whose_disk_is_full_says_that_another_may_lead() -> None:
    """The others have room, and publishers are refused for as long as nobody knows that a hand-over helps."""
    disk = SimDisk(capacity=16 * MIB)
    life = Life(disk, clock(), log=replace(MEMORY, ahead=64 << 10, reserve=512 << 10, low_space=512 << 10, segment=MIB))
    disk.capacity = MIB
    life.log.check_space()
    told, by_hand = alarms(life.engine, {})["disk_full"], "`penstock cluster switchover` has another member lead"
    assert told.endswith("publishes are refused until there is room")
    few = "too few in sync have room for one of them to take over, 2 are needed"
    for known, way in (
        ({"relief": "2"}, "node-2, whose disk has room, leads when this has lasted for 10s"),
        ({"relief": ""}, f"{few}; {by_hand}"),
        ({"relief": "", "manual": True}, by_hand),
    ):
        life.engine.copies = cluster(**LEADS, min_in_sync=2, **known)
        assert alarms(life.engine, {})["disk_full"] == f"{told}; {way}"


def test_a_disk_has_to_stay_full_for_the_lead_to_go_to_who_has_room() -> None:
    """One that has room meanwhile begins to count anew; who is to lead is whoever could at the end."""
    full = FullDisk(10 * SECOND)
    seen = {
        (at, to): full.relief({"relief": to}, at * SECOND, full=is_full)
        for at, to, is_full in (
            (0, "2", True), (9, "2", True), (9, "2", False), (10, "2", True), (19, "2", True),
            (20, "", True), (21, "3", True), (22, "3", False),
        )
    }  # fmt: skip
    assert {at: to for at, to in seen.items() if to} == {(21, "3"): "3"}
    assert FullDisk(0).relief({}, 0, full=True) == "", "a member that has said nothing yet"


@pytest.mark.parametrize(("is_full", "to"), [(True, "3"), (True, ""), (False, "3")])
async def test_a_leader_whose_disk_stays_full_closes_its_doors_for_another_one(is_full: bool, to: str) -> None:
    """As a person's switchover has it do: nobody could publish, although others had room."""
    said, closed = list[str](), asyncio.Event()
    followers = {key: {"level": True} for key in "23"}
    member = cluster(said.append, **{**LEADS, "relief": to, "followers": followers, "term": 1})
    member.on_switch = closed.set
    room = SimpleNamespace(full=is_full, why_full=lambda: "no room")
    member._log = cast("Log", SimpleNamespace(room=room, broken=False, waiting_since=0, appended=7, first_lsn=1))
    member._sock, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with member._sock, other, mock.patch.object(leading, "boottime", itertools.count(0, SECOND).__next__):
        for _ in range(20):
            member._beat()
            assert member._timer is not None
            member._timer.cancel()
    if not (is_full and to):
        assert (member.switched, said) == ("", [])
        return
    assert (member.switched, said) == ("3", ["cluster: no room; node-3 has room, and is to lead"]), "once"
    await asyncio.wait_for(closed.wait(), 20)


def test_a_follower_says_when_its_disk_is_nearly_full(caplog: pytest.LogCaptureFixture) -> None:
    """As a leader does, which refuses publishes then: this one ends when nothing is left, and said nothing before."""
    disk, now = SimDisk(capacity=1 << 40), clock()
    room = FollowerAlarms(disk, 256 * MIB, now)
    for capacity in (1 << 40, 256 * MIB, 128 * MIB, 1 << 40):
        disk.capacity = capacity
        for _ in range(10):
            now.advance(100_000)
            found = room.look()
        assert list(found) == (["disk_low"] if capacity < 1 << 30 else [])
    first, over = lines(caplog)
    assert first == (
        "alarm disk_low: the disk has 256 MiB left: the log needs 256 MiB for its next segment, and this member ends "
        "when nothing is left"
    )
    assert over == "alarm disk_low is over, after 2 s"


def test_what_a_follower_would_leave_out_is_an_alarm_beside_its_disk() -> None:
    member = cluster(role="following")
    member.low = {"disk_low": "the disk has 1 MiB left"}
    member.left_out = ["[[queue]] x"]
    assert list(member.alarms) == ["disk_low", "settings"]
