"""The bulk child as the server holds it: started when first needed, started anew when it died, ended when idle.

A request is a socket of its own, handed to the child through a control socket.  So requests do not wait for each other,
the kernel's buffers are the back-pressure, closing is cancelling, and a child that dies ends exactly the requests it
had.  The child ends when the control socket does, and that happens however the server ends.

    thread    socketpair -> one end to the child -> request -> answers -> close
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
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa

from penstock.errors import PenstockError, Unavailable
from penstock.history.view import LISTINGS, PAUSE_S, Moved, Showing, lasting, listed_again, listing
from penstock.server.base.faults import reports
from penstock.server.base.loading import begun
from penstock.server.bulk import requests
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

NICENESS = 5
JOBS_AT_ONCE = 4
END_S = 2.0

Progress = Callable[[int, int], object]
"""(done, in all)."""


def _always() -> bool:
    return True


class Exchange:
    """One request and its answers.  For one thread; close it, or read it to its end."""

    def __init__(self, bulk: Bulk, sock: socket.socket, what: str, wanted: Callable[[], bool]) -> None:
        self._bulk = bulk
        self._sock: socket.socket | None = sock
        self._what = what
        self._wanted = wanted
        self._spare = requests.Spare()
        self._child = bulk.pid

    def answers(self) -> Iterator[tuple[dict[str, Any] | None, memoryview]]:
        """Frames up to the last one, which is given too.

        Raises the error that the child tells, Moved, or Unavailable when the child died or `wanted` said no.
        """
        try:
            while True:
                sock = self._sock
                if sock is None:
                    return
                try:
                    head, payload = requests.receive(sock, self._wanted, self._spare)
                except requests.Ended:
                    if not self._wanted():
                        raise Unavailable(f"{self._what} was given up") from None
                    raise self._bulk.died(self._child, self._what) from None
                if head is not None and "error" in head:
                    raise _error(head["error"])
                yield head, payload
                if head is not None and "end" in head:
                    return
        finally:
            self.close()

    def close(self) -> None:
        """The child stops working on it."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
            self._bulk.ended(sock)

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
        self._control: socket.socket | None = None
        self._asked = set[socket.socket]()  # held here: in a cycle of garbage nothing says which goes first
        self._last_used = time.monotonic()
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
        return len(self._asked)

    def ask(self, kind: str, name: str, values: dict[str, object], wanted: Callable[[], bool] = _always) -> Exchange:
        """Begin a request: kind "read" or "job".  Unavailable when no child can be started."""
        head, pieces = requests.pack(values)
        for attempt in range(2):
            try:
                ours = self._connect(fresh=attempt > 0)
            except OSError as error:
                raise Unavailable(f"the bulk process cannot be started: {error}") from error
            exchange = Exchange(self, ours, f"{kind} {name!r}", wanted)
            try:
                requests.send(ours, {kind: name, **head}, *pieces)
                first, _ = requests.receive(ours, wanted)  # taken
                if first is not None and "error" in first:
                    exchange.close()
                    raise _error(first["error"])
            except requests.Ended:
                exchange.close()
                if not wanted():
                    raise Unavailable(f"{kind} {name!r} was given up") from None
                continue  # it died before it knew of the request
            return exchange
        raise Unavailable(f"the bulk process ends before it takes up {kind} {name!r}")

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
        for head, payload in exchange.answers():
            if head is None:
                continue
            if "progress" in head:
                if not wanted():
                    break
                if progress is not None:
                    progress(*cast("tuple[int, int]", head["progress"]))
            elif "end" in head:
                return requests.unpack(head["end"], payload)
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

    def ended(self, asked: socket.socket) -> None:
        """Without the lock: a request may be collected, and closed, in the middle of anything."""
        self._last_used = time.monotonic()
        self._asked.discard(asked)

    def _connect(self, *, fresh: bool) -> socket.socket:
        """A socket whose other end the child has; starts the child if none runs.  OSError when that fails."""
        with self._lock:
            if self._closed:
                raise OSError(0, "the server stops")
            if fresh or self._control is None or self._process is None or self._process.poll() is not None:
                self._start()
            assert self._control is not None
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    try:
                        socket.send_fds(self._control, [b"+"], [theirs.fileno()])
                    except OSError:  # it has died since it was looked at
                        self._start()
                        socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
            self._asked.add(ours)
            self.requests += 1
            self._last_used = time.monotonic()
            return ours

    def _start(self) -> None:
        self._bury()
        ours, theirs = socket.socketpair()
        try:
            words = (self._data, str(self._memory), str(NICENESS), str(self._budget))
            self._process = begun("penstock.server.bulk.child", [theirs], *words)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._control = ours
        self.starts += 1

    def _bury(self) -> None:
        """Whatever is left of the last child goes."""
        process, self._process = self._process, None
        control, self._control = self._control, None
        if control is not None:
            control.close()
        if process is None:
            return
        code = _end(process)
        if control is not None:  # nobody had asked it to
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

    def beat(self) -> None:
        """Once a second: a child that is idle ends.  It goes when its control socket does; nobody waits for it here."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            process = self._process
            if process is not None and process.poll() is not None:
                self._bury()
            elif not self._asked and time.monotonic() - self._last_used >= self._idle_s:
                control, self._control = self._control, None
                if control is not None:
                    control.close()
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the child and whatever it does.  Blocks for up to END_S: not on the loop."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            process, self._process = self._process, None
            control, self._control = self._control, None
        if control is not None:
            control.close()
        if process is not None:
            _end(process)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _end(process: subprocess.Popen[bytes]) -> int:
    """The status of a process that should end by itself, and soon does."""
    try:
        return process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


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


def batches_of(
    exchange: Exchange,
    answers: Iterator[tuple[dict[str, Any] | None, memoryview]],
    schema: pa.Schema,
    told: Callable[[Mapping[str, int]], None] | None,
) -> Batches:
    """The rows that an exchange gives; `told` takes what it says of them at their end."""
    try:
        for head, payload in answers:
            if head is None:
                yield pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
            elif told is not None and "end" in head:
                told(head["end"]["values"])
    finally:
        exchange.close()
