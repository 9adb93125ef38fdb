"""The process that Spark's Python processes are forked from, on one machine: one that has loaded what they take.

Spark has a Python process for each stream, for each kind of plan, and for tasks, and each would load Arrow, PySpark and
this package by itself: half a second of CPU.  A session gives Spark a program in the place of Python
(`SparkPython`), which has its process forked instead (`fork_client`).  That one has streams, folder, environment and
path of modules of its own, and of the user's code nothing is loaded before.

It ends with the process that has the session, and with it all that it forked, which it asks to end and kills a moment
later.  It does the same to one whose program is ended, as Spark does when a stream stops.  Where it is killed itself,
what was forked lives on, and Spark's next processes are usual ones.

A process with threads is not forked from, for they would be missing in the copy, perhaps with a lock in hand.  What
variables say that count as a process begins (`COUNT_AT_START`) is said already: where they say something else, Spark
gets a usual process.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import math
import os
import pkgutil
import resource
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.records.dataclass import dataclass
from penstock.spark import fork_client
from penstock.spark.fork_client import BEGUN, MOST, REFUSED

NAMES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
CHOICES = ("spark.pyspark.python", "spark.pyspark.driver.python")

COUNT_AT_START = (
    "ARROW_", "GRPC_", "LANG", "LC_", "LD_", "MALLOC_", "MIMALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON",
)  # fmt: skip
COUNT_LATER = ("PYTHON_", "PYTHONPATH", "PYTHONUNBUFFERED")
"""Spark's own, the path, which a forked process takes anew, and what all of them are."""

PACKAGES = ("pyspark.sql.worker", "penstock.spark.reading")
LOADED = (
    "pyspark.worker", "pyspark.sql.streaming.python_streaming_source_runner", "penstock.spark.source",
    "penstock.spark.sink", "concurrent.futures.thread",
)  # fmt: skip
PERHAPS = ("pyarrow.pandas_compat", "msgspec")
"""What Spark's processes take, beside what its loop for tasks has loaded before it forks."""

ALLOCATORS = "jemalloc_bg_thd"
"""A thread of Arrow's allocator, which does without it in a copy."""

GRACE_S = 3.0
"""Between the request to end and the kill."""


# -- in the process of the session


