"""Nine small pipelines on one driver: how long after `penstock up` each has its first results.

    python benchmarks/bench_spark_pipelines.py [--messages 1000] [--repeat 3]

One settings file has nine queues, nine pipelines and nine queues for results; five of the pipelines choose and change
rows, two keep sums, one is a window with a watermark, and one is a function in Python.  Messages wait in each queue
when `penstock up` starts, on a folder whose pipelines have never run and then on the same folder again.  The clock
begins with the process, so Java's start, Spark's and the server's are part of it, and ends with the first message of
the ninth output.  CPU is that of all its processes until then.

By turns that is measured as it comes, and as docs/pipelines.md advises for quicker starts: with an archive of Spark's
classes, which is made once before.

Every run is checked: each pipeline that gives a row a message has given as many as it was given.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from harness import ROOT, Server, Wrong, emit, kill, parse, parser, usage, work_folder

BUDGET_S = 15.0
PATIENCE_S = 180.0
LOOK_S = 0.25
"""Between two looks: nine questions each, which the server answers beside its work."""

COLUMNS = "id BIGINT, region STRING, total DOUBLE, at TIMESTAMP"
SELECTS = {
    "large": "SELECT id, total FROM input WHERE total >= 0",
    "taxed": "SELECT id, round(total * 1.19, 2) AS gross FROM input",
    "regions": "SELECT id, lower(region) AS region FROM input",
    "dated": "SELECT id, date_trunc('hour', at) AS hour FROM input",
    "ranked": "SELECT id, CASE WHEN total > 50 THEN 'high' ELSE 'low' END AS rank FROM input",
}
SUMS = {
    "by-region": "SELECT region, count(*) AS n, sum(total) AS total FROM input GROUP BY region",
    "by-day": "SELECT to_date(at) AS day, avg(total) AS mean FROM input GROUP BY to_date(at)",
    "by-hour": "SELECT window.start AS hour, count(*) AS n FROM input GROUP BY window(at, '1 hour')",
}
PYTHON = """
from pyspark.sql import functions as F


def odd(orders):
    return orders.where(F.col("id") >= 0).select("id", (F.col("id") % 2).alias("odd"))
"""
NAMES = (*SELECTS, *SUMS, "odd")


WAYS = {"nine pipelines": "none", "nine pipelines with an archive of classes": "archive"}
"""How they run, and the folder of caches that is for it."""


def settings(folder: Path) -> str:
    """The file."""
    out = [
        "[server]", f'data = "{folder}/data"', "", "[listen]", 'amqp = "off"', 'http = "off"', 'flight = "127.0.0.1:0"',
        "", "[spark]", 'master = "local[2]"',
    ]  # fmt: skip
    for name in NAMES:
        what = 'python = "nine:odd"' if name == "odd" else f'sql = "{ {**SELECTS, **SUMS}[name] }"'
        mark = ', watermark = { column = "at", delay = "10m" }' if name == "by-hour" else ""
        out += [
            "", "[[queue]]", f'name = "{name}"', "", "[[queue]]", f'name = "out-{name}"', "", "[[pipeline]]",
            f'name = "{name}"', f'from = {{ queue = "{name}", columns = "{COLUMNS}"{mark} }}', what,
            f'to = [{{ queue = "out-{name}" }}]', 'trigger = "0s"',
        ]  # fmt: skip
    (folder / "nine.py").write_text(PYTHON)
    return "\n".join(out) + "\n"


def main() -> None:
    """Measure."""
    given = parse(parser(__doc__ or "", messages=1_000, repeat=3, quick=100))
    figures = {(way, what): list[float]() for way in WAYS for what in ("first", "CPU", "again")}
    with work_folder(given.folder) as caches:
        archived = [sys.executable, "-m", "penstock.spark.class_archive"]
        subprocess.run(archived, env=environ(caches / "archive"), stdout=subprocess.DEVNULL, check=True)
        for _ in range(given.repeat):
            for way, name in WAYS.items():
                cache = caches / name
                with work_folder(given.folder) as folder:
                    (folder / "penstock.toml").write_text(settings(folder))
                    publish(folder, given.messages)
                    seconds, cpu = started(folder, given.messages, 1, cache)
                    figures[way, "first"].append(seconds)
                    figures[way, "CPU"].append(cpu)
                    publish(folder, given.messages)
                    figures[way, "again"].append(started(folder, given.messages, 2, cache)[0])
                    shutil.rmtree(folder, ignore_errors=True)
    told: dict[str, object] = {"pipelines": len(NAMES), "messages": given.messages, "load": os.getloadavg()[0]}
    for way in WAYS:
        emit(f"{way}, first results of all", figures[way, "first"], "s", budget=BUDGET_S, settings=told)
        emit(f"{way}, first results of all: CPU", figures[way, "CPU"], "s", settings=told)
        emit(f"{way}, the same folder again", figures[way, "again"], "s", budget=BUDGET_S, settings=told)


def environ(cache: Path) -> dict[str, str]:
    """Of processes whose archive of classes is in a cache folder, or is not there."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(cache)}


