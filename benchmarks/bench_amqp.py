"""The AMQP door: CPU a message at saturation, latency of one message alone, and latency beside saturation.

    python benchmarks/bench_amqp.py --mode publish --messages 500000 --repeat 5

Every body is checked byte by byte and every message accounted for, or the run fails.

publish            100-byte bodies, 1,024 confirms in flight, one queue
publish-varied     bodies of 50 to 150 bytes over 50 topics in random order, a queue each
publish-one-queue  the same, all topics bound to one queue
publish-ids        the same as publish-varied, and each message has an id of its own
publish-one-a-call a send call for each message
consume            from a filled queue, ack every 100
consume-each       the same, ack each
both               publish and consume at once, ack every 100
both-each          the same, ack each
both-varied        sizes and topics varied, one queue, ack every 100
both-varied-each   the same, ack each
both-ids           the same as both-varied, and each message has an id of its own
both-large         bodies of 10,000 bytes, ack every 100
both-one-a-call    a send call for each message, ack each
paced              publish at a steady rate (--rate) that does not wait: confirm p50, p99, p99.9 from when each was due
one                one message in flight: until delivered, until confirmed, beside the disk's own sync
beside             a probe with one message in flight, and small Flight publishes, beside a saturated AMQP door
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from amqp_client import (
    Consumer,
    Link,
    Publisher,
    Workload,
    drain,
    drive,
    empty,
    paced,
    publish,
    saturate,
)
from harness import DiskProbe, Server, Span, Wrong, emit, filesystem, parse, parser, percentile, work_folder

TOPICS = 50
WINDOW = 1024
PREFETCH = 1000
PROBE_EVERY = 8


class Place:
    """A workload and the queues it goes to, declared on a server; `drain` checks and empties them."""

    def __init__(self, address: tuple[str, int], name: str, workload: Workload, queues: dict[str, int | None]) -> None:
        self.address = address
        self.name = name
        self.workload = workload
        self.queues = queues  # name -> the topic it takes, None for all

    @classmethod
    def uniform(cls, address: tuple[str, int], name: str, size: int = 100) -> Place:
        """One queue, reached through the default exchange."""
        with Link(address) as link:
            link.declare(name)
            link.close()
        return cls(address, name, Workload.make([name], smallest=size, largest=size), {name: None})

    @classmethod
    def varied(
        cls, address: tuple[str, int], name: str, *, ids: bool = False, queues: int = 1, arguments: bytes = b""
    ) -> Place:
        """Fifty topics of a direct exchange, bound to one queue or to one each."""
        keys = [f"{name}.topic.{number}" for number in range(TOPICS)]
        places: dict[str, int | None] = {name: None} if queues == 1 else {key: at for at, key in enumerate(keys)}
        with Link(address) as link:
            link.direct_exchange(name)
            for queue, topic in places.items():
                link.declare(queue, arguments=arguments)
                for key in keys if topic is None else [keys[topic]]:
                    link.bind(queue, name, key)
            link.close()
        return cls(address, name, Workload.make(keys, exchange=name, smallest=50, largest=150, ids=ids), places)

    def drain(self, messages: int, skip: int = 0, *, redelivered: bool = False) -> None:
        """Consume everything, check every byte, see that nothing is left.  `skip` is for a single queue."""
        for queue, topic in self.queues.items():
            share = messages if topic is None else self.workload.share(topic, messages)
            if share:
                drain(self.address, self.workload, share, queue, topic=topic, skip=skip, redelivered=redelivered)

    def remove(self) -> None:
        """Delete queues and exchange."""
        with Link(self.address) as link:
            for queue in self.queues:
                link.delete(queue)
            if self.workload.exchange:
                link.delete_exchange(self.workload.exchange)
            link.close()


Make = Callable[[tuple[str, int], str], Place]


def uniform(address: tuple[str, int], name: str) -> Place:
    """Bodies of 100 bytes, one queue."""
    return Place.uniform(address, name)


def large(address: tuple[str, int], name: str) -> Place:
    """Bodies of 10,000 bytes, one queue."""
    return Place.uniform(address, name, 10_000)


def one_queue(address: tuple[str, int], name: str) -> Place:
    """Varied, one queue."""
    return Place.varied(address, name)


def many_queues(address: tuple[str, int], name: str) -> Place:
    """Varied, a queue for each topic."""
    return Place.varied(address, name, queues=TOPICS)


def file_backed_queues(address: tuple[str, int], name: str) -> Place:
    """The same, with `x-file-backed-metadata`."""
    return Place.varied(address, name, queues=TOPICS, arguments=b"\x16x-file-backed-metadatat\x01")


def with_ids(address: tuple[str, int], name: str) -> Place:
    """Varied, one queue, ids."""
    return Place.varied(address, name, ids=True)


def many_with_ids(address: tuple[str, int], name: str) -> Place:
    """Varied, a queue for each topic, ids."""
    return Place.varied(address, name, ids=True, queues=TOPICS)


class Bench:
    """The modes, run on one server."""

    def __init__(self, server: Server, given: argparse.Namespace) -> None:
        self.server = server
        self.address = server.address("amqp")
        self.messages: int = given.messages
        self.repeat: int = given.repeat
        self.quick: bool = given.quick
        self.rate: float = given.rate
        self._runs = 0

    def _place(self, make: Make) -> Place:
        self._runs += 1
        return make(self.address, f"bench{self._runs}")

    def _tell(self, what: str, spans: list[Span], budget: float | None, rate_budget: float | None = None) -> None:
        """CPU of the server and the rate, from the spans of all runs."""
        n = self.messages
        client = statistics.median(span.client_s for span in spans) / n * 1e6
        settings: dict[str, object] = {"messages": n, "sync": "commit", "client_us": round(client, 3)}
        settings |= {"window": WINDOW, "prefetch": PREFETCH, "filesystem": filesystem(self.server.folder)}
        cpu = [span.server_s / n * 1e6 for span in spans]
        emit(f"AMQP {what}: server CPU", cpu, "us/message", budget=budget, settings=settings)
        rates = [n / span.wall_s for span in spans]
        emit(f"AMQP {what}: rate", rates, "messages/s", budget=rate_budget, sense="at least", settings=settings)

    def publish(self, what: str, make: Make, budget: float, *, a_call: int = 0) -> None:
        """Publish alone."""
        spans: list[Span] = []
        for _ in range(self.repeat):
            place = self._place(make)
            with Link(self.address) as link:
                publisher = Publisher(link, place.workload, self.messages, WINDOW, a_call=a_call)
                with Span(self.server) as span:
                    drive(publisher)
                link.close()
            place.drain(self.messages)
            place.remove()
            spans.append(span)
        self._tell(what, spans, budget)

    def consume(self, what: str, make: Make, budget: float, every: int) -> None:
        """Consume from a filled queue."""
        spans: list[Span] = []
        for _ in range(self.repeat):
            place = self._place(make)
            publish(self.address, place.workload, self.messages)
            spans.append(self._consumed(place, every))
            place.remove()
        self._tell(what, spans, budget)

    def _consumed(self, place: Place, every: int, publisher_link: Link | None = None, a_call: int = 0) -> Span:
        with closing(Link(self.address)) as link:
            consumer = Consumer(link, place.workload, self.messages, place.name, prefetch=PREFETCH, ack_every=every)
            with Span(self.server) as span:
                if publisher_link is None:
                    drive(consumer)
                else:
                    drive(Publisher(publisher_link, place.workload, self.messages, WINDOW, a_call=a_call), consumer)
                consumer.finish()
        empty(self.address, place.name)
        return span

    def both(
        self, what: str, make: Make, budget: float, every: int, *, a_call: int = 0, rate: float | None = None
    ) -> None:
        """Publish and consume at once."""
        spans: list[Span] = []
        for _ in range(self.repeat):
            place = self._place(make)
            with closing(Link(self.address)) as link:
                spans.append(self._consumed(place, every, link, a_call))
            place.remove()
        self._tell(what, spans, budget, rate)

    def one(self) -> None:
        """One message in flight."""
        rounds = max(20, min(self.messages, 5000))
        delivered: dict[str, list[float]] = {"p50": [], "p99": []}
        confirmed: dict[str, list[float]] = {"p50": [], "p99": []}
        syncs: list[float] = []
        for _ in range(self.repeat):
            until_delivered, until_confirmed, disk = self._one_by_one(rounds)
            syncs.append(percentile(disk, 0.5) * 1e6)
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                delivered[name].append(percentile(until_delivered, share) * 1e6)
                confirmed[name].append(percentile(until_confirmed, share) * 1e6)
        sync = statistics.median(syncs)
        settings: dict[str, object] = {"messages": rounds, "disk_sync_us": round(sync, 1), "sync": "commit"}
        settings["filesystem"] = filesystem(self.server.folder)
        emit("the disk's own fdatasync: p50", syncs, "us", settings=settings)
        emit("AMQP one message: delivered p50", delivered["p50"], "us", budget=120.0, settings=settings)
        emit("AMQP one message: delivered p99", delivered["p99"], "us", settings=settings)
        emit("AMQP one message: confirmed p50", confirmed["p50"], "us", budget=sync + 200.0, settings=settings)
        emit("AMQP one message: confirmed p99", confirmed["p99"], "us", settings=settings)

    def _one_by_one(self, rounds: int) -> tuple[list[float], list[float], list[float]]:
        """Seconds from send to delivery, and to the confirm, of each message, and of the disk's own syncs.

        The disk is asked between the messages, so that all three meet the same neighbours; the first tenth is left out.
        """
        place = self._place(uniform)
        stream, frames = place.workload.delivered("bench"), place.workload.published()
        warm = rounds // 10
        delivered: list[float] = []
        confirmed: list[float] = []
        disk: list[float] = []
        with Link(self.address) as sending, Link(self.address) as taking, DiskProbe(self.server.folder) as probe:
            sending.confirms()
            taking.consume(place.name, "bench", 1)
            for at in range(rounds + warm):
                start, stop = stream.offset(at), stream.offset(at + 1)
                piece = frames.slice(frames.offset(at), frames.offset(at + 1))
                began = time.perf_counter()
                sending.sock.sendall(piece)
                came = b""
                while len(came) < stop - start:
                    came += taking.sock.recv(65536)
                delivered.append(time.perf_counter() - began)
                stream.check(came, start)
                confirm_one(sending, at + 1)
                confirmed.append(time.perf_counter() - began)
                taking.ack(at + 1)
                if at % PROBE_EVERY == 0:
                    disk.append(probe.sync())
            taking.round_trip()
            taking.close()
            sending.close()
        empty(self.address, place.name)
        place.remove()
        return delivered[warm:], confirmed[warm:], disk

    def paced(self) -> None:
        """Confirm latency at a rate that does not wait for the server."""
        shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
        taken: dict[str, list[float]] = {name: [] for name in shares}
        for _ in range(self.repeat):
            place = self._place(many_queues)
            latency = paced(self.address, place.workload, self.messages, self.rate)
            for name, share in shares.items():
                taken[name].append(percentile(latency, share) * 1e3)
            place.drain(self.messages)
            place.remove()
        settings: dict[str, object] = {"messages": self.messages, "rate": self.rate, "sync": "commit"}
        for name, values in taken.items():
            emit(f"AMQP publish at {self.rate:,.0f}/s, varied: confirm {name}", values, "ms", settings=settings)

    def beside(self) -> None:
        """What others feel while one connection publishes as fast as it can."""
        seconds = 0.2 if self.quick else max(2.0, min(10.0, self.messages / 100_000))
        p50: list[float] = []
        p99: list[float] = []
        flights: list[float] = []
        load: list[float] = []
        for _ in range(self.repeat):
            with Saturated(self.address, self._place(uniform)) as saturated:
                taken = self._probe(seconds)
                small = small_flight_publishes(self.server.address("flight"), self._place(uniform), seconds)
            load.append(saturated.rate)
            p50.append(percentile(taken, 0.5) * 1e3)
            p99.append(percentile(taken, 0.99) * 1e3)
            flights.append(small / seconds)
        settings: dict[str, object] = {"seconds": seconds, "rows_a_publish": 10, "sync": "commit"}
        emit("beside saturation: the load itself", load, "messages/s", settings=settings)
        emit("beside saturation: confirm p50", p50, "ms", settings=settings)
        emit("beside saturation: confirm p99", p99, "ms", budget=20.0, settings=settings)
        what = "beside saturation: small Flight publishes"
        emit(what, flights, "1/s", budget=300.0, sense="at least", settings=settings)

    def _probe(self, seconds: float) -> list[float]:
        """Seconds until each confirm, one message in flight."""
        place = self._place(uniform)
        frames = place.workload.published()
        taken: list[float] = []
        with Link(self.address) as link:
            link.confirms()
            end = time.perf_counter() + seconds
            while (began := time.perf_counter()) < end:
                at = len(taken)
                link.sock.sendall(frames.slice(frames.offset(at), frames.offset(at + 1)))
                confirm_one(link, at + 1)
                taken.append(time.perf_counter() - began)
            link.close()
        place.drain(len(taken))
        place.remove()
        return taken


def confirm_one(link: Link, tag: int) -> None:
    """Wait for the confirm of one message."""
    kind, _, payload = link.read_frame()
    if kind != 1 or payload[:4] != b"\0\x3c\0\x50" or int.from_bytes(payload[4:12], "big") != tag:
        raise Wrong(f"waited for the confirm of message {tag}, got a frame of kind {kind}: {payload[:40].hex(' ')}")


class Saturated:
    """A process of its own that publishes as fast as it can; at the end its messages are counted and checked."""

    def __init__(self, address: tuple[str, int], place: Place) -> None:
        self.rate = 0.0
        self._place = place
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_saturate, args=(address, place.workload, other), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self._pipe.recv()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._process.kill()
            return
        self._pipe.send("stop")
        result = self._pipe.recv()
        self._process.join()
        if isinstance(result, str):
            raise Wrong(f"the saturating client failed: {result}")
        confirmed, seconds = result
        self.rate = confirmed / seconds
        self._place.drain(confirmed)
        self._place.remove()


def _saturate(address: tuple[str, int], workload: Workload, pipe: Connection) -> None:
    """Target of the saturating process."""
    stop = threading.Event()

    def wait() -> None:
        pipe.recv()
        stop.set()

    pipe.send("ready")
    threading.Thread(target=wait, daemon=True).start()
    try:
        result: object = saturate(address, workload, stop.is_set)
    except (Wrong, OSError) as error:
        result = f"{type(error).__name__}: {error}"
    pipe.send(result)


def small_flight_publishes(address: tuple[str, int], place: Place, seconds: float) -> int:
    """How many uploads of ten rows, each a DoPut of its own and waited for, fit into some seconds."""
    from flight_client import Door, rows

    done = 0
    with Door(address) as door:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            door.publish(place.name, [rows(done * 10, 10)])
            done += 1
        first, step = 0, 10
        for bodies in door.replay(place.name):
            first = bodies.check(first)
    if first != done * step:
        raise Wrong(f"{done * step} rows were confirmed, replay has {first}")
    place.remove()
    return done


def modes(bench: Bench) -> dict[str, Callable[[], None]]:
    """Every mode by its name."""
    both = "publish and consume"
    return {
        "publish": lambda: bench.publish("publish", uniform, 2.0),
        "publish-varied": lambda: bench.publish("publish, varied, 50 topics", many_queues, 3.0),
        "publish-one-queue": lambda: bench.publish("publish, varied, 50 topics in one queue", one_queue, 3.0),
        "publish-ids": lambda: bench.publish("publish, varied, 50 topics, ids", many_with_ids, 3.0),
        "publish-one-a-call": lambda: bench.publish("publish, one message a call", uniform, 6.0, a_call=1),
        "consume": lambda: bench.consume("consume, ack every 100", uniform, 1.0, 100),
        "consume-each": lambda: bench.consume("consume, ack each", uniform, 1.5, 1),
        "both": lambda: bench.both(f"{both}, ack every 100", uniform, 3.0, 100, rate=250_000),
        "both-each": lambda: bench.both(f"{both}, ack each", uniform, 3.5, 1),
        "both-varied": lambda: bench.both(f"{both}, varied, ack every 100", one_queue, 4.0, 100, rate=250_000),
        "both-varied-each": lambda: bench.both(f"{both}, varied, ack each", one_queue, 4.0, 1),
        "both-ids": lambda: bench.both(f"{both}, varied, ids", with_ids, 4.0, 100),
        "both-large": lambda: bench.both(f"{both}, 10 kB", large, 18.0, 100, rate=50_000),
        "both-one-a-call": lambda: bench.both(f"{both}, one message a call", uniform, 6.0, 1, a_call=1),
        "paced": bench.paced,
        "one": bench.one,
        "beside": bench.beside,
    }


def main() -> None:
    """Run the modes asked for, each on a fresh server (one for all with --quick)."""
    options = parser(__doc__ or "", messages=300_000)
    options.add_argument("--mode", action="append", help="one of the above; may be repeated (default: all)")
    options.add_argument("--rate", type=float, default=20_000.0, help="messages a second of `paced`")
    given = parse(options)
    with work_folder(given.folder) as folder:
        wanted: list[str] = given.mode or list(modes(Bench.__new__(Bench)))
        unknown = set(wanted) - set(modes(Bench.__new__(Bench)))
        if unknown:
            options.error(f"no such mode: {', '.join(sorted(unknown))}")
        for group in [wanted] if given.quick else [[mode] for mode in wanted]:
            _run(folder / group[0], group, given)


def _run(folder: Path, group: list[str], given: argparse.Namespace) -> None:
    with Server(folder, flight="beside" in group) as server:
        bench = Bench(server, given)
        for mode in group:
            modes(bench)[mode]()
        server.stop()


if __name__ == "__main__":
    main()
