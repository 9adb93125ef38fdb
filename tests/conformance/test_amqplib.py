"""amqplib, of Node.js: confirms, prefetch, direct reply-to, a consumer that is cancelled, a mistake, and `close()`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from live_server import LiveServer

HERE = Path(__file__).resolve()
MODULES = HERE.parents[2] / ".venv-node" / "node_modules"
"""Made by `make conformance`, where there is npm."""

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif("PENSTOCK_CONFORMANCE" not in os.environ, reason="has packages of its own: make conformance"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm"),
]


def test_an_application_of_amqplib_runs_unmodified(server: LiveServer) -> None:
    ended = subprocess.run(
        ["node", str(HERE.with_name("amqplib_app.cjs")), f"amqp://guest:guest@127.0.0.1:{server.port}/"],
        env={**os.environ, "NODE_PATH": str(MODULES)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said == {"got": list(range(50)), "answer": "42", "cancelled": True, "code": 404}
