"""What a server and its member's process tell each other: packets of a letter and what belongs to it.

    server -> W written, Y synced, M moves, B booted, H hand over, X broken     (see `leading`)
              K a file beside the log counts, D it counts no longer, A a term that somebody has made
    server <- T take over, C committed, F files are everywhere, L may lead until, E end, P what is known, for people

A server that waits for its turn loads this and no more of its member.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

LOST = 6
"""Exit status of a process that may not lead any more."""

ONE, TWO, THREE = struct.Struct("<q"), struct.Struct("<2q"), struct.Struct("<3q")


def boottime() -> int:
    """Microseconds on the clock that counts on while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def packets(sock: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    """What has come on a socket that does not block: kind and content, both empty where the other side has gone."""
    while True:
        try:
            packet = sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        yield packet[:1], packet[1:]
        if not packet:
            return
