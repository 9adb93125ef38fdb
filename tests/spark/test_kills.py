"""kill -9 of the driver and of the server under `penstock up`: no result lost, none twice, every message settled once.

One long job with all the kills: six of each at random moments, and aimed ones between the commit of the sink and Spark's
own.  One pipeline has a topic and a table as outputs, the other keeps sums over everything in its state; both read the
same messages, each from a queue of its own.  The truth is what was published.  `PENSTOCK_SEED` repeats the choices.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset
import pytest

import penstock
from penstock.config.load import load_mapping
from penstock.errors import Unavailable
from penstock.spark.remote import Remote, Where
from penstock.spark.supervisor import Supervisor

from .conftest import QUICK

SEED = int(os.environ.get("PENSTOCK_SEED", "0")) or random.randrange(1, 1 << 30)
KILLS = 6
MESSAGES = 6_000
PATIENCE_S = 240.0
HERE = Path(__file__).parent


class Plant:
    """`penstock up` in a thread, with the driver that can be killed at the right moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spark = folder / "data" / "spark"
        self.lines: list[str] = []
        settings = load_mapping(
            {
                "server": {"data": str(folder / "data")},
                "listen": {"amqp": "off", "http": "off", "flight": "127.0.0.1:0"},
                "spark": {"master": "local[2]", "memory": "512MiB", "conf": QUICK},
                "queue": [
                    {"name": "jobs"},
                    {"name": "jobs-too", "underlying_topic": "jobs"},
                    {"name": "results"},
                ],
                "pipeline": [
                    {
                        "name": "rows",
                        "from": {"queue": "jobs", "columns": "id bigint", "max_rows": 100},
                        "sql": "SELECT id FROM input",
                        "to": [{"topic": "results"}, {"table": str(folder / "rows")}],
                        "trigger": "0s",
                    },
                    {
                        "name": "sums",
                        "from": {"queue": "jobs-too", "columns": "id bigint", "max_rows": 400},
                        "sql": "SELECT id % 7 AS k, count(*) AS n, sum(id) AS total FROM input GROUP BY id % 7",
                        "to": [{"table": str(folder / "sums")}],
                        "trigger": "0s",
                    },
                ],
            }
        )
        command = (sys.executable, str(HERE / "kill_driver.py"))
        self.supervisor = Supervisor(settings, ready_file=None, say=self.lines.append, driver=command)
        self.thread = threading.Thread(target=self.supervisor.run)

    def kill_server(self) -> None:
        pid = self.supervisor.server.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def kill_driver(self) -> None:
        """Python and Java at once, as when the machine's memory is short."""
        pid = self.supervisor.driver.pid
        if pid is not None:
            os.killpg(pid, signal.SIGKILL)

    def counts(self, queue: str) -> dict[str, Any]:
        def ask() -> dict[str, Any] | None:
            ready = self.supervisor.ready
            if ready is None:
                return None
            try:
                with penstock.connect(f"penstock://{ready['flight']}") as client:
                    return dict(client.queue(queue))
            except Unavailable:
                return None

        found: dict[str, Any] = self.until(ask)
        return found

    def done(self) -> int:
        return int(self.counts("results")["ready"])

    def until(self, what: Callable[[], Any]) -> Any:
        """The first true answer; the driver's log when there is none in time."""
        event = threading.Event()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = what()
            if found:
                return found
            assert self.thread.is_alive(), self.lines
            event.wait(0.05)
        log = (self.spark / "driver.log").read_text()[-3000:] if self.spark.exists() else ""
        raise AssertionError(f"seed {SEED}: nothing happened for {PATIENCE_S} s\n{self.lines}\n{log}")


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    source = str(HERE.parents[1] / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])]))
    for name in ("SPARK_HOME", "SPARK_CONF_DIR"):  # those of the session of the other tests
        monkeypatch.delenv(name, raising=False)
    made = Plant(tmp_path)
    made.thread.start()
    yield made
    made.supervisor.stopping.set()
    made.thread.join(60)
    assert not made.thread.is_alive()


