"""The doors of AMQP that are processes, as the server keeps them: addresses, sockets, figures, their ends.

The server binds each address itself and does not listen there: whoever else wants it is told at once that it is taken.
The doors listen beside each other (SO_REUSEPORT), and the kernel spreads clients over them.  Each door has a socket to
the server's loop (`doorway`).  A door that ends takes its clients with it and no other's; another one begins.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import Unavailable
from penstock.server.amqp.doorway import Doorway
from penstock.server.amqp.links import WayLink
from penstock.server.doors.door_process import DoorProcess
from penstock.server.doors.line import Broken, number
from penstock.server.listening import bind
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.server.amqp.door import AmqpDoor
    from penstock.server.doors.line import Line
    from penstock.server.strangers import Terms
    from penstock.server.tls import Identity
    from penstock.wire.amqp.frames import Limits

MODULE = "penstock.server.amqp.front"

MEMORY_LEAST = 256 << 20
"""Bytes that a door's process may have beside the server's budget, which counts the bodies begun at all doors."""

FIGURES_MOST = 64

CLOSE_S = 1.0
"""For clients to take the last word."""


class Doors:
    """All of one server.  For the loop's thread, where nothing else is said."""

    def __init__(
        self,
        count: int,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        terms: Terms,
        *,
        memory: int,
        external: bool,
        apart: bool = True,
    ) -> None:
        """terms: of strangers, for all doors together.  memory: the server's.  apart=False: threads, for tests."""
        self._loop = loop
        self._door: AmqpDoor | None = None
        self._early = list[tuple[int, socket.socket, threading.Event]]()  # ways that began before the door was there
        self._guards = list[socket.socket]()
        self._strangers = dict[str, dict[str, int]]()  # by door, then by listener
        self._closed = dict[str, Counter[tuple[str, str]]]()
        self._tls = list[dict[str, object]]()
        self._ended = threading.Event()
        self._tasks = set[asyncio.Task[object]]()
        strangers = asdict(terms)
        strangers["sockets"] = max(8, terms.sockets // count)
        begin = {
            "limits": asdict(limits), "version": __version__, "external": external, "strangers": strangers,
        }  # fmt: skip
        self.processes = [
            DoorProcess(
                f"amqp-{place}" if count > 1 else "amqp",
                MODULE,
                begin,
                partial(self._serve, place),
                heard=partial(self._heard, str(place)),
                lost=partial(self._lost, str(place)),
                memory=[0, MEMORY_LEAST + memory],
                apart=apart,
            )
            for place in range(1, count + 1)
        ]

    # -- a thread may do this

    def listen(self, host: str, port: int, identity: Identity | None = None) -> tuple[str, int]:
        """Have all doors listen, and take nobody yet; the address that was bound.  Raises OSError."""
        if port:  # nobody is there, not even who would share it
            for sock in bind(host, port, listens=False):
                sock.close()
        guards = bind(host, port, shared=True, listens=False)
        self._guards += guards
        address, port = guards[0].getsockname()[:2]
        wish: dict[str, object] = {"do": "listen", "door": "amqp", "host": host, "port": int(port)}
        if identity is not None:
            wish |= {"door": "amqps", "tls": _shown(identity)}
            self._tls.append(wish)
        for process in self.processes:
            process.start()
        for process in self.processes:
            answer = _ask(process, wish)
            if "why" in answer:
                raise OSError(0, str(answer["why"])[:1000])
        wish["again"] = True
        for process in self.processes:
            process.keep_asking(wish)
        return str(address), int(port)

    def renew(self, identity: Identity) -> None:
        """Show another certificate from now on."""
        for wish in self._tls:
            wish["tls"] = _shown(identity)
            for process in self.processes:
                try:
                    process.ask({"do": "renew", "tls": wish["tls"]})
                except Unavailable:
                    pass  # the next one is asked to listen with it

    def close(self, timeout: float = CLOSE_S) -> None:
        """Clients that have been told go, then the doors do."""
        closing = [threading.Thread(target=one.close, args=(timeout,)) for one in self.processes]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        self._ended.set()
        for sock in self._guards:
            sock.close()

    # -- the loop

    def open(self, door: AmqpDoor) -> None:
        """Take clients from now on; their sessions are this door's."""
        self._door = door
        early, self._early = self._early, []
        for place, sock, over in early:
            self._attach(place, sock, over)
        for process in self.processes:
            process.keep_asking({"do": "open"})
        threading.Thread(target=self._open, name="penstock-amqp-open", daemon=True).start()

    def _open(self) -> None:
        for process in self.processes:
            try:
                process.ask({"do": "open"})
            except Unavailable:
                pass  # the next one is asked, too

    def there(self) -> dict[str, int]:
        """How many have not logged in, by door."""
        found = Counter[str]()
        for some in list(self._strangers.values()):
            found.update(some)
        return dict(found)

    @property
    def closed(self) -> dict[tuple[str, str], int]:
        """How many of these were sent away, by door and reason."""
        found = Counter[tuple[str, str]]()
        for some in list(self._closed.values()):
            found.update(some)
        return dict(found)

    # -- the threads of a door

    def _serve(self, place: int, line: Line) -> None:
        """A way to the loop, until it ends."""
        over = threading.Event()
        self._loop.call_soon_threadsafe(self._attach, place, line.sock.dup(), over)
        while not over.wait(1.0):
            if self._ended.is_set():
                return

    def _heard(self, name: str, told: Mapping[str, Any]) -> None:
        if "strangers" in told:
            closed = Counter[tuple[str, str]]()
            for what, count in _counts(told.get("closed")).items():
                door, _, why = what.partition(" ")
                closed[door, why] = count
            self._strangers[name], self._closed[name] = _counts(told["strangers"]), closed

    def _lost(self, name: str) -> None:
        self._strangers.pop(name, None)

    # -- ways

    def _attach(self, place: int, sock: socket.socket, over: threading.Event) -> None:
        if self._door is None:
            self._early.append((place, sock, over))
            return
        door = self._door

        def receive(data: bytes) -> None:
            try:
                doorway.receive(data)
            except Broken as broken:
                self.processes[place - 1].cut_off(str(broken))
                doorway.lost()
                way.transport.abort()

        def lost() -> None:
            doorway.lost()
            over.set()

        def writable(does: bool) -> None:
            if does:
                doorway.resume_writing()
            else:
                doorway.pause_writing()

        way = WayLink(receive, lost, writable)
        doorway = Doorway(door, lambda data: way.transport.write(data), lambda: way.transport.get_write_buffer_size())
        sock.setblocking(False)
        task = self._loop.create_task(cast("Any", self._loop.create_connection(lambda: way, sock=sock)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _ask(process: DoorProcess, wish: dict[str, object]) -> Mapping[str, Any]:
    try:
        return process.ask(wish)
    except Unavailable as error:
        raise OSError(0, str(error)) from None


def _counts(told: object) -> dict[str, int]:
    """Numbers by name.  Broken for anything else."""
    if not isinstance(told, dict):
        raise Broken("figures that are none")
    some = cast("dict[str, Any]", told)
    return {name: number(some, name) for name in islice(some, FIGURES_MOST)}


def _shown(identity: Identity) -> dict[str, object]:
    """What a door shows over TLS, and whom it insists on."""
    context = identity.context
    ca = None if identity.ca_pem is None or context.verify_mode is ssl.CERT_NONE else identity.ca_pem.decode()
    return {
        "chain": identity.chain_pem.decode(), "key": identity.key_pem.decode(), "ca": ca,
        "least": int(context.minimum_version), "verify": int(context.verify_mode),
    }  # fmt: skip
