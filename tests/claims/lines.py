"""Which lines of the product a process runs, with the tracing of the interpreter."""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType
from typing import Any

from claims.mutants import SOURCE

_PREFIX = str(SOURCE) + "/"


ENOUGH = 100
"""Calls of a function one after another that run no new line: then it is watched no more, which would take long."""


class Lines:
    """Lines as (path below `src`, number)."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self._watched: dict[CodeType, _Watched | None] = {}

    def begin(self) -> None:
        """Watch all threads from now on."""
        threading.settrace(self._call)
        sys.settrace(self._call)

    def end(self) -> None:
        """Watch no more."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        try:
            watched = self._watched[code]
        except KeyError:
            name = code.co_filename
            ours = name.startswith(_PREFIX)
            watched = self._watched[code] = _Watched(name.removeprefix(_PREFIX), self.seen) if ours else None
        if watched is None:
            return None
        watched.calls_without_news += 1
        if watched.calls_without_news > ENOUGH:
            self._watched[code] = None
        return watched.line


class _Watched:
    """A function of the product."""

    def __init__(self, path: str, seen: set[tuple[str, int]]) -> None:
        self.path, self.seen = path, seen
        self.numbers: set[int] = set()
        self.calls_without_news = 0

    def line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and frame.f_lineno not in self.numbers:
            self.numbers.add(frame.f_lineno)
            self.seen.add((self.path, frame.f_lineno))
            self.calls_without_news = 0
        return self.line
