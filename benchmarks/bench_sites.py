"""Two sites that share a queue, as servers with disks and sockets: how late, how dear and how fast a link is.

    python benchmarks/bench_sites.py --messages 200000

delay      messages that are published at one site, so many a second, until a reader of the other site has them; beside
           it the same for a reader of the first site, which no link delays
confirm    one message at a time over Flight, alone and with a link that is synchronous
transfer   one message whose site has no consumer: from the owner's decision until a consumer at the other site holds it
           (two syncs, and a link between), and from its publish until it is there
cost       CPU of both servers, all their processes, while a site hears what it has missed: nothing else goes on
worked     messages whose site has no consumer, worked at the other one: asked for, granted, leased, settled

Both servers and the client are on this machine: with two cores they share them, and it shows in the delays.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from harness import ROOT, Wrong, compile_sources, emit, parse, parser, percentile, until, usage, work_folder
from pyarrow import flight

import penstock

sys.path.insert(0, str(ROOT / "tests"))  # its sites

from sites import house

SIZE = 150
RATE = 20_000
PIECES = 200
"""Batches a second of what is published at a rate."""

LOOK_S = 0.05
"""How often a site is asked what it has while its CPU is measured: an answer is CPU of its, too."""

ALONE = 60
CONFIRMS = 200
WORKERS, BACKLOG = 2, 20_000
spawned: Any = mp.get_context("spawn")


def stamped(count: int) -> pa.RecordBatch:
    """Messages that say when they were sent."""
    bodies = np.zeros((count, SIZE), np.uint8)
    bodies[:, :8] = np.frombuffer(np.int64(time.monotonic_ns()).tobytes(), np.uint8)
    offsets = pa.py_buffer(np.arange(0, (count + 1) * SIZE, SIZE, dtype=np.int32).tobytes())
    return pa.record_batch([pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(bodies)])], ["body"])


def options(client: Any) -> Any:
    return flight.FlightCallOptions(headers=[client.authenticate_basic_token("guest", "guest")])


def paced(port: int, seconds: float) -> int:
    """Publish at the rate; how many."""
    client: Any = flight.FlightClient(f"grpc://127.0.0.1:{port}")
    descriptor: Any = flight.FlightDescriptor.for_command(json.dumps({"publish": {"topic": "work"}}).encode())
    rows = RATE // PIECES
    writer, reader = client.do_put(descriptor, stamped(1).schema, options(client))
    sent = answered = 0
    began = time.monotonic()
    while sent < seconds * PIECES:
        time.sleep(max(0.0, began + sent / PIECES - time.monotonic()))
        writer.write_batch(stamped(rows))
        sent += 1
        while sent - answered > PIECES // 10:
            reader.read()
            answered += 1
    writer.write_metadata(json.dumps({"end": {"rows": sent * rows}}).encode())
    writer.done_writing()
    while answered < sent:
        reader.read()
        answered += 1
    writer.close()
    client.close()
    return sent * rows


def read(port: int, count: int, told: Any) -> None:
    """A process: follow a site's log; milliseconds from the publish of each message until it came."""
    client: Any = flight.FlightClient(f"grpc://127.0.0.1:{port}")
    ticket = {"topic": "work", "bookmark": "NOW", "columns": ["body"], "follow": True}
    reader = client.do_get(flight.Ticket(json.dumps({"replay": ticket}).encode()), options(client))
    told.put(None)
    delays = list[Any]()
    came = 0
    while came < count:
        batch = reader.read_chunk().data
        if batch is None or not batch.num_rows:
            continue
        now = time.monotonic_ns()
        column = batch.column("body")
        _, offsets, values = column.buffers()
        first = np.frombuffer(offsets, np.int32)[column.offset]
        bodies = np.frombuffer(values, np.uint8)[first : first + SIZE * len(column)].reshape(-1, SIZE)
        delays.append((now - np.ascontiguousarray(bodies[:, :8]).view(np.int64).ravel()) / 1e6)
        came += len(column)
    told.put(np.concatenate(delays))
    reader.cancel()


