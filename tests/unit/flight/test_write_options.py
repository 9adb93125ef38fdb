"""What a write asks for that is not there is told on the driver when it is planned, and by its option.

What `settleStream` names is settled only where the query reads it: the numbers of batches say nothing about whose they
are, so those of another stream would go unread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

import penstock
from penstock.errors import NotFound, PenstockError, PreconditionFailed
from penstock.spark.remote import Where, remote
from penstock.spark.sink import NO_ROWS, BatchWriter, Staged, StreamWriter, write_options
from penstock.testing import Broker
from scenario import broker_of

ROWS = StructType().add("id", LongType())
ELSEWHERE = {"batch": 1, "stream": "theirs", "origin": 7}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with broker_of({"name": "mine"}, {"name": "theirs"}, {"name": "out"}) as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[penstock.Client]:
    with penstock.connect(broker.flight_url) as made:
        for queue in ("mine", "theirs"):
            broker.publish(queue, b"{}")
            epoch = made.action("stream_open", stream=queue, queue=queue, mode="queue")["epoch"]
            plan = made.action("plan", with_vhost=False, stream=queue, epoch=epoch, start=0)
            assert (plan["batch"], plan["rows"]) == (1, 1)
        yield made


def writer(broker: Broker, folder: Path, offsets: Sequence[object], **options: str) -> StreamWriter:
    """The sink of a query whose first batch ends at these offsets."""
    (folder / "offsets").mkdir(exist_ok=True)
    lines = ["v1", '{"conf":{}}', *(one if isinstance(one, str) else json.dumps(one) for one in offsets)]
    (folder / "offsets" / "0").write_text("\n".join(lines))
    given = {"url": broker.flight_url, "queue": "out", "checkpointLocation": str(folder), **options}
    return StreamWriter(write_options(given), ROWS)


def commit(one: StreamWriter) -> None:
    one.commit([Staged("query", 0, (), 0)], 0)


def test_a_stream_that_the_query_reads_is_settled_by_its_name(
    broker: Broker, client: penstock.Client, tmp_path: Path
) -> None:
    origin = client.action("position", with_vhost=False)["origin"]
    mine, theirs = ({"batch": 1, "stream": name, "origin": origin} for name in ("mine", "theirs"))
    commit(writer(broker, tmp_path, [{"lsn": 9, "stream": "log", "origin": origin}, mine, theirs], settleStream="mine"))
    assert (broker.stats("mine")["acked"], broker.stats("theirs")["acked"]) == (1, 0)


@pytest.mark.parametrize(
    ("offsets", "read"),
    [
        ([{"batch": 1, "stream": "mine", "origin": 7}], "'mine'"),
        ([{"batch": 1, "origin": 7}], "no queue by a stream's name"),
        ([{"lsn": 9, "stream": "theirs", "origin": 7}], "no queue by a stream's name"),
    ],
    ids=["of another queue", "of changes", "of a topic"],
)
def test_a_stream_that_the_query_does_not_read_is_not_settled(
    broker: Broker, client: penstock.Client, tmp_path: Path, offsets: list[object], read: str
) -> None:
    """Its messages were gone, and nobody had read them."""
    told = f"^option settleStream is 'theirs', and the query reads {read}"
    with pytest.raises(PreconditionFailed, match=told):
        writer(broker, tmp_path, offsets, settleStream="theirs")
    planned = writer(broker, tmp_path, ["-"], settleStream="theirs")  # which it reads cannot be said yet
    (tmp_path / "offsets" / "0").write_text("\n".join(["v1", "{}", *map(json.dumps, offsets)]))
    with pytest.raises(PreconditionFailed, match=told):
        commit(planned)
    assert (broker.stats("theirs")["acked"], broker.stats("theirs")["leased"]) == (0, 1)


def test_a_batch_that_another_server_gave_is_not_settled_here(
    broker: Broker, client: penstock.Client, tmp_path: Path
) -> None:
    commit(writer(broker, tmp_path, [ELSEWHERE], settleStream="theirs"))
    assert broker.stats("theirs")["acked"] == 0


@pytest.mark.parametrize("offsets", [["-"], [{"batch": 0}]])
def test_a_stream_whose_first_message_is_to_come_has_nothing_to_settle(
    broker: Broker, client: penstock.Client, tmp_path: Path, offsets: list[object]
) -> None:
    commit(writer(broker, tmp_path, offsets, settleStream="theirs"))
    assert broker.stats("theirs")["acked"] == 0


@pytest.mark.parametrize("made", [BatchWriter, StreamWriter])
@pytest.mark.parametrize(
    ("vhost", "exchange", "told"),
    [
        ("", "nowhere", "^option exchange: no exchange 'nowhere' in vhost '/'$"),
        ("", "inner", "^option exchange: cannot publish to internal exchange 'inner'"),
        ("/nowhere", "", "^option url: no vhost 'nowhere'$"),
    ],
)
def test_where_rows_go_is_there_before_they_are_computed(
    broker: Broker, client: penstock.Client, made: Any, vhost: str, exchange: str, told: str
) -> None:
    client.declare_exchange("inner", "topic", internal=True)
    options = write_options({"url": broker.flight_url + vhost, "topic": "t", "exchange": exchange})
    with pytest.raises(PenstockError, match=told):
        made(options, ROWS)
    if not vhost:
        rows = StructType().add("id", LongType()).add("topic", StringType())
        with pytest.raises(PenstockError, match=told):
            made(write_options({"url": broker.flight_url, "exchange": exchange}), rows)


@pytest.mark.parametrize("operation", ["publish", "stage"])
@pytest.mark.parametrize("knows", [True, False])
def test_an_upload_to_an_exchange_that_is_missing_ends_before_its_rows(
    broker: Broker, client: penstock.Client, operation: str, knows: bool
) -> None:
    """Who may write nothing there is not told whether it is there."""
    client.add_user("ann", password="ann")
    client.set_permissions("ann", "", ".*" if knows else "^out$", "")
    fields: dict[str, object] = {"query": "k", "batch": 0, "partition": 0} if operation == "stage" else {}
    server = remote(Where(broker.flight_url.replace("guest:guest", "ann:ann"), patience=0))

    def put(exchange: str) -> dict[str, Any]:
        return server.put(operation, [NO_ROWS], topic="t", exchange=exchange, vhost="/", **fields)

    if knows:
        with pytest.raises(NotFound, match="no exchange 'nowhere' in vhost '/'"):
            put("nowhere")
    else:
        assert put("nowhere")["rows"] == 0
    assert put("amq.topic")["rows"] == 0
    server.close()
