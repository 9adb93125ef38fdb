"""The demo of a cluster, with the first of its events: it ends well and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "examples/demo/cluster.py"


def test_a_leader_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--events", "1", "--calm", "0.3", "--lease", "1s"]
    environ = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing that was confirmed was lost" in done.stdout
    assert "killed (kill -9)" in done.stdout
    assert list(tmp_path.iterdir()) == []
