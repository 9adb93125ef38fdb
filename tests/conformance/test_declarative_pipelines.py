"""Spark's Declarative Pipelines with our source and sink: they run to their end, and again over what is new."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from choices import for_conformance
from flight_house import FlightHouse

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.spark,
    for_conformance("starts Spark twice"),
]

SPEC = """
name: flights
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""

PIPELINE = """
from pyspark import pipelines as dp

URL = {url!r}

dp.create_sink(name="late", format="penstock", options={{"url": URL, "queue": "late"}})


@dp.append_flow(target="late", name="late_flights")
def late_flights():
    frame = spark.readStream.format("penstock").option("url", URL).option("queue", "flights")
    frame = frame.option("stream", "declared").option("schema", "id int, delay int").load()
    return frame.where("delay > 0").select("id", "delay")
"""


def run(folder: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [str(Path(sys.executable).parent / "spark-pipelines"), "run", "--spec", str(folder / "spark-pipeline.yml")],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_source_and_sink_inside_declarative_pipelines(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="pip install 'pyspark[pipelines]'")
    (tmp_path / "transformations").mkdir()
    with FlightHouse(tmp_path / "data") as house, penstock.connect(house.url) as client:
        (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
        (tmp_path / "transformations" / "flights.py").write_text(PIPELINE.format(url=house.url))
        for queue in ("flights", "late"):
            client.declare(queue)
        for first in (0, 25):
            for number in range(first, first + 25):
                client.publish("flights", {"id": number, "delay": number % 5 - 2})
            run(tmp_path)
        late = sorted(json.loads(message.body)["id"] for message in client.peek("late", count=100))
        assert late == [number for number in range(50) if number % 5 > 2]
        stats = client.queue("flights")
        assert (stats["ready"], stats["leased"], stats["acked"]) == (0, 0, 50)
