"""The bulk child as its users meet it: the same rows as ever, errors that say what happened, and no orphan."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from bulk_lab import alive
from flight_house import FlightHouse
from forked import beside
from live_server import LiveServer
from penstock.errors import InvalidArgument, LogDamaged, PenstockError, Unavailable
from penstock.server.bulk.process import Bulk
from penstock.server.bulk.relay import Relay
from waiting import eventually


def children(server: int) -> list[int]:
    """The processes that read the log beside it."""
    return beside(server, "penstock.server.bulk.child")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path, segment=1 << 20, bulk=Bulk(tmp_path)) as made:
        yield made


@pytest.fixture
def client(house: FlightHouse) -> Iterator[penstock.Client]:
    with penstock.connect(house.url) as made:
        yield made


def fill(client: penstock.Client, topic: str, rows: int, size: int = 100) -> None:
    client.publish_table(topic, messages(rows, size))


@cache
def messages(rows: int, size: int) -> pa.Table:
    """So many, with bodies of about so many bytes."""
    bodies = [b'{"n": %d, "s": "%s"}' % (n, b"x" * size) for n in range(rows)]
    return pa.table({"body": bodies, "priority": [n % 3 for n in range(rows)]})


def table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    held = list(batches)
    return pa.Table.from_batches(held).combine_chunks() if held else pa.table({})


READS: dict[str, Callable[[penstock.Client], Iterator[pa.RecordBatch]]] = {
    "topic": lambda c: c.replay_batches("t"),
    "pattern": lambda c: c.replay_batches(pattern="^[tu]$", columns=["lsn", "topic", "priority", "headers", "body"]),
    "exchange": lambda c: c.replay_batches("k", exchange="e", columns=["exchange", "body"]),
    "filter": lambda c: c.replay_batches("t", filter="/n IN (3, 700)"),
    "limit": lambda c: c.replay_batches("t", limit=1234),
    "nothing": lambda c: c.replay_batches("nobody"),
    "records": lambda c: c.log_batches(),
    "columns": lambda c: c.log_batches(5, 900, ["lsn", "kind"]),
    "queue": lambda c: c.queue_batches("q", columns=["lsn", "state", "attempt", "body"]),
    "sow": lambda c: c.sow_batches("s"),
    "sow in order": lambda c: c.sow_batches("s", filter="/n > 10", order_by="/n DESC", top_n=70, skip_n=5),
    "sow of a queue": lambda c: c.sow_batches("q", filter="/n < 20", order_by=["/n"]),
    "states": lambda c: c.queue_batches("q", states=["leased", "ready"], filter="/n < 50"),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[pa.Table, pa.Table]]]:
    """A read done by the child, and the same in the server: one of each for all reads, which change nothing."""
    folder = tmp_path_factory.mktemp("read")
    with FlightHouse(folder, segment=1 << 20, bulk=Bulk(folder)) as house, penstock.connect(house.url) as client:
        yield filled(house, client)


def filled(house: FlightHouse, client: penstock.Client) -> Callable[[str], tuple[pa.Table, pa.Table]]:
    """What reads a server that has something for each of `READS`."""
    client.declare_exchange("e")
    client.declare("q")
    client.declare("bound")
    client.bind("bound", "e", "k")
    client.declare_topic("t")
    client.declare_topic("u")
    client.declare_topic("s", key=["/n"])
    for _ in range(4):
        fill(client, "t", 1000)
        fill(client, "u", 300)
        fill(client, "q", 500)
        fill(client, "s", 200)
    client.publish("k", b"routed", exchange="e")

    def read(name: str) -> tuple[pa.Table, pa.Table]:
        assert house.bulk is not None
        small = Relay(house.bulk, house.log, large=0, large_filtered=0)
        house.door.reads.relay = small
        relayed = table(READS[name](client))
        assert small.relayed == 1
        house.door.reads.relay = None
        return relayed, table(READS[name](client))

    return read


@pytest.mark.parametrize("name", READS)
def test_a_relayed_read_gives_the_same_rows(both: Callable[[str], tuple[pa.Table, pa.Table]], name: str) -> None:
    relayed, here = both(name)
    assert relayed.equals(here)
    assert (relayed.num_rows == 0) == (name == "nothing")


def test_small_reads_start_no_process(house: FlightHouse, client: penstock.Client) -> None:
    client.declare_topic("t")
    fill(client, "t", 100)
    assert table(client.replay_batches("t")).num_rows == 100
    assert table(client.replay_batches("t", filter="/n = 3")).num_rows == 1
    assert house.bulk is not None
    assert house.bulk.starts == 0


def test_large_reads_go_to_the_child_which_ends_when_idle(tmp_path: Path) -> None:
    bulk = Bulk(tmp_path, idle_s=0.0)
    with FlightHouse(tmp_path, bulk=bulk) as house, penstock.connect(house.url) as client:
        client.declare_topic("t")
        for _ in range(10):
            fill(client, "t", 10_000)
        assert table(client.replay_batches("t")).num_rows == 100_000
        assert bulk.starts == 1
        child = bulk.pid
        assert child is not None
        eventually(lambda: bulk.running == 0, "the read is over")
        bulk.beat()
        eventually(lambda: bulk.pid is None, "an idle child ends")
        assert not alive(child)
        bulk.beat()
        assert bulk.deaths == 0
        assert table(client.replay_batches("t", limit=7)).num_rows == 7
        assert bulk.starts == 2


def test_mistakes_are_told_as_without_a_child(house: FlightHouse, client: penstock.Client) -> None:
    client.declare_topic("t")
    fill(client, "t", 10)
    assert house.bulk is not None
    house.door.reads.relay = Relay(house.bulk, house.log, large=0, large_filtered=0)
    with pytest.raises(penstock.ExpressionError) as caught:
        table(client.replay_batches("t", filter="/n = "))
    assert caught.value.text == "/n = "
    with pytest.raises(InvalidArgument, match="regular expression"):
        table(client.replay_batches(pattern="("))
    with pytest.raises(InvalidArgument, match=rf"1\|5\|.*{house.log.origin}"):
        table(client.replay_batches("t", "1|5|"))


def test_a_vhost_sees_nothing_of_another(house: FlightHouse, client: penstock.Client) -> None:
    client.declare_topic("t")
    fill(client, "t", 10)
    assert house.bulk is not None
    house.door.reads.relay = Relay(house.bulk, house.log, large=0, large_filtered=0)
    with penstock.connect(house.url + "/other") as other:
        assert table(other.replay_batches(pattern="")).num_rows == 0


def test_who_leaves_early_frees_the_child(house: FlightHouse, client: penstock.Client) -> None:
    client.declare_topic("t")
    for _ in range(20):
        fill(client, "t", 10_000)
    batches = client.replay_batches("t")
    next(batches)
    bulk = house.bulk
    assert bulk is not None
    assert bulk.running == 1
    batches.close()  # type: ignore[attr-defined]
    eventually(lambda: bulk.running == 0, "a cancelled read ends")
    assert table(client.replay_batches("t", limit=5)).num_rows == 5
    assert bulk.starts == 1


def test_damage_is_named(house: FlightHouse, client: penstock.Client) -> None:
    client.declare_topic("t")
    for _ in range(3):
        fill(client, "t", 10_000)
    one = house.log.segments()[-2]
    name = one.name
    with open(house.folder / name, "r+b") as file:
        file.seek(one.bytes // 2)
        byte = file.read(1)
        file.seek(one.bytes // 2)
        file.write(bytes([byte[0] ^ 1]))
    assert house.bulk is not None
    house.door.reads.relay = Relay(house.bulk, house.log, large=0, large_filtered=0)
    with pytest.raises(LogDamaged, match=name):
        table(client.replay_batches("t"))
    told = client.action("log_verify", with_vhost=False)
    assert len(told["damage"]) == 1
    assert name in told["damage"][0]


def test_a_child_that_is_killed_fails_its_requests_alone(house: FlightHouse, client: penstock.Client) -> None:
    client.declare_topic("t")
    for _ in range(20):
        fill(client, "t", 10_000)
    bulk = house.bulk
    assert bulk is not None
    batches = client.replay_batches("t")
    next(batches)
    child = bulk.pid
    assert child is not None
    os.kill(child, signal.SIGKILL)
    with pytest.raises(Unavailable, match="bulk process was killed by signal 9 while it worked on read 'replay'"):
        for _ in batches:
            pass
    assert client.health()["status"] == "ok"
    assert table(client.replay_batches("t", columns=["lsn"])).num_rows == 200_000
    assert bulk.starts == 2
    assert bulk.pid != child


def test_jobs_run_beside_the_loop(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    bulk = Bulk(tmp_path)

    async def work() -> None:
        assert await asyncio.gather(*(bulk.run("ping") for _ in range(20))) == [{"files": 0}] * 20
        with pytest.raises(InvalidArgument, match="no job 'dance'"):
            await bulk.run("dance")
        with pytest.raises(PenstockError, match="TypeError"):
            await bulk.run("ping", wrong=1)
        child = bulk.pid
        assert child is not None
        os.kill(child, signal.SIGKILL)
        assert await bulk.run("ping") == {"files": 0}
        assert (bulk.starts, bulk.deaths) == (2, 1)

    asyncio.run(work())
    bulk.close()
    with pytest.raises(Unavailable, match="stops"):
        bulk.call("ping", {})


def test_a_request_beyond_the_memory_limit_fails_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    bulk = Bulk(tmp_path, memory=512 << 20)
    assert bulk.call("ping", {}) == {"files": 0}
    with pytest.raises(Unavailable, match="not enough memory.*512 MiB"):
        bulk.call("ping", {"large": bytes(600 << 20)})
    assert bulk.call("ping", {}) == {"files": 0}
    assert (bulk.starts, bulk.deaths) == (1, 0)
    bulk.close()


def flood(server: LiveServer) -> penstock.Client:
    client = penstock.connect(f"penstock://guest:guest@{server.ready['flight']}")
    client.declare_topic("t")
    for _ in range(20):
        fill(client, "t", 10_000)
    return client


def test_no_child_before_it_is_needed_and_none_after_a_stop(tmp_path: Path) -> None:
    with LiveServer(tmp_path, flight=True) as server:
        pid = server.ready["pid"]
        assert children(pid) == []
        with flood(server) as client:
            assert table(client.replay_batches("t", columns=["lsn"])).num_rows == 200_000
            [child] = children(pid)
        server.stop()
        assert not alive(child)


def test_the_child_of_a_killed_server_ends(tmp_path: Path) -> None:
    with LiveServer(tmp_path, flight=True) as server:
        with flood(server) as client:
            batches = client.replay_batches("t")
            next(batches)
            [child] = children(server.ready["pid"])
            server.kill()
            with pytest.raises(PenstockError):
                for _ in batches:
                    pass
        eventually(lambda: not alive(child), "the child notices that its server is gone")


def test_a_stop_ends_a_read_that_runs(tmp_path: Path) -> None:
    with LiveServer(tmp_path, flight=True) as server, flood(server) as client:
        batches: Any = client.replay_batches("t")
        next(batches)
        [child] = children(server.ready["pid"])
        server.stop()
        assert not alive(child)
        with pytest.raises(PenstockError):
            for _ in batches:
                pass
