"""What a server that waits says of who leads: what its member has heard, or that it has heard nothing yet."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import orjson
import pytest

from penstock.config.settings import Settings
from penstock.log.disk import OsDisk, OsFile
from penstock.replication.insync import Times
from penstock.replication.register import ClusterState, Member, Tenure
from penstock.server.cluster import process, troubles
from penstock.server.cluster.leading import Cluster
from penstock.server.cluster.process import Process
from penstock.server.cluster.registers import Kept
from penstock.server.cluster.speech import Peer, called
from penstock.server.sockets.certificates import Files as Shown
from tls_lab import Files

HEARD = {"b": {"name": "two", "address": "10.0.0.2:5681", "reads": 1}}


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({}, "it has not heard yet who leads"),
        ({"trouble": "the register cannot be reached"}, "it has not heard yet who leads"),
        ({"members": HEARD, "leader": None}, "nobody leads now"),
        ({"members": HEARD, "leader": "b"}, "two leads, whose stream is at 10.0.0.2:5681"),
    ],
)
def test_who_leads(known: dict[str, Any], told: str) -> None:
    cluster_of = {"registry": "file:/nowhere", "listen": "127.0.0.1:7000", "secret": "s" * 32}
    settings = Settings.model_validate({"server": {"name": "one"}, "cluster": cluster_of})
    waiting = Cluster(settings, lambda line: None, lambda: 0.0)
    waiting.known |= known
    assert str(waiting.refusal()) == f"this server follows: {told}"


async def test_the_server_is_told_at_once_when_another_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the next word about how the member is: who asks meanwhile would hear of the one before, or of nobody."""
    told = list[tuple[bytes, object]]()
    nobody = ClusterState("c", 7, members={"b": Member("two", "10.0.0.2:5681", 1)})
    three, four = ((Tenure(term, term, None),) for term in (3, 4))
    leads = replace(nobody, leader="b", term=3, in_sync=frozenset("b"), terms=three, ceiling=9)
    states = iter([nobody, nobody, leads, replace(leads, beat=9), replace(leads, term=4, terms=four)])
    member: Any = SimpleNamespace(state=None)
    member.register_read = lambda version, state: setattr(member, "state", state)
    monkeypatch.setattr(process, "plain", lambda one: {"leader": one.state.leader, "term": one.state.term})
    world: Any = object.__new__(Process)
    world._member, world._reading, world._told_at, world._calls = member, False, 0.0, []
    world._loop = asyncio.get_running_loop()
    world._register = SimpleNamespace(read=lambda: Kept(1, next(states).encode()))
    world._tell = lambda kind, content: told.append((kind, orjson.loads(content)))
    with ThreadPoolExecutor(1) as world._pool:
        for _ in range(5):
            await world._read()
            assert not hasattr(member, "trouble"), member.trouble
    assert told == [
        (b"P", {"leader": None, "term": 0}), (b"P", {"leader": "b", "term": 3}), (b"P", {"leader": "b", "term": 4}),
    ]  # fmt: skip


def test_two_troubles_that_take_turns_are_told_once_a_minute_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """No register, and a leader that cannot be called: what was tried last is the trouble, some times a second."""
    cluster_of = {"registry": "file:/nowhere", "listen": "127.0.0.1:7000", "secret": "s" * 32}
    settings = Settings.model_validate({"server": {"name": "one"}, "cluster": cluster_of})
    said, clock = list[str](), SimpleNamespace(at=0.0, monotonic=lambda: clock.at)
    monkeypatch.setattr(troubles, "time", clock)
    waiting = Cluster(settings, said.append, lambda: 0.0)
    for clock.at in range(0, 125, 5):
        for trouble in ("no register", "no leader", "no register", ""):
            waiting._learn({"role": "starting", "trouble": trouble, "cut_records": 0})
    assert said == 3 * ["cluster: no register", "cluster: no leader"]


