"""The budget of `server.memory` is a hard bound: resident memory under mixed load that is far larger than it.

    python benchmarks/bench_memory_bound.py --messages 20000
    python benchmarks/bench_memory_bound.py --whole          (20 GB; half an hour)

`server.memory = 64MiB`.  Bodies of 100 bytes to 1 MB go to one queue, half of them before anybody consumes; then 50
consumers come, each with a filter of its own, two of which take their messages and never acknowledge, while the other
half is published.  Every body is checked.  Judged is the highest resident memory of the server, and what its bulk child
holds of its own beyond a child that was asked only whether it lives, against `server.memory` + 24 bytes for each
message that waited + the empty server + 10 %.  Empty is a server that has loaded all that it loads by itself.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
from harness import Server, Wrong, emit, memory, parse, parser, private, work_folder

from penstock.server.app import WARM_UP_S
from penstock.server.bulk.process import Bulk

BUDGET = 64 << 20
FILTERS = 50
PUBLISHERS = 8
INDEX = 24
SIZES = (100, 4_000, 64_000, 1_000_000)
SHARES = (50, 35, 14, 1)
MEAN = sum(size * share for size, share in zip(SIZES, SHARES, strict=True)) // sum(SHARES)
WHOLE = 20 * 10**9
SILENT_S = 120.0
STUBBORN = (3, 4)
"""Consumers that acknowledge nothing: what they hold stays leased."""


def body_of(number: int) -> bytes:
    """A message that anybody can make again from its number."""
    chance = random.Random(number)
    size = chance.choices(SIZES, SHARES)[0]
    pad = hashlib.sha256(b"%d" % number).hexdigest() * (size // 64 + 1)
    return b'{"k":%d,"n":%d,"pad":"%s"}' % (number % FILTERS, number, pad[:size].encode())


def connection(address: tuple[str, int]) -> Any:
    """A pika connection."""
    return pika.BlockingConnection(pika.ConnectionParameters(*address, heartbeat=0))


class Peak(threading.Thread):
    """Looks at the server's memory twenty times a second."""

    def __init__(self, server: Server, child: int) -> None:
        """child: bytes of an empty one."""
        super().__init__(daemon=True)
        self.server, self.child = server, child
        self.highest = 0  # of both, but for an empty child
        self.own = 0  # of the server alone
        self.whole = 0  # of both
        self.ended = threading.Event()

    def run(self) -> None:
        """Until `ended`."""
        while not self.ended.wait(0.05):
            now = memory(self.server.pid)
            self.highest = max(self.highest, now.own + max(0, now.children - self.child))
            self.own, self.whole = max(self.own, now.own), max(self.whole, sum(now))


def empty_child(folder: Path) -> int:
    """Bytes of a bulk child that has answered the least that it can be asked."""
    (folder / "log").mkdir(parents=True)
    bulk = Bulk(folder)
    try:
        bulk.call("ping", {})
        assert bulk.pid is not None
        return private(bulk.pid)
    finally:
        bulk.close()


def publish(address: tuple[str, int], numbers: range) -> None:
    """From several connections at once, each of which waits for each of its confirms."""

    def some(numbers: range) -> None:
        link = connection(address)
        channel = link.channel()
        channel.confirm_delivery()
        durable = pika.BasicProperties(delivery_mode=2)
        for number in numbers:
            channel.basic_publish("", "mixed", body_of(number), durable)
        link.close()

    with ThreadPoolExecutor(PUBLISHERS) as pool:
        list(pool.map(some, [numbers[first::PUBLISHERS] for first in range(PUBLISHERS)]))


class Taker(threading.Thread):
    """One consumer with its filter."""

    def __init__(self, address: tuple[str, int], number: int, messages: int) -> None:
        super().__init__(daemon=True)
        self.address, self.number = address, number
        self.wanted = set(range(number, messages, FILTERS))
        self.failure = ""
        self.kept: Any = None  # the connection of one that does not end

    def run(self) -> None:
        """Take, check and acknowledge until nothing is wanted any more."""
        link = connection(self.address)
        channel = link.channel()
        channel.basic_qos(prefetch_count=20)
        stubborn = self.number in STUBBORN
        arguments = {"x-filter": f"/k = {self.number}"}
        for method, _, body in channel.consume("mixed", arguments=arguments, inactivity_timeout=SILENT_S):
            if method is None:
                self.failure = f"{len(self.wanted)} messages for filter {self.number} do not come"
                break
            number = int(body[body.index(b'"n":') + 4 : body.index(b',"pad"')])
            if body != body_of(number) or number not in self.wanted:
                self.failure = f"message {number} is changed, or came twice"
                break
            self.wanted.discard(number)
            if not stubborn:
                channel.basic_ack(method.delivery_tag)
            else:
                self.kept = link  # what it has got stays leased, and nothing more is read
                return
            if not self.wanted:
                break
        link.close()


def bound(folder: Path, given: argparse.Namespace) -> None:
    """Half the messages with nobody there, then everything at once."""
    messages: int = WHOLE // MEAN if given.whole else given.messages
    ratios = list[float]()
    peaks = list[float]()
    for run in range(given.repeat):
        with Server(folder / f"bound{run}", environ={"PENSTOCK_SERVER__MEMORY": "64MiB"}) as server:
            address = server.address("amqp")
            link = connection(address)
            link.channel().queue_declare("mixed", durable=True)
            link.close()
            time.sleep(WARM_UP_S + 1)  # then it has given back what its start took, and loaded what filters need
            empty, child = memory(server.pid).own, empty_child(folder / f"child{run}")
            peak = Peak(server, child)
            peak.start()
            publish(address, range(messages // 2))
            backlog = peak.highest
            takers = [Taker(address, number, messages) for number in range(FILTERS)]
            for taker in takers:
                taker.start()
            publish(address, range(messages // 2, messages))
            for taker in takers:
                taker.join()
            peak.ended.set()
            peak.join()
            failures = [taker.failure for taker in takers if taker.failure]
            if failures:
                raise Wrong("; ".join(failures[:3]))
            server.stop()
        allowed = (empty + BUDGET + INDEX * messages) * 1.1
        ratios.append(peak.highest / allowed)
        peaks.append(peak.whole / 2**20)
    settings: dict[str, object] = {
        "messages": messages, "mean_body": MEAN, "memory_mib": BUDGET >> 20, "filters": FILTERS,
        "empty_mib": round(empty / 2**20, 1), "empty_child_mib": round(child / 2**20, 1),
        "server_mib": round(peak.own / 2**20, 1), "backlog_mib": round(backlog / 2**20, 1),
        "allowed_mib": round(allowed / 2**20, 1),
    }  # fmt: skip
    emit("highest resident memory under mixed load", peaks, "MiB", settings=settings)
    emit("highest resident memory for what is allowed", ratios, "ratio", budget=1.0, settings=settings)


def main() -> None:
    """The short run, or the whole one."""
    options = parser(__doc__ or "", messages=20_000, repeat=1, quick=500)
    options.add_argument("--whole", action="store_true", help="20 GB of bodies")
    given = parse(options)
    with work_folder(given.folder) as folder:
        bound(folder, given)


if __name__ == "__main__":
    main()
