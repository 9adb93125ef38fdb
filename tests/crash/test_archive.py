"""A server killed while it archives: every row once, from whichever side, and no file that nobody names."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from pathlib import Path

import pytest

import penstock
from choices import SEED
from conformance.test_archive_live import CONFIG, command, log_of, publish, url
from live_server import LiveServer

pytestmark = pytest.mark.crash


def archive(address: str) -> None:
    """Until nothing is left, or the server is gone."""
    with contextlib.suppress(penstock.PenstockError), penstock.connect(address, timeout=20) as client:
        while client.action("log_archive", with_vhost=False, dry_run=False)["worked"]:
            pass
        client.action("compact", with_vhost=False, dry_run=False)


def test_a_kill_while_it_archives_leaves_every_row_once(tmp_path: Path, effort: int) -> None:
    (tmp_path / "penstock.toml").write_text(CONFIG)
    chance = random.Random(SEED)
    with LiveServer(tmp_path / "one", [str(tmp_path / "penstock.toml")], flight=True) as server:
        for round_ in range(effort):
            with penstock.connect(url(server)) as client:
                for n in range(6):
                    publish(client, "work", n * 100, 100)
                    publish(client, f"other-{n}", round_, 20)
                end = client.action("position", with_vhost=False, bookmark="NOW")["end"]
                before = log_of(client, end)
                client.purge("work")
            busy = threading.Thread(target=archive, args=(url(server),))
            busy.start()
            threading.Event().wait(chance.uniform(0.0, 0.8))
            server.kill()
            busy.join()
            server.start()
            with penstock.connect(url(server)) as client:
                assert log_of(client, end).equals(before), SEED
        assert command("log", "archive", "--url", url(server))["left"] == 0
        told = command("log", "verify", "--url", url(server))
        assert told["damage"] == [], SEED
        assert os.listdir(server.data / "archive" / ".new") == [], SEED
        with penstock.connect(url(server)) as client:
            assert log_of(client, end).equals(before), SEED
