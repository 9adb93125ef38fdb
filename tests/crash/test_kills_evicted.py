"""The kill tests again, on a server that has no room for any body in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from crash import test_kills as again
from live_server import LiveServer

pytestmark = pytest.mark.crash


def test_kills_with_every_body_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Path(__file__).resolve().parents[1] / "evicting_server.py"
    monkeypatch.setattr(LiveServer, "program", (str(program),))
    monkeypatch.setattr(again, "KILLS", max(2, again.KILLS // 3))
    again.test_kills(tmp_path)
