"""The demo of sites, with steps that last a moment: it ends well and says so.

It runs in `make conformance`; what it shows of the product is asked in `test_soak_sample.py` in every run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from choices import for_conformance

DEMO = Path(__file__).resolve().parents[2] / "examples/demo/sites.py"


@pytest.mark.conformance
@for_conformance("a program of its own")
def test_sites_are_cut_off_and_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--calm", "0.3"]
    environ = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing that was confirmed was lost, and each message was worked once" in done.stdout
    assert "the sites are cut off from each other" in done.stdout
