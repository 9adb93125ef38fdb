"""Queues that look back are declared at two servers, by clients or by settings: what both logs have is worked once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sites.house import Site, Sites
from waiting import eventually

EACH = 50

QUEUE = """
[[queue]]
name = "work"
recovery_point = "epoch"
"""


class Working(threading.Thread):
    """Works until the queue has been empty for a while."""

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self.site, self.given = site, list[bytes]()
        self.start()

    def run(self) -> None:
        with self.site.client() as client, client.consume("work", backlog=5) as consumer:
            while (message := consumer.take(timeout=5.0)) is not None:
                self.given.append(message.body)
                message.ack()


@pytest.mark.parametrize("how", ["clients", "settings"])
def test_what_two_sites_find_is_worked_once(tmp_path: Path, how: str) -> None:
    topic = '[[topic]]\nname = "work"\n'
    with Sites(tmp_path, lacks="ab", more=topic) as sites:
        sites.linked()
        bodies = {site.name: [f"{site.name}{n}".encode() for n in range(EACH)] for site in sites}
        for site in sites:
            with site.client() as client:
                for body in bodies[site.name]:
                    client.publish("work", body)
        eventually(lambda: all(one["messages"] == EACH for site in sites for one in site.get("/api/links")))
        if how == "settings":
            for site in sites:
                site.stop()
                site.settings.write_text(site.settings.read_text() + QUEUE)
            for site in sites:
                site.start()
        for site in sites if how == "clients" else ():
            with site.client() as client:
                client.declare("work", recovery_point="epoch")
        workers = [Working(site) for site in sites]
        for one in workers:
            one.join(60)
        assert sorted(one for worker in workers for one in worker.given) == sorted(
            body for some in bodies.values() for body in some
        )
        sites.empty()
