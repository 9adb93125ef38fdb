"""The server process: recover, open the doors, serve, stop cleanly.

Start: take the folder, recover the log, fold it, log and sync a boot record, declare what the settings name, open the
doors, say so.  Stop (SIGTERM, SIGINT): close the doors, write what is gathered, write a checkpoint, mark a clean end.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import orjson

from penstock.errors import LogBroken, SettingsError
from penstock.log import Log, LogSettings
from penstock.log.disk import OsDisk
from penstock.memory import BodyCache
from penstock.server.amqp.door import AmqpDoor
from penstock.server.clock import SystemClock
from penstock.server.counters import Counters
from penstock.server.engine import Engine
from penstock.server.flight.door import FlightDoor
from penstock.server.house import apply_settings, open_core
from penstock.server.keeper import Keeper
from penstock.server.users import Users
from penstock.version import __version__
from penstock.wire.amqp.frames import Limits

logger = logging.getLogger("penstock.server")

if TYPE_CHECKING:
    from penstock.config.settings import Address, Settings
    from penstock.records.entries import Rows
    from penstock.server.http import HttpDoor

TICK_LAG_S = 0.005
"""Deadlines are looked at this soon after a turn, so that a thousand turns a second cost one look."""

LONGEST_SLEEP_S = 1.0

READ_AHEAD = 1 << 20
"""Bytes of the log decoded beyond what a cold read asked for: a queue that is drained from disk reads on."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ready:
    """What a started server tells: its pid, addresses, and what recovery found."""

    pid: int
    amqp: str | None
    http: str | None
    flight: str | None
    recovered_records: int
    recovered_seconds: float

    def as_json(self) -> bytes:
        """The content of the ready file."""
        return orjson.dumps(
            {
                "pid": self.pid,
                "amqp": self.amqp,
                "http": self.http,
                "flight": self.flight,
                "recovered": {"records": self.recovered_records, "seconds": round(self.recovered_seconds, 6)},
            }
        )


class Server:
    """One instance on its event loop.  `start`, then `stopped` until somebody calls `stop`."""

    def __init__(self, settings: Settings, say: Say = print) -> None:
        self.settings = settings
        self.say = say
        self.clock = SystemClock()
        self.stopping = asyncio.Event()
        self.counters = Counters()
        self.users = Users(settings.users)
        self.serving = False  # the doors are open
        self.failure: BaseException | None = None  # why the process must stop
        self.recovered_records = 0
        self.recovered_seconds = 0.0
        self.http: HttpDoor | None = None
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="penstock-read")
        self._tick_timer: asyncio.TimerHandle | None = None
        self._beat_timer: asyncio.TimerHandle | None = None
        self.loop: asyncio.AbstractEventLoop
        self.log: Log
        self.engine: Engine
        self.amqp: AmqpDoor
        self.flight: FlightDoor
        self.keeper: Keeper

    async def start(self) -> Ready:
        """Recover and open the doors.  Raises what stands in the way; nothing is left running then."""
        settings, loop = self.settings, asyncio.get_running_loop()
        self.loop = loop
        data = make_folder(settings.server.data)
        disk = OsDisk(data)
        self.log = Log.open(disk, self.clock, self._log_settings())
        try:
            recovered = open_core(self.log, self.clock, settings, seed=secrets.randbits(64))
            self.engine = Engine(
                recovered.core,
                self.log,
                BodyCache(settings.server.memory),
                self.clock,
                call_soon=loop.call_soon,
                read_cold=self._read_cold,
            )
            self.log.on_durable = self.engine.durable
            self.log.on_broken = self.engine.break_down
            self.log.start_thread(loop.call_soon_threadsafe, loop.call_later)
            apply_settings(recovered.core, settings, self.engine.now)
            self.engine.finish_turn()
            await self._boot_durable()
            self.keeper = Keeper(self.engine, self._pool, settings.log, loop)
            limits = Limits(
                frame_max=settings.amqp.frame_max,
                channel_max=settings.amqp.channel_max,
                heartbeat=settings.amqp.heartbeat // 1_000_000,
                max_message_size=settings.amqp.message_max,
            )
            self.recovered_records, self.recovered_seconds = recovered.records, recovered.seconds
            self.amqp = AmqpDoor(self.engine, self.users.check, frozenset(settings.vhosts), self.counters, limits)
            amqp = await self._listen(settings.listen.amqp, self.amqp.listen, "amqp")
            self.flight = FlightDoor(
                self.engine, self.users.check, frozenset(settings.vhosts), disk, wake=loop.call_soon_threadsafe
            )
            flight = await self._listen(settings.listen.flight, self.flight.listen, "flight")
            http = await self._open_http()
        except BaseException:
            self.log.close(clean=False)
            raise
        self.serving = True
        loop.set_exception_handler(self._stop_for)
        self.engine.on_turn = self._schedule_tick
        self._beat()
        self._schedule_tick()
        return Ready(os.getpid(), amqp, http, flight, recovered.records, recovered.seconds)

    async def _open_http(self) -> str | None:
        if self.settings.listen.http is None:
            return None
        from penstock.server.http import HttpDoor  # uvicorn and starlette take 90 ms to load

        self.http = HttpDoor(self, __version__)
        return await self._listen(self.settings.listen.http, self.http.listen, "http")

    async def _boot_durable(self) -> None:
        """No door opens before the boot record is on disk."""
        durable: asyncio.Future[None] = self.loop.create_future()

        def broken(reason: str) -> None:
            if not durable.done():
                durable.set_exception(LogBroken(reason))

        self.engine.on_broken.append(broken)
        self.engine.when_durable(self.engine.core.last_lsn, lambda: durable.set_result(None))
        await durable

    @staticmethod
    async def _listen(
        address: Address | None, listen: Callable[[str, int], tuple[str, int] | Awaitable[tuple[str, int]]], name: str
    ) -> str | None:
        if address is None:
            return None
        try:
            bound = listen(address.host, address.port)
            host, port = await bound if isinstance(bound, Awaitable) else bound
        except OSError as error:
            raise SettingsError(f"listen.{name}: cannot bind {address}: {error.strerror}") from error
        return f"{host}:{port}"

    def _log_settings(self) -> LogSettings:
        section = self.settings.log
        return LogSettings(
            segment=section.segment,
            sync=self.settings.server.sync,
            sync_interval=section.sync_interval,
            ack_sync=section.ack_sync,
        )

    def _read_cold(self, lsns: Sequence[int], answer: Callable[[Rows], None]) -> None:
        """Rows from the log by a thread, answered on the loop."""
        future = self.loop.run_in_executor(self._pool, self.log.read, lsns, READ_AHEAD)

        def done(finished: asyncio.Future[Rows]) -> None:
            answer(finished.result())
            self.engine.arm()

        future.add_done_callback(done)

    def _stop_for(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """A bug: what memory holds can no longer be trusted, but the log can.  Stop; a restart replays."""
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, ConnectionError):
            if self.failure is None:
                self.failure = error
                logger.critical("stopped by a bug: %s", context.get("message"), exc_info=error)
                self.stopping.set()
        else:
            loop.default_exception_handler(context)

    # -- timers

    def _schedule_tick(self) -> None:
        if self._tick_timer is None:
            self._tick_timer = self.loop.call_later(TICK_LAG_S, self._tick)

    def _tick(self) -> None:
        self._tick_timer = None
        wall, mono = self.engine.core.next_deadline()
        waits = [
            deadline - clock
            for deadline, clock in ((wall, self.clock.wall()), (mono, self.clock.mono()))
            if deadline is not None
        ]
        if not waits:
            return
        wait = min(waits) / 1e6
        if wait <= 0:
            self.engine.tick()
            self._schedule_tick()
        else:
            self._tick_timer = self.loop.call_later(min(max(wait, TICK_LAG_S), LONGEST_SLEEP_S), self._tick)

    def _beat(self) -> None:
        self.amqp.beat()
        self.flight.beat()
        self.keeper.beat()
        self._beat_timer = self.loop.call_later(1.0, self._beat)

    # -- stop

    async def stop(self) -> None:
        """Close the doors and the log; what was taken is durable when this returns, unless the server failed."""
        self.serving = False
        self.amqp.stop_listening()
        self.amqp.close_all("the server stops")
        self.flight.stop()
        for timer in (self._tick_timer, self._beat_timer):
            if timer is not None:
                timer.cancel()
        await self.loop.run_in_executor(None, self.flight.close)
        self.flight.shut()
        if self.http is not None:
            await self.http.close()
        if self.failure is None:
            self.engine.finish_turn()
            await self.keeper.last_checkpoint()
        await self.loop.run_in_executor(None, lambda: self.log.close(clean=self.failure is None))
        self._pool.shutdown(wait=False, cancel_futures=True)


