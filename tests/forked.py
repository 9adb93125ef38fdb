"""Processes of the product without the second that loading it takes: forked from one that has loaded it.

Each is a process as any other: a pid, streams, folder and environment of its own; it is killed, stopped and waited for.
What loading itself does is no question to it.  `Forked` has of `subprocess.Popen` what tests use.

The processes that the product itself starts beside a server are forked as well, where `with_loaded_children` was
called: in servers that are forked, and in processes that run tests.  With `loads = True` all are new ones.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src"
LOADED_AT_START = ("ARROW_", "MIMALLOC_", "MALLOC_", "OMP_", "OPENBLAS_", "PENSTOCK_CLAIMS", "LD_")
"""Variables that count as a process begins: with one of them that is other than ours were it is a new one."""


def of_the_start(environ: Mapping[str, str]) -> dict[str, str]:
    """Those among variables."""
    return {name: value for name, value in environ.items() if name.startswith(LOADED_AT_START)}


OURS = of_the_start(os.environ)
"""Of those, what this process began with, and so the one that forks."""

SERVES = ("penstock", "penstock.cli.child_process")
"""What has loaded all of a server: a command, and the server that one started beside itself."""

DOORS = ("penstock.server.flight.front", "penstock.server.amqp.front", "penstock.server.http.front")
BESIDE = (*DOORS, "penstock.server.flight.grpc_server")
"""What processes beside a server have loaded, which load Arrow as a server does."""

SPARING = {"ARROW_DEFAULT_MEMORY_POOL": "system"}

APART = {
    "penstock.server.bulk.child": (
        SPARING, ("penstock.history.view", "penstock.server.bulk.requests", "penstock.server.base.allocator"),
    ),
    "penstock.server.sql.sql_child": (SPARING, ()),
    "penstock.server.cluster.process": (SPARING, ()),
}  # fmt: skip
"""What has memory of its own: the variables that it begins with, and what it has loaded beside itself, and no more."""

NO_ALGEBRA = {"OPENBLAS_NUM_THREADS": "1"}
"""What all of them begin with."""

MOST = 1 << 18
"""Bytes of a request."""

FDS_MOST = 16

INSTALLED = "from penstock.cli.main import main; main()"
"""What the command that is installed runs: `-m penstock` without looking for it."""

OPTIONS = {"stdin", "stdout", "stderr", "env", "cwd", "text", "encoding", "errors", "pass_fds", "start_new_session"}
"""Of `subprocess.Popen`: what a forked process can be given."""


def can_fork(environ: Mapping[str, str]) -> bool:
    """Whether a process with these variables is what a forked one would be."""
    return of_the_start(environ).items() <= OURS.items()


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
        self.address = f"\0penstock-tests-{os.getpid()}-{os.urandom(6).hex()}"
        environ = {**os.environ, "PYTHONPATH": str(SOURCE), **NO_ALGEBRA}
        with contextlib.ExitStack() as stack:
            ends = [stack.enter_context(theirs)]
            for module in ("", *APART):
                listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                listener.bind(self.address + module)
                listener.listen(128)
                ends.append(listener)
            fds = [one.fileno() for one in ends]
            command = [sys.executable, str(TESTS / "forking.py"), *map(str, fds)]
            self.process = subprocess.Popen(command, pass_fds=fds, env=environ)
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
    def found(cls) -> str:
        """The address of the one there is, or of a new one."""
        with cls._lock:
            if cls._made is None or not cls._made.usable:
                cls._made = cls()
            return cls._made.address


def fork_at(address: str, request: Mapping[str, Any], fds: Sequence[int]) -> tuple[int, socket.socket]:
    """A process that runs what the request says; its pid, and what will tell its end.  OSError where nobody forks."""
    told = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        told.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST)
        told.connect(address)
        socket.send_fds(told, [json.dumps(request).encode()], list(fds))
        said = told.recv(8)
    except BaseException:
        told.close()
        raise
    if len(said) != 8:
        told.close()
        raise AssertionError("the process that forks has ended")
    return int.from_bytes(said), told


class Forked:
    """`python -m penstock ARGUMENTS` or `python SCRIPT ARGUMENTS`, as the child of a process that has loaded it all."""

    def __init__(
        self, command: Sequence[str], *, stdin: int = subprocess.DEVNULL, stdout: int, stderr: int,
        env: Mapping[str, str], cwd: str | None = None, group: bool = False, children: bool = True,
        passed: Sequence[int] = (), address: str = "", session: bool = False,
    ) -> None:  # fmt: skip
        """command: as for Python, `-m penstock ...` or `script.py ...`.  The streams are descriptors.

        group: it and all that it starts are a process group of its own.  children: what it starts is forked, too.
        passed: descriptors that it has under the same numbers.  address: of who forks, for another than ours.
        session: it has one of its own.
        """
        request = {
            "command": list(command), "environ": dict(env), "folder": cwd or os.getcwd(),
            "group": 0 if group else os.getpgrp(), "children": children, "passed": list(passed),
            "session": session, "files": resource.getrlimit(resource.RLIMIT_NOFILE), "owner": os.getpid(),
        }  # fmt: skip
        with open(os.devnull, "r+b") as nothing:
            fds = [nothing.fileno() if one == subprocess.DEVNULL else one for one in (stdin, stdout, stderr)]
            self.pid, self._told = fork_at(address or Nursery.found(), request, [*fds, *passed])
        weakref.finalize(self, self._told.close)  # also where this is a part of a circle that the collector finds
        self.returncode: int | None = None
        self._lock = threading.Lock()

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
        if self.returncode is None and _readable(self._told, timeout):
            with self._lock:
                if self.returncode is None:
                    said = self._told.recv(8)
                    assert len(said) == 8, "the process that forks has ended"
                    self.returncode = int.from_bytes(said, signed=True)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and who forked it tells so in a moment
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


def _readable(end: socket.socket, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(None if timeout is None else 1000 * timeout))


class _Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, which forks commands of the product, and what it starts beside a server."""

    nursery: Callable[[], str]
    """The address of who forks."""

    def __init__(self, args: Any, *more: Any, **options: Any) -> None:
        self._forked: Forked | None = None
        if not more and options.keys() <= OPTIONS and _is_loaded(args, options.get("env") or os.environ):
            with contextlib.suppress(OSError):  # its tests are over, or there is no descriptor left: as any other
                self._fork([os.fspath(one) for one in args], options)
        if self._forked is None:
            super().__init__(args, *more, **options)

    def _fork(self, args: Sequence[str], options: Mapping[str, Any]) -> None:
        """With pipes where these are asked for, and all that `communicate` looks at."""
        if args[1] == "-c":
            args = [args[0], "-m", "penstock", *args[3:]]
        self.encoding, self.errors = options.get("encoding"), options.get("errors")
        self.text_mode = bool(options.get("text") or self.encoding or self.errors)
        self._input, self._communication_started, self._sigint_wait_secs = None, False, 0.25
        ends, theirs = dict[str, Any](), dict[str, int]()
        with contextlib.ExitStack() as stack:
            for number, name in enumerate(("stdin", "stdout", "stderr")):
                given = options.get(name)
                ends[name] = None
                if given is None:
                    theirs[name] = number
                elif given == subprocess.PIPE:
                    both = os.pipe()
                    theirs[name], ours = both if name == "stdin" else both[::-1]
                    stack.callback(os.close, theirs[name])
                    ends[name] = self._file(ours, "w" if name == "stdin" else "r")
                elif given == subprocess.STDOUT:
                    theirs[name] = theirs["stdout"]
                else:
                    theirs[name] = given if isinstance(given, int) else given.fileno()
            folder = options.get("cwd")
            self._forked = Forked(
                args[1:], **theirs, env=dict(options.get("env") or os.environ), cwd=folder and os.fspath(folder),
                passed=options.get("pass_fds", ()), address=self.nursery() + (args[2] if args[2] in APART else ""),
                session=bool(options.get("start_new_session")),
            )  # fmt: skip
        self.stdin, self.stdout, self.stderr = ends.values()
        self.args, self.pid, self.returncode = args, self._forked.pid, None

    def _file(self, fd: int, mode: str) -> Any:
        if self.text_mode:
            return open(fd, mode, encoding=self.encoding, errors=self.errors)
        return open(fd, mode + "b")

    def poll(self) -> int | None:
        if self._forked is None:
            return super().poll()
        self.returncode = self._forked.poll()  # type: ignore[assignment]
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self._forked is None:
            return super().wait(timeout)
        self.returncode = self._forked.wait(timeout)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self._forked is None:
            super().send_signal(sig)
        else:
            self._forked.send_signal(sig)

    def __del__(self, *given: Any) -> None:
        if getattr(self, "_forked", None) is None:
            super().__del__(*given)  # type: ignore[misc]


