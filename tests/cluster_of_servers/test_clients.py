"""Our own clients are given all servers of a cluster, and go on with whoever leads."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from unittest.mock import ANY

import pyarrow as pa
import pytest

import forked
import penstock
from cluster_of_servers.house import Cluster, Server
from penstock import aio
from penstock.errors import NotFound, NotLeading, PreconditionFailed
from penstock.spark.remote import Remote, Where
from waiting import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 3, flight=True) as cluster:
        cluster.leader()
        cluster.level()
        yield cluster


def change_leader(cluster: Cluster) -> None:
    """The leader is killed, and comes back as a follower."""
    before = cluster.leader()
    before.kill()
    eventually(lambda: any(one.serves for one in cluster.servers if one is not before), "nobody took over")
    before.start()
    cluster.level()


def test_publisher_and_consumer_go_on_after_a_takeover(cluster: Cluster) -> None:
    fences = dict[int, list[int]]()

    def work() -> None:
        with penstock.connect(cluster.url) as mine:
            for message in mine.consume("work", backlog=20, timeout="2m"):  # another leads, and all are level, before
                number = int(message.body)
                fences.setdefault(number, []).append(message.fence)
                if number != 3 or message.redelivered:
                    message.ack()
                if number == 20:
                    return

    worker = threading.Thread(target=work, daemon=True)
    with penstock.connect(cluster.url) as client:
        worker.start()
        for number in range(1, 11):
            client.publish("work", str(number), publisher="p", sequence=number)
        eventually(lambda: 10 in fences, "the consumer got nothing")
        change_leader(cluster)
        assert client.publish("work", "10", publisher="p", sequence=10).outcome == "duplicate"
        for number in range(11, 21):
            client.publish("work", str(number), publisher="p", sequence=number)
        worker.join(60)
        assert not worker.is_alive()
        assert sorted(fences) == list(range(1, 21))
        early, late = fences[3]
        assert early < late, "the lease of the second leader has the higher fence"
        assert client.queue("work")["ready"] == 0


def test_asyncio_and_spark_go_on_too(cluster: Cluster) -> None:
    remote = Remote(Where(cluster.url))
    assert remote.act("health")["status"] == "ok"

    async def run() -> None:
        async with aio.connect(cluster.url) as client:
            await client.publish("work", "before", publisher="q", sequence=1)
            await asyncio.to_thread(change_leader, cluster)
            assert (await client.publish("work", "before", publisher="q", sequence=1)).outcome == "duplicate"
            await client.publish("work", "after", publisher="q", sequence=2)
            async for message in client.consume("work", timeout="30s"):
                await message.ack()
                if message.body == b"after":
                    break

    asyncio.run(run())
    assert remote.act("health")["status"] == "ok"
    remote.close()


def test_what_was_staged_is_committed_by_whoever_leads_next(cluster: Cluster) -> None:
    """The one that it was staged at dies, and then the one that had a copy: the last one has the rows, once."""
    with penstock.connect(cluster.url, timeout="60s") as client:
        client.declare("staged")
        stages = list[str]()
        for part in range(3):
            rows = pa.record_batch({"body": pa.array([b"%d" % (10 * part + row) for row in range(10)], pa.binary())})
            made = client.stage("a-query", 0, part, 0, [rows], topic="staged")
            assert made is not None
            stages.append(made[0])
    change_leader(cluster)
    change_leader(cluster)
    remote = Remote(Where(cluster.url))
    assert remote.act("sink_commit", query="a-query", batch=0, stages=stages) == {
        "already": False, "stored": 30, "lsn": ANY, "outputs": ANY,
    }  # fmt: skip
    assert remote.act("sink_commit", query="a-query", batch=0, stages=stages)["already"]
    remote.close()
    with penstock.connect(cluster.url, timeout="60s") as client:
        assert [int(one.body) for one in client.peek("staged", count=100)] == list(range(30))
    folders = [one.folder / "data/stage" for one in cluster.servers]
    eventually(lambda: not any(one.exists() and any(one.iterdir()) for one in folders), "stages are left")


def test_pika_is_told_the_fence(cluster: Cluster) -> None:
    connection = cluster.leader().connect()
    channel = connection.channel()
    channel.basic_publish("", "work", b"one")
    for method, properties, _ in channel.consume("work", arguments={"x-info": True}, inactivity_timeout=30):
        assert method is not None
        assert properties.headers["x-fence"] == (cluster.status()["term"] << 32) + 1
        channel.basic_ack(method.delivery_tag)
        break
    connection.close()


def test_every_member_tells_metrics(cluster: Cluster) -> None:
    leader = cluster.leader()
    for server in cluster.servers:
        role = f'penstock_cluster_role{{role="{"leading" if server is leader else "following"}"}} 1.0'
        figures = ("in_sync 3.0", "trouble 0.0", "cut_records_total ")
        lacks = partial(not_told, server, (role, *(f"penstock_cluster_{one}" for one in figures)))
        eventually(lambda lacks=lacks: not lacks(), lambda lacks=lacks: f"{lacks()}; what is over is told no more")


def not_told(server: Server, wanted: Sequence[str]) -> list[str]:
    """Of this what a server's metrics do not have."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return [one for one in wanted if one not in text]


