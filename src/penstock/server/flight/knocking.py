"""Somebody connects: the kernel tells it, so that nobody has to look while nobody is connected.

gRPC accepts connections by itself and says nothing of them.  Who polls a listening socket beside it hears of nothing
that gRPC was quicker to accept.  But with O_ASYNC the kernel sends a signal as a connection comes, whoever accepts it
and however soon (fcntl(2), socket(7)).  One thread has it blocked and waits for it, so it interrupts nobody.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager

_SIGNALS = frozenset({signal.SIGIO})
_SETOWN_EX, _OWNER_THREAD = 15, 0
"""`F_SETOWN_EX` and `F_OWNER_TID` of fcntl(2), which Python does not name."""


@contextmanager
def deaf() -> Generator[None]:
    """A thread that begins meanwhile has the signal blocked for good, as `wait` needs it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def listens(one: socket.socket) -> bool:
    """Whether connections come by it."""
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def tell(listening: socket.socket, thread: int) -> bool:
    """Have the kernel tell a thread, by its number there, of each that connects; False where it does not do so."""
    try:
        fcntl.fcntl(listening, _SETOWN_EX, struct.pack("ii", _OWNER_THREAD, thread))
        fcntl.fcntl(listening, fcntl.F_SETFL, fcntl.fcntl(listening, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return False
    return True


def wait(seconds: float) -> bool:
    """Whether somebody has connected since the last call, or does so within that time.  For the thread that is told."""
    return signal.sigtimedwait(_SIGNALS, seconds) is not None


def stands_outside(listening: socket.socket) -> bool:
    """Whether somebody has connected whom nobody has accepted yet."""
    asked = select.poll()
    asked.register(listening, select.POLLIN)
    return bool(asked.poll(0))
