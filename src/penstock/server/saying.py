"""What a server says: its lines to standard output, and those of its log to standard error.

A thread writes them.  Who reads them may have stopped, gone away or filled his disk: the server serves all the same,
and ends when it is told to.  Lines for which there is no room any more are counted, and told as a number once there is.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from fcntl import F_GETFL, F_SETFL, fcntl
from weakref import WeakSet

from penstock.server.base.loading import OneLine

MOST = 10_000
"""Lines that wait; a start says a few hundred at most."""

AGAIN_S = 0.1
"""After so long a reader is asked again who has no room and does not have us wait for it."""

END_S = 3.0
"""So long an end waits for a reader who does not take a line: what is only late, on a busy machine, is waited for."""

SLOW_S = 15.0
"""So long it waits in all, for a machine that is busy or a reader who is slow."""

OUT, LOG = 1, 2


class Voice(logging.Handler):
    """Says lines, and those of a log as its handler.  Any thread."""

    def __init__(self, out: int = OUT, log: int = LOG, most: int = MOST) -> None:
        """out, log: descriptors of files, which stay open."""
        super().__init__(logging.WARNING)
        self.setFormatter(OneLine())
        self._files = out, log
        self._most = most
        self._waiting = deque[tuple[int, str]]()
        self._lost = dict.fromkeys(self._files, 0)
        self._change = threading.Condition()
        self._writes = 0.0  # since when something that has been taken is not written yet; 0: there is none
        self._patience_s = END_S
        _living.add(self)
        threading.Thread(target=self._run, name="penstock-say", daemon=True).start()

    def say(self, text: str) -> None:
        """A line to standard output."""
        self._put(self._files[0], text)

    def emit(self, record: logging.LogRecord) -> None:
        """A record of the log to standard error."""
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001 - as every handler does: who logs something wrong has not done anything wrong
            self.handleError(record)
        else:
            self._put(self._files[1], text)

    def end(self, seconds: float = END_S) -> bool:
        """Wait until all is written, but for one line no longer than that; whether it is."""
        slow = time.monotonic() + max(SLOW_S, seconds)
        with self._change:
            while self._waiting or self._writes:
                now = time.monotonic()
                if now > slow or (self._writes and now - self._writes > seconds):
                    return False
                self._change.wait(AGAIN_S)
        return True

    def flush(self) -> None:
        """The same, as `logging` asks for it at each end; a reader who stood still is not waited for again."""
        if not self.end(self._patience_s):
            self._patience_s = 0.0

    def _put(self, file: int, text: str) -> None:
        with self._change:
            if len(self._waiting) >= self._most:
                self._lost[file] += 1
                return
            self._waiting.append((file, text))
            self._change.notify_all()

    def _run(self) -> None:
        while True:
            with self._change:
                self._writes = 0.0
                self._change.notify_all()
                self._change.wait_for(lambda: self._waiting)
                file, text = self._waiting.popleft()
                lost, self._lost[file], self._writes = self._lost[file], 0, time.monotonic()
            if not _write(file, f"{text}\n"):
                lost += 1
            elif not lost or _write(file, f"{lost} lines were left out: nobody read them, or they were refused\n"):
                continue
            with self._change:
                self._lost[file] += lost


_living: WeakSet[Voice] = WeakSet()


def flush() -> None:
    """All that this process has said is written, as far as somebody reads it.

    `logging.shutdown` does not know of it where a library has configured the log, which makes it forget all handlers.
    """
    for voice in list(_living):
        voice.flush()


def _write(file: int, text: str) -> bool:
    """Whether it could be written; waits for room for ever."""
    data = memoryview(text.encode("utf-8", "backslashreplace"))
    while data:
        try:
            data = data[os.write(file, data) :]
        except BlockingIOError:
            time.sleep(AGAIN_S)
        except OSError:  # closed, broken or full: there is nobody to tell
            return False
    return True


def append() -> None:
    """What goes to a file goes to its end, wherever that is: who rotates it by cutting it gets no zeros before it."""
    for file in (OUT, LOG):
        with suppress(OSError):  # closed: there is nothing to write to
            if stat.S_ISREG(os.fstat(file).st_mode):
                fcntl(file, F_SETFL, fcntl(file, F_GETFL) | os.O_APPEND)


@contextmanager
def speaking() -> Generator[Voice]:
    """A voice that has the log, too, unless somebody has said where that goes."""
    append()
    voice, root = Voice(), logging.getLogger()
    logs = not root.handlers
    if logs:
        root.addHandler(voice)
    try:
        yield voice
    finally:
        if logs:
            root.removeHandler(voice)
        voice.flush()
