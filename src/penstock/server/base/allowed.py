"""What the system lets a server's process have.  Too little of it is told before anything is begun: what fails for it
later fails anywhere.  That there are no more threads or processes for the moment is no mistake of ours, and passes.
"""

from __future__ import annotations

import errno
import resource
import threading
from concurrent.futures import ThreadPoolExecutor

from penstock.errors import SettingsError
from penstock.units import format_size

DESCRIPTORS_LEAST = 48
"""With fewer a server has no room for its own files and a few clients."""

SEGMENTS = 2
"""A segment goes beyond its size by what is written at once, and on a full disk by more."""


def check_allowed(segment: int) -> None:
    """Raise the soft limit of the size of files to the hard one.  SettingsError for less than a server needs.

    segment: bytes of a file of the log.  Children inherit both.
    """
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < DESCRIPTORS_LEAST:
        raise SettingsError(
            f"the process may open {files} files and sockets, and a server needs {DESCRIPTORS_LEAST} at least: raise "
            "the hard limit (ulimit -n, LimitNOFILE=)"
        )
    _, size = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY and size < SEGMENTS * segment:
        raise SettingsError(
            f"a file may have {format_size(size)}, and one of the log needs {format_size(SEGMENTS * segment)}, twice "
            "log.segment: raise the hard limit (ulimit -f, LimitFSIZE=), or lower log.segment"
        )
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


NO_DOOR = errno.ECHILD
"""Of an address that nobody could bind, for the process ended that should have."""


def no_door(error: Exception) -> OSError:
    """What a door says of its address then."""
    return OSError(NO_DOOR, f"{error}: what it said of that stands above{bound_on_addresses()}")


def bound_on_addresses() -> str:
    """Why memory or a thread may be missing where the machine has both; empty where that cannot be."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return ""
    return f"; the addresses of a process end at {format_size(most)} (ulimit -v, LimitAS=), which may be why"


NO_MORE = (
    "the system starts no more processes or threads for this server: raise their limit (ulimit -u, LimitNPROC=, "
    "TasksMax=, pids.max)"
)


def is_no_more(error: BaseException) -> bool:
    """Whether this says that the system starts no more processes (OSError) or threads (Python: RuntimeError)."""
    if isinstance(error, OSError):
        return error.errno == errno.EAGAIN
    return isinstance(error, RuntimeError) and str(error).startswith("can't start new thread")


def begin(thread: threading.Thread) -> None:
    """Start it.  OSError where the system starts no more."""
    try:
        thread.start()
    except RuntimeError as error:
        if not is_no_more(error):
            raise
        raise BlockingIOError(errno.EAGAIN, NO_MORE) from error


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
            raise BlockingIOError(errno.EAGAIN, NO_MORE) from error

    def _adjust_thread_count(self) -> None:  # of the base: adds one where none is idle; the work is in line already
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads or not is_no_more(error):
                raise
