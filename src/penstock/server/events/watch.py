"""A look at the server once a second, for what no record and no door tells of: alarms, limits, dead letters, pipelines,
upkeep of the log.

What happens to messages is told as a number for the time since the last word about it, never one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.records.rights import MONITORING, Level
from penstock.server.events.census import Census
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.server.engine import Engine
    from penstock.server.services import Server
    from penstock.server.upkeep.keeper import Keeper


SEGMENTS_LEFT = 2
"""The disk is nearly full when there is no room for so many segments of the log beyond what is kept free; it is not any
more once there is room for one more than that."""


def alarms(engine: Engine, before: Mapping[str, str], *, slowed_us: int = 0) -> dict[str, str]:
    """Those of now by name; before: those of the last look.  On the loop; asks the disk how much is free."""
    found: dict[str, str] = {}
    log, bodies = engine.log, engine.bodies
    if engine.broken is not None:
        found["log"] = f"nothing is stored any more: {engine.broken}; restart the server, it replays the log"
    if log.full:
        found["disk_full"] = "the disk is full: publishes are refused until there is room"
    elif (low := nearly_full(engine, "disk_low" in before)) is not None:
        found["disk_low"] = low
    if bodies.tight:
        limit = format_size(bodies.budget.limit)
        found["memory"] = f"server.memory ({limit}) is used up by what cannot be put aside: publishers wait"
    if log.damage.batches:
        found["damage"] = f"{log.damage.batches} batches of the log cannot be read; /healthz names them"
    if slowed_us:
        milliseconds = slowed_us / 1000
        found["upkeep"] = f"the log has outgrown log.retention: each batch of publishes waits {milliseconds:g} ms"
    if engine.core.draining:
        found["draining"] = "the server drains: it takes no new messages and no new consumers"
    return found


def nearly_full(engine: Engine, was: bool) -> str | None:
    """Why the disk of the data folder is nearly full, if so."""
    settings = engine.log.settings
    if not settings.low_space:
        return None  # it is not asked
    kept = settings.low_space + settings.reserve
    wanted = kept + (SEGMENTS_LEFT + was) * settings.segment
    free = engine.log.disk.free()
    if free >= wanted:
        return None
    return (
        f"the disk has {format_size(free // 1024 * 1024)} left: the log needs {format_size(settings.segment)} for its "
        f"next segment, and publishes are refused below {format_size(kept)}"
    )


QUIET_S = 5.0
"""A queue that goes on losing messages to its limits is told of once in so long, and so are dead letters."""

LIMITED_MOST = 50
"""Queues whose limits are told of in one look; the others follow."""


class Watch:
    """The looks, and what the last one found.  Belongs to the loop's thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.census = Census(server.engine)
        self.alarms: dict[str, str] = {}
        self._pipelines: dict[str, tuple[object, object]] | None = None  # state and error by name
        self._letters = dict[str, int](server.engine.core.dead_lettered)
        self._lettered = self._now()  # when they were counted
        self._lettering = False  # there were some then
        self._limited: dict[int, float] = {}  # queue id -> when it was told of
        self._upkeep = self._marks()

    @property
    def _engine(self) -> Engine:
        return self._server.engine

    def _now(self) -> float:
        return self._server.loop.time()

    def _tell(self, name: str, fields: Mapping[str, object], *, level: Level | None = None) -> None:
        self._engine.notices.feed.tell(name, self._engine.clock.wall(), fields, level=level)

    def look(self) -> None:
        """Tell what has changed since the last look."""
        self._look_at_alarms()
        self._look_at_letters()
        self._look_at_pipelines()
        self._look_at_upkeep()
        if self.census.gone:
            self._look_at_limits()

    def _look_at_alarms(self) -> None:
        found = alarms(self._engine, self.alarms, slowed_us=self._server.pace.lag_us)
        for name in found.keys() - self.alarms.keys():
            self._tell("alarm.set", {"alarm": name, "reason": found[name]})
        for name in self.alarms.keys() - found.keys():
            self._tell("alarm.cleared", {"alarm": name, "reason": self.alarms[name]})
        self.alarms = found

    def _look_at_letters(self) -> None:
        counts, now = self._engine.core.dead_lettered, self._now()
        if self._lettering and now - self._lettered < QUIET_S:
            return
        new = {why: count - self._letters.get(why, 0) for why, count in counts.items()}
        reasons = {why: count for why, count in new.items() if count}
        self._lettering = bool(reasons)
        if reasons:
            fields = {"count": sum(reasons.values()), "reasons": reasons, "seconds": round(now - self._lettered, 3)}
            self._tell("dead_letters", fields)
        self._letters, self._lettered = dict(counts), now

    def _look_at_pipelines(self) -> None:
        found = {str(one["pipeline"]): (one.get("state"), one.get("error")) for one in self._engine.pipelines.all()}
        before = self._pipelines
        self._pipelines = found
        if before is None or found == before:
            return
        for name, (state, error) in found.items():
            if before.get(name) != (state, error):
                was = before.get(name, (None, None))[0]
                fields = {"pipeline": name, "state": state, "was": was, "error": error}
                self._tell("pipeline.changed", fields, level=MONITORING)

    def _marks(self) -> tuple[int, int, int, int, int]:
        """Checkpoints, files rewritten, bytes freed, rows dropped, and where the log begins."""
        keeper: Keeper | None = getattr(self._server, "keeper", None)  # a broker of tests has none
        first = self._server.log.first_lsn
        if keeper is None:
            return 0, 0, 0, 0, first
        totals = keeper.compaction.totals
        return keeper.checkpoints, totals.rewritten, totals.freed, totals.dropped, first

    def _look_at_upkeep(self) -> None:
        before, marks = self._upkeep, self._marks()
        if marks == before:
            return
        self._upkeep = marks
        if marks[0] != before[0]:
            self._tell("log.checkpoint", {"durable_lsn": self._server.log.durable}, level=MONITORING)
        if marks[1:4] != before[1:4]:
            rewritten, freed, dropped = (after - then for after, then in zip(marks[1:4], before[1:4], strict=True))
            self._tell("log.compacted", {"rewritten": rewritten, "freed": freed, "dropped": dropped}, level=MONITORING)
        if marks[4] != before[4]:
            self._tell("log.retired", {"first_lsn": marks[4]}, level=MONITORING)

    def _look_at_limits(self) -> None:
        now, gone = self._now(), self.census.gone
        self._limited = {number: at for number, at in self._limited.items() if now - at < QUIET_S}
        due = [number for number in gone if number not in self._limited][:LIMITED_MOST]
        for number in due:
            counts = gone.pop(number)
            self._limited[number] = now
            queue = self._engine.core.queue_by_id(number)
            if queue is not None:
                fields = {"vhost": queue.vhost, "queue": queue.name, **counts}
                wall = self._engine.clock.wall()
                self._engine.notices.feed.tell("queue.limited", wall, fields, vhost=queue.vhost, queue=queue.name)
