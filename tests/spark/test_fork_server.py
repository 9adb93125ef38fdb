"""Spark's Python processes that are forked: each is a process as any other, and none is left behind by whoever dies."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.spark import sessions
from penstock.spark.fork_server import NAMES, SparkPython
from progress import descendants
from spark_lab import Lab
from waiting import eventually

OWNER = """
import sys
from pathlib import Path
from penstock.spark.fork_server import SparkPython

made = SparkPython.of(Path(sys.argv[1]), {})
print(made.pid, flush=True)
sys.stdin.read()
"""

KNOWN = """
import sys
print("pandas" in sys.modules)
"""
"""Whether it was loaded before, and so by who forks."""


class Owner:
    """A process that has a Python for Spark."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-test-forks-", dir="/tmp"))
        command = [sys.executable, "-c", OWNER, str(self.folder)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **(environ or {})},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.forks = int(self.process.stdout.readline())
        self.program = str(self.folder / "python")

    def end(self) -> str:
        """What it and who forks have said to the person."""
        errors = self.process.communicate()[1].decode()
        shutil.rmtree(self.folder)
        return errors


@pytest.fixture(scope="module")
def shared() -> Iterator[Owner]:
    made = Owner()
    yield made
    made.end()


class Module:
    """A module of the user's, and the folder where it lies and is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, owner: Owner, text: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        (self.folder / "given.py").write_text(text)
        return subprocess.Popen(
            [owner.program, "-m", "given", *arguments], cwd=self.folder, env={**os.environ, **environ}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def ran(self, owner: Owner, text: str, *arguments: str, given: str = "", **environ: str) -> tuple[int, str, str]:
        """Its status, and what it said."""
        process = self.start(owner, text, *arguments, **environ)
        out, errors = process.communicate(given, timeout=60)
        return process.returncode, out, errors


@pytest.fixture
def module(tmp_path: Path) -> Module:
    return Module(tmp_path)


def line(process: subprocess.Popen[str]) -> str:
    """The next one that it says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def is_gone(pid: int) -> bool:
    """Whether a process has ended, be it that nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


ASIDE = """
import os, sys
there = [f"/proc/self/fd/{number}" for number in range(1000)]
descriptors = {path: os.readlink(path) for path in there if os.path.islink(path)}
print(sys.argv[1:], os.getcwd(), os.environ["GIVEN"], "OMP_NUM_THREADS" in os.environ)
print(sys.path[:2], "pandas" in sys.modules, os.getsid(0) == int(sys.argv[1]))
print(sum(not what.startswith("pipe:") for what in descriptors.values()))
print(sys.stdin.read(), file=sys.stderr)
"""


def test_a_process_has_streams_folder_environment_and_path_of_its_own(shared: Owner, module: Module) -> None:
    sid = str(os.getsid(0))
    path = {"PYTHONPATH": "/tmp"}
    status, out, errors = module.ran(shared, ASIDE, sid, "a b", "", given="what is given", GIVEN="é=\n", **path)
    assert (status, errors) == (0, "what is given\n")
    assert out.splitlines() == [
        f"{[sid, 'a b', '']} {module.folder} é=", f" {'OMP_NUM_THREADS' in os.environ}",
        f"{[str(module.folder), '/tmp']} True True",
        "1",  # the socket whose end tells the program of this one's
    ]  # fmt: skip


def test_the_user_s_code_is_read_anew_by_each_process(shared: Owner, module: Module) -> None:
    """Of another length: of a file of the same second and length Python takes the bytecode that it kept."""
    assert [module.ran(shared, f"print({number})")[1] for number in (1, 22)] == ["1\n", "22\n"]


def test_each_process_draws_random_numbers_of_its_own(shared: Owner, module: Module) -> None:
    """What was loaded before the fork has the state of its generator, too."""
    drawn = "import numpy, random, sys\nprint(numpy.random.rand(), random.random())"
    first, second = (module.ran(shared, drawn)[1].split() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_it_ends_as_what_was_forked_ends(shared: Owner, module: Module) -> None:
    assert module.ran(shared, "")[0] == 0
    assert module.ran(shared, "raise SystemExit(7)")[0] == 7
    status, _, errors = module.ran(shared, "1 / 0")
    assert (status, errors.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")
    assert module.ran(shared, "import os; os.kill(os.getpid(), 9)")[0] == 128 + 9
    assert module.ran(shared, "print('kept', end='')\nimport os; os._exit(3)")[:2] == (3, "kept"), (
        "nothing is held back"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_ends_the_program_ends_what_was_forked(shared: Owner, module: Module, number: int) -> None:
    """As Spark does for a stream that stops.  What is forked hears SIGTERM, as Spark's loop has to."""
    asked = "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (print('asked', flush=True), sys.exit()))"
    process = module.start(shared, f"{asked}\nprint(os.getpid(), flush=True)\nsignal.pause()")
    pid = int(line(process))
    process.send_signal(number)
    assert line(process) == "asked"
    process.communicate()
    eventually(lambda: is_gone(pid))


STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setpgid(0, 0)
os.write(1, f"{os.getpid()} {os.fork() or os.getpid()}\\n".encode())  # a line is not parted by that of the other
while True:
    signal.pause()
"""


def test_what_does_not_hear_is_killed_with_all_that_it_forked(shared: Owner, module: Module) -> None:
    process = module.start(shared, STUBBORN)
    pids = {int(one) for _ in range(2) for one in line(process).split()}
    assert len(pids) == 2
    process.kill()
    try:
        process.communicate(timeout=20)  # they have its streams
        eventually(lambda: all(map(is_gone, pids)))
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_variables_that_count_as_a_process_begins_make_it_a_usual_one(shared: Owner, module: Module) -> None:
    wanted = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
    assert module.ran(shared, KNOWN, **wanted) == (0, "True\n", "")
    assert module.ran(shared, KNOWN, OMP_NUM_THREADS="7") == (0, "False\n", "")
    text = "print(hash('é'))"
    five = {**os.environ, "PYTHONHASHSEED": "5"}
    usual = subprocess.run([sys.executable, "-c", text], env=five, capture_output=True, text=True, check=True)
    assert module.ran(shared, text, PYTHONHASHSEED="5") == (0, usual.stdout, "")
    long = dict.fromkeys(map("LONG{}".format, range(5)), "x" * 120_000)
    assert module.ran(shared, KNOWN, **long) == (0, "False\n", ""), "a request has a bound"


def test_what_is_no_module_is_run_by_the_usual_python(shared: Owner) -> None:
    done = subprocess.run([shared.program, "-c", KNOWN], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_nothing_is_left_behind_when_the_driver_is_killed(module: Module) -> None:
    owner = Owner()
    process = module.start(owner, "import os, sys\nprint(os.getpid(), flush=True)\nsys.stdin.read()")
    pid = int(line(process))
    owner.process.kill()
    eventually(lambda: is_gone(pid) and is_gone(owner.forks))
    assert not (owner.folder / "forks").exists()
    assert process.wait(60) in (1, 128 + signal.SIGTERM)
    process.communicate()
    owner.end()


def test_when_the_one_that_forks_is_killed_work_goes_on_and_it_is_said_once(module: Module) -> None:
    owner = Owner()
    process = module.start(owner, "import os, sys\nprint(os.getpid(), flush=True)\nprint(sys.stdin.read())")
    line(process)
    os.kill(owner.forks, signal.SIGKILL)
    said = [module.ran(owner, KNOWN) for _ in range(2)]
    assert [one[:2] for one in said] == [(0, "False\n")] * 2
    assert [errors.count("has ended") for _, _, errors in said] == [1, 0]
    assert process.poll() is None, "what was forked lives on"
    assert process.communicate("its work", timeout=60)[0] == "its work\n"
    assert process.returncode == 1, "nobody can tell how it ended"
    owner.end()


DIES = """
import os, signal, sys

fork = os.fork

def fork_and_die():
    if (pid := fork()) and "penstock.spark.fork_server" in sys.orig_argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return pid

os.fork = fork_and_die
"""
"""Of a Python that begins: whoever forks has no moment left."""


def test_what_is_forked_as_the_one_that_forks_is_killed_runs_once(module: Module, tmp_path_factory: Any) -> None:
    folder: Path = tmp_path_factory.mktemp("dies")
    (folder / "sitecustomize.py").write_text(DIES)
    owner = Owner({"PYTHONPATH": str(folder)})
    status, out, errors = module.ran(owner, "import sys; print(sys.stdin.read())", given="its work")
    assert (status, out) == (1, "its work\n"), errors
    owner.end()


def test_a_process_with_threads_is_not_forked_from(module: Module) -> None:
    """A copy would have none of them, and perhaps the locks that they held."""
    started = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (module.folder / "sitecustomize.py").write_text(started)
    owner = Owner({"PYTHONPATH": os.pathsep.join([str(module.folder), os.environ.get("PYTHONPATH", "")])})
    status, out, errors = module.ran(owner, KNOWN)
    assert (status, out, "has ended" in errors) == (0, "False\n", True)
    assert "not forked from one that has threads" in owner.end()


# -- in a session


def forked() -> set[int]:
    """The processes that this one's Spark has from who forks."""
    assert SparkPython._made is not None
    return {*descendants(SparkPython._made.pid)}


