"""What `penstock serve` says is there at once for whoever reads it from a pipe, whatever Python buffers by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

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
