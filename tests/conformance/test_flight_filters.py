"""Content filters and large bodies over Flight: uploads wait for their judgement, batches of a sink stay whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from penstock.expr import Value
from penstock.expr.context import LOOP_BODY
from penstock.expr.filter_set import FilterSet
from penstock.server.bulk.process import Bulk

LARGE = b'{"kind":"a","pad":"' + b"x" * 2_000_000 + b'"}'
OTHER = b'{"kind":"b","pad":"' + b"x" * 300_000 + b'"}'


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path, bulk=Bulk(tmp_path)) as house:
        yield house


def table(*bodies: bytes) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array(bodies, pa.binary())})


def bodies_of(client: penstock.Client, queue: str, count: int, text: str | None = None) -> list[bytes]:
    out = list[bytes]()
    for message in client.consume(queue, filter=text):
        out.append(message.body)
        message.ack()
        if len(out) == count:
            break
    return out


def test_large_bodies_reach_the_queues_that_want_them_in_order(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        client.declare("a", underlying_topic="t", filter="/kind = 'a'")
        client.declare("b", underlying_topic="t", filter="/kind = 'b'")
        client.publish_table("t", table(LARGE, b'{"kind":"b"}', OTHER, b'{"kind":"a"}'))
        client.publish("t", b'{"kind":"a","n":2}')
        assert bodies_of(client, "a", 3) == [LARGE, b'{"kind":"a"}', b'{"kind":"a","n":2}']
        assert bodies_of(client, "b", 2) == [b'{"kind":"b"}', OTHER]


def test_several_uploads_with_a_sequence_are_stored_once(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        client.declare("a", filter="/kind = 'a'")
        with ThreadPoolExecutor(3) as pool:
            done = [
                pool.submit(
                    client.publish_table, "a", table(LARGE, OTHER), publisher=f"p{one}", sequence=1, mandatory=False
                )
                for one in range(3)
            ]
            for one in done:
                one.result()
        more = table(LARGE, OTHER, b'{"kind":"a"}')
        client.publish_table("a", more, publisher="p0", sequence=1, mandatory=False)
        assert bodies_of(client, "a", 4) == [LARGE, LARGE, LARGE, b'{"kind":"a"}']
        assert house.run(lambda: house.engine.core.queue("/", "a").ready) == 0


def test_a_batch_of_a_sink_is_judged_before_it_is_made_visible(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        client.declare("a", underlying_topic="out", filter="/kind = 'a'")
        stage = client.stage("query", 0, 0, 0, [table(LARGE, OTHER, b'{"kind":"a"}')], topic="out")
        assert stage is not None
        committed = client.action("sink_commit", query="query", batch=0, stages=[stage[0]])
        assert committed["already"] is False
        assert bodies_of(client, "a", 2) == [LARGE, b'{"kind":"a"}']


def test_a_late_consumer_with_a_filter_finds_its_messages_in_a_deep_queue(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        client.declare("q")
        for first in range(0, 60_000, 20_000):
            client.publish_table("q", table(*(b'{"n":%d}' % number for number in range(first, first + 20_000))))
        client.publish("q", LARGE)
        assert bodies_of(client, "q", 3, "/n IN (17, 33333) OR /kind = 'a'") == [b'{"n":17}', b'{"n":33333}', LARGE]


def test_a_delta_is_judged_off_the_loop_as_what_it_makes_of_a_large_record(
    house: FlightHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop: list[int] = []
    matches = FilterSet.matches

    def watched(self: FilterSet, bodies: Any, *rest: Any, **more: Any) -> Any:
        if threading.current_thread().name == "penstock-test-loop":
            on_loop.append(max(map(len, bodies), default=0))
        return matches(self, bodies, *rest, **more)

    with penstock.connect(house.url) as client:
        client.declare_topic("records", key=["/id"])
        client.declare("open", underlying_topic="records", filter="/state = 'open'")
        client.declare("shut", underlying_topic="records", filter="/state = 'shut'")
        client.publish("records", {"id": 1, "state": "shut", "pad": "x" * 400_000})
        client.publish("records", {"id": 2, "state": "shut"})
        monkeypatch.setattr(FilterSet, "matches", watched)
        deltas = [{"id": 1, "state": "open"}, {"id": 2, "state": "open"}, {"id": 3, "state": "shut"}]
        client.publish_table("records", table(*map(orjson.dumps, deltas)), delta=True)
        for change in ({"id": 1, "n": 1}, {"id": 1, "state": "shut"}):
            client.delta_publish("records", change)
        found = [orjson.loads(body) for body in bodies_of(client, "open", 3)]
        assert [(one["id"], one.get("n")) for one in found] == [(1, None), (2, None), (1, 1)]
        found = [orjson.loads(body) for body in bodies_of(client, "shut", 4)]
        assert [(one["id"], one.get("n")) for one in found] == [(1, None), (2, None), (3, None), (1, 1)]
    assert [size for size in on_loop if size > LOOP_BODY] == []


@pytest.mark.parametrize(
    "settings",
    [{"last_value_key": "/kind"}, {"dedup_key": "/kind", "dedup_window": "1h"}, {"group_key": "/kind"}],
    ids=["last_value_key", "dedup_key", "group_key"],
)
def test_keys_of_large_bodies_and_of_many_are_worked_out_off_the_loop(
    house: FlightHouse, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    on_loop = list[list[int]]()
    values = Value.values

    def watched(self: Value, bodies: Any, *rest: Any, **more: Any) -> Any:
        if threading.current_thread().name == "penstock-test-loop":
            on_loop.append(list(map(len, bodies)))
        return values(self, bodies, *rest, **more)

    with penstock.connect(house.url) as client:
        client.declare("q", **settings)
        monkeypatch.setattr(Value, "values", watched)
        client.publish_table("q", table(b'{"kind":"a"}', LARGE, OTHER))
        client.publish_table("q", table(*(b'{"kind":%d}' % number for number in range(10_000))))
        told = house.run(lambda: house.engine.core.queue("/", "q").ready)
    assert told == 10_000 + (3 if "group_key" in settings else 2)
    most = 10_000 if "group_key" in settings else 5_000  # what is done with a key of a group is less
    assert all(max(sizes) <= LOOP_BODY and len(sizes) <= most for sizes in on_loop)


def test_a_server_that_drains_takes_no_batch_of_a_sink_that_settles_nothing(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        client.declare("a", underlying_topic="out")
        stage = client.stage("query", 0, 0, 0, [table(b"1")], topic="out")
        assert stage is not None
        house.run(lambda: house.engine.core.drain(house.engine.now()))
        with pytest.raises(penstock.PenstockError, match="drains"):
            client.action("sink_commit", query="query", batch=0, stages=[stage[0]])
        house.run(lambda: house.engine.core.drain(house.engine.now(), False))
        assert client.action("sink_commit", query="query", batch=0, stages=[stage[0]])["already"] is False
