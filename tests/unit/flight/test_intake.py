"""What Flight's threads hold of uploads is an account of the budget, and what they hold at once follows the budget."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from penstock.client.link import Link
from penstock.client.urls import parse_url
from penstock.core.broker import Core
from penstock.records.compute import cut
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind
from penstock.server.engine import Engine
from penstock.server.flight import decided
from penstock.server.flight.calls import SHARE, Intake
from penstock.server.flight.copier import UNDER_WAY
from penstock.server.flight.decided import GroupLimits
from penstock.server.flight.door import FlightLimits
from penstock.spark.remote import MESSAGE_BYTES, Remote, Where
from penstock.wire.flight.received import Bounds

MIB = 1 << 20


def test_it_counts_for_a_share_of_the_budget_and_no_more() -> None:
    """Uploads wait for room themselves: what they hold must not be why there never is any."""
    intake = Intake(8 * MIB)
    intake.add(MIB)
    with intake.holding(MIB):
        assert intake.bytes == 2 * MIB
        with intake.holding(80 * MIB):
            assert intake.bytes == 8 * MIB // SHARE
    intake.add(-MIB)
    assert intake.bytes == intake.whole == 0


def test_no_change_is_lost_among_threads() -> None:
    intake = Intake(1 << 40)

    def work() -> None:
        for _ in range(20_000):
            intake.add(3)
            intake.add(-2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert intake.whole == 80_000


@pytest.mark.parametrize("memory", [512 * MIB, 1 << 40])
def test_with_the_default_budget_and_more_limits_are_what_they_are_without(memory: int) -> None:
    assert GroupLimits.within(memory) == GroupLimits()
    assert Bounds.within(memory) == Bounds()


@pytest.mark.parametrize("mib", [8, 64, 256])
def test_a_small_budget_has_small_groups_chunks_and_batches(mib: int) -> None:
    """A group lies in memory as rows and as what is written, chunks in the same way and once more while one is read."""
    memory = mib * MIB
    limits, bounds = GroupLimits.within(memory), Bounds.within(memory)
    assert 2 * limits.group_bytes <= memory // 4
    assert 3 * limits.alike_bytes <= memory // 8
    assert 3 * limits.chunk_bytes <= memory // 16
    assert bounds.batch_bytes == max(2 * bounds.body_bytes, memory // 2)


def test_an_upload_counts_until_it_has_ended(tmp_path: Path) -> None:
    """Found by reading: what the threads of uploads hold was in no account."""
    with FlightHouse(tmp_path) as house:
        link = Link(parse_url(house.url), None)
        by_name = house.engine.bodies.budget.by_name
        assert by_name()["uploads"] == 0
        writer, reader = link.put(
            orjson.dumps({"stage": {"query": "q", "batch": 0, "partition": 0, "attempt": 0, "topic": "out"}}),
            pa.schema([pa.field("body", pa.binary())]),
        )
        batch = pa.record_batch({"body": pa.array([b"x" * 1000] * 1000, pa.binary())})
        writer.write_batch(batch)
        until = time.monotonic() + 20
        while not by_name()["uploads"]:
            assert time.monotonic() < until
            time.sleep(0.001)
        assert by_name()["uploads"] == pytest.approx(batch.nbytes, rel=0.1)
        writer.write_metadata(orjson.dumps({"end": {"rows": 1000}}))
        writer.done_writing()
        assert orjson.loads(reader.read().to_pybytes())["rows"] == 1000
        writer.close()
        while by_name()["uploads"]:
            assert time.monotonic() < until
            time.sleep(0.001)
        link.close()


def test_a_batch_is_cut_by_its_bytes() -> None:
    batch = pa.record_batch({"body": pa.array([b"x" * 1000] * 100, pa.binary())})
    assert list(cut(batch, 1 << 30)) == [batch]
    parts = list(cut(batch, 10_000))
    assert pa.Table.from_batches(parts).combine_chunks() == pa.Table.from_batches([batch])
    assert all(part.nbytes <= 11_000 for part in parts)
    assert len(list(cut(batch, 10))) == 100
    assert list(cut(batch.slice(0, 0), 10)) == []


def test_a_task_sends_a_large_batch_in_several_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by reading: 10,000 rows of 16 kB were one message, which the server had in memory whole."""
    sizes: list[int] = []
    hold = Intake.add

    def seen(intake: Intake, size: int) -> None:
        sizes.append(size)
        hold(intake, size)

    monkeypatch.setattr(Intake, "add", seen)
    with FlightHouse(tmp_path) as house:
        remote = Remote(Where(house.url))
        try:
            batch = pa.record_batch({"body": pa.array([b"x" * 10_000] * 1000, pa.binary())})
            told = remote.put("stage", [batch], query="q", batch=0, partition=0, attempt=0, topic="out", vhost="/")
        finally:
            remote.close()
        assert told["rows"] == 1000
    assert MESSAGE_BYTES // 2 < max(sizes) <= MESSAGE_BYTES * 1.01