def publish(folder: Path, messages: int) -> None:
    """Messages into each queue, before the pipelines run."""
    import penstock

    with Server(folder, amqp=False, flight=True) as server:
        host, port = server.address("flight")
        with penstock.connect(f"penstock://{host}:{port}") as client:
            for name in NAMES:
                client.declare(name)
                bodies = [
                    b'{"id":%d,"region":"EU","total":%d.5,"at":"2026-11-%02dT%02d:00:00Z"}'
                    % (n, n % 100, 1 + n % 20, n % 24)
                    for n in range(messages)
                ]
                client.publish_table(name, pa.table({"body": pa.array(bodies, pa.binary())}))
        server.stop()


def started(folder: Path, messages: int, run: int, cache: Path) -> tuple[float, float]:
    """Seconds, and CPU seconds, until all outputs have something."""
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "up", str(folder / "penstock.toml")]
    command += ["--ready-file", str(ready)]
    begun = time.perf_counter()
    with (folder / "up.out").open("wb") as out:
        process = subprocess.Popen(
            command, env=environ(cache), stdout=out, stderr=out, cwd=folder, start_new_session=True
        )
    try:
        awaited(process, ready.exists, folder)
        import json

        import penstock

        address = str(json.loads(ready.read_text())["flight"])
        with penstock.connect(f"penstock://{address.rpartition('//')[2]}") as client:
            before = dict.fromkeys(NAMES, 0) if run == 1 else None
            if before is None:
                before = {name: int(client.queue(f"out-{name}")["ready"]) for name in NAMES}
            waiting = [name for name in NAMES if run == 1 or name != "by-hour"]  # those rows are late by now
            when = dict[str, float]()
            while waiting:
                for name in list(waiting):
                    if int(client.queue(f"out-{name}")["ready"]) > before[name]:
                        waiting.remove(name)
                        when[name] = time.perf_counter() - begun
                awaited(process, lambda: True, folder, begun)
                time.sleep(LOOK_S)
            seconds, cpu = max(when.values()), usage(process.pid).cpu_s
            print({name: round(at, 1) for name, at in when.items()}, file=sys.stderr)
            rows = dict.fromkeys((*SELECTS, "odd"), messages * run)
            awaited(process, lambda: all(_ready(client, name) >= many for name, many in rows.items()), folder)
            if (found := {name: _ready(client, name) for name in rows}) != rows:
                raise Wrong(f"{rows} were to come out, and there are {found}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            kill(process)
    return seconds, cpu


def _ready(client: Any, name: str) -> int:
    return int(client.queue(f"out-{name}")["ready"])


def awaited(
    process: subprocess.Popen[bytes], what: Callable[[], bool], folder: Path, begun: float | None = None
) -> None:
    """Until it is so.  Raises Wrong when it takes too long, or the process has ended."""
    until = (begun or time.perf_counter()) + PATIENCE_S
    while True:
        if process.poll() is not None or time.perf_counter() > until:
            log = folder / "data" / "spark" / "driver.log"
            told = (folder / "up.out").read_text()[-3000:] + (log.read_text()[-3000:] if log.exists() else "")
            raise Wrong(f"it did not come to results: {told}")
        if what():
            return
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
