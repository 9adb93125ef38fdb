"""From a Flight thread to the loop and back: the one way in which the two sides meet.

A thread appends a job to a deque and wakes the loop only if no wake is pending; the loop runs all waiting jobs in one
turn; a job is answered at once or when its LSN is durable; the thread waits on a lock.  Commands of the core run on the
loop alone, and no thread ever holds the loop up.  When the log breaks, whoever waits is told so.

    thread   deque.append(job) -> wake? -> lock.acquire ........................ -> result
    loop                           run(job) -> core decides -> durable -> lock.release

`Outlet` brings portions of what is followed, on the loop, to the thread that sends them as Arrow batches.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import pyarrow as pa

from penstock.errors import LogBroken, PenstockError, Unavailable
from penstock.memory import Held
from penstock.server.asking.caching import Burying
from penstock.server.base.faults import Told

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue
    from penstock.server.engine import Engine


T = TypeVar("T")

When: TypeAlias = Callable[[int, Callable[[], None]], None]
"""Runs something when an LSN is durable."""

POLL_S, POLL_MOST_S = 0.05, 0.5
"""How often a waiting thread asks whether its client is still there: at first, and when it has waited for long."""

QUEUED_MOST = 2 << 20
"""Bytes that wait for a client to read them."""

QUEUED_LEAST = 64 << 10
QUEUED_PART = 16
"""Of many streams less may wait for each: this part of the memory for all, and some for each in any case."""


def longer(pause: float) -> float:
    """The pause that follows this one, before somebody asks again."""
    return min(2 * pause, POLL_MOST_S)


class Abandoned(Exception):
    """The client went away while its thread waited."""


class Answer(Generic[T]):
    """What a thread waits for.  The loop gives it a value or an error, once."""

    __slots__ = ("_error", "_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._value: T
        self._error: BaseException | None = None

    def give(self, value: T) -> None:
        """The value; what comes after the first answer is ignored."""
        if self._lock.locked():
            self._value = value
            self._lock.release()

    def fail(self, error: BaseException) -> None:
        if self._lock.locked():
            self._error = error
            self._lock.release()

    @property
    def given(self) -> bool:
        return not self._lock.locked()

    def wait(self, gone: Callable[[], bool] | None = None) -> T:
        """The value, or the error raised.  Abandoned when `gone` says that nobody will read it."""
        if gone is None:
            self._lock.acquire()
        else:
            pause = POLL_S
            while not self._lock.acquire(timeout=pause):
                if gone():
                    raise Abandoned
                pause = longer(pause)
        self._lock.release()
        if (error := self._error) is not None:
            self._error = None  # with its traceback it would hold this frame, and all that the call had, in a cycle
            try:
                raise error
            finally:
                del error
        return self._value


class Handover:
    """All jobs of the Flight door.  `submit`, `call` and `post` belong to any thread, the rest to the loop's."""

    def __init__(self, engine: Engine, wake: Callable[[Callable[[], None]], object]) -> None:
        """`wake` runs a function soon on the loop and may be called from any thread (`loop.call_soon_threadsafe`)."""
        self.engine = engine
        self.jobs = 0
        self._wake = wake
        self._waiting: deque[Callable[[], None]] = deque()
        self._pending = False  # a wake is on its way
        self._open: set[Answer[Any]] = set()  # that wait for something
        self._closed: str | None = None
        engine.on_broken.append(self._broken)

    # -- any thread

    def queued_most(self, most: int = 0) -> int:
        """Bytes that may wait for one client to read them: at most so many, `QUEUED_MOST` unless given."""
        shares = self.engine.shares
        streams = shares.of("flight_streams").taken + shares.of("flight_streams_still").taken
        share = self.engine.bodies.budget.limit // QUEUED_PART // max(1, streams)
        return max(QUEUED_LEAST, min(most or QUEUED_MOST, share))

    def post(self, job: Callable[[], None]) -> None:
        """Run a job on the loop; nobody waits for it."""
        self.engine.announce_guest()
        self._waiting.append(job)
        if not self._pending:
            self._pending = True
            try:
                self._wake(self._run)
            except RuntimeError as error:  # the loop is closed
                raise Unavailable("the server stops") from error

    def submit(self, job: Callable[[Answer[T]], None]) -> Answer[T]:
        """Run a job on the loop that answers by itself, now or later."""
        answer: Answer[T] = Answer()
        self.post(partial(self._guarded, job, answer))
        return answer

    def call(self, work: Callable[[], T], gone: Callable[[], bool] | None = None, *, durable: bool = True) -> T:
        """The result of `work` on the loop, once all that was decided up to then is durable, and may be answered.

        Raises what `work` raises.  `durable=False` is for answers that name nothing new.
        """

        def job(answer: Answer[T]) -> None:
            since = self.engine.core.last_lsn
            value = work()
            if durable:
                self.when_answerable(since, answer, value)
            else:
                answer.give(value)

        return self.submit(job).wait(gone)

    # -- the loop's thread

    def again(self, job: Callable[[Answer[T]], None], answer: Answer[T]) -> None:
        """Run a job once more that had to wait for something.  No turn is under way then, so one is asked for."""
        self._guarded(job, answer)
        self.engine.arm()

    def has_room(self, job: Callable[[Answer[T]], None], answer: Answer[T]) -> bool:
        """Whether the gathering commit takes more; if not, the job is run once more when it does."""
        if self.engine.has_room():
            return True
        self.engine.on_room.append(partial(self.again, job, answer))
        return False

    def keep(self, answer: Answer[T]) -> None:
        """An answer that waits for something: whoever waits for it is told when the server stops or the log breaks."""
        self._open.add(answer)

    def forget(self, answer: Answer[T]) -> None:
        """Nobody waits for this answer any more."""
        self._open.discard(answer)

    def refuse(self, answer: Answer[T], error: PenstockError) -> None:
        """What an answer waited for will not come."""
        self.forget(answer)
        answer.fail(error)

    def when_persisted(self, lsn: int, answer: Answer[T], value: T) -> None:
        """The same for publishers: where a link is synchronous, once that site has it, too."""
        self.when_durable(lsn, answer, value, self.engine.when_persisted)

    def when_answerable(self, since: int, answer: Answer[T], value: T) -> None:
        """Answer what was decided behind LSN `since` once all of it is durable, and may be answered."""
        self.when_durable(self.engine.core.last_lsn, answer, value, partial(self.engine.when_answerable, since))

    def when_durable(self, lsn: int, answer: Answer[T], value: T, when: When | None = None) -> None:
        """Answer once `lsn` is on disk; LogBroken if it never will be."""
        engine = self.engine
        self.forget(answer)
        if engine.broken is not None:
            if lsn > engine.log.durable:
                answer.fail(LogBroken(f"the log is broken: {engine.broken}"))
            else:
                answer.give(value)
            return
        self.keep(answer)

        def done() -> None:
            self.forget(answer)
            answer.give(value)

        (when or engine.when_durable)(lsn, done)

    def close(self, reason: str) -> None:
        """Take no more jobs; whoever waits for a sync that will not come is told."""
        self._closed = reason
        self._fail_open(Unavailable(reason))

    def _run(self) -> None:
        self._pending = False
        waiting, has_time = self._waiting, self.engine.turns.share
        has_time()  # from now on; the first job is run in any case
        try:
            while waiting:
                self.jobs += 1
                self.engine.faults.run(waiting.popleft(), Told("flight"))
                if not has_time():
                    break
        finally:
            if waiting and not self._pending:  # others come first, or a job failed: the rest has its turn
                self._pending = True
                self._wake(self._run)
            self.engine.arm()

    def _guarded(self, job: Callable[[Answer[T]], None], answer: Answer[T]) -> None:
        if self._closed is not None:
            answer.fail(Unavailable(self._closed))
            return
        try:
            job(answer)
        except PenstockError as error:
            self.forget(answer)
            answer.fail(error)
        except Exception as error:  # noqa: BLE001 - the border of each; its thread must not hang on our mistake
            self.forget(answer)
            answer.fail(error)
            self.engine.faults.contain(error, Told("flight"))

    def _broken(self, reason: str) -> None:
        self._fail_open(LogBroken(f"the log is broken: {reason}; whether this was stored is unknown"))

    def _fail_open(self, error: PenstockError) -> None:
        failed = [*self._open]
        self._open.clear()
        for answer in failed:
            answer.fail(error)


