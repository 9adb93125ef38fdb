"""Flight calls that come before the door is open: who waits, for how long, and what the others are told."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_house import Everyone
from penstock.errors import Unavailable
from penstock.server.flight import entrance
from penstock.server.flight.calls import Caller
from penstock.server.flight.door import FlightDoor
from penstock.server.flight.entrance import Entrance
from penstock.server.flight.handover import Abandoned
from penstock.server.people.access import Shares, Who

BASIC = [(b"authorization", b"Basic Z3Vlc3Q6Z3Vlc3Q=")]


class Client:
    """Makes calls, until it leaves."""

    def __init__(self) -> None:
        self.left = False

    def gone(self) -> bool:
        return self.left

    @property
    def caller(self) -> Caller:
        return Caller(Who("ann"), "ipv4:127.0.0.1:5000", self.gone)


class Door:
    """Answers every action with its name."""

    def act(self, caller: Caller, name: str, body: bytes) -> bytes:
        return name.encode()


def door() -> FlightDoor:
    return cast("FlightDoor", Door())


def caller() -> Caller:
    return Client().caller


@pytest.fixture
def early() -> Entrance:
    return Entrance(Everyone(), lambda: "recovering, 40%")


def test_calls_wait_for_the_door_and_later_ones_do_not(early: Entrance) -> None:
    there = door()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(early.inside, caller()) for _ in range(3)]
        assert not any(one.done() for one in waiting)
        early.open(there)
        assert [one.result(30) for one in waiting] == [there] * 3
    assert early.inside(caller()) is there


def test_patience_ends_with_an_answer_that_says_how_far_it_is(early: Entrance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "PATIENCE_S", -1.0)
    monkeypatch.setattr(entrance, "LOOK_S", 0.001)
    with pytest.raises(Unavailable, match="recovering, 40%: try again") as told:
        early.inside(caller())
    assert told.value.retry


def test_only_so_many_wait() -> None:
    shares = Shares()
    shares.of("early_calls").bound(1)
    early = Entrance(Everyone(), shares=shares)
    asked = threading.Event()

    class Asked(Client):
        def gone(self) -> bool:
            asked.set()
            return False

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(early.inside, Asked().caller)
        assert asked.wait(30)
        with pytest.raises(Unavailable, match="starting"):
            early.inside(caller())
        early.open(door())
        first.result(30)


def test_a_client_that_left_and_a_start_that_failed_end_the_wait(early: Entrance) -> None:
    client = Client()
    client.left = True
    with pytest.raises(Abandoned):
        early.inside(client.caller)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(early.inside, caller())
        early.close()
        with pytest.raises(Unavailable, match="the server stops"):
            waiting.result(30)


def test_a_real_call_goes_through_when_the_door_opens(early: Entrance) -> None:
    _, port = early.listen("127.0.0.1", 0)
    options = flight.FlightCallOptions(headers=cast("Any", BASIC), timeout=20)
    with ThreadPoolExecutor(1) as pool, flight.FlightClient(f"grpc://127.0.0.1:{port}") as client:
        answer = pool.submit(lambda: list(client.do_action(flight.Action("hello", b""), options)))
        early.open(door())
        assert [result.body for result in answer.result(20)] == [pa.py_buffer(b"hello")]
    assert early.close()


def test_a_call_without_a_login_does_not_wait(early: Entrance) -> None:
    _, port = early.listen("127.0.0.1", 0)
    with (
        flight.FlightClient(f"grpc://127.0.0.1:{port}") as client,
        pytest.raises(flight.FlightUnauthenticatedError),
    ):
        list(client.do_action(flight.Action("hello", b"")))
    early.close()
