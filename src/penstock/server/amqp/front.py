"""The process of an AMQP door: `python -m penstock.server.amqp.front CONTROL LINES MEMORY`.

It listens beside other doors at the same address (SO_REUSEPORT), takes clients with TLS or without, and hosts them
(`hosting`); what they want goes to the core over one socket (`way`), which begins as the door does.  It has no rights,
no queue and no log.  It ends when its control socket or that way does, in the middle of whatever it does.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.server.amqp.hosting import Host
from penstock.server.amqp.links import AmqpLink, TlsLink, WayLink
from penstock.server.doors import front
from penstock.server.doors.front import Front, Identities
from penstock.server.rounds import Pulse
from penstock.wire.amqp.frames import Limits

if TYPE_CHECKING:
    from penstock.server.listening import Entry, Listener

WORKERS = 2
"""Threads that make digests of passwords; each takes 19 MiB meanwhile."""

BEAT_S = 1.0


def mono() -> int:
    """Microseconds that never go back."""
    return time.monotonic_ns() // 1000


class AmqpFront(Front):
    """AMQP's door."""

    def __init__(self, control: socket.socket, lines: socket.socket, pulse: Pulse) -> None:
        super().__init__(control, lines)
        self._pulse = pulse
        self._host: Host | None = None
        self._way: WayLink | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._beat: asyncio.TimerHandle | None = None

    async def begin(self, told: Mapping[str, Any]) -> None:
        """Have a way to the core."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.lines, [b"+"], [theirs.fileno()])
        ours.setblocking(False)

        def write(data: bytes) -> None:
            way.transport.write(data)

        host = self._host = Host(
            Limits(**told["limits"]),
            version=told["version"],
            external=told["external"],
            write=write,
            mono=mono,
            at_round_end=self._pulse.at_round_end(self.loop),
            off=self._off,
        )
        way = WayLink(host.receive, self.over.set, lambda _: None)
        await self.loop.create_connection(lambda: way, sock=ours)
        self._way = way
        self._beats()

    def listener(self, entry: Entry, name: str, identity: Identities | None) -> Listener:
        """Of sessions that the host has."""
        assert self._host is not None
        return entry.listener(name, partial(TlsLink if identity else AmqpLink, self._host.connect), identity)

    @property
    def owes(self) -> bool:
        """Whether a session has something to write."""
        return self._host is not None and self._host.owes

    def end(self) -> None:
        """Cut everybody off."""
        if self._beat is not None:
            self._beat.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        if self._host is not None:
            self._host.end()
        if self._way is not None:
            self._way.transport.abort()

    def _off(self, work: Callable[[], bytes], then: Callable[[bytes], None]) -> None:
        """What takes long, by a thread of few."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(WORKERS, "penstock-login")

        def made(done: asyncio.Future[bytes]) -> None:
            if not done.cancelled():
                then(done.result())

        self.loop.run_in_executor(self._pool, work).add_done_callback(made)

    def _beats(self) -> None:
        self._beat = self.loop.call_later(BEAT_S, self._beats)
        if self._host is not None:
            self._host.beat()


def run(control: socket.socket, lines: socket.socket) -> None:
    """The door in a thread of the server's own process."""
    pulse = Pulse()
    with asyncio.Runner(loop_factory=pulse.new_loop) as runner:
        runner.run(AmqpFront(control, lines, pulse).run())


def main() -> None:
    """The door as a process; never returns."""
    front.main(run)


if __name__ == "__main__":
    main()
