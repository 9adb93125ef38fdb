"""Spark Connect: the source, streams and the sink through a client that has no JVM of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from cluster.conftest import Site
from progress import ran
from spark_cluster import PATIENCE_S

# With SPARK_TESTING a session of Connect listens at a port that the system chooses, not at one that others may have.
JOB = Path(__file__).with_name("connect_job.py")


def test_source_stream_and_sink_through_connect(site: Site, tmp_path: Path) -> None:
    site.client.declare("connected")
    site.client.declare("connect-out")
    for number in range(5):
        site.client.publish("connected", {"id": number})
    run = ran(
        [sys.executable, str(JOB), site.url, str(tmp_path / "checkpoint")],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"},
        cwd=tmp_path, patience=PATIENCE_S,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    told = json.loads(run.stdout.splitlines()[-1])
    assert told == {"kind": "pyspark.sql.connect.session", "read": list(range(5))}
    out = [message.json()["id"] for message in site.client.peek("connect-out", count=100)]
    assert sorted(out) == [*range(5), 100, 101]
    assert site.client.queue("connected")["acked"] == 5
