"""The table of streams: what each is, who may read it, when it was read last, and what it holds of its queue.

What a stream holds of a queue are ordinary leases of a silent consumer, but without a deadline: it gets nothing
unasked, and its grants cause no deliveries, for its reader fetches the rows by LSN.

When a stream was read last is logged when it is opened and planned, and else only as often as `abandon_after` needs:
ten times while it lasts.  So a start knows it well enough, and time in which no server ran counts; after a start
readers have a while to come back first.

In log mode nothing is granted and nothing settled.  A range is remembered until two others were planned after it, in
the parts it is read in, so that asking for it again gives the same rows however the options have changed meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from penstock.core.effects import Deliver, Effect, Verb
from penstock.core.outbox import Outbox
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.order.runs import Run
from penstock.core.queue.queue import Queue
from penstock.core.state.lsns import Ints, combined, count, ints, merged, to_array, within
from penstock.core.state.streams import Asked, StreamState
from penstock.errors import Fenced, InvalidArgument, NotFound, PreconditionFailed, Unavailable
from penstock.records.causes import POISON
from penstock.records.chunks import Chunk, Now, as_chunk, pack_pairs
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind

MARKS = 10
"""How often it is logged, while `abandon_after` passes, that a stream is read."""

GRACE_US = 600_000_000
"""How long readers have after a start to come back, if `abandon_after` is not shorter."""


class StreamTable:
    """The streams that there are."""

    def __init__(self, outbox: Outbox[Effect], holdings: Holdings, queue_of: Callable[[int], Queue | None]) -> None:
        self.outbox = outbox
        self.holdings = holdings
        self.queue_of = queue_of
        self.states: dict[str, StreamState] = {}
        self.readers: dict[str, str] = {}  # who opened each last; of this process alone
        self.gone: dict[str, str] = {}  # the queues of streams that ended with them; of this process alone
        self.stopped = set[str]()  # by a fault, until the next start
        self.keeping = Keeping(self)

    def write(self, kind: Kind, name: str, state: StreamState, header: Mapping[str, object], body: bytes = b"") -> None:
        """Log something of a stream; living does with it what folding does."""
        self.outbox.record(kind, name, header, body)
        state.fold(kind, header, body)

    def refuse_stopped(self, name: str) -> None:
        """Unavailable for one that a fault has stopped: what is known of it may be wrong."""
        if name in self.stopped:
            raise Unavailable(f"stream '{name}' was stopped by an internal error until the server is started again")

    def state(self, name: str) -> StreamState:
        """What a stream is.  Errors: NotFound when there is none, Unavailable for one that a fault has stopped."""
        self.refuse_stopped(name)
        state = self.states.get(name)
        if state is None:
            if name in self.gone:
                raise NotFound(f"stream '{name}' ended with its queue '{self.gone[name]}', which was deleted")
            raise unknown(name)
        return state

    def fenced(self, name: str, epoch: int, mode: str) -> StreamState:
        """A stream for the reader that holds this epoch.  Errors: NotFound, InvalidArgument, Fenced."""
        state = self.state(name)
        if state.mode != mode:
            raise InvalidArgument(f"stream '{name}' is read in mode '{state.mode}', not '{mode}'")
        if epoch != state.epoch:
            reader = self.readers.get(name)
            by = f"by {reader} " if reader else ""
            raise Fenced(f"stream '{name}' is now read {by}under epoch {state.epoch}; epoch {epoch} is over")
        return state

    def queue(self, name: str, state: StreamState) -> Queue:
        """The queue of a stream.  NotFound when it is gone."""
        queue = self.queue_of(state.queue)
        if queue is None:
            raise NotFound(f"the queue of stream '{name}' is gone")
        return queue

    def batch(self, name: str, batch: int) -> tuple[Chunk, ...]:
        """The messages of a planned batch, settled or not.  NotFound when it is no longer known."""
        state = self.state(name)
        if batch not in state.plans:
            why = f": {elsewhere(state)}" if batch > state.planned else ""
            raise NotFound(f"stream '{name}' knows no batch {batch}; it has planned {state.planned}{why}")
        return chunks_of(state.plans[batch])


def unknown(name: str) -> NotFound:
    """The error for a stream that is not there, and the same for one that somebody may not read."""
    return NotFound(f"no stream '{name}', or none that this user may read")


def elsewhere(state: StreamState) -> str:
    """Why a checkpoint names a batch that was never planned, and what to do."""
    return (
        "the checkpoint belongs to another stream, another server or an earlier queue of this name; delete it to "
        f"go on at {state.floor + 1}; a pipeline's is begun anew with penstock pipeline reset"
    )


def chunks_of(pairs: array[int]) -> tuple[Chunk, ...]:
    """The messages of exact pairs, ascending; short runs are packed together."""
    out = list[Chunk]()
    single = array("q")
    for i in range(0, len(pairs), 2):
        a, b = pairs[i], pairs[i + 1]
        if b - a < 64:
            single.extend(range(a, b))
        else:
            if single:
                out.append(as_chunk(single))
                single = array("q")
            out.append(range(a, b))
    if single:
        out.append(as_chunk(single))
    return tuple(out)


class Keeping:
    """When each stream was read last, and what is due because of it."""

    def __init__(self, streams: StreamTable) -> None:
        self._streams = streams
        self._seen = dict[str, int]()  # microseconds since the epoch, more exact than what is logged
        self.abandoned = list[str]()  # since somebody took them out, for the server to tell
        self._started = 0  # wall time of this process's start; 0: it has not been told

    def begin(self, now: Now) -> None:
        self._started = now.wall

    def read(self, now: Now, name: str, state: StreamState) -> None:
        """Somebody reads the stream now; logged where `abandon_after` needs it."""
        self._seen[name] = now.wall
        if state.abandoned or (state.abandon_after and now.wall - state.read >= state.abandon_after // MARKS):
            self._streams.write(Kind.STREAM_READ, name, state, {"time": now.wall})

    def part(self, now: Now, name: str, state: StreamState) -> None:
        """A part of a batch is read, and so is its stream: nobody plans meanwhile, however long that takes."""
        if not state.released or (state.abandoned and state.mode == "log"):  # else it is for who opens it again
            self.read(self._streams.outbox.at(now), name, state)

    def last_read(self, name: str, state: StreamState) -> int:
        """Microseconds since the epoch; 0: it is not known."""
        return max(self._seen.get(name, 0), state.read)

    def due(self) -> int | None:
        """When the next stream is overdue: wall microseconds, None for never."""
        return min((self._end(name, one) for name, one in self._watched()), default=None)

    def overdue(self, now: Now) -> list[str]:
        """Streams that let go now."""
        return [name for name, one in self._watched() if self._end(name, one) <= now.wall]

    def _watched(self) -> list[tuple[str, StreamState]]:
        every, stopped = self._streams.states.items(), self._streams.stopped
        return [(name, one) for name, one in every if one.abandon_after and not one.released and name not in stopped]

    def _end(self, name: str, state: StreamState) -> int:
        grace = self._started + min(GRACE_US, state.abandon_after)
        return max(self.last_read(name, state) + state.abandon_after, grace)


class Holdings:
    """The silent consumers of all streams."""

    def __init__(self, outbox: Outbox[Effect], touched: set[Queue]) -> None:
        self._outbox = outbox
        self._touched = touched  # queues whose deadlines may have changed
        self._consumers: dict[tuple[int, str], Consumer] = {}

    def take(self, now: Now, queue: Queue, name: str, count: int) -> list[Chunk]:
        """Lease up to `count` ready messages to the stream; ascending, each run a chunk."""
        consumer = self._consumer(now, queue, name)
        queue.pull(now, consumer, count, self._outbox)
        for run in consumer.leases.runs:
            run.deadline = 0
        chunks = list[Chunk]()
        others = list[Effect]()
        for effect in self._outbox.effects:
            if isinstance(effect, Deliver) and effect.consumer is consumer:
                chunks.append(effect.chunk)
            else:
                others.append(effect)
        self._outbox.effects[:] = others
        self._touched.add(queue)
        return chunks

    def settle(self, now: Now, queue: Queue, name: str, chunks: list[Chunk], verb: Verb) -> None:
        """End what the stream holds.  A row that is put aside says so as a dead letter: AMQP has no word for it."""
        consumer = self._consumer(now, queue, name)
        why = POISON if verb is Verb.EXPIRE else None
        queue.settle(now, chunks, verb, self._outbox, by=consumer, reason=why, cause=POISON)
        self._touched.add(queue)

    def restore(self, now: Now, queue: Queue, name: str, chunks: Iterable[Chunk]) -> None:
        """After a start: what was planned and not settled is held again, as the log says; nothing is written."""
        consumer = self._consumer(now, queue, name, starting=True)
        for chunk in chunks:
            for run in queue.extract(chunk):
                consumer.leases.add(Run(run.chunk, False, run.tally, run.place))
                queue.leased += len(run.chunk)
                queue.outstanding += len(run.chunk)

    def forget(self, queue: Queue, gone: Chunk) -> None:
        """Messages that ended with the process are held no more; BOOT says so, nothing is written."""
        for (number, _), consumer in self._consumers.items():
            if number == queue.id:
                held = sum(len(run.chunk) for run in consumer.leases.take(gone)[0])
                queue.leased -= held
                queue.outstanding -= held

    def queue_gone(self, queue: int) -> None:
        """The queue was deleted, with what was held of it."""
        for key in [key for key in self._consumers if key[0] == queue]:
            del self._consumers[key]

    def _consumer(self, now: Now, queue: Queue, name: str, *, starting: bool = False) -> Consumer:
        consumer = self._consumers.get((queue.id, name))
        if consumer is None:
            consumer = queue.subscribe(
                now, self._outbox, starting=starting, tag=f"stream:{name}", holder=self, client=f"stream:{name}",
                passive=True,
            )  # fmt: skip
            consumer.fenced = True
            self._consumers[queue.id, name] = consumer
        return consumer


@dataclass(frozen=True, slots=True)
class Range:
    """A planned range and what it is read with."""

    batch: int
    parts: tuple[tuple[int, int], ...]  # LSNs [a, b), one after another
    asked: Asked

    @property
    def end(self) -> int:
        """One past its last LSN."""
        return self.parts[-1][1]


class Ranges:
    """The log-mode half of all streams of a core."""

    def __init__(self, streams: StreamTable) -> None:
        self._outbox = streams.outbox
        self._streams = streams

    def begin(self, now: Now, name: str, epoch: int, said: str, lsn: int) -> int:
        """Where a reader without a checkpoint begins: what the same words meant when they were first said."""
        state = self._read(now, name, epoch)
        if state.start is None or state.said != said:
            header = {"start": lsn, "said": said, "time": self._outbox.time}
            self._streams.write(Kind.STREAM_START, name, state, header)
        assert state.start is not None
        return state.start

    def known(self, now: Now, name: str, epoch: int, start: int) -> Range | None:
        """The range that was planned from this LSN on, if it is remembered."""
        return self.find(self._read(now, name, epoch), start)

    @staticmethod
    def find(state: StreamState, start: int) -> Range | None:
        """The same without a reader."""
        batch = state.planned_at(start)
        if batch is None:
            return None
        pairs = state.plans[batch]
        parts = tuple((pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2))
        return Range(batch, parts, state.asked_for(batch))

    def part(self, now: Now, name: str, start: int) -> bool:
        """A part of a planned range is read: whether the log was kept for its stream from this LSN on."""
        state = self._streams.states.get(name)
        if state is None or state.mode != "log" or name in self._streams.stopped:
            return False
        self._streams.keeping.part(now, name, state)
        return state.has_held(start)

    def plan(self, now: Now, name: str, epoch: int, parts: Sequence[tuple[int, int]]) -> Range:
        """Plan a range of these parts, unless one is known from its start on; the one that holds."""
        state = self._read(now, name, epoch)
        present = self.find(state, parts[0][0])
        if present is not None:
            return present
        header = {"batch": state.planned + 1, "epoch": epoch, "queue": 0, "time": self._outbox.time}
        body = pack_pairs(0, array("q", [lsn for part in parts for lsn in part]))
        self._streams.write(Kind.PLAN, name, state, header, body)
        return Range(state.planned, tuple(parts), state.asked)

    def plan_range(self, now: Now, name: str, epoch: int, start: int, end: int) -> int:
        """The end of the range that begins at LSN `start`; `end` unless another was answered before."""
        present = self.known(now, name, epoch, start)
        if present is None and end <= start:
            return start
        return (present or self.plan(now, name, epoch, [(start, end)])).end

    def _read(self, now: Now, name: str, epoch: int) -> StreamState:
        state = self._streams.fenced(name, epoch, "log")
        self._streams.keeping.read(self._outbox.at(now), name, state)
        return state


def refuse_other_topic(name: str, present: Asked, asked: Asked) -> None:
    """PreconditionFailed when a stream that reads one topic or queue is asked to read another; filters may change."""
    for key in ("vhost", "exchange", "topic", "pattern", "queue"):
        if present and present.get(key) != asked.get(key):
            raise PreconditionFailed(
                f"stream '{name}' reads {told(present)}, and is asked to read {told(asked)}: its batches would mix; "
                f"use another name, or drop it first (penstock stream release {name} --drop)"
            )


def told(asked: Asked) -> str:
    """What a stream in log mode reads, or one of changes, as text."""
    if not asked:
        return "the log"
    if asked.get("queue") is not None:
        return f"queue '{asked['queue']}' in vhost '{asked.get('vhost', '/')}'"
    name = f"pattern '{asked['pattern']}'" if asked.get("pattern") is not None else f"topic '{asked.get('topic')}'"
    where = f" of exchange '{asked['exchange']}'" if asked.get("exchange") else ""
    return f"{name}{where} in vhost '{asked.get('vhost', '/')}'"


@dataclass(frozen=True, slots=True)
class Difference:
    """What a plan would say."""

    went: Ints
    came: Ints

    def __len__(self) -> int:
        return len(self.went) + len(self.came)


def available(chunks: Iterable[Chunk]) -> Ints:
    """Messages of chunks in any order as pairs."""
    return merged([within(chunk) for chunk in chunks if len(chunk)])


def difference(counted: Ints, present: Ints, rows_max: int) -> Difference:
    """From what was counted to what is present: at most so many messages, what went first."""
    went = first(combined(counted, present, lambda a, b: a & ~b), rows_max)
    came = combined(counted, present, lambda a, b: b & ~a)
    return Difference(went, first(came, rows_max - count(went)))


def first(pairs: Ints, most: int) -> Ints:
    ends = np.cumsum(pairs[:, 1] - pairs[:, 0])
    place = int(np.searchsorted(ends, most))
    if place >= len(pairs):
        return pairs
    out = pairs[: place + 1].copy()
    out[place, 1] -= int(ends[place]) - most
    return out if out[place, 0] < out[place, 1] else out[:place]


class Changes:
    """What streams in this mode ask for."""

    def __init__(self, streams: StreamTable) -> None:
        self._outbox = streams.outbox
        self._streams = streams

    def refuse_other(self, name: str, vhost: str, queue: str) -> None:
        """PreconditionFailed for another queue than the one it was opened for: who may read that has its batches."""
        asked = self._streams.state(name).asked
        if not asked:
            raise PreconditionFailed(f"stream '{name}' was opened without a word of its queue: open it again with that")
        refuse_other_topic(name, asked, {"vhost": vhost, "queue": queue})

    def planned(self, name: str, epoch: int, start: int) -> int | None:
        """The end of the batches that were planned for this start; None when there are none yet.

        Errors: Fenced; PreconditionFailed for a start that is not where the stream is.
        """
        state = self._streams.fenced(name, epoch, "changes")
        if start == state.planned:
            return None
        if start > state.planned or start + 1 not in state.plans:
            raise PreconditionFailed(
                f"the checkpoint of stream '{name}' is at batch {start}, the stream at {state.planned}: one of them is "
                "an old copy; delete the checkpoint to count everything anew; "
                "a pipeline's is begun anew with penstock pipeline reset"
            )
        return start + 2

    def counted(self, name: str) -> Ints:
        """What the reader has counted, or will have when it has read what is planned."""
        return ints(self._streams.state(name).counted).reshape(-1, 2)

    def plan(self, now: Now, name: str, epoch: int, start: int, queue: int, found: Difference) -> int:
        """Write a difference down, in one group; where the reader is then.

        queue: the id of the queue now, 0 when there is none.  Errors as `planned`.
        """
        before = self.planned(name, epoch, start)
        if before is not None:
            return before
        if not len(found):
            return start
        state = self._streams.state(name)
        now = self._outbox.at(now)
        self._streams.keeping.read(now, name, state)
        self._outbox.begin()
        for change, pairs in ((-1, found.went), (1, found.came)):
            header = {
                "batch": state.planned + 1, "epoch": epoch, "queue": queue, "change": change, "time": now.wall
            }  # fmt: skip
            body = pack_pairs(queue, to_array(pairs.reshape(-1)) if len(pairs) else array("q"))
            self._streams.write(Kind.PLAN, name, state, header, body)
        self._outbox.end()
        return state.planned
