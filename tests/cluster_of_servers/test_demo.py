"""The demo of a cluster, with the first of its events: it ends well and says so.

That nothing is lost when a leader is killed is asked in `test_takeover.py`; the program runs in `make conformance`.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from choices import for_conformance

DEMO = Path(__file__).resolve().parents[2] / "examples/demo/cluster.py"


@pytest.mark.conformance
@for_conformance("a program of its own")
def test_a_leader_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--events", "1", "--calm", "0.3", "--lease", "1s"]
    environ = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing that was confirmed was lost" in done.stdout
    assert "killed (kill -9)" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_is_confirmed_while_publishers_come_to_rest_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message whose confirm comes after its publisher was told to rest must be worked before workers end."""
    monkeypatch.syspath_prepend(str(DEMO.parent))
    load = importlib.import_module("cluster_clients").Load([])

    def last_one() -> None:
        load.resting.wait()
        threading.Event().wait(0.05)  # its confirm is under way
        load.confirmed.append({1})

    monkeypatch.setattr(load, "_publish", last_one)
    load.start(1, 0)
    load.rest()
    assert load.missing() == [(0, 1)]
    load.end()
