"""How fast it was: rates and latencies from what publishers and workers noted, and one quiet measurement at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import penstock

PINGS = 300


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds, sorted."""

    seconds: Any

    @property
    def known(self) -> bool:
        """Whether there is any."""
        return len(self.seconds) > 0

    def at(self, share: float) -> float:
        """The value that this share of all lies below; NaN when there is none."""
        return float(np.quantile(self.seconds, share)) if self.known else float("nan")


def latency(values: Any) -> Latency:
    """Sorted, without what is unknown."""
    array = np.asarray(values, np.float64)
    return Latency(np.sort(array[~np.isnan(array)]))


@dataclass(frozen=True, slots=True)
class Rate:
    """So many messages in so many seconds."""

    messages: int
    seconds: float

    @property
    def each_second(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Audit:
    """What `penstock audit` said."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    findings: Sequence[str] = ()

    @property
    def broken(self) -> int:
        """How many guarantees did not hold."""
        return len(self.findings)


@dataclass
class Measured:
    """Figures that inform and are not judged."""

    pika: Rate
    flight: Rate
    confirms: Latency
    uploads: Latency
    delivered: Latency  # stored -> in the hands of an SDK worker, first deliveries
    watched: Latency  # the same for the watcher of late flights
    resent: int  # rows of uploads that broke
    suppressed: int  # those of them that the server had
    worked_twice: int  # flights in the books more than once
    redelivered: int  # deliveries that said so, failed flights left out
    failures: int  # deliveries on which a worker failed
    quiet: dict[str, Latency] = field(default_factory=dict[str, Latency])
    commits: int = 0
    outage: float = 0.0
    recovered: dict[str, float] = field(default_factory=dict[str, float])
    audit: Audit = Audit()


def measure(folder: Path, books: Any, watched: Any) -> Measured:
    """What the files in the folder tell."""
    confirms = [np.load(path) for path in sorted(folder.glob("confirms-*.npz"))]
    took = np.concatenate([one["took"] for one in confirms])
    spans = np.array([one["span"] for one in confirms])
    [upload] = [np.load(path) for path in folder.glob("uploads-*.npz")]
    resent, known = (int(number) for number in upload["resent"])
    good = books[books["worked"] == 1]
    return Measured(
        pika=Rate(len(took), float(spans[:, 1].max() - spans[:, 0].min())),
        flight=Rate(int(upload["rows"]), float(upload["span"][1] - upload["span"][0])),
        confirms=latency(took),
        uploads=latency(upload["took"]),
        delivered=latency(books["waited"]),
        watched=latency(watched["waited"]),
        resent=resent,
        suppressed=known,
        worked_twice=len(good) - len(np.unique(good["id"])),
        redelivered=int(good["redelivered"].sum()),
        failures=len(books) - len(good),
    )


def ping(client: penstock.Client) -> dict[str, Latency]:
    """One message at a time through the quiet server: confirmed after, delivered after."""
    sent, came = np.full(PINGS, np.nan), np.full(PINGS, np.nan)
    confirmed = list[float]()
    arrived = threading.Event()

    def receive() -> None:
        with client.consume("ping", timeout="10s") as messages:
            for message in messages:
                came[int(message.body)] = time.perf_counter()
                arrived.set()
                message.ack()
                if int(message.body) == PINGS - 1:
                    return

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    for number in range(PINGS):
        arrived.clear()
        sent[number] = time.perf_counter()
        client.publish("ping", str(number))
        confirmed.append(time.perf_counter() - sent[number])
        arrived.wait(5.0)
    receiver.join(20.0)
    return {"confirmed": latency(confirmed), "delivered": latency(came - sent)}
