"""The views and conflated topics of one engine, by name: they hear what each turn decided, and are read and followed.

Off the critical path: a turn pays for looking whether its journal concerns a view.  `step_worker` does what follows
from the journal.

`Builder` begins a view: its source is found, gone through portion by portion, and what happened meanwhile follows. A
view holds nothing that lasts, so this is also what a start of the server asks for, and a queue that is declared anew or
filled from the log (`recovery_point`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.core.queue.order.runs import packed
from penstock.core.queue.order.runs import view as array_of
from penstock.core.sow.holding import Sow
from penstock.core.sow.index import Index
from penstock.core.view_contributions import AVAILABLE, AWAY, INACTIVE, Join
from penstock.core.view_feed import Moved, Noted
from penstock.core.view_groups import Changed, Side
from penstock.errors import InvalidArgument, NotFound, PenstockError
from penstock.expr.view_definition import Definition
from penstock.server.views.conflated import ConflatedTopic
from penstock.server.views.record_source import RecordSource, unkeyed
from penstock.server.views.row_source import RowSource, conflated
from penstock.server.views.rowfeed import RowFeed
from penstock.server.views.shown import Alarms, Live
from penstock.server.views.step_worker import PORTION, Worker, edge_of, portion

if TYPE_CHECKING:
    from penstock.core.effects import Dying
    from penstock.core.queue.places import State
    from penstock.core.queue.queue import Queue
    from penstock.records.entries import Entry
    from penstock.server.follow import Source
    from penstock.server.judging import Judges
    from penstock.server.replaying import Replays
    from penstock.server.runtime import Off, Runtime
    from penstock.server.views.conflated import ConflatedDefinition
    from penstock.server.views.record_query import Event, Wish


STATES: Mapping[State, int] = {
    "ready": AVAILABLE, "held": AVAILABLE, "inactive": INACTIVE, "delayed": AWAY, "leased": AWAY, "dying": AWAY,
    "foreign": AVAILABLE,
}  # fmt: skip
"""What each state of a message is for a view."""

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Builder:
    """All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime, worker: Worker) -> None:
        self._runtime = runtime
        self._worker = worker

    # -- sources

    def source(self, vhost: str, name: str) -> Queue | Sow | None:
        """The topic with a key of a name, or the queue."""
        topic = self.topic(vhost, name)
        if topic is not None:
            return topic
        try:
            return self._runtime.core.queue(vhost, name)
        except PenstockError:
            return None  # none there, or another connection has it for itself

    def topic(self, vhost: str, name: str) -> Sow | None:
        """The topic with a key: `K`, or `E/K`."""
        exchange, slash, key = name.partition("/")
        by_name = self._runtime.core.sows.by_name
        found = by_name.get((vhost, exchange, key)) if slash and exchange else None
        return found or by_name.get((vhost, "", name))

    def look(self, live: Live) -> None:
        """A queue or topic was declared or deleted: the view may have another source now."""
        source = self.source(live.vhost, live.definition.source)
        if (0 if source is None else source.id) != live.source:
            if live.source:
                self.detach(live)
            self.attach(live)

    def again(self, live: Live) -> None:
        self.detach(live)
        self.attach(live)

    # -- the beginning and the end

    def detach(self, live: Live) -> None:
        """What the view gathered is gone."""
        worker = self._worker
        live.into.clear()
        worker.dirty[live] = None
        mine = worker.by_source.get(live.source, [])
        if live in mine:
            mine.remove(live)
            if not mine:
                del worker.by_source[live.source]
                worker.feed.forget(live.source)
        live.source = 0
        live.building = False
        live.floor = None
        live.later.clear()
        live.round += 1

    def attach(self, live: Live) -> None:
        """Begin to gather the source, if it is there: first what it holds."""
        core, worker = self._runtime.core, self._worker
        source = self.source(live.vhost, live.definition.source)
        if source is None:
            self._let_go(live)
            return
        live.source = source.id
        live.message_type = (source.rule if isinstance(source, Sow) else source.settings).message_type
        live.since = core.last_lsn
        worker.by_source.setdefault(source.id, []).append(live)
        known = source.id in worker.feed.watched
        if isinstance(source, Sow):
            numbers, lsns, deadlines = source.index.snapshot().packed()
            if not known:
                index = Index.load(numbers, lsns, deadlines) if numbers else Index()
                worker.feed.watch_topic(source.id, live.since, index)
            places = np.sort(np.array(lsns, dtype=np.int64))
            states = np.full(len(places), AVAILABLE, np.uint8)
        else:
            if not known:
                worker.feed.watch(source.id, live.since, edge_of(source))
            places, states = held_by(source)
        if not len(places):
            self._let_go(live)
            return
        live.building = True
        live.floor = int(places[0])
        self._runtime.when_durable(live.since, partial(self._build, live, live.round, places, states, 0))
        self._runtime.arm()

    def _build(self, live: Live, round: int, places: Ints, states: Bytes, at: int) -> None:
        """Read the next portion of what the source held."""
        if live.closed or live.round != round:
            return
        if at >= len(places):
            live.floor = None
            self._catch_up(live, round)
            return
        live.floor = int(places[at])
        some = places[at : at + PORTION]
        step = Noted(live.source, packed(some), states[at : at + len(some)].tobytes())

        def then(read: int) -> None:
            self._runtime.call_soon(partial(self._build, live, round, places, states, at + read))

        self._worker.read([live], step, then)

    def _catch_up(self, live: Live, round: int) -> None:
        """Do what happened meanwhile, in order; more may come while it is done."""
        if live.closed or live.round != round:
            return
        while live.later:
            step = live.later.popleft()
            if isinstance(step, Moved):
                step, rest = portion([live], step)
                self._worker.move(live, step)
                if live.round != round:
                    return
                if rest is not None:
                    live.later.appendleft(rest)
                    self._runtime.call_soon(partial(self._catch_up, live, round))
                    return
                continue
            live.floor = step.lsns[0]
            self._worker.read([live], step, partial(self._read, live, round, step))
            return
        live.floor = None
        live.building = False
        self._worker.dirty[live] = None
        self._worker.flush()
        self._let_go(live)

    def _read(self, live: Live, round: int, step: Noted, read: int) -> None:
        if live.round == round and read < len(step.lsns):
            live.later.appendleft(Noted(step.queue, step.lsns[read:], step.states[read:]))
        self._runtime.call_soon(partial(self._catch_up, live, round))

    @staticmethod
    def _let_go(live: Live) -> None:
        """Who waited for it to be built goes on."""
        waiting, live.waiting = live.waiting, []
        for then in waiting:
            then()


