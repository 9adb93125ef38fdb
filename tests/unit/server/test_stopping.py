"""A stop at any moment of a load in which each pool has work: nothing is handed over, told or logged out of turn."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from choices import spread
from penstock.errors import Unavailable
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.server import lifecycle
from penstock.server.app import App
from penstock.server.base.clock import SystemClock
from penstock.server.bulk.process import Bulk
from penstock.server.services import Pools
from penstock.testing.process import load
from penstock.wire.amqp import methods as m
from sim.serverkit import Client

CONFIG = """
[server]
memory = "8MiB"
allow_execute = true

[listen]
amqp = "off"
http = "127.0.0.1:0"
flight = "off"

[[queue]]
name = "deep"

[[queue]]
name = "picked"
filter = "/n > 3"

[[queue]]
name = "acted"

[[queue]]
name = "out"

[[action]]
name = "run"
on = { topic = "acted", event = "publish" }
do = [{ execute_system = { command = "true" } }, { publish = { topic = "out", data = "ran" } }]
"""


class HeldPool(Executor):
    """Begins its work when the test says so; what is first in the row counts as begun when the pool ends."""

    def __init__(self, order: deque[HeldPool]) -> None:
        self.row = deque[tuple[Future[Any], Callable[[], Any]]]()
        self.order = order  # of all pools: whose turn it is
        self.held = False
        self.ended = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.ended:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = Future[Any]()
        self.row.append((future, lambda: fn(*args, **kwargs)))
        self.order.append(self)
        if not self.held:
            self.step()
        return future

    def step(self) -> None:
        """Do what came first."""
        future, work = self.row.popleft()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  handed on, as every executor does
                future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.ended = True
        if self.row:
            self.step()
        for future, _ in self.row:
            future.cancel()
        self.row.clear()


class HeldPools(Pools):
    """All pools of a server, held together."""

    def __init__(self) -> None:
        self.order = deque[HeldPool]()
        super().__init__(lambda most, name: HeldPool(self.order))
        self.all = [cast("HeldPool", one) for one in (
            self.reading, self.scanning, self.judging, self.acting, self.replaying,
        )]  # fmt: skip

    def hold(self) -> None:
        for pool in self.all:
            pool.held = True

    def step(self) -> bool:
        """The oldest work of all; False when there is none."""
        while self.order:
            pool = self.order.popleft()
            if pool.row:
                pool.step()
                return True
        return False

    def close(self) -> None:
        """The last checkpoint needs threads that work."""
        super().close()
        reading = cast("HeldPool", self.reading)
        reading.held = False
        while reading.row:
            reading.step()


def served(folder: Path, pools: Pools) -> App:
    """A server of this process, without doors to the outside."""
    return App(load(CONFIG.replace("[server]\n", f'[server]\ndata = "{folder}"\n')), lambda text: None, pools=pools)


def clients(server: App) -> Any:
    """What a client of bytes needs of its server."""
    loop = asyncio.get_running_loop()
    jobs = SimpleNamespace(append=loop.call_soon)
    return SimpleNamespace(door=server.amqp, beside=None, turn=server.engine.finish_turn, jobs=jobs)


def opened(server: App, *, confirm: bool = False) -> Client:
    server.engine.finish_turn()  # what others brought has used nothing up
    client = Client(clients(server))
    client.channel(confirm=confirm)
    return client


async def settled(server: App) -> None:
    """Everything up to now is on the disk, and the loop has done what follows."""
    server.engine.finish_turn()
    durable = asyncio.get_running_loop().create_future()
    server.engine.when_durable(server.engine.core.last_lsn, lambda: durable.set_result(None))
    await durable
    for _ in range(3):
        await asyncio.sleep(0)


async def filled(folder: Path) -> None:
    server = served(folder, HeldPools())
    await server.start()
    publisher = opened(server, confirm=True)
    publisher.publish("deep", *(b'{"n":%d}' % (n % 10) for n in range(2_000)))
    await settled(server)
    await server.stop()


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with a deep queue, and nothing of it in memory at the next start; each test has a copy."""
    folder = tmp_path_factory.mktemp("deep")
    asyncio.run(filled(folder))
    return folder


