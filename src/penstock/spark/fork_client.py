"""What Spark takes for Python where processes are forked: `python -IS fork_client.py SOCKET ARGUMENTS`.

It hands its streams, its folder and its environment over to the process at the socket (`fork_server`), which forks one
that runs the arguments, and ends as that one does.  Where nobody forks, or what is asked for is not forked, it becomes
the usual Python.  Whoever ends it ends what was forked for it: its end of the socket closes.

It runs once for each process, so it takes of Python what costs nothing to load.
"""

from __future__ import annotations

import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SO_SNDBUF, SOCK_SEQPACKET, SOL_SOCKET, socket

MOST = 1 << 19
"""Bytes of a request, and more than it may have."""

BEGUN, REFUSED = b"1", b"0"

LOST = (
    b"penstock: the process that Spark's Python processes were forked from has ended: "
    b"each loads by itself what it takes from now on\n"
)


def request(arguments: list[str]) -> bytes:
    """What is asked for: how many arguments, they, and the environment."""
    given = [b"%s=%s" % one for one in os.environb.items()]
    return b"\0".join([b"%d" % len(arguments), *map(os.fsencode, arguments), *given])


def asked(path: str, wanted: bytes) -> socket:
    """The socket where the end is told.  OSError where nobody forks."""
    folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
    server = socket(AF_UNIX, SOCK_SEQPACKET)
    server.setsockopt(SOL_SOCKET, SO_SNDBUF, MOST)
    server.connect(path)
    streams = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2, folder))
    server.sendmsg([wanted], [(SOL_SOCKET, SCM_RIGHTS, streams)])
    os.close(folder)
    return server


def say_once(path: str) -> None:
    """That it is so, by the first process of those that find out."""
    try:
        os.close(os.open(f"{path}.lost", os.O_CREAT | os.O_EXCL))
    except OSError:
        return
    os.write(2, LOST)


def main() -> None:
    """Ask, and end as what was forked ends."""
    path, *arguments = sys.argv[1:]
    wanted, said, server = request(arguments), REFUSED, None
    if len(wanted) < MOST:
        try:
            server = asked(path, wanted)
            said = server.recv(1)
        except FileNotFoundError:
            pass  # the session is over
        except OSError:
            said = b""
    if server is None or said != BEGUN:
        if not said:
            say_once(path)
        os.execv(sys.executable, [sys.executable, *arguments])
    os.closerange(0, 3)  # they are the other one's
    told = server.recv(4)
    status = int.from_bytes(told, "big", signed=True) if told else 1
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
