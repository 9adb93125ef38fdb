"""Declarative pipelines of Spark (`spark-pipelines run`): a flow from a queue into the sink, as the page has it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from cluster.conftest import Site
from page_lab import blocks, page
from progress import ran
from spark_cluster import PATIENCE_S

CODE = next(block for block in blocks(page("cluster.md"), "python") if "create_sink" in block)
SPEC = "name: orders\nstorage: file://{0}/storage\nlibraries:\n  - glob:\n      include: transformations/**\n"


def test_a_flow_works_a_queue_off(site: Site, tmp_path: Path) -> None:
    site.client.declare("orders")
    site.client.declare("large-orders")
    for number in range(5):
        site.client.publish("orders", {"id": number, "total": number * 1.0})
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(tmp_path))
    (tmp_path / "transformations" / "orders.py").write_text(re.sub(r'url = ".*"', f'url = "{site.url}"', CODE))
    beside = Path(sys.executable).parent
    run = ran(
        [str(beside / "spark-pipelines"), "run", "--spec", str(tmp_path / "spark-pipeline.yml")],
        env={
            **os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
            "PATH": f"{beside}:{os.environ['PATH']}",
        },
        cwd=tmp_path, patience=PATIENCE_S,
    )  # fmt: skip
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    assert sorted(message.json()["id"] for message in site.client.peek("large-orders", count=100)) == [2, 3, 4]
    assert site.client.queue("orders")["acked"] == 5
