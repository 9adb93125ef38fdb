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
