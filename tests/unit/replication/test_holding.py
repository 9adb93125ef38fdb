"""The leader keeps what a follower still has to copy, within bounds."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from penstock.config.settings import LogSection, Settings
from penstock.log.catalog import SegmentInfo
from penstock.server.cluster import leading
from penstock.server.cluster.leading import Cluster
from penstock.server.cluster.log_sending import Hold
from penstock.server.cluster.packets import THREE
from penstock.server.upkeep.retention import Retirement

LOG = [SegmentInfo(f"{n}", 100 * n, 100 * n + 99, 100, 1, 1000, closed=True) for n in range(10)]


def gone(hold: Hold, now: int) -> list[int]:
    """Segments that may go, by number."""
    return [n for n, one in enumerate(LOG) if hold.lets_go(one, LOG, now)]


def test_who_is_behind_is_waited_for_within_bounds() -> None:
    hold = Hold(5000, 60)
    assert gone(hold, 0) == list(range(10))
    hold.learn({"a": {"acked_lsn": 599}, "b": {"acked_lsn": 10_000}}, {"a", "b"}, 100)
    assert gone(hold, 100) == [0, 1, 2, 3, 4, 5]
    hold.learn({"b": {"acked_lsn": 10_000}}, {"a", "b"}, 150)
    assert gone(hold, 160) == [0, 1, 2, 3, 4, 5], "it went, and is waited for"
    assert gone(hold, 161) == list(range(10)), "no longer"
    hold.learn({"a": {"acked_lsn": 300}}, {"a", "b"}, 170)
    assert gone(hold, 170) == list(range(10)), "it lacks more than is kept for one"
    hold.learn({"a": {"acked_lsn": 300}, "b": {"acked_lsn": 799}}, {"a", "b"}, 180)
    assert gone(hold, 180) == [0, 1, 2, 3, 4, 5, 6, 7], "which is nothing to the other"
    hold.learn({}, {"a"}, 180)
    assert gone(hold, 180) == list(range(10)), "it was removed"


def test_a_member_that_was_away_when_the_leader_began_is_waited_for_too() -> None:
    hold = Hold(50_000, 60)
    hold.learn({"b": {"acked_lsn": 10_000}}, {"a", "b"}, 100)
    assert gone(hold, 160) == [], "it may come back, and nobody knows what it lacks"
    assert gone(hold, 161) == list(range(10))
    hold.learn({"a": {"acked_lsn": 599}, "b": {"acked_lsn": 10_000}}, {"a", "b"}, 170)
    assert gone(hold, 170) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("behind", [False, True])
def test_who_followed_for_long_waits_for_the_others_from_the_beginning_of_its_lead(
    behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """behind: the other one has come back by now."""
    cluster_of = {"registry": "manual", "secret": "0123456789abcdef", "hold": {"age": "60s", "bytes": "50000B"}}
    settings = Settings.model_validate({"server": {"name": "a"}, "cluster": cluster_of})
    said: dict[str, Any] = {
        "role": "following", "member": "a", "members": {one: {"name": one} for one in "ab"}, "cut_records": 0,
        "confirm": "in-sync",
    }  # fmt: skip
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(leading, "boottime", lambda: clock.now)
    theirs, mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def gone_after(cluster: Any, seconds: int, packet: bytes) -> list[int]:
        """What may go when this was said."""
        clock.now += seconds * 1_000_000
        theirs.send(packet)
        cluster._hear()
        return [n for n, one in enumerate(LOG) if cluster._copied(one)]

    async def run() -> None:
        cluster: Any = Cluster(settings, lambda line: None, lambda: 0.0)
        cluster._sock, cluster._log = mine, SimpleNamespace(segments=lambda: LOG)
        cluster._called = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(cluster, "_beat", lambda: None)
        gone_after(cluster, 0, b"P" + orjson.dumps(said))
        gone_after(cluster, 7200, b"P" + orjson.dumps(said))
        assert gone_after(cluster, 1, b"T" + THREE.pack(3, 1000, 2) + b"x") == [], "nobody knows what it lacks"
        here = {"b": {"acked_lsn": 599}} if behind else {}
        leads = b"P" + orjson.dumps({**said, "role": "leading", "followers": here})
        assert gone_after(cluster, 30, leads) == ([0, 1, 2, 3, 4, 5] if behind else [])
        assert gone_after(cluster, 31, leads) == ([0, 1, 2, 3, 4, 5] if behind else list(range(10)))

    with theirs, mine:
        mine.setblocking(False)
        asyncio.run(run())


def test_retention_waits_unless_the_disk_is_full() -> None:
    log = SimpleNamespace(room=SimpleNamespace(full=False), base_state=lambda: None)
    runtime: Any = SimpleNamespace(log=log, archived=None, copied=lambda segment: segment.last < 500)
    retirement = Retirement(runtime, LogSection().retention)
    assert [n for n, one in enumerate(LOG) if retirement._may_go(one)] == [0, 1, 2, 3, 4]
    log.room.full = True
    assert all(map(retirement._may_go, LOG))
