"""How far a fault in what falls due reaches: the part where it was, which stops until the next start.

What was being done there may be half done.  A group of records that it had begun is undone, for nobody has seen it; a
record that stands by itself stays, and a start believes it.  Memory may say something else then: no state is taken of
it, and nothing of the log goes.  So what follows may rest on nothing of that part: a queue gives nothing more
(`core.queue.stopped`), a stream is refused to its reader, and nothing falls due there any more.

Stopped are what was about to be done something to, the queues that the failed calls were about, and those that the
undone records name.  Where something else may be half changed the server ends: messages of an open group, which are in
queues already, and a queue that had all but gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.core.commands.common_parts import CoreParts
from penstock.core.effects import Part, Stopped
from penstock.core.queue.queue import Queue
from penstock.core.queue.stopped import end_consumers, queues_in, stop
from penstock.records.chunks import Now
from penstock.records.entries import Control


class Due(NamedTuple):
    """Something that falls due in one part."""

    part: Part
    work: Callable[[], object]
    queues: Sequence[Queue] = ()  # that it is about
    stop: Callable[[], object] = bool  # nothing falls due there any more


def part_of(queue: Queue) -> Part:
    """A queue as a part."""
    return Part("queue", queue.vhost, queue.name)


class Containing(CoreParts):
    """Doing what is due, each part by itself."""

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
        if isinstance(error, MemoryError) or (undone := self._out.drop_group()) is None:
            return False
        found = dict.fromkeys((*due.queues, *queues_in(error), *self._named(undone)))
        queues = [queue for queue in found if not (whole and self._gone(queue))]
        if not all(self._stands(queue) for queue in queues):
            return False
        for queue in queues:
            if self.find_queue(queue.vhost, queue.name) is None:
                self._admin.altered(queue)  # it was out of routing meanwhile
        due.stop()
        parts = dict.fromkeys([due.part, *map(part_of, queues)])
        if due.part.kind != "queue":
            self._parts_stopped[due.part] = None
        self._stopped += [queue for queue in queues if not queue.stopped]
        for other in stop(queues):
            self._touch(other)
        self._out.effect(Stopped(list(parts), error))
        for queue in queues:
            self._touch(queue)
            ended = end_consumers(queue, self._out)
            if self.attendance is not None:
                self.attendance += [(False, consumer) for consumer in ended]
        return True

    def _named(self, records: Iterable[Control]) -> list[Queue]:
        """The queues that some records are about: such a record begins with the queue's id."""
        found = [(one.name, self._admin.by_id.get(int.from_bytes(one.body[:8], "little"))) for one in records]
        return [queue for name, queue in found if queue is not None and queue.name == name]

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
