"""Three real servers: what the leader confirmed is there when another has taken over, whatever became of the first."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest

from choices import EFFORT
from cluster_of_servers.house import PATIENCE_S, Cluster, Publisher, Server, drain
from etcd_process import running_etcd
from waiting import eventually

TAKEOVERS = 2 if EFFORT == 1 else 3


def test_what_was_confirmed_is_there_after_leaders_were_killed_and_a_disk_failed(tmp_path: Path) -> None:
    """Each comes back as a follower, gives up what only it had, and is in sync again.

    Then the file of a follower may not grow, as on a full disk: it says so and ends, and the others go on without it.
    The leader says so, too.
    """
    with Cluster(tmp_path, 3) as cluster:
        publisher = Publisher(cluster)
        cluster.leader()
        cluster.level()
        for _ in range(TAKEOVERS):
            publisher.more(50)
            before = cluster.leader()
            before.kill()
            publisher.more(50)
            after = cluster.leader()
            assert after is not before
            before.start()
            cluster.level()
        assert cluster.status()["term"] == 1 + TAKEOVERS
        follower, leader = cluster.followers()[0], cluster.leader()
        eventually(lambda: health(leader) == ("ok", 3, 3, []), lambda: str(leader.get("/healthz")))
        for process in follower.processes():
            resource.prlimit(process, resource.RLIMIT_FSIZE, (32_768, resource.RLIM_INFINITY))
        publisher.more(20)
        assert follower.process is not None
        assert follower.process.wait(PATIENCE_S) == 6
        assert follower.said().splitlines()[-1] == (
            f"cluster: this process ends: {follower.folder / 'data'} cannot be written: File too large; the others go "
            "on without this member: see to its disk, and start it again"
        )
        eventually(lambda: health(leader) == ("ok", 3, 2, ["members"]), lambda: str(leader.get("/healthz")))
        told = f"alarm members: 2 of 3 members are in sync: {follower.name} is not"
        eventually(lambda: told in leader.said(), leader.said)
        publisher.more(20)
        found = drain(cluster.leader())
        assert publisher.confirmed <= set(found)
        assert found == sorted(found), "in the order of their publisher"
        assert len(found) == len(set(found))
        assert len(publisher.confirmed) > 100


def health(leader: Server) -> tuple[str, int, int, list[str]]:
    """What anybody is told: status, members, how many are in sync, alarms."""
    told = leader.get("/healthz")[1]
    return told["status"], told["cluster"]["members"], told["cluster"]["in_sync"], told.get("alarms", [])


def test_the_copies_are_the_same_bytes(tmp_path: Path) -> None:
    """As far as the leader says that its log goes; what lies behind is written ahead, and zeros."""
    with Cluster(tmp_path, 2) as cluster:
        leader = cluster.leader()
        cluster.level()
        publisher = Publisher(cluster)
        publisher.more(50)
        [follower] = cluster.followers()
        follower.freeze()  # first: while nobody leads it would take over, and write what the other has not
        leader.freeze()
        [one] = (leader.folder / "data/log").glob("*.arrows")
        copy = (follower.folder / "data/log" / one.name).read_bytes()
        assert len(copy) > 4096
        assert one.read_bytes()[: len(copy)] == copy
        assert all(body in copy for body in publisher.confirmed)


def test_nothing_is_confirmed_while_too_few_disks_have_it(tmp_path: Path) -> None:
    """Of two members both must have it; with the follower gone a publisher waits, and goes on when it is back."""
    with Cluster(tmp_path, 2) as cluster:
        leader = cluster.leader()
        cluster.level()
        [follower] = cluster.followers()
        told = "1 of 2 members that a confirm needs (min_in_sync) are in sync"
        before = leader.said().count(told)
        assert before > 0, "it said so at its start"
        follower.kill()
        connection = leader.connect()
        channel = connection.channel()
        confirmed = list[int]()
        channel.confirm_delivery()
        impl = channel._impl
        impl.add_callback(lambda frame: confirmed.append(frame.method.delivery_tag), [pika_ack()], one_shot=False)
        impl.basic_publish("", "work", b"one")
        connection.process_data_events(2.0)
        assert confirmed == []
        eventually(lambda: leader.said().count(told) > before, "it does not say why, as it did at its start", 40)
        follower.start()
        eventually(lambda: pumped(connection) and confirmed == [1])
        cluster.level()
        told_before = leader.said().count(told)
        assert follower.stop() == 0
        eventually(lambda: leader.said().count(told) > told_before, "the follower that was stopped is in sync", 40)
        impl.basic_publish("", "work", b"two")
        connection.process_data_events(0.2)
        begun = time.monotonic()
        assert leader.stop() == 0, "the last one that stops waits for nobody"
        assert time.monotonic() - begun < PATIENCE_S / 2
        assert confirmed == [1]


def pika_ack() -> type:
    from pika.spec import Basic

    found: type = Basic.Ack
    return found


def pumped(connection: object) -> bool:
    connection.process_data_events(0.05)  # type: ignore[attr-defined]
    return True


def test_a_leader_that_slept_through_its_lease_does_not_go_on(tmp_path: Path) -> None:
    """Another leads meanwhile; the sleeper ends with status 6, and follows once it is started again."""
    with Cluster(tmp_path, 3) as cluster:
        publisher = Publisher(cluster)
        sleeper = cluster.leader()
        cluster.level()
        publisher.more(20)
        sleeper.freeze()
        others = [one for one in cluster.servers if one is not sleeper]
        eventually(lambda: any(one.serves for one in others), "nobody took over")
        sleeper.signal(signal.SIGCONT)
        assert sleeper.process is not None
        assert sleeper.process.wait(PATIENCE_S) == 6
        publisher = publisher_on(cluster, publisher)
        publisher.more(50)
        sleeper.start()
        cluster.level()
        assert publisher.confirmed <= set(drain(cluster.leader()))


def test_a_server_that_is_stopped_is_killed_by_its_member_and_never_wakes_up(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2, section='lease = "1s"\nack_timeout = "1s"\nstall = "3s"\nmin_in_sync = 1') as cluster:
        stopped = cluster.leader()
        cluster.level()
        assert stopped.process is not None
        stopped.process.send_signal(signal.SIGSTOP)
        assert stopped.process.wait(PATIENCE_S) == -signal.SIGKILL
        assert cluster.leader() is not stopped


def test_what_was_stopped_keeps_nothing_from_the_next_start_of_a_server_that_is_killed(tmp_path: Path) -> None:
    """Those of doors have addresses, and that of the member the lock of the folder: kill -9 of one ends all of them."""
    new = {"PENSTOCK_SERVER__DOORS": "1", "OPENBLAS_NUM_THREADS": "1"}  # all are processes of their own
    with Cluster(tmp_path, 1, section='lease = "1s"\nmin_in_sync = 1', flight=True, environ=new) as cluster:
        server = cluster.leader()
        publisher = Publisher(cluster)
        publisher.more(20)
        main, *others = server.processes()
        assert len(others) >= 4, "the member, and processes for AMQP, for Flight and for HTTP"
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        os.kill(main, signal.SIGKILL)
        assert server.process is not None
        server.process.wait(PATIENCE_S)
        eventually(lambda: all(map(has_ended, others)), "some are there, stopped")
        server.start()
        assert publisher.confirmed <= set(drain(cluster.leader()))


SLOWLY = str(Path(__file__).parents[1] / "slow_opening_server.py")


def test_a_log_that_takes_long_to_open_is_no_reason_to_give_up_leading(tmp_path: Path) -> None:
    """Longer than `stall`, which is about commits: another one would take as long, and nobody would ever lead."""
    section = 'lease = "1s"\nstall = "4s"\nmin_in_sync = 1'
    with Cluster(tmp_path, 1, section=section, command=[SLOWLY]) as cluster:
        assert "have stood still" not in cluster.leader().said()
        assert cluster.status()["term"] == 1


def has_ended(pid: int) -> bool:
    """Whether a process is gone, but for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def publisher_on(cluster: Cluster, before: Publisher) -> Publisher:
    """The same one with a new connection."""
    after = Publisher(cluster)
    after.confirmed, after.count = before.confirmed, before.count
    return after


