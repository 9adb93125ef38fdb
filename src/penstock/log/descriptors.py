"""Descriptors of the process that are kept for the log: no socket gets them, whoever opens it.

    0 ........ the rest of the process ........ soft limit .... kept .... hard limit
               sockets, pipes, files                            the log, where it finds no other

The system itself counts: the soft limit stays below the hard one, so that what accepts connections, gRPC's threads
too, is refused there; what the log opens is tried again under the hard limit when it was refused.  Others may come in
between for some microseconds, which costs one of `KEPT` and not the log.

One for a process, since the limit is the process's.  Any thread.
"""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import SettingsError

KEPT = 64
KEPT_PART = 4
"""As many, and not more than this part of all."""

MOST = 1 << 20
"""The limit is not raised beyond this: some programs walk through all of them."""

T = TypeVar("T")

LEAST = 48
"""With fewer a server has no room for its own files and a few clients."""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})
"""What the system says when it gives no descriptor, the process's or its own: later it may."""

_lock = threading.RLock()  # what is lent may be asked for while something is opened
_kept = 0


def keep_back() -> tuple[int, int]:
    """Raise the soft limit to the hard one but for what is kept: the new one, and how many are kept.

    At the start of a server's process; children inherit the soft limit and may raise theirs.  Raises SettingsError for
    less than `LEAST` in all.
    """
    global _kept
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LEAST:
        raise SettingsError(
            f"the process may open {hard} files and sockets, and a server needs {LEAST} at least: raise the hard limit "
            "(ulimit -n, LimitNOFILE=)"
        )
    with _lock:
        soft, _kept = to_be(soft, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft, _kept


def to_be(soft: int, hard: int) -> tuple[int, int]:
    """What `keep_back` makes of limits: the soft one, and how many are kept."""
    most = max(soft, MOST) if hard == resource.RLIM_INFINITY else min(hard, max(soft, MOST))
    kept = min(KEPT, most // KEPT_PART)
    return most - kept, kept


def lent(work: Callable[[], T]) -> T:
    """What `work` gives, which opens a few files for the log; with those that are kept, when no others are free."""
    try:
        return work()
    except OSError as error:
        if not exhausted(error) or not _kept:
            raise
    with _lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = soft + _kept if hard == resource.RLIM_INFINITY else min(soft + _kept, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        try:
            return work()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def exhausted(error: OSError) -> bool:
    """Whether an open failed for want of descriptors."""
    return error.errno in EXHAUSTED
