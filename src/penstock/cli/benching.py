"""`bench publish|consume|both|ping|deep|spark`: load for any server, and how fast it answers; and how many rows a
second Spark on this machine reads from one, follows as a stream, and writes.

Each works on a queue of its own, which goes afterwards; `publish` and `consume` take one that is there with --queue.
What is measured is seen from this client: its own work and the way to the server are part of it.  Memory is that of the
server process as it tells it, so other work on the server counts with it.

Starting Spark is not part of any figure; a first job of each kind over a few rows takes what a session does once.
"""

# pyspark is loaded only where it is there, and its stubs are not
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import secrets
import struct
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import (
    DEFAULT_URL,
    Told,
    Url,
    Yes,
    bar,
    connect,
    counted,
    family,
    make_sure,
    served,
    telling,
    write_table,
)
from penstock.cli.queues import read_settings
from penstock.errors import NotFound, Refused, SettingsError, Unavailable

if TYPE_CHECKING:
    from penstock.client import Client, Message


app = family("bench", "Put load on a server, and measure it.")

STAMP = struct.Struct("<q")
"""What a body begins with: when it was sent, in nanoseconds of this machine's clock."""

FILLED_BATCH = 10_000
"""Messages that are published at once while a queue is filled."""

UNUSED = "1h"
"""A queue of a bench that was killed goes after so long."""

IDLE_S = 30.0
"""A bench that gets nothing for so long gives up."""

Count = Annotated[int, typer.Option("--count", min=1, help="How many messages.")]
Size = Annotated[int, typer.Option("--size", min=STAMP.size, help="Bytes of a body.")]
Batch = Annotated[int, typer.Option("--batch", min=1, max=10_000, help="Messages that are sent and confirmed at once.")]
Backlog = Annotated[int, typer.Option("--backlog", min=1, help="Messages that are unsettled at once.")]
Setting = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the queue that it makes.")
]


@served(app)
def publish(
    client: Client,
    count: Count = 100_000,
    size: Size = 100,
    batch: Batch = 1000,
    queue: Annotated[str | None, typer.Option("--queue", help="Into this queue, where they stay.")] = None,
    setting: Setting = None,
) -> Told:
    """Publish batches one after another, each confirmed when it is on disk.

    Example: penstock bench publish --count 1000000 --batch 10000
    """
    with own_queue(client, setting, given=queue) as name, bar("publishing") as moved:
        began = time.perf_counter()
        confirms = send(client, name, count, size, batch, moved)
        seconds = time.perf_counter() - began
    return figures("publish", count, size, seconds, confirm=confirms), _show


@served(app)
def consume(
    client: Client,
    count: Count = 100_000,
    size: Size = 100,
    backlog: Backlog = 1000,
    queue: Annotated[
        str | None, typer.Option("--queue", help="What is in this queue, which is taken and acknowledged.")
    ] = None,
    setting: Setting = None,
    yes: Yes = False,
) -> Told:
    """Take messages and acknowledge each.  They are published before the clock runs, unless a --queue has them.

    Example: penstock bench consume --count 1000000 --backlog 5000
    """
    if queue is not None:
        ready = int(client.queue(queue)["ready"])
        count = min(count, ready)
        question = f"queue {queue} has {counted(ready, 'ready message')}: take and acknowledge {count:,} of them?"
        if not count:
            return None
        make_sure(question, yes)
    with own_queue(client, setting, given=queue) as name:
        if queue is None:
            with bar("filling") as moved:
                send(client, name, count, size, FILLED_BATCH, moved)
        with bar("consuming") as moved:
            began = time.perf_counter()
            taken = sum(len(message.body) for message in take(client, name, count, backlog, moved))
            seconds = time.perf_counter() - began
    return figures("consume", count, taken / count, seconds), _show


@served(app)
def both(
    client: Client,
    count: Count = 100_000,
    size: Size = 100,
    batch: Batch = 1000,
    backlog: Backlog = 1000,
    setting: Setting = None,
) -> Told:
    """Publish and consume at once.  Delivered is from before a batch is sent until a message of it is here.

    Example: penstock bench both --batch 100 --json
    """
    with ThreadPoolExecutor(1) as pool, own_queue(client, setting) as name, bar("both") as moved:
        began = time.perf_counter()
        sending = pool.submit(send, client, name, count, size, batch)
        delays = [age(message.body) for message in take(client, name, count, backlog, moved)]
        seconds = time.perf_counter() - began
        confirms = sending.result()
    return figures("both", count, size, seconds, confirm=confirms, delivered=delays), _show