def test_results_are_exact_whatever_dies(plant: Plant) -> None:
    chance = random.Random(SEED)
    plant.until(lambda: plant.supervisor.ready)
    bodies = [json.dumps({"id": i}).encode() for i in range(MESSAGES)]
    with penstock.connect(f"penstock://{plant.supervisor.ready['flight']}") as client:  # type: ignore[index]
        client.publish_table("jobs", pa.table({"body": pa.array(bodies, pa.binary())}))

    pause = threading.Event()
    plan = [*["driver"] * KILLS, *["server"] * KILLS, *["aimed driver"] * 2, "aimed server"]
    chance.shuffle(plan)
    for what in plan:
        if what.startswith("aimed") or chance.random() < 0.5:
            before = plant.done()
            if what == "aimed driver":
                aim = plant.spark / "kill-driver"
                aim.touch()
                plant.until(lambda aim=aim: not aim.exists())
                continue
            if what == "aimed server":
                aim, aside = plant.spark / "kill-server", plant.spark / "kill-server.part"
                aside.write_text(str(plant.supervisor.server.pid))
                aside.rename(aim)
                plant.until(lambda aim=aim: not aim.exists())
                continue
            plant.until(lambda before=before: plant.done() > before)  # in mid-flow
            pause.wait(chance.uniform(0.0, 0.7))
        else:
            pause.wait(chance.uniform(0.1, 2.0))  # perhaps while something starts
        (plant.kill_driver if what == "driver" else plant.kill_server)()

    def settled() -> bool:
        counts = [plant.counts("jobs"), plant.counts("jobs-too")]
        return all(one["ready"] + one["leased"] == 0 for one in counts)

    plant.until(settled)
    judge(plant)


def judge(plant: Plant) -> None:
    """Everything is there once, from the outside and in the log."""
    everything = list(range(MESSAGES))
    with penstock.connect(f"penstock://{plant.supervisor.ready['flight']}") as client:  # type: ignore[index]
        results = sorted(json.loads(message.body)["id"] for message in client.peek("results", count=10 * MESSAGES))
        assert results == everything, f"seed {SEED}: {_wrong(results)}"
        assert client.queue("results")["ready"] == MESSAGES
    settles = _settled(str(plant.supervisor.ready["flight"]))  # type: ignore[index]
    rows: Any = pyarrow.dataset.dataset(plant.folder / "rows", format="parquet").to_table()
    assert sorted(rows.column("id").to_pylist()) == everything, f"seed {SEED}: {_wrong(rows.column('id').to_pylist())}"
    sums: Any = pyarrow.dataset.dataset(plant.folder / "sums", format="parquet").to_table()
    wanted = {k: (len(range(k, MESSAGES, 7)), sum(range(k, MESSAGES, 7))) for k in range(7)}
    assert {row["k"]: (row["n"], row["total"]) for row in sums.to_pylist()} == wanted, f"seed {SEED}"
    for stream, batches in settles.items():
        assert batches == sorted(set(batches)), f"seed {SEED}: stream {stream} settled {batches}"


def _settled(flight: str) -> dict[str, list[int]]:
    """The batches that each stream settled, in the order of the log (kind 32 is PLAN_SETTLE)."""
    out: dict[str, list[int]] = {"rows": [], "sums": []}
    server = Remote(Where(f"penstock://{flight}"))
    for batch in server.rows("log", columns=["kind", "name", "properties"]):
        for row in batch.filter(pyarrow.compute.equal(batch.column("kind"), 32)).to_pylist():
            out[row["name"]].append(json.loads(row["properties"])["batch"])
    return out


def _wrong(found: list[int]) -> str:
    counts = Counter(found)
    missing = [i for i in range(MESSAGES) if i not in counts]
    twice = [i for i, n in counts.items() if n > 1]
    return f"{len(missing)} missing {missing[:10]}, {len(twice)} more than once {twice[:10]}"
