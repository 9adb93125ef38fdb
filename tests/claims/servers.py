"""Servers and commands of a test that is asked over a change: forked from its process, which has the change in it."""

from __future__ import annotations

import os
import socket
import sys

import forked
import forking


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
        self.address = f"\0penstock-claims-{os.getpid()}-{os.urandom(6).hex()}"
        self.owner = os.getpid()
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.address)
            listener.listen(128)
            pid = os.fork()
            if pid == 0:
                self.socket.close()
                _fork_until_the_end(theirs, listener)
        self.process = _Process(pid)  # type: ignore[assignment]  # a process made by fork has no Popen


def fork_from_here() -> None:
    """Servers and commands that this process starts from now on are forked from what it is now.  It has no threads."""
    forked.LOADED_AT_START = tuple(name for name in forked.LOADED_AT_START if name != "PENSTOCK_CLAIMS")
    forked.Nursery._made = _Ours()  # instead of one that loads the product as it is


def _fork_until_the_end(control: socket.socket, listener: socket.socket) -> None:
    """Ends this process, and each that is forked from it."""
    code = 0
    try:
        request = forking.serve({control: forking.of_the_owner, listener: forking.of_a_visitor})
        if request is not None:
            forking.with_other_memory(request["command"])
            forking.run(request["command"], request["owner"])
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
