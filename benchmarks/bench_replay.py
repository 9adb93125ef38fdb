"""Replay and live subscriptions: what reading a topic costs beside the queues.

    python benchmarks/bench_replay.py [--mode live|filtered|catch-up] [--messages 100000] [--readers 100]

Every delivery is checked against what was published.

live       many AMQP consumers with `x-bookmark: NOW` follow one topic while it is published to: server CPU a delivery
           beyond that of publishing alone, and deliveries a second
filtered   the same with a content filter that lets everything through: it is evaluated once for all of them
catch-up   one AMQP consumer with `x-bookmark: EPOCH` reads what is there: messages a second and server CPU a message;
           then the same through the client's `replay`
"""

from __future__ import annotations

import argparse
import struct
import time
from contextlib import ExitStack, closing
from pathlib import Path

from amqp_client import Consumer, Link, Publisher, Workload, drive, publish
from harness import Server, Span, emit, parse, parser, work_folder

NEVER = 1 << 40

LIVE_BUDGET_US = 1.0
"""A delivery shares everything but its bytes with those of the other readers."""

CATCH_UP_BUDGET_US = 2.5


def _text(name: str, value: str) -> bytes:
    data = value.encode()
    return bytes([len(name)]) + name.encode() + b"S" + struct.pack(">I", len(data)) + data


class BookmarkLink(Link):
    """A connection whose consumers have a bookmark."""

    arguments = b""

    def consume(self, queue: str, tag: str, prefetch: int) -> None:
        """Begin to consume."""
        name, label = queue.encode(), tag.encode()
        table = struct.pack(">I", len(self.arguments)) + self.arguments
        start = b"\0\0" + bytes([len(name)]) + name + bytes([len(label)]) + label + b"\2" + table
        self.call((60, 20), start, (60, 21))


def readers(
    links: ExitStack, server: Server, workload: Workload, queue: str, given: tuple[int, int], arguments: bytes
) -> list[Consumer]:
    """So many consumers of so many messages each."""
    count, messages = given
    out = list[Consumer]()
    for _ in range(count):
        link = links.enter_context(closing(BookmarkLink(server.address("amqp"))))
        link.arguments = arguments
        out.append(Consumer(link, workload, messages, queue, ack_every=NEVER))
    return out


def live(folder: Path, given: argparse.Namespace, *, filtered: bool) -> None:
    """Many followers of one topic."""
    n, count = given.messages, given.readers
    costs, rates = list[float](), list[float]()
    arguments = _text("x-bookmark", "NOW") + (_text("x-filter", "1 = 1") if filtered else b"")
    for run in range(given.repeat):
        with Server(folder / f"live{filtered}{run}") as server:
            workload = Workload.make(["topic"])
            with Link(server.address("amqp")) as link:
                link.declare("topic")
                link.close()
            with Span(server) as alone:
                publish(server.address("amqp"), workload, n)
            with ExitStack() as links:
                following = readers(links, server, workload, "topic", (count, n), arguments)
                with Link(server.address("amqp")) as link, Span(server) as span:
                    drive(Publisher(link, workload, n, 1024), *following)
                    link.close()
            server.stop()
        costs.append((span.server_s - alone.server_s) / (n * count) * 1e6)
        rates.append(n * count / span.wall_s)
    settings: dict[str, object] = {"messages": n, "readers": count, "filter": filtered}
    what = f"live on one topic, {count} readers{', one filter' if filtered else ''}"
    emit(f"{what}: server CPU a delivery", costs, "us/delivery", budget=LIVE_BUDGET_US, settings=settings)
    emit(f"{what}: rate", rates, "deliveries/s", settings=settings)


def catch_up(folder: Path, given: argparse.Namespace) -> None:
    """One reader from the beginning."""
    n = given.messages * 5 if not given.quick else given.messages
    figures: dict[str, list[tuple[float, float]]] = {"AMQP": [], "client": []}
    for run in range(given.repeat):
        with Server(folder / f"catch{run}", flight=True) as server:
            workload = Workload.make(["topic"])
            with Link(server.address("amqp")) as link:
                link.declare("topic")
                link.close()
            publish(server.address("amqp"), workload, n)
            with ExitStack() as links, Span(server) as span:
                drive(*readers(links, server, workload, "topic", (1, n), _text("x-bookmark", "EPOCH")))
            figures["AMQP"].append((span.server_s, span.wall_s))
            with Span(server) as span:
                _by_client(server, n)
            figures["client"].append((span.server_s, span.wall_s))
            server.stop()
    for door, runs in figures.items():
        settings: dict[str, object] = {"messages": n, "door": door}
        budget = CATCH_UP_BUDGET_US if door == "AMQP" else None
        emit(f"catch-up by {door}: server CPU", [cpu / n * 1e6 for cpu, _ in runs], "us/message", budget=budget,
             settings=settings)  # fmt: skip
        emit(f"catch-up by {door}: rate", [n / wall for _, wall in runs], "messages/s", settings=settings)


def _by_client(server: Server, n: int) -> None:
    import penstock

    host, port = server.address("flight")
    started = time.monotonic()
    with (
        penstock.connect(f"penstock://{host}:{port}") as client,
        client.replay("topic", "EPOCH", follow=True, limit=n) as replay,
    ):
        count = sum(1 for _ in replay)
    if count != n:
        raise AssertionError(f"{count} of {n} messages came in {time.monotonic() - started:.0f} s")


def main() -> None:
    """Run the modes asked for."""
    options = parser(__doc__ or "", messages=20_000, repeat=3, quick=500)
    options.add_argument("--readers", type=int, default=100)
    options.add_argument("--mode", action="append", choices=["live", "filtered", "catch-up"], help="default: all")
    given = parse(options)
    if given.quick:
        given.readers = min(given.readers, 10)
    with work_folder(given.folder) as folder:
        for mode in given.mode or ["live", "filtered", "catch-up"]:
            if mode == "catch-up":
                catch_up(folder, given)
            else:
                live(folder, given, filtered=mode == "filtered")


if __name__ == "__main__":
    main()