class Aside:
    """The `Beside` of a server, for one call of somebody."""

    def __init__(self, handover: Handover, peer: str, gone: Callable[[], bool]) -> None:
        self._handover = handover
        self._engine = handover.engine
        self.core, self.log, self.now = self._engine.core, self._engine.log, self._engine.now
        self.pipelines, self.peer = self._engine.pipelines, peer
        self.gone = gone

    def call(self, work: Callable[[], T], *, durable: bool = True) -> T:
        """The result of `work` on the loop."""
        return self._handover.call(work, self.gone, durable=durable)

    def decide(self, work: Callable[[], T]) -> T:
        """The same of what writes records, with the dead letters of what it let die."""

        def job(answer: Answer[T]) -> None:
            self.usable()
            since, effects = self.core.last_lsn, self.core.effects
            before = len(effects)
            value = work()
            burying = Burying(self._engine)
            burying.note_effects(effects[before:])
            self._when_buried(burying, since, answer, value)

        return self._handover.submit(job).wait(self.gone)

    def _when_buried(self, burying: Burying, since: int, answer: Answer[T], value: T) -> None:
        """Answer what was decided behind LSN `since` once the dead letters of it are there, too."""
        handover = self._handover
        handover.keep(answer)
        burying.when_buried(partial(handover.when_answerable, since, answer, value), partial(handover.refuse, answer))

    def usable(self) -> None:
        """LogBroken where nothing that is decided would last."""
        self._engine.usable()

    def later(self, begin: Callable[[Callable[[Queue | None, T], None]], None]) -> T:
        """What the core tells by and by whom `begin` hands to it, with the queue of which some may have died."""

        def job(answer: Answer[T]) -> None:
            self.usable()
            since = self.core.last_lsn

            def tell(queue: Queue | None, value: T) -> None:
                burying = Burying(self._engine)
                if queue is not None:
                    burying.note(queue)
                self._when_buried(burying, since, answer, value)

            begin(tell)

        return self._handover.submit(job).wait(self.gone)

    def lsn_at(self, time: int) -> int:
        """The first LSN from a time on."""
        return self._engine.recoveries.lsn_at(time)


