"""The bulk child as the server holds it: started when first needed, started anew when it died, ended when idle.

A request has a line of its own (`doors.line`), whose other end goes to the child over the socket that it has.  So
requests do not wait for each other, the kernel's buffers are the back-pressure, closing is cancelling, and a child that
dies ends exactly the requests it had.  The child ends when its socket does, and that happens however the server ends.

    thread    a line -> request -> answers -> close
    loop      await run(job, ...): the same in a thread of this module

It knows how to ask, not what: jobs and reads are named in `requests` and run in `child`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from penstock.errors import PenstockError, Unavailable, told_as
from penstock.history.view import LISTINGS, PAUSE_S, Moved, Showing, lasting, listed_again, listing
from penstock.server.base.faults import reports
from penstock.server.base.loading import END_S, SPARING, begun, ended, environment
from penstock.server.bulk import requests
from penstock.server.doors.line import Broken, Ended, Frame, Kind, Line, Lines, plain
from penstock.wire.flight.failures import error_from

if TYPE_CHECKING:
    from penstock.history.history import Batches
    from penstock.log.log import Log

T = TypeVar("T")

logger = logging.getLogger("penstock.bulk")

IDLE_S = 60.0
"""A child that had no request for so long ends: it takes memory that somebody else can use."""

MEMORY = 2 << 30
"""Bytes that the child may allocate: a request beyond that fails, and nothing else does."""

PIECE_LEAST, PIECE_MOST, PIECE_PART = 64 << 10, 8 << 20, 16
"""Bytes of a frame with rows: all answers together have a sixteenth of the budget, as long as each has enough."""

NICENESS = 5
JOBS_AT_ONCE = 4

Progress = Callable[[int, int], object]
"""(done, in all)."""


def _always() -> bool:
    return True


class Exchange:
    """One request and its answers.  For one thread; close it, or read it to its end."""

    def __init__(self, bulk: Bulk, lines: Lines, what: str, wanted: Callable[[], bool]) -> None:
        """OSError when no line can be made."""
        self._line: Line | None = None
        self._bulk = bulk
        self._lines = lines
        self._what = what
        self._wanted = wanted
        self._child = bulk.pid
        self._line = lines.new(requests.Spare().take)

    def begin(self, payload: list[Any]) -> bool:
        """Ask; False when the child died before it knew of the request.  Otherwise raises as `answers`."""
        try:
            assert self._line is not None
            self._line.send(Kind.CALL, 0, *payload)
            self._next(self._line)
        except (Ended, Broken):
            self.close()
            if not self._wanted():
                raise Unavailable(f"{self._what} was given up") from None
            return False
        except BaseException:
            self.close()
            raise
        return True

    def _next(self, line: Line) -> Frame:
        frame = line.receive(requests.ANSWERS, self._wanted)
        if frame.kind is Kind.FAILED:
            raise _error(plain(frame.payload))
        return frame

    def answers(self) -> Iterator[Frame]:
        """Frames up to the last one, which is given too.

        Raises the error that the child tells, Moved, or Unavailable when the child died or `wanted` said no.
        """
        try:
            while (line := self._line) is not None:
                try:
                    frame = self._next(line)
                except (Ended, Broken):
                    if not self._wanted():
                        raise Unavailable(f"{self._what} was given up") from None
                    raise self._bulk.died(self._child, self._what) from None
                yield frame
                if frame.kind is Kind.DONE:
                    return
        finally:
            self.close()

    def close(self) -> None:
        """The child stops working on it.  Without a lock: a request may be collected in the middle of anything."""
        line, self._line = self._line, None
        if line is not None:
            self._lines.drop(line)
            self._bulk.last_used = time.monotonic()

    def __del__(self) -> None:
        """A stream that nobody ever began to read."""
        self.close()


def _error(told: dict[str, Any]) -> Exception:
    if "moved" in told:
        return Moved(told["moved"])
    error = error_from(told)
    reports.tell_if_a_fault(error, "bulk")
    return error


class Bulk:
    """The child of one server.  Thread-safe."""

    def __init__(
        self, data: str | os.PathLike[str], *, memory: int = MEMORY, idle_s: float = IDLE_S, budget: int = MEMORY
    ) -> None:
        """memory: bytes that the child may allocate.  budget: of the server, `server.memory`; a small one is the
        child's reason too to keep little that it does not use.
        """
        self._data = str(Path(data).absolute())
        self._memory = memory
        self._budget = budget
        self._idle_s = idle_s
        self.starts = 0
        self.deaths = 0  # that nobody asked for
        self.requests = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: Lines | None = None
        self.last_used = time.monotonic()
        self._closed = False
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    # -- any thread

    @property
    def pid(self) -> int | None:
        """Of the child that runs, if one does."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def running(self) -> int:
        """Requests that the child works on."""
        lines = self._lines
        return 0 if lines is None else lines.taken

    def ask(self, kind: str, name: str, values: dict[str, object], wanted: Callable[[], bool] = _always) -> Exchange:
        """Begin a request: kind "read" or "job".  Unavailable when no child can be started."""
        what, payload = f"{kind} {name!r}", requests.packed({kind: name, "most": self._piece_most()}, values)
        for attempt in range(2):
            exchange = self._exchange(what, wanted, fresh=attempt > 0)
            if exchange.begin(payload):
                return exchange
        raise Unavailable(f"the bulk process ends before it takes up {what}")

    def _piece_most(self) -> int:
        """Bytes of rows that an answer's frames have: some are here and some in a door for each reader that stands."""
        return max(PIECE_LEAST, min(PIECE_MOST, self._budget // PIECE_PART // (self.running + 1)))

    def read(
        self,
        name: str,
        values: dict[str, object],
        wanted: Callable[[], bool] = _always,
        told: Callable[[Mapping[str, int]], None] | None = None,
    ) -> tuple[pa.Schema, Batches]:
        """The schema and the rows of a read; `told` takes what is said of them at their end.  Raises as `ask`."""
        exchange = self.ask("read", name, values, wanted)
        answers = exchange.answers()
        schema = pa.ipc.read_schema(pa.py_buffer(next(answers).payload))

        def rows() -> Batches:
            try:
                for frame in answers:
                    if frame.kind is Kind.BATCH:
                        yield pa.ipc.read_record_batch(pa.py_buffer(frame.payload), schema)
                    elif told is not None:
                        told(requests.unpacked(frame.payload)[1])
            finally:
                exchange.close()

        return schema, rows()

    def call(
        self,
        job: str,
        values: dict[str, object],
        *,
        progress: Progress | None = None,
        wanted: Callable[[], bool] = _always,
    ) -> dict[str, Any]:
        """The plain result of a job; waits for it.

        `progress` is called in this thread.  `wanted` False gives the job up.  Raises what the job raises, and
        Unavailable when the child died under it.
        """
        exchange = self.ask("job", job, values, wanted)
        for frame in exchange.answers():
            if frame.kind is Kind.DONE:
                return requests.unpacked(frame.payload)[1]
            if not wanted():
                break
            if progress is not None:
                progress(*requests.HOW_FAR.unpack(frame.payload))
        exchange.close()
        raise Unavailable(f"job {job!r} was given up")

    def died(self, child: int | None, what: str) -> PenstockError:
        """The error for a request that a child left unfinished."""
        process = self._process
        if self._closed:
            return Unavailable(f"the server stops; {what} was not finished")
        if process is None or process.pid != child:
            return Unavailable(f"the bulk process ended while it worked on {what}; it is started again when needed")
        try:
            code = process.wait(END_S)
        except subprocess.TimeoutExpired:
            return Unavailable(f"the bulk process gave up {what}")
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        return Unavailable(f"the bulk process {how} while it worked on {what}; it is started again when needed")

    def _exchange(self, what: str, wanted: Callable[[], bool], *, fresh: bool) -> Exchange:
        """A request that can be begun; starts the child if none runs.  Unavailable when that fails."""
        with self._lock:
            if self._closed:
                raise Unavailable("the bulk process cannot be started: the server stops")
            lines, process = self._lines, self._process
            with told_as(Unavailable, "the bulk process cannot be started: ", instead=OSError):
                if fresh or lines is None or process is None or process.poll() is not None:
                    lines = self._start()
                try:
                    made = Exchange(self, lines, what, wanted)
                except ConnectionError:  # it has died since it was looked at
                    made = Exchange(self, self._start(), what, wanted)
            self.requests += 1
            self.last_used = time.monotonic()
            return made

    def _start(self) -> Lines:
        self._bury()
        ours, theirs = socket.socketpair()
        try:
            words = (self._data, str(self._memory), str(NICENESS), str(self._budget))
            self._process = begun("penstock.server.bulk.child", [theirs], *words, env=environment(**SPARING))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._lines = Lines(ours)
        self.starts += 1
        return self._lines

    def _bury(self) -> None:
        """Whatever is left of the last child goes."""
        process, self._process = self._process, None
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.close()
        if process is None:
            return
        code = ended(process)
        if lines is not None:  # nobody had asked it to
            self.deaths += 1
            logger.warning("the bulk process %d ended with status %d", process.pid, code)

    # -- the loop's thread

    async def run(self, job: str, *, progress: Progress | None = None, **values: object) -> dict[str, Any]:
        """The plain result of a job.  Cancelling gives the job up.  `progress` is called in another thread.

        Unavailable too when the server stops.
        """
        if self._closed:
            raise Unavailable(f"the server stops; job {job!r} was not begun")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(JOBS_AT_ONCE, thread_name_prefix="penstock-bulk")
        wanted = threading.Event()
        wanted.set()

        def work() -> dict[str, Any]:
            return self.call(job, values, progress=progress, wanted=wanted.is_set)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except asyncio.CancelledError:
            wanted.clear()
            raise

    def beat(self, *, full: bool = False) -> None:
        """Once a second: a child that is idle ends.  It goes when its control socket does; nobody waits for it here.

        full: the disk is, so it ends at once: what it has read stays open, and the room of files that have gone since
        comes back with it alone.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            process = self._process
            if process is not None and process.poll() is not None:
                self._bury()
            elif not self.running and (full or time.monotonic() - self.last_used >= self._idle_s):
                lines, self._lines = self._lines, None
                if lines is not None:
                    lines.close()
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the child and whatever it does.  Blocks for up to END_S: not on the loop."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            process, self._process = self._process, None
            lines, self._lines = self._lines, None
        if lines is not None:
            lines.close()
        if process is not None:
            ended(process)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


async def asked_of(ask: Callable[[], Awaitable[T]]) -> T:
    """What `ask` gives for a fresh listing of the log; asked again when a file was replaced before it was opened.

    As `on_log`, on the loop.
    """
    moved = ""
    for turn in range(LISTINGS):
        if turn > 1:
            await asyncio.sleep(PAUSE_S)
        try:
            return await ask()
        except Moved as error:
            moved = str(error)
    raise lasting(moved)


def on_log(
    log: Log,
    ask: Callable[[dict[str, object]], T],
    start: int = 0,
    end: int = 1 << 62,
    archive: Showing | None = None,
) -> T:
    """What `ask` gives for a listing of the log; asked again as `listed_again` says."""
    return listed_again(lambda: ask(listing(log, start, end, archive).plain()))
