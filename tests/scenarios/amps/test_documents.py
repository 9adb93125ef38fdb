"""The configuration examples of the AMPS documents: what each becomes, and that its queues do what the text says.

Beside each NAME.xml stand NAME.toml, the settings it must convert to, and NAME.txt, what is not the same here.  In
`errors`, NAME.txt is what `penstock check` says.  `tests/scenarios/amps/test_documents.py --write` renews them.
"""

from __future__ import annotations

import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.config.foreign import read_foreign
from penstock.config.foreign.converted import to_toml
from penstock.config.load import judged, load_file, load_text
from penstock.errors import SettingsError
from penstock.testing import Broker
from penstock.testing.instance import FakeClock

HERE = Path(__file__).resolve().parent
EXAMPLES = sorted(path.stem for path in HERE.glob("*.xml"))
ERRORS = sorted(path.stem for path in (HERE / "errors").glob("*.xml"))
ENVIRON = {"DATA": "/var/lib/amps"}


def converted(name: str) -> tuple[str, str]:
    """The settings and the remarks on an example, named as from its own folder."""
    result = read_foreign(f"{name}.xml", ENVIRON)
    remarks = "".join(f"{remark.verdict.value}: {remark.place.told(remark.text)}\n" for remark in judged(result))
    return to_toml(result.settings, result.places), remarks


