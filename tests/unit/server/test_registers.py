"""A register changes by compare-and-set alone: of many who try at once one succeeds, and nobody's value is lost."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from etcd_process import running_etcd
from penstock.errors import InvalidArgument, SettingsError, Unavailable
from penstock.replication.insync import Times
from penstock.replication.register import ClusterState, Member, decode
from penstock.server.cluster.registers import EtcdRegister, FileRegister, Kept, Register, changed, register_at
from ports import free_ports


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as host:
        yield host


@pytest.fixture(params=["file", "manual", "etcd"])
def register(request: pytest.FixtureRequest, tmp_path: Path) -> Register:
    if request.param != "etcd":
        return register_at(f"file://{tmp_path}" if request.param == "file" else "manual", tmp_path)
    host: str = request.getfixturevalue("etcd")
    return register_at(f"etcd://{host}/{tmp_path.name}", tmp_path)


def test_a_value_is_replaced_by_who_knows_its_version(register: Register) -> None:
    assert register.read() == Kept(0, b"")
    first = register.swap(0, b"one")
    assert isinstance(first, int)
    assert register.read() == Kept(first, b"one")
    assert register.swap(0, b"another") == "changed"
    assert register.swap(first + 1, b"another") == "changed"
    second = register.swap(first, b"two")
    assert isinstance(second, int)
    assert second > first
    assert register.swap(first, b"late") == "changed"
    assert register.read() == Kept(second, b"two")


def test_of_those_who_try_at_once_one_succeeds(register: Register) -> None:
    """Each adds one to a number, again and again: none of the additions is lost, and none is done twice."""
    version = register.swap(0, b"0")
    assert isinstance(version, int)
    wins = list[int]()

    def add() -> None:
        for _ in range(10):
            while True:
                kept = register.read()
                outcome = register.swap(kept.version, b"%d" % (int(kept.value) + 1))
                if isinstance(outcome, int):
                    wins.append(outcome)
                    break

    threads = [threading.Thread(target=add) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert register.read().value == b"40"
    assert len(set(wins)) == 40


def test_an_etcd_that_does_not_answer_is_no_answer(etcd: str) -> None:
    """Others of the list are asked; of a swap whose answer is lost nobody knows what became of it."""
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    both = EtcdRegister([nobody, etcd], "lost")
    assert both.read() == Kept(0, b"")
    with pytest.raises(Unavailable, match="does not answer"):
        EtcdRegister([nobody], "lost").read()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        host = f"127.0.0.1:{deaf.getsockname()[1]}"
        deaf_one = register_at(f"etcd://{host}/lost", "data", 500_000)
        assert deaf_one.swap(0, b"x") == "unknown"
        with pytest.raises(Unavailable, match="timed out"):
            deaf_one.read()


@pytest.mark.parametrize(
    ("lease", "call_s"), [(500_000, 0.2), (5_000_000, 2.0), (20_000_000, 8.0), (25_000_000, 10.0), (300_000_000, 10.0)]
)
def test_a_call_takes_no_longer_than_the_lease_lets_it_help(lease: int, call_s: float) -> None:
    """One that a leader begins with a beat has ended before that leader has to, which then may ask once more."""
    times = Times(lease=lease)
    assert times.call == call_s * 1e6
    assert times.renew + times.call < times.last
    register = register_at("etcd://a:1/x", "data", lease)
    assert isinstance(register, EtcdRegister)
    assert register._timeout_s == call_s


def test_a_call_has_some_time_whatever_the_lease() -> None:
    assert Times(lease=1_000).call == 200_000


def test_a_folder_that_is_not_there_is_no_empty_register(tmp_path: Path) -> None:
    """An unmounted one would else look like a cluster that was never made."""
    gone = FileRegister(tmp_path / "gone")
    with pytest.raises(Unavailable, match="is not there"):
        gone.read()
    with pytest.raises(Unavailable):
        gone.swap(0, b"x")
    (tmp_path / "register").write_bytes(b"nonsense")
    with pytest.raises(Unavailable, match="cannot be read"):
        FileRegister(tmp_path).read()


@pytest.mark.parametrize(
    "url", ["zookeeper://a:1/x", "file://host/folder", "file:relative", "etcd:///x", "etcd://[::1?a:1", ""]
)
def test_what_is_no_register_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="is no register"):
        register_at(url, "data")


def test_servers_of_etcd_may_be_named_by_address(tmp_path: Path) -> None:
    gone = register_at("etcd://[::1]:1,127.0.0.1:1,[::1]:2/x", tmp_path)
    with pytest.raises(Unavailable, match=r"etcd does not answer: \[::1\]:2: "):
        gone.read()


def test_a_change_is_tried_again_while_others_change_the_register(tmp_path: Path) -> None:
    register = FileRegister(tmp_path)
    with pytest.raises(Unavailable, match="the register is empty"):
        changed(register, lambda state: state)
    members = {name: Member(name, "x:1", 1) for name in "ab"}
    state = ClusterState("c", 7, in_sync=frozenset("a"), members=members)
    assert register.swap(0, state.encode()) == 1
    others = [0]

    def change(state: ClusterState) -> ClusterState:
        if others[0] < 2:
            others[0] += 1
            version = register.read().version
            assert register.swap(version, state.beaten().encode()) == version + 1
        return state.without_member("b")

    after = changed(register, change)
    assert (after.beat, after.members.keys()) == (2, {"a"})
    assert decode(register.read().value) == after


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "register").write_bytes(b"7\n")
    os.truncate(tmp_path / "register", 1 << 40)
    kept = FileRegister(tmp_path).read()
    assert kept.version == 7
    with pytest.raises(InvalidArgument, match="bytes; at most"):
        decode(kept.value)


def test_a_disk_that_takes_some_of_a_value_has_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An almost full one does that, and says that it is full when it is asked for the rest."""
    register = FileRegister(tmp_path)
    assert register.swap(0, b"before") == 1
    left, write = [100], os.write

    def almost_full(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        some = data[: left[0]]
        left[0] -= len(some)
        return write(fd, some)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", almost_full)
        with pytest.raises(Unavailable, match="No space left"):
            register.swap(1, b"x" * 200)
    assert register.read() == Kept(1, b"before")
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    assert register.swap(1, b"x" * 200) == 2
    assert register.read() == Kept(2, b"x" * 200)


NO_ANSWERS = [
    b"no JSON", b"[]", b"{}", b'"text"', b'{"header":{}}', b'{"header":7,"kvs":[7]}',
    b'{"header":{"revision":"7"},"kvs":[{"key":"eA=="}]}', b'{"header":{"revision":"x"},"kvs":[]}',
    b'{"header":{"revision":"7"},"kvs":[{"mod_revision":"7","value":"_"}]}',
    b'{"header":{"revision":"7"},"kvs":[{"mod_revision":"7","value":7}]}',
]  # fmt: skip


@pytest.mark.parametrize("content", NO_ANSWERS)
def test_what_is_no_answer_of_etcd_says_nothing(content: bytes) -> None:
    """Something else listens there, or stands between: members went down with all that they did beside it."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answers() -> None:
            for _ in range(2):
                peer, _ = server.accept()
                with peer:
                    peer.settimeout(10)
                    peer.recv(1 << 16)
                    peer.sendall(answer)

        thread = threading.Thread(target=answers, daemon=True)
        thread.start()
        register = EtcdRegister([f"127.0.0.1:{server.getsockname()[1]}"], "x")
        with pytest.raises(Unavailable, match="no answer of etcd"):
            register.read()
        outcome = register.swap(7, b"y")
        thread.join()
    assert outcome == ("unknown" if b'"revision":"7"' not in content else "changed")
