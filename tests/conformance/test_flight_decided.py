"""Commits too large for one group, through the real Flight door: decided first, then copied in chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from penstock.ports import Disk, File
from penstock.server.flight import decided, stage_files
from penstock.server.flight.copier import Copier
from penstock.server.flight.decided import GroupLimits
from penstock.server.flight.door import FlightLimits

pytestmark = pytest.mark.conformance

SMALL = FlightLimits(
    group=GroupLimits(group_bytes=2_000, chunk_bytes=4_000, chunk_rows=50, alike_bytes=4_000, alike_rows=50)
)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path, SMALL) as house:
        yield house


@pytest.fixture
def client(house: FlightHouse) -> Iterator[penstock.Client]:
    with penstock.connect(house.url) as client:
        for name in ("in", "out", "other"):
            client.declare(name)
        yield client


def body(part: int, row: int) -> str:
    return f"{part} {row:05}"


def stage(client: penstock.Client, batch: int, part: int, rows: int, query: str = "query") -> str:
    bodies = pa.record_batch({"body": [body(part, n) for n in range(rows)]})
    made = client.stage(query, batch, part, 0, [bodies], topic="out")
    assert made is not None
    return made[0]


def contents(client: penstock.Client, queue: str = "out") -> list[str]:
    return [message.body.decode() for message in client.peek(queue, 1_000_000)]


def kinds(house: FlightHouse) -> list[int]:
    out = list[int]()
    for batch in house.log.batches(1, house.log.durable + 1, ["kind"]):
        out += batch.column(0).to_pylist()
    return out


def test_a_large_commit_is_decided_and_copied(client: penstock.Client, house: FlightHouse) -> None:
    client.publish_table("in", pa.table({"body": ["1", "2"]}))
    client.action("stream_open", stream="s", queue="in")
    client.action("plan", stream="s", epoch=1, start=0)
    names = [stage(client, 0, part, rows) for part, rows in enumerate((300, 7, 120))]
    commit = {"query": "query", "batch": 0, "settle": {"stream": "s", "epoch": 1, "batch": 1}}
    done = client.action("sink_commit", stages=names[::-1], **commit)
    assert (done["already"], done["stored"]) == (False, 427)
    assert done["lsn"] <= house.log.durable
    assert contents(client) == [body(part, n) for part, rows in enumerate((300, 7, 120)) for n in range(rows)]
    assert client.queue("in")["leased"] == 0
    assert client.action("stages")["stages"] == []
    assert kinds(house).count(35) == 1
    assert kinds(house).count(36) >= 9  # 427 rows in chunks of at most 50
    assert client.action("sink_commit", stages=names, **commit)["already"] is True
    assert client.action("sink", query="query")["batch"] == 0
    small = stage(client, 1, 9, 3)
    assert client.action("sink_commit", query="query", batch=1, stages=[small])["stored"] == 3
    assert kinds(house).count(35) == 1


def test_other_publishers_go_on_between_the_chunks(client: penstock.Client, house: FlightHouse) -> None:
    name = stage(client, 0, 0, 20_000)
    with ThreadPoolExecutor(1) as pool, penstock.connect(house.url) as driver:
        running = pool.submit(driver.action, "sink_commit", query="query", batch=0, stages=[name])
        while not client.queue("out")["ready"]:
            pass
        published = client.publish_table("other", pa.table({"body": ["meanwhile"]}))
        done = running.result(60)
    assert published.first < done["lsn"]
    assert done["stored"] == 20_000
    assert contents(client) == [body(0, n) for n in range(20_000)]


def test_a_retry_waits_for_the_copying_and_stages_stay_meanwhile(
    client: penstock.Client, house: FlightHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()
    copy = Copier._copy

    def slowly(self: Copier, query: str, batch: int) -> object:
        asked.set()
        assert go_on.wait(30)
        return copy(self, query, batch)

    monkeypatch.setattr(Copier, "_copy", slowly)
    name = stage(client, 0, 0, 200)
    with ThreadPoolExecutor(2) as pool, penstock.connect(house.url) as one, penstock.connect(house.url) as two:
        first = pool.submit(one.action, "sink_commit", query="query", batch=0, stages=[name])
        assert asked.wait(30)
        again = pool.submit(two.action, "sink_commit", query="query", batch=0, stages=[name])
        assert client.action("stage_drop", stages=[name])["dropped"] == 0
        house.clock.ahead = 25 * 3600 * 1_000_000
        assert house.door.stages.sweep() == 0
        assert client.action("sink", query="query")["batch"] == 0
        assert client.queue("out")["ready"] == 0
        assert not first.done()
        assert not again.done()
        go_on.set()
        assert first.result(30)["stored"] == 200
        assert again.result(30)["already"] is True
    assert contents(client) == [body(0, n) for n in range(200)]


def test_a_stop_between_the_chunks_is_made_good_by_the_next_start(tmp_path: Path) -> None:
    with FlightHouse(tmp_path, SMALL) as house, penstock.connect(house.url) as client:
        client.declare("out")
        names = [stage(client, 4, part, 200) for part in range(2)]
        house.door.copier.stop()
        with pytest.raises(penstock.Unavailable, match="batch 4 of query 'query' is decided and complete at its next"):
            client.action("sink_commit", query="query", batch=4, stages=names)
        assert client.queue("out")["ready"] == 0
    with FlightHouse(tmp_path, SMALL) as house, penstock.connect(house.url) as client:
        assert contents(client) == [body(part, n) for part in range(2) for n in range(200)]
        assert client.action("stages")["stages"] == []
        assert client.action("sink_commit", query="query", batch=4, stages=names)["already"] is True


def test_a_full_disk_is_waited_for(
    client: penstock.Client, house: FlightHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier = house.door.copier
    waited = threading.Event()

    class Told(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.set()
            return super().wait(0.01)

    monkeypatch.setattr(copier, "_stopping", Told())
    finish = copier.finish

    def on_a_full_disk(query: str, batch: int, *, sound: bool = False) -> object:
        house.log.room.full = True
        return finish(query, batch, sound=sound)

    monkeypatch.setattr(copier, "finish", on_a_full_disk)
    name = stage(client, 0, 0, 200)
    with ThreadPoolExecutor(1) as pool, penstock.connect(house.url) as driver:
        running = pool.submit(driver.action, "sink_commit", query="query", batch=0, stages=[name])
        assert waited.wait(30)
        assert client.queue("out")["ready"] == 0
        house.log.room.full = False
        assert running.result(30)["stored"] == 200
    assert contents(client) == [body(0, n) for n in range(200)]


def test_what_could_not_be_finished_is_not_decided(client: penstock.Client, house: FlightHouse) -> None:
    name = stage(client, 0, 0, 200)
    path = house.folder / "stage" / f"{name}.arrows"
    whole = path.read_bytes()
    path.write_bytes(whole[:900] + bytes([whole[900] ^ 1]) + whole[901:])
    with pytest.raises(penstock.PenstockError, match="is not what was written"):
        client.action("sink_commit", query="query", batch=0, stages=[name])
    assert client.action("sink", query="query")["batch"] is None
    path.write_bytes(whole)
    client.action("declare_exchange", exchange="e", type="fanout")
    made = client.stage("query", 0, 1, 0, [pa.record_batch({"body": ["x"]})], topic="out", exchange="e")
    assert made is not None
    client.action("delete_exchange", exchange="e")
    with pytest.raises(penstock.NotFound, match="exchange 'e'"):
        client.action("sink_commit", query="query", batch=0, stages=[name, made[0]])
    assert client.action("sink", query="query")["batch"] is None
    assert client.action("stage_drop", stages=[made[0]])["dropped"] == 1
    assert client.action("sink_commit", query="query", batch=0, stages=[name])["stored"] == 200


def test_many_rows_that_differ_are_decided_too_and_alike_ones_in_larger_chunks(tmp_path: Path) -> None:
    limits = FlightLimits(group=GroupLimits(group_rows=100, chunk_rows=50, alike_rows=400))
    with FlightHouse(tmp_path, limits) as house, penstock.connect(house.url) as client:
        for name in ("out", "other"):
            client.declare(name)
        same = pa.record_batch({"body": [body(0, n) for n in range(300)]})
        differ = same.append_column("topic", pa.array(["out", "other"] * 150))
        made = client.stage("query", 0, 0, 0, [same], topic="out")
        assert made is not None
        assert client.action("sink_commit", query="query", batch=0, stages=[made[0]])["stored"] == 300
        assert kinds(house).count(35) == 0
        mixed = [client.stage("query", 1, part, 0, [rows], topic="out") for part, rows in enumerate((differ, same))]
        done = client.action("sink_commit", query="query", batch=1, stages=[one[0] for one in mixed if one])
        assert done["stored"] == 600
        assert (kinds(house).count(35), kinds(house).count(36)) == (1, 7)
        assert contents(client) == [body(0, n) for n in [*range(300), *range(0, 300, 2), *range(300)]]


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the files whose sums were looked at."""
    sizes: list[int] = []
    real = stage_files.file_sum

    def counted(file: File, size: int) -> int:
        sizes.append(size)
        return real(file, size)

    monkeypatch.setattr(stage_files, "file_sum", counted)
    return sizes


