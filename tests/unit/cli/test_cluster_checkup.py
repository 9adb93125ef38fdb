"""What `penstock doctor` says of a cluster: from what the register holds, and from who can be called."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fault_proxy import end
from penstock.cli.clusters import examine_cluster
from penstock.config.load import load_text
from penstock.config.settings import Settings
from penstock.log.disk import OsDisk
from penstock.replication.messages import Here, Look, Message
from penstock.replication.register import ClusterState, Member
from penstock.server.cluster import folder
from penstock.server.cluster.registers import FileRegister
from penstock.server.cluster.speech import Peer
from penstock.version import __version__

SECRET = "not known to strangers"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    text = f"""
[server]
name = "a"
[cluster]
registry = "file://{tmp_path}"
secret = "{SECRET}"
"""
    return load_text(text, source="p.toml")


def told(settings: Settings) -> dict[str, tuple[str, str]]:
    return {one.name: (one.verdict, one.found) for one in examine_cluster(settings)}


def keep(folder: Path, *members: Member, in_sync: int) -> None:
    named = {f"m-{one.name}": one for one in members}
    state = ClusterState("c-1", 1, members=named, in_sync=frozenset(list(named)[:in_sync]))
    assert FileRegister(folder).swap(0, state.encode()) == 1


def test_without_a_register_nothing_can_be_done(settings: Settings, tmp_path: Path) -> None:
    assert told(settings)["cluster"] == ("bad", "there is none in the register")
    tmp_path.rmdir()
    assert told(settings)["register"][0] == "bad"


class There:
    """A member that can be called, in a thread."""

    def __init__(self, *, secret: str = SECRET, ahead_s: float = 0.0, version: str = __version__) -> None:
        self._secret, self._ahead_s, self._version = secret.encode(), ahead_s, version
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._taken = list[Peer]()

    def heard(self, link: Peer, message: Message) -> None:
        assert message == Look()
        link.send(Here("m-b", "following", self._version, round((time.time() + self._ahead_s) * 1e6)))
        link.close()

    def gathered(self, link: Peer) -> None:
        pass

    def lost(self, link: Peer | None) -> None:
        pass

    def writable(self, link: Peer) -> None:
        pass

    def _take(self) -> Peer:
        self._taken.append(Peer(self._secret, self, lambda _: None, lambda: None, calls=False))
        return self._taken[-1]

    def __enter__(self) -> int:
        """The port."""
        listening = self._loop.create_server(self._take, "127.0.0.1", 0)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(20)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        async def close() -> None:
            await end([self._server])
            await asyncio.sleep(0)
            for one in self._taken:  # who has hung up just now is not heard of yet, and a loop closes nobody
                one.close()
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def test_members_are_counted_and_called(settings: Settings, tmp_path: Path) -> None:
    with There() as port:
        members = Member("a", "127.0.0.1:1", 1), Member("b", f"127.0.0.1:{port}", 1), Member("c", "127.0.0.1:1", 1)
        keep(tmp_path, *members, in_sync=2)
        found = told(settings)
    assert found["register"][0] == "good"
    assert found["cluster"] == ("good", "3 members, 2 in sync, min_in_sync 2")
    assert found["member b"][0] == "good"
    assert found["member c"][0] == "poor"
    assert found["machines"] == ("poor", "several members are at 127.0.0.1")
    assert "member a" not in found


def test_members_that_cannot_be_told_apart_are_named_by_their_ids(settings: Settings, tmp_path: Path) -> None:
    """As after a folder was emptied: what joins then is another member, and the old one stays listed."""
    both = {"m-1": Member("a", "127.0.0.1:1", 1), "m-2": Member("a", "127.0.0.1:1", 1)}
    state = ClusterState("c-1", 1, members={**both, "m-3": Member("b", "127.0.0.1:2", 1)}, in_sync=frozenset(both))
    assert FileRegister(tmp_path).swap(0, state.encode()) == 1
    found = [one for one in examine_cluster(settings) if one.name == "members"]
    assert [(one.verdict, one.found) for one in found] == [
        ("poor", "m-1, m-2 have the same name, a"),
        ("poor", "m-1, m-2 have the same address, 127.0.0.1:1"),
    ]


@pytest.mark.parametrize(
    ("there", "verdict", "said"),
    [
        ({"ahead_s": 0.3}, "good", "s ahead"),
        ({"ahead_s": -5.0}, "poor", "s behind"),
        ({"ahead_s": 90.0}, "poor", "s ahead"),
        ({"version": "0.0.9"}, "poor", "its version is 0.0.9"),
        ({"secret": "of another cluster"}, "bad", "another secret"),
    ],
)
def test_who_is_called_says_its_time_and_its_version(
    settings: Settings, tmp_path: Path, there: dict[str, Any], verdict: str, said: str
) -> None:
    """And shows that it has the secret."""
    with There(**there) as port:
        keep(tmp_path, Member("a", "127.0.0.1:1", 1), Member("b", f"127.0.0.1:{port}", 1), in_sync=2)
        found = told(settings)["member b"]
    assert found[0] == verdict
    assert said in found[1]


@pytest.mark.parametrize(("count", "in_sync", "verdict"), [(1, 1, "bad"), (3, 1, "bad"), (2, 2, "poor")])
def test_too_few_are_told(settings: Settings, tmp_path: Path, count: int, in_sync: int, verdict: str) -> None:
    keep(tmp_path, *(Member(name, f"{name}.invalid:1", 1) for name in "abc"[:count]), in_sync=in_sync)
    assert told(settings)["cluster"][0] == verdict


def test_an_address_that_others_cannot_call_is_told(settings: Settings, tmp_path: Path) -> None:
    keep(tmp_path, Member("a", "127.0.0.1:8817", 1), Member("b", "b.invalid:8817", 1), in_sync=2)
    assert told(settings)["advertise"] == ("bad", "127.0.0.1:8817")


def test_two_leaders_are_told_where_each_member_has_a_copy(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    text = f'[server]\nname = "a"\ndata = "{data}"\n[cluster]\nregistry = "manual"\nsecret = "{SECRET}"\n'
    settings = load_text(text, source="p.toml")
    before = ClusterState("c-1", 1, base=1 << 32).with_member("a", Member("a", "127.0.0.1:1", 1))
    before = before.with_member("b", Member("b", "127.0.0.1:2", 1)).counting("ab").led_by("a", 0)
    ours, theirs = (before.told_to_lead(one).led_by(one, 1 << 34) for one in "ab")
    assert FileRegister(data, "cluster-register").swap(0, ours.encode()) == 1
    assert "leaders" not in told(settings)
    folder.write_rival(OsDisk(data), theirs.encode())
    assert told(settings)["leaders"] == ("bad", "two: b leads term 2, of which this member has nothing")
    assert told(settings)["register"][1].startswith("this member's copy answers")