@pytest.mark.parametrize(("rows", "large"), [(100, 0), (600, 1)])
def test_rows_without_a_body_count_for_their_place_in_the_log(tmp_path: Path, rows: int, large: int) -> None:
    """Their stage is small, and a group of very many would not be."""
    limits = FlightLimits(group=GroupLimits(group_bytes=16_000))
    with FlightHouse(tmp_path, limits) as house, penstock.connect(house.url) as client:
        client.declare("out")
        made = client.stage("q", 0, 0, 0, [pa.record_batch({"body": pa.array([b""] * rows)})], topic="out")
        assert made is not None
        [stage] = client.action("stages")["stages"]
        assert stage["bytes"] < limits.group.group_bytes
        assert client.action("sink_commit", query="q", batch=0, stages=[made[0]])["stored"] == rows
        assert client.queue("out")["ready"] == rows
        kinds = [
            kind for batch in house.log.batches(1, house.log.durable + 1, ["kind"]) for kind in batch[0].to_pylist()
        ]
        assert kinds.count(Kind.DECIDED) == large
        assert kinds.count(Kind.SINK_COMMIT) == 1 - large


def test_what_is_copied_counts_until_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = FlightLimits(group=GroupLimits(group_bytes=1000, alike_bytes=MIB, alike_rows=50))
    seen: list[int] = []
    users: set[str] = set()
    real = decided.chunk_publishes

    def spied(engine: Engine, query: str, chunk: decided.Chunk) -> list[Publishes]:
        seen.append(engine.bodies.budget.by_name()["uploads"])
        made = real(engine, query, chunk)
        users.update(one.sender[2] for one in made if one.sender)
        return made

    monkeypatch.setattr("penstock.server.flight.copier.chunk_publishes", spied)
    with FlightHouse(tmp_path, limits) as house, penstock.connect(house.url) as client:
        client.declare("out")
        made = client.stage("q", 0, 0, 0, [pa.record_batch({"body": pa.array([b"x"] * 200)})], topic="out")
        assert made is not None
        assert client.action("sink_commit", query="q", batch=0, stages=[made[0]])["stored"] == 200
        assert seen == [(UNDER_WAY + 1) * MIB] * 4
        assert users == {"guest"}
        until = time.monotonic() + 20
        while house.engine.bodies.budget.by_name()["uploads"]:
            assert time.monotonic() < until
            time.sleep(0.001)


def test_the_rows_of_a_small_commit_count_until_it_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FlightHouse(tmp_path) as house, penstock.connect(house.url) as client:
        client.declare("out")
        made = client.stage("q", 0, 0, 0, [pa.record_batch({"body": pa.array([b"x" * 1000] * 200)})], topic="out")
        assert made is not None
        [stage] = client.action("stages")["stages"]
        seen: list[int] = []
        real = Core.sink_commit

        def spied(core: Core, *given: Any, **named: Any) -> object:
            seen.append(house.engine.bodies.budget.by_name()["uploads"])
            return real(core, *given, **named)

        monkeypatch.setattr(Core, "sink_commit", spied)
        client.action("sink_commit", query="q", batch=0, stages=[made[0]])
        assert seen == [stage["bytes"]]
        assert house.engine.bodies.budget.by_name()["uploads"] == 0
