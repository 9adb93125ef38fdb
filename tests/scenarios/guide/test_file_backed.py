"""File-backed metadata: the state of a deep queue lies in a file, and nothing else is different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pytest

import penstock
from penstock.config.load import load_file
from penstock.errors import InvalidArgument, PreconditionFailed, SettingsError
from penstock.records.entries import Publishes
from penstock.records.properties import Properties, encode
from penstock.testing import Broker
from scenario import amqp, bodies, broker_of

HEADER = encode(Properties(delivery_mode=2))
BATCH = 8_000
BODY = b'{"n": %d}'
XML = "<AMPSConfig><Name>a</Name><SOW><Queue><Name>q</Name><MessageType>json</MessageType>{}</Queue></SOW></AMPSConfig>"


def deepen(broker: Broker, *queues: str, batches: int = 3) -> int:
    """Messages that go to these queues in turn, so that no queue's positions are a range; how many each has got."""
    count = 0

    def work(instance: Any) -> None:
        nonlocal count
        topics = [instance.core.topic("/", "", queue) for queue in queues]
        for _ in range(batches):
            rows = [BODY % (count + row // len(queues)) for row in range(BATCH)]
            each = [topics[row % len(queues)] for row in range(BATCH)]
            batch = Publishes(each, HEADER, rows, size=sum(map(len, rows)))
            assert instance.core.publish(instance.engine.now(), batch).stored == BATCH
            count += BATCH // len(queues)
            instance.make_durable()

    broker.command(work)
    return count


def in_file(broker: Broker) -> int:
    """Bytes of state in files, after two looks."""
    broker.advance(1.0)
    broker.advance(1.0)
    assert broker.instance is not None
    return broker.instance.scratch.used


@pytest.mark.parametrize("backed", [True, False])
def test_the_state_of_a_deep_queue_lies_in_a_file_and_the_queue_is_the_same(backed: bool) -> None:
    with broker_of({"name": "a", "file_backed_metadata": backed}, {"name": "b"}) as broker:
        count = deepen(broker, "a", "b")
        assert (in_file(broker) >= 2 * BATCH // 2 * 8) == backed
        everything = broker.subscribe("a", max_backlog=count)
        messages = everything.take()
        assert bodies(messages) == [BODY % number for number in range(count)]
        for done in (messages[1::3], messages[2::3]):
            assert broker.ack("a", [one.bookmark for one in done], by=everything.name) == count // 3
        in_file(broker)
        everything.close()
        again = broker.subscribe("a", max_backlog=count)
        assert bodies(again.take()) == [BODY % number for number in range(0, count, 3)]
        assert broker.stats("a")["leased"] == count // 3


def test_a_start_finds_the_same_messages_and_makes_the_file_anew() -> None:
    """The time of a start is the checkpoint's: the file is never read by another process."""
    with broker_of({"name": "a", "file_backed_metadata": True}, {"name": "b"}) as broker:
        count = deepen(broker, "a", "b")
        assert in_file(broker) >= count * 8
        broker.restart()
        assert broker.instance is not None
        assert broker.instance.recovered_records == 0, "all of it came from the checkpoint"
        assert in_file(broker) >= count * 8
        broker.crash()
        broker.restart()
        assert in_file(broker) >= count * 8
        assert bodies(broker.subscribe("a", max_backlog=count).take()) == [BODY % number for number in range(count)]


def test_all_of_a_file_backed_queue_is_active() -> None:
    with broker_of({"name": "a", "file_backed_metadata": True}, {"name": "b"}) as broker:
        count = deepen(broker, "a", "b")
        assert in_file(broker) > 0
        assert (broker.stats("a")["ready"], broker.stats("a")["inactive"]) == (count, 0)
        late = broker.subscribe("a", filter=f"/n = {count - 1}", max_backlog=5)
        assert bodies(late.take()) == [BODY % (count - 1)]
        assert len(broker.sow("a", filter=f"/n >= {count - 1000}")) == 999
        assert broker.ack_filter("a", "/n < 100", by="anybody") == 100


@pytest.mark.parametrize(
    "beside",
    [
        {"priority_expression": "/p"},
        {"barrier_expression": "/b = 1"},
        {"target_queue_depth": 1000},
        {"semantics": "at-most-once"},
        {"expiration": "1h", "retry": {"initial": "1s"}},
    ],
    ids=lambda beside: next(iter(beside)),
)
def test_it_excludes_nothing(beside: dict[str, object]) -> None:
    with broker_of({"name": "a", "file_backed_metadata": True, **beside}, {"name": "b"}) as broker:
        count = deepen(broker, "a", "b")
        assert in_file(broker) > 0
        taken = broker.subscribe("a", max_backlog=count).take()
        assert bodies(taken) == [BODY % number for number in range(len(taken))]
        assert len(taken) == (1000 if "target_queue_depth" in beside else count)


def test_a_full_disk_leaves_state_in_memory_and_stops_nothing() -> None:
    with broker_of({"name": "a", "file_backed_metadata": True}, {"name": "b"}) as broker:
        assert broker.instance is not None
        scratch = broker.instance.scratch
        scratch("")._backing.capacity = 0  # type: ignore[attr-defined]
        count = deepen(broker, "a", "b")
        assert in_file(broker) == 0
        assert scratch.refused > 0
        assert bodies(broker.subscribe("a", max_backlog=count).take()) == [BODY % number for number in range(count)]


# --- who may ask for it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "meant"), [("enabled", True), ("disabled", False), (None, False)])
def test_the_element_is_unset_or_enabled(tmp_path: Path, said: str | None, meant: bool) -> None:
    file = tmp_path / "amps.xml"
    file.write_text(XML.format("" if said is None else f"<FileBackedMetadata>{said}</FileBackedMetadata>"))
    assert load_file(str(file), environ={}).queue[0].settings.file_backed_metadata is meant


def test_every_door_takes_it_and_the_settings_file_alone_a_path(tmp_path: Path) -> None:
    path = str(tmp_path / "own")
    with broker_of({"name": "a", "file_backed_metadata": path}) as broker:
        with amqp(broker) as channel:
            channel.queue_declare("over amqp", durable=True, arguments={"x-file-backed-metadata": True})
        refused = pytest.raises(pika.exceptions.ChannelClosedByBroker, match="a path is for the settings file alone")
        with refused, amqp(broker) as channel:
            channel.queue_declare("no", durable=True, arguments={"x-file-backed-metadata": path})
        with penstock.connect(broker.flight_url) as client:
            client.declare("over flight", file_backed_metadata=True)
            with pytest.raises(InvalidArgument, match=r"file_backed_metadata.*a path is for the settings file alone"):
                client.declare("no", file_backed_metadata=path)
            client.declare_topic("records", key=["/id"], index="file")
            assert client.topic("records")["index"] == "file"
            with pytest.raises(InvalidArgument, match="an index is of records, and a topic without a key has none"):
                client.declare_topic("none", index="file")
            with pytest.raises(InvalidArgument, match="index is one of memory, file, not 'disk'"):
                client.declare_topic("none", key=["/id"], index="disk")  # type: ignore[arg-type]
        broker.alter("over amqp", file_backed_metadata=False)

        def settings(instance: Any) -> dict[str, object]:
            return {queue.name: queue.settings.file_backed_metadata for queue in instance.core.queues()}

        assert broker.command(settings) == {"a": path, "over amqp": False, "over flight": True}


@pytest.mark.parametrize("value", ["", 1, 2.5, ["x"]])
def test_what_it_cannot_be_is_told_by_name(value: object) -> None:
    with pytest.raises((SettingsError, PreconditionFailed), match="file_backed_metadata"):
        Broker({"queue": [{"name": "q", "file_backed_metadata": value}]})


def test_records_page_their_index_too() -> None:
    config = {"topic": [{"name": "t", "key_from": "publisher", "index": "file"}]}
    with Broker(config) as broker:
        for number in range(1200):
            broker.publish("t", b"%d" % number, headers={"x-sow-key": f"k{number}"})
        assert in_file(broker) > 0
        broker.publish("t", b"new", headers={"x-sow-key": "k7"})
        assert len(broker.sow("t")) == 1200
        broker.crash()
        broker.restart()
        assert len(broker.sow("t")) == 1200
