"""What depth costs: leased messages, idle queues, and how long the loop stands still.

    python benchmarks/bench_depth.py [--mode leased|idle|pauses|many] [--messages 1000000]

Memory is resident memory of the server's process, with a body cache of 8 MiB.

leased   all messages of one queue go to one consumer with unlimited prefetch: bytes a message beyond their waiting;
         then acks one by one in random order: CPU an ack, and bytes a message in the middle of it
idle     declares a tenth as many queues as messages: bytes a queue, and the time of a declare
pauses   the longest turn of the loop, as the server measures it (`penstock_loop_pause_longest_seconds`), against 20 ms;
         beside it the CPU time of the loop's thread in a turn, and the longest round trip of another connection, which
         makes one each millisecond.  Phases: nothing to do; saturation with checkpoints and new segments; purge and
         delete of half as many messages and of 25 interleaved queues; base, compaction and the exchange of segments;
         a lost connection that held every second message; one ack for every second message
many     a hundredth as many queues as messages, declared without waiting, a hundred messages in each, listed over HTTP,
         then a clean restart and a list again: the longest turn of the loop in each phase, and bytes a queue
"""

from __future__ import annotations

import argparse
import random
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from amqp_client import Consumer, Link, Workload, drive, method, publish
from bench_amqp import Place, many_queues, uniform
from harness import Server, Span, emit, memory, parse, parser, work_folder

ENVIRON = {"PENSTOCK_SERVER__MEMORY": "8MiB"}
SETTLE_S = 2.5
"""Time the server gets to write what it holds and to give memory back."""

TURN_S = 0.2
"""Time for the turns that a command leaves behind it; the watch notes the longest."""

LOOK_S = 12.0
"""Time for one look of the upkeep, which comes every ten seconds."""

UPKEEP_S = 25.0
"""Time for retention and compaction, which look once in ten seconds."""

_LONGEST = ("penstock_loop_pause_longest_seconds ", "penstock_loop_pause_longest_cpu_seconds ")

_ACK = struct.Struct(">BHIHHQBB")


def leased(folder: Path, given: argparse.Namespace) -> None:
    """Bytes a leased message; acks in random order."""
    n: int = given.messages
    beyond, middle, cost = list[float](), list[float](), list[float]()
    for run in range(given.repeat):
        with Server(folder / f"leased{run}", environ=ENVIRON) as server:
            place = uniform(server.address("amqp"), "deep")
            publish(place.address, place.workload, n)
            _settle(given)
            waiting = memory(server.pid).own
            with Link(place.address) as link:
                consumer = Consumer(link, place.workload, n, "deep", prefetch=0, ack_every=n + 1)
                drive(consumer)
                _settle(given)
                held = memory(server.pid).own
                tags = list(range(1, n + 1))
                random.Random(1).shuffle(tags)
                half = n // 2
                link.sock.setblocking(True)
                with Span(server) as span:
                    _ack(link, tags[:half])
                _settle(given)
                between = memory(server.pid).own
                _ack(link, tags[half:])
                link.close()
            server.stop()
        beyond.append((held - waiting) / n)
        middle.append((between - waiting) / half)
        cost.append(span.server_s / half * 1e6)
    settings = {"messages": n, "prefetch": 0}
    emit("memory of leased messages, beyond their waiting", beyond, "bytes/message", budget=24.0, settings=settings)
    emit("memory of leased messages, half acked in random order", middle, "bytes/message", budget=24.0,
         settings=settings)  # fmt: skip
    emit("acks one by one in random order, all leased", cost, "us/ack", settings=settings)


def _ack(link: Link, tags: list[int]) -> None:
    for start in range(0, len(tags), 1000):
        link.sock.sendall(b"".join([_ACK.pack(1, 1, 13, 60, 80, tag, 0, 0xCE) for tag in tags[start : start + 1000]]))
    link.round_trip()


