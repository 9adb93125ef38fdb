"""One instance: recover, open the doors, serve, stop cleanly.  `server.process` runs it.

Start: take the folder, recover the log, fold it, log and sync a boot record, declare what the settings name, open the
doors, say so.  Stop (SIGTERM, SIGINT): see `server.lifecycle`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import orjson

from penstock.errors import SettingsError
from penstock.log.committers import KernelSync
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.writer import BATCH_MOST, CACHE_MOST, LogSettings
from penstock.memory.caches import Caches
from penstock.records.dataclass import dataclass
from penstock.server.alarms import Alarms, FollowerAlarms
from penstock.server.asking.scanning import warm_up
from penstock.server.base import allocator
from penstock.server.base.clock import Alarm, Timed
from penstock.server.base.faults import Chore
from penstock.server.base.loading import of_a_door
from penstock.server.base.progress import Lines, Show
from penstock.server.base.rounds import Pulse
from penstock.server.bulk import NO_DATA_FOLDER
from penstock.server.bulk.log_upkeep import Compactor
from penstock.server.bulk.process import Bulk
from penstock.server.doors.door_process import spawned
from penstock.server.engine import Engine
from penstock.server.gates import scattered
from penstock.server.lifecycle import Starting, Stopping, amqp_limits, doors_of
from penstock.server.opening import (
    Recovered,
    apply_or_leave_out,
    declare_views,
    finishing_decided,
    make_room,
    open_core,
)
from penstock.server.people.accounts import Followed
from penstock.server.people.logins import Logins
from penstock.server.scratch_pages import Pager, Scratch
from penstock.server.services import Pools, Say, Server, say_aloud
from penstock.server.sockets.listening import connections_most, entry_of
from penstock.server.sql import FOLDER as STATEMENTS
from penstock.server.upkeep.keeper import Keeper

logger = logging.getLogger("penstock.server")

if TYPE_CHECKING:
    from penstock.config.settings import ArchiveSection, Settings
    from penstock.records.chunks import Chunk
    from penstock.records.entries import Rows
    from penstock.server.flight.door import FlightLimits
    from penstock.server.http.door import HttpDoor
    from penstock.server.links.links import Links

TIDY_S = 0.25
"""How often it is asked whether the process has grown."""

HOLES_SHARE = 32
"""Free memory is given back when the process has grown by this share of its budget."""

GARBAGE_SHARE = 8
"""Cycles of garbage are looked for when it has grown by this one, which they may have at most."""

WARM_UP_S = 1.0
"""What filters need is loaded so long after the doors have opened: whoever waited for them comes first."""

FIRST_USES = ("penstock.core.queue.last_values", "penstock.core.state.durable", "re2")
"""Loaded then, too: a module that is first wanted when no descriptor is left cannot be loaded."""

READ_AHEAD = 1 << 20
"""Bytes of the log decoded beyond what a cold read asked for: a queue that is drained from disk reads on."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What a started server tells: its pid, addresses, and what recovery found."""

    pid: int
    addresses: Mapping[str, str]  # of the open doors, by name
    recovered_records: int
    recovered_seconds: float

    def as_json(self) -> bytes:
        """The content of the ready file."""
        return orjson.dumps(
            {
                "pid": self.pid,
                **dict.fromkeys(("amqp", "http", "flight")),
                **self.addresses,
                "recovered": {"records": self.recovered_records, "seconds": round(self.recovered_seconds, 6)},
            }
        )