class Bell:
    """Any thread rings, one thread waits."""

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        self._silent = threading.Lock()  # held until it rings
        self._silent.acquire()

    def ring(self) -> None:
        """There is something to do."""
        try:
            self._silent.release()
        except RuntimeError:
            pass  # it has rung already and nobody has come yet

    def wait(self, seconds: float) -> bool:
        """Until it rings; False when it did not within so many seconds."""
        return self._silent.acquire(timeout=seconds)


BATCH_ROWS = 10_000
BEAT_S = 5.0
Piece: TypeAlias = "tuple[pa.RecordBatch, bytes] | pa.RecordBatch"

Taken = TypeVar("Taken", bound=Sized)


class Outlet(ABC, Generic[Taken]):
    """A taker whose portions another thread sends."""

    def __init__(self, origin: int, most: Callable[[], int], user: str = "", peer: str = "") -> None:
        """most: bytes that may wait for the client at present.  user, peer: who reads."""
        self._user, self._peer = user, peer
        self._origin = origin
        self._most = most
        self._bell = Bell()  # rung when there is something to send
        self._guard = threading.Lock()
        self._out: deque[Taken | bytes] = deque()  # portions, and what is told beside an empty batch between two
        self._starved = False  # the loop found no room since the thread had it go on
        self._over = False
        self._error: PenstockError | None = None
        self.queued = self.sent = 0  # bytes that wait, and that went to the client; changed under `_guard`

    # -- for each kind of portion

    @abstractmethod
    def cost(self, portion: Taken) -> int:
        """Bytes of memory that a portion takes, about."""

    @abstractmethod
    def batch(self, portions: list[Taken], schema: pa.Schema) -> pa.RecordBatch: ...

    @abstractmethod
    def completed(self, *, last: bool) -> bytes:
        """What the client is told when all there was has come; last: nothing follows."""

    # -- loop: a taker

    def room(self) -> int:
        self._starved = True  # before it is looked: the thread sends meanwhile, and looks at this after it has counted
        if self.queued > self._most() or self._over:
            return 0
        self._starved = False
        return BATCH_ROWS

    def take(self, portion: Taken) -> None:
        self._out.append(portion)
        self._count(self.cost(portion))
        self._bell.ring()

    def level(self) -> None:
        self._out.append(self.completed(last=False))
        self._bell.ring()

    def ended(self, error: PenstockError | None) -> None:
        """Tell the client, after what it was sent."""
        if error is None and not self._over:
            self._out.append(self.completed(last=True))
        self._error = self._error or error
        self._over = True
        self._bell.ring()

    def drop(self) -> None:
        """Nothing of what waits is sent."""
        with self._guard:
            self.queued -= sum(self.cost(one) for one in self._out if not isinstance(one, bytes))
            self._out.clear()

    def held(self) -> Held:
        """What waits, as memory that others may want."""
        name = f"what the reader {self._peer} does not read"
        return Held(self, self._user, name, 0 if self._over else self.queued, self.sent, self._cut)

    def _cut(self, error: PenstockError) -> None:
        self.drop()
        self.ended(error)

    def _count(self, size: int) -> None:
        with self._guard:
            self.queued += size

    # -- the thread that sends

    def batches(self, schema: pa.Schema, gone: Callable[[], bool], go_on: Callable[[], None]) -> Iterator[Piece]:
        """What was queued, until the end; go_on: there is room again."""
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        said, pause = time.monotonic(), POLL_S
        while True:
            over = self._over  # what was queued before that is out when nothing is left
            portions, told = self._some()
            if any_ := bool(portions):
                said, pause = time.monotonic(), POLL_S
                cost, batch = sum(map(self.cost, portions)), self.batch(portions, schema)
                portions.clear()  # as rows they are not needed while a client that does not read is written to
                yield batch
                del batch
                self._count(-cost)
                self.sent += cost
                if self._starved:
                    self._starved = False
                    go_on()
            if told is not None:
                yield empty, told
            if any_ or told is not None:
                continue
            if over:
                if self._error is not None:
                    raise self._error
                return
            if not self._bell.wait(pause):
                if gone():
                    raise Abandoned
                pause = longer(pause)
                if time.monotonic() - said > BEAT_S:
                    said = time.monotonic()
                    yield empty, b'{"heartbeat": true}'

    def _some(self) -> tuple[list[Taken], bytes | None]:
        """Portions for one batch, and what is to be told after them."""
        portions, rows = list[Taken](), 0
        with self._guard:
            while self._out and rows < BATCH_ROWS:
                one = self._out.popleft()
                if isinstance(one, bytes):
                    return portions, one
                portions.append(one)
                rows += len(one)
        return portions, None
