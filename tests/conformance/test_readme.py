"""The README's code runs as it stands, but for the addresses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from penstock import connect
from penstock.records.kinds import Kind
from penstock.testing.process import ServerProcess

pytestmark = pytest.mark.conformance

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_there_is_code_to_run() -> None:
    assert len(BLOCKS) >= 2


def test_every_block_runs(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        for number, block in enumerate(BLOCKS):
            code = block.replace("amqp://guest:guest@localhost", server.amqp_url).replace(
                "penstock://localhost", server.flight_url
            )
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"block {number}:\n{done.stderr}"
            assert done.stdout.strip(), f"block {number} prints what it received"
        with connect(server.flight_url) as client:
            kinds = {
                kind for batch in client.log_batches(1) for kind in cast("list[int]", batch.column("kind").to_pylist())
            }
        assert Kind.PUBLISH in kinds
        assert Kind.PUBLISH_TRANSIENT not in kinds  # it says that the message is on disk
