"""Connections of gRPC's ports, seen through the kernel: what is cut before a login, and what is left alone."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.server.flight import crowding
from penstock.server.flight.connections import QUIET_S, Connections, Strangers, host_and_port
from waiting import eventually

WINDOW = 128 << 10
"""Bytes that a connection takes which nobody reads, whatever this kernel has: more than what is in nobody's way."""

MAY = Strangers(seconds=10.0, bytes=1000, most=6, from_one_address=4)


class House:
    """A listening socket, and both ends of each connection to it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        self.connections = Connections(MAY)
        self.connections._doors[self.listening.getsockname()[1]] = "flight"  # looked at by hand, not by the thread
        self.looked = list[float]()

    def client(self, host: str = "127.0.0.1") -> socket.socket:
        """A connection from an address of this machine."""
        made = socket.create_connection(self.listening.getsockname(), source_address=(host, 0))
        self._stack.enter_context(made)
        self.accepted = self._stack.enter_context(self.listening.accept()[0])
        made.settimeout(30)
        return made

    def look(self, now: float) -> None:
        self.connections.look(now)

    def rests(self) -> bool:
        return not self.connections._somebody.is_set()


@pytest.fixture
def house() -> Iterator[House]:
    with ExitStack() as stack:
        yield House(stack)


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def fill(client: socket.socket) -> None:
    """Send until no more is taken."""
    client.setblocking(False)
    try:
        while client.send(bytes(1 << 16)):
            pass
    except BlockingIOError:
        return


def test_who_does_not_log_in_is_cut_in_time_and_who_does_stays(house: House) -> None:
    silent, good = house.client(), house.client()
    house.look(100.0)
    house.connections.known(good.getsockname())
    house.look(109.9)
    assert is_open(silent)
    house.look(110.1)
    assert not is_open(silent)
    house.look(10_000.0)
    assert is_open(good)
    assert house.connections.closed == {("flight", "time"): 1}
    assert house.connections.there() == {"flight": 0}


def test_who_is_cut_while_it_writes_into_a_full_window_is_reset(house: House) -> None:
    """A close alone would leave it to probe that window for a minute: gRPC's client then misses its own deadline."""
    client = house.client()
    fill(client)
    house.look(0.0)  # it has sent more than a stranger may
    house.accepted.setblocking(False)
    while house.accepted.recv(1 << 20):
        pass  # gRPC reads what there is, and closes at the end
    house.accepted.close()
    with pytest.raises(ConnectionError):
        client.send(b"x")
    assert house.connections.closed == {("flight", "bytes"): 1}


def test_who_logs_in_before_anybody_looked_is_not_taken_for_a_stranger(house: House) -> None:
    good = house.client()
    house.connections.known(good.getsockname())
    house.look(0.0)
    house.look(100.0)
    assert is_open(good)


def test_who_sends_more_than_a_first_call_needs_is_cut_whatever_the_time(house: House) -> None:
    modest, greedy = house.client(), house.client()
    modest.sendall(b"x" * 900)
    greedy.sendall(b"x" * 1100)
    until = time.monotonic() + 30
    while is_open(greedy) and time.monotonic() < until:
        house.look(0.0)
    assert not is_open(greedy)
    assert is_open(modest)
    assert house.connections.closed == {("flight", "bytes"): 1}


