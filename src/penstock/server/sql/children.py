"""SQL children as the server holds them: one for each statement that runs, and one that waits for the next.

A child whose statement came to its end takes another one; any other is killed with what it does.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time

from penstock.errors import PreconditionFailed, Unavailable
from penstock.server.base.allowed import begin
from penstock.server.base.loading import END_S, SPARING, environment
from penstock.server.doors.door_process import begun_with_lines
from penstock.server.doors.line import Line

IDLE_S = 60.0
"""How long a warm child waits for a statement."""


class Child:
    """One process and our ends of its sockets."""

    def __init__(self) -> None:
        try:
            self._process, line, self.sockets = begun_with_lines("penstock.server.sql.sql_child", env=_environment())
        except OSError as error:
            raise Unavailable(f"no process for a statement can be started: {error.strerror}") from None
        self.line = Line(line)
        self.idle_since = time.monotonic()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def fate(self) -> str:
        """How a process ended whose socket is closed: the name of a signal, or its status."""
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return "no end yet"
        return f"status {status}" if status >= 0 else signal.strsignal(-status) or f"signal {-status}"

    def end(self) -> None:
        """Kill it; twice does no harm."""
        self.line.close()
        self.sockets.close()
        self._process.kill()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            pass  # the kernel still has it; nothing of ours waits for it


def _environment() -> dict[str, str]:
    """What the child is told: of this process everything but our own settings, among which are passwords."""
    all_of_it = environment(**SPARING)
    return {name: value for name, value in all_of_it.items() if not name.startswith("PENSTOCK_")}


class Children:
    """The warm child.  Thread-safe."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._warm: Child | None = None
        self._out = set[Child]()  # held here: in a cycle of garbage nothing says which goes first
        self._lock = threading.RLock()  # a statement may be collected, and end, in the middle of anything
        self._closed = False

    def take(self) -> Child:
        """A child for one statement; give it `back`, or `end` it.  PreconditionFailed without duckdb."""
        from importlib.util import find_spec

        if find_spec("duckdb") is None:
            raise PreconditionFailed(
                "SQL needs DuckDB on the server, and it is not installed: pip install 'penstock[sql]'"
            )
        with self._lock:
            child, self._warm = self._warm, None
        if child is not None and not child.lives:
            child.end()
            child = None
        child = child or Child()
        self._out.add(child)
        return child

    def back(self, child: Child) -> None:
        """A child is done with its statement: it waits for the next, if none does so already."""
        child.idle_since, lives = time.monotonic(), child.lives
        with self._lock:
            if lives and not self._closed and self._warm is None:
                self._warm = child
                self._out.discard(child)
                return
        self.end(child)

    def end(self, child: Child) -> None:
        """A child has not come to the end of its statement, or nobody needs another one."""
        child.end()
        self._out.discard(child)

    def beat(self) -> None:
        """Once a second, on the loop: a child that nobody needed goes, and a thread waits until it has."""
        with self._lock:
            child = self._warm
            if child is None or time.monotonic() - child.idle_since < self._idle_s:
                return
            self._warm = None
        try:
            begin(threading.Thread(target=child.end, name="penstock-sql-end", daemon=True))
        except OSError:  # later, then
            self.back(child)

    def close(self) -> None:
        """No more children; the one that waits for a statement is ended."""
        with self._lock:
            self._closed = True
            child, self._warm = self._warm, None
        if child is not None:
            child.end()