def test_a_doctor_asks_the_other_members_for_their_time(cluster: Cluster) -> None:
    """Whether they lead or follow."""
    leader, [follower, _] = cluster.leader(), cluster.followers()
    for server in (leader, follower):
        others = [one for one in cluster.servers if one is not server]

        def told(server: Server = server, others: Sequence[Server] = others) -> list[tuple[str, str]]:
            said = json.loads(forked.penstock("doctor", str(server.settings), "--json").stdout)["findings"]
            found = {one["name"]: one for one in said}
            return [(found[f"member {one.name}"]["verdict"], found[f"member {one.name}"]["found"]) for one in others]

        def good(told: Callable[[], list[tuple[str, str]]] = told) -> bool:
            """What answered late on a busy machine may be taken for another time."""
            return all(verdict == "good" and "its clock is 0.0" in found for verdict, found in told())

        eventually(good, lambda told=told: f"{told()}")


def test_who_is_made_or_changed_at_run_time_logs_in_at_every_member(cluster: Cluster) -> None:
    """As the leader has it, and no longer than that."""

    def asked(server: Server, password: str) -> int:
        login = base64.b64encode(f"watcher:{password}".encode()).decode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.http}/api/cluster", headers={"authorization": f"Basic {login}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def all_say(status: int, password: str) -> None:
        found = dict[str, int]()

        def look() -> bool:
            found.update({one.name: asked(one, password) for one in cluster.servers})
            return set(found.values()) == {status}

        eventually(look, lambda: f"not {status}: {found}", 60)

    def do(change: Callable[[], object]) -> None:
        """Though a leader may be late, and another one lead, at whatever moment."""

        def done() -> bool:
            try:
                change()
            except (PreconditionFailed, NotFound):  # it was done, and nobody heard the answer
                return True
            except penstock.Unavailable:
                return False
            return True

        eventually(done, "it could not be changed", 60)

    with penstock.connect(cluster.url) as client:
        do(lambda: client.add_user("watcher", "first", tags=["monitoring"]))
        all_say(200, "first")
        do(lambda: client.change_password("watcher", "second"))
        all_say(200, "second")
        all_say(401, "first")
        do(lambda: client.delete_user("watcher"))
        all_say(401, "second")


def test_a_follower_says_who_leads_instead_of_an_answer(cluster: Cluster) -> None:
    leader, [follower, _] = cluster.leader(), cluster.followers()
    status, said = follower.get("/api/queues")
    assert (status, said["error"]) == (421, "misdirected_request")
    assert f"{leader.name} leads" in said["reason"]
    assert str(leader.stream) in said["reason"]
    assert follower.get("/readyz") == (503, {"ready": False, "status": "following", "leader": leader.name})
    assert [one.get("/leader")[0] for one in (leader, follower)] == [200, 503]
    assert [one.get("/replica")[0] for one in (leader, follower)] == [503, 200]


def test_a_followers_flight_port_says_who_leads_too(cluster: Cluster) -> None:
    """Until it leads itself, as other tests here see."""
    leader, [follower, _] = cluster.leader(), cluster.followers()
    with pytest.raises(NotLeading, match=f"{leader.name} leads, whose stream is at 127.0.0.1:{leader.stream}"):
        penstock.connect(f"penstock://127.0.0.1:{follower.flight}")


def test_who_names_servers_of_which_none_serves_is_told_so() -> None:
    with pytest.raises(penstock.Unavailable, match=r"of 127.0.0.1:9, 127.0.0.1:19 none serves"):
        penstock.connect("penstock://127.0.0.1:9,127.0.0.1:19", timeout="300ms")