def _is_loaded(args: Any, environ: Mapping[str, str]) -> bool:
    """Whether it is what stands loaded somewhere: a door of another memory than usual reserves it as it loads Arrow."""
    if not isinstance(args, (list, tuple)) or not args or args[0] != sys.executable:
        return False
    if [*args[1:3]] == ["-c", INSTALLED]:
        return can_fork(environ)
    if [*args[1:2]] != ["-m"]:
        return False
    if args[2] not in (*SERVES, *BESIDE, *APART):
        return False
    if args[2] in DOORS and json.loads(args[5]) not in _usual_doors():
        return False
    known = {**NO_ALGEBRA, **(APART[args[2]][0] if args[2] in APART else {})}
    return can_fork({name: value for name, value in environ.items() if known.get(name) != value})


def _usual_doors() -> list[list[int]]:
    from penstock.config.settings import Settings
    from penstock.server.base.loading import HTTP, of_a_door

    return [of_a_door(Settings().server.memory), HTTP]


PLAIN = subprocess.Popen
"""Starts new ones."""


def with_loaded_children(nursery: Callable[[], str] = Nursery.found) -> None:
    """From now on `python -m penstock`, and what runs beside a server, is forked from who has loaded it."""
    _Popen.nursery = staticmethod(nursery)  # type: ignore[assignment]
    subprocess.Popen = _Popen  # type: ignore[misc]


