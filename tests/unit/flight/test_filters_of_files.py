"""A filter that a task evaluates over the log's files is read as the bodies are, as the server itself reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from flight_house import FlightHouse
from message_samples import SAMPLES, Sample
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


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightHouse]:
    """A server that was started again, with six orders of each type in a topic and two queues of their own."""
    folder = tmp_path_factory.mktemp("restarted")
    with FlightHouse(folder) as house, connect(house.url) as client:
        for name, sample in SAMPLES.items():
            client.declare_topic(f"t-{name}", message_type=sample.name, key=[sample.path("id")])
            client.declare(f"all-{name}", underlying_topic=f"t-{name}", message_type=sample.name)
            client.declare(f"high-{name}", underlying_topic=f"t-{name}", message_type=sample.name,
                           filter=sample.said("{total} > 3"), priority_expression=sample.path("total"))  # fmt: skip
            for body in orders(sample):
                client.publish(f"t-{name}", body, headers=sample.headers)
    with FlightHouse(folder) as house:
        yield house


def orders(sample: Sample) -> list[bytes]:
    return [sample.body({"id": f"a-{number}", "total": number, "region": "n"}) for number in range(6)]


@pytest.mark.parametrize("name", SAMPLES)
def test_bodies_are_read_from_the_log_alone_after_a_restart(restarted: FlightHouse, name: str) -> None:
    sample, topic, everything = SAMPLES[name], f"t-{name}", f"all-{name}"
    high, order, written = sample.said("{total} > 3"), sample.said("{total} DESC"), orders(sample)

    def numbers(messages: Iterable[Any]) -> list[int]:
        return [written.index(one.body) for one in messages]

    with connect(restarted.url) as client:
        assert numbers(client.sow(topic, filter=high, order_by=order)) == [5, 4]
        assert numbers(client.peek(everything, filter=high)) == [4, 5]
        assert numbers(client.replay(topic, filter=high)) == [4, 5]
        with client.consume(f"high-{name}", timeout=30) as consumer:
            assert numbers(islice(consumer, 2)) == [5, 4]
        client.publish(topic, written[5], headers=sample.headers)  # its key has the record that was there
        assert len(list(client.sow(topic))) == 6
        grouped = client.sow(everything, projection=sample.said("COUNT({id}) AS /n"), grouping=sample.path("region"))
        assert [one.body for one in grouped] == [b'{"n":7}']
        with client.consume(everything, filter=sample.said("{total} = 4"), timeout=30) as consumer:
            assert numbers([next(iter(consumer))]) == [4]
