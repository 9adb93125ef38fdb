"""Processes that are forked from one that has loaded the product are as any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forked import PLAIN, Forked, can_fork, penstock
from live_server import LiveServer
from penstock.server.bulk.process import Bulk
from penstock.version import __version__
from waiting import eventually

TELLS = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("SHADE"), os.environ.get("HOME"), sys.stdin.read()]))
sys.stderr.write("aside")
sys.exit(7)
"""
WAITS = """
import time
time.sleep(60)
"""

ENDS = """
import atexit, gc, sys, threading
sys.stdout = open(1, 'w', closefd=False)
def late():
    threading.main_thread().join()
    print("a thread")
threading.Thread(target=late).start()
atexit.register(print, "at the end")
gc.disable()
class Ring:
    def __del__(self):
        print("garbage")
def garbage():
    ring = Ring()
    ring.itself = ring
garbage()
sys.stdout.write("kept back, ")
"""
"""To be followed by an end."""


def started(script: str, folder: Path, **environ: str) -> Forked:
    (folder / "script.py").write_text(script)
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        return Forked(
            [str(folder / "script.py"), "a", "b"], stdout=out.fileno(), stderr=err.fileno(), env=environ,
            cwd=str(folder),
        )  # fmt: skip


def test_what_other_tests_run_beside_changes_nothing_of_who_can_be_forked() -> None:
    """A process that has collected the tests does so with variables of its own."""
    assert can_fork(os.environ)
    other = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    assert can_fork(other) == ("OPENBLAS_NUM_THREADS" in os.environ)


def test_streams_folder_environment_and_status_are_its_own(tmp_path: Path) -> None:
    process = started(TELLS, tmp_path, SHADE="blue")
    assert process.wait(20) == process.poll() == process.returncode == 7
    assert json.loads((tmp_path / "out").read_text()) == [["a", "b"], str(tmp_path), "blue", None, ""]
    assert (tmp_path / "err").read_text() == "aside"


@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        ("", 0, ""), ("sys.exit()", 0, ""), ("sys.exit(-1)", 255, ""), ("sys.exit('no')", 1, "no\n"),
        ("raise OSError('disk')", 1, "OSError: disk\n"), ("sys.stdout.close(); atexit.unregister(print)", 0, None),
    ],
)  # fmt: skip
def test_it_ends_as_any_other(tmp_path: Path, end: str, status: int, told: str | None) -> None:
    """Threads are waited for, what was left for the end is done, garbage is collected, and nothing is kept back."""
    process = started(ENDS + end, tmp_path)
    assert process.wait(60) == status
    if told is not None:
        said = (tmp_path / "out").read_text()
        assert said == "kept back, a thread\nat the end\ngarbage\n"
        assert (tmp_path / "err").read_text().endswith(told)


def test_who_writes_to_nobody_ends_as_any_other(tmp_path: Path) -> None:
    script = "import sys; sys.stdout = open(1, 'w', closefd=False); sys.stdout.write('a word')"
    (tmp_path / "script.py").write_text(script)
    reads, writes = os.pipe()
    os.close(reads)
    with open(tmp_path / "err", "wb") as err:
        process = Forked([str(tmp_path / "script.py")], stdout=writes, stderr=err.fileno(), env={}, cwd=str(tmp_path))
    os.close(writes)
    assert process.wait(60) == 120
    assert "BrokenPipeError" in (tmp_path / "err").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it(tmp_path: Path, number: int) -> None:
    process = started(WAITS, tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    assert process.poll() is None
    assert process.pid != os.getpid()
    process.send_signal(number)
    assert process.wait(20) == -number
    process.kill()  # nobody is there


def test_a_command_says_what_it_says() -> None:
    done = penstock("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert __version__ in done.stdout
    done = penstock("queue", "lsit")
    assert (done.returncode, done.stdout) == (2, "")
    assert "lsit" in done.stderr


def test_what_counts_as_a_process_begins_asks_for_a_new_one() -> None:
    assert can_fork({"PATH": "/bin", "PENSTOCK_TLS_CA": "x"})
    assert not can_fork({"ARROW_DEFAULT_MEMORY_POOL": "system"})
    assert not can_fork({"PENSTOCK_CLAIMS_MUTANT": "x#1"})


def test_what_this_process_began_with_is_no_difference() -> None:
    """A machine may set such variables for everybody, and everything is forked all the same."""
    asks = "import os, forked; print(forked.can_fork(os.environ), forked.can_fork(os.environ | {'OPENBLAS_X': '2'}))"
    environ = {**os.environ, "OPENBLAS_X": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", asks], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("forks", [True, False])
def test_what_works_beside_a_server_is_forked_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: bool
) -> None:
    if not forks:
        monkeypatch.setattr(subprocess, "Popen", PLAIN)
    bulk = Bulk(tmp_path)
    try:
        bulk.call("ping", {})
        first = bulk.pid
        assert first is not None
        assert (parent_of(first) == os.getpid()) is not forks
        assert os.getpgid(first) == os.getpgrp()
        os.kill(first, signal.SIGKILL)
        eventually(lambda: bulk.pid != first)
        bulk.call("ping", {})
        assert bulk.pid != first
    finally:
        bulk.close()


@pytest.mark.parametrize("load", [True, False])
def test_a_servers_children_are_forked_unless_the_test_wants_its_own(tmp_path: Path, load: bool) -> None:
    server = LiveServer(tmp_path, flight=True)
    server.children_load = load
    with server:
        tasks = Path(f"/proc/{server.ready['pid']}/task").iterdir()
        assert any((task / "children").read_text() for task in tasks) is load


COMMAND = [sys.executable, "-m", "penstock"]


def test_a_command_with_pipes_is_forked_as_well(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert (__version__ in done.stdout, done.stderr) == (True, "")
    with subprocess.Popen([*COMMAND, "serve", "--nonsense"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as wrong:
        said, beside = wrong.communicate(timeout=30)
        assert parent_is_another(wrong)
    assert (wrong.returncode, beside) == (2, None)
    assert b"--nonsense" in said


def parent_is_another(process: subprocess.Popen[bytes]) -> bool:
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    return True


def test_what_it_reads_and_writes_are_streams_of_ours(tmp_path: Path) -> None:
    asks = [*COMMAND, "expr", "check", "-"]
    given = subprocess.run(asks, input="/a = 1", capture_output=True, text=True, check=False)
    plain = PLAIN(asks, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert (*plain.communicate("/a = 1"), plain.returncode) == (given.stdout, given.stderr, given.returncode)


def test_a_signal_to_a_process_of_whose_end_nobody_has_told_yet_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([*COMMAND, "--version"], stdout=subprocess.DEVNULL) as process:
        assert process.wait(30) == 0
        assert parent_is_another(process)
        monkeypatch.setattr(Forked, "poll", lambda _: None)
        process.kill()
