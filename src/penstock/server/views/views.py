"""The views and conflated topics of one engine, by name: they hear what each turn decided, and are read and followed.

Off the critical path: a turn pays for looking whether its journal concerns a view.  `step_worker` does what follows
from the journal, `builder` begins a view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.queue.order.runs import NEVER
from penstock.core.view_contributions import Join
from penstock.core.view_feed import Noted
from penstock.core.view_groups import Changed, Side
from penstock.errors import InvalidArgument, PenstockError
from penstock.expr.view_definition import Definition
from penstock.server.base.faults import TOLD, Told
from penstock.server.views.builder import Builder
from penstock.server.views.conflated import ConflatedDefinition, ConflatedTopic, RowFeed
from penstock.server.views.record_source import RecordSource, unkeyed
from penstock.server.views.row_source import RowSource, conflated, name_of, topic_of
from penstock.server.views.setbacks import Alarms, Setback, not_level
from penstock.server.views.shown import Live, Refuse
from penstock.server.views.step_worker import Worker

if TYPE_CHECKING:
    from penstock.core.effects import Dying
    from penstock.records.entries import Entry
    from penstock.server.asking.judging import Judges
    from penstock.server.base.runtime import Off, Runtime
    from penstock.server.follow import Source
    from penstock.server.people.access import Charge
    from penstock.server.replaying import Replays
    from penstock.server.views.record_query import Event, Wish


Name = tuple[str, str]
"""Vhost and name."""


class Views:
    """All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime, judges: Judges, replays: Replays) -> None:
        self.active = False  # there are views: the engine tells what each turn has decided
        self.alarms = Alarms(runtime)  # what is told, or looked at again, at its time
        self._runtime = runtime
        self._replays = replays
        self._worker = Worker(runtime, self._look, self._again, self._fail)
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
        self._hear(partial(self._worker.gather, journal))

    def dying(self, effect: Dying) -> None:
        """Messages leave a queue, of which no record tells yet; the turn's records were gathered."""
        self._hear(partial(self._worker.dying, effect))

    def committed(self, lsn: int) -> None:
        """Everything up to this LSN is durable."""
        self._hear(partial(self._worker.committed, lsn))

    def floor(self) -> int | None:
        """The lowest LSN that a view may still read."""
        floor = self._worker.floor()
        for live in self._all():
            lows = [step.lsns[0] for step in live.later if isinstance(step, Noted)]
            floor = min([floor, *lows, *(() if live.floor is None else (live.floor,))])
        return floor

    @property
    def held(self) -> int:
        """Bytes that those take, about, which nobody is charged for."""
        return sum(live.view.held for live in self._all() if live.charge is None)

    # -- which there are

    def add(self, definition: Definition, charge: Charge | None = None) -> Live:
        """A view more.  Its queue or topic may come later; a view that it gathers must be there.  charge: see `Live`.

        ExpressionError for what cannot be computed, InvalidArgument for a name that is taken.
        """
        key = self._free(definition)
        live = Live(definition, self.when_current, charge=charge)
        begin, stop = partial(self._begin_anew, live), partial(self._stop, live)
        live.setback = Setback(self._runtime, self.alarms, begin, stop)
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

    def add_unnamed(self, definition: Definition, charge: Charge | None) -> Live:
        """A view for one subscriber, who drops it.  Errors as `add`."""
        self._serial += 1
        return self.add(replace(definition, name=f"\0{self._serial}"), charge)

    def drop(self, live: Live) -> None:
        """A view is no longer wanted; nothing gathers it."""
        del self._views[live.definition.vhost, live.name]
        live.setback.end()
        charge, live.charge = live.charge, None
        if charge is not None:
            charge.close()
        for one in live.parts:
            one.closed = True
            self._builder.detach(one)
            if one.above is not None:
                one.above.below.remove(one)

    def add_conflated(self, definition: ConflatedDefinition) -> ConflatedTopic:
        """A conflated topic more.  Its source may come later.  Errors as `add`."""
        key = self._free(definition)
        topic = self._conflated[key] = ConflatedTopic(self.alarms, definition)
        topic.setback = Setback(self._runtime, self.alarms, partial(self._follow_anew, topic), topic.stop)
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
        log = self._runtime.log
        lives = () if not isinstance(shown, Live) else shown.sides or (shown,)
        behind = [one.floor for one in lives if one.building and one.floor is not None]
        if isinstance(shown, Live) and shown.setback.lasts:
            behind.append(shown.failed_at)
        waits = self._worker.waits if lives else None
        since = (*behind, *(() if waits is None else (waits,)))
        return log.records_between(min(since), log.durable + 1) if since else 0

    @property
    def unnamed(self) -> int:
        """Aggregated subscriptions that are open."""
        return sum(1 for live in self._views.values() if live.name.startswith("\0"))

    def events(
        self, vhost: str, exchange: str, topic: str, wish: Wish, charge: Charge | None = None
    ) -> Source[list[Event]]:
        """What a subscriber to rows or records is told: of a view, of a topic with a key, or of one without.

        charge: of what is gathered, or waits, for him alone.
        Errors: ExpressionError, InvalidArgument, NotFound.
        """
        rows = None if exchange else self._rows(vhost, topic, wish, charge)
        if rows is not None:
            return rows
        core, replays = self._runtime.core, self._replays
        sow = core.sows.by_name.get((vhost, exchange, topic))
        kind = partial(core.message_type, vhost, exchange, topic)
        wish = wish.reading(kind())
        if sow is None:
            found = unkeyed(core, replays, (vhost, exchange, topic), wish, self.shown)
        else:
            found = RecordSource(self._runtime, replays, sow, wish)
        return conflated(self.alarms, wish, found, charge, kind)

    def _rows(self, vhost: str, topic: str, wish: Wish, charge: Charge | None) -> Source[list[Event]] | None:
        """The rows of a name, or those that a projection and a grouping make; None when there are none.

        Errors: ExpressionError; InvalidArgument for one of projection and grouping alone; NotFound for their source.
        """
        clock, turns = self._runtime.clock, self._runtime.turns
        if not wish.projection and wish.grouping is None:
            shown = self.shown(vhost, topic)
            if shown is None:
                return None
            return conflated(self.alarms, wish, RowSource(clock, shown, wish, turns=turns), charge)
        if not wish.projection or wish.grouping is None:
            raise InvalidArgument("projection and grouping go together: an aggregated subscription needs both")
        if not self.known(vhost, topic):
            why = f"no queue, topic with a key or view '{topic}' in vhost '{vhost}'"
            raise self._runtime.core.missing_topic(vhost, "", topic, why, self.shown)
        live = self.add_unnamed(Definition("", topic, wish.projection, wish.grouping, wish.filter, vhost), charge)
        if (found := self._builder.source(vhost, topic)) is not None:
            live.only = name_of(found)  # its subscriber may read this, and perhaps not what comes to have the name
        rest = replace(wish, filter=None, projection=(), grouping=None)
        try:
            rows = RowSource(clock, live, rest, topic, lambda: self.drop(live), turns=turns)
            live.give_up = rows.end
            live.weigh()  # what it began with
            return conflated(self.alarms, rest, rows)
        except BaseException:
            self.drop(live)
            raise

    def when_current(self, live: Live, then: Callable[[], None], refuse: Refuse | None = None) -> None:
        """Call back once a view has all that was decided so far; perhaps before this returns.

        refuse: told instead where it, or what it rests on, has failed and is not level again.
        """
        runtime, worker = self._runtime, self._worker

        def mark() -> None:
            unready = live.unready()
            if unready is None:
                then()
            elif refuse is not None and unready.whole.setback.lasts:
                refuse(not_level(unready.whole.name))
            else:
                unready.waiting.append((mark, refuse))

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
        self._gather_above(live, source)

    def _gather_above(self, live: Live, source: Live) -> None:
        self._worker.pass_on(source, live, [Changed(key, None, row) for key, row in source.view.rows.items()])
        self._worker.flush()

    def _again(self, live: Live) -> None:
        self._builder.again(live)

    def _look(self) -> None:
        """A queue or topic was declared, altered or deleted."""
        for live in self._all():
            if live.above is None and not live.stopped:
                self._builder.look(live)
        for topic in self._conflated.values():
            end = partial(topic.ended, PenstockError(TOLD))
            self._runtime.faults.run(partial(self._look_at, topic), Told("view", end))
        self.rows_published.look()

    def _look_at(self, topic: ConflatedTopic) -> None:
        if topic.setback.stopped or (topic.follows and not topic.source):
            return  # it looks when it begins anew, or its source are rows, which stay as long as the server runs
        found = topic_of(self._runtime.core, topic.vhost, topic.definition.source)
        if topic.source != (0 if found is None else found.id):
            topic.let_go()
        if not topic.follows:
            self._follow(topic)

    def _follow(self, topic: ConflatedTopic) -> None:
        """Have a conflated topic follow its source, if that is there."""
        definition = topic.definition
        shown = self.shown(definition.vhost, definition.source)
        if shown is not None and shown is not topic:
            topic.follow(RowSource(self._runtime.clock, shown, topic.wish))
            return
        found = topic_of(self._runtime.core, definition.vhost, definition.source)
        if found is not None:
            topic.follow(RecordSource(self._runtime, self._replays, found, topic.wish), found.id)

    def _follow_anew(self, topic: ConflatedTopic) -> None:
        before = topic.source
        topic.begin_anew()
        found = topic_of(self._runtime.core, topic.vhost, topic.definition.source)
        if before and before != (0 if found is None else found.id):
            topic.let_go()
        self._follow(topic)
        if not topic.follows:
            topic.setback.over()  # its source may come again

    # -- what fails

    def _hear(self, work: Callable[[], None]) -> None:
        """Take in what happened.  What is not understood may be about any view that gathers a queue or a topic."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the border of views: the log gets what was decided all the same
            lives = [one for one in self._all() if one.above is None]
            if not lives:
                self._runtime.faults.contain(error, Told("view"), beside=True)
            self._fail(lives, error)
            self._worker.look_at(self._runtime.core.last_lsn)

    def _fail(self, lives: Sequence[Live], error: Exception) -> None:
        """What was to be done for these has failed, and they may be half changed: each begins anew in a while."""
        for live in dict.fromkeys(one.whole for one in lives):
            self._runtime.faults.contain(error, live.setback, beside=True)

    def _stop(self, live: Live) -> None:
        """Nothing is brought to a view, and it has nothing but its rows as they were told."""
        if live.join is not None:
            live.join.empty()
        live.failed_at = self._runtime.log.durable
        refused = [refuse for one in live.parts for _, refuse in one.waiting if refuse is not None]
        for one in live.parts:
            self._builder.detach(one)
            one.ids.clear()
            one.building, one.since = True, NEVER
            one.waiting = [(then, refuse) for then, refuse in one.waiting if refuse is None]
        for refuse in refused:
            refuse(not_level(live.name))

    def _begin_anew(self, live: Live) -> None:
        for one in live.parts:
            one.building = False
        for one in live.sides or (live,):
            if one.above is None:
                self._builder.attach(one)
            else:
                self._gather_above(one, one.above)
        self._worker.dirty[live] = None
        self._worker.flush()
