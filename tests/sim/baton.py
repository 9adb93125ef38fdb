"""Threads of which one runs at a time, and a seed says which: the scheduler of the interleaving simulator.

A `Baton` is held by exactly one thread.  At every `step()` its holder may pass it to another, chosen from the seed; at
a lock that is taken, or in a sleep, it must.  So code written with `threading`, executors and an asyncio loop runs
unchanged, and the same seed gives the same run.  Where steps are is the callers' business: disk, locks, hand-overs.

`kill()` ends all of them at the step they stand at, as a power cut would: each gets `Killed` there and at every later
step, so that nothing they do on the way out reaches the disk.  Nothing here knows what the threads do.
"""

from __future__ import annotations

import random
import threading as real
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ClassVar

PATIENCE_S = 60.0
"""A thread that keeps the baton this long hangs outside of the simulation's reach."""


class Killed(BaseException):
    """The machine is off."""


class Stuck(AssertionError):
    """Nobody can go on: a deadlock, or a thread that waits for something outside."""


class _Worker:
    """An operating system's thread that runs one strand after the other."""

    idle: ClassVar[deque[_Worker]] = deque()

    def __init__(self) -> None:
        self.go = real.Lock()
        self.go.acquire()
        self.work: Callable[[], None] = lambda: None
        real.Thread(target=self._run, daemon=True, name="simulated").start()

    def _run(self) -> None:
        while True:
            self.go.acquire()
            self.work()

    @classmethod
    def one(cls) -> _Worker:
        return cls.idle.pop() if cls.idle else cls()


class Strand:
    """One simulated thread."""

    __slots__ = ("due", "ended", "error", "go", "name", "number", "rank", "waits")

    def __init__(self, name: str, number: int, go: real.Lock) -> None:  # type: ignore[valid-type]
        self.name = name
        self.number = number
        self.go = go
        self.rank = 0.0  # who goes first under the rule of priorities
        self.waits: Callable[[], bool] | None = None  # what it needs before it can go on
        self.due: int | None = None  # or until when it sleeps
        self.ended = False
        self.error: BaseException | None = None


class Baton:
    """The scheduler.  Whoever makes one is its first strand, and must call `finish` or `kill` at the end.

    `now` and `sleep_until` are the simulated clock's: when nobody can go on, time passes to the next sleeper's hour.
    """

    current: Baton | None = None

    def __init__(self, seed: int, now: Callable[[], int], pass_time: Callable[[int], None]) -> None:
        self.random = random.Random(seed)
        self.steps = 0
        self.trace: list[str] | None = None  # filled when it is a list: who went on at each switch, and at what
        self.kill_at = -1  # the step at which `on_kill` comes; -1: never
        self.dead = False
        self.now, self._pass_time = now, pass_time
        self._go = real.Lock()
        self._go.acquire()
        self.me = self.first = Strand("loop", 0, self._go)
        self.strands = [self.first]
        # How often to switch, and by which rule: evenly, or the highest rank first with a few changes of rank.
        self._ranked = self.random.random() < 0.4
        self._eager = self.random.choice((0.05, 0.3, 0.8))
        self.first.rank = self.random.random()
        Baton.current = self

    # -- for the strands

    def step(self, what: str = "") -> None:
        """Another may go on here."""
        if self.dead:
            raise Killed
        self.steps += 1
        if self.steps == self.kill_at:
            self.dead = True
            raise Killed
        if len(self.strands) == 1 or (not self._ranked and self.random.random() > self._eager):
            return
        if self._ranked and self.random.random() < 0.05:
            self.me.rank = self.random.random() - 1.0
        self._pass_on(what)

    def wait(self, ready: Callable[[], bool], what: str = "") -> None:
        """Go on when `ready()` says so; others go on meanwhile."""
        if self.dead:
            raise Killed
        if not ready():
            self.me.waits = ready
            self._pass_on(what)
            self.me.waits = None

    def sleep(self, until: int | None, ready: Callable[[], bool], what: str = "") -> None:
        """Go on when `ready()`, or at `until` on the simulated clock once nobody else can go on (None: never)."""
        if self.dead:
            raise Killed
        self.me.waits, self.me.due = ready, until
        self._pass_on(what)
        self.me.waits = self.me.due = None

    def spawn(self, work: Callable[[], object], name: str) -> Strand:
        """A new strand; it begins when its turn comes."""
        worker = _Worker.one()
        strand = Strand(name, len(self.strands), worker.go)
        strand.rank = self.random.random()
        self.strands.append(strand)

        def run() -> None:
            try:
                if not self.dead:
                    work()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001  told by whoever looks at the run
                strand.error = error
            strand.ended = True
            if strand in self.strands:
                self.strands.remove(strand)
            _Worker.idle.append(worker)
            if self.dead:
                self.first.go.release()
            else:
                self._hand_to(self._choose("ends"))

        worker.work = run
        return strand

    # -- passing it on

    def _choose(self, what: str) -> Strand:
        """Who goes on.  Time passes when all wait."""
        for _ in range(2):
            able = [one for one in self.strands if one.waits is None or one.waits()]
            if able:
                chosen = max(able, key=lambda one: one.rank) if self._ranked else self.random.choice(able)
                if self.trace is not None:
                    self.trace.append(f"{self.steps} {self.me.name} {what} -> {chosen.name}")
                return chosen
            sleepers = [one for one in self.strands if one.due is not None]
            if not sleepers:
                break
            first = min(sleepers, key=lambda one: one.due or 0)
            self._pass_time(max(0, (first.due or 0) - self.now()))
            first.waits = None
        raise Stuck("nobody can go on: " + ", ".join(f"{one.name} waits" for one in self.strands))

    def _hand_to(self, chosen: Strand) -> None:
        self.me = chosen
        chosen.go.release()

    def _pass_on(self, what: str) -> None:
        mine = self.me
        try:
            chosen = self._choose(what)
        except Stuck as stuck:
            if mine is self.first:
                raise
            self.first.error = stuck
            self.dead = True
            raise Killed from stuck
        if chosen is mine:
            return
        self._hand_to(chosen)
        if not mine.go.acquire(timeout=PATIENCE_S):
            raise Stuck(f"{mine.name} was never called again: {self.me.name} hangs")
        if self.dead:
            raise Killed

    # -- the end

    def kill(self) -> None:
        """All other strands end where they stand.  By the first strand, which may have got `Killed` itself."""
        self.dead = True
        for strand in list(self.strands):
            if strand is not self.first:
                self.me = strand
                strand.go.release()
                if not self.first.go.acquire(timeout=PATIENCE_S):
                    raise Stuck(f"{strand.name} does not end")
        self.me = self.first
        Baton.current = None
        if isinstance(self.first.error, Stuck):
            raise self.first.error

    def check(self, strands: list[Strand]) -> None:
        """Raise what one of these ended with."""
        for strand in strands:
            if strand.error is not None:
                raise strand.error


