"""Filters: one that matches 1 message in 10,000 over a deep queue, and a thousand consumers with filters on a stream.

    PYTHONPATH=src python benchmarks/bench_filters.py [--quick] [--messages 10000000] [--only sparse|stream]

Sparse: the queue is filled through Flight, then a consumer with a filter subscribes over AMQP.  Told are the time to
its first message, the rate at which the rest is scanned (until the last match has come), and the longest round trip of
another connection meanwhile, which shows how long the loop was held.  Stream: 20,000 messages a second, and the CPU of
the server a message with one consumer, with 1,000 consumers of one filter, and with 1,000 filters.
`--messages 1000000` is the short mode.
"""

from __future__ import annotations

import argparse
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from amqp_client import Link, content, method
from flight_client import Door
from harness import Server, Wrong, emit, parse, parser, percentile, work_folder

EVERY = 10_000
BATCH = 20_000
BODY = b'{"customer":"c00000","order":00000000,"amount":12.50,"currency":"EUR","lines":[1,2,3],"note":"none"}'
RATE = 20_000
GROWTH = 1.5
"""So many times the cost with nothing waiting is still no growth."""

BURST = 20
FILTERS = {"text": "/customer = 'c0471{run}'", "number": "/amount = -{run}.5"}
"""One whose text tells where to look, and one that has to be evaluated for every message.  Each run has a filter of its
own: what an earlier consumer gave back is found without a scan."""


