"""A server at an IPv6 address: what it says where it is can be called, and it says who calls in the same form."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.request import Request, urlopen

import pika
import pytest

import penstock
from live_server import LiveServer
from penstock.units import format_address, parted_address
from waiting import eventually


class OfIPv6(LiveServer):
    http = flight = "[::1]:0"

    def start(self, amqp: str = "[::1]:0") -> None:
        super().start(amqp)


def there_is_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not there_is_ipv6(), reason="no IPv6 on this machine")
def test_every_door_is_where_it_says_and_names_who_is_there(tmp_path: Path) -> None:
    with OfIPv6(tmp_path, flight=True) as server:
        assert {parted_address(server.ready[door])[0] for door in ("amqp", "http", "flight")} == {"::1"}
        eventually(lambda: f"amqp {server.ready['amqp']}" in server.output(), "it says where it is")

        def asked(path: str) -> list[dict[str, object]]:
            request = Request(
                f"http://{server.ready['http']}/api/{path}", headers={"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
            )
            with urlopen(request, timeout=30) as answer:
                return list(json.loads(answer.read()))

        with penstock.connect(f"penstock://{server.ready['flight']}") as client:
            client.declare("jobs")
            client.publish("jobs", b"work")
            consumer = client.consume("jobs")
            messages = iter(consumer)
            assert next(messages).body == b"work"
            [details] = [one["channel_details"] for one in asked("consumers")]
            assert isinstance(details, dict)
            assert (details["peer_host"], details["user"]) == ("::1", "guest")
            assert details["connection_name"] == format_address("::1", details["peer_port"])
            consumer.close()
        connection = pika.BlockingConnection(pika.ConnectionParameters("::1", server.port))
        [told] = asked("connections")
        assert (told["host"], told["port"], told["peer_host"]) == ("::1", server.port, "::1")
        assert told["name"] == f"[::1]:{told['peer_port']} -> {server.ready['amqp']}"
        connection.close()
