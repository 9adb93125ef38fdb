"""Queues that look back are declared at two servers, by clients or by settings: what both logs have is worked once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sites.house import Site, Sites
from waiting import Patience, eventually

EACH = 15

QUEUE = """
[[queue]]
name = "work"
recovery_point = "epoch"
"""


def work_until(site: Site, given: list[bytes], count: int) -> None:
    """Work at a site what comes there, until so many were given at all sites."""
    patience = Patience(60)
    with site.client() as client, client.consume("work", backlog=5) as consumer:
        while len(given) < count and not patience.is_over():
            if (message := consumer.take(timeout=0.1)) is not None:
                given.append(message.body)
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
        given, all_of_them = list[bytes](), [body for some in bodies.values() for body in some]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda site: work_until(site, given, len(all_of_them)), sites))
        assert sorted(given) == sorted(all_of_them)
        sites.empty()  # what came twice would be there
