"""What a fork makes of connections: a forked process must not use its parent's.

gRPC's threads are not there in a fork, and its sockets are the parent's: who used a connection there waited for ever,
and what he wrote broke it for the parent.  So what is open is refused there, by a sentence, and never ended, for its
destructors would wait for those threads.  Where none is open at the fork, both sides connect as they like.

A connection is open for as long as there is its client, until that is closed, or one of its streams.  It knows nothing
of what goes over it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, SupportsIndex, TypeVar

import pyarrow as pa

from penstock.errors import PreconditionFailed

T = TypeVar("T")

_INSTEAD = "or start it with another method of multiprocessing than 'fork'"


class OfThisProcess:
    """What speaks over a connection, or is held by one.  Pickled it failed of a lock that it has."""

    __slots__ = ()

    @property
    def _instead(self) -> str:
        return "connect where it is used, and pass on what it says, as a body or a bookmark"

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> str | tuple[Any, ...]:
        raise TypeError(
            f"a {type(self).__name__} belongs to a connection of this process, and is neither pickled nor copied: "
            + self._instead
        )


class Inherited(Protocol):
    """What speaks over a connection, or has threads or locks for what does."""

    def leave(self) -> None:
        """Be refused from now on, in the child."""


class Ended:
    """In the place of a stream that has ended: who keeps that keeps its connection."""

    def __getattr__(self, name: str) -> Any:
        if name in ("cancel", "close"):
            return lambda: None
        raise pa.ArrowInvalid("the stream has ended")


SETTLING_S = 0.25
"""After the end of a connection gRPC's threads are still ending, and a fork waits for that: of 25 at once after one 24
had children that could not connect, of 25 after 0.1 s none."""

SETTLING_MOST_S, LOOK_S = 2.0, 0.01
"""For so long where threads with gRPC's names are still there, which may be those of another gRPC, too: of 60 ends two
took longer than 0.25 s, on a busy machine.  And the time between two looks: gRPC tells nobody when its threads end."""

_THREADS = frozenset({"event_engine", "grpc_global_tim", "lifeguard"})
"""What gRPC calls those that every connection has."""

_known = weakref.WeakSet[Inherited]()
_open = set[weakref.ref[Any]]()
"""Clients and streams of Flight."""
_left = list[object]()
_ended = [-SETTLING_MOST_S]
"""When the last connection may have ended, on the monotonic clock."""
changing = threading.RLock()
"""Of who makes a connection or ends one: in a child that was forked meanwhile none worked, and nobody knew."""


def watch(one: Inherited) -> None:
    """Have it know when its process was forked."""
    _known.add(one)


def opened(one: T) -> T:
    """A client or a stream of Flight, by which a connection is open from now on."""
    _open.add(weakref.ref(one, _gone))
    return one


def closed(one: object) -> None:
    """A client of Flight was closed: its streams alone have the connection, if there are any."""
    _gone(weakref.ref(one))


def _gone(one: weakref.ref[Any]) -> None:
    _open.discard(one)
    _ended[0] = time.monotonic()


def not_here() -> PreconditionFailed:
    """The error for who uses in the child what the parent has."""
    told = "this connection was made before its process was forked, and is the parent's"
    return PreconditionFailed(f"{told}: connect in the process that uses it, {_INSTEAD}")


def check_origin() -> None:
    """PreconditionFailed in the child of a process that had a connection open: no other would work."""
    if _left:
        told = "the process that this one was forked from had a connection open, and none works here: close it before"
        raise PreconditionFailed(f"{told} the fork, with a result or a replay that was not read to its end, {_INSTEAD}")


def _forking() -> None:
    changing.acquire()
    if (left := _ended[0] + SETTLING_S - time.monotonic()) > 0:
        time.sleep(left)
    while not _open and time.monotonic() < _ended[0] + SETTLING_MOST_S and _settling():
        time.sleep(LOOK_S)


def _settling() -> bool:
    """Whether a thread has one of gRPC's names."""
    for task in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has ended
            if task.read_text().strip() in _THREADS:
                return True
    return False


def _forked() -> None:
    changing.release()
    _left.extend(one for one in [ref() for ref in list(_open)] if one is not None)
    for known in list(_known):
        known.leave()
    if _left:
        from ctypes import py_object, pythonapi

        for kept in _left:
            pythonapi.Py_IncRef(py_object(kept))  # the list itself ends with its module


os.register_at_fork(before=_forking, after_in_parent=changing.release, after_in_child=_forked)
