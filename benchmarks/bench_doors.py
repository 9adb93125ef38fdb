"""Processes that take clients, `doors = 1`: what becomes of others when one is killed, stopped, starved or flooded.

    python benchmarks/bench_doors.py --mode faults

A probe at each door publishes a message (over Flight ten) every 10 ms and waits for its confirm; what was confirmed
is counted at the end.  A probe of the door in question goes on as soon as that takes it again.

faults   killed; stopped (SIGSTOP); out of memory (a limit, and clients that need more); flooded by strangers for some
         seconds: p99 of the other doors' probes meanwhile beside their p99 before, and when the door is back
beside   small Flight publishes beside a saturated AMQP door: how many, and how much of its rate AMQP keeps
cost     CPU a message of all processes and of the core alone, with many clients that have one message in flight; what
         that means for a machine of eight cores, which is worked out and not measured; one client that pipelines, and
         a lone message, by turns with `doors = 0`
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from amqp_client import Consumer, Link, Publisher, drive
from bench_amqp import PREFETCH, WINDOW, Place, Saturated, confirm_one, small_flight_publishes, uniform
from crowd import allow_many
from crowd_amqp import AmqpDoor
from crowd_loads import Outcome, load, run
from flight_client import Door, rows
from harness import Server, Span, Usage, Wrong, cpu_of, emit, parse, parser, percentile, tree, work_folder

DOORS = ("amqp", "flight", "http")
PAUSE_S = 0.01
LOOK_S = 0.01
BEFORE_S, MEANWHILE_S = 4.0, 4.0
GIVEN_UP_S = 30.0
BACK_S = {"killed": 1.0, "stopped": 6.0, "starved": 1.0}
TIMES_MOST = 2.0
LOGIN = {"authorization": "Basic " + b64encode(b"guest:guest").decode(), "content-type": "application/json"}

FLOOD = """
import socket, sys, time
host, port, words = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])
until = time.monotonic() + float(sys.argv[4])
links = []
while time.monotonic() < until:
    try:
        while len(links) < 200:
            links.append(socket.create_connection((host, port), timeout=1))
            links[-1].setblocking(False)
    except OSError:
        pass
    kept = []
    for link in links:
        try:
            link.send(words)
            try:
                if not link.recv(65536):
                    raise OSError
            except BlockingIOError:
                pass
            kept.append(link)
        except BlockingIOError:
            kept.append(link)
        except OSError:
            link.close()
    links = kept
