"""Processes of the product without the second that loading it takes: forked from one that has loaded it.

Each is a process as any other: a pid, streams, folder and environment of its own; it is killed, stopped and waited for.
What loading itself does is no question to it.  `Forked` has of `subprocess.Popen` what tests use.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src"
LOADED_AT_START = ("ARROW_", "MIMALLOC_", "MALLOC_", "OMP_", "OPENBLAS_", "PENSTOCK_CLAIMS", "LD_")
"""Variables that count as a process begins: with one of them that is other than ours were it is a new one."""

OURS = {name: value for name, value in os.environ.items() if name.startswith(LOADED_AT_START)}
"""Of those, what this process began with, and so the one that forks."""

ALLOCATORS = "jemalloc_bg_thd"
"""A thread of jemalloc's, which is not in forked processes: who judges the memory of one takes a new one."""

SERVER = (
    "penstock.server.process", "penstock.server.amqp.door", "penstock.server.flight.door", "penstock.server.http.door",
    "penstock.server.sql.queries", "penstock.cli.child_process", "uvicorn.logging", "uvicorn.protocols.http.h11_impl",
)  # fmt: skip
"""What a server has loaded once it is ready, with all that these import."""

MOST = 1 << 18
"""Bytes of a request."""


def can_fork(environ: Mapping[str, str]) -> bool:
    """Whether a process with these variables is what a forked one would be."""
    return not any(name.startswith(LOADED_AT_START) and OURS.get(name) != environ[name] for name in environ)


def of_the_product(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's variables for one of the product, which finds first what stands here."""
    environ = {**os.environ, **(more or {})}
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCE), environ.get("PYTHONPATH")]))}


class Nursery:
    """The process that has loaded the product; one for this process, from the first use on."""

    _lock = threading.Lock()
    _made: Nursery | None = None

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST)
        environ = {**os.environ, "PYTHONPATH": str(SOURCE), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environ)
        theirs.close()
        self.socket, self.owner = ours, os.getpid()
        atexit.register(self.end)

    @property
    def usable(self) -> bool:
        """Whether it runs, and is this process's own: a copy of this process makes another."""
        return self.owner == os.getpid() and self.process.poll() is None

    def end(self) -> None:
        """Nobody asks any more."""
        if self.owner == os.getpid():
            self.socket.close()
            self.process.wait()

    @classmethod
    def fork(cls, request: Mapping[str, Any], streams: Sequence[int]) -> tuple[int, socket.socket]:
        """A process that runs what the request says; its pid, and what will tell its end."""
        with cls._lock:
            if cls._made is None or not cls._made.usable:
                cls._made = cls()
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(cls._made.socket, [json.dumps(request).encode()], [theirs.fileno(), *streams])
            said = ours.recv(8)
            if len(said) != 8:
                ours.close()
                raise AssertionError("the process that forks has ended")
            return int.from_bytes(said), ours


class Forked:
    """`python -m penstock ARGUMENTS` or `python SCRIPT ARGUMENTS`, as the child of a process that has loaded it all."""

    def __init__(
        self, command: Sequence[str], *, stdin: int = subprocess.DEVNULL, stdout: int, stderr: int,
        env: Mapping[str, str], cwd: str | None = None,
    ) -> None:  # fmt: skip
        """command: as for Python, `-m penstock ...` or `script.py ...`.  The streams are descriptors."""
        request = {"command": list(command), "environ": dict(env), "folder": cwd or os.getcwd()}
        with open(os.devnull, "rb") as nothing:
            first = nothing.fileno() if stdin == subprocess.DEVNULL else stdin
            self.pid, self._told = Nursery.fork(request, [first, stdout, stderr])
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status.  TimeoutExpired when it takes longer."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            said = self._told.recv(8)
            assert len(said) == 8, "the process that forks has ended"
            self.returncode = int.from_bytes(said, signed=True)
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def __del__(self) -> None:
        if hasattr(self, "_told"):
            self._told.close()


