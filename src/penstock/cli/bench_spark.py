"""`bench spark`: how many rows a second Spark on this machine reads from a server, follows as a stream, and writes.

Each goes through a queue and topic of its own.  Starting Spark is not part of any figure; a first job of each kind over
a few rows takes what a session does once.  What is measured is Spark, the way to the server, and the server together.
"""

# pyspark is loaded only where it is there, and its stubs are not
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.benching import Count, Size, app, own_queue, send
from penstock.cli.output import DEFAULT_URL, Told, Url, bar, connect, telling, write_table
from penstock.errors import NotFound, Refused, SettingsError

if TYPE_CHECKING:
    from penstock.client import Client

FILLED_BATCH = 10_000

WARM_ROWS = 1_000
"""Of the first jobs, which are not measured."""

MISSING = "bench spark needs pyspark, which is not installed: pip install 'penstock[spark]', and Java 17 beside it"


@telling(app)
def spark(
    count: Count = 1_000_000,
    size: Size = 100,
    master: Annotated[str, typer.Option("--master", help="Where Spark runs.")] = "local[*]",
    url: Url = DEFAULT_URL,
) -> Told:
    """Read a queue as a table, follow its topic as a stream, and write to it, with Spark.

    Example: penstock bench spark --count 5000000
    """
    if find_spec("pyspark") is None:
        raise SettingsError(MISSING)
    with connect(url) as client, own_queue(client, None) as name:
        began = time.perf_counter()
        with session(master) as running, tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            started = time.perf_counter() - began
            with own_queue(client, None) as other:  # what a session does once is part of no figure
                send(client, other, WARM_ROWS, size, FILLED_BATCH)
                warm = Work(running, client, url, other, Path(folder) / "warm")
                for job in (warm.read, warm.follow, lambda: warm.write(WARM_ROWS, size)):
                    job()
            with bar("filling") as moved:
                send(client, name, count, size, FILLED_BATCH, moved)
            work = Work(running, client, url, name, Path(folder))
            seconds = {"read": timed(lambda: work.check(work.read(), count))}
            seconds["stream"] = timed(lambda: work.check(work.follow(), count))
            client.purge(name)
            seconds["sink"] = timed(lambda: work.write(count, size))
            work.check(int(client.queue(name)["ready"]), count)
    return figures(count, size, started, seconds), _show


@contextmanager
def session(master: str) -> Generator[Any]:
    """A Spark session that ends with the bench.  Raises SettingsError without Java 17."""
    from penstock.spark import session as begin

    running = begin(master)
    try:
        running.sparkContext.setLogLevel("ERROR")
        yield running
    finally:
        running.stop()


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Work:
    """What is measured, each over all rows."""

    def __init__(self, running: Any, client: Client, url: str, name: str, folder: Path) -> None:
        self._spark = running
        self._client = client
        self._url = url
        self._name = name
        self._folder = folder

    def read(self) -> int:
        """Every body of the queue, as a table; how many rows."""
        frame = self._spark.read.format("penstock").options(url=self._url, queue=self._name).load()
        row = frame.selectExpr("count(*) AS n", "sum(length(body)) AS bytes").first()
        return int(row["n"])

    def follow(self) -> int:
        """Every message of the topic, as a stream from its beginning; how many rows."""
        rows, stream = 0, f"{self._name}-stream"
        frame = (
            self._spark.readStream.format("penstock")
            .options(url=self._url, topic=self._name, stream=stream, startingBookmark="EPOCH")
            .load()
        )
        query = (
            frame.select("body")
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
            rows = sum(one["numInputRows"] for one in query.recentProgress)
        finally:
            query.stop()
            with suppress(NotFound):
                self._client.release_stream(stream, drop=True)
        return int(rows)

    def write(self, count: int, size: int) -> None:
        """So many rows into the queue, visible together."""
        rows = self._spark.range(count).selectExpr(f"cast(rpad(cast(id AS string), {size}, '.') AS binary) AS body")
        rows.write.format("penstock").options(url=self._url, queue=self._name).mode("append").save()

    @staticmethod
    def check(found: int, wanted: int) -> None:
        """What was measured was all of it."""
        if found != wanted:
            raise Refused(f"of {wanted:,} messages {found:,} came")


def figures(count: int, size: int, started: float, seconds: dict[str, float]) -> dict[str, Any]:
    """The result as JSON has it."""
    found: dict[str, Any] = {"bench": "spark", "messages": count, "bytes": size, "session_seconds": round(started, 3)}
    for name, took in seconds.items():
        found[f"{name}_seconds"], found[f"{name}_per_second"] = round(took, 6), round(count / took, 1)
    return found


def _show(found: dict[str, Any]) -> None:
    rows = [
        (name, f"{found['messages']:,}", found["bytes"], f"{found[f'{name}_seconds']:.2f}",
         f"{found[f'{name}_per_second']:,.0f}")
        for name in ("read", "stream", "sink")
    ]  # fmt: skip
    write_table(("spark", "messages", "of bytes", "seconds", "messages/s"), rows)
