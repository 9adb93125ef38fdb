"""What views do with a journal: durable steps, a portion at a time, off the critical path.

    gather (a turn ended) -> steps -> committed (they are durable) -> work -> rows that changed

Bodies are read and evaluated off the loop where there is somewhere to go, and what a portion changes is brought to the
groups in one step.  When views fall behind, bodies are let go and read from the log when it is their turn.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.core.queue.order.runs import NEVER
from penstock.core.view_contributions import AVAILABLE, AWAY, GONE, INACTIVE
from penstock.core.view_feed import Arrived, Feed, Moved, Noted, Step, Verb
from penstock.core.view_groups import Changed, Elements, Given, body_of, bring
from penstock.expr.batches import parsed
from penstock.log.writer import last_of
from penstock.memory import READ_BYTES
from penstock.records.chunks import pairs_of
from penstock.records.dataclass import dataclass
from penstock.records.entries import Entry, Publishes, Rows
from penstock.server.asking.judging import breathe
from penstock.server.views.evaluating import PORTION, elements_of, elements_of_rows, given, noted, portion

if TYPE_CHECKING:
    from penstock.core.effects import Dying
    from penstock.server.base.runtime import Off, Runtime
    from penstock.server.views.shown import Live


_STATES: Mapping[Verb, int] = {"leave": AWAY, "back": AVAILABLE, "activate": INACTIVE, "gone": GONE}
"""What messages are that are moved so."""

IN_PLACE = 64
"""So few are evaluated on the loop: handing them to a thread takes longer."""

LAG_BYTES = 16 * 2**20
"""Bodies that may wait for views.  Of what comes beyond that only the places are kept."""

LOOKED_MOST = 1000
"""Steps among which the oldest that has an LSN is looked for."""


@dataclass(eq=False)
class Worker:
    """All methods belong to the loop's thread.

    What fails at a view is told to `fail`, and the steps go on; nothing is brought to that view before it begins anew.
    """

    _runtime: Runtime
    _look: Callable[[], None]  # sources may have come or gone
    _again: Callable[[Live], None]  # the source of a view is gone, or is to be gathered anew
    fail: Callable[[Sequence[Live], Exception], None]  # what was to be done for these has failed, perhaps half way
    off: Off | None = field(default=None, init=False)  # runs work off the loop; None: in place
    by_source: dict[int, list[Live]] = field(default_factory=dict[int, "list[Live]"], init=False)
    dirty: dict[Live, None] = field(default_factory=dict["Live", None], init=False)
    _gathered: deque[tuple[int, Sequence[Step]]] = field(default_factory=deque[Any], init=False)
    """By last LSN: not durable yet."""
    _steps: deque[Step | Callable[[], None]] = field(default_factory=deque[Any], init=False)  # durable, to be done
    _busy: bool = field(default=False, init=False)  # a portion is being read or evaluated
    _armed: bool = field(default=False, init=False)
    _lag: int = field(default=0, init=False)  # bytes of batches whose bodies wait
    _kept: deque[tuple[Publishes, int]] = field(default_factory=deque[Any], init=False)  # those, oldest first

    def __post_init__(self) -> None:
        self.feed = Feed(self._runtime.core.queues_of_route)

    def floor(self) -> int:
        """The lowest LSN that is still to be read from the log."""
        steps = (step for _, some in self._gathered for step in some)
        waiting = (*steps, *self._steps)
        return min((step.lsns[0] for step in waiting if isinstance(step, Noted)), default=NEVER)

    # -- what the engine tells

    def gather(self, journal: Sequence[Entry]) -> None:
        """A turn has decided this; it is not durable yet."""
        if not journal:
            return
        steps: list[Step] = []
        last = last_of(journal[-1])
        for number in self.by_source:
            queue = self._runtime.core.queue_by_id(number)
            if queue is not None and queue.settings.target_queue_depth:
                steps += self.feed.moved(number, queue.first_inactive, last)
        for step in self.feed.read(journal):
            steps.append(self._bounded(step) if isinstance(step, Arrived) else step)
        if steps:
            self._gathered.append((last, steps))

    def look_at(self, last: int) -> None:
        """What was decided up to this LSN was not understood: sources may have come or gone."""
        self._gathered.append((last, [Moved(0, "look", (), last)]))

    def dying(self, effect: Dying) -> None:
        """Messages of a queue are on their way out: what they gave is taken away before a record says so."""
        if effect.queue in self.by_source:
            last = self._runtime.core.last_lsn
            pairs = [end for chunk in effect.chunks for end in pairs_of(chunk, False)]
            self._gathered.append((last, [Moved(effect.queue, "leave", pairs, last + 1)]))
            self.committed(self._runtime.log.durable)

    def _bounded(self, step: Arrived) -> Step:
        """The step, without bodies if too many wait already."""
        batch = step.batch
        if not self._kept or self._kept[-1][0] is not batch:
            if self._lag >= LAG_BYTES:
                return noted(step)
            self._kept.append((batch, batch.size))
            self._lag += batch.size
        return step

    def _caught_up(self, lsn: int) -> None:
        """What is being done now is of this LSN: batches before it wait no more."""
        while self._kept and self._kept[0][0].first < lsn:
            self._lag -= self._kept.popleft()[1]

    @property
    def waits(self) -> int | None:
        """The LSN of the oldest durable step that is not done; None: all are."""
        for step in islice(self._steps, LOOKED_MOST):
            match step:
                case Moved():
                    return step.lsn
                case Arrived():
                    return step.batch.first
                case Noted():
                    return step.lsns[0]
                case _:
                    continue
        return None

    def committed(self, lsn: int) -> None:
        """Everything up to this LSN is durable."""
        gathered = self._gathered
        while gathered and gathered[0][0] <= lsn:
            self._steps.extend(gathered.popleft()[1])
        self._arm()

    def when_done(self, then: Callable[[], None]) -> None:
        """Call back once all steps that are durable are done; perhaps before this returns."""
        if self._steps or self._busy:
            self._steps.append(then)
            self._arm()
        else:
            then()

    # -- work

    def _arm(self) -> None:
        if self._steps and not self._armed and not self._busy:
            self._armed = True
            self._runtime.call_soon(self._work)

    def _work(self) -> None:
        """Do steps, about a portion of messages; go on soon if some are left."""
        self._armed = False
        room = PORTION
        while self._steps and not self._busy and room > 0:
            step = self._steps.popleft()
            if isinstance(step, Moved):
                room -= self._moved(step)
            elif isinstance(step, (Arrived, Noted)):
                room -= len(step)
                self._came(step)
            else:
                self.flush()
                self._runtime.faults.run(step)
        if not self._busy:
            if not self._steps:
                self._caught_up(NEVER)
            self.flush()
        self._arm()

    def _moved(self, step: Moved) -> int:
        """Do a step, or a part of it; what it cost, in messages about."""
        if step.verb == "look":
            self._look()
            return PORTION
        ready: list[Live] = []
        for live in self.by_source.get(step.queue, ()):
            if live.building:
                live.later.append(step)
            else:
                ready.append(live)
        if not ready:
            return 1
        try:
            step, rest = portion(ready, step)
        except Exception as error:  # noqa: BLE001 - the border of views
            self._fail_alone(ready, step, error)
            self._steps.appendleft(step)  # for the others
            return PORTION
        for live in ready:
            self.move(live, step)
        if rest is not None:
            self._steps.appendleft(rest)
            return PORTION
        return 1 + len(step.pairs) // 2

    def _fail_alone(self, lives: Sequence[Live], step: Moved, error: Exception) -> None:
        """Whose fault it was shows where each is tried alone; else it was that of all."""
        before = list(lives)
        for live in lives:
            try:
                portion([live], step)
            except Exception as own:  # noqa: BLE001 - the border of each
                before.remove(live)
                self.fail([live], own)
        if len(before) == len(lives):
            self.fail(lives, error)

    def move(self, live: Live, step: Moved) -> None:
        """Bring a step to a view."""
        if step.lsn <= live.since:
            return
        self.dirty[live] = None
        try:
            self._move(live, step)
        except Exception as error:  # noqa: BLE001 - the border of each
            self.fail([live], error)

    def _move(self, live: Live, step: Moved) -> None:
        if step.verb in _STATES:
            live.into.move(step.pairs, _STATES[step.verb])
        elif step.verb != "look":
            self._again(live)

    def _came(self, step: Arrived | Noted) -> None:
        """Messages of a source, a portion of them."""
        first = step.lsns[0] if isinstance(step, Noted) else step.batch.first + step.rows[0]
        self._caught_up(first)
        here = [live for live in self.by_source.get(step.queue, ()) if live.since < first]
        try:
            self._came_to(here, step)
        except Exception as error:  # noqa: BLE001 - the border of views
            self._busy = False
            self.fail(here, error)

    def _came_to(self, here: Sequence[Live], step: Arrived | Noted) -> None:
        for live in here:
            if live.building:
                live.later.append(noted(step) if isinstance(step, Arrived) else step)
        ready = [live for live in here if not live.building]
        if not ready:
            return
        if isinstance(step, Noted):
            self._busy = True
            self.read(ready, step, partial(self._entered_noted, step))
            return
        if len(step.rows) > PORTION:
            self._steps.appendleft(
                Arrived(step.queue, step.batch, step.rows[PORTION:], step.upto, delayed=step.delayed)
            )
            step = Arrived(step.queue, step.batch, step.rows[:PORTION], step.upto, delayed=step.delayed)
        self._busy = True
        self.enter(ready, elements_of(step), self._idle)

    def _idle(self) -> None:
        self._busy = False
        self.flush()
        self._arm()

    def _entered_noted(self, step: Noted, read: int) -> None:
        if read < len(step.lsns):
            self._steps.appendleft(Noted(step.queue, step.lsns[read:], step.states[read:]))
        self._idle()

    def read(self, lives: Sequence[Live], step: Noted, then: Callable[[int], None]) -> None:
        """Read some of what was noted, bring it to the views, and say how many of it that were."""
        lsns, states = step.lsns[:PORTION], step.states[:PORTION]
        rounds = [live.round for live in lives]

        def answer(rows: Rows) -> None:
            if not rows.lsns:
                then(len(lsns))
                return
            read = bisect_right(lsns, rows.lsns[-1])
            try:
                mine = states and bytes(states[bisect_left(lsns, lsn)] for lsn in rows.lsns)
                elements = elements_of_rows(rows, mine)
            except Exception as error:  # noqa: BLE001 - the border of views
                self.fail(_still(lives, rounds), error)
                then(read)
                return
            self.enter(lives, elements, lambda: then(read), rounds)

        self._runtime.read_cold(lsns, answer, READ_BYTES)

    def enter(
        self, lives: Sequence[Live], elements: Elements, then: Callable[[], None], rounds: Sequence[int] | None = None
    ) -> None:
        """Evaluate messages and bring what they give to the views; then go on."""
        begun = rounds or [live.round for live in lives]

        def done(found: list[Given | Exception]) -> None:
            for live, round, one in zip(lives, begun, found, strict=True):
                if live.round == round and not live.closed:
                    self._enter(live, one)
            then()

        into = [live.into for live in lives]
        kind = lives[0].message_type  # they have one source
        if self.off is None or len(elements.lsns) <= IN_PLACE:
            done(given(into, elements, None, kind))
        else:
            self.off(partial(given, into, elements, breathe, kind), done)

    def _enter(self, live: Live, one: Given | Exception) -> None:
        try:
            if isinstance(one, Exception):
                raise one
            live.into.enter(one)
            self.dirty[live] = None
            live.weigh()
        except Exception as error:  # noqa: BLE001 - the border of each
            self.fail([live], error)

    # -- what changed

    def flush(self) -> None:
        """Tell of rows that changed, and let views of views follow."""
        while self.dirty:
            dirty, self.dirty = self.dirty, {}
            for live in dirty:
                if live.closed or any(one.building for one in live.parts):
                    continue
                if live.over is not None:
                    self.dirty[live.over] = None
                    continue
                self._tell(live)

    def _tell(self, live: Live) -> None:
        view = live.view
        try:
            if live.join is not None:
                bring(live.join, view)
            changes = view.changed()
            words = live.words(changes)
            view.accept(changes)
        except Exception as error:  # noqa: BLE001 - the border of each
            self.fail([live], error)
            return
        live.weigh()
        if live.setback.lasts:
            live.setback.over()
        if words:
            self._runtime.faults.run_each([partial(tell, words) for tell in live.told])
        for below in live.below if changes else ():
            if not below.building:
                self.pass_on(live, below, changes)

    def pass_on(self, above: Live, below: Live, changes: Sequence[Changed]) -> None:
        """Rows of one view are the messages of another."""
        try:
            self._pass_on(above, below, changes)
        except Exception as error:  # noqa: BLE001 - the border of each
            self.fail([below], error)

    def _pass_on(self, above: Live, below: Live, changes: Sequence[Changed]) -> None:
        lsns: list[int] = []
        bodies: list[bytes] = []
        for change in changes:
            if change.old is not None:
                number = below.ids.pop(change.key)
                below.into.move((number, number + 1), GONE)
            if change.new is not None:
                below.ids[change.key] = below.next_id
                lsns.append(below.next_id)
                bodies.append(body_of(above.view, change.new))
                below.next_id += 1
        if lsns:
            below.into.enter(below.into.read(Elements(lsns, [parsed(body) for body in bodies], bodies)))
        self.dirty[below] = None


def _still(lives: Sequence[Live], rounds: Sequence[int]) -> list[Live]:
    """Those that have not begun anew meanwhile."""
    return [live for live, round in zip(lives, rounds, strict=True) if live.round == round and not live.closed]
