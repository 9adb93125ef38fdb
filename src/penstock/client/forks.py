"""What a forked process has of its parent's connections, and must not use.

gRPC's threads are not there in a fork, and its sockets are the parent's: who used a connection there waited for ever,
and what he wrote broke it for the parent.  So what is open is refused there, by a sentence, and never ended, for its
destructors would wait for those threads.  Where none is open at the fork, both sides connect as they like.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import Protocol

from penstock.errors import PreconditionFailed

_INSTEAD = "or start it with another method of multiprocessing than 'fork'"


class Inherited(Protocol):
    """What speaks over a connection."""

    @property
    def closed(self) -> bool: ...

    def leave(self) -> list[object]:
        """Be refused from now on, in the child; what must never be ended there."""
        ...


SETTLING_S = 0.25
"""After the end of a connection gRPC's threads are still ending, and a fork waits for that: of 25 at once after one 24
had children that could not connect, of 25 after 0.1 s none."""

_open = weakref.WeakSet[Inherited]()
_left = list[object]()
_ended = [-SETTLING_S]
"""When the last connection was closed, on the monotonic clock."""


def watch(one: Inherited) -> None:
    """Have it know when its process was forked."""
    _open.add(one)


def ended() -> None:
    """A connection was closed."""
    _ended[0] = time.monotonic()


def not_here() -> PreconditionFailed:
    """The error for who uses in the child what the parent has."""
    told = "this connection was made before its process was forked, and is the parent's"
    return PreconditionFailed(f"{told}: connect in the process that uses it, {_INSTEAD}")


def check_origin() -> None:
    """PreconditionFailed in the child of a process that had a connection open: no other would work."""
    if _left:
        told = "the process that this one was forked from had a connection open, and none works here"
        raise PreconditionFailed(f"{told}: close it before the fork, {_INSTEAD}")


def _forking() -> None:
    if (left := _ended[0] + SETTLING_S - time.monotonic()) > 0:
        time.sleep(left)


def _forked() -> None:
    for one in list(_open):
        if not one.closed:
            _left.extend(one.leave())
    if _left:
        from ctypes import py_object, pythonapi

        for kept in _left:
            pythonapi.Py_IncRef(py_object(kept))  # the list itself ends with its module


os.register_at_fork(before=_forking, after_in_child=_forked)