def complaint(name: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_file(f"{name}.xml", environ={})
    return f"{caught.value}\n"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_converts_to_its_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    toml, remarks = converted(name)
    assert toml == (HERE / f"{name}.toml").read_text()
    assert remarks == (HERE / f"{name}.txt").read_text()
    assert tomllib.loads(toml) == read_foreign(f"{name}.xml", ENVIRON).settings


@pytest.mark.parametrize("name", ERRORS)
def test_a_mistake_is_told_with_its_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE / "errors")
    assert complaint(name) == (HERE / "errors" / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_server_takes_the_file_and_its_conversion_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    taken = load_file(f"{name}.xml", environ=ENVIRON)
    assert taken.with_origins({}) == load_text(converted(name)[0]).with_origins({})


def test_each_value_knows_the_line_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    settings = load_file("one-queue.xml", options={"server.data": "/tmp/x"})
    assert settings.origin("log.segment") == "one-queue.xml:6"
    assert settings.origin("queue.0.lease_period") == "one-queue.xml:18"
    assert settings.origin("server.data") == "option --data"
    assert settings.origin("server.sync") == "default"


# --- what the documents say of them ---------------------------------------------------------------------------------


def bodies(broker: Broker, queue: str) -> list[bytes]:
    return [message.body for message in broker.subscribe(queue, max_backlog=None).take()]


def test_getting_started_a_message_leaves_the_queue_when_it_is_sent() -> None:
    with Broker(HERE / "getting-started.xml") as broker:
        broker.publish("Work", b'{"id": 1}')
        broker.publish("WorkToDo", b'{"id": 2}')  # to the queue's own name: goes to its topic
        first = broker.subscribe("WorkToDo", max_backlog=2)
        assert [message.body for message in first.take()] == [b'{"id": 1}']  # MaxPerSubscriptionBacklog is 1
        first.close()
        assert bodies(broker, "WorkToDo") == [b'{"id": 2}']  # the first is gone, though nobody acknowledged it


def test_dead_letters_the_third_cancel_moves_a_job_to_the_failed_ones() -> None:
    with Broker(HERE / "dead-letters.xml") as broker:
        broker.publish("Jobs", b'{"id": 1}')
        worker = broker.subscribe("Jobs")
        for _ in range(3):
            [job] = worker.take()
            job.cancel()
        assert bodies(broker, "Jobs") == []
        assert bodies(broker, "FailedJobs") == [b'{ "message": {"id": 1}, "reason": "max_cancels" }']


def emptied(broker: Broker, queue: str) -> list[bytes]:
    """Everything of a queue that gives one message at a time."""
    subscription, found = broker.subscribe(queue), list[bytes]()
    while taken := subscription.take():
        found += [message.body for message in taken]
        for message in taken:
            message.ack()
    subscription.close()
    return found


def test_actions_every_module_does_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.actions")
    friday = datetime(2026, 7, 31, 23, tzinfo=UTC)
    with Broker(HERE / "actions.xml", clock=FakeClock(int(friday.timestamp()) * 1_000_000)) as broker:
        for number, important in ((1, 0), (2, 1), (3, 1)):
            job = f'{{"id": {number}, "important": {important}, "first": "Ann", "last": "Lee"}}'
            broker.publish("JobTopic", job, publisher="maker", sequence=number)
            broker.publish("Open", f'{{"id": {number}}}')
        assert broker.stats("Jobs")["ready"] == 3  # the action on deliveries leases nothing
        worker = broker.subscribe("Jobs", max_backlog=1, name="worker")
        for how in ("ack", "ack", "cancel"):
            [message] = worker.take()
            getattr(message, how)()
        assert emptied(broker, "Done") == [
            b'{"id": 2, "name": "Ann Lee", "number": 1}',
            b'{"id": 3, "name": "Ann Lee", "number": 2}',
        ]
        assert [record.json()["id"] for record in broker.sow("Open")] == [3]  # an acknowledgement deletes those below 3
        broker.publish("JobTopic", b'{"id": 4}')
        worker.close()
        broker.advance(7_200)
        assert emptied(broker, "Done") == []  # it is Saturday since an hour
        broker.clock.advance(21 * 3_600_000_000)
        broker.advance(3 * 3_600)
        assert emptied(broker, "Done") == [b'waiting: {"id": 4}']
    told = [record.getMessage() for record in caplog.records]
    assert told.count("action 2: maker published to JobTopic") == 2
    assert told.count("action 3: delivered to worker") == 4
    assert [text for text in told if text.startswith("action 6")] == [
        'action 6: closed: {"id": 1}',
        'action 6: closed: {"id": 2}',
    ]


@pytest.mark.parametrize(
    ("topic", "analytics", "risk"),
    [
        ("ORDERS", 1, 1),
        ("ORDERS_ANALYTICS", 1, 0),
        ("ORDERS_RISK", 0, 1),
        ("ORDERS_ANALYTICS_DIRECT", 1, 0),
        ("ORDERS_RISK_DIRECT", 0, 1),
    ],
)
def test_many_topics_each_row_of_the_table(topic: str, analytics: int, risk: int) -> None:
    with Broker(HERE / "many-topics.xml") as broker:
        below = {name: f"{name}_DIRECT" for name in ("ORDERS_ANALYTICS", "ORDERS_RISK")}.get(topic, topic)
        watch = broker.subscribe(below)
        broker.publish(topic, b"{}")
        assert [message.topic for message in watch.take()] == [below]
        assert [len(bodies(broker, "ORDERS_ANALYTICS")), len(bodies(broker, "ORDERS_RISK"))] == [analytics, risk]


def test_records_of_a_configuration() -> None:
    with Broker(HERE / "sow-topics.xml") as broker:
        broker.publish("orders", '{"customer": {"id": "c1"}, "id": 1, "n": 1}')
        broker.publish("orders", '{"customer": {"id": "c1"}, "id": 1, "n": 2}')
        broker.publish("pictures", b"\x89PNG", headers={"x-sow-key": "logo"})
        broker.publish("prices", '{"symbol": "A"}', expiration=60)
        assert [one.json()["n"] for one in broker.sow("orders")] == [2]
        assert [one.json()["n"] for one in broker.sow("to-ship")] == [1, 2]
        assert [one.key for one in broker.sow("pictures")] == ["logo"]
        broker.publish("halts", '{"symbol": "A"}')
        assert broker.sow("halts")[0].key == broker.sow("prices")[0].key, "one key domain, one key"
        broker.advance(61)
        assert not broker.sow("prices")
        broker.advance(86_400)
        assert not broker.sow("orders")
        assert not broker.sow("to-ship")


if __name__ == "__main__" and "--write" in sys.argv:
    import os

    os.chdir(HERE)
    for example in EXAMPLES:
        toml_text, remark_text = converted(example)
        Path(f"{example}.toml").write_text(toml_text)
        Path(f"{example}.txt").write_text(remark_text)
    os.chdir(HERE / "errors")
    for example in ERRORS:
        Path(f"{example}.txt").write_text(complaint(example))
