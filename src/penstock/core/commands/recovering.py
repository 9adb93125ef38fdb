"""Commands about what the log had before a queue was there, or before its recovery point was moved.

A RECOVER record says that a pass over the log begins; the shell walks, and each step comes back as `Recovered`: a
RECOVERED record names the messages that the queue takes of it.  So a start in the middle goes on where the last step
was durable, and folding runs no filter.  Passes of several queues walk together (`server.recovering`).

A queue is offered each message once.  What was published after its declare it was offered then, unless the route says
that others alone took it; what an earlier pass has been over is not taken again, whatever became of it.

A point that is moved forward takes out what the queue has from before it, waiting or leased: a DROP record says so, and
the rows stay in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from penstock.core.asks import Found, Pass, Purpose, Recover, Recovered, Token
from penstock.core.commands.parts import Parts
from penstock.core.queue.order.runs import packed
from penstock.core.queue.timed.expiry import deadlines
from penstock.core.queue.view import Queue
from penstock.core.state.lsns import runs_of
from penstock.core.state.passing import begin, go_on
from penstock.errors import PreconditionFailed
from penstock.records.chunks import LSN_LIMIT, Now, pack_pairs, pairs_of
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings, parse_recovery_point

NOWHERE: Mapping[int, int] = MappingProxyType({})
"""Nobody has asked the log for times."""


class RecoveryCommands(Parts):
    """Passes over the log."""

    def passes(self) -> list[Pass]:
        """Those that are under way, by queue."""
        out = list[Pass]()
        for number, (reviewed, passing) in self._passes.items():
            queue = self._admin.by_id[number]
            if passing is not None:
                others = self._interning.without(number) if passing.until > number + 1 else frozenset[int]()
                out.append(
                    Pass(
                        number, queue.vhost, queue.name, queue.settings, passing.at, passing.until, passing.time,
                        reviewed, number, others, self._booted,
                    )
                )  # fmt: skip
        return out

    def looked_back(self, queue: Queue) -> bool:
        """Whether a queue may have messages that are older than itself, whatever its recovery point is now."""
        return queue.id in self._passes

    def passing_floor(self) -> int:
        """No pass asks for what is older."""
        return min((one.at for _, one in self._passes.values() if one is not None), default=LSN_LIMIT)

    def _pass_answered(self, now: Now, step: Recovered) -> None:
        """A step of a pass is done; it does not count where its queue has changed meanwhile."""
        one, found = step.of, step.found
        queue = self._admin.by_id.get(one.queue)
        reviewed, passing = self._passes.get(one.queue, ((), None))
        if queue is None or passing is None or queue.settings is not one.settings or passing.at != one.at:
            return
        if queue.is_due(now):
            queue.tick(now, self._out)
        upto = min(step.upto, passing.until)
        self._out.begin()  # with the acks that came before what is found
        self._take(now, queue, found, upto)
        self._out.end()
        reviewed, passing = self._passes[queue.id] = go_on(reviewed, passing, upto)
        if passing is None:
            queue.put_in_order(self._out.last_lsn, self._out)
        queue.go_on(now, self._out)
        self._touch(queue)

    def _take(self, now: Now, queue: Queue, found: Found, upto: int) -> None:
        """Write what the queue takes, and let it in; what has expired meanwhile does not come in."""
        ends = deadlines(queue.settings, found.times, found.expires_at)
        alive = (ends == 0) | (ends > now.wall)
        lsns, ends, sizes = found.lsns[alive], ends[alive], found.sizes[alive]
        later = np.where(found.not_before > now.wall, found.not_before, 0)[alive]
        living = set(lsns.tolist())
        barriers = [lsn for lsn in found.barriers if lsn in living]
        columns = {"expires_at": runs_of(lsns, ends), "not_before": runs_of(lsns, later)}
        if barriers:
            columns["barrier"] = runs_of(lsns, np.isin(lsns, barriers).astype(np.int64))
        if len(lsns) and found.transient:
            self._publisher.transient.add_older(lsns[np.isin(lsns, found.transient)])
        for name, marks in self._marks():
            columns[name] = runs_of(lsns, marks.among(lsns).astype(np.int64))
        header: dict[str, object] = {"upto": upto}
        if told := {name: runs.tolist() for name, runs in columns.items() if len(runs)}:
            header["columns"] = told
        if len(lsns):
            header["sizes"] = runs_of(lsns, sizes).tolist()
            self.sizes.add_older(lsns, sizes)
        pairs = pairs_of(packed(lsns), False) if len(lsns) else []
        self._recovered = self._out.record(Kind.RECOVERED, queue.name, header, pack_pairs(queue.id, pairs))
        queue.expect_older()
        if len(lsns):
            queue.arrived += len(lsns)
            queue.take_older(lsns, ends if ends.any() else None, later if later.any() else None, barriers)
            if queue.id in self._deferred.by_queue:
                self._deferred.appeared(now, queue, self.origin, packed(lsns), packed(lsns), self._out)

    # -- for declaring and altering

    def _check_point(self, name: str, settings: QueueSettings) -> None:
        """PreconditionFailed for a recovery point that this log does not know."""
        try:
            point = parse_recovery_point(settings.recovery_point)
        except ValueError as error:
            raise PreconditionFailed(f"recovery_point of queue '{name}': {error}") from error
        if point.kind == "lsn" and point.origin != self.origin:
            raise PreconditionFailed(
                f"recovery_point of queue '{name}': the bookmark {settings.recovery_point} is of the log "
                f"{point.origin}, and this is the log {self.origin}"
            )

    def _leave_behind(self, now: Now, queue: Queue, settings: QueueSettings, places: Mapping[int, int]) -> int:
        """What the queue has from before the recovery point of these settings leaves it; how many messages."""
        point = parse_recovery_point(settings.recovery_point)
        start = {"epoch": 0, "now": LSN_LIMIT, "creation": queue.id, "lsn": point.lsn, "time": LSN_LIMIT}[point.kind]
        if point.kind == "time" and point.time <= now.wall and queue.floor() <= self._out.last_lsn:
            start = places[point.time] if point.time in places else self.lsn_at(point.time)
        return queue.leave_behind(now, min(start, self._out.next_lsn), self._out)

    def _begin_pass(self, queue: Queue) -> None:
        """Write that a pass begins, or that none is wanted any more, by the queue's recovery point."""
        point = parse_recovery_point(queue.settings.recovery_point)
        reviewed, passing = self._passes.get(queue.id, ((), None))
        start = {"epoch": 0, "time": 0, "now": LSN_LIMIT, "creation": queue.id, "lsn": point.lsn}[point.kind]
        if passing is None and start >= self._out.last_lsn:  # all of it was offered, or is to come
            return
        header: dict[str, object] = {"point": queue.settings.recovery_point, "from": start}
        if point.time:
            header["time"] = point.time
        lsn = self._out.record(Kind.RECOVER, queue.name, header, pack_pairs(queue.id, ()))
        self._passes[queue.id] = begin(reviewed, passing, header, lsn)
        self._go_on_passing(queue)

    def _go_on_passing(self, queue: Queue) -> None:
        """After a start, or as it begins: have the log walked."""
        if self._passes[queue.id][1] is not None:
            queue.expect_older()
            self._out.effect(Recover(Token(queue.id, 0, Purpose.PASS)))
        else:
            queue.put_in_order(self._out.last_lsn, self._out)
