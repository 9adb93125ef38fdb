"""A filter that a task evaluates over the log's files is read as the bodies are, as the server itself reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flight_house import FlightHouse
from message_samples import SAMPLES
from penstock import connect
from penstock.spark.reading.fetching import file_messages
from penstock.spark.remote import Remote, Where


@pytest.mark.parametrize("name", ["json", "msgpack", "nvfix"])
def test_files_give_the_rows_that_the_server_gives(tmp_path: Path, name: str) -> None:
    sample = SAMPLES[name]
    with FlightHouse(tmp_path) as house, connect(house.url) as client:
        client.declare("q", underlying_topic="t", message_type=name)
        for number in range(6):
            client.publish("t", sample.body({"id": f"a-{number}", "total": number, "region": "n"}))
        server = Remote(Where(house.url))
        chosen: dict[str, object] = {"topic": "t", "exchange": "", "filter": sample.said("{total} > 1")}
        where = server.act("position", bookmark="EPOCH")
        end = int(where["durable"]) + 1
        asked = [row for batch in server.rows("replay", columns=["body"], **chosen) for row in batch.to_pylist()]
        read = [row for batch in file_messages(server, chosen, 1, end, ["body"]) for row in batch.to_pylist()]
        assert len(asked) == 4
        assert read == asked
        server.close()