"""
"""A stranger of 200 connections who sends as fast as he is taken, and comes again whenever he is sent away."""

WORDS = {
    "amqp": b"AMQP\0\0\x09\x01" + bytes(2000),
    "flight": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000") * 200,
    "http": b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET /api/overview HTTP/1.1\r\nhost: x\r\n\r\n" * 5,
}

FAILED = (OSError, Wrong, HTTPException)


class Probe(threading.Thread):
    """One message after the other at one door."""

    def __init__(self, door: str, address: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self.door, self.address = door, address
        self.over = threading.Event()
        self.taken = list[tuple[float, float]]()  # when it began, and how long it took
        self.messages = 0  # that were confirmed
        self.topic = f"probe-{door}"

    def run(self) -> None:
        """Until it is over."""
        while not self.over.is_set():
            with contextlib.suppress(Exception), contextlib.closing(self.publishes()) as steps:
                began = time.perf_counter()
                for count in steps:
                    self.taken.append((began, time.perf_counter() - began))
                    self.messages += count
                    if self.over.wait(PAUSE_S):
                        return
                    began = time.perf_counter()
            self.over.wait(LOOK_S)

    def publishes(self) -> Iterator[int]:
        """Each with as many messages as it had, once they are confirmed."""
        return {"amqp": self._amqp, "flight": self._flight, "http": self._http}[self.door]()

    def _amqp(self) -> Iterator[int]:
        frames = Place.uniform(self.address, self.topic).workload.published()
        with Link(self.address) as link:
            link.confirms()
            for at in range(1 << 30):
                link.sock.sendall(frames.slice(frames.offset(at % 1000), frames.offset(at % 1000 + 1)))
                confirm_one(link, at + 1)
                yield 1

    def _flight(self) -> Iterator[int]:
        with Door(self.address) as door:
            while True:
                door.publish(self.topic, [rows(0, 10)])
                yield 10

    def _http(self) -> Iterator[int]:
        asked: dict[str, object] = {"properties": {"delivery_mode": 2}, "routing_key": self.topic, "payload": "x" * 100}
        body = json.dumps({**asked, "payload_encoding": "string"})
        with contextlib.closing(HTTPConnection(*self.address, timeout=GIVEN_UP_S)) as link:
            while True:
                link.request("POST", "/api/exchanges/%2F/amq.default/publish", body, LOGIN)
                if link.getresponse().read() != b'{"routed":true}':
                    raise Wrong("a message was not taken over HTTP")
                yield 1

    def p99(self, since: float, until: float) -> float:
        """Seconds of what began between these."""
        taken = [spent for began, spent in self.taken if since <= began < until]
        if not taken:
            raise Wrong(f"the probe of {self.door} had no answer")
        return percentile(taken, 0.99)

    def back(self, since: float) -> float | None:
        """When the first one that began after this was answered; None: none was yet."""
        return next((began + spent for began, spent in reversed_until(self.taken, since)), None)


def reversed_until(taken: list[tuple[float, float]], since: float) -> Iterator[tuple[float, float]]:
    """The first of those that began after this."""
    later = [one for one in taken if one[0] >= since]
    yield from later[:1]


class House:
    """A server with one door of each kind, and a probe at each."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.addresses = {name: _address(server, name) for name in DOORS}
        for name in DOORS:
            place = Place.uniform(self.addresses["amqp"], f"probe-{name}")
            assert place.queues
        self.probes = {name: Probe(name, self.addresses[name]) for name in DOORS}

    def process(self, door: str) -> int | None:
        """Of the door that runs."""
        for pid in tree(self.server.pid):
            with contextlib.suppress(OSError):
                if f"{door}.front".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def fault(self, door: str, what: str, seconds: float) -> tuple[float | None, dict[str, tuple[float, float]]]:
        """Seconds until it was back, and p99 before and meanwhile of the others."""
        began = time.perf_counter()
        time.sleep(seconds)
        happened, pid = time.perf_counter(), self.process(door)
        if pid is None:
            raise Wrong(f"there is no process of the {door} door")
        FAULTS[what](self, door, pid)
        if what == "flooded":
            back = None
            time.sleep(max(0.0, happened + seconds - time.perf_counter()))
        else:
            back = self._back(door, pid, happened)
            time.sleep(max(0.0, happened + seconds - time.perf_counter()))
        until = time.perf_counter()
        others = {
            name: (probe.p99(began, happened), probe.p99(happened, until))
            for name, probe in self.probes.items()
            if name != door
        }
        return back, others

    def _back(self, door: str, pid: int, happened: float) -> float:
        while self.process(door) in (None, pid):
            if time.perf_counter() > happened + GIVEN_UP_S:
                raise Wrong(f"no other process of the {door} door began")
            time.sleep(LOOK_S)
        gone = time.perf_counter()
        while (answered := self.probes[door].back(gone)) is None:
            if time.perf_counter() > happened + GIVEN_UP_S:
                raise Wrong(f"the {door} door takes nobody")
            time.sleep(LOOK_S)
        return answered - happened

    def check(self) -> None:
        """Wrong unless what was confirmed is there."""
        for name, probe in self.probes.items():
            with contextlib.closing(HTTPConnection(*self.addresses["http"], timeout=GIVEN_UP_S)) as link:
                link.request("GET", f"/api/queues/%2F/probe-{name}", headers=LOGIN)
                there = json.loads(link.getresponse().read())["messages"]
            if there < probe.messages:
                raise Wrong(f"{probe.messages} messages were confirmed over {name}, {there} are there")


def _address(server: Server, door: str) -> tuple[str, int]:
    host, _, port = str(server.ready[door]).rpartition(":")
    return host, int(port)


def killed(_: House, __: str, pid: int) -> None:
    """At once."""
    os.kill(pid, signal.SIGKILL)


def stopped(_: House, __: str, pid: int) -> None:
    """It is there, and does nothing."""
    os.kill(pid, signal.SIGSTOP)


def starved(house: House, door: str, pid: int) -> None:
    """It may have a mebibyte more than it has, and clients need more than that."""
    told = Path(f"/proc/{pid}/status").read_text().splitlines()
    has = next(int(line.split()[1]) << 10 for line in told if line.startswith("VmData"))
    resource.prlimit(pid, resource.RLIMIT_DATA, (has + (1 << 20),) * 2)
    threading.Thread(target=_press, args=(door, house.addresses[door]), daemon=True).start()


def _press(door: str, address: tuple[str, int]) -> None:
    with contextlib.ExitStack() as stack, contextlib.suppress(Exception):
        if door == "flight":
            with Door(address) as flight:
                flight.publish("probe-flight", [rows(0, 100_000)])
            return
        for _ in range(300):
            sock = stack.enter_context(socket.create_connection(address, timeout=2))
            if door == "http":
                sock.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 60_000)
                continue
            sock.close()
            link = stack.enter_context(Link(address))
            frames = b"\x01\0\x01\0\0\0\x0e\0\x3c\0\x28\0\0\0\x05never\0\xce"  # basic.publish to nobody
            head = b"\x02\0\x01\0\0\0\x0e\0\x3c\0\0" + (8 << 20).to_bytes(8, "big") + b"\0\0\xce"
            link.sock.sendall(frames + head + (b"\x03\0\x01\0\x01\0\0" + bytes(65536) + b"\xce") * 100)


