"""One end of a link is a cluster of servers: links go on with whoever leads, and nothing is lost or worked twice."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from choices import for_conformance
from cluster_of_servers.house import Cluster, Publisher, drain
from etcd_process import running_etcd
from ports import free_ports
from sites.house import LINK, QUEUE, Site, publish
from waiting import eventually


class Worker(threading.Thread):
    """Works whatever it is given, at a site that stays."""

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self.site, self.given, self.over = site, list[bytes](), threading.Event()

    def run(self) -> None:
        with self.site.client() as client, client.consume("work", backlog=50) as consumer:
            while not self.over.is_set():
                message = consumer.take(timeout=0.1)
                if message is not None:
                    self.given.append(message.body)
                    message.ack()

    def end(self) -> list[bytes]:
        self.over.set()
        self.join(60)
        assert not self.is_alive()
        return self.given


def test_a_link_goes_on_at_whoever_leads_and_nothing_is_lost_or_worked_twice(tmp_path: Path) -> None:
    taken_over(tmp_path, "")


@pytest.mark.conformance
@for_conformance("links do not see the register")
def test_the_same_where_etcd_says_who_leads(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd") as host:
        taken_over(tmp_path, f"etcd://{host}/sites")


def taken_over(tmp_path: Path, registry: str) -> None:
    """A cluster of two, linked to a site, whose leader dies while both publish and work."""
    [port] = free_ports(1)
    b = Site(tmp_path / "b", "b", port)
    topics = '{ pattern = "work" }'
    to_b = LINK.format(name="b", port=port, topics=topics, settings="")
    section = 'name = "east"\nlease = "1s"\nack_timeout = "1s"\nmin_in_sync = 1'
    with Cluster(tmp_path, 2, section=section, more=to_b, flight=True, registry=registry) as cluster:
        to_them = LINK.format(name="east", port=0, topics=topics, settings="")
        addresses = ", ".join(f'"penstock://127.0.0.1:{one.flight}"' for one in cluster.servers)
        to_them = to_them.replace('"penstock://127.0.0.1:0"', addresses)
        b.folder.mkdir()
        b.settings.write_text(f'[server]\nname = "b"\n{QUEUE.format(settings="")}{to_them}')
        with b:
            first = cluster.leader()
            cluster.level()
            eventually(lambda: all_up(b), lambda: f"{b.get('/api/links')}")
            publish(b, *(b"b%05d" % number for number in range(40)))
            worker = Worker(b)
            worker.start()
            publisher = Publisher(cluster)
            publisher.more(20)
            eventually(lambda: any(not body.startswith(b"b") for body in worker.given), "none came to b")
            cluster.level()  # with `min_in_sync = 1` one that was late is not waited for, and may not lead
            first.kill()
            publisher.more(20)
            second = cluster.leader()
            assert second is not first
            first.start()
            given = worker.end()
            publish(b, *(b"b%05d" % number for number in range(40, 80)))
            publisher.more(20)
            rest = drain(second, elsewhere=b.waiting)
            confirmed = publisher.confirmed | {b"b%05d" % number for number in range(80)}
            counts = Counter([*given, *rest])
            assert confirmed - counts.keys() == set()
            assert {body: count for body, count in counts.items() if count > 1} == {}
            assert any(not body.startswith(b"b") for body in given), "some went from the cluster to b"
            assert any(body.startswith(b"b") for body in rest), "some went from b to the cluster"
            assert b.queue()["double"] == 0


def all_up(site: Site) -> bool:
    links = site.get("/api/links")
    return len(links) == 2 and all(one["state"] == "up" for one in links)
