"""A site that was away: what it owned may be another's by now, so it hears first and delivers then."""

from __future__ import annotations

import threading
from pathlib import Path

from fault_proxy import Fault, Network
from sites.house import Site, Sites, out, publish, readiness, work, worked_for_one_away
from waiting import eventually


class Working(threading.Thread):
    """Works one message."""

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self.site, self.given = site, list[bytes]()
        self.start()

    def run(self) -> None:
        self.given += work(self.site, 1)


def test_it_delivers_when_it_has_heard_what_happened_meanwhile(tmp_path: Path) -> None:
    with Network() as network, Sites(tmp_path, network=network, link='level_within = "60s"') as sites:
        b = sites["b"]
        worked_for_one_away(sites)
        sites.ways["a", "b"].fault(Fault.CUT)  # a cannot tell it
        b.start()
        worker = Working(b)
        publish(b, b"three")
        eventually(lambda: b.queue()["consumers"] == 1)
        assert b.queue()["leased"] == 0
        with b.client() as client:
            assert "behind" in [one["code"] for one in client.explain("work")["reasons"]]
        assert readiness(b) == (503, {"ready": False, "behind": 1})
        assert out(b)["awaited"]
        sites.ways["a", "b"].heal()
        worker.join(60)
        assert worker.given == [b"three"], "what was worked meanwhile is not worked again"
        assert readiness(b) == (200, {"ready": True})
        sites.empty()
        assert [one.queue()["double"] for one in sites] == [0, 0]


def test_it_waits_no_longer_than_the_settings_say(tmp_path: Path) -> None:
    with Sites(tmp_path, link='level_within = "500ms"') as sites:
        a, b = sites["a"], sites["b"]
        sites.linked()
        publish(b, b"one")
        b.kill()
        a.kill()
        b.start()
        assert work(b, 1) == [b"one"]
        b.hears("site 'a' has not told in 0.5 s")
        assert readiness(b)[0] == 200


def test_a_site_that_was_never_met_and_one_whose_link_is_paused_have_nothing_to_tell(tmp_path: Path) -> None:
    with Sites(tmp_path, link='level_within = "60s"') as sites:
        a, b = sites["a"], sites["b"]
        assert readiness(b)[0] == 200
        sites.linked()
        publish(b, b"one")
        with b.client() as client:
            client.pause_link("a")
        a.kill()
        b.stop()
        b.start()
        assert readiness(b) == (200, {"ready": True})
        assert work(b, 1) == [b"one"]
