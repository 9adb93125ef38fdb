"""Looks at the server: once a second for what no record and no door tells of, and the census of all queues.

Limits, dead letters, pipelines, upkeep of the log; `server.alarms` has what is wrong. What happens to messages is told
as a number for the time since the last word about it, never one by one.

The census: how many messages every queue has, and how fast they come and go; counted for all onlookers together. The
first count looks at every queue, a later one at those that something happened to since: ten thousand idle queues cost
nothing. Once a minute all are looked at again. A count goes in steps of a few milliseconds, and is made at most four
times a second, however many look on. Rates are those between two counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from penstock.records.dataclass import dataclass
from penstock.records.event_actions import ENDS
from penstock.records.rights import MONITORING, Level
from penstock.wire.http.events import TOP_MOST
from penstock.wire.http.lists import gathered

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue
    from penstock.server.engine import Engine
    from penstock.server.services import Server
    from penstock.server.upkeep.keeper import Keeper


APART_S = 0.25
"""Between two counts at least."""

WHOLE_S = 60.0
"""After so long everything is counted anew."""

LIMITS = ("dropped", "replaced", "refused")
"""What limits do, as `Figures` counts it."""


@dataclass(slots=True, eq=False)
class Row:
    """One queue as of the last count; counters are since the start, rates a second."""

    queue: Queue
    ready: int = 0
    leased: int = 0
    delayed: int = 0
    messages: int = 0
    consumers: int = 0
    arrived: int = 0
    delivered: int = 0
    acked: int = 0
    publish_rate: float = 0.0
    deliver_rate: float = 0.0
    ack_rate: float = 0.0
    losses: tuple[int, ...] = ()  # of `LIMITS`, then of `ENDS`
    told: dict[str, object] | None = None  # as it was told of, until it is counted again

    def plain(self) -> dict[str, object]:
        """As JSON has it, with the names that the management API gives them."""
        if self.told is None:
            self.told = self._plain()
        return self.told

    def _plain(self) -> dict[str, object]:
        return {
            "name": self.queue.name,
            "vhost": self.queue.vhost,
            "messages": self.messages,
            "messages_ready": self.ready,
            "messages_unacknowledged": self.leased,
            "messages_delayed": self.delayed,
            "consumers": self.consumers,
            "publish_rate": round(self.publish_rate, 3),
            "deliver_rate": round(self.deliver_rate, 3),
            "ack_rate": round(self.ack_rate, 3),
        }


class Sight(NamedTuple):
    """What the same rights see of one count."""

    rights: object  # of whom; None: all of it
    queues: int
    totals: Mapping[str, float]  # `COUNTS` and `RATES` of those together
    deepest: Sequence[Row]  # those with messages or traffic


COUNTS = ("messages", "ready", "leased", "delayed", "consumers")
RATES = ("publish_rate", "deliver_rate", "ack_rate")

_counts = attrgetter(*COUNTS)
_rates = attrgetter(*RATES)


class Census:
    """The counts.  Belongs to the loop's thread; kept while somebody looks on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rows: dict[int, Row] = {}  # by queue id
        self.gone: dict[int, dict[str, int]] = {}  # what limits did to a queue, by its id, since somebody asked
        self._sums = [0] * len(COUNTS)  # of all rows
        self._counted = -1e9  # when
        self._whole = -1e9
        self._moving: set[int] = set()  # rows with a rate
        self._sights: dict[int, Sight] = {}  # of this count, by the identity of the rights
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._engine.core.watch_queues(True)
        self._counted = self._whole = -1e9

    def close(self) -> None:
        self._engine.core.watch_queues(False)
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.rows, self._moving, self.gone, self._sights = {}, set[int](), {}, {}
        self._sums = [0] * len(COUNTS)

    async def count(self, apart: float = APART_S) -> None:
        """Count, unless that was done so many seconds ago; whoever comes meanwhile waits for the same count."""
        if self._task is None or self._task.done():
            if asyncio.get_running_loop().time() - self._counted < apart:
                return
            self._task = asyncio.ensure_future(self._count())
        await asyncio.shield(self._task)

    async def _count(self) -> None:
        core, now = self._engine.core, asyncio.get_running_loop().time()
        changed: Iterable[Queue] = core.changed_queues()
        seconds = now - self._counted
        if now - self._whole >= WHOLE_S:
            self._whole, changed = now, core.queues()
            there = {queue.id for queue in changed}
            for number in self.rows.keys() - there:
                self._drop(number)
        moved, self._moving = self._moving, set[int]()
        await gathered(self._looks(changed, seconds))
        for number in moved - self._moving:
            if (row := self.rows.get(number)) is not None:
                row.publish_rate = row.deliver_rate = row.ack_rate = 0.0
                row.told = None
        self._sights.clear()
        self._counted = now

    def _looks(self, queues: Iterable[Queue], seconds: float) -> Iterator[None]:
        for queue in queues:
            self._look(queue, seconds)
            yield

    def _look(self, queue: Queue, seconds: float) -> None:
        number = queue.id
        if self._engine.core.queue_by_id(number) is not queue:
            self._drop(number)
            return
        row = self.rows.get(number)
        fresh = row is None
        if row is None:
            row = self.rows[number] = Row(queue)
        before, row.told = _counts(row), None
        row.ready, row.leased, row.delayed = queue.available, queue.leased, queue.delayed
        row.messages = row.ready + row.leased + row.delayed
        row.consumers = len(queue.consumers)
        self._sums = [total + new - old for total, new, old in zip(self._sums, _counts(row), before, strict=True)]
        counters = queue.arrived, queue.so_far.delivered, queue.so_far.acked
        if not fresh:
            rates = [
                max(after - before, 0) / seconds
                for before, after in zip((row.arrived, row.delivered, row.acked), counters, strict=True)
            ]
            row.publish_rate, row.deliver_rate, row.ack_rate = rates
            if any(rates):
                self._moving.add(number)
        row.arrived, row.delivered, row.acked = counters
        if (figures := queue.figures) is not None:
            reasons = figures.expirations or {}
            losses = (figures.dropped, figures.replaced, figures.refused, *(reasons.get(why, 0) for why in ENDS))
            if not fresh and losses != row.losses:
                self._note(number, row.losses, losses)
            row.losses = losses

    def _drop(self, number: int) -> None:
        if (row := self.rows.pop(number, None)) is not None:
            self._sums = [total - old for total, old in zip(self._sums, _counts(row), strict=True)]

    def _note(self, number: int, before: tuple[int, ...], losses: tuple[int, ...]) -> None:
        told = self.gone.setdefault(number, {})
        names = (*LIMITS, *ENDS)
        for name, then, now in zip(names, before or (0,) * len(names), losses, strict=True):
            if now > then:
                told[name] = told.get(name, 0) + now - then

    # -- what onlookers ask

    def sight(self, rights: object, visible: Callable[[], Sequence[Row] | None]) -> Sight:
        """What these rights see, worked out once a count for all who have them.  visible: the rows; None: all."""
        found = self._sights.get(id(rights))
        if found is None or found.rights is not rights:
            rows = visible()
            count = len(self.rows if rows is None else rows)
            found = Sight(rights, count, self._totals(rows), self._deepest(rows))
            self._sights[id(rights)] = found
        return found

    def _totals(self, rows: Sequence[Row] | None) -> dict[str, float]:
        if rows is None:
            counts = self._sums
            moving = [self.rows[number] for number in self._moving if number in self.rows]
        else:
            counts = [sum(column) for column in zip(*map(_counts, rows), strict=True)] or [0] * len(COUNTS)
            moving = [row for row in rows if row.queue.id in self._moving]
        rates = [round(sum(column), 3) for column in zip(*map(_rates, moving), strict=True)] or [0.0] * len(RATES)
        return dict(zip((*COUNTS, *RATES), (*counts, *rates), strict=True))

    def _deepest(self, rows: Iterable[Row] | None) -> list[Row]:
        some = self.rows.values() if rows is None else rows
        return nlargest(TOP_MOST, (row for row in some if row.messages or row.publish_rate), key=_depth)


_depth = attrgetter("messages", "publish_rate")


QUIET_S = 5.0
"""A queue that goes on losing messages to its limits is told of once in so long, and so are dead letters."""

LIMITED_MOST = 50
"""Queues whose limits are told of in one look; the others follow."""


class Watch:
    """The looks, and what the last one found.  Belongs to the loop's thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.census = Census(server.engine)
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
        self._look_at_letters()
        self._look_at_pipelines()
        self._look_at_upkeep()
        if self.census.gone:
            self._look_at_limits()

    def _look_at_letters(self) -> None:
        counts, now = self._engine.core.dead_lettered, self._now()
        if self._lettering and now - self._lettered < QUIET_S:
            return
        new = {why: count - self._letters.get(why, 0) for why, count in counts.items()}
        reasons = {why: count for why, count in new.items() if count}
        self._lettering = bool(reasons)
        if reasons:
            fields = {"count": sum(reasons.values()), "reasons": reasons, "seconds": round(now - self._lettered, 3)}
            self._tell("dead_letters", fields, level=MONITORING)
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
