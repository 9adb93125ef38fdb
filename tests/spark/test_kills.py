"""kill -9 of the driver and of the server under `penstock up`: no result lost, none twice, every message settled once.

One job with all the kills: of the driver, of one of its Python workers and of the server, in flow and at random
moments, and aimed ones around the commit of the sink; 5 of them, and more than 30 with `PENSTOCK_EFFORT` (`make
soak-spark`).  The pipeline reads two queues and keeps sums over everything in its state, so a message that is lost or
counted twice shows for ever, and puts them into a topic and a table.  A view on Spark gathers what is in that topic's
queue, beside a view of the server with the same definition.  The truth is what was published.  `PENSTOCK_SEED` repeats
the choices.
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
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset
import pytest

from choices import SEED
from penstock.cli.supervisor import Supervisor
from penstock.config.load import load_mapping
from penstock.spark.pipelines.lineage import read
from penstock.spark.remote import Remote, Where, remote
from progress import descendants
from spark_java import conf, home
from spark_lab import command_of

PATIENCE_S = 240.0
SETTLED = 32
"""The kind of a record that settles a planned batch."""

VIEW = {
    "source": "results",
    "select": "/k, COUNT(/n) AS /rows, MAX(/n) AS /most, SUM(/total) AS /sum",
    "group_by": "/k",
}

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
                "spark": {"master": "local[2]", "memory": "512MiB", "conf": conf()},
                "queue": [{"name": "jobs"}, {"name": "more"}, {"name": "results"}],
                "view": [{**VIEW, "name": "spark", "engine": "spark", "trigger": "0s"}, {**VIEW, "name": "server"}],
                "pipeline": [
                    {
                        "name": "sums",
                        "from": {
                            name: {"queue": name, "columns": "id bigint", "max_rows": 200} for name in ("jobs", "more")
                        },
                        "sql": "SELECT id % 7 AS k, count(*) AS n, sum(id) AS total "
                        "FROM (SELECT id FROM jobs UNION ALL SELECT id FROM more) GROUP BY id % 7",
                        "to": [{"topic": "results"}, {"table": str(folder / "sums")}],
                        "trigger": "0s",
                    }
                ],
            }
        )
        command = (sys.executable, str(HERE / "kill_driver.py"))
        self.supervisor = Supervisor(
            settings, ready_file=None, say=self.lines.append, driver=command, pause=(0.05, 0.2)
        )
        self.thread = threading.Thread(target=self.supervisor.run)
        self.published = 0
        self.chance = random.Random(SEED)

    @property
    def server(self) -> Remote:
        """A connection that outlives kills."""
        ready = self.until(lambda: self.supervisor.ready)
        return remote(Where(f"penstock://{ready['flight']}"))

    def publish(self, count: int) -> None:
        """The next messages, half of them to each queue; numbered, so that a kill in between stores none twice."""
        bodies = [json.dumps({"id": i}).encode() for i in range(self.published, self.published + count)]
        for topic, part in (("jobs", bodies[::2]), ("more", bodies[1::2])):
            batch = pa.record_batch({"body": pa.array(part, pa.binary())})
            self.server.put("publish", [batch], topic=topic, publisher=topic, sequence=self.published // 2 + 1)
        self.published += count

    def kill_server(self) -> None:
        pid = self.supervisor.server.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def kill_driver(self) -> None:
        """Python and Java at once, as when the machine's memory is short."""
        driver = self.supervisor.driver
        pid = driver.pid if driver is not None else None
        if pid is not None:
            os.killpg(pid, signal.SIGKILL)

    def kill_worker(self) -> None:
        """One of the Python processes that Spark runs the tasks, the source or the sink in, or who forks them."""
        pid = self.supervisor.driver.pid
        found = [one for one in descendants(pid) if b"fork_server" in command_of(one)] if pid is not None else []
        if found:
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(found), signal.SIGKILL)

    def counts(self, queue: str) -> dict[str, Any]:
        return self.server.act("stats", queue=queue)

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
    for name, value in home().items():
        monkeypatch.setenv(name, value)
    made = Plant(tmp_path)
    made.thread.start()
    yield made
    made.supervisor.stopping.set()
    made.thread.join(60)
    assert not made.thread.is_alive()


FEW = ("driver aimed", "worker in flow", "server in flow", "server aimed")
"""Each process, and the moments that matter; more drivers, which take long to start, are for `make soak-spark`."""

