"""Confirms that wait for another site, and what becomes of them when it does not answer."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import orjson

from cluster_of_servers.house import GUEST
from fault_proxy import Fault, Network
from sites.house import Site, Sites, out, publish, work
from waiting import eventually

Door = Callable[[Site, bytes], object]


class Publishing(threading.Thread):
    """Publishes one message and waits for its confirm."""

    def __init__(self, site: Site, body: bytes, door: Door = publish) -> None:
        super().__init__(daemon=True)
        self.site, self.body, self.confirmed, self.door = site, body, False, door
        self.start()

    def run(self) -> None:
        self.door(self.site, self.body)
        self.confirmed = True


def in_a_transaction(site: Site, body: bytes) -> None:
    channel = site.connect().channel()
    channel.tx_select()
    channel.basic_publish("", "work", body)
    channel.tx_commit()


def over_http(site: Site, body: bytes) -> None:
    words = {"routing_key": "work", "payload": body.decode(), "payload_encoding": "string", "properties": {}}
    url = f"http://{site.ready['http']}/api/exchanges/%2F/amq.default/publish"
    headers = GUEST | {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, orjson.dumps(words), headers), timeout=60) as answer:
        assert orjson.loads(answer.read()) == {"routed": True}


def with_the_client(site: Site, body: bytes) -> None:
    with site.client() as client:
        client.publish("work", body)


def in_a_transaction_of_the_client(site: Site, body: bytes) -> None:
    with site.client() as client, client.transaction() as transaction:
        transaction.publish("work", body)


DOORS: dict[str, Door] = {
    "basic.publish": publish,
    "tx.commit": in_a_transaction,
    "HTTP": over_http,
    "Flight": with_the_client,
    "Flight's transaction": in_a_transaction_of_the_client,
}
"""Whatever answers a publish."""


def test_a_confirm_waits_for_a_site_whose_link_is_synchronous_and_a_delivery_does_not(tmp_path: Path) -> None:
    with Network() as network, Sites(tmp_path, network=network, link="sync = true") as sites:
        a = sites["a"]
        sites.linked()
        publish(a, b"both")
        assert sites["b"].queue()["foreign"] == 1  # before the confirm
        sites.ways["a", "b"].fault(Fault.SILENT)
        waits = Publishing(a, b"held")
        assert work(a, 2) == [b"both", b"held"]
        assert not waits.confirmed
        sites.ways["a", "b"].heal()
        waits.join(60)
        assert waits.confirmed


def test_every_answer_to_a_publish_waits_and_nothing_else_does(tmp_path: Path) -> None:
    with Network() as network, Sites(tmp_path, network=network, link="sync = true") as sites:
        a = sites["a"]
        sites.linked()
        sites.ways["a", "b"].fault(Fault.SILENT)
        waiting = {name: Publishing(a, name.encode(), door) for name, door in DOORS.items()}
        eventually(lambda: a.queue()["ready"] == len(DOORS))
        channel = a.connect().channel()
        channel.queue_declare("another", durable=True)
        channel.tx_select()
        method, _, _ = channel.basic_get("work")
        channel.basic_ack(method.delivery_tag)
        channel.tx_commit()  # an ack alone
        with a.client() as client:
            for message in client.consume("work"):
                message.ack()
                break
            client.purge("another")
        assert [name for name, one in waiting.items() if one.confirmed] == []
        sites.ways["a", "b"].heal()
        for one in waiting.values():
            one.join(60)
        assert [name for name, one in waiting.items() if not one.confirmed] == []


def test_flight_waits_as_well(tmp_path: Path) -> None:
    with Network() as network, Sites(tmp_path, network=network, link="sync = true") as sites:
        sites.linked()
        with sites["a"].client() as client:
            client.publish("work", b"one")
            assert sites["b"].queue()["foreign"] == 1


def test_a_link_that_owes_for_too_long_is_downgraded_and_upgraded_when_it_has_come_after(tmp_path: Path) -> None:
    link = 'sync = true\ndowngrade_after = "1s"'
    with Network() as network, Sites(tmp_path, network=network, link=link) as sites:
        a = sites["a"]
        sites.linked()
        sites.ways["a", "b"].fault(Fault.CUT)
        held = Publishing(a, b"held")
        held.join(60)
        assert held.confirmed
        assert out(a)["downgraded"]
        publish(a, b"at once")
        sites.ways["a", "b"].heal()
        eventually(lambda: not out(a)["downgraded"])
        assert sites["b"].queue()["foreign"] == 2


def test_nobody_waits_for_a_paused_link(tmp_path: Path) -> None:
    with Sites(tmp_path, link="sync = true") as sites:
        a = sites["a"]
        sites.linked()
        with a.client() as client:
            client.pause_link("b")
        publish(a, b"one")
        assert sites["b"].queue()["foreign"] == 0
