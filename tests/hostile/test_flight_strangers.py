"""Who has not logged in at the Flight door: bytes, sockets, places; and a stop that waits for nobody."""

from __future__ import annotations

import queue
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from hostile.arrow_streams import CONSUMED, Message, Stream, command
from hostile.flight_wire import FlightWire
from hostile.pressing import Pressed
from hostile.watching import MIB, Bounds
from waiting import eventually

BOUNDS = Bounds(memory=200 * MIB, descriptors=160, lines=0)

STOP_S = 20.0
"""A stop waits for nobody and lasts a second or two; a machine that does much else may take longer."""

GREEDY = """
    import sys
    from hostile.flight_wire import FlightWire, action
    with FlightWire(sys.argv[1], "guest", "wrong") as wire:
        outcome = wire.one("DoAction", action(b"health", bytes(150 << 20)), timeout=60)
        print(outcome.code.name, outcome.details)
"""
"""In a process of its own: it has the 150 MB several times."""


@pytest.fixture
def pressed(tmp_path: Path) -> Iterator[Pressed]:
    with Pressed(tmp_path, BOUNDS) as pressed:
        yield pressed


def test_an_action_of_150_mb_with_a_wrong_password_does_not_take_the_memory(pressed: Pressed) -> None:
    """A server that reads them first takes three times as much: of 400 MB 119 MiB became 1,294."""
    folder = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GREEDY), pressed.server.ready["flight"]],
        env={"PYTHONPATH": folder}, capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
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