def idle(folder: Path, given: argparse.Namespace) -> None:
    """Bytes a queue that was declared and nothing else."""
    n = max(given.messages // 10, 100)
    sizes, times = list[float](), list[float]()
    for run in range(given.repeat):
        with Server(folder / f"idle{run}", environ=ENVIRON) as server:
            with Link(server.address("amqp")) as link:
                for number in range(100):  # what the first of everything costs
                    link.declare(f"first-{number}")
                _settle(given)
                before, started = memory(server.pid).own, time.perf_counter()
                for number in range(n):
                    link.declare(f"queue-{number}")
                times.append((time.perf_counter() - started) / n * 1e6)
                _settle(given)
                sizes.append((memory(server.pid).own - before) / n)
                link.close()
            server.stop()
    emit("memory of an idle queue", sizes, "bytes/queue", budget=1024.0, settings={"queues": n})
    emit("declare of a durable queue, one after the other", times, "us/queue", settings={"queues": n})


class Probe:
    """Round trips on a connection of its own, in a thread; the longest since the last look."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._link = Link(address)
        self._longest = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            started = time.perf_counter()
            self._link.round_trip()
            self._longest = max(self._longest, time.perf_counter() - started)

    def look(self) -> float:
        """Milliseconds."""
        longest, self._longest = self._longest * 1e3, 0.0
        return longest

    def stop(self) -> None:
        """End of the round trips."""
        self._stop.set()
        self._thread.join()
        self._link.close()


@contextmanager
def probing(address: tuple[str, int]) -> Iterator[Probe]:
    """A probe that ends."""
    probe = Probe(address)
    try:
        yield probe
    finally:
        probe.stop()


class Pulse:
    """The server's own word on the turns of its loop, over HTTP; each look begins anew."""

    def __init__(self, server: Server) -> None:
        self._url = f"http://{server.ready['http']}/metrics"
        self.look()

    def look(self) -> tuple[float, float]:
        """Milliseconds since the last look: of the longest turn, and of CPU in the turn that took most of it."""
        with urlopen(self._url) as answer:
            text = answer.read().decode()
        values = [float(line.split()[1]) for name in _LONGEST for line in text.splitlines() if line.startswith(name)]
        return values[0] * 1e3, values[1] * 1e3


class Watch:
    """The longest pause of each phase, as the server knows it and as another client meets it."""

    def __init__(self, server: Server, probe: Probe, found: dict[str, dict[str, list[float]]]) -> None:
        self._pulse = Pulse(server)
        self._probe = probe
        self._found = found
        self.skip()

    def skip(self) -> None:
        """What was until now belongs to no phase."""
        self._probe.look()
        self._pulse.look()

    def note(self, phase: str) -> None:
        """The phase has ended."""
        client = self._probe.look()
        turn, cpu = self._pulse.look()
        values = {"turn of the loop": turn, "CPU in a turn": cpu, "round trip": client}
        for name, value in values.items():
            self._found.setdefault(phase, {}).setdefault(name, []).append(value)


def pauses(folder: Path, given: argparse.Namespace) -> None:
    """The longest turn of the loop, and the longest round trip, beside heavy work."""
    n: int = given.messages
    found: dict[str, dict[str, list[float]]] = {}
    for run in range(given.repeat):
        environ = {**ENVIRON, "PENSTOCK_LOG__CHECKPOINT_RECORDS": str(max(n // 8, 1000)),
                   "PENSTOCK_LOG__SEGMENT": "32MiB", "PENSTOCK_LOG__RETENTION__AGE": "1s"}  # fmt: skip
        with Server(folder / f"pauses{run}", environ=environ, arguments=("--http", "127.0.0.1:0")) as server:
            address = server.address("amqp")
            place = many_queues(address, "deep")
            one, other = uniform(address, "one"), uniform(address, "other")
            with probing(address) as probe, Link(address) as link:
                watch = Watch(server, probe, found)
                _settle(given)
                watch.note("nothing")
                publish(address, place.workload, n)
                _settle(given)
                watch.note("publishing to 50 queues: checkpoints, segments")
                for workload in (one.workload, other.workload):
                    publish(address, workload, n // 2)
                _settle(given)
                watch.skip()
                link.call((50, 30), b"\0\0\x03one\0", (50, 31))
                time.sleep(TURN_S)
                watch.note("purge of one queue")
                link.delete("other")
                time.sleep(TURN_S)
                watch.note("delete of one queue")
                _purge(link, place, half=True)
                time.sleep(TURN_S)
                watch.note("purge of 25 interleaved queues")
                for name in list(place.queues)[25:]:
                    link.delete(name)
                time.sleep(TURN_S)
                watch.note("delete of 25 interleaved queues")
                time.sleep(0.0 if given.quick else UPKEEP_S)
                watch.note("base, compaction, exchange of segments")
                _lost(given, watch, address, "lost")
                _acked(given, watch, address, "acked")
                link.close()
            server.stop()
    for phase, values in found.items():
        for name, runs in values.items():
            budget = 20.0 if name == "turn of the loop" and phase != "nothing" else None
            emit(f"longest {name}: {phase}", runs, "ms", budget=budget, settings={"messages": n})


def _lost(given: argparse.Namespace, watch: Watch, address: tuple[str, int], name: str) -> None:
    """A consumer that holds every second message of many, and goes."""
    link = _scattered(given, address, name)
    watch.skip()
    link.sock.close()  # not a word before
    _settle(given)
    watch.note("a lost connection that held every second message")


def _acked(given: argparse.Namespace, watch: Watch, address: tuple[str, int], name: str) -> None:
    """A consumer that holds every second message of many, and acks all of them at once."""
    link = _scattered(given, address, name)
    watch.skip()
    link.sock.sendall(_ACK.pack(1, 1, 13, 60, 80, given.messages // 2, 1, 0xCE))  # multiple
    link.round_trip()
    time.sleep(TURN_S)
    watch.note("one ack for every second message")
    link.close()


def _scattered(given: argparse.Namespace, address: tuple[str, int], name: str) -> Link:
    """A connection that holds every second one of half as many messages as given."""
    n: int = given.messages // 2
    place = uniform(address, name)
    publish(address, place.workload, n)
    _settle(given)
    link = Link(address)
    drive(Consumer(link, place.workload, n, name, prefetch=0, ack_every=n + 1))
    link.sock.setblocking(True)
    _ack(link, list(range(1, n + 1, 2)))
    _settle(given)
    return link


def many(folder: Path, given: argparse.Namespace) -> None:
    """Many queues, in a server that works."""
    count = max(given.messages // 100, 10)
    found: dict[str, list[float]] = {}

    def note(phase: str, value: float) -> None:
        found.setdefault(phase, []).append(value)

    for run in range(given.repeat):
        environ = {**ENVIRON, "PENSTOCK_LOG__CHECKPOINT_RECORDS": str(max(given.messages // 4, 1000))}
        with Server(folder / f"many{run}", environ=environ, arguments=("--http", "127.0.0.1:0")) as server:
            pulse = Pulse(server)
            _settle(given)
            empty = memory(server.pid).own
            names = [f"many-{number}" for number in range(count)]
            with Link(server.address("amqp")) as link:
                started = time.perf_counter()
                _declare(link, names)
                note("declare, us a queue", (time.perf_counter() - started) / count * 1e6)
                link.close()
            _settle(given)
            note("ms in a turn: declare", pulse.look()[0])
            note("bytes an idle queue", (memory(server.pid).own - empty) / count)
            publish(server.address("amqp"), Workload.make(names, count=count), given.messages)
            _settle(given)
            note("ms in a turn: publish and checkpoints", pulse.look()[0])
            _listed(server)
            note("ms in a turn: list over HTTP", pulse.look()[0])
            time.sleep(0.0 if given.quick else LOOK_S)
            note("ms in a turn: upkeep", pulse.look()[0])
            server.stop()
            server.start()
            note("seconds of a start", server.start_s)
            pulse = Pulse(server)
            _listed(server)
            _settle(given)
            note("ms in a turn: after a start", pulse.look()[0])
            server.stop()
    for what, runs in found.items():
        budget = 20.0 if what.startswith("ms in a turn") else 1024.0 if what.startswith("bytes") else None
        emit(f"many queues: {what}", runs, what.split()[0], budget=budget, settings={"queues": count})


def _declare(link: Link, names: list[str]) -> None:
    """Declare without waiting for each answer."""
    for start in range(0, len(names), 1000):
        part = names[start : start + 1000]
        link.sock.sendall(
            b"".join(method((50, 10), b"\0\0" + bytes([len(name)]) + name.encode() + b"\x02\0\0\0\0") for name in part)
        )
        for _ in part:
            link.read_frame()


def _listed(server: Server) -> None:
    """A few pages of the list of queues."""
    for page in (1, 2, 3):
        request = Request(f"http://{server.ready['http']}/api/queues?page={page}&page_size=100&sort=name")
        request.add_header("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
        with urlopen(request) as answer:
            answer.read()


def _purge(link: Link, place: Place, *, half: bool) -> None:
    for name in list(place.queues)[: 25 if half else None]:
        data = name.encode()
        link.call((50, 30), b"\0\0" + bytes([len(data)]) + data + b"\0", (50, 31))


def _settle(given: argparse.Namespace) -> None:
    time.sleep(0.0 if given.quick else SETTLE_S)


MODES = {"leased": leased, "idle": idle, "pauses": pauses, "many": many}


def main() -> None:
    """Run the modes asked for."""
    options = parser(__doc__ or "", messages=1_000_000, repeat=1)
    options.add_argument("--mode", action="append", choices=list(MODES), help="default: all")
    given = parse(options)
    with work_folder(given.folder) as folder:
        for mode in given.mode or MODES:
            MODES[mode](folder, given)


if __name__ == "__main__":
    main()
