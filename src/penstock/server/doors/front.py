"""A door's process that is an event loop, but for what it does with its clients: sockets, guards, the control socket.

    control   begin: what to offer                                  listen: at sockets that come, too; take nobody yet
              open: take clients                                    renew: another certificate
              ping: figures, from the loop                          close: no new clients, those there may end

It ends when its control socket does, in the middle of whatever it does: its clients are cut off with it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from penstock.server.base.allocator import HOLES, Tidy
from penstock.server.base.loading import begun_as_a_door
from penstock.server.doors.line import Broken, Ended, Kind, Line, plain
from penstock.server.sockets.listening import Entry, Listener
from penstock.server.sockets.strangers import Complaints, Guards, Terms

if TYPE_CHECKING:
    from penstock.server.sockets.tls import Identity

CONTROL = {Kind.CONTROL: 4 << 20}

LOOK_S = 0.01

WORKERS = 2
"""Threads that make digests of passwords; each takes 19 MiB meanwhile."""

Identities = Callable[[], "Identity"]


class Front(ABC):
    """A door.  `run` belongs to its loop, what comes on the control socket to a thread."""

    def __init__(self, control: socket.socket, lines: socket.socket) -> None:
        self.lines = lines
        self.loop: asyncio.AbstractEventLoop
        self.over = asyncio.Event()
        self._control = Line(control)
        self._entry: Entry | None = None
        self._bound = dict[str, list[socket.socket]]()
        self._listeners = list[Listener]()
        self._context: ssl.SSLContext | None = None
        self._tasks = set[asyncio.Task[None]]()
        self._one = asyncio.Lock()  # what is asked is done in its order
        self._pool: ThreadPoolExecutor | None = None

    # -- what each door does its own way

    @abstractmethod
    async def begin(self, told: Mapping[str, Any]) -> None:
        """Be ready for clients.  OSError when the core is gone already."""

    @abstractmethod
    def listener(self, entry: Entry, name: str, identity: Identities | None) -> Listener:
        """What takes clients at the address of this name.  identity: what TLS shows, where there is TLS."""

    @property
    @abstractmethod
    def owes(self) -> bool:
        """Whether some client has not been told yet that it is over."""

    @abstractmethod
    def end(self) -> None:
        """Nothing is served any more."""

    # -- what all of them do

    async def run(self) -> None:
        """Until the core closes the control socket, or `over` is set."""
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(_failed)
        threading.Thread(target=self._listen_to_core, name="penstock-control", daemon=True).start()
        await self.over.wait()
        for listener in self._listeners:
            listener.close()
        for some in self._bound.values():
            for sock in some:
                sock.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self.end()
        self._control.close()
        self.lines.close()

    def off(self, work: Callable[[], bytes]) -> asyncio.Future[bytes]:
        """What takes long, by a thread of few."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(WORKERS, "penstock-login")
        return self.loop.run_in_executor(self._pool, work)

    def _listen_to_core(self) -> None:
        """The thread."""
        heap = Tidy(HOLES, insists=True)
        try:
            while True:
                told = plain(self._control.receive(CONTROL).payload)
                self.loop.call_soon_threadsafe(self._asked, told)
                if _alone and told["do"] == "ping" and heap.due():
                    heap.run()
        except (Ended, Broken):
            try:
                self.loop.call_soon_threadsafe(self.over.set)
            except RuntimeError:
                pass  # the loop is closed already

    def _asked(self, told: Mapping[str, Any]) -> None:
        task = self.loop.create_task(self._answer(told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, told: Mapping[str, Any]) -> None:
        if told["do"] == "ping":
            self._control.tell(self._figures())
            return
        async with self._one:
            await self._do(told)

    async def _do(self, told: Mapping[str, Any]) -> None:
        answer: dict[str, object] = {}
        try:
            match told["do"]:
                case "begin":
                    try:
                        await self._begin(told)
                    except OSError:
                        self.over.set()  # the core is gone already
                case "listen":
                    self._listen(told)
                case "open":
                    self._open()
                case "renew":
                    self._context = context_of(told["tls"])
                case "close":
                    answer["all"] = await self._close(told["timeout"])
                case _:
                    return
        except OSError as error:
            answer = {"why": error.strerror or str(error)}
        if told.get("number") is not None:
            self._control.tell({**answer, "number": told["number"]})

    async def _begin(self, told: Mapping[str, Any]) -> None:
        loop = self.loop
        terms = Terms(**told["strangers"])
        guards = Guards(terms, Complaints(loop.call_later), loop.time, loop.call_later)
        self._entry = Entry(guards, loop.time)
        await self.begin(told)

    def _listen(self, told: Mapping[str, Any]) -> None:
        if told.get("tls") is not None:
            self._context = context_of(told["tls"])
        _, fds, _, _ = socket.recv_fds(self.lines, 1, told["sockets"])
        self._bound[told["door"]] = [socket.socket(fileno=fd) for fd in fds]

    def _open(self) -> None:
        entry, bound = self._entry, self._bound
        if entry is None:
            return
        self._bound = {}
        shown = cast("Identities", lambda: SimpleNamespace(context=self._context))
        for name, sockets in bound.items():
            listener = self.listener(entry, name, shown if name.endswith("s") else None)
            self._listeners.append(listener)
            listener.open(sockets)

    async def _close(self, patience_s: float) -> bool:
        """Take nobody any more; whether all clients have been told that it is over, in time."""
        for listener in self._listeners:
            listener.close()
        until = self.loop.time() + patience_s
        while self.owes and self.loop.time() < until:  # noqa: ASYNC110 - once in a door's life
            await asyncio.sleep(LOOK_S)
        return not self.owes

    def _figures(self) -> dict[str, object]:
        if self._entry is None:
            return {"alive": True}
        guards = self._entry.guards.by_door
        return {
            "strangers": {name: len(guard) for name, guard in guards.items()},
            "closed": {f"{name} {why}": count for name, guard in guards.items() for why, count in guard.closed.items()},
            "exhausted": self._entry.exhausted,
        }


def context_of(told: Mapping[str, Any]) -> ssl.SSLContext:
    """What handshakes are made with; the core has found all of it good."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion(told["least"])
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    file = os.memfd_create("identity")
    try:
        os.write(file, told["chain"].encode() + b"\n" + told["key"].encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    if told["ca"] is not None:
        context.load_verify_locations(cadata=told["ca"])
    context.verify_mode = ssl.VerifyMode(told["verify"])
    return context


NO_MEMORY = 75
"""Status of a process that ended because it had none left."""

_alone = False  # this process is a door and nothing else


def end_without_memory() -> None:
    """A door without memory ends, and another one begins with all of it: who knows what this one has left half done.

    Where it is a thread of something else nothing happens.
    """
    if _alone:
        os.write(2, b"a door has no memory left\n")  # logging would take some
        os._exit(NO_MEMORY)


def _failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if isinstance(context.get("exception"), MemoryError):
        end_without_memory()
    loop.default_exception_handler(context)


def _unraisable(told: sys.UnraisableHookArgs) -> None:
    if isinstance(told.exc_value, MemoryError) or told.exc_type is MemoryError:
        end_without_memory()
    sys.__unraisablehook__(told)


def main(run: Callable[[socket.socket, socket.socket], None]) -> None:
    """A door as a process, by the arguments that `door_process.spawned` gives it; never returns."""
    control, lines, _ = begun_as_a_door()
    global _alone
    _alone = True
    sys.unraisablehook = _unraisable
    try:
        run(control, lines)
    except MemoryError:
        end_without_memory()
    os._exit(0)
