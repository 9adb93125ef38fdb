"""Who has not logged in at the Flight door: bytes, sockets, places; and a stop that waits for nobody."""

from __future__ import annotations

import queue
import signal
import socket
import time
from collections.abc import Iterator

import grpc
import pytest

from hostile.arrow_streams import CONSUMED, Message, Stream, command
from hostile.flight_wire import FlightWire
from hostile.greedy import greedy
from hostile.pressing import Pressed
from hostile.watching import MIB, Bounds
from waiting import eventually

BOUNDS = Bounds(memory=200 * MIB, descriptors=160, lines=0)

STOP_S = 20.0
"""A stop waits for nobody and lasts a second or two; a machine that does much else may take longer."""


@pytest.fixture(scope="module")
def pressed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pressed]:
    """One for all, which the last of them stops."""
    with Pressed(tmp_path_factory.mktemp("strangers"), BOUNDS) as pressed:
        yield pressed


def test_an_action_of_150_mb_with_a_wrong_password_does_not_take_the_memory(pressed: Pressed) -> None:
    """A server that reads them first takes three times as much: of 400 MB 119 MiB became 1,294."""
    done = greedy(pressed.server.ready["flight"], "wrong", 150)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("UNAVAILABLE"), done.stdout
    pressed.judge()


def test_sockets_that_say_nothing_leave_room_for_who_logs_in(pressed: Pressed) -> None:
    host, port = pressed.server.ready["flight"].rsplit(":", 1)
    silent = [socket.create_connection((host, int(port))) for _ in range(120)]
    try:
        eventually(pressed.watched.settled(40))
        with FlightWire(pressed.server.ready["flight"]) as wire:
            assert wire.one("ListActions", b"").code is grpc.StatusCode.OK
        pressed.judge()
    finally:
        for one in silent:
            one.close()


def test_a_consumer_that_never_ends_its_half_does_not_keep_the_server_from_stopping(pressed: Pressed) -> None:
    sent = queue.SimpleQueue[bytes | None]()
    hello = Message(metadata=b'{"heartbeat": true}')
    [first] = Stream("exchange", command("consume", queue=CONSUMED), [hello]).frames()
    sent.put(first)
    call = pressed.wire.opened("DoExchange", iter(sent.get, None))
    assert next(iter(call))
    assert pressed.server.process is not None
    began = time.monotonic()
    pressed.server.process.send_signal(signal.SIGTERM)
    assert pressed.server.process.wait(60) == 0
    assert time.monotonic() - began < STOP_S
    sent.put(None)
