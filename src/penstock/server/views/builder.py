"""Begins a view: its source is found, gone through portion by portion, and what happened meanwhile follows.

A view holds nothing that lasts, so this is also what a start of the server asks for, a queue that is declared anew or
filled from the log (`recovery_point`), and a view that has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.core.queue.order.runs import packed
from penstock.core.queue.order.runs import view as array_of
from penstock.core.sow.holding import Sow
from penstock.core.sow.index import Index
from penstock.core.view_contributions import AVAILABLE, AWAY, INACTIVE
from penstock.core.view_feed import Moved, Noted
from penstock.server.views.evaluating import PORTION, portion
from penstock.server.views.row_source import name_of, read_by, type_of
from penstock.server.views.step_worker import Worker

if TYPE_CHECKING:
    from penstock.core.queue.places import State
    from penstock.core.queue.queue import Queue
    from penstock.server.base.runtime import Runtime
    from penstock.server.views.shown import Live


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
        """The topic with a key of a name, or the queue; none where another connection has that for itself."""
        found = read_by(self._runtime.core, vhost, "", name)
        return found if found is None or isinstance(found, Sow) or found.exclusive_to is None else None

    def _source(self, live: Live) -> Queue | Sow | None:
        """What a view gathers, if it is there: of one for a subscriber only what he was let in to."""
        found = self.source(live.vhost, live.definition.source)
        return found if live.only is None or (found is not None and name_of(found) == live.only) else None

    def look(self, live: Live) -> None:
        """A queue or topic was declared, altered or deleted: the view may have another source, or type of bodies."""
        try:
            source = self._source(live)
            if live.source != (0 if source is None else source.id) or (source and live.message_type != type_of(source)):
                if live.source:
                    self.detach(live)
                self._attach(live)
        except Exception as error:  # noqa: BLE001 - the border of each
            self._worker.fail([live], error)

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
        try:
            self._attach(live)
        except Exception as error:  # noqa: BLE001 - the border of each
            self._worker.fail([live], error)

    def _attach(self, live: Live) -> None:
        core, worker = self._runtime.core, self._worker
        source = self._source(live)
        if source is None:
            self._let_go(live)
            return
        live.source = source.id
        live.message_type = type_of(source)
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
                worker.feed.watch(source.id, live.since, source.first_inactive)
            places, states = held_by(source)
        if not len(places):
            self._let_go(live)
            return
        live.building = True
        live.floor = int(places[0])
        begin = partial(self._go_on, live, live.round, partial(self._build, live, live.round, places, states, 0))
        self._runtime.when_durable(live.since, begin)
        self._runtime.arm()

    def _soon(self, live: Live, round: int, work: Callable[[], None]) -> None:
        self._runtime.call_soon(partial(self._go_on, live, round, work))

    def _go_on(self, live: Live, round: int, work: Callable[[], None]) -> None:
        """Do this, unless the view was closed or has begun anew since."""
        if live.closed or live.round != round:
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the border of each
            self._worker.fail([live], error)

    def _build(self, live: Live, round: int, places: Ints, states: Bytes, at: int) -> None:
        """Read the next portion of what the source held."""
        if at >= len(places):
            live.floor = None
            self._catch_up(live, round)
            return
        live.floor = int(places[at])
        some = places[at : at + PORTION]
        step = Noted(live.source, packed(some), states[at : at + len(some)].tobytes())

        def then(read: int) -> None:
            self._soon(live, round, partial(self._build, live, round, places, states, at + read))

        self._worker.read([live], step, then)

    def _catch_up(self, live: Live, round: int) -> None:
        """Do what happened meanwhile, in order; more may come while it is done."""
        while live.later:
            step = live.later.popleft()
            if isinstance(step, Moved):
                step, rest = portion([live], step)
                self._worker.move(live, step)
                if live.round != round:
                    return
                if rest is not None:
                    live.later.appendleft(rest)
                    self._soon(live, round, partial(self._catch_up, live, round))
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
        self._soon(live, round, partial(self._catch_up, live, round))

    def _let_go(self, live: Live) -> None:
        """Who waited for it to be built goes on."""
        waiting, live.waiting = live.waiting, []
        self._runtime.faults.run_each(then for then, _ in waiting)


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
