"""Records that go with a sink's commit: as many as there are, and none of the work on the loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from penstock.client import Client
from penstock.core.sow import holding
from penstock.core.sow.holding import Cut
from penstock.core.sow.index import Leaf, Numbers
from penstock.errors import InvalidArgument, NotFound, PreconditionFailed
from penstock.server.flight import decided
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.pipelines.definition import Output
from penstock.spark.remote import Where, remote
from penstock.spark.view_pipeline import SOW_KEY, ViewOutputs

MANY = 6000
"""With `name` more than a command may have of JSON, and some leaves."""


def name(number: int) -> str:
    return f"{number}-".ljust(250, "x")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path / "data") as made:
        yield made


@pytest.fixture
def client(house: FlightHouse) -> Iterator[Client]:
    with penstock.connect(house.url) as made:
        made.declare_topic("v", key_from="publisher")
        made.declare_topic("other", key_from="publisher")
        yield made


def fill(house: FlightHouse, *numbers: int) -> None:
    """Records of these keys."""
    headers = pa.array([[(SOW_KEY, name(n))] for n in numbers], pa.map_(pa.string(), pa.string()))
    batch = pa.record_batch({"body": pa.array([b"%d" % n for n in numbers]), "headers": headers})
    remote(Where(house.url)).put("publish", [batch], topic="v")


def records(house: FlightHouse) -> int:
    return house.run(lambda: house.engine.core.sow("/", "", "v").index.count)


def keys(house: FlightHouse, batch: int, *numbers: int, topic: str = "v") -> str:
    """A stage with keys."""
    rows = pa.record_batch({"body": pa.array([name(n).encode() for n in numbers], pa.binary())})
    answer = remote(Where(house.url)).put("stage", [rows], query="q", batch=batch, partition=0, attempt=0, topic=topic)
    return str(answer["stage"])


class Frame:
    """What the view's tasks get, as one of them."""

    def __init__(self, rows: Mapping[str, bytes | None]) -> None:
        self._rows = rows

    def mapInArrow(self, stager: Any, schema: str) -> Frame:  # noqa: N802 - Spark's name
        names, bodies = pa.array(list(self._rows), pa.string()), pa.array(list(self._rows.values()), pa.binary())
        batch = pa.record_batch({"name": names, "body": bodies})
        self._out = [tuple(row.values()) for one in stager(iter([batch])) for row in one.to_pylist()]
        return self

    def collect(self) -> list[tuple[object, ...]]:
        return self._out


def test_a_view_whose_batch_empties_very_many_groups(house: FlightHouse, client: Client, tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id": "query"}')
    target = Output("v", None, vhost="/", view=True)
    outputs = ViewOutputs(Where(house.url), (target,), Checkpoint(tmp_path), settles=(), complete=False)
    fill(house, 1)
    steps: list[dict[str, bytes | None]] = [
        {name(n): b"%d" % n for n in range(MANY)},  # the first replaces what was there
        {name(n): (b"new" if n % 4 == 0 else None) for n in range(MANY)},
    ]
    for batch, rows in enumerate(steps):
        outputs.commit("query", batch, outputs.staged(Frame(rows), "query", batch, target))
    assert records(house) == MANY // 4
    assert {message.body for message in client.sow("v")} == {b"new"}
    assert client.action("stages")["stages"] == []
    told = client.action("sink", query="query")
    assert told["batch"] == 1


def test_the_loop_works_out_none_of_it(house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(house, *range(MANY))
    who = set[int | None]()
    real = holding._without  # pyright: ignore[reportPrivateUsage]

    def spied(leaf: Leaf, mine: Numbers) -> Any:
        who.add(threading.get_ident())
        return real(leaf, mine)

    monkeypatch.setattr(holding, "_without", spied)
    monkeypatch.setattr(decided, "LEFT", 0)
    some = range(0, MANY, 2)
    drop = {"topic": "v", "stages": [keys(house, 0, *some[:900]), keys(house, 0, *some[900:], 10**9)]}
    client.action("sink_commit", query="q", batch=0, stages=[], drop=drop)
    assert records(house) == MANY // 2
    assert who
    assert house.run(threading.get_ident) not in who


def test_what_others_publish_meanwhile_is_looked_at_again(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(house, *range(MANY))
    real, looks = Cut.look, list[int]()

    def disturbed(self: Cut, snapshot: Any) -> Iterator[None]:
        yield from real(self, snapshot)
        looks.append(len(looks))
        fill(house, *range(0, 2 * MANY, 50))  # in every leaf

    monkeypatch.setattr(Cut, "look", disturbed)
    monkeypatch.setattr(decided, "LEFT", 0)
    drop = {"topic": "v", "stages": [keys(house, 0, *range(MANY))]}
    client.action("sink_commit", query="q", batch=0, stages=[], drop=drop)
    assert looks == list(range(decided.LOOKS))
    assert sorted(int(message.body) for message in client.sow("v")) == list(range(MANY, 2 * MANY, 50))


def test_a_topic_that_is_another_by_then_refuses_the_commit(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(house, 1, 2)
    real = decided.Dropping.look

    def replaced(self: decided.Dropping) -> None:
        real(self)
        client.delete_topic("v")
        client.declare_topic("v", key=["/id"])

    monkeypatch.setattr(decided.Dropping, "look", replaced)
    with pytest.raises(PreconditionFailed, match="was deleted or has another key since"):
        client.action("sink_commit", query="q", batch=0, stages=[], drop={"topic": "v", "all": True})
    assert client.action("sink", query="q")["batch"] is None


def test_what_drop_may_name(house: FlightHouse, client: Client) -> None:
    fill(house, 1, 2, 3)

    def commit(**drop: object) -> dict[str, Any]:
        return client.action("sink_commit", query="q", batch=0, stages=[], drop={"topic": "v", **drop})

    stage = keys(house, 0, 1)
    for wrong in ({}, {"all": True, "keys": ["1"]}, {"keys": ["1"], "stages": [stage]}):
        with pytest.raises(InvalidArgument, match="one of these"):
            commit(**wrong)
    with pytest.raises(InvalidArgument, match="of another topic than 'v'"):
        commit(stages=[keys(house, 0, 1, topic="other")])
    with pytest.raises(InvalidArgument, match="of query 'q' batch 1, not of 'q' batch 0"):
        commit(stages=[keys(house, 1, 1)])
    with pytest.raises(NotFound, match="no SOW topic 'nowhere'"):
        commit(topic="nowhere", all=True)
    body = pa.record_batch({"body": pa.array([b"\xff"])})
    odd = remote(Where(house.url)).put("stage", [body], query="q", batch=0, partition=0, attempt=0, topic="v")
    with pytest.raises(InvalidArgument, match="no UTF-8 text"):
        commit(stages=[odd["stage"]])
    assert records(house) == 3
    commit(keys=[name(3)])
    assert records(house) == 2
    assert client.action("sink_commit", query="q", batch=0, stages=[], drop={"topic": "v", "all": True})["already"]
    assert records(house) == 2
    assert orjson.dumps(client.action("stages")["stages"]).count(b'"batch":1') == 1
