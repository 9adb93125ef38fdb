"""A server that may not lead any more takes its processes with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from waiting import eventually

PROGRAM = """
import os, signal, socket, subprocess, sys
from penstock.server.base.loading import end_children
sock = socket.create_server(("127.0.0.1", 0))
child = subprocess.Popen(["sleep", "600"], pass_fds=[sock.fileno()])
os.kill(child.pid, signal.SIGSTOP)
print(child.pid, flush=True)
end_children()
os._exit(6)
"""


def test_a_stopped_process_of_a_door_does_not_keep_the_address() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 6, done.stderr
    eventually(lambda: not Path(f"/proc/{done.stdout.strip()}").exists(), "it is still there, stopped")


TOLD = """
import logging.config
from penstock.server.cluster.leading import end_at_once
from penstock.server.saying import speaking
with speaking() as voice:
    logging.config.dictConfig({"version": 1})  # as a library does: the log forgets whom to tell of its end
    for number in range(3000):
        voice.say(f"line {number}")
    end_at_once(voice.say, "it was removed")
"""


def test_all_that_was_said_until_then_is_written() -> None:
    done = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 6, done.stderr
    said = done.stdout.splitlines()
    assert said == [*(f"line {number}" for number in range(3000)), "cluster: this process ends: it was removed"]


HANGS = """
import os, socket, subprocess
from penstock.server.cluster.process import Process
server = subprocess.Popen(["sleep", "600"])  # which hears nothing
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
member = Process.__new__(Process)
member._sock, member._server, member._hands_over = ours, os.pidfd_open(server.pid), False
print(server.pid, flush=True)
member.end("TWO LEADERS: and so on")
"""


def test_why_a_server_was_killed_that_hangs_is_said_by_its_member() -> None:
    """It could say nothing any more, and its output ended as after a kill by anybody."""
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 6, done.stderr
    assert "did not end when it was told to, and was killed: TWO LEADERS: and so on" in done.stderr
    eventually(lambda: not Path(f"/proc/{done.stdout.strip()}/exe").exists(), "it lives")
