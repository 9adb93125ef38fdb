"""A filter that a task evaluates over the log's files is read as the bodies are, as the server itself reads it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from flight_house import FlightHouse
from message_samples import SAMPLES
from penstock import connect
from penstock.spark.reading.fetching import file_messages
from penstock.spark.remote import Remote, Where


@pytest.mark.parametrize("name", ["json", "msgpack", "nvfix", "avro-by-header"])
def test_files_give_the_rows_that_the_server_gives(tmp_path: Path, name: str) -> None:
    sample = SAMPLES[name]
    with FlightHouse(tmp_path) as house, connect(house.url) as client:
        client.declare("q", underlying_topic="t", message_type=sample.name)
        for number in range(6):
            order = {"id": f"a-{number}", "total": number, "region": "n"}
            client.publish("t", sample.body(order), headers=sample.headers)
        server = Remote(Where(house.url))
        chosen: dict[str, object] = {"topic": "t", "exchange": "", "filter": sample.said("{total} > 1")}
        where = server.act("position", bookmark="EPOCH")
        end = int(where["durable"]) + 1
        asked = [row for batch in server.rows("replay", columns=["body"], **chosen) for row in batch.to_pylist()]
        read = [row for batch in file_messages(server, chosen, 1, end, ["body"]) for row in batch.to_pylist()]
        assert len(asked) == 4
        assert read == asked
        server.close()


@pytest.mark.parametrize("name", SAMPLES)
def test_bodies_are_read_from_the_log_alone_after_a_restart(tmp_path: Path, name: str) -> None:
    sample = SAMPLES[name]
    high, order = sample.said("{total} > 3"), sample.said("{total} DESC")
    with FlightHouse(tmp_path) as house, connect(house.url) as client:
        client.declare_topic("t", message_type=sample.name, key=[sample.path("id")])
        client.declare("all", underlying_topic="t", message_type=sample.name)
        client.declare("high", underlying_topic="t", message_type=sample.name, filter=high,
                       priority_expression=sample.path("total"))  # fmt: skip
        for number in range(6):
            told = {"id": f"a-{number}", "total": number, "region": "n"}
            client.publish("t", sample.body(told), headers=sample.headers)
    with FlightHouse(tmp_path) as house, connect(house.url) as client:
        written = [sample.body({"id": f"a-{number}", "total": number, "region": "n"}) for number in range(6)]

        def numbers(messages: Iterable[Any]) -> list[int]:
            return [written.index(one.body) for one in messages]

        assert numbers(client.sow("t", filter=high, order_by=order)) == [5, 4]
        assert numbers(client.peek("all", filter=high)) == [4, 5]
        assert numbers(client.replay("t", filter=high)) == [4, 5]
        with client.consume("high", timeout=30) as consumer:
            assert numbers(islice(consumer, 2)) == [5, 4]
        client.publish("t", written[5], headers=sample.headers)  # its key has the record that was there
        assert len(list(client.sow("t"))) == 6
        grouped = client.sow("all", projection=sample.said("COUNT({id}) AS /n"), grouping=sample.path("region"))
        assert [one.body for one in grouped] == [b'{"n":7}']
        with client.consume("all", filter=sample.said("{total} = 4"), timeout=30) as consumer:
            assert numbers([next(iter(consumer))]) == [4]
