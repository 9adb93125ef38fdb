"""SIGHUP asks to look at files again: where there is nothing to look at, nothing happens."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from forked import beside
from live_server import LiveServer


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    """With two doors, which are processes of their own."""
    monkeypatch.setenv("PENSTOCK_SERVER__DOORS", "2")
    with LiveServer(tmp_path) as server:
        yield server


def test_a_server_without_tls_goes_on(server: LiveServer) -> None:
    assert server.process is not None
    doors = beside(server.process.pid, "penstock.server.amqp.front")
    assert len(doors) == 2
    for name in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):  # as log rotation sends
        for pid in (server.process.pid, *doors):
            os.kill(pid, name)
        server.connect().channel().queue_declare("still-there", durable=True)
    assert server.process.poll() is None
    assert beside(server.process.pid, "penstock.server.amqp.front") == doors
    server.stop()