class App(Server):
    """One instance on its event loop.  `start`, then `stopped` until somebody calls `stop`."""

    def __init__(
        self,
        settings: Settings,
        say: Say = say_aloud,
        pulse: Pulse | None = None,
        show: Show | None = None,
        pools: Pools | None = None,
    ) -> None:
        """pulse: of the loop that this will run on; without one its pauses are not known.

        show: who looks on while it recovers; a line a second without.  pools: others than its own threads.
        """
        super().__init__(settings, say, pulse, pools)
        self.http: HttpDoor | None = None
        self.alarm: Alarm | None = None
        self._show = show or Lines(say)
        self._opened: Log | None = None
        self._chores = list[Chore]()
        self._beat_timer: asyncio.TimerHandle | None = None
        self._tidy_timer: asyncio.TimerHandle | None = None
        self._warm_timer: asyncio.TimerHandle | None = None
        self._tidiness = allocator.Tidy(settings.server.memory // HOLES_SHARE)
        self._cycles = allocator.Cycles(settings.server.memory // GARBAGE_SHARE)
        self._start: asyncio.Task[object] | None = None
        self._collecting: Chore
        self._giving: Chore

    async def start(self) -> Ready:
        """Recover and open the doors.  Raises what stands in the way; nothing is left running then."""
        settings, loop = self.settings, asyncio.get_running_loop()
        self.loop, self._start = loop, asyncio.current_task()
        loop.set_exception_handler(self._stop_for)
        self.entry = entry_of(settings, loop)
        self.shares.of("connections").bound(connections_most(doors_of(settings.server.doors)))
        complain, guesses = self.entry.guards.complaints.tell, settings.before_login.wrong_logins
        self.logins = Logins(self.users, complain, loop=loop, guesses=guesses)
        data = make_folder(settings.server.data)
        disk = OsDisk(data)
        self.accounts.in_thread = True
        starting = Starting(self, self._show)
        try:
            if settings.cluster is not None:
                await self._lead(starting, disk)
            self.accounts.load(disk)
            self.log, recovered = await starting.recover(self.pools.reading, partial(self._recover, disk))
            self._make_engine(recovered)
            told = self._apply(recovered)
            self.engine.acts.resuming.start()
            self.engine.finish_turn()
            self.progress.watch("finishing", 0, 1)
            await self._boot_durable()
            if self.cluster is not None:
                self.cluster.booted()
            for line in told:
                self.say(line)
            for done, total in finishing_decided(self.engine, disk):
                self.progress.watch("finishing", done, total)
                await asyncio.sleep(0)  # HTTP answers between two chunks
            if self.cluster is not None:
                await self._boot_durable()  # what was copied now, too: whoever takes over needs the stages until then
                self.cluster.forget(self.cluster.kept_stages)
            self.progress.watch("opening", 0, 1)
            self._make_doors(starting, disk, data)
            self.recovered_records, self.recovered_seconds = recovered.records, recovered.seconds
            starting.open(self.amqp, self.flight)
        except BaseException:
            await starting.undo()
            if self._opened is not None:
                self._opened.close(clean=False)
            if self.cluster is not None:
                self.cluster.close()
            self.pools.abandon()
            if self.failure is not None and self._start is not None:
                self._start.uncancel()
                raise self.failure from None
            raise
        self._go_to_work(starting)
        return Ready(os.getpid(), self.addresses, recovered.records, recovered.seconds)

    def _go_to_work(self, starting: Starting) -> None:
        """The doors are open: serve, and do from now on what is done again and again."""
        settings, loop = self.settings, self.loop
        self.http = starting.http
        self.addresses = {name: starting.addresses[name] for name in settings.listen.doors()}
        self.serving = True
        self.tls = starting.tls
        if self.tls is not None:
            self.tls.start(loop, self.pools.reading)
        self.progress.ready()
        starting.end()
        self.engine.tending.fill_heads()
        self._make_chores()
        timed = [Timed(*one, self.engine.faults, self.engine.clock) for one in self.engine.timed]
        self.alarm = Alarm(timed, loop.call_later)
        self.engine.on_turn = self.alarm.look_soon
        if settings.link:
            self.link().start()
        self._beat()
        self._tidy()
        self.alarm.look_soon()
        self._warm_timer = loop.call_later(WARM_UP_S, self.pools.scanning.submit, load_first_uses)

    async def _lead(self, starting: Starting, disk: OsDisk) -> None:
        """As a member of a cluster: follow until this server leads.

        Who was made, changed or removed at run time is so for a follower's HTTP, too.
        """
        from penstock.server.cluster.leading import Cluster
        from penstock.server.cluster.rehearsal import Rehearsal

        cluster = self.cluster = Cluster(self.settings, self.say, lambda: self.progress.share)
        followed = Followed(self.accounts, disk, self.say)
        followed.look()  # what this disk has, before anybody is asked in
        rehearsal = Rehearsal(self.settings, cluster, self.say, self.loop.call_soon_threadsafe)

        room = FollowerAlarms(disk, self.settings.log.segment, self.clock)

        def on_word() -> None:
            followed.look()
            cluster.low = room.look()
            rehearsal.look()

        cluster.on_word = on_word
        cluster.on_switch = self.stopping.set
        try:
            await starting.wait(cluster)
        finally:
            rehearsal.end()
        self.progress.begin()
        begun = starting.entrance is not None
        if not begun and any(name.startswith("flight") for name in self.settings.listen.doors()):
            # it loads while the log is read
            self.flight_process = spawned("penstock.server.flight.front", of_a_door(self.settings.server.memory))

    def _make_engine(self, recovered: Recovered) -> None:
        """Make the engine on what was recovered, with its threads and the log's."""
        self.engine = Engine(
            recovered.core,
            self.log,
            Caches(self.settings.server.memory),
            self.clock,
            call_soon=self.loop.call_soon,
            read_cold=self._read_cold,
            at_round_end=self.pulse.at_round_end(self.loop),
            shares=self.shares,
        )
        self.logins.on_refused = self.engine.event_exchange.refused
        clock = self.engine.clock
        self.users.wall = lambda: clock.wall() / 1e6  # no token lasts longer because a clock was set back
        pools = self.pools
        self.engine.run_off(
            judging=pools.off(pools.judging),
            scanning=pools.off(pools.scanning),
            replaying=pools.off(pools.replaying),
            reading=pools.off(pools.reading),
            acting=pools.off(pools.acting),
            at_work=pools.at_work,
        )
        self.pools.faults = self.engine.faults
        self.engine.faults.on_fatal.append(self._fail)
        self.engine.acts.steps.say = self.say
        self.engine.acts.steps.allow_execute = self.settings.server.allow_execute
        self.log.on_durable = self.engine.durable
        self.log.on_broken = self.engine.break_down
        syncer = KernelSync.of_this_system()
        self.log.start_thread(self.loop.call_soon_threadsafe, self.loop.call_later, self.loop, syncer)
        if self.cluster is not None:
            self.cluster.attach(self.log, self.engine)
            self.accounts.copied = self.cluster.keep_accounts

    def _apply(self, recovered: Recovered) -> list[str]:
        """Apply the settings of queues, views and pipelines; returns what to report."""
        settings = self.settings
        told, self.engine.left_out = apply_or_leave_out(
            recovered.core, settings, self.engine.now, recovered.places, member=self.cluster is not None
        )
        self.accounts.keep_named()
        self.accounts.bound(recovered.core)
        declare_views(self.engine.views, settings)
        on_spark = [f"view.{one.name}" for one in settings.view if one.engine == "spark"]
        self.engine.pipelines.declared = (*(one.name for one in settings.pipeline), *on_spark)
        return told

    def _keep_archive(self, section: ArchiveSection, folder: Path) -> None:
        """Make what archives closed segments, and reads archived ones."""
        from penstock.server.replaying.sources import Whole
        from penstock.server.upkeep.archive import Archiving

        shared = None if self.cluster is None else self.cluster.shared_archive()
        archive = Archiving(
            self.log, section, folder, self.bulk, self.pools.reading,
            self.engine.promised, self.engine.clock.wall, shared,
        )  # fmt: skip
        self.engine.archive, self.engine.archived = archive, archive.has
        self.engine.past = Whole(self.log, archive, self.bulk)

    def _make_doors(self, starting: Starting, disk: OsDisk, data: Path) -> None:
        """Make the doors and the periodic work beside them; nobody is let in yet."""
        from penstock.server.amqp.door import Admission, AmqpDoor  # these modules came while the log was folded
        from penstock.server.flight.door import FlightDoor
        from penstock.server.flight.operation_actions import administration, keeping_actions

        settings, loop, pools = self.settings, self.loop, self.pools
        self.bulk = Bulk(data, budget=settings.server.memory)
        self.engine.ask_of(self.bulk.call)
        elsewhere = Compactor(self.bulk)
        if settings.log.archive is not None:
            self._keep_archive(settings.log.archive, data)
        self.keeper = Keeper(self.engine, pools.reading, settings.log, loop, elsewhere, allocator.give_back)
        self.engine.keeper = self.keeper
        self.pace = self.keeper.pace
        members = str if self.cluster is None else self.cluster.out_of_sync
        self.alarms = Alarms(self.engine, lambda: self.pace.lag_us, lambda: self.entry.short, members)
        self.amqp = AmqpDoor(
            self.engine, self.logins, self.accounts.vhosts, self.counters, amqp_limits(settings), self.users.rights,
            Admission(self.users), certificates=settings.tls.cert_login_from is not None, entry=self.entry,
        )  # fmt: skip
        self.flight = FlightDoor(
            self.engine,
            self.logins,
            self.accounts.vhosts,
            disk,
            wake=loop.call_soon_threadsafe,
            bulk=self.bulk,
            entrance=starting.entrance,
            limits=flight_limits(settings),
            scratch=str(data),
        )
        if (cluster := self.cluster) is not None:
            self.flight.stages.dropped = lambda names: loop.call_soon_threadsafe(cluster.forget, names)
        self.flight.actions.table |= keeping_actions(self.flight.handover, self.keeper)
        self.flight.actions.table |= administration(self, self.flight.handover)
        self.flight.links = self.link
        self.scratch = Scratch(data)
        self.scratch.clear()
        self.pager = Pager(self.engine, self.scratch, pools.off(pools.reading), loop.call_later)
        if settings.link:
            self.links = self._links()  # before anybody is given a message that another site may have now

    def _recover(self, disk: OsDisk) -> tuple[Log, Recovered]:
        """In a thread: the loop answers HTTP meanwhile."""
        rmtree(disk.folder / STATEMENTS, ignore_errors=True)  # what an earlier process has left
        log = self._opened = Log.open(disk, self.clock, self._log_settings(), self.progress.watch, mends=False)
        make_room(log, time.sleep, self.progress.watch)
        turn = None if self.cluster is None else self.cluster.turn
        return log, open_core(log, self.clock, self.settings, watch=self.progress.watch, turn=turn)

    async def _boot_durable(self) -> None:
        """No door opens before the boot record is on disk."""
        await self.engine.until_durable(self.engine.core.last_lsn)

    def _log_settings(self) -> LogSettings:
        section, memory = self.settings.log, self.settings.server.memory
        return LogSettings(
            segment=section.segment,
            sync=self.settings.server.sync,
            sync_interval=section.sync_interval,
            ack_sync=section.ack_sync,
            cache=min(CACHE_MOST, memory // 8),
            batch_bytes=min(BATCH_MOST, memory // 16),  # who reads a row holds its batch
        )

    def _read_cold(self, lsns: Chunk, answer: Callable[[Rows], None], most: int = 0) -> None:
        """Rows from the log by a thread, answered on the loop."""
        ahead = 0 if scattered(lsns) else READ_AHEAD

        def done(rows: Rows) -> None:
            answer(rows)
            self.engine.arm()

        self.pools.hand_over(self.pools.reading, partial(self.log.read, lsns, ahead, most, around=True), done)

    def _stop_for(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Stop after a bug that no border has caught: memory is not trusted then, the log is; a restart replays it."""
        error, faults = context.get("exception"), self.pools.faults
        if not isinstance(error, Exception) or isinstance(error, ConnectionError):
            loop.default_exception_handler(context)
        elif faults is not None:
            faults.give_up(error)
        else:
            self._fail(error)  # there is nothing in memory yet: it follows, or the log is read

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            logger.critical("stopped by a bug", exc_info=error)
            error.__traceback__ = None  # told; see `Faults.contain`
            self.stopping.set()
            if not self.serving and self._start is not None:
                self._start.cancel()

    def link(self) -> Links:
        """This server's links; where it has none of its own, those that others make to it."""
        if self.links is None:
            self.links = self._links()
            self.links.start()
        return self.links

    def _links(self) -> Links:
        from penstock.server.links.links import Links  # most servers have none

        return Links(self.engine, self.flight.handover, self.settings, self.loop)

    # -- timers

    def _make_chores(self) -> None:
        """What is done once a second: each by itself, whatever becomes of the others."""
        beats = [
            self.engine.tending.beat, self.amqp.beat, self.flight.beat, self.keeper.beat, self.pager.beat,
            self.alarms.beat, lambda: self.bulk.beat(full=self.engine.log.room.full),
        ]  # fmt: skip
        if self.engine.archive is not None:
            beats.append(self.engine.archive.beat)
        works = [*beats, self._collect, self._give_back]
        *self._chores, self._collecting, self._giving = (Chore(self.engine.faults, self.clock, one) for one in works)

    def _beat(self) -> None:
        for chore in self._chores:
            chore.run()
        self._beat_timer = self.loop.call_later(1.0, self._beat)

    def _tidy(self) -> None:
        self._tidy_timer = self.loop.call_later(TIDY_S, self._tidy)
        for chore in (self._collecting, self._giving):
            chore.run()

    def _collect(self) -> None:
        self._cycles.beat(self.engine.bodies.budget.used, self.engine.views.held)

    def _give_back(self) -> None:
        if not self._giving.busy and self._tidiness.due():
            self._giving.hand_over(self.pools.off(self.pools.reading), self._tidiness.run)

    def _end_timers(self) -> None:
        self.engine.on_turn = None
        if self.alarm is not None:
            self.alarm.end()
        for timer in (self._beat_timer, self._tidy_timer, self._warm_timer):
            if timer is not None:
                timer.cancel()

    def look_again(self) -> None:
        """On SIGHUP: look at certificate files for changes now.  Without TLS there are none."""
        if self.tls is not None:
            self.tls.look()

    async def stop(self) -> None:
        """Close the doors and the log; what was taken is durable when this returns, unless the server failed."""
        await Stopping(self, self.http, self._end_timers).run()
        if self.cluster is not None:
            if self.failure is None:
                await self.cluster.hand_over()
            self.cluster.close()


def load_first_uses() -> None:
    """Load modules that the start itself does not need.  Any thread."""
    for name in FIRST_USES:
        import_module(name)
    warm_up()


def flight_limits(settings: Settings) -> FlightLimits:
    """What the Flight door allows."""
    from penstock.server.flight.decided import GroupLimits
    from penstock.server.flight.door import FlightLimits
    from penstock.server.sql.queries import SqlLimits
    from penstock.wire.flight.received import Bounds

    sql, memory = settings.sql, settings.server.memory
    return FlightLimits(
        bounds=Bounds.within(memory),
        group=GroupLimits.within(memory),
        sql=SqlLimits(sql.memory, sql.spill, sql.at_once, sql.timeout / 1e6),
    )


def make_folder(name: str) -> Path:
    """The data folder, made if it is absent.  Raises SettingsError."""
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"data folder {name}: {error.strerror}") from error
    for mark, why in NO_DATA_FOLDER.items():
        if (Path(name) / mark).exists():
            raise SettingsError(f"data folder {name} {why}")
    return Path(name)
