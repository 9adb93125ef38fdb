"""Schedules: a server's upkeep against its appends, in an order of steps that a seed chooses.

    PYTHONPATH=tests python -m sim.interleave --seed 17 --trace      # replay one chain of schedules
    PYTHONPATH=tests python -m sim.interleave --first 0 --chains 50  # many; the failing seed is printed

A chain is one data folder through several lives; each life is one schedule.  In a life the loop (core, engine, keeper,
consumers), the log's writer, cold reads, checkpoints, bases, retirement, compaction and readers run as strands of a
`Baton`, switched at every disk call, lock and hand-over.  It ends at a step that the seed chooses, by a power cut, a
kill or a clean stop.  What must then be true is in `Judge`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import logging
import random
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

from garbage import collector_as_before
from penstock.server.base.loading import do_without_pandas
from penstock.server.upkeep import keeper as keepers
from penstock.server.upkeep import retention
from penstock.testing.instance import FakeClock
from sim import baton as threads
from sim.baton import Baton, Killed
from sim.judge import T0, Judge
from sim.stepdisk import StepDisk
from sim.upkeep_house import House

LIVES = 20
THREADING = SimpleNamespace(
    Lock=threads.Lock, RLock=threads.RLock, Semaphore=threads.Semaphore, BoundedSemaphore=threads.Semaphore,
    Event=threads.Event, Condition=threads.Condition, Thread=threads.Thread,
    get_ident=lambda: 0 if Baton.current is None else Baton.current.me.number,
)  # fmt: skip


@contextmanager
def simulated_threads() -> Iterator[None]:
    """The modules under test take their threads and locks from the baton."""
    touched = list[tuple[ModuleType, object]]()
    for name, module in list(sys.modules.items()):
        if name.startswith(("penstock.log", "penstock.server", "penstock.memory")) and hasattr(module, "threading"):
            touched.append((module, module.threading))
            module.threading = THREADING  # type: ignore[attr-defined]
    beats, keepers.RETENTION_BEATS = keepers.RETENTION_BEATS, 2
    early = retention.ROLL_LEAST, retention.ROLL_PART
    retention.ROLL_LEAST, retention.ROLL_PART = 500, 100
    try:
        with warnings.catch_warnings(), collector_as_before():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that a power cut found before their start
            gc.collect()
            gc.freeze()  # what was imported is not looked through again after every chain
            yield
            gc.collect()
    finally:
        gc.enable()
        keepers.RETENTION_BEATS = beats
        retention.ROLL_LEAST, retention.ROLL_PART = early
        for module, threading in touched:
            module.threading = threading  # type: ignore[attr-defined]


class Chain:
    """Lives of one folder, all from one seed."""

    def __init__(self, seed: int, house: type[House] = House) -> None:
        self.seed = seed
        self.house = house
        self.chance = random.Random(seed)
        self.judge = Judge()
        self.clock = FakeClock(T0)
        self.disk = StepDisk(seed=seed)
        self.trace: list[str] | None = None
        self.steps = 0
        self.lives = 0
        self.counts = dict[str, int]()

    def live(self, end: str = "") -> None:
        """One schedule.  AssertionError, or what else went wrong, with a note on how to see it again.

        `end`: crash, kill or close, instead of one by chance.
        """
        self.lives += 1
        with self._noted():
            self._live(end)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Whatever goes wrong has a note on how to see it again."""
        try:
            yield
        except BaseException as error:
            error.add_note(
                f"seed {self.seed}, life {self.lives}; replay: PYTHONPATH=tests .venv/bin/python -m sim.interleave "
                f"--seed {self.seed} --lives {self.lives}"
                + (f" --plant {self.house.__name__}" if self.house is not House else "")
            )
            raise

    def _live(self, end: str) -> None:
        chance = self.chance
        baton = Baton(chance.getrandbits(64), self.clock.mono, self.clock.advance)
        baton.trace = self.trace
        end = end or chance.choice(("crash", "crash", "kill", "close"))
        if end != "close":
            baton.kill_at = chance.choice((chance.randint(1, 60), chance.randint(30, 450), chance.randint(30, 450)))
        house = self.house(self.judge, self.disk, self.clock, chance)
        actions = chance.randint(3, 36)
        look_at = self.disk.changed + chance.randint(1, 12)
        worst = list[tuple[dict[str, bytes], int]]()

        def watch(name: str) -> None:
            """One look at what a power cut would leave, where something has just gone."""
            self.disk.retired += name.endswith(".arrows")
            if self.disk.changed >= look_at and not worst:
                worst.append((self.disk.worst(names_synced=False), self.judge.safe))

        self.disk.watch = watch  # type: ignore[method-assign]
        self.disk.retired = 0

        async def all_of_it() -> None:
            await house.start()
            await house.work(actions)
            if end == "close":
                await house.quiet()
                await house.keeper.last_checkpoint()
                await house.loop.run_in_executor(house.pool, lambda: house.log.close(clean=True))

        try:
            house.loop.run_until_complete(all_of_it())
        except Killed:
            pass
        finally:
            baton.kill()
        for error in (*house.loop.failures, *house.failures()):
            raise error
        self.steps += baton.steps
        if end == "crash":
            self.disk.crash()
        else:
            self.disk.kill()
        self.clock.reboot()
        for task in asyncio.all_tasks(house.loop):  # left to the collector, each would end later, on a closed loop
            task.get_coro().close()
        house.loop.close()
        house.count(self.counts)
        settings = house.log_settings()
        for files, safe in worst:
            self.judge.looked_at(files, settings, safe=safe, scan=False)
        self.judge.end(self.disk.files(), settings, chance)

    def last_look(self) -> None:
        """What the last life left."""
        settings = self.house.log_settings()
        with self._noted():
            self.judge.looked_at(self.disk.files(), settings, safe=self.judge.safe, scan=True)