def test_a_folder_that_cannot_be_written_at_a_start_is_said_as_it_is_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its disk is full, say: what an operator is told is no traceback."""

    class Full(OsDisk):
        def open(self, name: str, *, create: bool = False, readonly: bool = False) -> OsFile:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def ended(status: int) -> NoReturn:
        raise SystemExit(status)

    for name in ("end_with_parent", "beside_a_server"):
        monkeypatch.setattr(process, name, lambda: None)
    monkeypatch.setattr(process, "OsDisk", Full)
    monkeypatch.setattr(process.os, "_exit", ended)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(process.sys, "argv", ["", "0", "0"])
    monkeypatch.setattr(process, "socket", SimpleNamespace(socket=lambda fileno: there))
    with here, there:
        asked = {
            "data": str(tmp_path), "register": f"file://{tmp_path}", "lease": 1, "ack_timeout": 1, "stall": 1,
            "secret": "", "tls": None, "local": False, "name": "", "advertise": "", "min_in_sync": 1, "members": [],
        }  # fmt: skip
        here.send(orjson.dumps(asked))
        with pytest.raises(SystemExit):
            process.main()
        assert (
            here.recv(1 << 16)
            == b"E" + process.unwritable(str(tmp_path), OSError(errno.ENOSPC, "No space left on device")).encode()
        )


async def trouble_of(secret: bytes, tls: Shown | None, leaders: Shown | None, *, leads: bool = True) -> tuple[str, str]:
    """What a member says of itself once its leader, or who may know of one, has ended the call; and where that is."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    leader = await loop.create_server(
        lambda: Peer(b"one", SimpleNamespace(), lambda _: None, lambda: None, calls=False),  # type: ignore[arg-type]
        "127.0.0.1", 0, ssl=None if leaders is None else called(leaders),
    )  # fmt: skip
    address = f"127.0.0.1:{leader.sockets[0].getsockname()[1]}"
    world: Any = object.__new__(Process)
    world._secret, world._tls, world._unheard = secret, tls, {}
    known = SimpleNamespace(cluster="")
    world._member = SimpleNamespace(trouble="", known=known, terms=SimpleNamespace(manual=True))
    await world._call(address, lambda _: None, over.set, leads=leads)
    async with asyncio.timeout(30):
        await over.wait()
    leader.close()
    if not leads:
        world._reading, world._calls, world._loop = False, [], loop
        world._register = SimpleNamespace(read=lambda: Kept(0, b""))
        with ThreadPoolExecutor(1) as world._pool:
            await world._read()
    return world._member.trouble, address


async def test_who_waits_for_other_members_says_why_they_said_nothing() -> None:
    """Where a person decides who leads: told to make a cluster, who had one and a wrong secret would have had two."""
    trouble, address = await trouble_of(b"another", None, None, leads=False)
    assert trouble == (
        f"no other member has told who leads: the member at {address} ended the call: it has another secret, or is of "
        "an older version; only where there is no cluster yet, run `penstock cluster init` with the settings of one "
        "member, and name its address in `members` in those of the others"
    )


async def test_a_member_with_another_secret_than_the_leaders_says_so_itself() -> None:
    """The leader's output alone told it, and it joined for ever."""
    trouble, address = await trouble_of(b"another", None, None)
    assert trouble == f"the leader at {address} ended the call: it has another secret, or is of an older version"


def two_houses(folder: Path) -> tuple[Files, Files, str]:
    """Two authorities that do not know each other, and a file that has both."""
    ours, theirs = Files(folder / "ours"), Files(folder / "theirs")
    both = folder / "both.pem"
    both.write_bytes(Path(ours.ca).read_bytes() + Path(theirs.ca).read_bytes())
    return ours, theirs, str(both)


async def test_a_member_whose_certificate_the_leader_does_not_take_says_so_itself(tmp_path: Path) -> None:
    """TLS's own handshake ends well on its side, and the leader's output alone told it: it joined for ever."""
    ours, theirs, both = two_houses(tmp_path)
    leaders = Shown("cluster", theirs.certificate, theirs.key, theirs.ca)
    own = Shown("cluster", ours.certificate, ours.key, both)
    trouble, address = await trouble_of(b"one", own, leaders)
    assert trouble == (
        f"the leader at {address} ended the call and said nothing: it does not take this member's certificate, and its "
        "output says why, or has just ended"
    )


async def test_a_register_that_hangs_is_a_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of a network that has gone gives no error: a leader said nothing while nobody could be elected."""
    answers, clock = threading.Event(), SimpleNamespace(now=10_000_000)
    monkeypatch.setattr(process, "boottime", lambda: clock.now)
    member = SimpleNamespace(
        trouble="", terms=SimpleNamespace(times=Times(lease=5_000_000)), leads=True, following=None
    )
    world: Any = object.__new__(Process)
    world._loop, world._member, world._calls = asyncio.get_running_loop(), member, []
    with ThreadPoolExecutor(1) as world._pool:
        try:
            asked = [asyncio.ensure_future(world._ask(answers.wait, 30.0)) for _ in range(2)]
            await asyncio.sleep(0)
            for seconds, member.leads, member.following, told in (
                (4, True, None, ""), (1, False, "a leader", ""), (0, False, None, HANGS), (0, True, None, HANGS),
            ):  # fmt: skip
                member.trouble = ""
                clock.now += seconds * 1_000_000
                world._tell_of_silence()
                assert member.trouble == told
        finally:
            answers.set()
        await asyncio.gather(*asked)
    member.trouble = ""
    world._tell_of_silence()
    assert (member.trouble, world._calls) == ("", [])


HANGS = "the register does not answer: a call of it has stood for more than 4 s"