def delay(sites: house.Sites, reader: str, seconds: float) -> tuple[float, float]:
    """Milliseconds, the median and the 99th percentile, of messages published at a and read at a site."""
    told = spawned.Queue()
    count = int(seconds * PIECES) * (RATE // PIECES)
    process = spawned.Process(target=read, args=(sites[reader].flight_port, count, told), daemon=True)
    process.start()
    told.get(timeout=60)
    paced(sites["a"].flight_port, seconds)
    found = told.get(timeout=60)
    process.join(10)
    steady = found[RATE // 2 :] if len(found) > RATE else found  # the first half second is of connections
    return float(np.median(steady)), float(np.quantile(steady, 0.99))


def confirm(site: house.Site, count: int) -> float:
    """Milliseconds of one, the median."""
    taken = list[float]()
    with site.client() as client:
        for _ in range(count):
            began = time.perf_counter()
            client.publish("work", bytes(SIZE))
            taken.append((time.perf_counter() - began) * 1e3)
    return percentile(taken, 0.5)


def transfers(a: house.Site, b: house.Site, count: int) -> tuple[float, float]:
    """Milliseconds, medians: from the owner's decision until the lease, and from the publish until it came."""
    decided, whole = list[float](), list[float]()
    with a.client() as here, b.client() as there, there.consume("work", backlog=10) as consumer:
        for _ in range(count):
            began = time.time()
            sent = here.publish("work", bytes(SIZE))
            message = consumer.take(timeout=30)
            if message is None:
                raise Wrong("a message was not given to the only consumer there is")
            whole.append((time.time() - began) * 1e3)
            message.ack()
            consumer.flush()
            events = {one["event"]: one["time"] for one in there.story(message.bookmark)["events"]}
            before = {one["event"]: one["time"] for one in here.story(sent.bookmark)["events"]}
            decided.append((events["leased"] - before["owned"]) * 1e3)
    return percentile(decided, 0.5), percentile(whole, 0.5)


def cpu(site: house.Site) -> float:
    assert site.process is not None
    return usage(site.process.pid).cpu_s


def fill(site: house.Site, count: int) -> None:
    body = pa.table({"body": pa.array([bytes(SIZE)] * 10_000, pa.binary())})
    with site.client() as client:
        for start in range(0, count, 10_000):
            client.publish_table("work", body.slice(0, min(10_000, count - start)))


def costs(a: house.Site, b: house.Site, count: int) -> tuple[float, float]:
    """Microseconds of CPU a message, of the sender's and the receiver's processes."""
    with a.client() as client, b.client() as watching:
        client.pause_link("b")
        fill(a, count)
        time.sleep(1.0)
        before = cpu(a), cpu(b)
        client.resume_link("b")
        while watching.stats("work")["foreign"] < count:
            time.sleep(LOOK_S)
        time.sleep(0.2)
        return (cpu(a) - before[0]) / count * 1e6, (cpu(b) - before[1]) / count * 1e6


def worker(url: str, told: Any) -> None:
    """A process: work what comes, until nothing has for a while."""
    done = 0
    with penstock.connect(url) as client, client.consume("work", backlog=BACKLOG, timeout="3s") as consumer:
        told.put((time.monotonic(), 0))
        for batch in consumer.batches():
            done += len(batch)
            batch.ack()
            told.put((time.monotonic(), len(batch)))
    told.put(None)


def worked(a: house.Site, b: house.Site, count: int) -> float:
    """Messages a second of a's that are worked at b."""
    until(lambda: b.queue()["foreign"] == count, "the other site has all")
    time.sleep(0.2)
    told = spawned.Queue()
    processes = [spawned.Process(target=worker, args=(b.url, told), daemon=True) for _ in range(WORKERS)]
    for one in processes:
        one.start()
    at, left, done = list[float](), WORKERS, 0
    while left:
        found = told.get(timeout=120)
        if found is None:
            left -= 1
        else:
            at.append(found[0])
            done += found[1]
    if done != count:
        raise Wrong(f"{done} messages were worked, and {count} published")
    until(lambda: a.waiting() == b.waiting() == 0, "both sites know that all is worked")
    return count / (max(at) - min(at))


@contextmanager
def linked(folder: Path, link: str = "") -> Iterator[house.Sites]:
    house.Site.loads = True  # processes that share no memory with this one
    with house.Sites(folder, link=link) as sites:
        sites.linked()
        yield sites


def run(folder: Path, messages: int, seconds: float, few: int) -> dict[str, float]:
    """One run of all of it; each figure under its name."""
    found = dict[str, float]()
    with linked(folder / "async") as sites:
        a, b = sites["a"], sites["b"]
        found["alone"] = confirm(a, few)
        with a.client() as client:
            client.purge("work")
        until(lambda: b.waiting() == 0, "purged")
        found["transfer"], found["whole"] = transfers(a, b, few)
        for reader in "ab":
            found[f"median {reader}"], found[f"late {reader}"] = delay(sites, reader, seconds)
        with a.client() as client:
            client.purge("work")
        until(lambda: b.waiting() == 0, "purged")
        found["sender"], found["receiver"] = costs(a, b, messages)
        found["worked"] = worked(a, b, messages)
    with linked(folder / "sync", "sync = true") as sites:
        found["confirm"] = confirm(sites["a"], few)
    return found


def main() -> None:
    """Some runs, and the median of each figure beside its budget."""
    given = parse(parser(__doc__ or "", messages=200_000, repeat=3, quick=4_000))
    compile_sources(ROOT / "src")
    seconds, few = (1.0, 5) if given.quick else (5.0, ALONE)
    with work_folder(given.folder) as folder:
        runs = [run(folder / str(number), given.messages, seconds, few) for number in range(given.repeat)]
    settings = {"messages": given.messages, "body": SIZE, "rate": RATE}

    def told(what: str, name: str, unit: str, **more: Any) -> None:
        emit(f"links: {what}", [one[name] for one in runs], unit, settings=settings, **more)

    told("read where it was published, p99", "late a", "ms")
    told("read at the other site, p99", "late b", "ms", budget=10.0)
    told("read at the other site, median", "median b", "ms")
    told("confirm alone", "alone", "ms")
    told("confirm with a synchronous link", "confirm", "ms")
    told("transfer, from the owner's decision to the lease", "transfer", "ms")
    told("transfer, from the publish to the consumer", "whole", "ms")
    told("sender, CPU", "sender", "us/message", budget=0.5)
    told("receiver, CPU", "receiver", "us/message", budget=1.0)
    told("no consumer at their site, worked at another", "worked", "messages/s", budget=50_000, sense="at least")


if __name__ == "__main__":
    main()