@served(app)
def ping(client: Client, count: Count = 1000, size: Size = 100, setting: Setting = None) -> Told:
    """Publish one message at a time: how long until it is confirmed, and until a waiting consumer has it.

    Example: penstock bench ping --count 5000
    """
    with ThreadPoolExecutor(1) as pool, own_queue(client, setting) as name, bar("ping") as moved:
        came: SimpleQueue[float] = SimpleQueue()

        def receive() -> None:
            for message in take(client, name, count + 1, 1):
                came.put(age(message.body))

        receiving = pool.submit(receive)
        confirms, delays = list[float](), list[float]()
        began = time.perf_counter()
        with suppress(Empty):  # then the result of receiving says why
            for done in range(count + 1):
                sent = time.perf_counter()
                client.publish(name, stamped(size))
                confirms.append(time.perf_counter() - sent)
                delays.append(came.get(timeout=IDLE_S))
                if done == 0:  # with which the consumer came: it does not count
                    began = time.perf_counter()
                moved(done, count)
        seconds = time.perf_counter() - began
        receiving.result()
    return figures("ping", count, size, seconds, confirm=confirms[1:], delivered=delays[1:]), _show


# -- work


@contextmanager
def own_queue(client: Client, setting: Sequence[str] | None, given: str | None = None) -> Generator[str]:
    """The queue that is given, or a new one that goes at the end."""
    if given is not None:
        client.queue(given)  # NotFound before anything is sent
        yield given
        return
    name = f"penstock-bench-{secrets.token_hex(4)}"
    settings: dict[str, Any] = {"queue_expires": UNUSED, **read_settings(setting)}
    client.declare(name, **settings)
    try:
        yield name
    finally:
        client.delete(name)


def stamped(size: int) -> bytes:
    """A body that knows when it was sent."""
    return STAMP.pack(time.perf_counter_ns()).ljust(size, b".")


def age(body: bytes) -> float:
    """Seconds since it was sent, by this process."""
    return float(time.perf_counter_ns() - STAMP.unpack_from(body)[0]) / 1e9


def send(
    client: Client,
    queue: str,
    count: int,
    size: int,
    batch: int,
    moved: Callable[[int, int], None] | None = None,
) -> list[float]:
    """Publish; the seconds that each batch took to be on disk.  Refused when a message is."""
    import pyarrow as pa

    took = list[float]()
    for low in range(0, count, batch):
        rows = min(batch, count - low)
        began = time.perf_counter()
        receipt = client.publish_table(queue, pa.record_batch({"body": pa.array([stamped(size)] * rows, pa.binary())}))
        took.append(time.perf_counter() - began)
        if receipt.stored != rows:
            why = receipt.refused[0].message if receipt.refused else f"{receipt.unroutable:,} were not stored"
            raise Refused(f"of {rows:,} messages the server stored {receipt.stored:,}: {why}")
        if moved is not None:
            moved(low + rows, count)
    return took


def take(
    client: Client, queue: str, count: int, backlog: int, moved: Callable[[int, int], None] | None = None
) -> Iterator[Message]:
    """So many messages, each acknowledged; all acks are on disk at the end.  Unavailable when fewer come."""
    consumer = client.consume(queue, backlog=min(backlog, count), timeout=IDLE_S, reconnect=0)
    done = 0
    try:
        for message in consumer:
            yield message
            message.ack()
            done += 1
            if moved is not None and (done % 1000 == 0 or done == count):
                moved(done, count)
            if done == count:
                break
    finally:
        consumer.close()
    if done < count:
        raise Unavailable(f"{done:,} of {count:,} messages came, and then none for {IDLE_S:.0f} s")


# -- figures


def figures(
    what: str,
    count: int,
    size: float,
    seconds: float,
    *,
    confirm: Sequence[float] | None = None,
    delivered: Sequence[float] | None = None,
) -> dict[str, Any]:
    """The result as JSON has it; times in milliseconds."""
    found: dict[str, Any] = {
        "bench": what,
        "messages": count,
        "bytes": round(size),
        "seconds": round(seconds, 6),
        "per_second": round(count / seconds, 1),
    }
    for name, times in (("confirm", confirm), ("delivered", delivered)):
        if times:
            ordered = sorted(times)
            found[f"{name}_ms"] = {
                "p50": share(ordered, 0.5), "p99": share(ordered, 0.99), "max": share(ordered, 1.0),
            }  # fmt: skip
    return found


