"""Confirms that wait for another site, and what becomes of them when it does not answer."""

from __future__ import annotations

import threading
from pathlib import Path

from fault_proxy import Fault, Network
from sites.house import Site, Sites, publish, work
from sites.test_operating import out
from waiting import eventually


class Publishing(threading.Thread):
    """Publishes one message over AMQP and waits for its confirm."""

    def __init__(self, site: Site, body: bytes) -> None:
        super().__init__(daemon=True)
        self.site, self.body, self.confirmed = site, body, False
        self.start()

    def run(self) -> None:
        publish(self.site, self.body)
        self.confirmed = True


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
        waits.join(30)
        assert waits.confirmed


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
        held.join(20)
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
