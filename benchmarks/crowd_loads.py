"""The loads of ordinary clients, on any server that a crowd can speak to.

publish-N          N connections publish, each as soon as its last message is confirmed
work-N             the same, and N connections with a prefetch of 1 acknowledge each message
paced-N            N connections publish ten messages a second each, whatever the server does
paced-work-N       the same, and N connections work
request-N          N connections send requests, each as soon as its last is answered, with a queue of their own for the
                   answers; N connections with a prefetch of 1 answer and acknowledge
request-direct-N   the same through `amq.rabbitmq.reply-to`
one                a message alone: the next goes when the last is confirmed and delivered

Messages are persistent (requests are not), of 300 bytes with an id of their own, a time and two headers, over 50
queues.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import count

from crowd import Crowd, Door, Sender, Tally, Worker
from harness import Measured, Span, Wrong, percentile

QUEUES = 50
SIZE = 300
PACE = 10.0
"""Messages a second of each client that is paced."""

SETTLE_S = 20.0
"""By then the last acks have been counted."""

_TITLES = {
    "publish": "publish",
    "work": "work",
    "paced": "ten messages a second each",
    "paced-work": "ten messages a second each, work",
    "request": "request and reply",
    "request-direct": "request and reply, direct",
}
_NAME = re.compile(rf"({'|'.join(_TITLES)})-([1-9]\d*)")
_runs = count(1)


@dataclass(frozen=True, slots=True)
class Load:
    """What clients do, and how many of them."""

    kind: str
    clients: int

    @property
    def title(self) -> str:
        """For a table."""
        if self.kind == "one":
            return "one message alone"
        return f"{self.clients:,} client{'s' if self.clients > 1 else ''}, {_TITLES[self.kind]}"

    @property
    def answer(self) -> str:
        """What a sender waits for."""
        return "answer" if self.kind.startswith("request") else "confirm"


def load(name: str) -> Load:
    """By its name.  Raises ValueError for one that there is not."""
    if name == "one":
        return Load("one", 1)
    if found := _NAME.fullmatch(name):
        return Load(found[1], int(found[2]))
    raise ValueError(f"no such mode: {name}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of a run: microseconds of CPU a message, of the server and of the clients; messages a second; from when
    a message was due to its confirm or answer, and to its delivery where there is a worker, in milliseconds."""

    cpu_us: float
    client_us: float
    rate: float
    p50: float
    p99: float
    delivered_p50: float


def run(door: Door, server: Measured, one: Load, seconds: float) -> Outcome:
    """A load on a server.  Raises Wrong for a message that is lost, doubled or changed."""
    name = f"penstock-bench-{os.getpid()}-{secrets.token_hex(3)}-{next(_runs)}"
    queues = door.declare(name, min(QUEUES, one.clients))
    with closing(_crowd(door, one, queues)) as crowd:
        with Span(server) as span:
            if one.kind == "one":
                crowd.alone(seconds)
            elif one.kind.startswith("paced"):
                crowd.paced(seconds, PACE)
            else:
                crowd.closed_loop(seconds)
        confirmed, done = sum(sender.confirmed for sender in crowd.senders), crowd.done
    _check(door, queues, confirmed - done)
    door.remove(queues)
    took = [moment for sender in crowd.senders for moment in sender.took]
    delivered = crowd.senders[0].tally.delivered
    return Outcome(
        span.server_s / confirmed * 1e6,
        span.client_s / confirmed * 1e6,
        confirmed / span.wall_s,
        percentile(took, 0.5) * 1e3,
        percentile(took, 0.99) * 1e3,
        percentile(delivered, 0.5) * 1e3 if delivered else 0.0,
    )


def _crowd(door: Door, one: Load, queues: list[str]) -> Crowd:
    """The clients of a load, all logged in."""
    tally = Tally(one.clients, SIZE)
    places = [(number, queues[number % len(queues)]) for number in range(one.clients)]
    senders: list[Sender]
    workers: list[Worker] = []
    if one.kind.startswith("request"):
        workers = [door.answerer(queue, tally) for _, queue in places]
        direct = one.kind == "request-direct"
        senders = [door.requester(number, queue, tally, direct=direct) for number, queue in places]
    else:
        senders = [door.publisher(number, queue, tally) for number, queue in places]
        if one.kind in ("work", "paced-work", "one"):
            workers = [door.worker(queue, tally) for _, queue in places]
    return Crowd(senders, workers)


def _check(door: Door, queues: list[str], wanted: int) -> None:
    """What was confirmed and not worked off is in the queues, once the server has read the last acks."""
    end = time.perf_counter() + SETTLE_S
    while (left := door.left(queues)) != wanted:
        if time.perf_counter() > end:
            raise Wrong(f"{wanted} messages were confirmed and not acknowledged, the queues have {left}")
        time.sleep(0.02)
