"""Two drivers on one checkpoint, as two processes: the later one fences the earlier, and each row is there once.

The query of this process and one of a process of its own take the stream from each other while rows arrive, 20 times
in `make soak-spark`.  A usual run has two readers of one process.  `PENSTOCK_SEED` repeats the choices.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from choices import SEED
from penstock.testing.process import ServerProcess
from spark.sink_driver import start
from spark_lab import sentence
from waiting import eventually

PATIENCE_S = 120.0
DRIVER = Path(__file__).with_name("sink_driver.py")


def ended(query: Any) -> str:
    """What a query that lost its stream has said."""
    eventually(lambda: not query.isActive, f"it did not come true in time, seed {SEED}", PATIENCE_S)
    error = query.exception()
    assert error is not None
    return sentence(error)


@pytest.mark.bulk("spark/test_stream.py::test_two_readers_of_one_stream")
def test_each_row_is_there_once(spark: Any, tmp_path: Path, effort: int) -> None:
    chance, pause = random.Random(SEED), threading.Event()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(DRIVER.parents[1]), *sys.path])}
    checkpoint, log, published = str(tmp_path / "checkpoint"), tmp_path / "driver.log", 0
    with ServerProcess(tmp_path) as server, penstock.connect(server.flight_url) as client:

        def publish(least: int) -> None:
            nonlocal published
            count = chance.randint(least, 2 * least)
            bodies = [json.dumps({"id": n}).encode() for n in range(published, published + count)]
            client.publish_table("work", pa.table({"body": bodies}))
            published += count

        def acked() -> int:
            return int(client.queue("work")["acked"])

        for queue in ("work", "even", "odd"):
            client.declare(queue)
        for _ in range(effort):
            publish(50)
            ours = start(spark, server.flight_url, checkpoint, stays=True)
            eventually(lambda: acked() > 0, f"it did not come true in time, seed {SEED}", PATIENCE_S)
            with log.open("w") as output:
                command = [sys.executable, str(DRIVER), server.flight_url, checkpoint]
                theirs = subprocess.Popen(command, stderr=output, env=environ, start_new_session=True)
            try:
                while ours.isActive:
                    publish(20)
                    pause.wait(chance.uniform(0.1, 1.0))
                assert lost(ended(ours)), f"seed {SEED}"
                publish(300)
                ours = start(spark, server.flight_url, checkpoint, stays=True)
                assert theirs.wait(PATIENCE_S) == 0 or lost(log.read_text()), f"seed {SEED}: {log.read_text()[-3000:]}"
            finally:
                if theirs.poll() is None:
                    os.killpg(theirs.pid, signal.SIGKILL)
                    theirs.wait()
            if ours.isActive:
                ours.stop()
            else:
                assert lost(ended(ours)), f"seed {SEED}"
        start(spark, server.flight_url, checkpoint).awaitTermination()
        for queue, first in (("even", 0), ("odd", 1)):
            ids = [json.loads(message.body)["id"] for message in client.peek(queue, count=published)]
            assert ids == list(range(first, published, 2)), f"{queue}, seed {SEED}"
        stats = client.queue("work")
        assert (stats["ready"], stats["leased"], stats["acked"]) == (0, 0, published)


def lost(told: str) -> bool:
    """By a fence of ours, that of the stream or of the sink, which has a later batch of the other one, or because Spark
    found the other's entry in the checkpoint, before it wrote or as it did."""
    of_ours = ("stream 'killed' is now read", "comes too late: its checkpoint is an older copy, or two queries have it")
    of_spark = (
        "CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming jobs detected",
        "Multiple streaming queries are concurrently using",
    )  # fmt: skip
    return any(words in told for words in (*of_ours, *of_spark))
