"""The benchmark of views runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_benchmark_runs() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_views.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["what"].rpartition(": ")[2].partition(",")[0] for line in lines} == {"fill", "churn"}
