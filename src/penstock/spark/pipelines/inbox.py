"""Jobs as a driver is handed them: a line of JSON each through its standard input, whose end is the end of the parent.

A job holds a password, so it goes through no file, no argument and no environment: nothing of it is left wherever
parent or driver are killed.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

CHUNK_BYTES = 1 << 16

FOLLOWED = frozenset({"user", "password", "patience", "pipelines"})
"""What a running driver takes from a newer job (`Driver.take`); everything else of a job holds for its process."""


def of_process(older: Mapping[str, Any], newer: Mapping[str, Any]) -> list[str]:
    """What differs in two jobs that only a new process can take: the names, sorted."""
    names = (older.keys() | newer.keys()) - FOLLOWED
    return sorted(name for name in names if older.get(name) != newer.get(name))


def line_of(job: Mapping[str, Any]) -> bytes:
    """What a parent writes."""
    return json.dumps(job).encode() + b"\n"


class Inbox:
    """What the parent has handed over; a thread of its own reads, so the pipe never fills up for long."""

    def __init__(self, descriptor: int, gone: Callable[[], object]) -> None:
        """descriptor: of the pipe from the parent.  gone: called once, when it has ended."""
        self._descriptor = descriptor
        self._gone = gone
        self._came = threading.Condition()
        self._newest: bytes | None = None
        self._ended = False
        threading.Thread(target=self._read, name="penstock-inbox", daemon=True).start()

    def first(self) -> dict[str, Any]:
        """The job to begin with.  EOFError when the parent ends without a word, ValueError when it is no JSON."""
        with self._came:
            self._came.wait_for(lambda: self._newest is not None or self._ended)
        found = self.newer()
        if found is None:
            raise EOFError("the parent ended before it handed a job over")
        return found

    def newer(self) -> dict[str, Any] | None:
        """The newest job that came since the last look, if one did.  ValueError when it is no JSON."""
        with self._came:
            line, self._newest = self._newest, None
        if line is None:
            return None
        found: dict[str, Any] = json.loads(line)
        return found

    def _read(self) -> None:
        rest = b""
        while chunk := os.read(self._descriptor, CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                with self._came:
                    self._newest = lines[-1]
                    self._came.notify_all()
        with self._came:
            self._ended = True
            self._came.notify_all()
        self._gone()
