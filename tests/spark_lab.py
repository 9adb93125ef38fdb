"""What the tests of Spark share: a server, a client of it and a session, and how a checkpoint is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from flight_house import FlightHouse
from penstock.client import Client
from penstock.spark.pipelines.driver import short
from penstock.spark.remote import Where, remote
from waiting import eventually


class Lab:
    """A server, a client of it, and Spark."""

    def __init__(self, spark: Any, house: FlightHouse, client: Client) -> None:
        self.spark = spark
        self.house = house
        self.client = client

    def declare(self, *queues: str, **settings: object) -> None:
        for queue in queues:
            self.client.declare(queue, **settings)

    def publish(self, topic: str, ids: Sequence[int], **columns: Any) -> None:
        bodies = [json.dumps({"id": i, "region": "EU" if i % 2 else "US", "total": i / 2}).encode() for i in ids]
        self.client.publish_table(topic, pa.table({"body": pa.array(bodies, pa.binary()), **columns}))

    def read(self, columns: str | None = None, /, **options: object) -> Any:
        reader = self.spark.read.format("penstock").option("url", self.house.url)
        if columns is not None:
            reader = reader.schema(columns)
        return reader.options(**options).load()

    def stream(self, **options: object) -> Any:
        return self.spark.readStream.format("penstock").option("url", self.house.url).options(**options).load()

    def write(self, frame: Any, checkpoint: Path, **options: object) -> Any:
        """Run a stream into a queue or topic with what there is now, to its end."""
        writer = frame.writeStream.format("penstock").option("url", self.house.url).options(**options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def ids(self, queue: str) -> list[int]:
        """What waits in a queue, by the field `id`."""
        return sorted(json.loads(message.body)["id"] for message in self.client.peek(queue, count=1_000_000))

    def act(self, action: str, **fields: object) -> dict[str, Any]:
        """An action of the server's, by its name."""
        return remote(Where(self.house.url)).act(action, **fields)

    def until(self, what: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait until it is true.  Who asks Java how a query goes has it write all that there is to say, each time."""
        eventually(what, seconds=seconds, look=0.2)

    def counts(self, queue: str) -> tuple[int, int, int]:
        stats = self.client.queue(queue)
        return stats["ready"], stats["leased"], stats["acked"]


def sentence(error: BaseException) -> str:
    """What our own code said in an error of Spark's."""
    return short(str(error))


def forget_last_commit(checkpoint: Path) -> int:
    """As a kill between the sink's commit and Spark's commit file, or a power cut, leaves a checkpoint."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return last


def command_of(pid: int) -> bytes:
    """How a process was started; nothing when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