def load_on(server: App) -> None:
    """Work for each pool, of each client in a turn of its own."""
    cold = opened(server)
    cold.channel(2, prefetch=50)
    cold.consume("deep", channel=2)
    opened(server).consume("deep", **{"x-filter": "/n = 7"})
    opened(server).consume("deep", **{"x-bookmark": "0", "x-filter": "/n = 1"})
    publisher = opened(server, confirm=True)
    publisher.publish("acted", b"1", b"2")
    server.engine.finish_turn()
    publisher.publish("picked", b'{"n":5,"pad":"' + b"x" * 300_000 + b'"}')


@pytest.mark.parametrize("moment", spread(range(10), 5))
async def test_a_stop_at_any_moment(
    deep: Path, tmp_path: Path, moment: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "PATIENCE_S", 0.02)  # an action that is held would not end in two seconds either
    shutil.copytree(deep, tmp_path, dirs_exist_ok=True)
    pools = HeldPools()
    server = served(tmp_path, pools)
    await server.start()
    pools.hold()
    load_on(server)
    await settled(server)
    for _ in range(moment):
        if not pools.step():
            break
        await settled(server)
    if moment == 0:
        assert all(pool.row for pool in pools.all), [len(pool.row) for pool in pools.all]
    told = opened(server, confirm=True)
    told.publish("out", b"confirmed")
    await settled(server)
    assert told.confirms() == [(True, 1, True)]
    told.publish("out", b"nobody knows")
    await server.stop()
    for _ in range(10):  # whatever is left over has its turn now
        await asyncio.sleep(0)
    assert server.failure is None
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert all(pool.ended for pool in pools.all)
    closed = [one for one in told.got if isinstance(one, m.ConnectionClose)]
    assert [one.reply_code for one in closed] == [320]
    server.engine.arm()
    server.engine.finish_turn()  # a turn that comes too late does nothing
    log = Log.open(OsDisk(tmp_path), SystemClock())
    assert log.recovery.clean
    bodies = [body.as_py() for batch in log.batches(0, 1 << 60, ["body"]) for body in batch.column(0)]
    assert b"confirmed" in bodies
    log.close(clean=False)


async def test_pools_drop_what_comes_after_their_end_and_what_comes_of_what_ran() -> None:
    order = deque[HeldPool]()
    pools = Pools(lambda most, name: HeldPool(order))
    pool = cast("HeldPool", pools.judging)
    pool.held = True
    came, ran = list[int](), list[int]()
    for number in range(3):
        pools.hand_over(pools.judging, lambda number=number: ran.append(number) or number, came.append)  # type: ignore[misc]
    pool.step()
    for _ in range(3):
        await asyncio.sleep(0)
    assert came == [0]
    pools.close()
    await pools.end(pools.judging)
    pools.hand_over(pools.judging, lambda: ran.append(9), came.append)
    for _ in range(3):
        await asyncio.sleep(0)
    assert ran == [0, 1], "the one that had begun went on to its end"
    assert came == [0], "and nobody was told"


async def test_a_bug_in_a_thread_is_told_even_at_the_end() -> None:
    order, told = deque[HeldPool](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context.get("exception")))
    pools = Pools(lambda most, name: HeldPool(order))
    cast("HeldPool", pools.judging).held = cast("HeldPool", pools.scanning).held = True

    def fail(error: Exception) -> None:
        raise error

    bug = ZeroDivisionError("a bug")
    pools.hand_over(pools.judging, lambda: fail(bug), told.append)
    pools.hand_over(pools.scanning, lambda: fail(Unavailable("the server stops")), told.append)
    pools.close()
    await pools.end(pools.judging, pools.scanning)
    for _ in range(3):
        await asyncio.sleep(0)
    assert told == [bug]


async def test_the_bulk_child_takes_nothing_after_its_end(tmp_path: Path) -> None:
    bulk = Bulk(tmp_path)
    bulk.close()
    with pytest.raises(Unavailable, match="the server stops; job 'rewrite' was not begun"):
        await bulk.run("rewrite")
    with pytest.raises(Unavailable, match="the server stops"):
        bulk.call("rewrite", {})
    assert bulk.starts == 0
