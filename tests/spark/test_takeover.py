"""A streaming query reads and writes over a takeover: the leader is killed under it, and every row comes once.

Its rows come from the follower while there is one, and so do those of a batch read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from cluster_of_servers.house import Cluster
from waiting import eventually

SECTION = 'lease = "1s"\nack_timeout = "1s"\nmin_in_sync = 1\nfollower_reads = true'


def publish(client: penstock.Client, start: int) -> None:
    bodies = [b'{"id": %d}' % number for number in range(start, start + 100)]
    client.publish_table("work", pa.table({"body": pa.array(bodies, pa.binary())}))


def test_a_query_goes_on_with_the_next_leader(spark: Any, tmp_path: Path) -> None:
    with Cluster(tmp_path, 2, section=SECTION, flight=True) as cluster:
        leader = cluster.leader()
        cluster.level()
        with penstock.connect(cluster.url, timeout="60s") as client:
            client.declare("copied")
            stream = spark.readStream.format("penstock").options(url=cluster.url, topic="work", schema="id bigint")
            stream = stream.options(stream="over", startingBookmark="EPOCH", maxRowsPerTrigger=40)
            stream = stream.options(readFrom="followers").load()
            batch = spark.read.format("penstock").options(url=cluster.url, topic="work", schema="id bigint")
            batch = batch.options(direct="false", readFrom="followers", minPartitions=3)
            writer = stream.select("id").writeStream.format("penstock").options(url=cluster.url, queue="copied")
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            try:
                publish(client, 0)
                eventually(lambda: client.queue("copied")["ready"] > 0, "nothing was written", 60)
                publish(client, 100)
                before = batch.load().select("id")
                assert sorted(row.id for row in before.collect()) == list(range(200))
                cluster.level()  # with `min_in_sync = 1` one that was late is not waited for, and may not lead
                leader.kill()
                assert cluster.leader() is not leader
                with penstock.connect(cluster.url, timeout="60s") as another:
                    publish(another, 200)

                def all_there() -> bool:
                    assert query.isActive, query.exception()
                    return bool(client.queue("copied")["ready"] >= 300)

                eventually(all_there, lambda: f"{client.queue('copied')['ready']} of 300 rows", 90)
                assert sorted(row.id for row in before.collect()) == list(range(200))  # there is no follower now
                assert batch.load().count() == 300
            finally:
                query.stop()
            assert [json.loads(one.body)["id"] for one in client.peek("copied", count=1000)] == list(range(300))