def flooded(house: House, door: str, _: int) -> None:
    """By a process of its own, which gets what the others leave."""
    host, port = house.addresses[door]
    words = [host, str(port), WORDS[door].hex(), str(MEANWHILE_S)]
    subprocess.Popen(["nice", "-n", "10", sys.executable, "-c", FLOOD, *words])


FAULTS: dict[str, Callable[[House, str, int], None]] = {
    "killed": killed, "stopped": stopped, "starved": starved, "flooded": flooded,
}  # fmt: skip


QUICK = ("killed",)


def faults(folder: Path, given: argparse.Namespace) -> None:
    """Each at each door."""
    arguments = ("--http", "127.0.0.1:0")
    with Server(folder, flight=True, environ={"PENSTOCK_SERVER__DOORS": "1"}, arguments=arguments) as server:
        house = House(server)
        for probe in house.probes.values():
            probe.start()
        time.sleep(1.0)
        for what in QUICK if given.quick else FAULTS:
            for door in DOORS:
                backs, times = list[float](), list[float]()
                told: dict[str, object] = {}
                for _ in range(given.repeat):
                    back, others = house.fault(door, what, 0.4 if given.quick else MEANWHILE_S)
                    backs += [] if back is None else [back]
                    times.append(max(meanwhile / before for before, meanwhile in others.values()))
                    told = {f"{one}_p99_ms": [round(1e3 * each, 2) for each in two] for one, two in others.items()}
                if backs:
                    emit(f"the {door} door {what}: back", backs, "s", budget=BACK_S[what], settings={})
                what_is = f"the {door} door {what}: p99 of the others"
                emit(what_is, times, "times what it was", budget=TIMES_MOST, settings=told)
        for probe in house.probes.values():
            probe.over.set()
        for probe in house.probes.values():
            probe.join(GIVEN_UP_S)
        house.check()
        server.stop()


def beside(folder: Path, given: argparse.Namespace) -> None:
    """Small Flight publishes beside a saturated AMQP door."""
    seconds = 0.2 if given.quick else 5.0
    alone, kept, small = list[float](), list[float](), list[float]()
    with Server(folder, flight=True, environ={"PENSTOCK_SERVER__DOORS": "1"}) as server:
        address = server.address("amqp")
        for run in range(given.repeat):
            with Saturated(address, uniform(address, "alone")) as saturated:
                time.sleep(seconds)
            alone.append(saturated.rate)
            with Saturated(address, uniform(address, "busy")) as saturated:
                place = uniform(address, f"small-{run}")  # what it replays has nothing of the run before
                done = small_flight_publishes(server.address("flight"), place, seconds)
            small.append(done / seconds)
            kept.append(saturated.rate / alone[-1])
        server.stop()
    settings: dict[str, object] = {"doors": 1, "rows_a_publish": 10, "amqp_alone": [round(one) for one in alone]}
    what = "small Flight publishes beside a saturated AMQP door, doors = 1"
    emit(what, small, "1/s", budget=500.0, sense="at least", settings=settings)
    emit(f"{what}: what AMQP keeps", kept, "of its rate", budget=0.75, sense="at least", settings=settings)


CROWDS: dict[str, tuple[float | None, float, float | None]] = {
    "publish-300": (35.0, 8.0, 120_000.0), "publish-2000": (None, 6.0, None), "work-300": (80.0, 20.0, 50_000.0),
}  # fmt: skip
"""Microseconds of CPU a message that all processes and the core may take, and messages a second on eight cores."""
PROJECTED_DOORS = 4
"""As many as `doors = "auto"` has on eight cores."""
PIPELINED_MOST, PIPELINED_CORE_MOST = 1.5, 0.9
"""Of what one pipelining client costs with `doors = 0`: what all processes may take, and the core alone."""
PIPELINED = 300_000
"""Messages of such a client."""
LONE_MORE_US = {"confirmed": 100.0, "delivered": 60.0}
"""Microseconds that a message alone may take longer through a door of its own."""


class Parted:
    """A server, with the share that its core has of all CPU between two looks."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._seen = list[tuple[float, float]]()  # CPU seconds of the core and of all, at each look

    def usage(self) -> Usage:
        """Of all processes."""
        found = self._server.usage()
        self._seen.append((cpu_of(self._server.pid), found.cpu_s))
        return found

    def core(self) -> float:
        """The core's share between the last two looks."""
        (core, all_), (core_now, all_now) = self._seen[-2:]
        return (core_now - core) / (all_now - all_)


