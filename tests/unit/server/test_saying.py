"""What a server says keeps nobody waiting, whatever becomes of those who should read it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from forked import Forked, of_the_product
from penstock.server.saying import Voice, speaking
from waiting import LOOK_S, Patience

SERVE = (sys.executable, "-m", "penstock", "serve", "--http", "off", "--flight", "off", "--amqp", "127.0.0.1:0")


@contextlib.contextmanager
def pipe(*, full: bool = False) -> Iterator[tuple[int, int]]:
    """Where it is read, and where it is written."""
    reads, writes = os.pipe()
    if full:
        os.set_blocking(writes, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writes, b"." * 4096)
        os.set_blocking(writes, True)
    try:
        yield reads, writes
    finally:
        for one in (reads, writes):
            with contextlib.suppress(OSError):
                os.close(one)


def all_of(reads: int) -> list[str]:
    return os.read(reads, 1 << 20).decode().lstrip(".").splitlines()


def test_lines_are_written_in_their_order() -> None:
    with pipe() as (reads, writes):
        voice = Voice(writes, writes)
        for number in range(20):
            voice.say(f"line {number}")
        voice.end()
        assert all_of(reads) == [f"line {number}" for number in range(20)]


def test_the_log_is_said_as_the_last_resort_says_it() -> None:
    with pipe() as (reads, writes):
        voice = Voice(writes, writes)
        log = logging.Logger("some")  # noqa: LOG001 - one of its own
        log.addHandler(voice)
        log.info("nobody wants to know")
        log.warning("%d things are wrong", 3)
        log.warning("no queue '%s'", "a\nb\x1b[31m")
        try:
            raise ValueError("because")
        except ValueError:
            log.exception("and this")
        voice.end()
        told = all_of(reads)
        assert told[:3] == ["3 things are wrong", r"no queue 'a\nb\x1b[31m'", "and this"]
        assert told[-1] == "ValueError: because"


@pytest.mark.parametrize("blocks", [True, False])
def test_a_reader_who_has_stopped_is_not_waited_for(blocks: bool) -> None:
    with pipe(full=True) as (reads, writes):
        os.set_blocking(writes, blocks)
        voice = Voice(writes, writes, most=5)
        voice.say("first")  # taken by the thread, or one of the five
        for number in range(10):
            voice.say(f"line {number}")
        voice.end(0.01)
        os.read(reads, 1 << 20)  # he goes on
        voice.end(30)
        voice.say("last")
        voice.end(30)
        told = all_of(reads)
        assert told[0] == "first"
        left_out = [line for line in told if "lines were left out" in line]
        said = [line for line in told if "left out" not in line]
        assert sum(int(line.split()[0]) for line in left_out) == 12 - len(said)
        assert 5 <= len(said) <= 7


def test_a_machine_that_is_busy_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that was removed ended without its last line: its thread had not run for a second."""
    late: list[threading.Timer] = []

    class Late(threading.Thread):
        def start(self) -> None:
            late.append(threading.Timer(0.2, super().start))
            late[0].start()

    with pipe() as (reads, writes), monkeypatch.context() as patch:
        patch.setattr("penstock.server.saying.threading.Thread", Late)
        voice = Voice(writes, writes)
        patch.undo()
        voice.say("line")
        assert voice.end(0.05)
        assert all_of(reads) == ["line"]


def test_a_reader_who_has_gone_is_nobody_s_end() -> None:
    with pipe() as (reads, writes), open("/dev/full", "wb") as full:
        os.close(reads)
        voice = Voice(writes, full.fileno())
        voice.say("line")
        voice.handle(logging.LogRecord("some", logging.WARNING, "", 0, "line", (), None))
        voice.end()
        with pipe() as (reads, other):
            os.dup2(other, writes)  # the same number is another file now
            voice.say("there he is")
            voice.end()
            assert all_of(reads) == ["there he is", "1 lines were left out: nobody read them, or they were refused"]


def test_who_has_said_where_the_log_goes_is_obeyed() -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    assert before  # pytest's
    with speaking() as voice:
        assert root.handlers == before
        assert voice not in root.handlers


def status(folder: Path, before: Sequence[str] = (), **files: int) -> tuple[list[str], int]:
    """Of a server that is up: its standard files; and of one that is told to end."""
    ready = folder / "ready"
    given = [*before, *SERVE, "--data", str(folder / "data"), "--ready-file", str(ready)]
    process = subprocess.Popen(given, stdout=files.get("out"), stderr=files.get("out"))
    try:
        patience = Patience(60)
        while not ready.exists():
            assert process.poll() is None
            assert not patience.is_over()
            time.sleep(LOOK_S)
        found = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
        process.send_signal(signal.SIGTERM)
        return found, process.wait(60)
    finally:
        process.kill()
        process.wait()


def test_a_server_serves_and_ends_though_nobody_reads_what_it_says(tmp_path: Path) -> None:
    with pipe(full=True) as (_, writes):
        assert status(tmp_path, out=writes)[1] == 0


def test_no_file_of_a_server_takes_the_place_of_a_standard_one_that_is_closed(tmp_path: Path) -> None:
    assert status(tmp_path, ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")) == ([os.devnull] * 3, 0)


@pytest.mark.parametrize("command", ["serve", "up"])
def test_output_in_a_file_that_is_cut_begins_anew_at_its_beginning(tmp_path: Path, command: str) -> None:
    """As `copytruncate` of logrotate cuts it; one begun with `>` had zeros there, as far as was written before."""
    ready, kept = tmp_path / "ready", tmp_path / "output"
    settings = f'[server]\ndata = "{tmp_path / "data"}"\n[listen]\namqp = "127.0.0.1:0"\nhttp = "off"\nflight = "off"\n'
    (tmp_path / "penstock.toml").write_text(settings)
    with kept.open("wb") as output:
        given = ["-m", "penstock", command, str(tmp_path / "penstock.toml"), "--ready-file", str(ready)]
        process = Forked(given, stdout=output.fileno(), stderr=output.fileno(), env=of_the_product())
        try:
            patience = Patience(60)
            while not ready.exists() or b"ready" not in kept.read_bytes():
                assert process.poll() is None
                assert not patience.is_over()
                time.sleep(LOOK_S)
            os.truncate(kept, 0)
            os.write(output.fileno(), b"line\n")  # as it would itself: the place in the file is one for all who have it
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait(60)
    assert kept.read_bytes().startswith(b"line\n")
