"""`penstock migrate`: from Penstock to Penstock, and from RabbitMQ where it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pytest

from conformance.test_management import Managed, Tool
from forked import penstock
from live_server import LiveServer
from rabbitmq_server import BESIDE, RabbitMQ
from waiting import eventually

pytestmark = pytest.mark.conformance

BOTH = ["penstock", pytest.param("rabbitmq", marks=BESIDE)]


class Ends(NamedTuple):
    """The broker that is taken over, and who takes it."""

    connect: Callable[[], pika.BlockingConnection]
    amqp: str
    http: str
    new: Managed
    folder: Path

    def migrate(self, *arguments: str, status: int = 0) -> Mapping[str, Any]:
        """What the command says."""
        made = penstock(
            "migrate", self.amqp, f"penstock://guest:guest@{self.new.ready['flight']}", "--old-http", self.http,
            "--state", str(self.folder / "state"), "--json", *arguments,
        )  # fmt: skip
        assert made.returncode == status, made.stdout + made.stderr
        return json.loads(made.stdout)

    def counts(self, *arguments: str, status: int = 0) -> Mapping[str, Mapping[str, Any]]:
        return {one["queue"]: one for one in self.migrate(*arguments, status=status)["queues"]}


@pytest.fixture(scope="module", params=BOTH)
def brokers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    """One of each for all tests, which have queues of their own."""
    folder = tmp_path_factory.mktemp("brokers")
    with ExitStack() as stack:
        new = Managed(folder / "new", flight=True)
        stack.enter_context(new)
        if request.param == "rabbitmq":
            found: RabbitMQ = request.getfixturevalue("rabbitmq")
            yield Ends(found.connect, found.url, f"http://127.0.0.1:{found.http}", new, folder)
            return
        old = stack.enter_context(Managed(folder / "old"))
        url = f"amqp://guest:guest@127.0.0.1:{old.port}"
        yield Ends(old.connect, url, f"http://{old.ready['http']}", new, folder)


@pytest.fixture
def ends(brokers: Ends, tmp_path: Path) -> Ends:
    """With a journal of its own."""
    return brokers._replace(folder=tmp_path)


def fill(ends: Ends, queue: str, numbers: range, **terms: Any) -> None:
    with ends.connect() as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, **terms)
        channel.exchange_declare("shop", "topic", durable=True)
        channel.queue_bind(queue, "shop", f"{queue}.#")
        channel.confirm_delivery()
        for i in numbers:
            headers = {"n": i, "deep": {"list": [1, "two", None, True]}, "CC": ["nobody"]}
            properties = pika.BasicProperties(
                "text/plain", headers=headers, delivery_mode=2, priority=3, correlation_id=f"c{i}", user_id="guest",
                timestamp=1_700_000_000 + i, type="order", app_id="test", message_id=str(i),
            )  # fmt: skip
            channel.basic_publish("shop", f"{queue}.new", b"%d" % i * (i % 50), properties)


def depth(connect: Callable[[], pika.BlockingConnection], queue: str) -> int:
    with connect() as connection:
        return connection.channel().queue_declare(queue, passive=True).method.message_count


def take(server: LiveServer, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
    """All of a queue."""
    channel, out = server.connect().channel(), list[tuple[pika.BasicProperties, bytes]]()
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return out
        out.append((properties, body))


def test_definitions_and_messages_come_and_the_old_broker_keeps_them(ends: Ends) -> None:
    fill(ends, "m1", range(300), arguments={"x-max-length": 1000})
    fill(ends, "m2", range(0))
    found = ends.counts("--queue", "m1", "--queue", "m2")
    assert {name: found["m1"][name] for name in ("old", "carried", "now", "new", "drained")} == {
        "old": 300, "carried": 300, "now": 300, "new": 300, "drained": 0,
    }  # fmt: skip
    assert found["m2"]["new"] == 0
    eventually(lambda: depth(ends.connect, "m1") == 300, "what was delivered to the command goes back")
    tool = Tool(ends.new)
    assert tool.get("queues/%2F/m1")["arguments"] == {"x-max-length": 1000}
    assert [one["routing_key"] for one in tool.get("exchanges/%2F/shop/bindings/source")]
    again = ends.counts("--queue", "m1")["m1"]
    assert (again["now"], again["carried"], again["new"]) == (0, 300, 300)
    fill(ends, "m1", range(300, 305), arguments={"x-max-length": 1000})
    assert ends.counts("--queue", "m1", "--no-definitions")["m1"]["now"] == 5
    came = take(ends.new, "m1")
    assert [body for _, body in came] == [b"%d" % i * (i % 50) for i in range(305)]
    first = came[7][0]
    assert first.headers == {
        "n": 7, "deep": {"list": [1, "two", None, True]}, "x-original-cc": ["nobody"], "x-original-exchange": "shop",
        "x-original-routing-key": "m1.new", "x-original-user-id": "guest",
    }  # fmt: skip
    assert (first.content_type, first.priority, first.correlation_id, first.timestamp, first.type, first.app_id) == (
        "text/plain", 3, "c7", 1_700_000_007, "order", "test",
    )  # fmt: skip


def test_a_quorum_queue_whose_messages_tell_how_often_they_were_given_comes_once(ends: Ends) -> None:
    fill(ends, "m8", range(20), arguments={"x-queue-type": "quorum"})
    with ends.connect() as connection:
        connection.channel().basic_publish("", "m8", b"bare", pika.BasicProperties(delivery_mode=2))
    eventually(lambda: depth(ends.connect, "m8") == 21)
    for now in (21, 0, 0):
        found = ends.counts("--queue", "m8")["m8"]
        assert (found["now"], found["carried"], found["new"]) == (now, 21, 21)
        eventually(lambda: depth(ends.connect, "m8") == 21, "what was delivered to the command goes back")
    drained = ends.counts("--queue", "m8", "--drain")["m8"]
    assert (drained["now"], drained["drained"], drained["old"], drained["new"]) == (0, 21, 0, 21)


def test_what_was_broken_off_goes_on(ends: Ends) -> None:
    """The journal says that more was sent than came, and of equal messages each counts."""
    fill(ends, "m3", range(40))
    fill(ends, "m3", range(40))
    ends.counts("--queue", "m3")
    lines = [json.loads(line) for line in (ends.folder / "state").read_bytes().splitlines()]
    sent = [line for line in lines if "sent" in line]
    assert sum(len(line["sent"]) for line in sent) == 80
    with (ends.folder / "state").open("ab") as journal:  # as one that was killed between its journal and its socket
        journal.write(json.dumps({**sent[-1], "sent": ["00" * 16, "11" * 16]}).encode() + b'\n{"queue": "torn')
    fill(ends, "m3", range(40, 45))
    found = ends.counts("--queue", "m3")["m3"]
    assert (found["now"], found["carried"], found["new"]) == (5, 85, 85)


def test_draining_takes_from_the_old_what_the_new_has(ends: Ends) -> None:
    fill(ends, "m4", range(50))
    assert ends.counts("--queue", "m4")["m4"]["now"] == 50
    fill(ends, "m4", range(50, 60))
    found = ends.counts("--queue", "m4", "--drain")["m4"]
    assert (found["now"], found["carried"], found["new"], found["drained"], found["old"]) == (10, 60, 60, 60, 0)
    fill(ends, "m4", range(5))  # as those that were drained: they are other messages
    found = ends.counts("--queue", "m4", "--drain")["m4"]
    assert (found["now"], found["carried"], found["new"], found["drained"], found["old"]) == (5, 65, 65, 5, 0)


def test_a_stream_comes_too(ends: Ends) -> None:
    fill(ends, "m5", range(60), arguments={"x-queue-type": "stream"})
    for now in (60, 0):
        found = ends.counts("--queue", "m5")["m5"]
        assert (found["now"], found["new"]) == (now, 60)


def test_what_somebody_else_holds_is_told(ends: Ends) -> None:
    fill(ends, "m6", range(10))
    with ends.connect() as holder:
        for _ in range(4):
            holder.channel().basic_get("m6")
        assert ends.counts("--queue", "m6")["m6"]["carried"] == 6
    eventually(lambda: depth(ends.connect, "m6") == 10)
    assert ends.counts("--queue", "m6")["m6"]["carried"] == 10


def test_what_cannot_be(ends: Ends, tmp_path: Path) -> None:
    def told(*arguments: str) -> str:
        made = penstock("migrate", *arguments, "--state", str(tmp_path / "s"))
        assert made.returncode != 0
        return made.stderr

    new = f"penstock://guest:guest@{ends.new.ready['flight']}"
    assert "amqp://user:password@host:port/vhost" in told("http://localhost", new)
    assert "no broker answers" in told("amqp://127.0.0.1:1", new, "--no-definitions", "--old-http", ends.http)
    assert "has no queue 'missing'" in told(ends.amqp, new, "--old-http", ends.http, "--queue", "missing")
    assert "management API" in told(ends.amqp, new, "--old-http", "http://127.0.0.1:1")
    (tmp_path / "s").write_text("something else\n")
    assert "is no journal" in told(ends.amqp, new, "--old-http", ends.http)


def test_a_queue_that_goes_with_its_last_consumer_stays_in_the_old_broker(ends: Ends) -> None:
    """The command is no consumer of it: its own end would take the queue, and all that waits there, with it."""
    fill(ends, "m9", range(250), auto_delete=True)
    for now in (250, 0):
        found = ends.counts("--queue", "m9")["m9"]
        assert (found["old"], found["now"], found["new"]) == (250, now, 250)
    fill(ends, "m9", range(250, 260), auto_delete=True)
    found = ends.counts("--queue", "m9", "--drain")["m9"]
    assert (found["old"], found["now"], found["drained"], found["new"]) == (0, 10, 260, 260)
