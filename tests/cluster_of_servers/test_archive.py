"""A cluster's archive: one folder, which whoever leads goes on with."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

import penstock
from cluster_of_servers.house import Cluster
from waiting import eventually

SECTION = 'lease = "1s"\nack_timeout = "1s"\nmin_in_sync = 1'


def test_the_archive_goes_on_with_the_next_leader(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    more = f'[log]\nsegment = "64KiB"\narchive = {{ folder = "{archive}", shared = true }}'

    def spans() -> list[list[int]]:
        path = archive / "manifest.json"
        return json.loads(path.read_bytes())["spans"] if path.exists() else []

    with Cluster(tmp_path, 2, section=SECTION, more=more, flight=True) as cluster:
        leader = cluster.leader()
        cluster.level()
        published = 0
        with penstock.connect(cluster.url, timeout="60s") as client:
            for turn in range(2):
                before = spans()
                for _ in range(4):
                    bodies = [b"%06d" % n + bytes(300) for n in range(published, published + 200)]
                    client.publish_table("work", pa.table({"body": pa.array(bodies, pa.binary())}))
                    published += 200
                eventually(lambda before=before: spans() > before, "nothing was archived", 30)
                if not turn:
                    cluster.level()  # with `min_in_sync = 1` one that was late is not waited for, and may not lead
                    leader.kill()
                    assert cluster.leader() is not leader
        [lead] = archive.glob(".lead-*")
        assert lead.name == f".lead-{cluster.status()['term']:020d}"
        leader.start()
        cluster.level()
        numbers = list[int]()

        def archived() -> bool:
            """More than one segment of each leader's, which come one after the other."""
            found = parquet.read_table(str(archive / "messages")).column("body").to_pylist()
            numbers[:] = [int(body[:6]) for body in found]
            return len(numbers) > 400

        eventually(archived, lambda: f"only {len(numbers)} messages are archived")
        assert len(set(numbers)) == len(numbers), "each once"
        for one in cluster.servers:
            assert (one.folder / "data/archive.json").exists()
