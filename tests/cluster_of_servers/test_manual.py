"""A leader and a standby without etcd: a person says who leads, and is told before what it costs."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path

import forked
from cluster_of_servers.house import Cluster, Publisher, Server, drain
from cluster_of_servers.test_commands import Watched
from cluster_of_servers.test_takeover import publisher_on
from waiting import eventually

SECTION = 'lease = "1s"\nack_timeout = "1s"\nmin_in_sync = 1'


def pair(folder: Path, members: int = 2) -> Cluster:
    return Cluster(folder, members, registry="manual", section=SECTION, flight=True)


def as_the_page_has_it(cluster: Cluster) -> Cluster:
    """The settings of the recipe, with folders and ports of this machine; and a queue."""
    page = (Path(__file__).parents[2] / "docs/cluster-of-servers.md").read_text()
    [recipe] = re.findall(r"## One standby, and a person.*?```toml\n(.*?)```", page, re.DOTALL)
    for n, server in enumerate(cluster.servers):
        other = cluster.servers[1 - n]
        server.name = f"penstock-{n + 1}"
        more = f'http = "127.0.0.1:{server.http}"\nflight = "127.0.0.1:{server.flight}"\n[cluster]\nlease = "1s"'
        changes = {
            '"penstock-1"': f'"{server.name}"', "/var/lib/penstock": str(server.folder / "data"),
            "0.0.0.0:5672": f"127.0.0.1:{server.amqp}", "0.0.0.0:8817": f"127.0.0.1:{server.stream}",
            "node-1:8817": f"127.0.0.1:{server.stream}", "node-2:8817": f"127.0.0.1:{other.stream}",
            "[cluster]": more,
        }  # fmt: skip
        text = recipe
        for old, new in changes.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        server.settings.write_text(f'{text}\n[[queue]]\nname = "work"\n')
    return cluster


def promote(server: Server, *more: str) -> tuple[int, str]:
    done = forked.penstock("cluster", "promote", server.name, str(server.settings), *more, seconds=60)
    return done.returncode, done.stdout + done.stderr


def test_a_standby_leads_when_a_person_says_so_and_the_leader_comes_back_without_its_tail(tmp_path: Path) -> None:
    """Not before: nobody takes over because of silence."""
    with as_the_page_has_it(pair(tmp_path)) as cluster:
        first = cluster.leader()
        cluster.level()
        [standby] = cluster.followers()
        publisher = Publisher(cluster)
        publisher.more(20)
        cluster.level()  # with `min_in_sync = 1` one that was late is not waited for, and may not lead
        first.kill()
        publisher.publish(time.monotonic() + 2.0)
        assert not standby.serves
        status, said = promote(standby)
        assert status == 0, said
        assert cluster.leader() is standby
        publisher.more(20)
        first.start()
        cluster.level()
        found = drain(standby)
        assert publisher.confirmed <= set(found)
        assert len(found) == len(set(found))
        assert cluster.status()["term"] == 2
        assert json.loads(first.run("cluster", "status", "--json"))["term"] == 2


def stands(server: Server) -> tuple[str, str]:
    """Status and reason, as anybody is told."""
    told = server.get("/healthz")[1]
    return told["status"], told.get("reason", "")


def test_confirms_wait_for_a_standby_that_is_away_until_a_person_goes_on_without_it(tmp_path: Path) -> None:
    """One that was stopped in order is not waited for: it has said so itself, and is asked for what it lacks."""
    with pair(tmp_path) as cluster:
        leader = cluster.leader()
        cluster.level()
        [standby] = cluster.followers()
        publisher = Publisher(cluster)
        assert standby.stop() == 0
        eventually(lambda: cluster.in_sync() == {leader.name})
        publisher.more(20)
        status, said = promote(standby)
        assert status == 1
        assert "say --lose " in said
        standby.start()
        cluster.level()
        standby.kill()
        watched = Watched(cluster)
        try:
            eventually(lambda: "confirms wait for p2" in leader.said())
            assert cluster.in_sync() == {"p1", "p2"}
            waits = "degraded", "confirms wait for a member in sync that does not answer"
            eventually(lambda: stands(leader) == waits, lambda: str(leader.get("/healthz")))
            assert promote(leader)[0] == 0
            eventually(lambda: leader.serves and cluster.in_sync() == {"p1"})
            before = len(publisher.confirmed)
            publisher = publisher_on(cluster, publisher)

            def confirmed() -> bool:
                publisher.publish(time.monotonic() + 0.3)
                return len(publisher.confirmed) > before

            eventually(confirmed)
        finally:
            watched.end()
        standby.start()
        cluster.level()
        assert publisher.confirmed <= set(drain(leader))


def two_leaders(server: Server) -> set[str]:
    """Who leads, where a member's metrics tell of two."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    except OSError:  # it has just ended
        return set()
    if "penstock_cluster_two_leaders 1.0" not in text:
        return set()
    return set(re.findall(r'penstock_cluster_claimed_term\{member="(\w+)"\}', text))


def test_two_leaders_stop_and_a_person_says_which_is_set_aside(tmp_path: Path) -> None:
    """What the other one confirmed is cut, kept, and can be published again."""
    with pair(tmp_path) as cluster:
        first = cluster.leader()
        cluster.level()
        [second] = cluster.followers()
        publisher = Publisher(cluster)
        first.kill()
        assert promote(second)[0] == 0
        assert cluster.leader() is second
        publisher.more(20)
        second.kill()
        assert promote(first)[0] == 0
        first.start()
        assert cluster.leader() is first
        apart = Publisher(cluster)
        apart.count = 10_000
        apart.more(20)
        watched = Watched(cluster)
        try:
            second.start()
            eventually(lambda: "TWO LEADERS" in first.said() and "TWO LEADERS" in second.said())
            eventually(lambda: not first.serves and not second.serves)
            for one in (first, second):
                eventually(lambda one=one: two_leaders(one) == {"p1", "p2"}, f"{one.name} does not tell of two")
            status, said = promote(first)
            assert status == 1
            assert "it would be set aside" in said
            assert promote(first, "--lose", said.rpartition("--lose ")[2].split()[0])[0] == 0
            eventually(lambda: first.serves)
            cluster.level()
            eventually(lambda: two_leaders(first) == set(), "it tells of two")  # its server hears of it later
        finally:
            watched.end()
        cut = json.loads(second.run("cluster", "lost", "--json"))
        assert sum(one["messages"] for one in cut) >= len(publisher.confirmed) > 0
        again = ("publish", "--from-cut", str(second.settings), "--url", cluster.url, "--json", "--yes")
        assert json.loads(forked.penstock(*again, seconds=60).stdout)["published"] >= len(publisher.confirmed)
        found = drain(first)
        assert publisher.confirmed | apart.confirmed <= set(found)
        assert len(found) == len(set(found))


def test_the_lead_is_handed_over_by_a_person_and_no_stop_hands_it_over(tmp_path: Path) -> None:
    with pair(tmp_path, 3) as cluster:
        first = cluster.leader()
        cluster.level()
        watched = Watched(cluster)
        try:
            done = forked.penstock("cluster", "switchover", "p2", "--url", cluster.url, seconds=60)
            assert done.returncode == 0, done.stderr
            second = cluster.servers[1]
            eventually(lambda: second.serves)
            cluster.level()
        finally:
            watched.end()
        publisher = Publisher(cluster)
        publisher.more(20)
        assert second.stop() == 0
        second.start()
        eventually(lambda: second.serves)
        assert not first.serves
        assert publisher.confirmed <= set(drain(second))