def bodies(first: int, count: int, every: int = EVERY) -> pa.Array[Any]:
    """JSON of 100 bytes: `customer` repeats every 10,000 messages; the amount of c0472n is -n.5, of all others 12.5."""
    rows = np.tile(np.frombuffer(BODY, np.uint8), (count, 1))
    numbers = np.arange(first, first + count)
    for width, start, value in ((5, BODY.index(b"c0") + 1, numbers % every), (7, BODY.index(b"00000000") + 1, numbers)):
        for digit in range(width):
            rows[:, start + digit] = ord("0") + value // 10 ** (width - 1 - digit) % 10
    rows[:, BODY.index(b"00000000")] = ord("1")
    sign = BODY.index(b"12.50")  # -n.50
    for run in range(10):
        marked = numbers % every == 4720 + run
        rows[marked, sign], rows[marked, sign + 1] = ord("-"), ord("0") + run
    offsets = np.arange(0, (count + 1) * len(BODY), len(BODY), dtype=np.int32)
    buffers: list[Any] = [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def fill(address: tuple[str, int], topic: str, count: int) -> None:
    """Publish so many messages."""
    with Door(address) as door:
        for first in range(0, count, 50 * BATCH):
            stop = min(first + 50 * BATCH, count)
            door.publish(
                topic,
                [
                    pa.RecordBatch.from_arrays([bodies(at, min(BATCH, stop - at))], names=["body"])
                    for at in range(first, stop, BATCH)
                ],
            )


def subscribe(link: Link, queue: str, tag: str, text: str | None, prefetch: int = 0, *, no_ack: bool = False) -> None:
    """A consumer with a filter; its deliveries come on the link."""
    table = b""
    if text is not None:
        table = b"\x08x-filterS" + struct.pack(">I", len(text)) + text.encode()
    arguments = b"\0\0" + _short(queue) + _short(tag) + (b"\x02" if no_ack else b"\0")
    arguments += struct.pack(">I", len(table)) + table
    link.call((60, 10), struct.pack(">IHB", 0, prefetch, 0), (60, 11))
    link.sock.sendall(method((60, 20), arguments))


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


class Probe(threading.Thread):
    """Another connection that asks the loop something, again and again: `longest` is the longest it had to wait."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__()
        self._link = Link(address)
        self._over = threading.Event()
        self.waits: list[float] = []

    def run(self) -> None:
        """Ask until `stop`."""
        while not self._over.wait(0.002):
            asked = time.perf_counter()
            self._link.round_trip()
            self.waits.append(time.perf_counter() - asked)

    def stop(self) -> None:
        """No more questions."""
        self._over.set()
        self.join()
        self._link.close()


def deliveries(link: Link, count: int, since: float) -> list[float]:
    """When each of so many deliveries came, in seconds after `since`."""
    came: list[float] = []
    while len(came) < count:
        kind, _, payload = link.read_frame()
        if kind == 1 and struct.unpack_from(">HH", payload) == (60, 60):
            came.append(time.perf_counter() - since)
        elif kind == 1 and struct.unpack_from(">HH", payload) not in ((60, 21), (60, 11)):
            raise Wrong("something else than a delivery came")
    return came


def sparse(folder: Path, given: argparse.Namespace) -> None:
    """A filter that matches 1 in 10,000 over a deep queue."""
    n: int = max(given.messages, EVERY)
    matches = n // EVERY
    with Server(folder / "sparse", flight=True, environ={"PENSTOCK_SERVER__MEMORY": "8MiB"}) as server:
        with Link(server.address("amqp")) as link:
            link.declare("deep")
        fill(server.address("flight"), "deep", n)
        settings: dict[str, object] = {"messages": n, "matching": f"1 in {EVERY:,}", "cache_mib": 8}
        probe = Probe(server.address("amqp"))
        probe.start()
        time.sleep(0.1 if given.quick else 2.0)  # the probe measures on its own meanwhile
        probe.stop()
        emit("longest wait of others without a scan", [max(probe.waits) * 1e3], "ms", settings=settings)
        for name, text in FILTERS.items():
            first: list[float] = []
            rates: list[float] = []
            longest: list[float] = []
            usual: list[float] = []
            cpu: list[float] = []
            for run in range(given.repeat):
                probe = Probe(server.address("amqp"))
                with Link(server.address("amqp")) as link:
                    probe.start()
                    before = server.usage().cpu_s
                    asked = time.perf_counter()
                    subscribe(link, "deep", "sparse", text.format(run=run % 10))
                    came = deliveries(link, matches, asked)
                    cpu.append((server.usage().cpu_s - before) / n * 1e6)
                    probe.stop()
                first.append(came[0])
                rates.append(n / came[-1] / 1e6)
                longest.append(max(probe.waits) * 1e3)
                usual.append(percentile(probe.waits, 0.99) * 1e3)
            told = {**settings, "filter": text}
            emit(f"sparse filter ({name}): first match", first, "s", budget=1.0, settings=told)
            emit(f"sparse filter ({name}): scanned", rates, "M/s", budget=1.0, sense="at least", settings=told)
            emit(f"sparse filter ({name}): longest wait of others", longest, "ms", budget=20.0, settings=told)
            emit(f"sparse filter ({name}): p99 wait of others", usual, "ms", settings=told)
            emit(f"sparse filter ({name}): server CPU", cpu, "us/message", settings=told)
        late: list[float] = []
        for _ in range(given.repeat):
            with Link(server.address("amqp")) as link:
                asked = time.perf_counter()
                subscribe(link, "deep", "late", None, 1)
                late += deliveries(link, 1, asked)
        emit("late consumer on a deep queue: first message", late, "s", budget=1.0, settings=settings)


class Stream(threading.Thread):
    """Consumers on one channel that ack all that a read brought with one `multiple`; reads until `count` came."""

    def __init__(self, address: tuple[str, int], queue: str, texts: Sequence[str | None], count: int) -> None:
        super().__init__()
        self._link = Link(address)
        self._count = count
        self.got = 0
        for place, text in enumerate(texts):
            subscribe(self._link, queue, f"c{place}", text, 1000)
            while (frame := self._link.read_frame())[2][:4] != struct.pack(">HH", 60, 21):
                if frame[2][:4] != struct.pack(">HH", 60, 11):
                    raise Wrong("a consumer was refused")

    def run(self) -> None:
        """Read and ack."""
        rest, tag = b"", 0
        while self.got < self._count:
            rest += self._link.sock.recv(1 << 18)
            at, end = 0, len(rest)
            while at + 7 <= end:
                size = int.from_bytes(rest[at + 3 : at + 7], "big")
                if at + 8 + size > end:
                    break
                if rest[at] == 1:  # basic.deliver: consumer tag, delivery tag
                    place = at + 12 + rest[at + 11]
                    tag = int.from_bytes(rest[place : place + 8], "big")
                    self.got += 1
                at += 8 + size
            rest = rest[at:]
            self._link.ack(tag, multiple=True)
        self._link.round_trip()
        self._link.close()


def stream(folder: Path, given: argparse.Namespace) -> None:
    """20,000 messages a second for one consumer, a thousand consumers of one filter, a thousand filters.

    Each with nothing waiting, and with many messages waiting that no filter wants: the cost must not grow with them.
    """
    n = min(given.messages, 100_000)
    deep = max(given.messages // 10 // BURST, 1) * BURST
    unwanted = (head_of("stream") + content(b'{"nobody": 1}', b"\x10\x00\x02")) * BURST
    many = 100 if given.quick else 1000
    every = "/currency = 'EUR'"
    modes: dict[str, tuple[list[str | None], float | None]] = {
        "one consumer": ([every], None),
        f"{many:,} consumers, one filter": ([every] * many, 1.2),
        f"{many:,} filters": ([f"/customer = 'c{place:05d}'" for place in range(many)], 4.0),
    }
    cycle = bodies(0, 2000, many).to_pylist()
    frames = [head_of("stream") + content(body, b"\x10\x00\x02") for body in cycle]
    bursts = [b"".join(frames[at : at + BURST]) for at in range(0, len(frames), BURST)]
    alone = 0.0
    for name, (texts, budget) in modes.items():
        shallow = 0.0
        for waiting in (0, deep):
            costs = [_cost(folder / f"s{len(texts)}{budget}{waiting}{run}", texts, n, bursts, unwanted, waiting)
                     for run in range(given.repeat)]  # fmt: skip
            usual = sorted(costs)[len(costs) // 2]
            alone = alone or usual
            most = None if budget is None else budget * alone
            if waiting:
                most = GROWTH * shallow
            shallow = shallow or usual
            settings = {"messages": n, "rate": RATE, "consumers": len(texts), "filters": len(set(texts))}
            what = f"stream: {name}" + (f", {waiting:,} wait" if waiting else "")
            emit(what, costs, "us/message", budget=most, settings={**settings, "waiting": waiting})


def head_of(queue: str) -> bytes:
    """The method frame of a publish to a queue."""
    return method((60, 40), b"\0\0" + _short("") + _short(queue) + b"\0")


def _cost(
    folder: Path, texts: Sequence[str | None], n: int, bursts: Sequence[bytes], unwanted: bytes, waiting: int
) -> float:
    """Microseconds of server CPU a message."""
    with Server(folder) as server:
        address = server.address("amqp")
        with Link(address) as link:
            link.declare("stream")
            readers = Stream(address, "stream", texts, n)
            for _ in range(waiting // BURST):
                link.sock.sendall(unwanted)
            link.round_trip()
            readers.start()
            before = server.usage().cpu_s
            started = time.perf_counter()
            for sent in range(0, n, BURST):
                link.sock.sendall(bursts[sent // BURST % len(bursts)])
                ahead = started + (sent + BURST) / RATE - time.perf_counter()
                if ahead > 0:
                    time.sleep(ahead)  # an open loop: the rate is kept whatever the server does
            readers.join()
            return (server.usage().cpu_s - before) / n * 1e6


PARTS = {"sparse": sparse, "stream": stream}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    options = parser(__doc__ or "", messages=10_000_000, quick=20_000, repeat=2)
    options.add_argument("--only", choices=list(PARTS), help="one part")
    given = parse(options)
    with work_folder(given.folder) as folder:
        for name, part in PARTS.items():
            if given.only in (None, name):
                part(folder, given)


if __name__ == "__main__":
    main()