def test_what_runs_tasks_is_forked_and_each_draws_numbers_of_its_own(spark: Any) -> None:
    def drawn(_: int) -> tuple[int, float]:
        import numpy as np

        return os.getpid(), float(np.random.rand())

    barrier = spark.sparkContext.range(2, numSlices=2).barrier()  # both at once, so two processes
    found = dict(barrier.mapPartitions(lambda rows: map(drawn, rows)).collect())
    assert len(found) == 2
    assert found.keys() <= forked()
    assert len({*found.values()}) == 2


def test_a_cancelled_task_s_process_ends(spark: Any, tmp_path: Path) -> None:
    context = spark.sparkContext
    told = tmp_path / "pid"

    def forever(_: int) -> None:
        import time

        told.with_suffix(".part").write_text(str(os.getpid()))
        told.with_suffix(".part").rename(told)
        while True:
            time.sleep(1)

    def run() -> None:
        context.setJobGroup("cancelled", "", interruptOnCancel=True)
        with pytest.raises(Exception, match="cancel"):
            context.range(1, numSlices=1).map(forever).collect()

    thread = threading.Thread(target=run)
    thread.start()
    eventually(told.exists)
    pid = int(told.read_text())
    assert pid in forked()
    context.cancelJobGroup("cancelled")
    thread.join(60)
    eventually(lambda: is_gone(pid))


def of_streams() -> set[int]:
    """Loops for tasks and plans have groups of their own, and so their workers."""
    mine = os.getpgid(0)
    return {pid for pid in forked() if not is_gone(pid) and os.getpgid(pid) == mine}


def test_a_stopped_stream_s_process_ends(lab: Lab, tmp_path: Path) -> None:
    lab.declare("streamed")
    lab.publish("streamed", range(3))
    frame = lab.stream(topic="streamed", stream="stopped", schema="id bigint")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    query.processAllAvailable()
    found = of_streams()
    assert found
    query.stop()
    eventually(lambda: all(map(is_gone, found)))


MINE = sys.executable
CONF = "spark.pyspark.python"


@pytest.mark.parametrize(
    ("environ", "conf", "master", "far", "is_forked"),
    [
        ({}, {}, "local[1]", False, True),
        (dict.fromkeys(NAMES, MINE), {}, "local[1]", False, True),
        ({"PYSPARK_PYTHON": "/their/python"}, {}, "local[1]", False, False),
        ({"PYSPARK_DRIVER_PYTHON": "/their/python"}, {}, "local[1]", False, False),
        ({}, {CONF: MINE}, "local[1]", False, False),
        ({}, {}, "spark://127.0.0.1:7077", False, False),
        ({}, {}, "local[1]", True, False),
    ],
    ids=["by default", "this Python by name", "their Python", "their Python for plans", "in conf", "a cluster", "far"],
)
def test_whose_processes_are_forked(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], conf: dict[str, str],
    master: str, far: bool, is_forked: bool,
) -> None:  # fmt: skip
    """Those of a session on this machine whose Python nobody has chosen."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sessions, "_begun", lambda *_: {name: os.environ[name] for name in NAMES})
    with tempfile.TemporaryDirectory(dir="/tmp") as near:
        found = sessions.session(master, folder=tmp_path / ("far" * 20) if far else near, conf=conf)
    usual = dict.fromkeys(NAMES, MINE) | environ
    assert SparkPython._made is not None
    assert found == (dict.fromkeys(NAMES, str(SparkPython._made.program)) if is_forked else usual)
    assert {name: os.environ[name] for name in NAMES} == usual, "who starts Spark by other means has a usual Python"


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process forks, and there was none."""
    plain = subprocess.Popen

    def nothing(*_: object, pass_fds: tuple[int, int], **options: object) -> subprocess.Popen[bytes]:
        return plain(["cat"], stdin=pass_fds[0])

    monkeypatch.setattr(subprocess, "Popen", nothing)
    monkeypatch.setattr(SparkPython, "_made", None)


@pytest.mark.usefixtures("idle")
def test_a_program_that_goes_with_the_folder_of_the_first_session_comes_back() -> None:
    """Java, which lives on, has its name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as first, tempfile.TemporaryDirectory(dir="/tmp") as second:
        folder = Path(first, "sockets")
        folder.mkdir()
        made = SparkPython.of(folder, {})
        assert made is not None
        assert SparkPython.of(Path(second), {}) is made
        shutil.rmtree(folder)
        again = SparkPython.of(Path(second), {})
        assert again is not None
        assert again is not made
        assert again.program == made.program
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        again.end()


@pytest.mark.usefixtures("idle")
def test_where_no_program_runs_processes_are_usual_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that is mounted `noexec`."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert SparkPython.of(tmp_path, {}) is None
