"""SIGHUP asks to look at files again: where there is nothing to look at, nothing happens."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bulk_lab import children
from live_server import LiveServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path) as server:
        yield server


def test_a_server_without_tls_goes_on(server: LiveServer) -> None:
    assert server.process is not None
    for name in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):  # as log rotation sends
        for pid in (server.process.pid, *children(server.process.pid)):
            os.kill(pid, name)
        server.connect().channel().queue_declare("still-there", durable=True)
    assert server.process.poll() is None
    server.stop()
