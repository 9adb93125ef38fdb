"""Jobs, which hold a password, on their way to a driver: through a pipe, and nowhere else whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import penstock
from forked import SOURCE
from live_server import LiveServer
from penstock.spark.pipelines.folders import Inbox, line_of

SECRET = "aw6ahTh5-password-of-etl"
PATIENCE_S = 60.0


@contextmanager
def inbox() -> Generator[tuple[int, Inbox, threading.Event]]:
    """The end to write to, which is closed by whoever uses it."""
    gone = threading.Event()
    reading, writing = os.pipe()
    try:
        yield writing, Inbox(reading, gone.set), gone
    finally:
        assert gone.wait(PATIENCE_S)
        os.close(reading)


def test_the_newest_job_counts_and_the_end_of_the_parent_is_heard() -> None:
    large = {"name": "first", "sql": "x" * 200_000}  # more than a pipe holds
    with inbox() as (writing, box, gone):
        with open(writing, "wb") as pipe:
            pipe.write(line_of(large))
            pipe.flush()
            assert box.first() == large
            assert box.newer() is None
            pipe.write(line_of({"name": "second"}) + line_of({"name": "third"}) + b"no JSON")
            pipe.flush()
            found = None
            until = time.monotonic() + PATIENCE_S
            while found is None and time.monotonic() < until:
                found = box.newer()
            assert found == {"name": "third"}
            pipe.write(b"\n")
            pipe.flush()
            assert not gone.is_set()
        assert gone.wait(PATIENCE_S)
        with pytest.raises(ValueError, match="Expecting value"):
            box.newer()


def test_a_parent_that_ends_without_a_word() -> None:
    with inbox() as (writing, box, _):
        os.write(writing, b'{"name": "half of')
        os.close(writing)
        with pytest.raises(EOFError, match="before it handed a job over"):
            box.first()


def holding(folder: Path, text: bytes) -> list[Path]:
    """Files below a folder with this text in them."""
    found = list[Path]()
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and text in path.read_bytes():
                found.append(path)
    return found


def environment_and_arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_backfill_that_is_killed_leaves_no_password(tmp_path: Path) -> None:
    """kill -9 while its driver works: no file has the password, not at that moment and not after it."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    settings, users = tmp_path / "penstock.toml", tmp_path / "users.toml"
    users.write_text(f'[[user]]\nname = "etl"\npassword = "{SECRET}"\ntags = ["administrator"]\n')
    with LiveServer(tmp_path / "server", [str(users)], flight=True) as server:
        flight = server.ready["flight"]
        with penstock.connect(f"penstock://etl:{SECRET}@{flight}") as client:
            client.declare("seen")
            client.publish("seen", {"id": 1})
        settings.write_text(
            f'server.data = "{tmp_path / "data"}"\n[listen]\nflight = "{flight}"\n{users.read_text()}'
            '[[pipeline]]\nname = "copy"\nsql = "SELECT id FROM input"\n'
            'from = { topic = "seen", columns = "id int" }\nto = [{ topic = "copies" }]\n'
        )
        command = [sys.executable, "-m", "penstock", "pipeline", "backfill", "copy", str(settings)]
        with open(tmp_path / "told", "wb") as told:
            process = subprocess.Popen(
                [*command, "--from", "earliest", "--id", "again"], stdout=told, stderr=told,
                env={**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(scratch)},
            )  # fmt: skip
        status = tmp_path / "data" / "spark" / "status-copy.backfill.again.json"
        event, until = threading.Event(), time.monotonic() + PATIENCE_S
        while not status.exists():
            assert process.poll() is None, (tmp_path / "told").read_text()
            assert time.monotonic() < until
            event.wait(0.02)
        driver = int(json.loads(status.read_text())["pid"])
        try:
            assert SECRET.encode() not in environment_and_arguments(driver)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            os.killpg(driver, signal.SIGKILL)
    assert holding(tmp_path / "data", SECRET.encode()) == []
    assert holding(scratch, SECRET.encode()) == []
