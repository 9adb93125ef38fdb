"""Doors that are processes with loops of their own, as the server keeps them: addresses, certificates, figures, ends.

The server binds each address itself, exclusively, and listens there: whoever else wants it is told at once that it is
taken.  Each door of a kind accepts at a socket of its own beside the others' (SO_REUSEPORT), and the kernel spreads
clients over them.  A door that ends takes its clients with it and no other's; another one begins, and accepts at the
same socket, where those wait who came meanwhile.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import Unavailable
from penstock.server.base.allowed import no_door
from penstock.server.doors.door_process import DoorProcess, Spawned, StrangerCounts
from penstock.server.sockets.listening import bind

if TYPE_CHECKING:
    from penstock.server.sockets.strangers import Terms
    from penstock.server.sockets.tls import Identity


ANOTHER_S = 15.0
"""For a door that does what it is asked for at the start: it may end, and another one has to load what it needs."""

LOOK_S = 0.05

CLOSE_S = 1.0
"""For clients to take the last word."""


class Doors(ABC):
    """All of one kind.  For the loop's thread, where nothing else is said."""

    def __init__(
        self,
        kind: str,
        module: str,
        begin: Mapping[str, object],
        terms: Terms,
        loop: asyncio.AbstractEventLoop,
        *,
        count: int = 1,
        memory: int,
        apart: bool = True,
        first: Spawned | None = None,
    ) -> None:
        """kind: what they are called, and with an `s` where they have TLS.  module: of the processes.

        begin: what each is told first.  terms: of strangers, for all doors together.  memory: bytes of each at most.
        apart=False: threads, for tests.  first: the process of one that was started before.
        """
        self.loop = loop
        self._kind = kind
        self._listening = list[socket.socket]()
        self.strangers = StrangerCounts()
        self._tls = list[dict[str, object]]()
        self._tasks = set[asyncio.Task[object]]()
        strangers = asdict(terms)
        strangers["sockets"] = max(8, terms.sockets // count)
        self.processes = [
            DoorProcess(
                f"{kind}-{place}" if count > 1 else kind,
                module,
                {**begin, "strangers": strangers},
                hand_over=partial(self._came, place),
                heard=partial(self._heard, str(place)),
                lost=partial(self._lost, str(place)),
                memory=[0, memory],
                apart=apart,
                first=first if place == 1 else None,
            )
            for place in range(1, count + 1)
        ]

    @abstractmethod
    def attach(self, place: int, sock: socket.socket) -> None:
        """A door has made a socket between it and the server; this is the server's end."""

    # -- a thread may do this

    def start(self) -> None:
        """Begin the processes; twice does no harm."""
        for process in self.processes:
            process.start()

    def listen(self, host: str, port: int, identity: Identity | None = None) -> tuple[str, int]:
        """Have all doors listen, and take nobody yet; the address that was bound.  Raises OSError."""
        shares = len(self.processes) > 1
        if shares and port:  # nobody is there, not even who would share it
            for sock in bind(host, port, listens=False):
                sock.close()
        listening = list[list[socket.socket]]()
        for _ in self.processes:
            listening.append(bind(host, port, shared=shares))
            self._listening += listening[-1]
            port = int(listening[0][0].getsockname()[1])
        wish: dict[str, object] = {"do": "listen", "door": self._kind, "sockets": len(listening[0])}
        if identity is not None:
            wish |= {"door": f"{self._kind}s", "tls": _shown(identity)}
            self._tls.append(wish)
        self.start()
        for process, sockets in zip(self.processes, listening, strict=True):
            answer = _ask(process, wish, sockets)
            if "why" in answer:
                raise OSError(0, str(answer["why"])[:1000])
            process.keep_asking(wish, sockets)
        return str(listening[0][0].getsockname()[0]), port

    def let_in(self) -> None:
        """Have the doors take clients from now on, and those that begin later, too."""
        for process in self.processes:
            process.keep_asking({"do": "open"})
        for process in self.processes:
            try:
                process.ask({"do": "open"})
            except Unavailable:
                pass  # the next one is asked, too

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
        """Clients that have been told go, then the doors do.  Whoever comes now is refused."""
        for sock in self._listening:
            sock.close()
        closing = [threading.Thread(target=one.close, args=(timeout,)) for one in self.processes]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    # -- the loop

    def keep(self, work: Coroutine[Any, Any, object]) -> None:
        """Run it on the loop to its end."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the threads of a door

    def _came(self, place: int, sock: socket.socket) -> None:
        sock.setblocking(False)
        try:
            self.loop.call_soon_threadsafe(self.attach, place, sock)
        except RuntimeError:
            sock.close()  # the loop is closed already

    def _heard(self, name: str, told: Mapping[str, Any]) -> None:
        if "strangers" in told:
            self.strangers.heard(told, name)

    def _lost(self, name: str) -> None:
        self.strangers.lost(name)


def _ask(process: DoorProcess, wish: dict[str, object], sockets: list[socket.socket]) -> Mapping[str, Any]:
    """What it answers; one that ends meanwhile, or was stopped and is killed, is followed by another."""
    until = time.monotonic() + ANOTHER_S
    while True:
        starts = process.starts
        try:
            return process.ask(wish, sockets)
        except Unavailable as error:
            while process.starts == starts:
                if not process.wanted or time.monotonic() > until:
                    raise no_door(error) from None
                time.sleep(LOOK_S)


def _shown(identity: Identity) -> dict[str, object]:
    """What a door shows over TLS, and whom it insists on."""
    context = identity.context
    ca = None if identity.ca_pem is None or context.verify_mode is ssl.CERT_NONE else identity.ca_pem.decode()
    return {
        "chain": identity.chain_pem.decode(), "key": identity.key_pem.decode(), "ca": ca,
        "least": int(context.minimum_version), "verify": int(context.verify_mode),
    }  # fmt: skip