MANY = (
    *["driver in flow"] * 5, *["driver any time"] * 6, *["driver aimed"] * 5, *["worker in flow"] * 5,
    *["server in flow"] * 4, *["server any time"] * 6, *["server aimed"] * 3,
)  # fmt: skip


def test_results_are_exact_whatever_dies(plant: Plant, effort: int) -> None:
    chance = random.Random(SEED)
    pause = threading.Event()
    plan = list(FEW if effort == 1 else MANY)
    chance.shuffle(plan)
    plant.publish(500)
    for what in plan:
        before = plant.done()  # of these 200 more will come, however soon they are done
        plant.publish(200)
        if what == "driver aimed":
            aim = plant.spark / "kill-driver"
            aim.touch()
            plant.until(lambda aim=aim: not aim.exists())
            continue
        if what == "server aimed":
            aim, aside = plant.spark / "kill-server", plant.spark / "kill-server.part"
            pid = plant.until(lambda: plant.supervisor.server.pid)
            aside.write_text(str(pid))
            aside.rename(aim)
            plant.until(lambda aim=aim: not aim.exists())
            continue
        if what.endswith("in flow"):
            plant.until(lambda before=before: plant.done() > before)
            pause.wait(chance.uniform(0.0, 0.7))
        else:
            pause.wait(chance.uniform(0.1, 2.0))  # perhaps while something starts
        {"driver": plant.kill_driver, "worker": plant.kill_worker, "server": plant.kill_server}[what.split()[0]]()

    def settled() -> bool:
        counts = [plant.counts(name) for name in ("jobs", "more")]
        health = plant.server.act("health")  # counts tell what is decided, and rows what is on the disk
        return health["durable"] == health["last"] and sum(one["ready"] + one["leased"] for one in counts) == 0

    plant.until(settled)
    judge(plant)
    judge_views(plant)


def judge(plant: Plant) -> None:
    """Everything is counted once, in the table, in the topic and in the log."""
    total = plant.published
    wanted = {k: (len(range(k, total, 7)), sum(range(k, total, 7))) for k in range(7)}
    sums: Any = pyarrow.dataset.dataset(plant.folder / "sums", format="parquet").to_table()
    assert {row["k"]: (row["n"], row["total"]) for row in sums.to_pylist()} == wanted, f"seed {SEED}"

    found = plant.server.rows("queue", name="results", columns=["body"])
    rows = [json.loads(body) for batch in found for body in batch.column("body").to_pylist()]
    for k in range(7):
        counts = [row["n"] for row in rows if row["k"] == k]
        assert counts == sorted(set(counts)), f"seed {SEED}: a batch is in the topic twice: {k} {counts}"
    last = {row["k"]: (row["n"], row["total"]) for row in rows}
    assert last == wanted, f"seed {SEED}"

    records = [
        (row["name"], json.loads(row["properties"])["batch"])
        for batch in plant.server.rows("log", columns=["kind", "name", "properties"])
        for row in batch.filter(pyarrow.compute.equal(batch.column("kind"), SETTLED)).to_pylist()
    ]
    for stream in ("sums.jobs", "sums.more"):
        settled = [batch for name, batch in records if name == stream]
        assert settled == list(range(1, len(settled) + 1)), f"seed {SEED}"
    batches = read(plant.server, "sums")
    assert len(rows) == 7 * len(batches), f"seed {SEED}"
    given = Counter(lsn for one in batches for part in one.inputs for a, b in part.pairs for lsn in range(a, b))
    assert (len(given), set(given.values())) == (total, {1}), f"seed {SEED}: lineage has not each message once"


def judge_views(plant: Plant) -> None:
    """The view on Spark is that of the server, and what DuckDB says of the messages."""

    def shown(view: str) -> list[tuple[Any, ...]]:
        found = plant.server.rows("sow", topic=view, vhost="/")
        rows = [json.loads(body) for batch in found for body in batch.column("body").to_pylist()]
        return sorted(tuple(row[name] for name in ("k", "rows", "most", "sum")) for row in rows)

    found = plant.server.rows("queue", name="results", columns=["body"])
    rows = [json.loads(body) for batch in found for body in batch.column("body").to_pylist()]
    results = pa.Table.from_pylist(rows)
    query = "SELECT k, count(*), max(n), sum(total)::BIGINT FROM results GROUP BY k ORDER BY k"
    wanted = duckdb.connect().register("results", results).execute(query).fetchall()
    for view in ("server", "spark"):
        plant.until(lambda view=view: shown(view) == wanted)
