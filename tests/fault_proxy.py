"""TCP that goes wrong on demand: a proxy before each door, which does to one caller or to all what networks do.

Packet tools differ from kernel to kernel and want rights; whoever passes bytes on needs neither.  Faults may be set and
healed from any thread.  A caller is known by its process group, so that one member is cut off and the others are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

EVERYBODY = 0
PIECE = 1 << 16
LOOK_S = 0.01
SLOW_S, SLOW_BYTES_S = 0.03, 2_000_000


class Fault(Enum):
    """What becomes of connections of one caller."""

    CUT = "cut"  # they end at once, and new ones as they come
    SILENT = "silent"  # nothing passes and nobody is told; when it heals all of it comes, as with TCP
    TOWARDS = "one way: nothing towards the one that is called"
    BACK = "one way: nothing back to the caller"
    HALF_OPEN = "half-open"  # the one that is called has lost it, and the caller is never told
    SLOW = "slow"  # each piece comes late, and few bytes a second


_HELD = {True: {Fault.SILENT, Fault.TOWARDS}, False: {Fault.SILENT, Fault.BACK}}


class _Connection:
    def __init__(self, caller: int, here: asyncio.StreamWriter) -> None:
        self.caller, self.here = caller, here
        self.there: asyncio.StreamWriter | None = None
        self.forgotten = False
        self.task = asyncio.current_task()

    def forget(self) -> None:
        """The one that is called loses it."""
        self.forgotten = True
        if self.there is not None:
            self.there.transport.abort()

    def end(self) -> None:
        """Both lose it, and are told."""
        self.forget()
        self.here.transport.abort()


class Way:
    """A port that leads to another one of this machine."""

    def __init__(self, target: int, callers: Callable[[], Iterable[int]] | None) -> None:
        """callers: process groups that are told apart."""
        self.port = 0
        self._target, self._callers = target, callers
        self._faults = dict[int, Fault]()
        self._open = set[_Connection]()
        self._loop: asyncio.AbstractEventLoop

    def fault(self, fault: Fault, caller: int = EVERYBODY) -> None:
        """From now on, for those that are open too."""
        self._faults = {**self._faults, caller: fault}
        if fault in (Fault.CUT, Fault.HALF_OPEN):
            self._loop.call_soon_threadsafe(self._end, fault, caller)

    def heal(self, caller: int | None = None) -> None:
        """None: for all callers."""
        self._faults = {} if caller is None else {one: what for one, what in self._faults.items() if one != caller}

    # in the network's thread

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._take, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._loop = asyncio.get_running_loop()
        return server

    def _end(self, fault: Fault, caller: int) -> None:
        for one in list(self._open):
            if caller in (EVERYBODY, one.caller):
                one.forget() if fault is Fault.HALF_OPEN else one.end()

    def cancel(self) -> None:
        """All connections end."""
        for one in list(self._open):
            if one.task is not None:
                one.task.cancel()

    def _of(self, caller: int) -> Fault | None:
        faults = self._faults
        return faults.get(EVERYBODY) or faults.get(caller)

    async def _take(self, reader: asyncio.StreamReader, here: asyncio.StreamWriter) -> None:
        groups = () if self._callers is None else tuple(self._callers())
        port = here.get_extra_info("peername")[1]
        one = _Connection(caller_of(port, self.port, groups) if groups else EVERYBODY, here)
        self._open.add(one)
        try:
            await self._carry(one, reader)
        except (OSError, asyncio.CancelledError):
            pass  # the other end is gone, or the network ends
        finally:
            self._open.discard(one)
            one.end()

    async def _carry(self, one: _Connection, reader: asyncio.StreamReader) -> None:
        if self._of(one.caller) is Fault.CUT:
            return
        one.forgotten = self._of(one.caller) is Fault.HALF_OPEN
        if not one.forgotten:
            await self._pass(one, 0, towards=True)
            back, one.there = await asyncio.open_connection("127.0.0.1", self._target)
            pumps = [
                asyncio.ensure_future(self._pump(one, reader, one.there, towards=True)),
                asyncio.ensure_future(self._pump(one, back, one.here, towards=False)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        while one.forgotten and await reader.read(PIECE):
            pass

    async def _pump(
        self, one: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, towards: bool
    ) -> None:
        while True:
            data = b""
            with contextlib.suppress(OSError):
                data = await reader.read(PIECE)
            await self._pass(one, len(data), towards=towards)
            if not data:
                return
            writer.write(data)
            await writer.drain()

    async def _pass(self, one: _Connection, size: int, *, towards: bool) -> None:
        while (fault := self._of(one.caller)) in _HELD[towards]:  # noqa: ASYNC110  it is set in another thread
            await asyncio.sleep(LOOK_S)
        if fault is Fault.SLOW:
            await asyncio.sleep(SLOW_S + size / SLOW_BYTES_S)


async def end(servers: Iterable[asyncio.Server]) -> None:
    """Close them; whom asyncio has accepted is handed over before, which it cannot be to a closed server."""
    loop, ended = asyncio.get_running_loop(), list(servers)
    for server in ended:
        for one in server.sockets:
            loop.remove_reader(one.fileno())
    await asyncio.sleep(0)
    for server in ended:
        server.close()


class Network:
    """`with Network() as network:` its ways live in one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._servers = list[asyncio.Server]()
        self._ways = list[Way]()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def way(self, target: int, callers: Callable[[], Iterable[int]] | None = None) -> Way:
        """A new one, which listens."""
        way = Way(target, callers)
        self._ways.append(way)
        self._servers.append(asyncio.run_coroutine_threadsafe(way.listen(), self._loop).result(30))
        return way

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _end(self) -> None:
        await end(self._servers)
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for way in self._ways:  # who is being taken just now is in none yet: its socket would be lost
                way.cancel()
            await asyncio.wait(others, timeout=LOOK_S)
        for _ in range(2):
            await asyncio.sleep(0)  # what was aborted is closed, too


def caller_of(port: int, called: int, groups: Iterable[int]) -> int:
    """Which of these process groups has the connection from this port; EVERYBODY: none of them."""
    wanted = f":{port:04X}", f":{called:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if (row[1][-5:], row[2][-5:]) == wanted}
    known = set(groups)
    for pid in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            group = os.getpgid(int(pid))
            if group in known and _has(pid, sockets):
                return group
    return EVERYBODY


def _has(pid: str, sockets: set[str]) -> bool:
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{name}") in sockets:
                return True
    return False
