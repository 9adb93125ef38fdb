"""What `penstock doctor` says of a cluster: from what the register holds, and from who can be called."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.cli.checkup import examine_cluster
from penstock.config.load import load_text
from penstock.config.settings import Settings
from penstock.replication.register import ClusterState, Member
from penstock.server.cluster.registers import FileRegister


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    text = f"""
[server]
name = "a"
[cluster]
registry = "file://{tmp_path}"
secret = "not known to strangers"
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


def test_members_are_counted_and_called(settings: Settings, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        members = Member("a", "127.0.0.1:1", 1), Member("b", f"127.0.0.1:{port}", 1), Member("c", "127.0.0.1:1", 1)
        keep(tmp_path, *members, in_sync=2)
        found = told(settings)
    assert found["register"][0] == "good"
    assert found["cluster"] == ("good", "3 members, 2 in sync, min_in_sync 2")
    assert found["member b"][0] == "good"
    assert found["member c"][0] == "poor"
    assert found["machines"] == ("poor", "several members are at 127.0.0.1")
    assert "member a" not in found


@pytest.mark.parametrize(("count", "in_sync", "verdict"), [(1, 1, "bad"), (3, 1, "bad"), (2, 2, "poor")])
def test_too_few_are_told(settings: Settings, tmp_path: Path, count: int, in_sync: int, verdict: str) -> None:
    keep(tmp_path, *(Member(name, f"{name}.invalid:1", 1) for name in "abc"[:count]), in_sync=in_sync)
    assert told(settings)["cluster"][0] == verdict


def test_an_address_that_others_cannot_call_is_told(settings: Settings, tmp_path: Path) -> None:
    keep(tmp_path, Member("a", "127.0.0.1:8817", 1), Member("b", "b.invalid:8817", 1), in_sync=2)
    assert told(settings)["advertise"] == ("bad", "127.0.0.1:8817")