def step(what: str = "") -> None:
    """A step of the running simulation; nothing outside of one."""
    if (baton := Baton.current) is not None:
        baton.step(what)


# -- what stands for `threading` in the modules under test


class Lock:
    """`threading.Lock`, and RLock where nobody takes it twice."""

    def __init__(self) -> None:
        self.taken = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        del timeout
        if (baton := Baton.current) is None:
            assert not self.taken
        elif self.taken:
            if not blocking:
                return False
            baton.wait(lambda: not self.taken, "lock")
        self.taken = True
        return True

    def release(self) -> None:
        self.taken = False

    def locked(self) -> bool:
        return self.taken

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """A lock that its holder may take again."""

    def __init__(self) -> None:
        super().__init__()
        self.holder: Strand | None = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = Baton.current.me if Baton.current is not None else None
        if self.taken and self.holder is me:
            self.depth += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self.holder, self.depth = me, 1
        return True

    def release(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.holder = None
            super().release()


class Semaphore:
    """`threading.Semaphore`."""

    def __init__(self, value: int = 1) -> None:
        self.value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        del timeout
        if self.value == 0:
            if not blocking:
                return False
            assert Baton.current is not None
            Baton.current.wait(lambda: self.value > 0, "semaphore")
        self.value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self.value += n

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self.flag = False

    def is_set(self) -> bool:
        return self.flag

    def set(self) -> None:
        self.flag = True

    def clear(self) -> None:
        self.flag = False

    def wait(self, timeout: float | None = None) -> bool:
        baton = Baton.current
        assert baton is not None
        if not self.flag and timeout is None:
            baton.wait(lambda: self.flag, "event")
        elif not self.flag:
            baton.sleep(baton.now() + round((timeout or 0) * 1e6), lambda: self.flag, "event")
        return self.flag


class Condition:
    """`threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self.lock = lock if lock is not None else RLock()
        self.calls = 0

    def __enter__(self) -> bool:
        return self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        seen = self.calls
        self.lock.release()
        assert Baton.current is not None
        Baton.current.wait(lambda: self.calls != seen, "condition")
        self.lock.acquire()
        return True

    def notify(self, n: int = 1) -> None:
        del n
        self.calls += 1

    def notify_all(self) -> None:
        self.calls += 1


class Thread:
    """`threading.Thread`."""

    def __init__(
        self, target: Callable[..., object], name: str = "", args: tuple[Any, ...] = (), daemon: bool | None = None
    ) -> None:
        del daemon
        self.name = name
        self.target = target
        self.args = args
        self.strand: Strand | None = None

    def start(self) -> None:
        assert Baton.current is not None
        self.strand = Baton.current.spawn(lambda: self.target(*self.args), self.name)

    def join(self, timeout: float | None = None) -> None:
        del timeout
        if Baton.current is not None and (strand := self.strand) is not None:
            Baton.current.wait(lambda: strand.ended, "join")

    def is_alive(self) -> bool:
        return self.strand is not None and not self.strand.ended


class Pool(Executor):
    """An executor whose tasks are strands of their own."""

    def __init__(self) -> None:
        self.strands: list[Strand] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = Future[Any]()

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  handed on, as every executor does
                step("answer")
                future.set_exception(error)
            else:
                step("answer")
                future.set_result(result)

        assert Baton.current is not None
        self.strands.append(Baton.current.spawn(run, getattr(fn, "__name__", "task")))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del wait, cancel_futures
