"""Ordered stages: the rows of all of them in one line, whatever the pieces they come in."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from penstock.errors import InvalidArgument
from penstock.server.flight import decided
from penstock.server.flight.decided import GroupLimits, check_rising, merged
from penstock.server.flight.door import FlightLimits

pytestmark = pytest.mark.conformance

SMALL = FlightLimits(
    group=GroupLimits(group_bytes=3_000, chunk_bytes=4_000, chunk_rows=50, alike_bytes=4_000, alike_rows=50)
)


def cut(rows: list[tuple[Any, str]], chance: random.Random, kind: pa.DataType) -> Iterator[pa.RecordBatch]:
    while rows:
        size = chance.randint(1, 5)
        yield pa.record_batch(
            {"body": [body for _, body in rows[:size]], "order": pa.array([n for n, _ in rows[:size]], kind)}
        )
        rows = rows[size:]


def named(number: int, text: bool) -> int | bytes:
    return f"{number} ü".encode() if text else number


@pytest.mark.parametrize("seed", range(30))
def test_merged_stages_are_one_stable_sort(seed: int) -> None:
    chance = random.Random(seed)
    text = seed % 3 == 0
    stages = [
        sorted(
            (named(chance.randint(0, chance.choice((3, 30))), text), f"{stage}-{n}")
            for n in range(chance.randint(0, 25))
        )
        for stage in range(chance.randint(1, 5))
    ]
    expected = sorted([row for stage in stages for row in stage], key=lambda row: row[0])
    found = [
        (row["order"], row["body"])
        for batch in merged([cut(stage, chance, pa.binary() if text else pa.int64()) for stage in stages])
        for row in batch.to_pylist()
    ]
    assert found == expected


def test_a_stage_that_does_not_rise_is_refused() -> None:
    def batch(*numbers: int | None) -> pa.RecordBatch:
        return pa.record_batch({"order": pa.array(numbers, pa.int64())})

    assert check_rising(batch(1, 1, 4), None) == 4
    assert check_rising(batch(4, 5), 4) == 5
    words = pa.record_batch({"order": pa.array([b"", b"a", b"a"], pa.binary())})
    assert check_rising(words, None) == b"a"
    with pytest.raises(InvalidArgument, match="does not rise"):
        check_rising(words, b"b")
    for wrong, last in ((batch(2, 1), None), (batch(3), 4), (batch(1, None), None)):
        with pytest.raises(InvalidArgument, match="does not rise|nulls"):
            check_rising(wrong, last)


@pytest.mark.parametrize("most", [2, 16])
def test_a_large_batch_is_merged_before_it_is_decided(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.flight.sink_stages.AT_ONCE", most)
    with FlightHouse(tmp_path, SMALL) as house, penstock.connect(house.url) as client:
        client.declare("out")
        names: list[str] = []
        for part in range(5):
            order = pa.array(range(part, 500, 5), pa.int64())
            rows = pa.record_batch({"body": [f"{n:05}" for n in order.to_pylist()], decided.ORDER: order})
            made = house.door.stages
            names.append(_stage(client, part, rows))
        done = client.action("sink_commit", query="q", batch=0, stages=names)
        assert done["stored"] == 500
        bodies = [message.body.decode() for message in client.peek("out", 1000)]
        assert bodies == [f"{n:05}" for n in range(500)]
        assert made.known() == []
        assert made.used == 0
        small = [_stage(client, part, rows.slice(part, 2), batch=1) for part in (4, 0)]
        assert client.action("sink_commit", query="q", batch=1, stages=small)["stored"] == 4
        assert [m.body.decode() for m in client.peek("out", 1000)][500:] == ["00004", "00009", "00024", "00029"]


def _stage(client: penstock.Client, part: int, rows: pa.RecordBatch, batch: int = 0) -> str:
    made = client.stage("q", batch, part, 0, [rows], topic="out", ordered=True)
    assert made is not None
    return made[0]