def test_each_stage_is_summed_once_and_again_only_by_a_retry(
    client: penstock.Client, house: FlightHouse, summed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [stage(client, 0, part, 200) for part in range(3)]
    assert client.action("sink_commit", query="query", batch=0, stages=names)["stored"] == 600
    assert len(summed) == 3
    summed.clear()
    ordered = [
        client.stage(
            "query", 1, part, 0, [pa.record_batch({"body": bodies, "order": order})], topic="out", ordered=True
        )
        for part, (bodies, order) in enumerate([(["a"] * 99, range(99)), (["b"] * 99, range(99))])
    ]
    assert (
        client.action("sink_commit", query="query", batch=1, stages=[one[0] for one in ordered if one])["stored"] == 198
    )
    assert len(summed) == 3  # both, and what became of them
    summed.clear()
    real = Copier._decide

    def full(*given: Any) -> None:
        raise penstock.LogDamaged("the disk does not answer")

    monkeypatch.setattr(Copier, "_decide", full)
    commit: dict[str, Any] = {"query": "query", "batch": 2, "stages": [stage(client, 2, 0, 200)]}
    with pytest.raises(penstock.LogDamaged, match="does not answer"):
        client.action("sink_commit", **commit)
    monkeypatch.setattr(Copier, "_decide", real)
    assert client.action("sink_commit", **commit)["already"] is True
    assert len(summed) == 2  # time has passed since the first
    assert len(contents(client)) == 998


def test_a_topic_that_nobody_keeps_is_found_before_the_decision_and_rows_are_read_only_to_find_theirs(
    client: penstock.Client, house: FlightHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = decided.rows_of

    def counted(disk: Disk, stem: str, skip: int = 0) -> Iterator[pa.RecordBatch]:
        read.append(stem)
        return real(disk, stem, skip)

    monkeypatch.setattr(decided, "rows_of", counted)
    bodies = [body(0, n) for n in range(200)]

    def put(batch: int, part: int, topic: str, named: list[str] | None) -> str:
        columns = {"body": bodies} if named is None else {"body": bodies, "topic": named}
        made = client.stage("query", batch, part, 0, [pa.record_batch(columns)], topic=topic)
        assert made is not None
        return made[0]

    commit = partial(client.action, "sink_commit", query="query", mandatory=True)
    for batch, (topic, named) in enumerate([("gone", None), ("out", ["out"] * 199 + ["gone"])]):
        with pytest.raises(penstock.NotFound, match="no queue takes topic 'gone' in vhost '/'"):
            commit(batch=batch, stages=[put(batch, 0, "out", None), put(batch, 1, topic, named)])
    assert contents(client) == []
    read.clear()
    names = [put(2, 0, "out", None), put(2, 1, "out", ["out"] * 100 + ["other"] * 100)]
    assert commit(batch=2, stages=names)["stored"] == 400
    assert read == [names[1], *names]  # the second before the decision, and both for the log
    assert len(contents(client)) == 300
    client.declare("small", max_length=1000, overflow="reject-publish")
    assert commit(batch=3, stages=(names := [put(3, 0, "out", None)]))["stored"] == 200
    assert read[3:] == names * 2, "some queue may refuse rows: each is looked at"


def test_all_who_may_take_over_have_the_stages_before_they_are_answered_and_before_the_log_needs_them(
    client: penstock.Client, house: FlightHouse
) -> None:
    asked, kept, thens = threading.Event(), list[str](), list[Callable[[], object]]()

    class Others:
        def keep(self, names: Sequence[str], then: Callable[[], object]) -> None:
            kept.extend(names)
            thens.append(then)
            asked.set()

        def forget(self, names: Sequence[str]) -> None:
            kept.clear()

    house.engine.copies = Others()
    with ThreadPoolExecutor(1) as pool, penstock.connect(house.url) as driver:
        staging = pool.submit(stage, client, 0, 0, 300)
        assert asked.wait(30)
        assert not staging.done()
        house.loop.call_soon_threadsafe(thens.pop())
        name = staging.result(60)
        assert kept == [f"stage/{name}.arrows"]
        kept.clear()
        asked.clear()
        running = pool.submit(driver.action, "sink_commit", query="query", batch=0, stages=[name])
        assert asked.wait(30)
        assert kept == [f"stage/{name}.arrows"]
        assert kinds(house).count(35) == 0
        house.loop.call_soon_threadsafe(thens.pop())
        assert running.result(60)["stored"] == 300
    assert kinds(house).count(35) == 1
