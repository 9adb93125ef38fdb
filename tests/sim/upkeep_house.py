"""A server without doors whose loop, writer, upkeep and readers are strands of a `Baton`, and the load on it.

One life of a data folder.  Core, engine, keeper and log are the real ones; disk, clock, threads and the loop are
simulated.  What is right is the judge's business.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from penstock.config.settings import LogSection, Retention
from penstock.core.broker import Core
from penstock.core.commands.deliveries import Delivery
from penstock.core.effects import Verb
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.errors import PenstockError
from penstock.log.log import Log
from penstock.log.rewrite import Made, Order, Swap
from penstock.log.rewrite_plan import Aims
from penstock.log.verify import verify
from penstock.log.writer import MEMORY, LogSettings
from penstock.memory.caches import Caches
from penstock.memory.slab import Piece
from penstock.records.chunks import Now
from penstock.records.entries import Entry, Publishes, Rows
from penstock.records.kinds import PUBLISHES, Kind
from penstock.records.properties import Properties, encode
from penstock.records.queue_settings import QueueSettings
from penstock.server.engine import Engine
from penstock.server.gates import Receiver
from penstock.server.opening import fold
from penstock.server.upkeep.compaction import Totals
from penstock.server.upkeep.keeper import Keeper
from penstock.testing.instance import FakeClock
from sim.baton import Pool, step
from sim.judge import Judge
from sim.stepdisk import StepDisk, StepLoop

PERSISTENT = encode(Properties(delivery_mode=2))
QUEUES = ("a", "b", "stream")
HUGE = 1 << 50
"""Bytes of a `StepDisk`: a share of it may be as few as a log of these houses has."""


class Taker(Receiver):
    """A consumer of a queue: holds what it gets until it settles it."""

    def __init__(self, house: House, queue: str) -> None:
        self.house = house
        self.queue = queue
        self.held = list[int]()
        self.consumer: Consumer | None = None

    @property
    def gate(self) -> object:
        return self

    @property
    def full(self) -> bool:
        return False

    def deliver(self, effect: Delivery, piece: Piece) -> None:
        assert piece.bodies is not None
        for lsn, body in zip(piece.chunk, piece.bodies, strict=True):
            self.house.judge.row(lsn, body)
            self.held.append(lsn)

    def cancelled(self, consumer: Consumer, why: PenstockError) -> None:
        self.consumer = None


class House:
    """A server without doors in one life of its data folder."""

    keeper_type: type[Keeper] = Keeper
    log_type: type[Log] = Log

    def __init__(self, judge: Judge, disk: StepDisk, clock: FakeClock, chance: random.Random) -> None:
        self.judge, self.disk, self.clock, self.chance = judge, disk, clock, chance
        self.pool = Pool()
        self.loop = StepLoop(clock)
        self.takers = list[Taker]()
        self.holds = dict[int, int]()
        self.readers = 0
        self.epoch = 0
        self.futures = list[Future[Any]]()

    async def start(self) -> None:
        """Recover, and wait for the boot record as a server does."""
        log = self.log = self.log_type.open(self.disk, self.clock, self.log_settings())
        state, _ = fold(log)
        self.judge.began(log, state)
        now = Now(self.clock.wall(), self.clock.mono())
        core = self.core = Core.restore(state, origin=log.origin, now=now)
        core.boot(now, clean=log.recovery.clean, next_lsn=log.recovery.next_lsn)
        self.engine = Engine(
            core, log, Caches(self.chance.choice((0, 400, 1 << 20))), self.clock,
            call_soon=self.loop.call_soon, read_cold=self._read_cold,
        )  # fmt: skip
        log.on_durable = self._durable
        log.on_broken = self.engine.break_down
        self.engine.on_broken.append(self._broken)
        take = core.take_journal

        def seen() -> list[Entry]:  # early deliveries come before the log is handed the same entries
            entries = take()
            self.judge.append(entries)
            return entries

        core.take_journal = seen  # type: ignore[method-assign]
        log.start_thread(self.loop.call_soon_threadsafe, self.loop.call_later)
        self.engine.readers.append(lambda: min(self.holds.values(), default=None))
        boot = self.loop.create_future()
        self.engine.when_durable(core.last_lsn, lambda: boot.set_result(None))
        self.engine.finish_turn()
        await boot
        self.judge.open, self.judge.given = True, core.last_lsn
        section = LogSection(
            segment="64KiB",
            retention=self.chance.choice(
                [*(Retention(bytes=size) for size in ("0B", "0B", "12000B")), Retention(share=3_000 / HUGE)]
            ),
            checkpoint_bytes=self.chance.choice(("1500B", "4000B", "1GiB")),
        )
        self.keeper = self.keeper_type(self.engine, self.pool, section, self.loop)
        self.keeper.compaction._aims = Aims(
            segment=8_000, sparse=0.7, rows=12, batches=2, many=2, cold=1, compress=self.chance.random() < 0.5
        )
        self._watch_rewriting()
        self.spoil()
        for name in QUEUES:
            if not any(queue.name == name for queue in core.queues()):
                core.declare_queue(self.engine.now(), "/", name, QueueSettings(), durable=True, arguments={})
        self.engine.arm()

    @staticmethod
    def log_settings() -> LogSettings:
        """Small segments, small batches, and a cache that keeps next to nothing."""
        return replace(MEMORY, segment=8_000, origin=9, batch_rows=12, cache=2_000)

    def _watch_rewriting(self) -> None:
        """Have the judge know which rows compaction leaves out, from the moment that the list has changed."""
        compaction, log, judge = self.keeper.compaction, self.log, self.judge
        orders = dict[int, Order]()
        rewrite, swap = compaction._rewrite, log.swap

        async def rewritten(order: Order, size: int) -> Made:
            orders[order.first] = order
            made = await rewrite(order, size)
            if self.chance.random() < 0.5:  # somebody begins to read while the new file is about to take its place
                self._soon(self.chance.choice((0, 1, 2)))
            return made

        def swapped(made: Made) -> Swap:
            order, exchange = orders[made.first], swap(made)
            if order.keep is None:
                return exchange
            pairs = memoryview(order.keep).cast("q")
            kept = [range(pairs[at], pairs[at + 1]) for at in range(0, len(pairs), 2)]
            gone = [
                lsn for lsn in judge.kinds
                if order.first <= lsn <= order.last and not any(lsn in some for some in kept)
            ]  # fmt: skip
            enter = exchange.enter

            def entered() -> None:
                enter()
                judge.drop(gone)

            exchange.enter = entered  # type: ignore[method-assign]
            return exchange

        compaction._rewrite = rewritten  # type: ignore[method-assign]
        log.swap = swapped  # type: ignore[method-assign]

    def spoil(self) -> None:
        """Where a house with a planted bug gets it."""

    def _durable(self, lsn: int) -> None:
        self.judge.shown(self.log.synced)
        self.engine.durable(lsn)

    def _broken(self, reason: str) -> None:
        raise AssertionError(f"the log broke: {reason}")

    def _read_cold(self, lsns: Sequence[int], answer: Callable[[Rows], None], most: int = 0) -> None:
        future = self.loop.run_in_executor(self.pool, self.log.read, lsns, 1000)

        def done(finished: asyncio.Future[Rows]) -> None:
            answer(finished.result())
            self.engine.arm()

        future.add_done_callback(done)

    # -- the load

    async def work(self, actions: int) -> None:
        """So many random actions, each a callback of the loop."""
        kinds = (
            (self.publish, 10), (self.take, 5), (self.settle, 8), (self.give_back, 1), (self.beat, 5),
            (self.read, 2), (self.read_beside, 2), (self.look, 1), (self.leave, 1), (self.plan, 2),
            (self.declare, 1), (self.later, 3), (self.drain, 4),
        )  # fmt: skip
        names, weights = zip(*kinds, strict=True)
        for action in self.chance.choices(names, weights, k=actions):
            try:
                action()
            except PenstockError as error:
                if self.engine.broken is None and "stream" not in str(error):
                    raise
            self.engine.arm()
            if self.chance.random() < 0.3:
                await self.quiet()
            elif self.chance.random() < 0.7:
                await asyncio.sleep(0)

    async def quiet(self) -> None:
        """Wait for what was appended."""
        future = self.loop.create_future()
        self.engine.finish_turn()
        lsn = self.core.last_lsn
        self.engine.log.request_sync()
        self.engine.when_durable(lsn, lambda: future.set_result(None))
        await future

    def publish(self) -> None:
        chance = self.chance
        key = chance.choice(QUEUES)
        size = chance.choice((0, 5, 60, 300))
        bodies = [b"%d:" % chance.getrandbits(40) + b"." * size for _ in range(chance.randint(1, 5))]
        topic = self.core.topic("/", "", key)
        batch = Publishes(topic, PERSISTENT, bodies, size=sum(map(len, bodies)))
        done = self.core.publish(self.engine.now(), batch)
        self.engine.when_durable(done.last if hasattr(done, "last") else self.core.last_lsn, lambda: None)

    def take(self) -> None:
        if len(self.takers) < 3:
            taker = Taker(self, self.chance.choice(("a", "b")))
            queue = self.core.queue("/", taker.queue)
            taker.consumer = self.core.subscribe(
                self.engine.now(), queue, tag=f"t{len(self.takers)}", holder=taker,
                max_backlog=self.chance.choice((1, 4, 30)),
            )  # fmt: skip
            self.takers.append(taker)

    def _some(self) -> tuple[Taker, list[int]] | None:
        able = [taker for taker in self.takers if taker.held and taker.consumer is not None]
        if not able:
            return None
        taker = self.chance.choice(able)
        n = self.chance.randint(1, len(taker.held))
        picked = taker.held[:n] if self.chance.random() < 0.7 else self.chance.sample(taker.held, n)
        taker.held = [lsn for lsn in taker.held if lsn not in picked]
        return taker, sorted(picked)

    def _end(self, verb: Verb) -> None:
        if (some := self._some()) is not None:
            taker, lsns = some
            queue = self.core.queue("/", taker.queue)
            self.core.settle(self.engine.now(), queue, [range(lsn, lsn + 1) for lsn in lsns], verb, by=taker.consumer)

    def settle(self) -> None:
        self._end(Verb.ACK)

    def give_back(self) -> None:
        self._end(Verb.RELEASE)

    def drain(self) -> None:
        """Somebody settles the older half of a queue, or all of it; else old messages would hold every segment."""
        chance, core = self.chance, self.core
        queue = core.queue("/", chance.choice(QUEUES))
        lsns = sorted(lsn for chunk in queue.snapshot()[0] for lsn in chunk)
        lsns = lsns[: chance.choice((len(lsns), len(lsns), len(lsns) // 2))]
        core.settle(self.engine.now(), queue, [range(lsn, lsn + 1) for lsn in lsns], Verb.ACK, client="drain")

    def leave(self) -> None:
        if self.takers:
            taker = self.takers.pop()
            if taker.consumer is not None:
                self.core.unsubscribe(self.engine.now(), taker.consumer, requeue=True, lost=True)

    def beat(self) -> None:
        for _ in range(self.chance.choice((1, 1, 2))):
            self.keeper.beat()

    def later(self) -> None:
        self.clock.advance(self.chance.choice((100, 50_000, 150_000)))

    def plan(self) -> None:
        streams, now = self.core.streams, self.engine.now()
        if not self.epoch:
            self.epoch = streams.open(now, "s", self.core.queue("/", "stream")).epoch
        state = streams.state("s")
        start = state.planned if self.chance.random() < 0.7 else state.floor
        streams.plan(now, "s", self.epoch, start, self.chance.randint(1, 6))

    def declare(self) -> None:
        name = f"extra{self.chance.randint(0, 2)}"
        now = self.engine.now()
        for queue in list(self.core.queues()):
            if queue.name == name:
                self.core.delete_queue(now, queue)
                return
        self.core.declare_queue(now, "/", name, QueueSettings(), durable=True, arguments={})

    def look(self) -> None:
        """`penstock log verify` in another process, which has no lock."""
        self.futures.append(self.pool.submit(self._verify))

    def _verify(self) -> None:
        safe = self.judge.safe
        report = verify(self.disk)
        assert report.good, report.damage
        assert report.last_lsn >= safe, f"LSN {safe} was durable, and the log is said to end at {report.last_lsn}"

    def read(self) -> None:
        """A reader of everything from a place on, with a hold, as a stream's replay or Flight's does."""
        floor = self.engine.floor()
        first = self.chance.choice((floor, self.log.first_lsn, self.log.first_lsn, max(floor, self.log.durable - 20)))
        self.readers += 1
        number = self.readers
        self.holds[number] = first
        end = self.log.durable + 1
        self.judge.shown(self.log.synced)
        patience = self.chance.choice((0, 5, 40))
        drops = self.judge.drops
        self.futures.append(self.pool.submit(self._range, number, first, end, patience, drops))

    def read_beside(self) -> None:
        """A reader that comes just after upkeep has begun."""
        self.beat()
        self._soon(self.chance.choice((1, 3, 6, 12, 20)))

    def _soon(self, rounds: int) -> None:
        if rounds:
            self.loop.call_soon(self._soon, rounds - 1)
        else:
            self.read()

    def _range(self, number: int, first: int, end: int, patience: int, drops: int) -> None:
        """Rows in order, each right; and no message missing that the reader holds."""
        try:
            for _ in range(patience):
                step("reader")
            before, seen = first - 1, set[int]()
            for batch in self.log.batches(first, end, ["lsn", "kind", "body"]):
                step("reader")
                for lsn, kind, body in zip(*(batch.column(at).to_pylist() for at in range(3)), strict=True):
                    assert before < lsn < end, f"a reader of [{first}, {end}) got LSN {lsn} after {before}"
                    before = lsn
                    if kind != Kind.MARK:
                        self.judge.row(lsn, body)
                        seen.add(lsn)
            kinds, dropped = self.judge.kinds, self.judge.dropped
            kept = {lsn for lsn, kind in kinds.items() if first <= lsn < end and kind in PUBLISHES}
            kept -= {lsn for lsn in kept if dropped.get(lsn, drops + 1) <= drops}
            lost = sorted(kept - seen)
            assert not lost, f"a reader of [{first}, {end}) missed {lost[:10]}"
        finally:
            del self.holds[number]

    # -- the end

    def failures(self) -> list[BaseException]:
        """What went wrong in readers."""
        done = [future for future in self.futures if future.done()]
        return [error for future in done if (error := future.exception()) is not None]

    def count(self, counts: dict[str, int]) -> None:
        """What happened, so that a run can be seen to do something."""
        keeper: Keeper | None = getattr(self, "keeper", None)  # killed before there was one
        made = keeper.checkpoints if keeper is not None else 0
        totals = keeper.compaction.totals if keeper is not None else Totals()
        for name, number in (
            ("checkpoints", made), ("readers", self.readers), ("gone", self.disk.retired),
            ("rewritten", totals.rewritten), ("dropped", totals.dropped),
        ):  # fmt: skip
            counts[name] = counts.get(name, 0) + number
