"""The benchmark of the wire machine runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_benchmark_runs() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_wire.py"), "--quick"]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"wire: publish 100 B (walk)", "wire: deliver 100 B"} <= {figure["what"] for figure in figures}