def _crowded(folder: Path, mode: str, doors: int, seconds: float) -> tuple[Outcome, float]:
    """A load on a server of its own, and the share of the core."""
    with Server(folder, environ={"PENSTOCK_SERVER__DOORS": str(doors)}) as server:
        parted = Parted(server)
        outcome = run(AmqpDoor(server.address("amqp")), parted, load(mode), seconds)
        server.stop()
    return outcome, parted.core()


def _pipelined(folder: Path, doors: int, messages: int) -> tuple[float, float]:
    """Microseconds a message of all processes and of the core; the client publishes and consumes as fast as it can."""
    with Server(folder, environ={"PENSTOCK_SERVER__DOORS": str(doors)}) as server:
        parted, address = Parted(server), server.address("amqp")
        place = uniform(address, "pipelined")
        with contextlib.closing(Link(address)) as sending, contextlib.closing(Link(address)) as taking:
            consumer = Consumer(taking, place.workload, messages, place.name, prefetch=PREFETCH, ack_every=100)
            with Span(parted) as span:
                drive(Publisher(sending, place.workload, messages, WINDOW), consumer)
                consumer.finish()
        server.stop()
    all_ = span.server_s / messages * 1e6
    return all_, all_ * parted.core()


def pipelined(folder: Path, given: argparse.Namespace) -> None:
    """One client that pipelines, by turns without a door and with one."""
    messages = 4_000 if given.quick else PIPELINED
    alone, all_, core = list[float](), list[float](), list[float]()
    for turn in range(given.repeat):
        alone.append(_pipelined(folder / f"pipelined-0-{turn}", 0, messages)[0])
        both, own = _pipelined(folder / f"pipelined-1-{turn}", 1, messages)
        all_.append(both / alone[-1])
        core.append(own / alone[-1])
    settings: dict[str, object] = {"messages": messages, "us_with_doors_0": [round(one, 2) for one in alone]}
    what = "one pipelining client, doors = 1"
    emit(f"{what}: CPU of all processes", all_, "of doors = 0", budget=PIPELINED_MOST, settings=settings)
    emit(f"{what}: CPU of the core", core, "of doors = 0", budget=PIPELINED_CORE_MOST, settings=settings)


def cost(folder: Path, given: argparse.Namespace) -> None:
    """CPU of all processes and of the core; one client that pipelines; a lone message."""
    allow_many()
    seconds = 0.3 if given.quick else 5.0
    for named, (of_all, of_core, projected) in [*CROWDS.items()][: 1 if given.quick else None]:
        mode = f"{named.partition('-')[0]}-3" if given.quick else named
        all_, core, rates = list[float](), list[float](), list[float]()
        for turn in range(given.repeat):
            outcome, share = _crowded(folder / f"{named}-{turn}", mode, 1, seconds)
            all_.append(outcome.cpu_us)
            core.append(outcome.cpu_us * share)
            rates.append(outcome.rate)
        settings: dict[str, object] = {"doors": 1, "rate": [round(one) for one in rates]}
        emit(f"{mode}, doors = 1: CPU of all processes", all_, "us/msg", budget=of_all, settings=settings)
        emit(f"{mode}, doors = 1: CPU of the core", core, "us/msg", budget=of_core, settings=settings)
        if projected is not None:
            most = [min(1e6 / one, 1e6 * PROJECTED_DOORS / (two - one)) for one, two in zip(core, all_, strict=True)]
            what = f"{mode}, {PROJECTED_DOORS} doors on eight cores, projected from that"
            emit(what, most, "msgs/s", budget=projected, sense="at least", settings=settings)
    pipelined(folder, given)
    more: dict[str, list[float]] = {what: [] for what in LONE_MORE_US}
    for turn in range(given.repeat):
        alone = [_crowded(folder / f"one-{doors}-{turn}", "one", doors, seconds)[0] for doors in (0, 1)]
        more["confirmed"].append(1e3 * (alone[1].p50 - alone[0].p50))
        more["delivered"].append(1e3 * (alone[1].delivered_p50 - alone[0].delivered_p50))
    for what, values in more.items():
        emit(
            f"a lone message, doors = 1: {what} later than with doors = 0",
            values,
            "us",
            budget=LONE_MORE_US[what],
            settings={},
        )


MODES: dict[str, Callable[[Path, argparse.Namespace], None]] = {"faults": faults, "beside": beside, "cost": cost}


def main() -> None:
    """Run the modes asked for.  `--messages` has no meaning here."""
    options = parser(__doc__ or "", messages=1, repeat=3)
    options.add_argument("--mode", action="append", choices=list(MODES), help="default: all")
    given = parse(options)
    with work_folder(given.folder) as folder:
        for mode in given.mode or list(MODES):
            MODES[mode](folder / mode, given)


if __name__ == "__main__":
    main()