def held_by(queue: Queue) -> tuple[Ints, Bytes]:
    """LSNs of all living messages, ascending, and the state of each."""
    lsns: list[Ints] = [np.zeros(0, np.int64)]
    states: list[Bytes] = [np.zeros(0, np.uint8)]
    for place in queue.places():
        for chunk in place.chunks():
            lsns.append(array_of(chunk))
            states.append(np.full(len(chunk), STATES[place.state], np.uint8))
    every = np.concatenate(lsns)
    order = np.argsort(every, kind="stable")
    return every[order], np.concatenate(states)[order]


Name = tuple[str, str]
"""Vhost and name."""


class Views:
    """All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime, judges: Judges, replays: Replays) -> None:
        self.active = False  # there are views: the engine tells what each turn has decided
        self.alarms = Alarms(runtime)  # what is told, or looked at again, at its time
        self._runtime = runtime
        self._replays = replays
        self._worker = Worker(runtime, self._look, self._again)
        self._builder = Builder(runtime, self._worker)
        self._views: dict[Name, Live] = {}
        self._conflated: dict[Name, ConflatedTopic] = {}
        self._serial = 0
        self.rows_published = RowFeed(runtime, judges, self.alarms, self)  # to queues that show them

    def run_off(self, off: Off) -> None:
        """Where to evaluate, off the loop."""
        self._worker.off = off

    # -- what the engine tells, and asks

    def gather(self, journal: Sequence[Entry]) -> None:
        """A turn has decided this; it is not durable yet."""
        self._worker.gather(journal)

    def dying(self, effect: Dying) -> None:
        """Messages leave a queue, of which no record tells yet; the turn's records were gathered."""
        self._worker.dying(effect)

    def committed(self, lsn: int) -> None:
        """Everything up to this LSN is durable."""
        self._worker.committed(lsn)

    def floor(self) -> int | None:
        """The lowest LSN that a view may still read."""
        floor = self._worker.floor()
        for live in self._all():
            lows = [step.lsns[0] for step in live.later if isinstance(step, Noted)]
            floor = min([floor, *lows, *(() if live.floor is None else (live.floor,))])
        return floor

    # -- which there are

    def add(self, definition: Definition) -> Live:
        """A view more.  Its queue or topic may come later; a view that it gathers must be there.

        ExpressionError for what cannot be computed, InvalidArgument for a name that is taken.
        """
        key = self._free(definition)
        live = Live(definition, self.when_current)
        self._views[key] = live
        self._begin()
        joined = live.view.plan.joined
        if joined is None:
            self._gather_from(live)
            return live
        live.join = Join(joined, definition.null_equivalency)
        for place, source in enumerate(joined.sources):
            own = replace(definition, source=source, join=(), select=("COUNT(1) AS /n",), group_by=())
            side = Live(own, self.when_current, Side(live.join, place), live)
            live.sides.append(side)
            self._gather_from(side)
        return live

    def _free(self, definition: Definition | ConflatedDefinition) -> tuple[str, str]:
        """Its name.  InvalidArgument where that is taken."""
        key = (definition.vhost, definition.name)
        if self.shown(*key) is not None:
            raise InvalidArgument(f"there is a view or conflated topic '{definition.name}' already")
        return key

    def add_unnamed(self, definition: Definition) -> Live:
        """A view for one subscriber, who drops it.  Errors as `add`."""
        self._serial += 1
        return self.add(replace(definition, name=f"\0{self._serial}"))

    def drop(self, live: Live) -> None:
        """A view is no longer wanted; nothing gathers it."""
        live.closed = True
        del self._views[live.definition.vhost, live.name]
        for one in (live, *live.sides):
            one.closed = True
            self._builder.detach(one)
            if one.above is not None:
                one.above.below.remove(one)

    def add_conflated(self, definition: ConflatedDefinition) -> ConflatedTopic:
        """A conflated topic more.  Its source may come later.  Errors as `add`."""
        key = self._free(definition)
        topic = self._conflated[key] = ConflatedTopic(self.alarms, definition)
        self._begin()
        self._follow(topic)
        return topic

    def shown(self, vhost: str, name: str) -> Live | ConflatedTopic | None:
        """The view or conflated topic of a name."""
        return self._views.get((vhost, name)) or self._conflated.get((vhost, name))

    def known(self, vhost: str, name: str) -> bool:
        """Whether there is something of this name that a view can gather."""
        return (vhost, name) in self._views or self._builder.source(vhost, name) is not None

    def all_shown(self) -> list[Live | ConflatedTopic]:
        """All that have a name, in the order in which they came."""
        named = [live for live in self._views.values() if not live.name.startswith("\0")]
        return [*named, *self._conflated.values()]

    def lag(self, shown: Live | ConflatedTopic) -> int:
        """Durable records of the log that a view has not taken in; a conflated topic waits for its time alone."""
        durable = self._runtime.log.durable
        lives = () if not isinstance(shown, Live) else shown.sides or (shown,)
        behind = [one.floor for one in lives if one.building and one.floor is not None]
        waits = self._worker.waits if lives else None
        return max((durable + 1 - lsn for lsn in (*behind, *(() if waits is None else (waits,)))), default=0)

    @property
    def unnamed(self) -> int:
        """Aggregated subscriptions that are open."""
        return sum(1 for live in self._views.values() if live.name.startswith("\0"))

    def events(self, vhost: str, exchange: str, topic: str, wish: Wish) -> Source[list[Event]]:
        """What a subscriber to rows or records is told: of a view, of a topic with a key, or of one without.

        Errors: ExpressionError, InvalidArgument, NotFound.
        """
        rows = None if exchange else self._rows(vhost, topic, wish)
        if rows is not None:
            return rows
        core, replays = self._runtime.core, self._replays
        sow = core.sows.by_name.get((vhost, exchange, topic))
        wish = wish.reading(core.message_type(vhost, exchange, topic) if sow is None else sow.rule.message_type)
        if sow is None:
            return conflated(self.alarms, wish, unkeyed(core, replays, vhost, exchange, topic, wish))
        return conflated(self.alarms, wish, RecordSource(self._runtime, replays, sow, wish))

    def _rows(self, vhost: str, topic: str, wish: Wish) -> Source[list[Event]] | None:
        """The rows of a name, or those that a projection and a grouping make; None when there are none.

        Errors: ExpressionError; InvalidArgument for one of projection and grouping alone; NotFound for their source.
        """
        clock = self._runtime.clock
        if not wish.projection and wish.grouping is None:
            shown = self.shown(vhost, topic)
            return None if shown is None else conflated(self.alarms, wish, RowSource(clock, shown, wish))
        if not wish.projection or wish.grouping is None:
            raise InvalidArgument("projection and grouping go together: an aggregated subscription needs both")
        if not self.known(vhost, topic):
            raise NotFound(f"no queue, topic with a key or view '{topic}' in vhost '{vhost}'")
        live = self.add_unnamed(Definition("", topic, wish.projection, wish.grouping, wish.filter, vhost))
        rest = replace(wish, filter=None, projection=(), grouping=None)
        try:
            return conflated(self.alarms, rest, RowSource(clock, live, rest, topic, lambda: self.drop(live)))
        except BaseException:
            self.drop(live)
            raise

    def when_current(self, live: Live, then: Callable[[], None]) -> None:
        """Call back once a view has all that was decided so far; perhaps before this returns."""
        runtime, worker = self._runtime, self._worker

        def mark() -> None:
            unready = live.unready()
            if unready is not None:
                unready.waiting.append(mark)
            else:
                then()

        def durable() -> None:
            worker.committed(runtime.log.durable)
            worker.when_done(mark)

        runtime.arm()
        runtime.when_durable(runtime.core.last_lsn, durable)

    # -- sources

    def _begin(self) -> None:
        """From the first view on the engine tells what it decides."""
        if not self.active:
            self.active = True
            self._runtime.readers.append(self.floor)

    def _all(self) -> list[Live]:
        """Every view, sides instead of what joins them."""
        return [one for live in self._views.values() for one in (live.sides or (live,))]

    def _gather_from(self, live: Live) -> None:
        """Begin to gather the source, be it a view, or else a queue or topic that may come later."""
        source = self._views.get((live.vhost, live.definition.source))
        if source is None or source is live or source is live.over:
            self._builder.attach(live)
            return
        live.above = source
        source.below.append(live)
        if live.over is not None and live.over.join is not None:
            live.over.join.ageless.add(live.over.sides.index(live))
        self._worker.pass_on(source, live, [Changed(key, None, row) for key, row in source.view.rows.items()])
        self._worker.flush()

    def _again(self, live: Live) -> None:
        self._builder.again(live)

    def _look(self) -> None:
        """A queue or topic was declared or deleted."""
        for live in self._all():
            if live.above is None:
                self._builder.look(live)
        for topic in self._conflated.values():
            if topic.follows and not topic.source:
                continue  # rows stay as long as the server runs
            found = self._builder.topic(topic.vhost, topic.definition.source)
            if topic.source != (0 if found is None else found.id):
                topic.let_go()
            if not topic.follows:
                self._follow(topic)
        self.rows_published.look()

    def _follow(self, topic: ConflatedTopic) -> None:
        """Have a conflated topic follow its source, if that is there."""
        definition = topic.definition
        shown = self.shown(definition.vhost, definition.source)
        if shown is not None and shown is not topic:
            topic.follow(RowSource(self._runtime.clock, shown, topic.wish))
            return
        found = self._builder.topic(definition.vhost, definition.source)
        if found is not None:
            topic.follow(RecordSource(self._runtime, self._replays, found, topic.wish), found.id)
