"""What the benchmarks of the Spark side begin with: a server, a session beside it, and messages whose bodies differ."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from harness import Server, work_folder

BODY = 100
UPLOAD = 100_000
MASTER = "local[2]"


@dataclass(frozen=True, slots=True)
class House:
    """A server with the Flight door alone, a client of it, a session and a folder for files."""

    server: Server
    url: str
    client: Any
    spark: Any
    folder: Path


@contextmanager
def house(where: Path | None, memory: str = "3g") -> Iterator[House]:
    """A house that is gone afterwards.  `where`: the folder for its files; memory: of the session."""
    import penstock
    from penstock.spark import session

    with work_folder(where) as folder, Server(folder, amqp=False, flight=True) as server:
        host, port = server.address("flight")
        url = f"penstock://{host}:{port}"
        spark = session(MASTER, memory=memory, folder=folder / "spark")
        try:
            with penstock.connect(url) as client:
                yield House(server, url, client, spark, folder)
        finally:
            spark.stop()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def publish_bodies(client: Any, topic: str, messages: int, letters: tuple[int, int] = (32, 127)) -> None:
    """Bodies of 100 bytes, of letters between these two; Parquet gains nothing by a dictionary."""
    random = np.random.default_rng(1)
    for start in range(0, messages, UPLOAD):
        count = min(UPLOAD, messages - start)
        data = random.integers(*letters, count * BODY, dtype=np.uint8).tobytes()
        offsets = np.arange(0, (count + 1) * BODY, BODY, dtype=np.int32)
        bodies: Any = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        client.publish_table(topic, pa.table({"body": bodies}))


def noop(frame: Any) -> None:
    """A frame into Spark's sink that keeps nothing."""
    frame.write.format("noop").mode("overwrite").save()
