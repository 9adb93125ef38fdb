"""Source, streams and sink under each PySpark that is supported: that of the environment, and an older one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import penstock
from choices import for_conformance
from conformance.spark_job import ROWS
from flight_house import FlightHouse

HERE = Path(__file__).resolve()
OLDER = HERE.parents[2] / ".venv-spark-4.2" / "bin" / "python"
"""Made by `make conformance`."""

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.spark,
    for_conformance("starts Spark once more"),
]


def test_pyspark_4_2(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), str(HERE.parents[2] / "src")])
    with FlightHouse(tmp_path / "data") as house, penstock.connect(house.url) as client:
        for queue in ("jobs", "done", "copied", "written"):
            client.declare(queue)
        for number in range(ROWS):
            client.publish("jobs", {"id": number})
        ended = subprocess.run(
            [str(OLDER), str(HERE.with_name("spark_job.py")), house.url, str(tmp_path / "checkpoints")],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr[-4000:]
        told = json.loads(ended.stdout.splitlines()[-1])
        assert told.pop("version").startswith("4.2.")
        assert told == {"sum": sum(range(ROWS)), "queue": ROWS, "log": ROWS, "again": 1}
        for queue, count in (("done", ROWS), ("copied", ROWS + 1), ("written", 3)):
            ids = [json.loads(message.body)["id"] for message in client.peek(queue, count=2 * ROWS)]
            assert ids == list(range(count)), queue
        stats = client.queue("jobs")
        assert (stats["ready"], stats["leased"], stats["acked"]) == (1, 0, ROWS)
