"""`make soak`: a mixed load without a pace, random kill -9, a disk that is nearly full at times, slow consumers.

    PYTHONPATH=tests python -m soak.soak --seconds 3600 --out soak.jsonl

It fails when a message is lost, doubled or changed, and when memory, descriptors, disk or the p99 of a confirm rise
more than `slope.LIMITS` say.  Each sample is a line of JSON; at the end there is a table.  `SOAK_LEAK` plants a leak.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from pika import spec

from crash_clients import GONE, Peer
from forked import Forked, can_fork
from soak import by_hand, slope
from soak.books import Books
from soak.clients import FlightLoad, Probe, Publisher, Sink, SoakClient, Visitor, Worker, drained
from waiting import Patience

TESTS = Path(__file__).resolve().parents[1]
MEMORY = """\
[server]
memory = "32MiB"

"""
"""Of servers that load what they run: Arrow is loaded with a bound, which for forked ones is the usual one."""

SETTINGS = """\
[log]
segment = "4MiB"
retention = { bytes = "24MiB" }
checkpoint_bytes = "8MiB"
"""
QUEUES: Mapping[str, dict[str, object]] = {
    "work": {},
    "fast": {},
    "slow": {},
    "filtered": {},
    "bulk": {},
    "ttl": {"x-message-ttl": 1500, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "late"},
    "late": {},
    "retry": {
        "x-retry": {"initial": "30ms", "max": "150ms"},
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    },
    "dead": {},
    "markers": {},
}
PUBLISHED = ("work", "slow", "filtered", "ttl", "retry", "fast", "bulk")
START_S, STOP_S, END_S, LATE_S = 60.0, 60.0, 90.0, 30.0
REST_S, TABLES_REST_S = 0.2, 1.0
"""After each burst and each table in the life of a short run that is measured: 2,200 messages a second tell of what
rises, too.  The life before it, which ends by a kill, knows no rest.
"""

ENOUGH = slope.FEWEST + 2
"""Points of a life that a short run has at least."""

USUAL_PROCESSES = 3
"""The server, its Flight door, and the child that rewrites segments, while there is anything to rewrite."""

NO_QUOTA = 1 << 60
SQUEEZED = 24 << 20
"""Bytes left while the disk is nearly full: less than what the server keeps free for acks."""


class Host:
    """The server's process and what it uses."""

    loads = True  # as `LiveServer` has it, with all that it starts: its memory is its own, and so are its children

    def __init__(self, folder: Path, leak: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.quota = folder / "quota"
        self.ready: dict[str, Any] = {}
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.started = 0.0
        self.lives = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.squeeze(NO_QUOTA)
        path = os.pathsep.join((str(TESTS), str(TESTS.parent / "src")))
        self._environ = {**os.environ, "PYTHONPATH": path, "SOAK_QUOTA": str(self.quota), "SOAK_LEAK": leak}

    def start(self) -> None:
        """Start, and wait for the doors."""
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        (self.folder / "settings.toml").write_text(MEMORY * self.loads + SETTINGS)
        command = [str(TESTS / "soak" / "hosted.py"), "serve", str(self.folder / "settings.toml")]
        command += ["--data", str(self.data), "--amqp", "127.0.0.1:0", "--flight", "127.0.0.1:0", "--http", "off"]
        command += ["--ready-file", str(ready)]
        with (self.folder / "output.txt").open("ab") as output:
            if self.loads or not can_fork(self._environ):
                self.process = subprocess.Popen(
                    [sys.executable, *command], stdout=output, stderr=output, env=self._environ
                )
            else:
                self.process = Forked(command, stdout=output.fileno(), stderr=output.fileno(), env=self._environ)
        patience = Patience(START_S)
        while not ready.exists():
            if self.process.poll() is not None or patience.is_over():
                self.kill()
                raise AssertionError(f"the server did not start:\n{self.output()}")
            time.sleep(0.02)
        self.ready = json.loads(ready.read_bytes())
        self.lives += 1
        self.started = time.monotonic()

    @property
    def port(self) -> int:
        """Of AMQP."""
        return int(self.ready["amqp"].rsplit(":", 1)[1])

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def output(self, *, whole: bool = False) -> str:
        """The end of what it has printed, or all of it."""
        text = (self.folder / "output.txt").read_text(errors="replace")
        return text if whole else text[-3000:]

    def kill(self) -> None:
        """kill -9 for it and its children."""
        for pid in reversed(self.tree()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self.process is not None
        self.process.wait(STOP_S)

    def stop(self) -> None:
        """A clean stop; AssertionError if it was none."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(STOP_S)
        assert status == 0, f"the server stopped with {status}:\n{self.output()}"

    def squeeze(self, size: int) -> None:
        """The data folder may have this many bytes from now on."""
        part = self.quota.with_suffix(".new")
        part.write_text(str(size))
        part.replace(self.quota)

    def tree(self) -> list[int]:
        """The process and all below it."""
        assert self.process is not None
        children: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError, ValueError):
                    text = Path(f"/proc/{name}/stat").read_text()
                    children.setdefault(int(text[text.rindex(")") + 2 :].split()[1]), []).append(int(name))
        found = [self.process.pid]
        for pid in found:
            found.extend(children.get(pid, ()))
        return found

    def used(self, tree: list[int]) -> dict[str, int]:
        """Resident bytes and descriptors of all its processes, bytes on the disk."""
        memory = descriptors = 0
        for pid in tree:
            with suppress(OSError):
                memory += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                descriptors += self.descriptors(pid)
        return {"memory": memory, "descriptors": descriptors, "disk": self.disk()}

    def descriptors(self, pid: int) -> int:
        """Open descriptors of a process but one for each file that the data folder has: those come and go with the log.

        A second one for the same file counts, and so does one for a file that is deleted.
        """
        files = set[str]()
        count = 0
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # closed meanwhile
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target in files or not target.startswith(f"{self.data}/") or not os.path.exists(target):
                    count += 1
                files.add(target)
        return count

    def disk(self) -> int:
        """Bytes that the data folder takes."""
        total = 0
        for folder, _, names in os.walk(self.data):
            for name in names:
                with suppress(OSError):
                    total += os.stat(os.path.join(folder, name)).st_blocks * 512
        return total


class Soak:
    """One run."""

    def __init__(self, folder: Path, seconds: float, seed: int, leak: str = "", out: TextIO | None = None) -> None:
        self.seconds = seconds
        self.random = random.Random(seed)
        self.calm = bool(leak)  # no kills and no squeezes: the leak shall have the whole time
        self.out = out
        self.books = Books()
        self.host = Host(folder, leak)
        self.publishers = {queue: self.books.publisher(queue) for queue in PUBLISHED}
        self.team: list[SoakClient] = []
        self.points: dict[str, list[tuple[int, float, float]]] = {name: [] for name in slope.LIMITS}
        self.asked = [name for name in slope.LIMITS if name in leak] or list(slope.LIMITS)
        self.short = seconds < 600
        self.every = 0.5 if self.short else 5.0
        self.taken = deque[list[float]](maxlen=max(1, round(1 / self.every)))  # of a second or more
        self.warm_up = min(120.0, seconds / (6 if self.calm else 4))
        self.began = time.monotonic()
        self.squeezed = False

    def run(self) -> list[slope.Verdict]:
        """All of it; what became of each series.  Faults are in `books.wrong`."""
        host = self.host
        host.start()
        try:
            self.declare()
            self.go(measured=self.calm)
            kills = self.plan()
            squeeze_at = (
                1e9
                if self.calm
                else self.seconds * (self.random.uniform(0.05, 0.08) if self.short else self.random.uniform(0.10, 0.15))
            )
            self.began = time.monotonic()
            end = self.began + self.seconds
            while ((now := time.monotonic()) < end or self.lacks_points(now - end)) and not self.books.wrong:
                time.sleep(min(self.every, max(end - now, self.every / 2)))
                self.watch()
                passed = time.monotonic() - self.began
                if kills and passed > kills[0]:
                    kills.pop(0)
                    self.kill()
                if passed > squeeze_at:
                    squeeze_at = self.squeeze(passed)
            self.host.squeeze(NO_QUOTA)
            self.rest()
            self.account()
        finally:
            if host.alive:
                host.kill()
        return [slope.judge(name, points, self.warm_up) for name, points in self.points.items()]

    def lacks_points(self, beyond: float) -> bool:
        """Whether a short run goes on, so many seconds beyond its time: a busy machine made few of its last life.

        A planted leak is asked after alone: the p99 of a server that leaks may have no point for as long as it runs.
        """
        parts = [
            Counter(part for part, at, _ in self.points[name] if part // 10 == self.host.lives and at >= self.warm_up)
            for name in self.asked
        ]
        least = min(max(counts.values(), default=0) for counts in parts)
        return self.short and least < ENOUGH and beyond < 2 * self.seconds + LATE_S

    def plan(self) -> list[float]:
        """When to kill: early in a short run, so that the last life can be measured; else again and again."""
        if self.calm:
            return []
        if self.short:
            return [self.seconds * self.random.uniform(0.13, 0.18)]
        kills, at = list[float](), 0.0
        while (at := at + self.random.uniform(60, 600)) < self.seconds - 120:
            kills.append(at)
        return kills

    def declare(self) -> None:
        """Every queue."""
        with Peer(self.host.port) as peer:
            for name, arguments in QUEUES.items():
                peer.method(spec.Queue.Declare(queue=name, durable=True, arguments=arguments))
                peer.expect(spec.Queue.DeclareOk)
            peer.leave()

    def go(self, *, measured: bool = False) -> None:
        """A new team for a new life.  measured: in a short run it has a pace."""
        port, books, ids = self.host.port, self.books, self.publishers
        self.probe = Probe(port, books)
        self.taken.clear()
        slow_most = 1_000 if self.short else 10_000
        rest, tables_rest = (REST_S, TABLES_REST_S) if measured and self.short else (0.0, 0.0)
        self.team = [
            self.probe,
            Sink("sink", port, books),
            *(
                Publisher(port, books, ids[queue], most=slow_most if queue == "slow" else 5_000, rest=rest)
                for queue in ("work", "slow", "filtered", "ttl", "retry")
            ),
            Publisher(port, books, ids["fast"], most=5_000, rest=rest, transient=True),
            FlightLoad(port, books, ids["bulk"], self.host.ready["flight"], most=10_000, rest=tables_rest),
            Worker(port, books, "work", run=100),
            Worker(port, books, "work", prefetch=20, run=1),
            Worker(port, books, "fast", run=100),
            Worker(port, books, "late", run=100),
            Worker(port, books, "retry", refuse=7),
            Worker(port, books, "dead"),
            Worker(port, books, "slow", prefetch=200, pace=0.01),
            Worker(port, books, "filtered", text="/n < 4"),
            Worker(port, books, "filtered", text="/n >= 4 AND /n < 9"),
            Visitor(port, books, "filtered", 2.0),
        ]
        for client in self.team:
            client.start()

    def rest(self) -> None:
        """The team stops."""
        for client in self.team:
            client.stopping.set()
        for client in self.team:
            client.join(END_S)
            if client.is_alive():
                self.books.fault(f"{client.name} does not stop")
            if client.failure is not None:
                self.books.fault(f"{client.name}: {client.failure!r}")

    def watch(self) -> None:
        """Take a sample."""
        if not self.host.alive:
            self.books.fault(f"the server ended by itself:\n{self.host.output()}")
            return
        self.listen()
        for client in self.team:
            if client.failure is not None:
                self.books.fault(f"{client.name}: {client.failure!r}")
        at = time.monotonic() - self.host.started
        tree = self.host.tree()
        sample: dict[str, float] = dict(self.host.used(tree))
        self.taken.append(self.probe.take())
        taken = sorted(chain(*self.taken))
        if len(taken) >= 3:
            sample["p99"] = taken[int(len(taken) * 0.99)] * 1e3
        for name, value in sample.items():
            if not self.squeezed or name in ("memory", "descriptors"):
                self.note(name, at, value, len(tree))
        if self.out is not None:
            line = {
                "at": round(time.monotonic() - self.began, 2), "life": self.host.lives, "life_s": round(at, 2),
                "squeezed": self.squeezed, **{name: round(value, 3) for name, value in sample.items()},
                **self.books.counts,
            }  # fmt: skip
            self.out.write(json.dumps(line) + "\n")
            self.out.flush()

    def note(self, name: str, at: float, value: float, processes: int) -> None:
        """A point.  Memory is held against that of as many processes: a usual one comes and goes with all of it."""
        part = min(processes, USUAL_PROCESSES) if name == "memory" else 0
        self.points[name].append((10 * self.host.lives + part, at, value))

    def squeeze(self, passed: float) -> float:
        """The disk becomes nearly full, or roomy again; when to come back."""
        self.squeezed = not self.squeezed
        self.host.squeeze(self.host.disk() + SQUEEZED if self.squeezed else NO_QUOTA)
        self.books.counts["squeezes"] += self.squeezed
        if self.squeezed:
            return passed + (0.05 * self.seconds if self.short else self.random.uniform(5, 30))
        return passed + (1e9 if self.short else self.random.uniform(120, 600))

    def kill(self) -> None:
        """kill -9 in the middle of it all, and a new life."""
        self.host.kill()
        self.rest()
        self.books.killed()
        self.books.counts["kills"] += 1
        self.host.start()
        self.go(measured=True)

    def account(self) -> None:
        """Stop, start, and count everything that is still there."""
        books = self.books
        try:
            self.host.stop()
            books.killed()  # transient messages end with the process
            self.host.loads = not self.short  # what counts what is left is not measured
            self.host.start()
            books.close(drained(self.host.port, books, tuple(name for name in QUEUES if name != "markers")))
            self.host.stop()
        except GONE as error:
            books.fault(f"the server broke off: {error!r}\n{self.host.output()}")
        self.listen()

    def listen(self) -> None:
        """What the server must never say."""
        said = self.host.output(whole=True)
        for sign in ("Traceback", "Error: ", "the log cannot be written"):
            if sign in said:
                self.books.fault(f"the server said '{sign}':\n{said[-3000:]}")
                return


def told(verdicts: list[slope.Verdict]) -> str:
    """The table."""
    lines = [f"{'series':12} {'median':>10} {'an hour':>12} {'risen':>10} {'limit':>10}   of"]
    for one in verdicts:
        mark = "" if one.good else "   RISES" if one.points >= slope.FEWEST else "   TOO FEW POINTS"
        lines.append(
            f"{one.name:12} {one.median:>10.1f} {one.an_hour:>+12.1f} {one.risen:>+10.2f} {one.limit:>10.1f}   "
            f"{one.unit:4} {one.points} points, {one.seconds:.0f} s{mark}"
        )
    return "\n".join(lines)


def main() -> int:
    """Run; 1 when something is wrong."""
    options = by_hand.options(__doc__)
    options.add_argument("--out", type=Path, help="where the samples go, a line of JSON each")
    given = options.parse_args()
    run = by_hand.Run(given, "soak")
    with (given.out or run.folder / "samples.jsonl").open("w") as out:
        soak = Soak(run.folder, given.seconds, given.seed, os.environ.get("SOAK_LEAK", ""), out)
        verdicts = soak.run()
    counts: Counter[str] = soak.books.counts
    print(told(verdicts))
    print(", ".join(f"{count:,} {name}" for name, count in counts.items()))
    return run.end(soak.books.wrong, good=all(one.good for one in verdicts))


if __name__ == "__main__":
    sys.exit(main())
