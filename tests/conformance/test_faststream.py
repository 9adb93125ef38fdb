"""FastStream: subscribers and publishers, a nack, a request over direct reply-to, and a clean end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from live_server import LiveServer

HERE = Path(__file__).resolve()
PYTHON = HERE.parents[2] / ".venv-faststream" / "bin" / "python"
"""Made by `make conformance`."""

COUNT = 50

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif("PENSTOCK_CONFORMANCE" not in os.environ, reason="has packages of its own: make conformance"),
]


def test_an_application_of_faststream_runs_unmodified(server: LiveServer) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{server.port}/"
    ended = subprocess.run(
        [str(PYTHON), str(HERE.with_name("faststream_app.py")), url],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert json.loads(ended.stdout.splitlines()[-1]) == {
        "got": list(range(COUNT)),
        "passed_on": [2 * n for n in range(COUNT)],
        "tries": [False, True],
        "answer": 42,
    }
    channel = server.connect().channel()
    for queue in ("fs-new", "fs-done", "fs-again", "fs-double"):
        assert channel.queue_declare(queue, passive=True).method.message_count == 0
