"""SQL children as the server holds them: one a statement, and one more that is warm while statements come.

A child that has imported everything waits for the next statement, so that only the first one of a while pays for it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from penstock.errors import PreconditionFailed, Unavailable

IDLE_S = 60.0
"""How long a warm child waits for a statement."""

END_S = 2.0


class Child:
    """One process and our end of its socket."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.set_inheritable(True)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "penstock.server.sql.child", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(_paths())},
                )
            except OSError as error:
                ours.close()
                raise Unavailable(f"no process for a statement can be started: {error.strerror}") from None
        self.sock = ours
        self.made = time.monotonic()

    @property
    def lives(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def end(self) -> None:
        """Kill it; twice does no harm."""
        self.sock.close()
        self._process.kill()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            pass  # the kernel still has it; nothing of ours waits for it


def _paths() -> list[str]:
    """Where this process finds our package and its own."""
    source = str(Path(__file__).resolve().parents[3])
    return [source, *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != source)]


class Children:
    """The warm child.  Thread-safe."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._warm: Child | None = None
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> Child:
        """A child for one statement, whose end is the caller's.  PreconditionFailed without duckdb."""
        from importlib.util import find_spec

        if find_spec("duckdb") is None:
            raise PreconditionFailed(
                "SQL needs DuckDB on the server, and it is not installed: pip install 'penstock[sql]'"
            )
        with self._lock:
            child, self._warm = self._warm, None
        if child is not None and child.lives:
            return child
        if child is not None:
            child.end()
        return Child()

    def warm(self) -> None:
        """Have a child ready for the next statement."""
        with self._lock:
            if self._closed or self._warm is not None:
                return
            self._warm = Child()

    def beat(self) -> None:
        """Once a second: a child that nobody needed goes."""
        with self._lock:
            child = self._warm
            if child is None or time.monotonic() - child.made < self._idle_s:
                return
            self._warm = None
        child.end()

    def close(self) -> None:
        """No more children."""
        with self._lock:
            self._closed = True
            child, self._warm = self._warm, None
        if child is not None:
            child.end()
