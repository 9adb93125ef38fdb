"""Benchmarks run, and tell what they should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def figures(name: str) -> set[str]:
    """What the lines of a quick run are about."""
    command = [sys.executable, str(ROOT / "benchmarks" / name), "--quick"]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return {json.loads(line)["what"] for line in done.stdout.splitlines()}


def test_the_benchmark_of_views() -> None:
    told = figures("bench_views.py")
    assert {what.rpartition(": ")[2].partition(",")[0] for what in told} == {"fill", "churn"}


def test_the_benchmark_of_the_wire_machine() -> None:
    assert {"wire: publish 100 B (walk)", "wire: deliver 100 B"} <= figures("bench_wire.py")
