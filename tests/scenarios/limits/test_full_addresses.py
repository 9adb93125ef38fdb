"""Artemis's policies for a full address: PAGE, FAIL and DROP are told elsewhere; BLOCK has publishers wait."""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pika
import pyarrow as pa
import pytest
from pyarrow import flight

import penstock
from http_lab import NO_TLS
from penstock.config.foreign import read_foreign
from penstock.testing import Broker
from waiting import eventually

ADDRESS = {"max_size_messages": 2, "address_full_policy": "BLOCK"}


def broker_of(**more: object) -> Broker:
    return Broker(config={"queue": [{"name": "q"}, {"name": "free"}], "address": [{"pattern": "q", **ADDRESS, **more}]})


def read_all(reader: Any, writer: Any) -> None:
    while reader.read() is not None:
        pass
    writer.close()


def fill(broker: Broker) -> None:
    for body in (b"1", b"2"):
        broker.publish("q", body)


def take(broker: Broker, count: int) -> list[bytes]:
    """So many messages, settled one by one, each waited for."""
    out = list[bytes]()
    with penstock.connect(broker.flight_url) as client:
        for message in client.consume("q", prefetch=1, timeout="20s"):
            out.append(bytes(message.body))
            message.ack()
            if len(out) == count:
                break
    return out


def somebody_waits(broker: Broker) -> None:
    """Returns when a publisher waits for room; the queue holds no more than it may."""
    eventually(lambda: broker.command(lambda one: bool(one.engine.rooms.waiting)), "nobody waits for room")
    assert broker.stats("q")["ready"] == 2


def test_nothing_is_stored_in_process_where_nobody_could_wait() -> None:
    with broker_of() as broker:
        fill(broker)
        with pytest.raises(
            penstock.QueueFull, match=r"holds its publishers up until there is room: max_length is 2"
        ) as no:
            broker.publish("q", b"3")
        assert (no.value.code, no.value.retry) == ("PS108", True)
        broker.publish("free", b"3")
        assert broker.stats("q")["ready"] == 2
        [message] = broker.subscribe("q", max_backlog=1).take()
        assert message.body == b"1"
        broker.publish("q", b"3")  # what is out does not count


def test_over_http_it_is_to_be_tried_again() -> None:
    with broker_of() as broker:
        fill(broker)
        body = {"routing_key": "q", "payload": "3", "payload_encoding": "string", "properties": {}}
        url = f"{broker.http_url}/api/exchanges/%2F/amq.default/publish"
        answer = httpx.post(url, verify=NO_TLS, json=body, auth=("guest", "guest"), timeout=20)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "queue 'q' in vhost '/' holds its publishers up" in answer.json()["reason"]


def test_an_unmodified_client_is_told_and_goes_on_when_there_is_room() -> None:
    told = list[str]()
    with broker_of() as broker:
        fill(broker)
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
        connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
        channel = connection.channel()
        channel.confirm_delivery()
        taken = list[bytes]()

        def take_when_somebody_waits() -> None:
            somebody_waits(broker)
            taken.extend(take(broker, 3))

        other = threading.Thread(target=take_when_somebody_waits)
        channel.basic_publish("", "free", b"x")
        other.start()
        channel.basic_publish("", "q", b"3")  # returns when it is stored
        other.join()

        def heard() -> bool:
            connection.process_data_events(0)
            return len(told) == 2

        eventually(heard, lambda: f"it was told {told}")
        connection.close()
        assert taken == [b"1", b"2", b"3"]
        assert told == ["queue 'q' in vhost '/' is full", "unblocked"]


def test_an_upload_waits_within_its_call() -> None:
    with broker_of() as broker:
        fill(broker)
        with penstock.connect(broker.flight_url) as client:
            bodies = [b"%d" % n for n in range(3, 40)]
            other = threading.Thread(target=lambda: client.publish_table("q", pa.table({"body": bodies})))
            other.start()
            somebody_waits(broker)
            assert take(broker, 39) == [b"%d" % n for n in range(1, 40)]
            other.join()
        assert broker.stats("q")["ready"] == 0


def test_a_call_that_ends_leaves_nothing() -> None:
    ended = list[flight.FlightError]()
    with broker_of() as broker:
        fill(broker)
        login = base64.b64encode(b"guest:guest")
        options = flight.FlightCallOptions(timeout=1, headers=[(b"authorization", b"Basic " + login)])
        where = flight.FlightDescriptor.for_command(json.dumps({"publish": {"topic": "q"}}))
        table = pa.table({"body": [b"3"]})

        def publish() -> None:
            with flight.connect(f"grpc://{broker.flight_url.partition('@')[2]}") as client:
                writer, reader = client.do_put(where, table.schema, options)
                writer.write_table(table)
                try:
                    read_all(reader, writer)
                except flight.FlightError as error:
                    ended.append(error)

        other = threading.Thread(target=publish)
        other.start()
        somebody_waits(broker)
        other.join()
        assert len(ended) == 1
        eventually(lambda: broker.command(lambda one: not one.engine.rooms.waiting), "it left the line")
        assert take(broker, 2) == [b"1", b"2"]
        assert broker.stats("q")["ready"] == 0


def test_numbered_messages_that_wait_are_stored_once() -> None:
    with broker_of() as broker:
        broker.publish("q", b"1", publisher="p", sequence=1)
        broker.publish("q", b"2", publisher="p", sequence=2)
        with penstock.connect(broker.flight_url) as client:
            other = threading.Thread(
                target=lambda: client.publish_table(
                    "q", pa.table({"body": [b"1", b"2", b"3", b"4"]}), publisher="p", sequence=1
                )
            )
            other.start()
            somebody_waits(broker)
            assert take(broker, 4) == [b"1", b"2", b"3", b"4"]
            other.join()
        assert broker.stats("q")["queue_depth"] == 0


def test_artemis_settings_are_taken_over(tmp_path: Path) -> None:
    file = tmp_path / "broker.xml"
    file.write_text(
        """<configuration><core><address-settings><address-setting match="orders.#">
        <max-size-bytes>10Mb</max-size-bytes><address-full-policy>BLOCK</address-full-policy>
        </address-setting></address-settings>
        <addresses><address name="orders.new"><anycast><queue name="orders.new"/></anycast></address></addresses>
        </core></configuration>"""
    )
    assert read_foreign(file).settings == {
        "queue": [{"name": "orders.new"}],
        "address": [{"pattern": "orders.#", "max_size_bytes": "10MiB", "address_full_policy": "BLOCK"}],
    }
    with Broker(config=file) as broker:
        settings = broker.command(lambda one: one.core.queue("/", "orders.new").settings)
        assert (settings.overflow, settings.max_length_bytes) == ("block", 10 << 20)
