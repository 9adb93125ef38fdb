"""How far a fault reaches that has left something half done: the parts where it was, which stop until the next start.

What was being done may be half done.  A group of records that it had begun is undone, for nobody has seen it; a record
that stands by itself stays, and a start believes it.  Memory may say something else then: no state is taken of it, and
nothing of the log goes.  So what follows may rest on nothing of that part: a queue gives nothing more
(`core.queue.stopped`), a stream is refused to its reader, and nothing falls due there any more.

What falls due is done by parts, and stopped are what was about to be done something to, the queues that the failed
calls were about, and those that the undone records name: by their id, or as messages by their route.

A client's command is about queues alone as far as can be told, or the fault ends the server.  A publish or a
transaction is undone whole, so whoever sent it may send it again, and where many were published together each is tried
alone; of any other command what stands by itself in the log stays.  Whoever asked is told of an internal error.
Other sites hear of nothing but what the log has, so this holds beside them too; what a command tells a link by itself
is no queue's own.

Where something else may be half changed the server ends, and a start believes the log: what queues there are and who
is bound, numbers of publishers, topics with a key, streams and sinks, links to other sites; or a queue that had all
but gone.  Failed calls and undone records say whether that is so: `QUEUES_OWN`, `OF_QUEUES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from traceback import walk_tb
from typing import NamedTuple

from penstock.core.commands.common_parts import CoreParts
from penstock.core.effects import Part, Stopped
from penstock.core.outbox import calls_left
from penstock.core.publishing.admission import Publishers
from penstock.core.queue.queue import Queue
from penstock.core.queue.settling.deferred import Sweeps
from penstock.core.queue.stopped import end_consumers, queues_in, stop
from penstock.records.chunks import Now
from penstock.records.entries import Control, Publishes
from penstock.records.kinds import MOVES, Kind
from penstock.records.one_or_each import each

QUEUES_OWN = (
    "penstock.core.broker.", "penstock.core.chance.", "penstock.core.commands.common_parts.",
    "penstock.core.commands.containing.Containing._do", "penstock.core.commands.deliveries.",
    "penstock.core.commands.queues.", "penstock.core.commands.topology.PolicyCommands._attend",
    "penstock.core.commands.transactions.TransactionCommands.", "penstock.core.commands.transactions._lsns",
    "penstock.core.effects.", "penstock.core.outbox.", "penstock.core.publishing.", "penstock.core.queue.",
    "penstock.core.sow.keyed.Keyed._stored", "penstock.core.sow.keyed.Keyed._uniform",
    "penstock.core.sow.keyed.Keyed.publish", "penstock.core.state.encoding.", "penstock.core.state.lsns.",
    "penstock.core.state.pending.remember", "penstock.core.state.pending.forget",
)  # fmt: skip
"""Calls that change nothing but queues, and what they share with nobody."""

CHANGES_NOTHING = (
    "penstock.core.acted.Hops.of", "penstock.core.sow.rows.KeyedRows.judge",
    "penstock.core.state.pending.DeferredAck.header", "penstock.core.state.pending.DeferredAck.pairs",
    "penstock.core.topology.routing.Router.plan", "penstock.core.topology.routing.Router.target_of",
)  # fmt: skip
"""Calls that, with all that they call, do not."""

WEIGHING = ("Core.publish", "Core.let_in", "TransactionCommands.lay_out", "TransactionCommands.transact")
"""Commands of which nothing stays; others may have begun before them at the same instant, but none within them."""

BESIDE_QUEUES = (Publishers, Sweeps)
"""They do change something else."""

OF_QUEUES = MOVES | {
    Kind.TOOK, Kind.BARRIER, Kind.PAUSE, Kind.DEDUP, Kind.KEYED, Kind.DEFER, Kind.UNDEFER, Kind.TRANSACTION,
}  # fmt: skip
"""Kinds of records of which queues alone know."""


class Due(NamedTuple):
    """Something that falls due in one part."""

    part: Part
    work: Callable[[], object]
    queues: Sequence[Queue] = ()  # that it is about
    stop: Callable[[], object] = bool  # nothing falls due there any more


def part_of(queue: Queue) -> Part:
    """A queue as a part."""
    return Part("queue", queue.vhost, queue.name)


def _in_queues(error: Exception) -> bool:
    """Whether the failed calls can have left nothing half changed but queues."""
    for frame, _ in walk_tb(error.__traceback__):
        name = f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}"
        if name in CHANGES_NOTHING:
            return True
        if name.startswith("penstock.core.") and not name.startswith(QUEUES_OWN):
            return False
        if isinstance(frame.f_locals.get("self"), BESIDE_QUEUES):
            return False
    return True


def _command_of(error: Exception) -> str:
    """The first of the failed calls of the core."""
    return next((frame.f_code.co_qualname for frame in calls_left(error)), "")


def _of_queues(records: Iterable[Publishes | Control]) -> bool:
    """Whether queues alone know of these records."""
    return all(isinstance(one, Publishes) or one.kind in OF_QUEUES for one in records)


class Containing(CoreParts):
    """Doing what is due, each part by itself; and what becomes of a command that fails."""

    def _tick(self, now: Now, queue: Queue) -> None:
        """Have a queue do what is due."""
        self._do(Due(part_of(queue), partial(queue.tick, now, self._out), (queue,)))

    def _do(self, due: Due) -> None:
        """Do what is due.  What fails stops its part alone, where nothing else can be half changed."""
        try:
            due.work()
        except Exception as error:
            if not self.contain(error, due):
                raise

    def contain(self, error: Exception, due: Due) -> bool:
        """Stop the part where something failed; False: it may reach further."""
        whole = self._out.whole
        if isinstance(error, MemoryError) or (undone := self._out.undo(whole=False)) is None:
            return False
        if any(isinstance(one, Publishes) for one in undone) and not (_of_queues(undone) and _in_queues(error)):
            return False
        found = dict.fromkeys((*due.queues, *queues_in(error), *self._named(undone)))
        queues = [queue for queue in found if not (whole and self._gone(queue))]
        if not all(self._stands(queue) for queue in queues):
            return False
        due.stop()
        parts = dict.fromkeys([due.part, *map(part_of, queues)])
        if due.part.kind != "queue":
            self._parts_stopped[due.part] = None
        self._stop(error, queues, list(parts), undone)
        return True

    def contain_command(self, error: Exception) -> bool:
        """Undo a client's command that failed, and stop the queues that it was about; False: it may reach further."""
        if isinstance(error, MemoryError) or not self._out.within(error):
            return False
        weighs = self._out.weighs and _command_of(error) in WEIGHING
        if not _in_queues(error) or (undone := self._out.undo(whole=weighs)) is None or not _of_queues(undone):
            return False
        if weighs and not undone:  # tables have become longer, and nothing else has changed
            return True
        queues = list(dict.fromkeys((*queues_in(error), *self._named(undone))))
        if not queues or not all(self._stands(queue) for queue in queues):
            return False
        if running := [queue for queue in queues if not queue.stopped]:
            self._stop(error, running, [part_of(queue) for queue in running], undone)
        return True

    def _stop(
        self, error: Exception, queues: Sequence[Queue], parts: list[Part], undone: Sequence[Publishes | Control]
    ) -> None:
        """These queues do nothing any more; who waits for something of them is told."""
        self._stopped += [queue for queue in queues if not queue.stopped]
        for other in stop(queues, undone):
            self._touch(other)
        for queue in queues:  # a publish asks something else of it now, and it may have been out of routing meanwhile
            if self.find_queue(queue.vhost, queue.name) is queue:
                self._router.remove(queue)
            self._admin.altered(queue)
        self._out.effect(Stopped(parts, error))
        for queue in queues:
            self._touch(queue)
            self._deferred.keep(queue.id)
            self._sweeps.stopped(queue, self._out)
            ended = end_consumers(queue, self._out)
            if self.attendance is not None:
                self.attendance += [(False, consumer) for consumer in ended]

    def _named(self, records: Iterable[Publishes | Control]) -> list[Queue]:
        """The queues that some records are about: a route names them, or the record begins with the queue's id."""
        by_id, found = self._admin.by_id, list[Queue]()
        for one in records:
            if isinstance(one, Publishes):
                routes = dict.fromkeys(each(one.routes, len(one)))
                found += [by_id[number] for route in routes for number in self.queues_of_route(route)]
            elif (queue := by_id.get(int.from_bytes(one.body[:8], "little"))) is not None and queue.name == one.name:
                found.append(queue)
        return found

    def _stands(self, queue: Queue) -> bool:
        """Whether who names a queue still comes to it, or can again."""
        return self._admin.by_id.get(queue.id) is queue and self.find_queue(queue.vhost, queue.name) in (queue, None)

    def _gone(self, queue: Queue) -> bool:
        return self._admin.by_id.get(queue.id) is not queue and self.find_queue(queue.vhost, queue.name) is not queue

    @property
    def stopped(self) -> list[Part]:
        """What a fault has stopped.  While there is something, memory is not what the log says."""
        there = [part_of(one) for one in self._stopped if self._admin.by_id.get(one.id) is one]
        return [*there, *self._parts_stopped]
