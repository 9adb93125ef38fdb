"""Alarms: what is wrong with the server while it goes on, by name, with the reason.

They are looked at once a second, whoever listens: one that is set or over is an event and a line of the server's log.
A member that follows has one of its own, of its disk, and nobody to tell events to; `cluster.rehearsal` finds another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Part, names_of
from penstock.log.writer import KEPT
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.ports import Clock, Disk
    from penstock.server.engine import Engine

logger = logging.getLogger("penstock.server")

NO_DESCRIPTOR = "no descriptor is left for connections: they wait until one is given back"

LASTS_S: Mapping[str, int] = {"upkeep": 10}
"""Seconds that one of these stands before the log has a line of it: it comes and goes with the load."""

MEMBERS = "members"
RETOLD = frozenset({MEMBERS})
"""Whose reasons say who: another one is news. Those of others say how much."""

LOOK_US = 1_000_000

AHEAD_US = 1_000_000
"""The machine's clock is an alarm when it is so much behind the log's time."""

SEGMENTS_LEFT = 2
"""The disk is nearly full when there is no room for so many segments of the log beyond what is kept free; it is not any
more once there is room for one more than that."""


def alarms(
    engine: Engine, before: Mapping[str, str], *, slowed_us: int = 0, short: bool = False, members: str = ""
) -> dict[str, str]:
    """Those of now by name; before: those of the last look.  On the loop; asks the disk how much is free."""
    found: dict[str, str] = {}
    log, bodies = engine.log, engine.bodies
    if engine.broken is not None:
        found["log"] = f"nothing is stored any more: {engine.broken}; restart the server, it replays the log"
    found |= _of_the_disk(engine, "disk_low" in before)
    if bodies.tight:
        limit = format_size(bodies.budget.limit)
        found["memory"] = f"server.memory ({limit}) is used up by what no cache can give up: publishes go in portions"
    if short:
        found["descriptors"] = NO_DESCRIPTOR
    if log.damage.batches:
        found["damage"] = f"{log.damage.batches} batches of the log cannot be read; /healthz names them"
    if slowed_us:
        milliseconds = slowed_us / 1000
        found["upkeep"] = f"the log has outgrown log.retention: each batch of publishes waits {milliseconds:g} ms"
    if engine.archive is not None and engine.archive.why is not None:
        found["archive"] = f"nothing is archived, and retention waits: {engine.archive.why}"
    if (behind := clock_behind(engine, "clock" in before)) is not None:
        found["clock"] = behind
    if engine.left_out:
        found[SETTINGS] = not_in_force(engine.left_out)
    found |= _stopped(engine.core.stopped)
    if members:
        found[MEMBERS] = members
    if engine.core.draining:
        found["draining"] = "the server drains: it takes no new messages and no new consumers"
    return found


SETTINGS = "settings"
LEFT_OUT_SHOWN = 5


def not_in_force(left_out: Sequence[str]) -> str:
    """Which things of a settings file are left out, and what helps."""
    shown, more = left_out[:LEFT_OUT_SHOWN], len(left_out) - LEFT_OUT_SHOWN
    told = "; ".join((*shown, *([f"and {more} more"] if more > 0 else [])))
    way = "mend the settings file, or delete what is there, and start the server again"
    return f"what was there before holds in the place of this: {told}; {way}"


def _of_the_disk(engine: Engine, was: bool) -> dict[str, str]:
    """Full, or nearly so."""
    if engine.log.room.full:
        way = "" if engine.copies is None else f"; {engine.copies.way_out()}"
        return {"disk_full": f"{engine.log.room.why_full()}: publishes are refused until there is room{way}"}
    low = nearly_full(engine, was)
    return {} if low is None else {"disk_low": low}


def _stopped(parts: Sequence[Part]) -> dict[str, str]:
    """An alarm for each kind of them."""
    kinds = dict.fromkeys(one.kind for one in parts)
    return {f"{kind}_stopped": stopped_by_a_fault(one for one in parts if one.kind == kind) for kind in kinds}


def stopped_by_a_fault(parts: Iterable[Part]) -> str:
    """Why these do nothing, and what helps."""
    return f"an internal error has stopped {names_of(parts)}: start the server again, nothing is lost"


def clock_behind(engine: Engine, was: bool) -> str | None:
    """By how much the machine's clock is behind the log's time, if so."""
    ahead = engine.clock.ahead()
    if ahead <= (0 if was else AHEAD_US):
        return None
    return (
        f"this machine's clock is {max(ahead // 1_000_000, 1)} s behind the log: times go on from the last record, "
        "a tenth slower, until both are the same"
    )


def nearly_full(engine: Engine, was: bool) -> str | None:
    """Why the disk of the data folder is nearly full, if so."""
    settings = engine.log.settings
    if not settings.low_space:
        return None  # it is not asked
    kept = engine.log.room.least
    then = f"publishes are refused below {format_size(kept)}"
    return room_left(engine.log.disk.free(), kept, settings.segment, then, was)


def room_left(free: int, kept: int, segment: int, then: str, was: bool) -> str | None:
    """Why a disk with so many bytes free is nearly full, if so.  then: what comes of it."""
    if free >= kept + (SEGMENTS_LEFT + was) * segment:
        return None
    return (
        f"the disk has {format_size(free // 1024 * 1024)} left: the log needs {format_size(segment)} for its next "
        f"segment, and {then}"
    )


class Told:
    """Alarms that are set: what has changed since the last look is told."""

    def __init__(self, mono: Callable[[], int], tell: Callable[[str, str, str], object]) -> None:
        """mono: microseconds.  tell: an event, of which alarm, and why."""
        self.now: dict[str, str] = {}
        self._mono, self._tell = mono, tell
        self._since: dict[str, int] = {}  # by name, monotonic
        self._logged = set[str]()  # names

    def look(self, found: dict[str, str]) -> None:
        """These are set now, by name, with the reason."""
        mono, before = self._mono(), self.now
        self.now = found
        others = {name for name in RETOLD & found.keys() & before.keys() if found[name] != before[name]}
        self._logged -= others
        for name in (found.keys() - before.keys()) | others:
            self._since.setdefault(name, mono)
            self._tell("alarm.set", name, found[name])
        for name, reason in found.items():
            if name not in self._logged and mono - self._since[name] >= LASTS_S.get(name, 0) * 1_000_000:
                self._logged.add(name)
                logger.warning("alarm %s: %s", name, reason)
        for name in before.keys() - found.keys():
            lasted = (mono - self._since.pop(name)) / 1e6
            if name in self._logged:
                self._logged.remove(name)
                logger.warning("alarm %s is over, after %.0f s", name, lasted)
            self._tell("alarm.cleared", name, before[name])


class Alarms:
    """A server's.  Belongs to the loop's thread."""

    def __init__(
        self, engine: Engine, slowed_us: Callable[[], int], short: Callable[[], bool] = bool,
        members: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        """slowed_us: how long upkeep has each batch of publishes wait.  short: whether descriptors are (`Entry`).

        members: who of a cluster is not in sync; empty: nobody
        """
        self._engine = engine
        self._slowed_us, self._short, self._members = slowed_us, short, members
        self._told = Told(engine.clock.mono, self._tell)
        self._from_mono: int | None = None  # microseconds from the monotonic clock to the time of the log

    @property
    def now(self) -> Mapping[str, str]:
        """Those of the last look, by name, with the reason."""
        return self._told.now

    def beat(self) -> None:
        """Tell what has changed since the last look."""
        self._look_at_clock()
        slowed_us, short, members = self._slowed_us(), self._short(), self._members()
        found = alarms(self._engine, self._told.now, slowed_us=slowed_us, short=short, members=members)
        self._engine.alarms = found
        self._told.look(found)

    def _look_at_clock(self) -> None:
        """Say that time has jumped: one that goes back is the alarm `clock`, and no jump."""
        clock = self._engine.clock
        before, self._from_mono = self._from_mono, clock.wall() - clock.mono()
        if before is not None and (ahead := self._from_mono - before) >= AHEAD_US:
            logger.warning(
                "the machine's clock was set forward by %.0f s, or it slept: what expires or is due by then is so now",
                ahead / 1e6,
            )

    def _tell(self, event: str, name: str, reason: str) -> None:
        self._engine.notices.feed.tell(event, self._engine.clock.wall(), {"alarm": name, "reason": reason})


class FollowerAlarms:
    """Of a member that follows: its disk, of which the copy of the log may leave nothing."""

    def __init__(self, disk: Disk, segment: int, clock: Clock) -> None:
        self._disk, self._segment = disk, segment
        self._at = clock.mono()  # when to look again
        self._clock = clock
        self._told = Told(clock.mono, lambda event, name, reason: None)

    def look(self) -> Mapping[str, str]:
        """Those that are set, by name, with the reason; once a second it asks the disk how much is free."""
        mono = self._clock.mono()
        if mono >= self._at:
            self._at = mono + LOOK_US
            then = "this member ends when nothing is left"
            was, kept = "disk_low" in self._told.now, KEPT.low_space + KEPT.reserve
            low = room_left(self._disk.free(), kept, self._segment, then, was)
            self._told.look({} if low is None else {"disk_low": low})
        return self._told.now
