"""The server as a child of `penstock up`: settings come through standard input, and its end is the end of the parent.

Settings are pickled by the parent, which is this same program; they hold passwords, so they go through no file.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from typing import Any

from penstock.cli.recovering import line, relax_collector
from penstock.errors import PenstockError


def main() -> int:
    """Serve until told to stop; the exit status of the error that ended it, if one did."""
    settings, ready_file = read_parcel(sys.stdin.buffer.fileno())
    threading.Thread(target=_watch, daemon=True).start()
    relax_collector()
    try:
        from penstock.server.launching import serve  # heavy, and what goes wrong in it is told below

        serve(settings, ready_file=ready_file, show=line())
    except PenstockError as error:
        sys.stderr.write(f"penstock: {error}\n")
        return error.exit_status
    return 0


def parcel(settings: object, ready_file: str) -> bytes:
    """What a child reads: a length of 8 bytes, big-endian, and the pickle."""
    data = pickle.dumps((settings, ready_file))
    return len(data).to_bytes(8, "big") + data


def read_parcel(descriptor: int) -> tuple[Any, str]:
    """The inverse; reads no byte beyond it."""
    size = int.from_bytes(_read(descriptor, 8), "big")
    settings, ready_file = pickle.loads(_read(descriptor, size))
    return settings, str(ready_file)


def _read(descriptor: int, size: int) -> bytes:
    out = b""
    while len(out) < size:
        piece = os.read(descriptor, size - len(out))
        if not piece:
            raise EOFError("the parent is gone")
        out += piece
    return out


def _watch() -> None:
    """The parent is gone when our standard input ends: stop as if told to."""
    while os.read(sys.stdin.buffer.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
