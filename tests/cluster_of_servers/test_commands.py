"""What a person does to a cluster: hand over, remove a member, promote one that lacks something, look at a cut."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import forked
from cluster_of_servers.house import PATIENCE_S, Cluster, Publisher, drain
from waiting import eventually


def penstock(*arguments: str) -> tuple[int, str]:
    done = forked.penstock(*arguments, seconds=90)
    return done.returncode, done.stdout + done.stderr


class Watched:
    """Servers that are started again as they end with status 6."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.over.wait(0.05):
            for one in self.cluster.servers:
                if one.process is not None and one.process.poll() == 6:
                    one.start()

    def end(self) -> None:
        self.over.set()
        self.thread.join()


def test_the_lead_is_handed_over_and_back_and_a_member_is_removed(tmp_path: Path) -> None:
    """Without waiting for a lease, here of a minute and a half; who is removed learns of it within a tenth of that."""
    section = 'lease = "90s"\nack_timeout = "2s"\nmin_in_sync = 1'
    with Cluster(tmp_path, 2, section=section, flight=True) as cluster:
        cluster.leader()
        cluster.level()
        watched = Watched(cluster)
        try:
            publisher = Publisher(cluster)
            publisher.more(20)
            status, said = penstock("cluster", "drill", "--url", cluster.url, "--json")
            assert status == 0, said
            found = json.JSONDecoder().raw_decode(said[said.index("{") :])[0]  # notes for a person follow
            assert found["there"]["to"] == found["back"]["from"]
            assert found["there"]["from"] == found["back"]["to"]
            assert max(found["there"]["seconds"], found["back"]["seconds"]) < 60
            leader = cluster.leader()
            cluster.level()
            publisher.more(20)
            assert publisher.confirmed <= set(drain(leader))
        finally:
            watched.end()
        [other] = cluster.followers()
        status, said = penstock("cluster", "switchover", "nobody", "--url", cluster.url)
        assert status == 1
        assert f"{other.name} could take over now" in said
        status, said = penstock("cluster", "remove", leader.name, "--yes", "--url", cluster.url)
        assert "hand over to another member first" in said
        assert penstock("cluster", "remove", other.name, "--yes", "--url", cluster.url)[0] == 0
        eventually(lambda: not other.runs, "it was removed and goes on")
        assert "was removed from the cluster" in other.said()
        assert len(cluster.status()["members"]) == 1
        status, said = penstock("cluster", "finalize", "--url", cluster.url)
        assert "the log is of format 1 already" in said


def test_a_member_that_lacks_something_is_promoted_by_who_says_what_is_lost(tmp_path: Path) -> None:
    """And what was lost is published again, once."""
    section = 'lease = "1s"\nack_timeout = "1s"\nmin_in_sync = 1'
    with Cluster(tmp_path, 2, section=section, flight=True) as cluster:
        leader = cluster.leader()
        cluster.level()
        [behind] = cluster.followers()
        publisher = Publisher(cluster)
        publisher.more(20)
        before = set(publisher.confirmed)
        behind.kill()
        publisher.more(20)
        lost = publisher.confirmed - before
        eventually(lambda: cluster.in_sync() == {leader.name})
        leader.kill()
        behind.start()
        promote = ("cluster", "promote", behind.name, str(behind.settings))
        status, said = penstock(*promote)
        assert status == 1
        assert "say --lose " in said
        assert penstock(*promote, "--lose", said.rpartition("--lose ")[2].split()[0])[0] == 0
        assert cluster.leader() is behind
        leader.start()
        cluster.level()
        found = json.loads(penstock("cluster", "lost", str(leader.settings), "--json")[1])
        count = sum(one["messages"] for one in found)
        assert count >= len(lost) > 0
        cut = sum(one["records"] for one in found)  # which its server hears of after the leader knows that it is level
        eventually(lambda: leader.get("/api/cluster")[1].get("cut_records") == cut, f"it does not tell of {cut}")
        line = f"{cut} records that another leader's log goes on without were cut"
        eventually(lambda: line in leader.said(), leader.said)
        again = ("publish", "--from-cut", str(leader.settings), "--url", cluster.url, "--json")
        status, said = penstock(*again)
        assert status == 0, said
        told = json.loads(said)
        assert (told["dry_run"], told["messages"], told["published"]) == (True, count, 0)
        status, said = penstock(*again, "--yes")
        assert status == 0, said
        told = json.loads(said)
        assert told["published"] == count, told
        marks = list((leader.folder / "data" / "cut").glob("*.published"))
        assert len(marks) == len(told["files"])
        assert json.loads(penstock(*again, "--yes")[1])["published"] == 0, "it is marked"
        for mark in marks:
            mark.unlink()
        assert penstock(*again, "--yes")[0] == 0, "the server knows the numbers"
        stranger = cluster.url.replace("//", "//guest:wrong@")
        assert penstock("publish", "--from-cut", str(leader.settings), "--url", stranger)[0] != 0
        found_there = drain(behind)
        assert before | lost <= set(found_there)
        assert len(found_there) == len(set(found_there)), "nothing came twice"


def test_a_cluster_whose_register_is_lost_goes_on_with_the_newest_log(tmp_path: Path) -> None:
    """Under another name: who was not chosen copies everything anew, so that no tail is taken for the other's."""
    with Cluster(tmp_path, 2, section='lease = "1s"\nack_timeout = "1s"\nmin_in_sync = 1') as cluster:
        first = cluster.leader()
        cluster.level()
        publisher = Publisher(cluster)
        publisher.more(20)
        first.kill()
        publisher.more(20)
        second = cluster.leader()
        before = cluster.status()
        init = ("cluster", "init", str(second.settings))
        assert "is of a cluster already" in penstock(*init, "--lost-register")[1]
        second.kill()
        for file in (tmp_path / "register").iterdir():
            file.unlink()
        second.start()
        eventually(lambda: "`penstock cluster init --lost-register`" in second.said(), "it does not say what helps")
        second.kill()
        assert "is of cluster" in penstock(*init)[1]
        status, said = penstock(*init, "--lost-register")
        assert status == 0, said
        second.start()
        publisher.more(20)
        after = cluster.status()
        assert after["cluster"] != before["cluster"]
        assert after["term"] == before["term"] + 1, "an archive's fence is behind no term"
        first.start()
        assert first.process is not None
        assert first.process.wait(PATIENCE_S) == 6
        assert f"the register is of cluster {after['cluster']}, and this folder of {before['cluster']}" in first.said()
        shutil.rmtree(first.folder / "data")
        first.start()
        cluster.level()
        assert publisher.confirmed <= set(drain(second))