def test_what_came_on_all_together_has_a_bound_and_who_sent_most_goes(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.flight.connections.TOGETHER", 2)
    clients = [house.client(f"127.0.0.{2 + n}") for n in range(4)]
    for client, size in zip(clients, (500, 900, 600, 700), strict=True):
        client.sendall(b"x" * size)
    until = time.monotonic() + 30
    while is_open(clients[1]) and time.monotonic() < until:
        house.look(0.0)
    assert [is_open(one) for one in clients] == [True, False, True, True]


def test_who_ends_as_another_call_of_his_is_let_in_is_forgotten_once(house: House) -> None:
    client = house.client()
    peer = client.getsockname()
    house.connections.known(peer)
    house.look(0.0)
    client.close()
    house.accepted.close()
    house.connections.known(peer)
    house.look(1.0)
    assert not house.connections.is_known(peer)


def sent(client: socket.socket, size: int, accepted: socket.socket) -> None:
    """So much, and it has come: read as it comes, since the kernel takes as much as it likes."""
    left = size
    while left:
        came = client.send(bytes(left))
        left -= came
        while came:
            came -= len(accepted.recv(came))


def test_who_sent_most_of_what_never_came_out_of_grpc_is_cut_first(house: House) -> None:
    clients, accepted = [], []
    for _ in range(3):
        clients.append(house.client())
        accepted.append(house.accepted)
    _, uploader, modest = clients
    for client in clients[:2]:
        house.connections.known(client.getsockname(), 100)
    for client, size, at in zip(clients, (100_000, 300_000, 1_000), accepted, strict=True):
        sent(client, size, at)
    for _ in range(10):
        with house.connections.senders.uploading(uploader.getsockname()) as came:
            came(29_000)
    house.connections.relieve(100.0)
    assert [is_open(one) for one in clients] == [False, True, True]
    house.connections.relieve(100.0)  # what the others have in gRPC is no reason
    assert is_open(uploader)
    assert is_open(modest)
    assert house.connections.closed == {("flight", "crowd"): 1}


def test_what_was_not_read_goes_with_a_connection_that_is_cut_for_it(house: House) -> None:
    flooder = house.client()
    fill(flooder)
    house.connections.relieve(100.0)
    house.accepted.setblocking(False)
    with pytest.raises(OSError, match="not connected|reset"):
        house.accepted.recv(1 << 20)


def test_one_address_has_so_many_and_the_oldest_go(house: House) -> None:
    early = [house.client() for _ in range(4)]
    house.look(0.0)
    elsewhere = house.client("127.0.0.2")
    late = [house.client() for _ in range(3)]
    house.look(1.0)
    assert [is_open(one) for one in early] == [False, False, False, True]
    assert all(map(is_open, late))
    assert is_open(elsewhere)
    assert house.connections.closed == {("flight", "per_address"): 3}
    assert house.connections.there() == {"flight": 5}


def test_all_together_are_so_many(house: House) -> None:
    clients = [house.client(f"127.0.0.{1 + n}") for n in range(8)]
    for now, _ in enumerate(clients):
        house.look(float(now))
    assert sum(map(is_open, clients)) == 6
    assert house.connections.closed == {("flight", "sockets"): 2}


def test_sockets_of_others_are_left_alone(house: House) -> None:
    one, other = socket.socketpair()
    elsewhere = socket.create_server(("127.0.0.1", 0))
    with one, other, elsewhere, socket.create_connection(elsewhere.getsockname()) as client:
        house.look(0.0)
        house.look(1000.0)
        assert house.connections.cut_all() == 0
        assert is_open(client)
        assert is_open(one)


def test_strangers_can_be_cut_at_once(house: House) -> None:
    """Nobody waits for them where a door closes; who has just logged in is none."""
    silent, late, good = house.client(), house.client(), house.client()
    house.connections.known(good.getsockname())
    house.look(0.0)
    house.connections.known(late.getsockname())
    unseen = house.client()
    house.connections.cut_strangers(0.1)
    assert [is_open(one) for one in (silent, unseen, late, good)] == [False, False, True, True]


def test_all_can_be_cut(house: House) -> None:
    clients = [house.client() for _ in range(3)]
    house.connections.known(clients[0].getsockname())
    house.look(0.0)
    assert house.connections.cut_all() == 3
    assert not any(map(is_open, clients))


@pytest.fixture
def watched(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """Looked at by the thread, which is never done with resting unless it is told.

    It looks again after it was told: who is accepted as it looks for the first time is not outside any more."""
    monkeypatch.setattr("penstock.server.flight.connections.QUIET_S", 0.3)
    monkeypatch.setattr("penstock.server.flight.connections.REST_S", 3600.0)
    looks = house.connections.look
    monkeypatch.setattr(house.connections, "look", lambda now: (house.looked.append(now), looks(now)))
    house.connections.watch(house.listening.getsockname()[1], "flight")
    eventually(house.rests)
    yield house
    house.connections.end()
    house.client()  # the thread hears of the end


def test_nobody_looks_while_nobody_is_connected_and_who_connects_is_seen_at_once(watched: House) -> None:
    greedy = watched.client()
    greedy.sendall(b"x" * 1100)
    eventually(lambda: watched.connections.closed == {("flight", "bytes"): 1})
    watched.accepted.close()
    eventually(watched.rests)
    looked = len(watched.looked)
    watched.client().close()  # accepted, and gone, before anybody looks
    watched.accepted.close()
    eventually(lambda: len(watched.looked) > looked)


def test_while_those_who_are_there_have_logged_in_nobody_looks_but_for_their_ends(
    watched: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One idle client had the door look at all descriptors 33 times a second, for as long as it was there."""
    left, rests, wait = list[tuple[str, int]](), list[float](), crowding.wait
    monkeypatch.setattr(watched.connections, "_left", left.extend)
    monkeypatch.setattr(crowding, "wait", lambda seconds: (rests.append(seconds), wait(seconds))[1])
    monkeypatch.setattr("penstock.server.flight.connections.PRESENT_S", 0.02)
    good = watched.client()
    theirs = watched.accepted
    watched.connections.known(good.getsockname())
    eventually(lambda: 0.02 in rests)
    watched.connections.known(good.getsockname())  # its next call is no reason to look more often
    looked, rested = len(watched.looked), len(rests)
    eventually(lambda: len(rests) > rested + 5)
    assert abs((len(watched.looked) - looked) - (len(rests) - rested)) <= 2
    greedy = watched.client()
    greedy.sendall(b"x" * 1100)
    eventually(lambda: watched.connections.closed == {("flight", "bytes"): 1})
    theirs.close()
    eventually(lambda: left == [good.getsockname()])


def test_nobody_rests_while_a_stranger_is_connected_or_somebody_stands_outside(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections, now = house.connections, time.monotonic()
    monkeypatch.setattr(connections, "_run", connections._ended.wait)
    assert not connections.is_quiet(now)  # nobody would tell who comes
    connections.watch(house.listening.getsockname()[1], "flight")
    house.look(now)
    assert not connections.is_quiet(now)
    now = time.monotonic() + QUIET_S
    assert connections.is_quiet(now)
    with socket.create_connection(house.listening.getsockname()):
        assert not connections.is_quiet(now)
        accepted = house.listening.accept()[0]
        house.look(now)
        assert not connections.is_quiet(now + QUIET_S)
        accepted.close()
    house.look(now)
    good = house.client()
    connections.known(good.getsockname())
    house.look(now)
    assert connections.is_quiet(now + QUIET_S)
    connections.end()


@pytest.mark.parametrize(
    ("told", "peer"),
    [
        ("ipv4:127.0.0.1:5000", ("127.0.0.1", 5000)),
        ("ipv6:%5B::1%5D:5000", ("::1", 5000)),
        ("unix:/tmp/x", ("/tmp/x", 0)),
    ],
)
def test_peers_as_grpc_writes_them(told: str, peer: tuple[str, int]) -> None:
    host, port = host_and_port(told)
    assert port == peer[1]
    assert host == peer[0] or not peer[1]
