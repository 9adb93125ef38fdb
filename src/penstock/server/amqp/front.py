"""The process of an AMQP door: `python -m penstock.server.amqp.front CONTROL LINES MEMORY`.

It listens beside other doors at the same address (SO_REUSEPORT), takes clients with TLS or without, and hosts them
(`hosting`); what they want goes to the core over one socket (`way`).  It has no rights, no queue and no log.  It ends
when its control socket or that way does, in the middle of whatever it does: its clients are cut off with it.

    control   begin: what to offer, the way to the core begins      listen: bind and listen, take nobody yet
              open: take clients                                    renew: another certificate
              ping: figures, from the loop                          close: no new clients, those there may end
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import orjson

from penstock.server.amqp.hosting import Host
from penstock.server.amqp.links import AmqpLink, TlsLink, WayLink
from penstock.server.doors.line import Broken, Ended, Kind, Line, plain
from penstock.server.listening import Entry, Listener, bind
from penstock.server.rounds import Pulse
from penstock.server.strangers import Complaints, Guards, Terms
from penstock.wire.amqp.frames import Limits

if TYPE_CHECKING:
    from penstock.server.tls import Identity

logger = logging.getLogger("penstock.amqp")

CONTROL = {Kind.CONTROL: 4 << 20}

WORKERS = 2
"""Threads that make digests of passwords; each takes 19 MiB meanwhile."""

BEAT_S = 1.0
LOOK_S = 0.01


def mono() -> int:
    """Microseconds that never go back."""
    return time.monotonic_ns() // 1000


class Front:
    """The door.  `run` belongs to its loop, what comes on the control socket to a thread."""

    def __init__(self, control: socket.socket, lines: socket.socket, pulse: Pulse) -> None:
        self._control = Line(control)
        self._lines = lines
        self._pulse = pulse
        self._loop: asyncio.AbstractEventLoop
        self._host: Host | None = None
        self._entry: Entry | None = None
        self._way: WayLink | None = None
        self._bound = dict[str, list[socket.socket]]()
        self._listeners = list[Listener]()
        self._context: ssl.SSLContext | None = None
        self._over = asyncio.Event()
        self._pool: ThreadPoolExecutor | None = None
        self._tasks = set[asyncio.Task[None]]()
        self._beat: asyncio.TimerHandle | None = None
        self._one = asyncio.Lock()  # what is asked is done in its order

    async def run(self) -> None:
        """Until the core closes one of the sockets."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen_to_core, name="penstock-control", daemon=True).start()
        await self._over.wait()
        if self._beat is not None:
            self._beat.cancel()
        for listener in self._listeners:
            listener.close()
        for some in self._bound.values():
            for sock in some:
                sock.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        if self._host is not None:
            self._host.end()
        if self._way is not None:
            self._way.transport.abort()
        self._control.close()
        self._lines.close()

    def _listen_to_core(self) -> None:
        """The thread."""
        try:
            while True:
                told = plain(self._control.receive(CONTROL).payload)
                self._loop.call_soon_threadsafe(self._asked, told)
        except (Ended, Broken):
            try:
                self._loop.call_soon_threadsafe(self._over.set)
            except RuntimeError:
                pass  # the loop is closed already

    def _asked(self, told: Mapping[str, Any]) -> None:
        task = self._loop.create_task(self._answer(told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, told: Mapping[str, Any]) -> None:
        if told["do"] == "ping":
            self._tell(self._figures())
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
                        self._over.set()  # the core is gone already
                case "listen":
                    answer["port"] = self._listen(told)
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
            if told.get("again"):
                logger.error("amqp: the address %s:%s cannot be taken again: %s", told["host"], told["port"], error)
        if told.get("number") is not None:
            self._tell({**answer, "number": told["number"]})

    def _tell(self, told: dict[str, object]) -> None:
        try:
            self._control.send(Kind.CONTROL, 0, orjson.dumps(told))
        except Ended:
            pass  # whoever receives sees it, too

    async def _begin(self, told: Mapping[str, Any]) -> None:
        loop = self._loop
        terms = Terms(**told["strangers"])
        guards = Guards(terms, Complaints(loop.time, loop.call_later), loop.time, loop.call_later)
        self._entry = Entry(guards, loop.time)
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._lines, [b"+"], [theirs.fileno()])
        ours.setblocking(False)

        def write(data: bytes) -> None:
            way.transport.write(data)

        host = self._host = Host(
            Limits(**told["limits"]),
            version=told["version"],
            external=told["external"],
            write=write,
            mono=mono,
            at_round_end=self._pulse.at_round_end(loop),
            off=self._off,
        )
        way = WayLink(host.receive, self._over.set, lambda _: None)
        await loop.create_connection(lambda: way, sock=ours)
        self._way = way
        self._beats()

    def _off(self, work: Callable[[], bytes], then: Callable[[bytes], None]) -> None:
        """What takes long, by a thread of few."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(WORKERS, "penstock-login")

        def made(done: asyncio.Future[bytes]) -> None:
            if not done.cancelled():
                then(done.result())

        self._loop.run_in_executor(self._pool, work).add_done_callback(made)

    def _beats(self) -> None:
        self._beat = self._loop.call_later(BEAT_S, self._beats)
        if self._host is not None:
            self._host.beat()

    def _listen(self, told: Mapping[str, Any]) -> int:
        if told.get("tls") is not None:
            self._context = context_of(told["tls"])
        bound = bind(told["host"], told["port"], shared=True)
        self._bound[told["door"]] = bound
        return int(bound[0].getsockname()[1])

    def _open(self) -> None:
        host, entry, bound = self._host, self._entry, self._bound
        if host is None or entry is None:
            return
        self._bound = {}
        for name, sockets in bound.items():
            if name == "amqps":
                shown = cast("Callable[[], Identity]", lambda: SimpleNamespace(context=self._context))
                listener = entry.listener(name, partial(TlsLink, host.connect), shown)
            else:
                listener = entry.listener(name, partial(AmqpLink, host.connect))
            self._listeners.append(listener)
            listener.open(sockets)

    async def _close(self, patience_s: float) -> bool:
        """Take nobody any more; whether all clients have been told that it is over, in time."""
        for listener in self._listeners:
            listener.close()
        until, host = self._loop.time() + patience_s, self._host
        while host is not None and host.owes and self._loop.time() < until:  # noqa: ASYNC110 - once in a door's life
            await asyncio.sleep(LOOK_S)
        return host is None or not host.owes

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


def run(control: socket.socket, lines: socket.socket) -> None:
    """The door in a thread of the server's own process."""
    pulse = Pulse()
    with asyncio.Runner(loop_factory=pulse.new_loop) as runner:
        runner.run(Front(control, lines, pulse).run())


def main() -> None:
    """The door as a process; never returns."""
    control, lines = (socket.socket(fileno=int(one)) for one in sys.argv[1:3])
    _, memory = orjson.loads(sys.argv[3])
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # they reach the server too, and its end is ours
    bound(memory)
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    run(control, lines)
    os._exit(0)


def bound(memory: int) -> None:
    """Bytes that this process may allocate."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


if __name__ == "__main__":
    main()
