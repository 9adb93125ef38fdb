"""Streams: durable readers of a queue that get the same rows when they ask again.

A stream's offset is a dense batch number.  One durable step settles what ended at the start and grants the next batch;
asking twice with the same start gives the same batch, so a reader that lost its last step after a crash loses and
repeats nothing.  Planned batches have no deadline; each opening has an epoch that fences older readers.

In `log` mode nothing is granted: a plan only remembers which LSN range was answered for which start.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Protocol

from penstock.core.effects import Effect, Verb
from penstock.core.outbox import Outbox
from penstock.core.queue.view import Queue
from penstock.core.state.durable import StreamState
from penstock.errors import Fenced, InvalidArgument, NotFound, PreconditionFailed
from penstock.records.chunks import Chunk, Now, as_chunk, pack_pairs, pairs_of
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind


class Holding(Protocol):
    """What a stream asks of its queue: take, keep out of everybody's reach, give back, settle."""

    def take(self, now: Now, queue: Queue, name: str, count: int) -> list[Chunk]:
        """Lease up to `count` ready messages to the stream, without a deadline."""
        ...

    def settle(self, now: Now, queue: Queue, name: str, chunks: list[Chunk], verb: Verb) -> None:
        """Settle or release what the stream holds."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to `open`."""

    epoch: int
    floor: int  # the last settled batch: where a reader without a checkpoint starts
    planned: int  # the highest batch that was ever planned


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer to `plan`: the batch to read next, or the start again when nothing is ready."""

    batch: int
    chunks: tuple[Chunk, ...]  # its messages, ascending


class Streams:
    """All streams of a core."""

    def __init__(self, outbox: Outbox[Effect], holding: Holding, queue_of: Callable[[int], Queue | None]) -> None:
        self._outbox = outbox
        self._holding = holding
        self._queue_of = queue_of
        self.states: dict[str, StreamState] = {}
        self._readers: dict[str, str] = {}  # who opened it last; of this process alone

    def reads(self, queue: int) -> bool:
        """Whether some stream reads the queue of this id."""
        return any(state.queue == queue for state in self.states.values())

    def open(self, now: Now, name: str, queue: Queue | None, instance: str = "", mode: str = "queue") -> Opened:
        """A reader starts: a new epoch, older ones are refused from now on.  `queue` is None in log mode.

        Errors: PreconditionFailed when the stream reads another queue or in another mode.
        """
        if not name:
            raise InvalidArgument("a stream needs a name")
        if mode not in ("queue", "log") or (mode == "queue") is not (queue is not None):
            raise InvalidArgument(f"stream '{name}': mode '{mode}' is 'queue' with a queue or 'log' without one")
        if queue is not None and queue.settings.non_destructive:
            raise PreconditionFailed(
                f"stream '{name}': queue '{queue.name}' is not destructive, so nothing of it can be settled: read its "
                "topic in mode 'log'"
            )
        number = queue.id if queue is not None else 0
        state = self.states.get(name)
        if state is not None and (state.queue != number or state.mode != mode):
            present = self._queue_of(state.queue)
            what = f"queue '{present.name}' in vhost '{present.vhost}'" if present is not None else "the log"
            raise PreconditionFailed(f"stream '{name}' reads {what}; release and drop it, or use another name")
        if state is None:
            state = self.states[name] = StreamState(number, mode=mode)
        state.epoch += 1
        self._readers[name] = instance
        now = self._outbox.at(now)
        header = {"queue": number, "epoch": state.epoch, "mode": mode, "floor": state.floor}
        self._outbox.record(Kind.STREAM, name, header)
        return Opened(state.epoch, state.floor, state.planned)

    def plan(self, now: Now, name: str, epoch: int, start: int, rows_max: int) -> Plan:
        """Settle every batch up to `start`, then give the one after it: the planned one unchanged, or a new one.

        Errors: Fenced for an old epoch; PreconditionFailed for a start beyond what was planned, which settles nothing,
        and for one so old that its next batch is no longer known.
        """
        state = self._fenced(name, epoch, "queue")
        if start > state.planned:
            raise PreconditionFailed(
                f"stream '{name}' has planned {state.planned} batches, and was asked to go on after batch {start}: the "
                "checkpoint belongs to another stream or another server"
            )
        if rows_max < 1:
            raise InvalidArgument(f"stream '{name}': a batch has at least 1 row, not {rows_max}")
        queue = self._queue(name, state)
        planned = [batch for batch in state.plans if batch > start and len(state.plans[batch])]
        if start < state.floor and (start + 1 not in state.plans):
            raise PreconditionFailed(
                f"the checkpoint of stream '{name}' is at batch {start}, the stream at {state.floor}: acknowledged "
                f"messages are not delivered again; delete the checkpoint to go on at {state.floor + 1}"
            )
        now = self._outbox.at(now)
        self._outbox.begin()
        try:
            self._settle(now, name, state, queue, start)
            if planned:
                batch = min(planned)
                return Plan(batch, self._chunks(state, batch))
            chunks = self._holding.take(now, queue, name, rows_max)
            if not chunks:
                return Plan(start, ())
            return self._new(name, state, chunks)
        finally:
            self._outbox.end()

    def plan_range(self, now: Now, name: str, epoch: int, start: int, end: int) -> int:
        """Log mode: the end of the range that begins at LSN `start`; `end` unless another was answered before."""
        state = self._fenced(name, epoch, "log")
        for pairs in state.plans.values():
            if len(pairs) and pairs[0] == start:
                return pairs[1]
        if end <= start:
            return start
        now = self._outbox.at(now)
        self._new(name, state, [range(start, end)])
        return end

    def settle(self, now: Now, name: str, epoch: int, batch: int) -> None:
        """Settle every batch up to this one.  Errors as `plan`."""
        state = self.check(name, epoch, batch)
        now = self._outbox.at(now)
        self._outbox.begin()
        self._settle(now, name, state, self._queue(name, state), batch)
        self._outbox.end()

    def check(self, name: str, epoch: int, batch: int) -> StreamState:
        """Whether `settle` would do it; raises what it would raise."""
        state = self._fenced(name, epoch, "queue")
        if batch > state.planned:
            raise PreconditionFailed(
                f"stream '{name}' has planned {state.planned} batches; batch {batch} cannot be settled"
            )
        self._queue(name, state)
        return state

    def batch(self, name: str, batch: int) -> tuple[Chunk, ...]:
        """The messages of a planned batch, settled or not.  NotFound when it is no longer known."""
        state = self.state(name)
        if batch not in state.plans:
            raise NotFound(f"stream '{name}' knows no batch {batch}; it has planned {state.planned}")
        return self._chunks(state, batch)

    def release(self, now: Now, name: str) -> int:
        """Give back what is planned and not settled, and fence the reader; returns the number of messages."""
        state = self.state(name)
        held = [chunk for batch in state.plans if batch > state.floor for chunk in self._chunks(state, batch)]
        state.epoch += 1
        self._readers.pop(name, None)
        now = self._outbox.at(now)
        self._outbox.begin()
        self._outbox.record(Kind.STREAM_RELEASE, name, {"batch": state.planned, "epoch": state.epoch})
        state.release()
        queue = self._queue_of(state.queue)
        if queue is not None and held and state.mode == "queue":
            self._holding.settle(now, queue, name, held, Verb.RELEASE)
        self._outbox.end()
        return sum(map(len, held)) if state.mode == "queue" else 0

    def state(self, name: str) -> StreamState:
        """What a stream is.  NotFound when there is none."""
        state = self.states.get(name)
        if state is None:
            raise NotFound(f"no stream '{name}'")
        return state

    def held(self, queue: int) -> dict[str, list[Chunk]]:
        """What each stream of a queue has planned and not settled."""
        return {
            name: [chunk for batch in sorted(s.plans) if batch > s.floor for chunk in self._chunks(s, batch)]
            for name, s in self.states.items()
            if s.queue == queue and s.mode == "queue"
        }

    def queue_gone(self, queue: int) -> None:
        """The streams of a queue end with it."""
        for name in [name for name, state in self.states.items() if state.queue == queue and state.mode == "queue"]:
            del self.states[name]
            self._readers.pop(name, None)

    def _fenced(self, name: str, epoch: int, mode: str) -> StreamState:
        state = self.state(name)
        if state.mode != mode:
            raise InvalidArgument(f"stream '{name}' is read in mode '{state.mode}', not '{mode}'")
        if epoch != state.epoch:
            reader = self._readers.get(name)
            by = f"by {reader} " if reader else ""
            raise Fenced(f"stream '{name}' is now read {by}under epoch {state.epoch}; epoch {epoch} is over")
        return state

    def _queue(self, name: str, state: StreamState) -> Queue:
        queue = self._queue_of(state.queue)
        if queue is None:
            raise NotFound(f"the queue of stream '{name}' is gone")
        return queue

    def _settle(self, now: Now, name: str, state: StreamState, queue: Queue, batch: int) -> None:
        if batch <= state.floor:
            return
        done = [c for b in range(state.floor + 1, batch + 1) if b in state.plans for c in self._chunks(state, b)]
        self._outbox.record(Kind.PLAN_SETTLE, name, {"batch": batch})
        state.floor = batch
        state.forget_old()
        if done:
            self._holding.settle(now, queue, name, done, Verb.ACK)

    def _new(self, name: str, state: StreamState, chunks: list[Chunk]) -> Plan:
        pairs = array("q")
        for chunk in chunks:
            pairs.extend(pairs_of(chunk, False))
        state.planned += 1
        header = {"batch": state.planned, "epoch": state.epoch, "queue": state.queue}
        self._outbox.record(Kind.PLAN, name, header, pack_pairs(state.queue, pairs))
        state.plans[state.planned] = pairs
        state.forget_old()
        return Plan(state.planned, self._chunks(state, state.planned))

    @staticmethod
    def _chunks(state: StreamState, batch: int) -> tuple[Chunk, ...]:
        pairs = state.plans[batch]
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
