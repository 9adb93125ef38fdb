"""User guide, beside a queue: records of its topic, aggregates of it, replays, and a start with several."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import orjson
import pyarrow as pa
from pyarrow import flight

from penstock.testing import Broker
from penstock.wire.flight.commands import SETTLE
from scenario import bodies, broker_of, waiting

ORDERS: dict[str, Any] = {"name": "orders", "key": ["/id"]}
PENDING: dict[str, Any] = {"name": "PendingOrders", "underlying_topic": "orders"}


def order(number: int, total: int) -> bytes:
    return orjson.dumps({"id": number, "total": total})


# --- a topic with a key below ---------------------------------------------------------------------------------------


def test_what_is_told_out_of_focus_is_no_message_of_the_queue() -> None:
    with broker_of({**PENDING, "filter": "/total >= 10"}, topic=[ORDERS]) as broker:
        watch = broker.subscribe("orders", filter="/total >= 10", oof=True)
        for total in (50, 5, 60):
            broker.publish("orders", order(1, total))
        broker.sow_delete("orders", filter="/id = 1")
        assert [message.kind for message in watch.take()] == ["publish", "oof", "publish", "oof"]
        assert waiting(broker, "PendingOrders") == [order(1, 50), order(1, 60)]
        assert broker.stats("PendingOrders")["ready"] == 2


def test_a_record_that_expires_leaves_the_message_of_the_queue() -> None:
    with broker_of({**PENDING, "expiration_model": "queue"}, topic=[{**ORDERS, "expiration": "1m"}]) as broker:
        broker.publish("orders", order(1, 5))
        assert [record.body for record in broker.sow("orders")] == [order(1, 5)]
        broker.advance(60)
        assert broker.sow("orders") == []
        assert bodies(broker.subscribe("PendingOrders").take()) == [order(1, 5)]


# --- views and aggregated subscriptions -----------------------------------------------------------------------------


def told(broker: Broker, watch: Any) -> list[tuple[str, object]]:
    """What it was told, once grants are on disk: nobody hurries for those."""
    broker.advance(0.2)
    return [(message.kind, message.json()["total"]) for message in watch.take()]


def test_an_aggregated_subscription_follows_what_is_available_and_leases_nothing() -> None:
    view = {"name": "sum", "source": "PendingOrders", "select": "SUM(/total) AS /total"}
    with broker_of({**PENDING, "expiration": "1m"}, view=[view]) as broker:
        watch = broker.subscribe("PendingOrders", sow=True, oof=True, projection="SUM(/total) AS /total", grouping=[])
        for number, total in enumerate((10, 20)):
            broker.publish("orders", order(number, total))
        assert told(broker, watch) == [("publish", 10), ("publish", 30)]
        assert (broker.stats("PendingOrders")["ready"], broker.stats("PendingOrders")["leased"]) == (2, 0)
        worker = broker.subscribe("PendingOrders")
        assert bodies(worker.take()) == [order(0, 10)]  # that somebody watches takes nothing from a worker
        assert told(broker, watch) == [("publish", 20)]
        worker.close()
        assert told(broker, watch) == [("publish", 30)]
        assert [row.json() for row in broker.sow("sum")] == [{"total": 30}]
        broker.advance(60)
        assert told(broker, watch)[-1] == ("oof", 30)  # and what expires is gone, from the view as well
        assert broker.sow("sum") == []


# --- a queue and a replay compared ----------------------------------------------------------------------------------


def test_a_queue_and_a_replay_are_in_the_order_of_the_log_filtered_and_can_be_had_again() -> None:
    expected = [order(number, number) for number in range(5, 10)]
    with broker_of(PENDING) as broker:
        for number in range(10):
            broker.publish("orders", order(number, number))
        for _ in range(2):  # what was not processed comes again, from the one as from the other
            replay = broker.subscribe("PendingOrders", bookmark="EPOCH", filter="/total > 4")
            assert bodies(replay.take()) == expected
            worker = broker.subscribe("PendingOrders", filter="/total > 4", max_backlog=20)
            assert bodies(worker.take()) == expected
            replay.close()
            worker.close()


def test_the_client_knows_its_place_in_a_replay_and_the_server_what_a_queue_has_done() -> None:
    with broker_of(PENDING) as broker:
        for number in range(4):
            broker.publish("orders", order(number, 1))
        seen = broker.subscribe("PendingOrders", bookmark="EPOCH", name="auditor").take()
        held = broker.subscribe("PendingOrders", name="worker", max_backlog=4).take()
        assert bodies(seen) == bodies(held)
        for message in held[:2]:
            assert message.ack()
        broker.restart()
        again = broker.subscribe("PendingOrders", bookmark="EPOCH", name="auditor")
        assert bodies(again.take()) == bodies(seen)  # nobody but the client knows that it has had them
        on = broker.subscribe("PendingOrders", bookmark=seen[1].bookmark, name="auditor, from its own place")
        assert bodies(on.take()) == bodies(seen[2:])
        rest = broker.subscribe("PendingOrders", name="another worker", max_backlog=4)
        assert bodies(rest.take()) == bodies(held[2:])


def test_one_arrow_batch_acknowledges_many() -> None:
    with broker_of({"name": "q"}) as broker:
        marks = [broker.publish("q", f"{number}") for number in range(6)]
        client = flight.FlightClient(f"grpc://{urlsplit(broker.flight_url).netloc.rpartition('@')[2]}")
        options = flight.FlightCallOptions(timeout=20, headers=[client.authenticate_basic_token("guest", "guest")])
        command = flight.FlightDescriptor.for_command(b'{"consume": {"queue": "q"}}')
        writer, reader = client.do_exchange(command, options)
        writer.begin(SETTLE)
        delivered = 0
        while delivered < 6:
            delivered += getattr(reader.read_chunk().data, "num_rows", 0)
        rows = [
            {"lsn": int(mark.split("|")[1]), "attempt": 1, "verb": "ack", "delay": None, "reason": None, "queue": None}
            for mark in marks[:5]
        ]
        writer.write_with_metadata(pa.RecordBatch.from_pylist(rows, SETTLE), b'{"number": 1}')
        told = json.loads(reader.read_chunk().app_metadata.to_pybytes())
        assert told == {"answer": 1, "affected": 5, "stale": 0}
        assert (broker.stats("q")["acked"], broker.stats("q")["leased"]) == (5, 1)
        writer.done_writing()
        writer.close()
        client.close()


# --- recovery -------------------------------------------------------------------------------------------------------


def test_a_start_reads_the_log_once_for_all_queues() -> None:
    read = list[int]()
    for count in (1, 5):
        names = [f"q{number}" for number in range(count)]
        with broker_of(*({"name": name, "underlying_topic": "orders"} for name in names)) as broker:
            for number in range(200):
                broker.publish("orders", order(number, 1))
            broker.crash()
            broker.restart()
            assert [broker.stats(name)["ready"] for name in names] == [200] * count
            assert broker.instance is not None
            read.append(broker.instance.recovered_records)
    assert read[0] >= 200
    assert read[1] < read[0] + 50  # four declares more, and no message twice