def penstock(
    *arguments: str, given: str = "", env: Mapping[str, str] | None = None, seconds: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """The command line as a process of its own, to its end."""
    environ = of_the_product(env)
    command = ["-m", "penstock", *arguments]
    if not can_fork(environ):
        return subprocess.run(
            [sys.executable, *command], input=given, capture_output=True, text=True, timeout=seconds, env=environ,
            check=False,
        )  # fmt: skip
    with os.fdopen(os.memfd_create("out"), "rb+") as out, os.fdopen(os.memfd_create("err"), "rb+") as err:
        with os.fdopen(os.memfd_create("in"), "rb+") as into:
            into.write(given.encode())
            into.seek(0)
            process = Forked(
                command, stdin=into.fileno(), stdout=out.fileno(), stderr=err.fileno(), env=environ
            )  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        said = [(stream.seek(0), stream.read().decode())[1] for stream in (out, err)]
    return subprocess.CompletedProcess(["penstock", *arguments], code, *said)


# -- in the process that forks


class _Child(Exception):
    """This is the new process."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__()
        self.command = command


def load() -> None:
    """Everything of a server and of a command."""
    from penstock.config.settings import Settings
    from penstock.server import launching

    finders = list(sys.meta_path)
    launching.with_bounded_pool(launching.decoded_most(Settings().server.memory))
    launching.do_without_pandas()
    for module in SERVER:
        importlib.import_module(module)
    sys.meta_path[:] = finders  # a command may want pandas
    from penstock.cli import main as tree

    tree.whole()
    tree.command("serve")


Asked = tuple[bytes, socket.socket, list[int]]
"""A request, who is told of the process and of its end, and the descriptors of its streams."""


def of_the_owner(control: socket.socket) -> Asked | None:
    """What the process that made this one asks, over a socket that it keeps; None when it has ended."""
    said, fds, _, _ = socket.recv_fds(control, MOST, 4)
    return (said, socket.socket(fileno=fds[0]), fds[1:]) if said else None


def of_a_visitor(listener: socket.socket) -> Asked | None:
    """What a process asks that has connected for this."""
    visitor = listener.accept()[0]
    said, fds, _, _ = socket.recv_fds(visitor, MOST, 4)
    return said, visitor, fds


def fork_when_asked(asked: Mapping[socket.socket, Callable[[socket.socket], Asked | None]]) -> None:
    """Until the owner has ended.  Raises _Child in each process that is made.  asked: how each socket is read."""
    waiting: dict[int, socket.socket] = {}
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([*asked, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        while waiting:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            with waiting.pop(pid) as told:
                _tell(told, os.waitstatus_to_exitcode(status))
        for end, read in asked.items():
            if end not in ready:
                continue
            request = read(end)
            if request is None:
                return
            said, told, streams = request
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (*asked, told, *waiting.values()):
                    other.close()
                for fd in (woken, wake):
                    os.close(fd)
                wanted = json.loads(said)
                become(wanted, streams)
                raise _Child(wanted["command"])
            for fd in streams:
                os.close(fd)
            waiting[pid] = told
            _tell(told, pid)


def _tell(told: socket.socket, number: int) -> None:
    try:
        told.send(number.to_bytes(8, signed=True))
    except OSError:
        pass  # nobody waits for it any more


def become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Take the streams, the folder and the environment of the request."""
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])


def with_other_memory(command: Sequence[str]) -> None:
    """Arrow was loaded for a server with the memory of the settings' default; another one is loaded anew."""
    from penstock.config.settings import Settings
    from penstock.server import launching

    usual = launching.decoded_most(Settings().server.memory)

    def bounded(most: int) -> None:
        if most != usual:
            os.execv(sys.executable, [sys.executable, *command])

    launching.with_bounded_pool = bounded


def run(command: Sequence[str]) -> None:
    """As `python COMMAND`."""
    if command[0] == "-m":
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        sys.path[0] = str(Path(command[0]).parent)
        runpy.run_path(command[0], run_name="__main__")


def serve(asked: Mapping[socket.socket, Callable[[socket.socket], Asked | None]]) -> Sequence[str] | None:
    """Fork from this process, which has loaded what is wanted, until nobody asks; in a forked one: its command."""
    threads = {(Path("/proc/self/task") / one / "comm").read_text().strip() for one in os.listdir("/proc/self/task")}
    assert len(threads - {ALLOCATORS}) == 1, f"a process with threads is not forked: {threads}"
    gc.collect()
    gc.freeze()
    try:
        fork_when_asked(asked)
    except _Child as child:
        return child.command
    return None


def main() -> None:
    """The process that forks servers and commands."""
    control = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]  # the folder of tests
    load()
    command = serve({control: of_the_owner})
    if command is not None:
        with_other_memory(command)
        run(command)


if __name__ == "__main__":
    main()
