"""The process of the Flight door: `python -m penstock.server.flight.front CONTROL LINES MEMORY`.

pyarrow's server stands here with one thread a call.  It reads what clients send, decompresses it, judges it, and hands
it to the server as flat columns on a line (`server.doors.line`); what the server answers it writes to the client.  It
has no rights, no queue and no log, and decides nothing: who may do what, the server says for each call.  It ends when
its control socket does, in the middle of whatever it does.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import gc
import logging
import mmap
import os
import socket
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.server.base import allocator
from penstock.server.base.loading import UNGUARDED, begun_as_a_door, do_without_pandas, with_bounded_pool
from penstock.server.doors.line import Broken, Ended, Kind, Line, Lines, plain
from penstock.server.flight.crowding import SWITCH_S, with_small_stacks, with_threads_of_arrow

if TYPE_CHECKING:
    from penstock.server.flight.grpc_server import Server

logger = logging.getLogger("penstock.flight")

CONTROL = {Kind.CONTROL: 4 << 20}
UNBOUNDED = "Arrow was loaded with another memory pool: what Flight's clients compress has no bound here"

LEFT_MOST = 10_000
"""Addresses that are told at a time."""

SPARE = 8 << 20
SHORT_MOST = 2
"""Bytes that there must be room for, and how often it is seen that there is none before the process ends: calls fail
one by one when memory is short for a moment, and all of them when it stays so."""


class Front:
    """What the server tells the door, and the door the server, beside the calls.  `run` has a thread of its own."""

    def __init__(
        self, control: socket.socket, lines: socket.socket, warning: str | None = None, *, alone: bool = False
    ) -> None:
        """warning: what the operator should know of this process.  alone: it is a door and nothing else."""
        self._alone = alone
        self._warning = warning
        self._control = Line(control)
        self._lines = Lines(lines)
        self._server: Server | None = None
        self._short = 0  # looks in a row that found no room
        self._heap = allocator.Tidy(allocator.HOLES, insists=True)

    def run(self) -> None:
        """Until the server closes the socket."""
        try:
            while True:
                told = plain(self._control.receive(CONTROL).payload)
                if told["do"] in ("listen", "renew", "close"):  # these may wait for a port, or for calls
                    threading.Thread(target=self._answer, args=(told,), name="penstock-asked", daemon=True).start()
                elif told["do"] == "ping":
                    self._pong()
                else:
                    self._begin(told)
        except (Ended, Broken):
            pass
        finally:
            if self._server is not None:
                self._server.close(0.0)
            self._lines.close()
            self._control.close()

    def _begin(self, told: Mapping[str, Any]) -> None:
        from penstock.server.flight.connections import Strangers
        from penstock.server.flight.grpc_server import Server
        from penstock.wire.flight.received import Bounds

        if self._warning is not None:
            self._control.tell({"warning": self._warning})
        strangers, bounds = Strangers(**told["strangers"]), Bounds(**told["bounds"])
        self._server = Server(self._lines, strangers, bounds, self._left, alone=self._alone)
        if self._alone:
            gc.freeze()  # a look at all that was imported stops every call for 50 ms, and a flood is noticed too late

    def _answer(self, told: Mapping[str, Any]) -> None:
        server = self._server
        assert server is not None
        answer: dict[str, object] = {"number": told.get("number")}
        try:
            if told["do"] == "listen":
                answer["port"] = server.listen(
                    told["door"], told["host"], told["port"], told.get("tls"), again=bool(told.get("again"))
                )
            elif told["do"] == "renew":
                server.renew(told["tls"])
            else:
                answer["all"] = server.close(told["timeout"])
        except OSError as error:
            answer["why"] = error.strerror or str(error)
            if told.get("again"):
                logger.error("flight: the address %s:%s cannot be taken again: %s", told["host"], told["port"], error)
        if told.get("number") is not None:
            self._control.tell(answer)

    def _pong(self) -> None:
        self._short = 0 if _has_room() else self._short + 1
        if self._short >= SHORT_MOST and self._alone:
            os.write(2, b"the flight door has no memory left\n")
            os._exit(UNGUARDED)
        self._lines.tidy()
        answer: dict[str, object] = {"alive": True}
        if self._server is not None:
            there, closed = self._server.strangers()
            answer = {"strangers": there, "closed": {f"{door} {why}": n for (door, why), n in closed.items()}}
        self._control.tell(answer)
        if self._alone and self._heap.due():
            self._heap.run()

    def _left(self, peers: list[tuple[str, int]]) -> None:
        for at in range(0, len(peers), LEFT_MOST):
            self._control.tell({"left": peers[at : at + LEFT_MOST]})


def run(control: socket.socket, lines: socket.socket) -> None:
    """The door in a thread of the server's own process."""
    Front(control, lines).run()


BEHIND = 3
"""How far (nice(2)) the door stands behind the server and the other doors.  Its threads are gRPC's, as many as
strangers keep busy before they log in, and each counts for the scheduler as much as the server's one."""


def main() -> None:
    """The door as a process; never returns."""
    control, lines, decoded = begun_as_a_door()
    os.nice(BEHIND)
    with_small_stacks()
    sys.setswitchinterval(SWITCH_S)
    do_without_pandas()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with_bounded_pool(decoded)
    allocator.keep_close(decoded)
    with_threads_of_arrow()
    try:
        Front(control, lines, None if allocator.flight_is_bounded(decoded) else UNBOUNDED, alone=True).run()
    except MemoryError:
        os._exit(UNGUARDED)
    os._exit(0)


def _has_room() -> bool:
    try:
        mmap.mmap(-1, SPARE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()  # what is shared does not count
    except (OSError, MemoryError):
        return False
    return True


if __name__ == "__main__":
    main()
