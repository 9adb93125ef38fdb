"""Members that come later: with nothing, after the log was compacted, and with a backup."""

from __future__ import annotations

from pathlib import Path

import forked
from cluster_of_servers.house import Cluster, Publisher, drain


def penstock(*arguments: str) -> str:
    done = forked.penstock(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_member_joins_with_a_backup_and_copies_only_what_came_since(tmp_path: Path) -> None:
    """The backup is of a follower that was stopped; what it lacks comes from the leader, which was never stopped."""
    with Cluster(tmp_path, 3, section='lease = "1s"\nack_timeout = "1s"\nmin_in_sync = 1') as cluster:
        publisher = Publisher(cluster)
        leader = cluster.leader()
        cluster.level()
        publisher.more(20)
        one, other = cluster.followers()
        for server in (one, other):
            server.kill()
        penstock("backup", str(tmp_path / "backup"), "--data", str(one.folder / "data"))
        publisher.more(20)
        (other.folder / "data").rename(other.folder / "former")
        penstock("restore", str(tmp_path / "backup"), str(other.folder / "data"), "--as-follower")
        one.start()
        other.start()
        cluster.level()
        assert len(cluster.status()["members"]) == 4, "it is another member than the one whose folder went"
        assert "copied again" not in other.said()
        leader.kill()
        one.kill()
        one.start()
        assert publisher.confirmed <= set(drain(cluster.leader()))
