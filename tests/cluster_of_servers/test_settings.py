"""Settings files that differ: what cannot be applied is told while a member follows, and left out where it leads."""

from __future__ import annotations

from pathlib import Path

import pika

from cluster_of_servers.house import Cluster, Publisher, drain
from penstock.cli.checkup import taking_over
from penstock.config.load import load_file
from waiting import eventually

REFUSED = 'last_value_key = "/k"\n[[binding]]\nsource = "nowhere"\ndestination = "work"\n[[queue]]\nname = "more"'


def test_a_file_that_cannot_be_applied_is_told_by_a_follower_and_keeps_nobody_from_leading(tmp_path: Path) -> None:
    """A queue with messages gets no key, a binding no exchange; what else the file names is there."""
    with Cluster(tmp_path, 2, section='lease = "1s"\nack_timeout = "1s"\nmin_in_sync = 1') as cluster:
        publisher = Publisher(cluster)
        leader = cluster.leader()
        cluster.level()
        [follower] = cluster.followers()
        publisher.more(10)
        follower.kill()
        text = follower.settings.read_text()
        follower.settings.write_text(text.replace('name = "work"', f'name = "work"\n{REFUSED}'))
        follower.start()
        cluster.level()
        eventually(lambda: "once this member leads" in follower.said(), "the follower says nothing")
        [line] = [line for line in follower.said().splitlines() if "once this member leads" in line]
        assert '[[queue]] "work": ' in line
        assert "nowhere" in line
        assert '[[queue]] "more"' not in line
        assert follower.get("/healthz")[1]["alarms"] == ["settings"]
        found = list(taking_over(load_file(str(follower.settings), environ={})))
        assert [one.verdict for one in found] == ["bad", "bad"], "a doctor finds the same"
        assert all(one.found in line for one in found)
        leader.kill()
        eventually(lambda: follower.serves, lambda: f"nobody leads: {follower.said()}")
        eventually(
            lambda: follower.get("/healthz")[1].get("alarms") == ["members", "settings"], "the other one is away"
        )
        told = "alarm settings: what was there before holds in the place of this: "
        eventually(lambda: told in follower.said(), follower.said)
        channel = follower.connect().channel()
        channel.basic_publish("", "more", b"there", pika.BasicProperties(delivery_mode=2), mandatory=True)
        assert publisher.confirmed <= set(drain(follower))
