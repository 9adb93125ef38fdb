"""kill -9 of the server and of Spark's driver while a queue is written to two topics: each row is there once.

The server is killed between stage and commit, and at random moments.  A driver of its own takes many seconds to start,
so those kills come with more effort (`make soak`); `test_kills` kills one with every run.  `PENSTOCK_SEED` repeats the
choices.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from choices import SEED
from penstock.errors import PenstockError
from penstock.spark.remote import Remote, Where
from penstock.testing.process import ServerProcess
from spark.sink_driver import start

ROWS = 400
PATIENCE_S = 120.0


def publish(server: ServerProcess) -> None:
    with penstock.connect(server.flight_url) as client:
        for queue in ("work", "even", "odd"):
            client.declare(queue)
        client.publish_table("work", pa.table({"body": [json.dumps({"id": n}).encode() for n in range(ROWS)]}))


def staged(server: ServerProcess) -> None:
    """Wait until some task has put rows on the server."""
    remote, until = Remote(Where(server.flight_url)), time.monotonic() + PATIENCE_S
    while not remote.act("stages")["stages"] and any(
        remote.act("stats", queue="work")[what] for what in ("ready", "leased")
    ):
        assert time.monotonic() < until, "no task has staged anything"


def check(server: ServerProcess) -> None:
    with penstock.connect(server.flight_url) as client:
        for queue, first in (("even", 0), ("odd", 1)):
            ids = [json.loads(message.body)["id"] for message in client.peek(queue, count=ROWS)]
            assert ids == list(range(first, ROWS, 2)), f"{queue} with PENSTOCK_SEED={SEED}"
        stats = client.queue("work")
        assert (stats["ready"], stats["leased"]) == (0, 0)
        assert client.action("stages")["stages"] == []
    server.stop()
    told = subprocess.run(
        [sys.executable, "-m", "penstock", "audit", "--json", "--data", str(server.data)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert json.loads(told.stdout)["counts"]["queue messages settled"] == ROWS  # `acked` counts since the last start


def test_kills_of_the_server(spark: Any, tmp_path: Path, effort: int) -> None:
    chance = random.Random(SEED)
    with ServerProcess(tmp_path) as server:
        publish(server)
        query = start(spark, server.flight_url, str(tmp_path / "checkpoint"))
        for turn in range(2 * effort):
            if turn % 2 == 0:
                staged(server)
            else:
                query.awaitTermination(chance.uniform(0.05, 0.4))
            if not query.isActive:
                break
            server.kill()
            server.start()
        query.awaitTermination(PATIENCE_S)
        assert query.exception() is None
        check(server)


def test_kills_of_the_driver(tmp_path: Path, effort: int) -> None:
    chance = random.Random(SEED)
    kills = effort - 1
    if not kills:
        pytest.skip("a driver takes long to start: PENSTOCK_EFFORT says how many to kill")
    command = [sys.executable, str(Path(__file__).with_name("sink_driver.py"))]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    with ServerProcess(tmp_path) as server:
        publish(server)
        arguments = [*command, server.flight_url, str(tmp_path / "checkpoint")]
        while True:
            driver = subprocess.Popen(arguments, start_new_session=True, env=environ)
            if not kills:
                assert driver.wait(PATIENCE_S) == 0
                break
            try:
                staged(server)
                driver.wait(chance.uniform(0.0, 0.3))
            except (PenstockError, subprocess.TimeoutExpired):
                pass  # the moment has come
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            kills -= 1
        check(server)
