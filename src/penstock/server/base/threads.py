"""Threads, where the system may start no more of them: that is no mistake of ours, and passes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from errno import EAGAIN

NO_MORE = (
    "the system starts no more processes or threads for this server: raise their limit (ulimit -u, LimitNPROC=, "
    "TasksMax=, pids.max)"
)


def is_no_more(error: BaseException) -> bool:
    """Whether this says that the system starts no more processes (OSError) or threads (Python: RuntimeError)."""
    if isinstance(error, OSError):
        return error.errno == EAGAIN
    return isinstance(error, RuntimeError) and str(error).startswith("can't start new thread")


def begin(thread: threading.Thread) -> None:
    """Start it.  OSError where the system starts no more."""
    try:
        thread.start()
    except RuntimeError as error:
        if not is_no_more(error):
            raise
        raise BlockingIOError(EAGAIN, NO_MORE) from error


class Pool(ThreadPoolExecutor):
    """Has its first thread from the beginning; where there is none to add, work waits for those that there are."""

    def __init__(self, most: int, thread_name_prefix: str) -> None:
        """OSError where the system starts no thread."""
        super().__init__(most, thread_name_prefix)
        try:
            self.submit(int).result()
        except RuntimeError as error:
            if not is_no_more(error):
                raise
            raise BlockingIOError(EAGAIN, NO_MORE) from error

    def _adjust_thread_count(self) -> None:  # of the base: adds one where none is idle; the work is in line already
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads or not is_no_more(error):
                raise
