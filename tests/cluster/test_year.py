"""`penstock up` with `master = "spark://..."`: the flights of the whole year with their planes and their weather.

A worker dies that keeps rows of two streams, and a pipeline whose table the workers do not see is refused.  The truth
is DuckDB's, row by row.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from cluster.conftest import Site
from nyc import ROWS, WEATHER, Year, written
from progress import has_ended
from spark_cluster import CONF, PATIENCE_S, SOURCE, may_hide


def toml(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    return json.dumps(value)


class Up:
    """`penstock up`; its data folder is one that the workers do not see."""

    def __init__(self, site: Site, name: str, settings: dict[str, Any]) -> None:
        self.folder = site.folder / "hidden" / name
        self.folder.mkdir()
        self.checkpoints = site.folder / f"{name}-checkpoints"  # all machines see it: states of streams are there
        spark = {"master": site.cluster.url, "memory": "512MiB", "conf": CONF, "checkpoints": str(self.checkpoints)}
        doors = {"amqp": "off", "http": "off", "flight": "127.0.0.1:0"}
        settings = {"listen": doors, **settings, "server": {"data": str(self.folder / "data")}, "spark": spark}
        file = self.folder / "penstock.toml"
        file.write_text("\n".join(f"{key} = {toml(value)}" for key, value in settings.items()))
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
        environ["PYTHONPATH"] = str(SOURCE)
        self.ready_file = self.folder / "ready.json"
        command = [sys.executable, "-m", "penstock", "up", str(file), "--ready-file", str(self.ready_file)]
        with (self.folder / "up.log").open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
        site.cluster.until(lambda: self.ready_file.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.told()
        self.ready = json.loads(self.ready_file.read_text())

    def told(self) -> str:
        logs = [self.folder / "up.log", *self.checkpoints.glob("*.log")]
        return "\n".join(f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in logs if path.exists())


@pytest.fixture
def year() -> Year:
    return Year()


@pytest.fixture
def up(site: Site, spark: Any, year: Year) -> Iterator[Up]:
    spark.stop()  # its executors would hold both cores
    settings = year.settings(max_rows=100_000)
    unseen = {"name": "unseen", "from": {"topic": "weather", "columns": WEATHER}, "sql": "SELECT temp FROM input"}
    settings["pipeline"].append({**unseen, "to": [{"table": str(site.folder / "hidden" / "up" / "out")}]})
    made = Up(site, "up", settings)
    yield made
    made.process.send_signal(signal.SIGTERM)
    assert has_ended(made.process, PATIENCE_S)


def test_the_year_row_by_row(site: Site, year: Year, up: Up) -> None:
    truth = {name: year.truth(name) for name in ROWS}
    with penstock.connect(f"penstock://{up.ready['flight']}") as client:
        assert year.publish(client, "weather") == 26_115
        assert year.publish(client, "flights") == 336_776

        def out(name: str) -> int:
            assert up.process.poll() is None, up.told()
            return int(client.queue(name)["ready"])

        try:
            site.cluster.until(lambda: out("with-weather") > 0)
            site.cluster.kill("one")
            site.cluster.start("one")
            site.cluster.until(lambda: all(out(name) >= len(rows) for name, rows in truth.items()))
        except AssertionError as error:
            raise AssertionError(f"{[out(name) for name in truth]} {error}\n{up.told()}") from None
        for name, rows in truth.items():
            assert out(name) == len(rows)
            assert written(client, name) == rows
        assert client.queue("flights")["acked"] == 336_776
    if may_hide():  # Spark would leave an empty table and say nothing
        unseen = json.loads((up.checkpoints / "status.json").read_text())["pipelines"]["unseen"]
        assert unseen["state"] == "failed"
        assert f"does not see {site.folder}/hidden/up of" in unseen["error"]
