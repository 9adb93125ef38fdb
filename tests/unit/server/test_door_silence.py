"""When a door's process counts as gone: what is stopped or hangs, and not what gets too little of the machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from penstock.server.doors import door_process
from penstock.server.doors.door_process import BUSY_S, PING_MS, SILENT_S, DoorProcess, runs
from waiting import eventually


def test_who_works_runs_and_who_is_stopped_or_waits_does_not() -> None:
    works = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    waits = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)
    try:
        eventually(lambda: runs(works.pid))
        works.send_signal(signal.SIGSTOP)
        eventually(lambda: not runs(works.pid))
        assert waits.stdout is not None
        waits.stdout.readline()
        eventually(lambda: not runs(waits.pid))
    finally:
        for one in (works, waits):
            one.kill()
            one.communicate()
    assert not runs(works.pid)


def test_a_thread_that_ends_while_it_is_looked_at_says_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds come and go in a door under a flood: it was taken for one that does nothing, and cut off."""
    listed = os.listdir
    monkeypatch.setattr(door_process.os, "listdir", lambda path: ["999999999", *listed(str(path))])
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as works:
        eventually(lambda: runs(works.pid))
        works.kill()


def test_no_door_begins_anew_in_a_process_that_is_about_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would begin as the server ends, and have its addresses until it has loaded all and sees that."""
    made = list[subprocess.Popen[bytes]]()

    def spawned(module: str, memory: list[int]) -> door_process.Spawned:
        control, its_control = socket.socketpair()
        lines, its_lines = socket.socketpair()
        with its_control, its_lines:
            made.append(subprocess.Popen(["sleep", "600"], pass_fds=[its_control.fileno(), its_lines.fileno()]))
        return door_process.Spawned(made[-1], control, lines)

    monkeypatch.setattr(door_process, "spawned", spawned)
    monkeypatch.setattr(door_process, "_over", threading.Event())
    door = DoorProcess(
        "test", "", {}, lambda line: None, heard=lambda answer: None, lost=lambda: None, memory=[0, 0], apart=True
    )
    door.start()
    door_process.begin_no_more()
    made[0].kill()
    eventually(lambda: not (door._thread and door._thread.is_alive()), "it is still kept")
    assert len(made) == 1


class Silent(DoorProcess):
    """A door that says nothing, looked at in steps of a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, busy: bool) -> None:
        super().__init__(
            "test", "", {}, lambda line: None, heard=lambda answer: None, lost=lambda: None, memory=[0, 0], apart=True
        )
        self.now = 100.0
        self.cut: str | None = None
        monkeypatch.setattr(door_process.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(door_process, "runs", lambda pid: busy)
        monkeypatch.setattr(DoorProcess, "pid", 1)
        self._control = self  # type: ignore[assignment]  # takes the pings
        self._spoke()

    def send(self, *told: object) -> None:
        """A ping."""

    def cut_off(self, why: str) -> None:
        self.cut = why

    def pass_time(self, seconds: float, step: float = PING_MS / 1000) -> None:
        for _ in range(round(seconds / step)):
            self.now += step
            if self.cut is None:
                self._lives()


def test_a_door_that_hangs_is_given_up_and_one_that_works_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for busy, patience in ((False, SILENT_S), (True, BUSY_S)):
        with monkeypatch.context() as patched:
            door = Silent(patched, busy=busy)
            door.pass_time(patience - 1)
            assert door.cut is None
            door.pass_time(2)
            assert door.cut is not None
            assert "nothing was heard" in door.cut


def test_what_the_server_slept_through_counts_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Silent(monkeypatch, busy=False)
    door.pass_time(3600, step=1800)
    assert door.cut is None
    door.pass_time(SILENT_S + 1)
    assert door.cut is not None
