"""The doors of AMQP that are processes: each has a socket to the server's loop (`doorway`)."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from penstock.server.amqp.doorway import Doorway
from penstock.server.amqp.links import WayLink
from penstock.server.doors.doors import Doors
from penstock.server.doors.line import Broken
from penstock.server.sockets.tls_transport import cut_off
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.server.amqp.door import AmqpDoor
    from penstock.server.sockets.strangers import Terms
    from penstock.wire.amqp.frames import Limits

MODULE = "penstock.server.amqp.front"

MEMORY_LEAST = 256 << 20
"""Bytes that a door's process may have beside the server's budget, which counts the bodies begun at all doors."""


class AmqpDoors(Doors):
    """All of one server.  For the loop's thread."""

    def __init__(
        self,
        count: int,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        terms: Terms,
        *,
        memory: int,
        external: bool,
    ) -> None:
        """As of `Doors`.  memory: the server's.  external: certificates are logins."""
        begin = {"limits": asdict(limits), "version": __version__, "external": external}
        super().__init__("amqp", MODULE, begin, terms, loop, count=count, memory=MEMORY_LEAST + memory)
        self._door: AmqpDoor | None = None
        self._early = list[tuple[int, socket.socket]]()  # ways that began before the door was there

    def open(self, door: AmqpDoor) -> None:
        """Take clients from now on; their sessions are this door's."""
        self._door = door
        early, self._early = self._early, []
        for place, sock in early:
            self.attach(place, sock)
        threading.Thread(target=self.let_in, name="penstock-amqp-open", daemon=True).start()

    def attach(self, place: int, sock: socket.socket) -> None:
        """A door has begun: this socket leads to its sessions, once there is somebody to take them."""
        if self._door is None:
            self._early.append((place, sock))
            return
        door = self._door

        def cut(why: str) -> None:
            self.processes[place - 1].cut_off(why)
            doorway.lost()
            cut_off(way.transport)

        def receive(data: bytes) -> None:
            try:
                doorway.receive(data)
            except Broken as broken:
                cut(str(broken))

        def writable(does: bool) -> None:
            if does:
                doorway.resume_writing()
            else:
                doorway.pause_writing()

        way = WayLink(receive, lambda: doorway.lost(), writable)
        doorway = Doorway(
            door, lambda data: way.transport.write(data), lambda: way.transport.get_write_buffer_size(), cut
        )
        self.keep(cast("Any", self.loop.create_connection(lambda: way, sock=sock)))
