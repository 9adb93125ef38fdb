"""Connections, channels and health checks."""

from __future__ import annotations

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from http_lab import Http


def ignore(*_: object) -> None:
    """A message came."""


def listen(connection: pika.BlockingConnection) -> None:
    """Take what comes until it is closed; deliveries may come first."""
    while connection.is_open:
        connection.process_data_events(time_limit=5)


def test_connections_and_channels_are_shown_and_closed(http: Http) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("q", ignore, consumer_tag="me")
    http.publish("q", "x")
    [shown] = http.get("connections")
    assert " -> 127.0.0.1:" in shown["name"]
    assert (shown["user"], shown["vhost"], shown["state"], shown["channels"]) == ("guest", "/", "running", 1)
    assert (shown["protocol"], shown["auth_mechanism"]) == ("AMQP 0-9-1", "PLAIN")
    assert shown["client_properties"]["product"].startswith("Pika")
    name = shown["name"]
    [one] = http.get("channels")
    assert one["name"] == f"{name} (1)"
    assert (one["confirm"], one["prefetch_count"], one["consumer_count"]) == (True, 7, 1)
    assert http.get(f"channels/{name} (1)")["connection_details"]["name"] == name
    assert http.get(f"connections/{name}/channels") == [one]
    assert http.get("vhosts/%2F/connections")[0]["name"] == name
    assert http.get("vhosts/shop/connections") == []
    assert http.get("connections/username/guest")[0]["name"] == name
    assert http.get("consumers")[0]["channel_details"]["connection_name"] == name
    answer = http.ask("DELETE", f"connections/{name}", headers={"X-Reason": "enough"})
    assert answer.status_code == 204
    with pytest.raises(ConnectionClosedByBroker, match="enough") as closed:
        listen(connection)
    assert closed.value.reply_code == 320
    http.do("DELETE", f"connections/{name}", status=404)
    assert http.get("queues/%2F/q")["messages_ready"] == 1


def test_a_channel_tells_of_its_open_transaction(http: Http) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    channel = connection.channel()
    shown = ("transactional", "messages_uncommitted", "acks_uncommitted")
    http.publish("q", "x")
    assert [http.get("channels")[0][name] for name in shown] == [False, 0, 0]
    channel.tx_select()
    method, _, _ = channel.basic_get("q")
    assert method is not None
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", "q", b"one")
    channel.basic_publish("", "q", b"two")
    channel.queue_declare("q", passive=True)  # answered once what came before it has been read
    assert [http.get("channels")[0][name] for name in shown] == [True, 2, 1]
    channel.tx_commit()
    assert [http.get("channels")[0][name] for name in shown] == [True, 0, 0]
    connection.close()


def test_a_connection_tells_its_name_and_its_bytes(http: Http) -> None:
    plain = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    [shown] = http.get("connections")
    assert "user_provided_name" not in shown
    plain.close()
    properties = {"connection_name": "billing"}
    parameters = pika.URLParameters(http.broker.amqp_url)
    parameters.client_properties = properties
    named = pika.BlockingConnection(parameters)
    channel = named.channel()
    [before] = [one for one in http.get("connections") if one.get("user_provided_name") == "billing"]
    assert before["recv_cnt"] > 0
    assert before["send_cnt"] > 0
    assert before["send_pend"] == 0
    channel.basic_publish("", "q", bytes(100_000))
    channel.basic_get("q")
    [after] = [one for one in http.get("connections") if one.get("user_provided_name") == "billing"]
    for name, count in (("recv_oct", "recv_cnt"), ("send_oct", "send_cnt")):
        assert 100_000 < after[name] - before[name] < 101_000
        assert after[count] > before[count]
        assert after[f"{name}_details"]["rate"] >= 0.0
    named.close()


def test_others_see_and_close_their_own(http: Http) -> None:
    http.do("PUT", "users/ann", {"password": "ann", "tags": "management"}, 201)
    connection = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    ann = Http(http.broker, "ann")
    assert ann.get("connections") == []
    name = http.get("connections")[0]["name"]
    ann.do("GET", f"connections/{name}", status=404)
    ann.do("DELETE", f"connections/{name}", status=404)
    ann.do("DELETE", "connections/username/guest", status=404)
    http.do("PUT", "users/ann", {"tags": "monitoring"})
    assert ann.get("connections")[0]["name"] == name
    ann.do("DELETE", f"connections/{name}", status=404)
    http.do("DELETE", "connections/username/guest")
    with pytest.raises(ConnectionClosedByBroker):
        connection.process_data_events(time_limit=5)


def test_health_checks(http: Http) -> None:
    for check in (
        "alarms", "local-alarms", "virtual-hosts", "is-in-service", "ready-to-serve-clients",
        "below-node-connection-limit", "node-is-quorum-critical", "certificate-expiration/1/months",
    ):  # fmt: skip
        assert http.get(f"health/checks/{check}") == {"status": "ok"}, check
    port = int(http.broker.amqp_url.rsplit(":", 1)[1].split("/")[0])
    assert http.get(f"health/checks/port-listener/{port}") == {"status": "ok", "port": port}
    assert http.get("health/checks/protocol-listener/amqp091")["status"] == "ok"
    failed = http.do("GET", "health/checks/port-listener/1", status=503)
    assert (failed["status"], failed["missing"]) == ("failed", 1)
    assert http.do("GET", "health/checks/protocol-listener/mqtt", status=503)["missing"] == "mqtt"
    assert "port is 'x'" in http.refused("GET", "health/checks/port-listener/x")


def test_the_health_check_of_older_releases(http: Http) -> None:
    """Many probes of containers and monitors still ask for it."""
    [node] = http.get("nodes")
    assert http.get("healthchecks/node") == http.get(f"healthchecks/node/{node['name']}") == {"status": "ok"}
    http.do("GET", "healthchecks/node/another", status=404)


def test_aliveness(http: Http) -> None:
    assert http.get("aliveness-test/%2F") == {"status": "ok"}
    assert http.get("aliveness-test/%2F") == {"status": "ok"}
    assert http.get("queues/%2F/aliveness-test")["messages"] == 0
    http.do("GET", "aliveness-test/nowhere", status=404)