def name_beside(owner: int, module: str) -> str:
    """How the system calls a forked process that runs this module beside a server: 15 characters at most."""
    return f"{owner} {module.split('.')[2]}"


def beside(server: int, module: str) -> list[int]:
    """The processes that run a module beside a server, whether these were forked or are new ones."""
    found = set[int]()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ends meanwhile
            if (place / "comm").read_text() == f"{name_beside(server, module)}\n":
                found.add(int(place.name))
    for task in Path(f"/proc/{server}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread or a process that ends meanwhile
            for pid in map(int, (task / "children").read_text().split()):
                if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.add(pid)
    return sorted(found)


def penstock(
    *arguments: str, given: str = "", env: Mapping[str, str] | None = None, seconds: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """The command line as a process of its own, to its end."""
    return ran("-m", "penstock", *arguments, given=given, env=env, seconds=seconds)


def ran(
    *command: str,
    given: str | bytes = "",
    env: Mapping[str, str] | None = None,
    seconds: float = 60.0,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """`python COMMAND` as a process of its own, to its end: a program that has use for what the product loads."""
    environ, content = of_the_product(env), given if isinstance(given, bytes) else given.encode()
    folder = None if cwd is None else str(cwd)
    if not can_fork(environ):
        done = subprocess.run(
            [sys.executable, *command], input=content, capture_output=True, timeout=seconds, env=environ, cwd=folder,
            check=False,
        )  # fmt: skip
        return subprocess.CompletedProcess([*command], done.returncode, done.stdout.decode(), done.stderr.decode())
    with os.fdopen(os.memfd_create("out"), "rb+") as out, os.fdopen(os.memfd_create("err"), "rb+") as err:
        with os.fdopen(os.memfd_create("in"), "rb+") as into:
            into.write(content)
            into.seek(0)
            process = Forked(
                command, stdin=into.fileno(), stdout=out.fileno(), stderr=err.fileno(), env=environ, cwd=folder
            )  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        said = [(stream.seek(0), stream.read().decode())[1] for stream in (out, err)]
    return subprocess.CompletedProcess([*command], code, *said)
