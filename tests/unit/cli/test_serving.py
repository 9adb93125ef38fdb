"""What `serve` does before there is a server, and that what it says is at once there for who reads a pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import serving
from penstock.errors import SettingsError


@pytest.fixture
def hangup() -> Iterator[None]:
    """What SIGHUP does is put back."""
    before = signal.signal(signal.SIGHUP, lambda number, frame: pytest.fail("it would have ended the process"))
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
def test_who_has_renewed_certificates_may_say_so_while_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: Any) -> object:
        os.kill(os.getpid(), signal.SIGHUP)
        raise SettingsError("all of it was done")

    monkeypatch.setattr(serving, "read_settings", read)
    with pytest.raises(SettingsError, match="all of it was done"):
        serving.serve("penstock.toml")


PATIENCE_S = 60


def test_a_pipe_has_the_line_that_says_ready_while_the_server_works(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path / "data")]
    command += ["--amqp", "127.0.0.1:0", "--http", "off", "--flight", "off"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as server:
        assert server.stdout is not None
        patience = threading.Timer(PATIENCE_S, server.kill)
        patience.start()
        try:
            said = iter(server.stdout.readline, "")
            assert any("is ready" in line for line in said)
            assert server.poll() is None
        finally:
            patience.cancel()
            server.terminate()