def share(ordered: Sequence[float], part: float) -> float:
    """The time, in milliseconds, within which so great a part of them lies (nearest rank)."""
    rank = -int(-part * len(ordered) // 1)  # rounded up
    return round(ordered[max(rank - 1, 0)] * 1e3, 3)


def _show(found: dict[str, Any]) -> None:
    """Figures, and times where there are any."""
    row = (
        found["bench"], f"{found['messages']:,}", found["bytes"], f"{found['seconds']:.2f}",
        f"{found['per_second']:,.0f}",
    )  # fmt: skip
    write_table(("bench", "messages", "of bytes", "seconds", "messages/s"), [row])
    times = [(name, found[f"{name}_ms"]) for name in ("confirm", "delivered") if f"{name}_ms" in found]
    if times:
        rows = [(name, *(f"{one[part]:.3f} ms" for part in ("p50", "p99", "max"))) for name, one in times]
        write_table(("", "p50", "p99", "max"), rows)


@served(app)
def deep(
    client: Client,
    count: Annotated[int, typer.Option("--count", min=1, help="How many messages deep.")] = 1_000_000,
    size: Size = 100,
    backlog: Backlog = 5000,
    setting: Setting = None,
) -> Told:
    """Fill a queue, and only then take everything: first delivery, speed both ways, memory of the server.

    Example: penstock bench deep --count 5000000 --size 1000
    """
    memory = {"before": resident(client)}
    with own_queue(client, setting) as name:
        with bar("filling") as moved:
            began = time.perf_counter()
            send(client, name, count, size, FILLED_BATCH, moved)
            filled = time.perf_counter() - began
        memory["full"] = resident(client)
        with bar("draining") as moved:
            first, drained = emptied(client, name, count, backlog, moved)
        memory["drained"] = resident(client)
    return deep_figures(count, size, filled, first, drained, memory), _show_deep


def emptied(
    client: Client, queue: str, count: int, backlog: int, moved: Callable[[int, int], None]
) -> tuple[float, float]:
    """Take everything: seconds until the first message was here, and until the last one was settled."""
    began, first = time.perf_counter(), 0.0
    for _ in take(client, queue, count, backlog, moved):
        first = first or time.perf_counter() - began
    return first, time.perf_counter() - began


def resident(client: Client) -> int:
    """Bytes that the server process has in memory."""
    return int(client.overview()["resident_bytes"])


def deep_figures(
    count: int, size: int, filled: float, first: float, drained: float, memory: dict[str, int]
) -> dict[str, Any]:
    """The result as JSON has it; memory in bytes."""
    return {
        "bench": "deep",
        "messages": count,
        "bytes": size,
        "fill_seconds": round(filled, 6),
        "fill_per_second": round(count / filled, 1),
        "first_delivery_ms": round(first * 1e3, 3),
        "drain_seconds": round(drained, 6),
        "drain_per_second": round(count / drained, 1),
        "memory": memory,
        "memory_a_message": round((memory["full"] - memory["before"]) / count, 1),
    }


def _show_deep(found: dict[str, Any]) -> None:
    """Figures of a deep queue; memory as the server's process has it."""
    row = (
        found["bench"], f"{found['messages']:,}", found["bytes"], f"{found['fill_per_second']:,.0f}",
        f"{found['first_delivery_ms']:.1f} ms", f"{found['drain_per_second']:,.0f}",
    )  # fmt: skip
    write_table(("bench", "messages", "of bytes", "filled/s", "first delivery", "drained/s"), [row])
    sizes = [f"{found['memory'][when] / (1 << 20):,.1f} MiB" for when in ("before", "full", "drained")]
    write_table(("server memory before", "full", "drained", "more a message"), [
        (*sizes, f"{found['memory_a_message']:.1f} bytes"),
    ])  # fmt: skip


# -- Spark


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
    from penstock.spark import session

    with connect(url) as client, own_queue(client, None) as name:
        began = time.perf_counter()
        with session(master) as running, tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            running.sparkContext.setLogLevel("ERROR")
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
    return spark_figures(count, size, started, seconds), _show_spark


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


def spark_figures(count: int, size: int, started: float, seconds: dict[str, float]) -> dict[str, Any]:
    """The result as JSON has it."""
    found: dict[str, Any] = {"bench": "spark", "messages": count, "bytes": size, "session_seconds": round(started, 3)}
    for name, took in seconds.items():
        found[f"{name}_seconds"], found[f"{name}_per_second"] = round(took, 6), round(count / took, 1)
    return found


def _show_spark(found: dict[str, Any]) -> None:
    rows = [
        (name, f"{found['messages']:,}", found["bytes"], f"{found[f'{name}_seconds']:.2f}",
         f"{found[f'{name}_per_second']:,.0f}")
        for name in ("read", "stream", "sink")
    ]  # fmt: skip
    write_table(("spark", "messages", "of bytes", "seconds", "messages/s"), rows)
