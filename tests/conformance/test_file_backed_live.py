"""A real server with state in files: through kill -9, garbage in its place, a backup, and a clean stop."""

from __future__ import annotations

import os
import time
import urllib.request
from pathlib import Path

import pytest
from pika import spec

import penstock
from live_server import LiveServer
from penstock.server.scratch_pages import HEAD, MARK
from rawlink import RawLink
from soak.clients import frames, message

COUNT = 30_000
"""Messages of each queue."""

PATIENCE_S = 60.0

SETTINGS = """
[[queue]]
name = "a"
file_backed_metadata = true

[[queue]]
name = "b"
file_backed_metadata = "{own}"

[[topic]]
name = "records"
key = ["/id"]
index = "file"
"""


def metric(server: LiveServer, name: str) -> float:
    with urllib.request.urlopen(f"http://{server.ready['http']}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    [line] = [line for line in lines if line.startswith(f"{name} ")]
    return float(line.split()[1])


def until_in_file(server: LiveServer, least: int) -> None:
    """Wait until so many bytes lie in files; it takes two looks, a second apart."""
    end = time.monotonic() + PATIENCE_S
    while (there := metric(server, "penstock_file_backed_bytes")) < least:
        assert time.monotonic() < end, f"{there} bytes lie in files, not {least}"
        time.sleep(0.1)


def publish(server: LiveServer) -> None:
    """By turns into both: whole ranges of messages would take no memory, and no file."""
    turns = [frames("a"), frames("b")]
    with RawLink(server.port) as link:
        link.ready()
        link.method(spec.Confirm.Select())
        link.expect(spec.Confirm.SelectOk)
        link.send(b"".join(message(*turn, b"%d" % number) for number in range(COUNT) for turn in turns))
        confirmed = 0
        while confirmed < 2 * COUNT:  # all is on disk
            confirmed = max(confirmed, link.expect(spec.Basic.Ack).delivery_tag)


def drained(server: LiveServer, queue: str) -> list[int]:
    with penstock.connect(server.ready["flight"]) as client:
        seen: list[int] = []
        for batch in client.consume(queue, backlog=COUNT, timeout="20s").batches():
            seen += (int(body) for body in batch.arrow["body"].to_pylist() if body)
            batch.ack()
            if len(seen) >= COUNT:
                break
        return seen


@pytest.fixture
def server(tmp_path: Path) -> LiveServer:
    (tmp_path / "penstock.toml").write_text(SETTINGS.format(own=tmp_path / "elsewhere" / "own"))
    server = LiveServer(tmp_path / "server", [str(tmp_path / "penstock.toml")], flight=True)
    server.http = "127.0.0.1:0"
    return server


def test_a_kill_garbage_and_a_stop(server: LiveServer, tmp_path: Path) -> None:
    shared, own = server.data / "paged" / "state", tmp_path / "elsewhere" / "own"
    with server:
        publish(server)
        until_in_file(server, 2 * (COUNT - 10_000) * 8)
        assert shared.stat().st_size >= HEAD + (4 << 20)
        assert own.stat().st_size >= HEAD + (4 << 20)
        assert metric(server, "penstock_file_backed_file_bytes") >= 8 << 20
        assert metric(server, "penstock_file_backed_refused_total") == 0
        with penstock.connect(server.ready["flight"]) as client:
            client.action("backup", target=str(tmp_path / "backup"))
        assert not (tmp_path / "backup" / "paged").exists()
        server.kill()
        assert shared.exists(), "a kill leaves the file"
        shared.write_bytes(os.urandom(100_000))
        own.write_bytes(MARK + os.urandom(100_000))

        server.start()
        until_in_file(server, 2 * (COUNT - 10_000) * 8)
        assert shared.stat().st_size >= HEAD + (4 << 20)
        size = shared.stat().st_size
        assert drained(server, "a") == list(range(COUNT))
        assert drained(server, "b") == list(range(COUNT))
        assert shared.stat().st_size == size, "it never shrinks while the server runs"
        server.stop()
        assert list(shared.parent.iterdir()) == []
        assert not own.exists()


def test_a_place_that_is_taken_keeps_nobody_from_working(server: LiveServer, tmp_path: Path) -> None:
    shared, own = server.data / "paged" / "state", tmp_path / "elsewhere" / "own"
    (shared / "folder").mkdir(parents=True)
    own.parent.mkdir()
    own.write_text("somebody's")
    with server:
        publish(server)
        end = time.monotonic() + PATIENCE_S
        told = f"{own} is there, and no scratch file of this server"
        while metric(server, "penstock_file_backed_refused_total") < 2 or told not in server.output():
            assert time.monotonic() < end, server.output()
            time.sleep(0.1)
        assert drained(server, "a") == list(range(COUNT))
        assert drained(server, "b") == list(range(COUNT))
        server.stop()
    assert "state stays in memory" in server.output()
    assert own.read_text() == "somebody's"
    assert (shared / "folder").is_dir()