class SparkPython:
    """A program that Spark takes for Python, and the process that forks; one for each process with sessions."""

    _made: SparkPython | None = None

    def __init__(self, program: Path, environ: Mapping[str, str]) -> None:
        """program: in a folder that is the user's alone.  environ: of the process that forks."""
        self.program, self._owner = program, os.getpid()
        path = socket_of(program)
        for old in (path, Path(f"{path}.lost")):
            old.unlink(missing_ok=True)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen(128)
            ends = (theirs.fileno(), listener.fileno())
            command = [sys.executable, "-m", __name__, *map(str, ends)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=ends, env=environ
            )
        atexit.register(self.end)

    @property
    def pid(self) -> int:
        """Of the process that forks."""
        return self._process.pid

    def end(self) -> None:
        """Nobody asks any more: all that was forked ends."""
        if self._owner == os.getpid():
            self._control.close()
            try:
                self._process.wait(2 * GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @classmethod
    def of(cls, folder: Path, conf: Mapping[str, str]) -> SparkPython | None:
        """The one there is, or a new one in this folder, the user's alone; None where no program runs there."""
        made = cls._made
        if made is not None and made._owner == os.getpid():
            if made.program.exists() and made._process.poll() is None:
                return made
            made.end()
            folder = made.program.parent  # Java knows it by its name
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        program = folder / "python"
        client = (sys.executable, "-IS", fork_client.__file__, str(socket_of(program)))
        program.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
        program.chmod(0o700)
        if not os.access(program, os.X_OK):  # the file system is mounted so
            return None
        threads = conf.get("spark.executorEnv.OMP_NUM_THREADS") or conf.get("spark.executor.cores") or "1"
        seed = os.environ.get("PYTHONHASHSEED", "0")
        usual = {"OMP_NUM_THREADS": threads, "PYTHONHASHSEED": seed, "PYTHONUNBUFFERED": "YES"}  # as Spark has them
        cls._made = cls(program, os.environ | usual)
        return cls._made


def socket_of(program: Path) -> Path:
    """Where the process that forks is asked."""
    return program.with_name("forks")


def is_chosen(conf: Mapping[str, str]) -> bool:
    """Whether the user has chosen another Python than that of this process."""
    return any(os.environ.get(name, sys.executable) != sys.executable for name in NAMES) or any(
        name in conf for name in CHOICES
    )


@contextmanager
def forked_from(made: SparkPython | None) -> Generator[None]:
    """A session that begins in here has its Python processes forked."""
    before = {name: os.environ[name] for name in NAMES}
    if made is not None:
        os.environ |= dict.fromkeys(NAMES, str(made.program))
    try:
        yield
    finally:
        os.environ |= before


# -- in the process that forks


@dataclass(frozen=True, slots=True)
class Request:
    """A process that is asked for: its arguments and its environment."""

    arguments: tuple[str, ...]
    environ: Mapping[bytes, bytes]

    @classmethod
    def of(cls, said: bytes, fds: Sequence[int]) -> Request:
        """What `fork_client` sends.  ValueError for anything else."""
        if len(fds) != STREAMS + 1:
            raise ValueError("a request comes with streams and a folder")
        count, *parts = said.split(b"\0")
        most = int(count)
        given = dict[bytes, bytes]()
        for one in parts[most:]:
            name, _, value = one.partition(b"=")
            given[name] = value
        return cls(tuple(map(os.fsdecode, parts[:most])), given)

    def is_forked(self, began_with: Mapping[bytes, bytes]) -> bool:
        """Whether a copy of a process that began with these variables is what a new one would be."""
        if len(self.arguments) < 2 or self.arguments[0] != "-m":
            return False
        return all(
            began_with.get(name) == value
            for name, value in self.environ.items()
            if (text := os.fsdecode(name)).startswith(COUNT_AT_START) and not text.startswith(COUNT_LATER)
        )


class ForkServer:
    """Forks when it is asked to, tells ends, and ends what nobody waits for any more."""

    def __init__(self, control: socket.socket, listener: socket.socket) -> None:
        """control: ends with the owner."""
        self._control, self._listener = control, listener
        self._callers: dict[int, socket.socket] = {}  # by descriptor: who has connected
        self._pids: dict[int, int] = {}  # of the processes that callers wait for
        self._ending: dict[int, float] = {}  # those that nobody waits for: when each is killed
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._began_with = dict(os.environb)

    def serve(self) -> Request | None:
        """Until the owner has ended, and all that was forked; in a forked process: what it is to be."""
        signal.signal(signal.SIGCHLD, _wake)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        own = [self._control.fileno(), self._listener.fileno()]
        while own or self._ending:
            ready = self._ready([*own, self._woken, *self._callers])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            for fd in ready & self._callers.keys():
                if (request := self._heard(fd)) is not None:
                    return request
            if own and own[0] in ready:
                own = []
                self._end()
            elif own and own[1] in ready:
                caller = self._listener.accept()[0]
                self._callers[caller.fileno()] = caller
            self._kill_late()
        return None

    def _ready(self, fds: list[int]) -> set[int]:
        """Those of which something can be read, at the latest when one is to be killed."""
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        until = min(self._ending.values(), default=math.inf)
        wait = None if until == math.inf else max(0.0, until - time.monotonic()) * 1000
        return {fd for fd, _ in poll.poll(wait)}

    def _end(self) -> None:
        """Nobody asks any more, and nobody waits."""
        Path(self._listener.getsockname()).unlink(missing_ok=True)
        for fd in [*self._callers]:
            if fd in self._pids:
                self._leave(fd)
            else:
                self._refuse(fd)

    def _kill_late(self) -> None:
        for pid in [pid for pid, at in self._ending.items() if at <= time.monotonic()]:
            kill(pid)
            self._ending[pid] = math.inf

    def _heard(self, fd: int) -> Request | None:
        """A caller asks, or has gone."""
        if fd not in self._pids:
            return self._answer(fd)
        self._leave(fd)
        return None

    def _answer(self, fd: int) -> Request | None:
        """Fork what a caller asks for; in the forked process: the request."""
        fds: list[int] = []
        try:
            said, fds, _, _ = socket.recv_fds(self._callers[fd], MOST, STREAMS + 1)
            request = Request.of(said, fds)
            pid = self._fork() if request.is_forked(self._began_with) else None
        except (OSError, ValueError):  # it has gone, asks for nothing, or the system has no room for one more
            self._refuse(fd)
        else:
            if pid == 0:
                self._tell(fd, BEGUN)  # by who runs: were this to end before it is told, another would run as well
                self._forget(fd)
                become(request.environ, fds)
                return request
            if pid is None:
                self._refuse(fd)
            else:
                self._pids[fd] = pid
        for one in fds:
            os.close(one)
        return None

    @staticmethod
    def _fork() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there is the allocator's thread
            return os.fork()

    def _refuse(self, fd: int) -> None:
        self._tell(fd, REFUSED)
        self._callers.pop(fd).close()

    def _forget(self, own: int) -> None:
        """In a forked process.  It keeps the socket of its caller, who hears of its end if nobody else can tell."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._callers.pop(own).detach()  # the other sockets close as this object goes
        os.close(self._woken)
        os.close(self._wake)

    def _tell(self, fd: int, said: bytes) -> None:
        with suppress(OSError):  # it has gone
            self._callers[fd].send(said)

    def _leave(self, fd: int) -> None:
        """Nobody waits for it any more."""
        self._callers.pop(fd).close()
        pid = self._pids.pop(fd)
        os.kill(pid, signal.SIGTERM)
        self._ending[pid] = time.monotonic() + GRACE_S

    def _reap(self) -> None:
        """Tell of those that have ended.  Only here is a number of a process given back."""
        while self._pids or self._ending:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if self._ending.pop(pid, None) is None:
                fd = next(fd for fd, one in self._pids.items() if one == pid)
                del self._pids[fd]
                self._tell(fd, os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
                self._callers.pop(fd).close()


def kill(pid: int) -> None:
    """With all of its own group, as the process has that forks tasks."""
    (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, signal.SIGKILL)


def _wake(number: int, frame: object) -> None:
    """A signal with a handler wakes who waits."""


STREAMS = 3


def become(environ: Mapping[bytes, bytes], fds: Sequence[int]) -> None:
    """Take over environment, streams, and the folder, whose descriptor is the last one.  None is below `STREAMS`."""
    for number, fd in enumerate(fds[:STREAMS]):
        os.dup2(fd, number)
    os.fchdir(fds[STREAMS])
    for fd in fds:
        os.close(fd)
    os.environb.clear()
    os.environb.update(environ)
    time.tzset()


def run(arguments: Sequence[str], path: Sequence[str]) -> None:
    """As `python -m MODULE ARGUMENTS`.  path: of modules, without what the environment adds."""
    here = [] if sys.flags.safe_path else [os.getcwd()]
    given = [*here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:] = dict.fromkeys([*map(os.path.abspath, filter(None, given)), *path])
    sys.argv = list(arguments[1:])
    module = OURS.get(arguments[1], arguments[1])
    warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)  # it is, so that it is there
    runpy.run_module(module, run_name="__main__", alter_sys=True)


OURS = {"pyspark.daemon": "penstock.spark.executor"}
"""What is PySpark's own but for a last word, and cannot be told so here: it is loaded before who tells it is."""


def load() -> None:
    """None of it starts a thread of ours or connects."""
    importlib.import_module("penstock.spark.executor").load_for_tasks()
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for name in LOADED:
        importlib.import_module(name)
    for name in PERHAPS:
        with suppress(ImportError):  # it, or pandas, is not installed
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def main(control: int, listener: int) -> None:
    """Fork until the owner has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in Java, and what that starts
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # as Java does
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder
    given = {os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one}
    path = [one for one in sys.path if one not in given]
    load()
    tasks = [one for one in Path("/proc/self/task").iterdir() if one.name != str(os.getpid())]
    if threads := {(one / "comm").read_text().strip() for one in tasks} - {ALLOCATORS}:
        sys.exit(f"penstock: Spark's Python processes are not forked from one that has threads: {sorted(threads)}")
    request = ForkServer(socket.socket(fileno=control), socket.socket(fileno=listener)).serve()
    if request is not None:
        run(request.arguments, path)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
