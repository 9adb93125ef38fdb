"""A process of ours that is started again when it dies; its standard input is ours, its output goes to a file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Say: TypeAlias = "Callable[[str], object]"
"""Takes a line for people."""

PAUSE_S = (0.1, 10.0)
"""Before a process that has died is started again: the first time, and at most."""

CALM_S = 60.0
"""A process that has run for so long starts again at once when it dies."""

LOG_BYTES = 16 * 2**20
"""A file of output that is longer is put aside at the next start, and takes the place of the one before."""


class Child:
    """A process that is started again when it dies, after a pause that grows while it keeps dying."""

    def __init__(self, name: str, say: Say, pause: tuple[float, float] = PAUSE_S) -> None:
        """`pause`: seconds before the next start, the first time and at most."""
        self.name = name
        self.say = say
        self.pause = pause
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._pause = 0.0
        self._since = 0.0
        self._next = 0.0

    @property
    def pid(self) -> int | None:
        """Its process id, None while it is down."""
        return self.process.pid if self.process is not None else None

    def start(self, command: Sequence[str], given: bytes = b"", log: Path | None = None) -> None:
        """Start it; its standard input stays open until it stops or we are gone.

        A machine that has no room for a process (OSError) is told of and asked again later, but for the first start.
        """
        try:
            self._start(command, given, log)
        except OSError as error:
            if not self.starts:
                raise
            self._rest()
            self.say(f"penstock: the {self.name} cannot be started now: {error}")

    def _start(self, command: Sequence[str], given: bytes, log: Path | None) -> None:
        errors: Any = None
        if log is not None:
            if log.exists() and log.stat().st_size > LOG_BYTES:
                os.replace(log, log.with_suffix(".log.1"))
            errors = log.open("ab")
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for us alone: we stop our children in order
            )
        finally:
            if errors is not None:
                errors.close()
        self.starts += 1
        self._since = time.monotonic()
        self.give(given)

    def give(self, more: bytes) -> None:
        """Write this to its standard input, if it is up: where it is not, its next start is given what it needs."""
        if self.process is None:
            return
        pipe: Any = self.process.stdin
        try:
            pipe.write(more)
            pipe.flush()
        except BrokenPipeError:
            pass  # it died; the next look finds out

    def hear(self, number: int) -> None:
        """Pass a signal on, if it is up."""
        process = self.process
        if process is not None:
            process.send_signal(number)

    def ended(self) -> int | None:
        """The exit status if it has died since the last look; the pause before the next start begins."""
        if self.process is None:
            return None
        status = self.process.poll()
        if status is None:
            return None
        self._close()
        if time.monotonic() - self._since > CALM_S:
            self._pause = 0.0
        self._rest()
        return status

    def _rest(self) -> None:
        """The pause before the next start begins, longer than the last."""
        self._pause = min(self._pause * 2, self.pause[1]) if self._pause else self.pause[0]
        self._next = time.monotonic() + self._pause

    def due(self) -> bool:
        """Whether it is down and may be started."""
        return self.process is None and time.monotonic() >= self._next

    def stop(self, patience: float) -> None:
        """SIGTERM, and SIGKILL for its whole session when that does not help."""
        process = self.process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            self.say(f"penstock: the {self.name} does not stop and is killed")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._close()

    def _close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass  # nobody reads what was left in it
        self.process = None
