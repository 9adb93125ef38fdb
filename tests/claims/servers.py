"""Servers and commands of a test that is asked over a change: forked from its process, which has the change in it."""

from __future__ import annotations

import os
import socket
import sys

import forked


class _Process:
    """What a `Nursery` asks of the process that forks."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """None while it runs."""
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class _Ours(forked.Nursery):
    """A copy of this process that forks when asked."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, forked.MOST)
        self.owner = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.socket.close()
            _fork_until_the_end(theirs)
        theirs.close()
        self.process = _Process(pid)  # type: ignore[assignment]  # a process made by fork has no Popen


def fork_from_here() -> None:
    """Servers and commands that this process starts from now on are forked from what it is now.  It has no threads."""
    forked.LOADED_AT_START = tuple(name for name in forked.LOADED_AT_START if name != "PENSTOCK_CLAIMS")
    forked.Nursery._made = _Ours()  # instead of one that loads the product as it is


def _fork_until_the_end(control: socket.socket) -> None:
    """Ends this process, and each that is forked from it."""
    code = 0
    try:
        command = forked.serve({control: forked.of_the_owner})
        if command is not None:
            forked.with_other_memory(command)
            forked.run(command)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  # told where the interpreter would tell it
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
