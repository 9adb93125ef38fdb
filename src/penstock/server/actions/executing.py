"""Programs that actions run: no shell, no input, a minute at most, one after the other."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence

LONGEST_S = 60.0

SHOWN = 300
"""Characters of what a program said, in a message about its failure."""


class Programs:
    """Runs them, in whatever thread calls; `stop` ends the one that runs."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None
        self.stopped = False  # the server stops: what ends now is not to be told as its end
        self._lock = threading.Lock()

    def run(self, words: Sequence[bytes]) -> str:
        """Run one to its end; empty, or why it failed."""
        name = os.fsdecode(words[0])
        if any(b"\0" in word for word in words):
            return f"executing: an argument of {name!r} holds a zero byte"
        try:
            with self._lock:
                if self.stopped:
                    return f"executing: {name!r} is not run any more"
                program = self._running = subprocess.Popen(
                    list(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
        except OSError as error:
            return f"executing: {name!r}: {error.strerror or error}"
        with program:
            try:
                _, complaint = program.communicate(timeout=LONGEST_S)
            except subprocess.TimeoutExpired:
                program.kill()
                return f"executing: {name!r} was ended after {LONGEST_S:.0f} s"
            finally:
                with self._lock:
                    self._running = None
        if program.returncode:
            said = complaint.decode(errors="replace").strip()[:SHOWN]
            return f"executing: {name!r} ended with {program.returncode}{f': {said}' if said else ''}"
        return ""

    def stop(self) -> None:
        """End the one that runs, and run none any more."""
        with self._lock:
            self.stopped = True
            if self._running is not None:
                self._running.kill()
