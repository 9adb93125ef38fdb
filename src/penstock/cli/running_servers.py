"""Servers of this machine that run, as Linux tells of them: who holds the lock of a data folder, and who listens where.

Nothing is asked of a server, and no lock is touched.  Of processes of other users little is to be seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.log.disk import LOCK_NAME

MEMBER = b"penstock.server.cluster.process"


def serving_process(folder: Path) -> int | None:
    """The server of a data folder, whose lock it holds, or its member's process while it follows."""
    holder = lock_holder(folder)
    with suppress(OSError):
        if MEMBER in Path(f"/proc/{holder}/cmdline").read_bytes():
            return int(Path(f"/proc/{holder}/stat").read_text().rpartition(")")[2].split()[1])
    return holder


def lock_holder(folder: Path) -> int | None:
    """The process that holds the lock of a data folder, as Linux tells; the lock is not touched."""
    try:
        inode, holder = (folder / LOCK_NAME).stat().st_ino, (folder / LOCK_NAME).read_text().strip()
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 6514 fe:00:12345 0 EOF
    held = any("FLOCK" in lock and lock[-4] == holder and lock[-3].endswith(f":{inode}") for lock in locks)
    return int(holder) if held else None


def listens(process: int, number: int) -> bool:
    """Whether a process, or one that it has started, listens on this TCP port, as far as Linux lets us see."""
    rows = list[list[str]]()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows += [line.split() for line in Path(table).read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == number}
    unseen = not os.access(f"/proc/{process}/fd", os.R_OK)  # another user's: somebody listens, and it may be this one
    return bool(sockets) and (unseen or any(sockets & _open_in(one) for one in (process, *children(process))))


def children(process: int, module: bytes = b"penstock.server.") -> Iterator[int]:
    """Those that are parts of a server, as Flight's door is."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            child = int(stat.read_text().rpartition(")")[2].split()[1]) == process
            if child and module in (stat.parent / "cmdline").read_bytes():
                yield int(stat.parent.name)


def serving_elsewhere(ports: Sequence[int]) -> tuple[int, Path] | None:
    """The server that listens on all of these TCP ports, and its data folder, whichever its start was told.

    So it is the server of the settings that name them, where these name another folder, or that from elsewhere.
    """
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))) if ports else ():
        for name in _open_in(process):
            server = serving_process(Path(name).parent) if name.endswith(f"/{LOCK_NAME}") else None
            if server is not None and all(listens(server, port) for port in ports):
                return server, Path(name).parent
    return None


def _open_in(process: int) -> set[str]:
    found = set[str]()
    with suppress(OSError):
        for fd in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile, as the one that lists them
                found.add(str(fd.readlink()))
    return found
