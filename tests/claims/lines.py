"""Which lines of the product a process runs, with the tracing of the interpreter."""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType
from typing import Any

from claims.mutants import SOURCE

_PREFIX = str(SOURCE) + "/"


class Lines:
    """Lines as (path below `src`, number)."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self._ours: dict[CodeType, str] = {}

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
        path = self._ours.get(code)
        if path is None:
            name = code.co_filename
            path = self._ours[code] = name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""
        if not path:
            return None
        seen = self.seen

        def line(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                seen.add((path, frame.f_lineno))
            return line

        return line
