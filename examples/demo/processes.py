"""The demo's processes, and the certainty that none of them is left when it ends.

The demo makes itself the parent of whatever its children leave behind (Linux's "child subreaper"), so that at the end
everything below it can be found and stopped: publishers, workers, supervisor, server, Spark's driver and its Java.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workers import CRASH

PR_SET_CHILD_SUBREAPER = 36
PR_SET_PDEATHSIG = 1

STOP_S = 40.0

_libc = ctypes.CDLL(None, use_errno=True)
_forked = multiprocessing.get_context("forkserver")
_forked.set_forkserver_preload([
    "numpy", "orjson", "pika", "penstock.client.client", "penstock.spark.sessions", "pyarrow.compute", "pyarrow.csv",
    "pyarrow.feather", "pyarrow.flight", "pyarrow.parquet", "rich.progress", "rich.table", "pandas",
])  # fmt: skip
"""What publishers and workers load, and the demo but for its report, is loaded once, by whom they are forked from.
Arrow loads pandas wherever it is installed."""


class Failure(Exception):
    """The demo cannot go on; the text says why."""


def adopt() -> None:
    """From now on, orphans below this process are ours."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def below() -> list[int]:
    """Process ids of everything below this process, children before grandchildren."""
    parents = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(path.parent.name)] = int(fields[1])
    found, ring = list[int](), [os.getpid()]
    while ring:
        ring = [child for child, parent in parents.items() if parent in ring]
        found += ring
    return found


def sweep() -> int:
    """Kill what is left below this process; how many there were."""
    swept = 0
    for _ in range(50):
        left = below()
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                swept += 1
        time.sleep(0.05)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    return swept


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the system gives to callers: none of these takes one meanwhile."""
    found = set[int]()
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return list(found)


class Server:
    """`penstock up`: server and pipelines under their supervisor, in a folder of the demo's own."""

    def __init__(self, folder: Path, settings: Path) -> None:
        self.folder = folder
        self.ready_file = folder / "ready.json"
        self.output = folder / "server.log"
        amqp, http, flight = free_ports(3)
        self.amqp = ("127.0.0.1", amqp)
        self.url = f"penstock://127.0.0.1:{flight}"
        self._environ = {
            **os.environ,
            "PENSTOCK_LISTEN__AMQP": f"127.0.0.1:{amqp}",
            "PENSTOCK_LISTEN__HTTP": f"127.0.0.1:{http}",
            "PENSTOCK_LISTEN__FLIGHT": f"127.0.0.1:{flight}",
            "PENSTOCK_SERVER__DATA": str(folder / "data"),
        }
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "up", str(settings), "--ready-file", str(self.ready_file)],
                cwd=folder,  # the pipeline's table is a path relative to it
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the demo, which stops it in order
                preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
            )

    def ready(self, other_than: int | None = None) -> dict[str, Any] | None:
        """What a server other than that process said when it was ready; None so far.  Failure when there is none."""
        self.check()
        try:
            said: dict[str, Any] = json.loads(self.ready_file.read_bytes())
        except FileNotFoundError:
            return None
        return said if said["server_pid"] not in (None, other_than) else None

    def check(self) -> None:
        """Failure when the supervisor has ended."""
        if self.process.poll() is not None:
            raise Failure(f"`penstock up` ended with status {self.process.returncode}:\n{self.told()}")

    def kill(self) -> int:
        """kill -9 of the server, not of its supervisor; the process id that was."""
        said = self.ready()
        if said is None:
            raise Failure("the server was gone before it could be killed")
        os.kill(said["server_pid"], signal.SIGKILL)
        return int(said["server_pid"])

    def stop(self) -> None:
        """Ask it to end, and wait.  Failure when it does not end well."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                raise Failure(f"`penstock up` did not stop within {STOP_S:g} s:\n{self.told()}") from None
        if self.process.returncode:
            raise Failure(f"`penstock up` ended with status {self.process.returncode}:\n{self.told()}")

    def told(self) -> str:
        """The last lines of the server and of Spark's driver."""
        lines = list[str]()
        for path in (self.output, self.folder / "data" / "spark" / "driver.log"):
            if path.exists():
                lines += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-25:]]
        return "\n".join(lines)


def _born(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """First steps of a child: Ctrl-C is the demo's business, and the demo's death is ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_the_demo, daemon=True).start()
    function(*arguments)


def _die_with_the_demo() -> None:
    demo = multiprocessing.parent_process()
    assert demo is not None
    demo.join()
    os.kill(os.getpid(), signal.SIGKILL)


class Crew:
    """Publishers and workers.  Those that crash on purpose are replaced; any other end is a Failure."""

    def __init__(self) -> None:
        self.crashes = 0
        self._running = dict[str, tuple[Any, Callable[..., None], tuple[Any, ...]]]()

    def start(self, name: str, function: Callable[..., None], *arguments: Any) -> None:
        """A process that calls `function(*arguments)`."""
        process = _forked.Process(target=_born, args=(function, arguments), name=name, daemon=True)
        process.start()
        self._running[name] = (process, function, arguments)

    def look(self) -> None:
        """Replace who has crashed: the same work, and no further crash."""
        for name, (process, function, arguments) in list(self._running.items()):
            if process.exitcode is None:
                continue
            del self._running[name]
            if process.exitcode == CRASH:
                self.crashes += 1
                self.start(name, function, *arguments[:-1], 0)
            elif process.exitcode:
                raise Failure(f"{name} ended with status {process.exitcode}; its error stands above")

    def gone(self, prefix: str) -> bool:
        """Whether everybody whose name begins so has done their work."""
        return not any(name.startswith(prefix) for name in self._running)

    def end(self, patience: float) -> None:
        """Wait for everybody.  Failure when somebody does not come."""
        until = time.monotonic() + patience
        while self._running:
            self.look()
            if time.monotonic() > until:
                raise Failure(f"{', '.join(self._running)} did not end within {patience:g} s")
            time.sleep(0.02)