@pytest.mark.parametrize("members", [2])
def test_a_leader_that_is_stopped_hands_over_at_once(tmp_path: Path, members: int) -> None:
    """It does not wait for the lease, here five minutes."""
    section = 'lease = "5m"\nack_timeout = "1m"\nmin_in_sync = 1'
    with Cluster(tmp_path, members, section=section) as cluster:
        publisher = Publisher(cluster)
        leader = cluster.leader()
        cluster.level()
        publisher.more(20)
        cluster.level()
        assert leader.stop() == 0
        begun = time.monotonic()
        [other] = [one for one in cluster.servers if one is not leader]
        eventually(lambda: other.serves, "the other does not serve")
        assert time.monotonic() - begun < PATIENCE_S
        assert publisher.confirmed <= set(drain(other))


def test_etcd_decides_who_leads_as_well(tmp_path: Path) -> None:
    """Two servers and a real etcd: the leader is killed, the other one has what was confirmed."""
    with (
        running_etcd(tmp_path / "etcd") as host,
        Cluster(
            tmp_path, 2, registry=f"etcd://{host}/test", section='lease = "1s"\nack_timeout = "1s"\nmin_in_sync = 1'
        ) as cluster,
    ):
        publisher = Publisher(cluster)
        leader = cluster.leader()
        cluster.level()
        publisher.more(20)
        [other] = [one for one in cluster.servers if one is not leader]
        cluster.level()  # with `min_in_sync = 1` one that was late is not waited for, and may not lead
        leader.kill()
        eventually(lambda: other.serves, "the other does not serve")
        assert publisher.confirmed <= set(drain(other))