def run(first: int, chains: int, lives: int = LIVES, house: type[House] = House) -> dict[str, int]:
    """Run chains from a seed on; what happened in them.  Raises at the first failure."""
    total = {"schedules": 0, "steps": 0}
    gc.collect()
    gc.freeze()  # modules are not looked through again with each chain
    with simulated_threads():
        for seed in range(first, first + chains):
            gc.collect()  # here, and not where it suits the collector: finalisers must not run in another life
            gc.disable()
            chain = Chain(seed, house)
            for _ in range(lives):
                chain.live()
            chain.last_look()
            total["schedules"] += lives
            total["steps"] += chain.steps
            for name, count in chain.counts.items():
                total[name] = total.get(name, 0) + count
    return total


def main() -> int:
    """Run what the command line says; 1 after a failure, whose seed is printed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, help="this chain alone")
    options.add_argument("--lives", type=int, default=LIVES)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--chains", type=int, default=50, help="0: until something fails")
    options.add_argument(
        "--trace", action="store_true", help="with --seed: who went on at each switch of the last life"
    )
    options.add_argument("--plant", nargs="+", help="run with this bug, a class of sim.planted; with several in turn")
    given = options.parse_args()
    logging.getLogger("penstock").setLevel(logging.ERROR)
    do_without_pandas()  # as a server does
    house = House
    if given.plant:
        from sim import planted

        houses = {one.__name__: one for one in planted.PLANTED}
        house = houses[given.plant[0]]
        if given.plant[1:]:
            return planted.found_in_turn([houses[name] for name in given.plant], given.first, given.chains)
    start = time.perf_counter()
    if given.seed is not None:
        chain = Chain(given.seed, house)
        with simulated_threads():
            for life in range(given.lives):
                if given.trace and life == given.lives - 1:
                    chain.trace = []
                try:
                    chain.live()
                except BaseException:
                    print("\n".join(chain.trace or []))
                    raise
            chain.last_look()
        print(f"{chain.lives} schedules, {chain.steps} steps: all well {chain.counts}")
        return 0
    for seed in itertools.count(given.first) if given.chains == 0 else [given.first]:
        total = run(seed, given.chains or 1, given.lives, house)
        if given.chains or (seed - given.first) % 100 == 99:
            print(f"from seed {seed}: {total}, {time.perf_counter() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
