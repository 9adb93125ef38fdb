"""The bulk process itself: `python -m penstock.server.bulk.child FD FOLDER MEMORY NICENESS BUDGET`.

It reads what the server lists and runs the jobs that the server names, each request in a thread of its own.  It has no
door, no user and no lock.  It ends when its control socket does, in the middle of whatever it does: the server is gone
then, or wants it so.  What a job writes must therefore stand a kill at any byte, as everything in a data folder must.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.errors import DiskFull, PenstockError, Unavailable
from penstock.server.base.loading import beside_a_server, do_without_pandas, with_all_files

if TYPE_CHECKING:
    from penstock.server.doors.line import Line

logger = logging.getLogger("penstock.bulk")

FDS_MAX = 16
PROGRESS_S = 0.05
"""How often a job tells how far it is; then it also learns that nobody waits any more."""

STACK = 1 << 20
"""Bytes of a thread's stack: they count as memory."""

HOLES = 4 << 20
"""Bytes by which the process may have grown after a request before free memory goes back to the system."""


def main() -> None:
    """Serve requests until the server closes the control socket; never returns."""
    control, folder = int(sys.argv[1]), sys.argv[2]
    memory, niceness, budget = map(int, sys.argv[3:])
    beside_a_server()
    os.nice(niceness)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with_all_files()
    do_without_pandas()
    threading.stack_size(STACK)
    sock = socket.socket(fileno=control)
    work: Work | None = None
    while True:
        message, fds, _, _ = socket.recv_fds(sock, 1, FDS_MAX)
        if not message:
            os._exit(0)
        if work is None:
            from penstock.server.base.allocator import keep_close  # pyarrow comes with it

            keep_close(budget)  # before there are threads
            work = Work(folder)
        for fd in fds:
            threading.Thread(target=work.serve, args=(socket.socket(fileno=fd),), daemon=True).start()


class Work:
    """All requests of this process."""

    def __init__(self, folder: str) -> None:
        from penstock.history.view import Folder
        from penstock.log.disk import OsDisk  # and with it: not before somebody asks for something
        from penstock.server.base.allocator import Tidy

        self.disk = OsDisk(folder)
        self.tidy = Tidy(HOLES)
        self.folder = Folder(self.disk)

    def serve(self, sock: socket.socket) -> None:
        """One request, whatever becomes of it."""
        from penstock.server.bulk import requests
        from penstock.server.doors.line import Ended, Kind, Line

        line = Line(sock)
        try:
            try:
                asked, values = requests.unpacked(line.receive(requests.ASKED).payload)
                line.send(Kind.WELCOME, 0)
                self._answer(line, asked, values)
            except (Ended, requests.GivenUp):
                raise
            except Exception as error:  # noqa: BLE001 - told to whoever asked, the other requests go on
                line.send(Kind.FAILED, 0, told(error))
        except (Ended, requests.GivenUp):
            pass  # nobody waits for it any more
        finally:
            line.close()
        if self.tidy.due():
            self.tidy.run()

    def _answer(self, line: Line, asked: dict[str, Any], values: dict[str, Any]) -> None:
        from penstock.history.view import Listing
        from penstock.server.bulk.requests import HOW_FAR, MOST, GivenUp, Request, do, packed, read
        from penstock.server.doors.line import Ended, Kind

        listed = values.pop("log", None)
        view = None if listed is None else self.folder.view(Listing.of(listed))

        told_at = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal told_at
            now = time.monotonic()
            if now - told_at >= PROGRESS_S:
                told_at = now
                try:
                    line.send(Kind.CONTROL, 0, HOW_FAR.pack(done, total))
                except Ended:
                    raise GivenUp from None

        request = Request(self.disk, view, line.gone, progress, most=int(asked.get("most", MOST)))
        if "job" in asked:
            line.send(Kind.DONE, 0, *packed({}, do(request, asked["job"], values)))
            return
        from penstock.history.history import cut  # no job needs what comes with it

        schema, batches = read(request, asked["read"], values)
        line.send(Kind.SCHEMA, 0, schema.serialize())
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            for piece in cut(batch, request.most):
                line.send(Kind.BATCH, 0, piece.serialize())
        if not request.gone():
            line.send(Kind.DONE, 0, *packed({}, {"rows": rows, **request.notes}))


def told(error: Exception) -> bytes:
    """The payload of FAILED."""
    import orjson

    from penstock.history.view import Moved
    from penstock.log.room import out_of_space
    from penstock.wire.flight.failures import encode_error

    if isinstance(error, Moved):
        return orjson.dumps({"moved": str(error)})
    if isinstance(error, MemoryError):
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20
        error = Unavailable(f"the bulk process has not enough memory for this request (its limit is {limit} MiB)")
    if isinstance(error, OSError):  # a disk's word and no mistake of ours, as upkeep in the server itself takes it
        error = (DiskFull if out_of_space(error) else Unavailable)(f"the bulk process cannot go on: {error}")
    if not isinstance(error, PenstockError):
        logger.error("a bulk request failed", exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        error = PenstockError(f"the bulk process failed: {reason[:300]}")
    return encode_error(error)[1]


if __name__ == "__main__":
    main()
