"""The management paths of real servers, asked with nothing but Python's own library, as RabbitMQ's tool asks them."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from live_server import LiveServer
from waiting import eventually, wait_for

pytestmark = pytest.mark.usefixtures("as_the_files_say")


class Tool:
    """One user's requests to one server."""

    def __init__(self, server: LiveServer, user: str = "guest", password: str = "guest") -> None:
        self._base = f"http://{server.ready['http']}/api/"
        self._login = base64.b64encode(f"{user}:{password}".encode()).decode()

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and value."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Basic {self._login}", "content-type": "application/json"}
        request = urllib.request.Request(self._base + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                content = answer.read()
                return answer.status, json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def get(self, path: str) -> Any:
        status, value = self.ask("GET", path)
        assert status == 200, value
        return value

    def publish(self, key: str, text: str, exchange: str = "amq.default") -> tuple[int, Any]:
        body = {"properties": {"delivery_mode": 2}, "routing_key": key, "payload": text, "payload_encoding": "string"}
        return self.ask("POST", f"exchanges/%2F/{exchange}/publish", body)

    def take(self, queue: str, mode: str, count: int = 10) -> list[tuple[str, bool]]:
        body = {"count": str(count), "ackmode": mode, "encoding": "auto", "truncate": 50000}
        status, value = self.ask("POST", f"queues/%2F/{queue}/get", body)
        assert status == 200, value
        return [(one["payload"], one["redelivered"]) for one in value]


class Managed(LiveServer):
    """With its HTTP door."""

    http = "127.0.0.1:0"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Managed, Managed]]:
    with ExitStack() as stack:
        one, two = (stack.enter_context(Managed(tmp_path / name)) for name in ("one", "two"))
        yield one, two


def test_flows_of_a_tool(servers: tuple[Managed, Managed]) -> None:
    server, other = servers
    tool = Tool(server)
    assert Tool(server, password="wrong").ask("GET", "whoami")[0] == 401
    assert tool.ask("PUT", "queues/%2F/jobs", {"durable": "true", "arguments": {}})[0] == 201
    assert tool.ask("PUT", "exchanges/%2F/news", {"type": "topic"})[0] == 201
    assert tool.ask("POST", "bindings/%2F/e/news/q/jobs", {"routing_key": "eu.#"})[0] == 201
    for text in ("a", "b", "c", "d"):
        assert tool.publish("eu.x", text, "news") == (200, {"routed": True})
    assert tool.publish("us.x", "e", "news") == (200, {"routed": False})

    assert tool.take("jobs", "ack_requeue_true", 1) == [("a", False)]
    assert tool.take("jobs", "reject_requeue_true", 1) == [("a", True)]
    assert tool.take("jobs", "reject_requeue_false", 1) == [("a", True)]
    assert tool.take("jobs", "ack_requeue_false", 1) == [("b", False)]
    server.kill()
    server.start()
    tool = Tool(server)
    assert tool.get("queues/%2F/jobs")["messages"] == 2, "what was answered is on disk"

    limit = {"pattern": "^jobs$", "definition": {"max-length": 2, "overflow": "reject-publish"}, "apply-to": "queues"}
    assert tool.ask("PUT", "policies/%2F/cap", limit)[0] == 201
    assert tool.get("queues/%2F/jobs")["effective_policy_definition"] == limit["definition"]
    status, refused = tool.publish("jobs", "f")
    assert status == 400
    assert "max_length" in refused["reason"]
    assert "2" in refused["reason"]

    assert tool.ask("PUT", "vhosts/late", {"description": "later"})[0] == 201
    assert tool.ask("PUT", "users/ann", {"password": "ann", "tags": "management"})[0] == 201
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert tool.ask("PUT", "permissions/late/ann", everything)[0] == 201
    assert tool.ask("PUT", "queues/late/own", {"arguments": {"x-message-ttl": 60000}})[0] == 201
    server.kill()
    server.start()
    tool = Tool(server)
    later = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct"}}
    assert tool.ask("PUT", "exchanges/%2F/later", later)[0] == 201
    exported = tool.get("definitions")
    assert "amq.delayed.later" not in {one["name"] for one in exported["queues"]}, "it comes with its exchange"
    taking = Tool(other)
    assert taking.ask("POST", "definitions", exported) == (204, None)
    assert taking.get("definitions") == exported
    assert [one["name"] for one in Tool(other, "ann", "ann").get("queues/late")] == ["own"]
    assert Tool(other, "ann", "ann").ask("PUT", "queues/%2F/mine", {})[0] == 401


def test_an_operator_closes_a_connection(servers: tuple[Managed, Managed]) -> None:
    from pika.exceptions import ConnectionClosedByBroker

    server, _ = servers
    tool = Tool(server)
    connection = server.connect()
    eventually(lambda: len(tool.get("connections")) == 1, "those of former tests are there")
    [shown] = tool.get("connections")
    name = shown["name"].replace(" ", "%20").replace(">", "%3E")
    assert tool.ask("DELETE", f"connections/{name}") == (204, None)
    with pytest.raises(ConnectionClosedByBroker) as closed:
        connection.process_data_events(time_limit=60)
    assert closed.value.reply_code == 320
    assert tool.get("health/checks/alarms") == {"status": "ok"}
    assert tool.get("aliveness-test/%2F") == {"status": "ok"}


def test_traces_say_who_publishes_and_who_is_sent_it(servers: tuple[Managed, Managed]) -> None:
    """Many clients at once, a transaction, basic.get and consumers; over AMQP doors as well."""
    server, _ = servers
    tool = Tool(server)
    watch = server.connect().channel()
    watch.queue_declare("seen", durable=True)
    watch.queue_bind("seen", "amq.rabbitmq.trace", "#")
    watch.queue_declare("jobs", durable=True)
    assert tool.ask("PUT", "vhosts/%2F", {"tracing": True})[0] == 204
    senders = [server.connect().channel(number) for number in (3, 4, 5)]
    for at, sender in enumerate(senders):
        sender.basic_publish("", "jobs", b"%d" % at)
    senders[0].tx_select()
    senders[0].basic_publish("", "jobs", b"in a transaction")
    senders[0].tx_commit()
    seen: list[tuple[str, dict[str, Any], bytes]] = []
    watch.basic_consume("seen", lambda _c, m, p, body: seen.append((m.routing_key, p.headers, body)), auto_ack=True)
    wait_for(watch, lambda: len(seen) == 4)
    assert {(body, headers["channel"]) for _, headers, body in seen} == {
        (b"0", 3), (b"1", 4), (b"2", 5), (b"in a transaction", 3)
    }  # fmt: skip
    assert all(key == "publish." and headers["user"] == "guest" for key, headers, _ in seen)
    assert len({headers["connection"] for _, headers, _ in seen}) == 3
    seen.clear()
    assert senders[1].basic_get("jobs", auto_ack=True)[2]
    senders[2].basic_consume("jobs", lambda *_: None, auto_ack=True)
    wait_for(watch, lambda: len(seen) == 4)
    assert [(key, headers["channel"]) for key, headers, _ in seen] == [("deliver.jobs", 4), *[("deliver.jobs", 5)] * 3]