def make_folder(name: str) -> Path:
    """The data folder, made if it is absent.  Raises SettingsError."""
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"data folder {name}: {error.strerror}") from error
    return Path(name)


def write_whole(name: str, content: bytes) -> None:
    """A file that appears with its whole content or not at all."""
    part = Path(f"{name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(name)


class _NoPandas(MetaPathFinder):
    """Answers for pandas that it is not there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The import system's question."""
        if fullname == "pandas":
            raise ModuleNotFoundError("a server does without pandas", name=fullname)
        return None


def do_without_pandas() -> None:
    """Have pyarrow not look for pandas, where that is installed: no array of ours is one of its.

    It is imported when an array is made of a list, and takes 150 ms and 40 MiB.
    """
    sys.meta_path.insert(0, _NoPandas())


def settle_garbage() -> None:
    """Keep the collector of cycles from stopping the loop.

    A full collection walks everything that was imported and every cached batch: 33 ms at first, 100 ms after 200,000
    messages.  Nothing of that is garbage: what was imported is set aside, and full collections become rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 1_000)


def serve(settings: Settings, *, ready_file: str | None = None, say: Say = print) -> None:
    """Run a server until SIGTERM or SIGINT.  `ready_file` gets JSON once all doors are open."""
    do_without_pandas()
    asyncio.run(_serve(settings, ready_file, say))


async def _serve(settings: Settings, ready_file: str | None, say: Say) -> None:
    server = Server(settings, say)
    ready = await server.start()
    settle_garbage()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, server.stopping.set)
    if ready_file is not None:
        write_whole(ready_file, ready.as_json())
    doors = ", ".join(
        f"{name} {address}"
        for name, address in (("amqp", ready.amqp), ("http", ready.http), ("flight", ready.flight))
        if address
    )
    if settings.server.sync != "commit":
        say(f"warning: sync = {settings.server.sync!r}: a confirm does not mean that the message is on disk")
    say(
        f"penstock {settings.server.name} is ready: {doors}; "
        f"{ready.recovered_records} records in {ready.recovered_seconds:.2f} s"
    )
    await server.stopping.wait()
    await server.stop()
    if server.failure is not None:
        raise server.failure
