"""What every benchmark needs: a real server process, its CPU and memory, the disk's own speed, a line of JSON.

Owns starting, killing and measuring the server, and what a figure says about where it came from.  Refuses to know any
protocol.  A figure is one line of JSON: what, value, unit, budget, ratio (value / budget), whether the budget is met,
every single run, settings, machine, commit, time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, Self

ROOT = Path(__file__).resolve().parent.parent
START_LIMIT_S = 300.0
"""A server that has not written its ready file by then has failed."""

STOP_LIMIT_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CPU_CLOCK = 2
"""With the complement of a process id above it, the clock of that process' CPU (Linux, posix-timers.h)."""

_LAUNCH = "from penstock.cli.main import main; main()"


class Wrong(Exception):
    """A message is lost, doubled, out of order or changed, or the server did not do what it was asked."""


PATIENCE_S = 300.0


def until(done: Callable[[], bool], what: str) -> float:
    """Seconds that it took.  Raises Wrong when it takes too long."""
    began = time.perf_counter()
    while not done():
        if time.perf_counter() - began > PATIENCE_S:
            raise Wrong(f"{what}: not after {PATIENCE_S:g} s")
        time.sleep(0.005)
    return time.perf_counter() - began


# -- a process and its children, as /proc tells it


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process tree has used and holds: CPU seconds (user + system), resident bytes."""

    cpu_s: float
    resident: int


def _stat(pid: int) -> tuple[int, float, int] | None:
    """Parent, CPU seconds (with those of children that have ended) and resident bytes; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    user, system, *ended = (int(ticks) / _TICKS for ticks in fields[11:15])
    try:
        own = time.clock_gettime((~pid << 3) | _CPU_CLOCK)
    except OSError:
        own = user + system
    return int(fields[1]), own + sum(ended), int(fields[21]) * _PAGE


def tree(root: int) -> list[int]:
    """`root` and all its live descendants."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (facts := _stat(int(name))) is not None:
            children.setdefault(facts[0], []).append(int(name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def usage(root: int) -> Usage:
    """CPU and memory of a process tree at this moment.  CPU is exact, that of what has ended to a tick (10 ms)."""
    facts = [one for one in map(_stat, tree(root)) if one is not None]
    return Usage(sum(cpu for _, cpu, _ in facts), sum(resident for _, _, resident in facts))


def cpu_of(pid: int) -> float:
    """CPU seconds of one process, without those that it started.  Raises Wrong when it is gone."""
    if (facts := _stat(pid)) is None:
        raise Wrong(f"process {pid} has ended")
    return facts[1]


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9 for a process of ours and all its descendants."""
    if process.poll() is None:
        for pid in reversed(tree(process.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    process.wait()


class Memory(NamedTuple):
    """What a server holds, in bytes: its own process, resident; and its children, which come and go, beyond what they
    share with it."""

    own: int
    children: int


def memory(root: int) -> Memory:
    """At this moment."""
    own, *children = tree(root)
    facts = _stat(own)
    return Memory(0 if facts is None else facts[2], sum(map(private, children)))


def private(pid: int) -> int:
    """Bytes of a process that it shares with no other; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) << 10


def together(root: int) -> int:
    """Bytes that a process and its descendants have in memory, what they share counted once, whoever else has it, too:
    of each file as much as the one has that has most of it."""
    own, files = 0, dict[str, int]()
    for pid in tree(root):
        mine, path = Counter[str](), ""
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            name, *words = line.split(maxsplit=5)
            if not name.endswith(":"):
                path = words[4] if len(words) > 4 else ""
            elif name == "Rss:":
                mine[path] += int(words[0]) << 10
            elif name == "Anonymous:":
                mine[path] -= int(words[0]) << 10
                own += int(words[0]) << 10
        for path, size in mine.items():
            files[path] = max(files.get(path, 0), size)
    return own + sum(files.values())


def own_cpu() -> float:
    """CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


# -- the server


@cache
def compile_sources(folder: Path) -> None:
    """Bytecode beside the sources, as the installed package has it.

    Where PYTHONDONTWRITEBYTECODE is set, each process would compile 400 modules anew: 0.3 s that no user waits for.
    """
    command = [sys.executable, "-m", "compileall", "-q", str(folder)]
    subprocess.run(command, env={**os.environ, "PYTHONPYCACHEPREFIX": ""}, stdout=sys.stderr, check=True)


class Server:
    """A `penstock serve` of its own on free ports.  Use as a context: it never outlives it.

    `kill` is kill -9 and keeps the folder, `start` starts on the same folder again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        environ: Mapping[str, str] | None = None,
        amqp: bool = True,
        flight: bool = False,
        arguments: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.ready: dict[str, object] = {}
        self.start_s = 0.0  # from the spawn of the process to its ready file
        self.spawned = 0.0  # on the clock of time.perf_counter
        self._environ = dict(environ or {})
        self._doors = ("--amqp", "127.0.0.1:0" if amqp else "off", "--flight", "127.0.0.1:0" if flight else "off")
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is not None and self.output:
            error.add_note(f"the server's last words:\n{self.output}")
        self.kill()

    @property
    def pid(self) -> int:
        """Of the process that was started; the tree below it is what counts."""
        if self._process is None:
            raise Wrong("the server does not run")
        return self._process.pid

    @property
    def output(self) -> str:
        """What the server has printed, for an error message."""
        path = self.folder / "server.out"
        return path.read_text(errors="replace")[-6000:] if path.exists() else ""

    def start(self) -> None:
        """Start it and wait for its ready file.  Raises Wrong with its output when it does not come up."""
        compile_sources(ROOT / "src")
        self.folder.mkdir(parents=True, exist_ok=True)
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-c", _LAUNCH, "serve", "--data", str(self.data), "--http", "off"]
        command += [*self._doors, *self._arguments, "--ready-file", str(ready)]
        with (self.folder / "server.out").open("ab") as output:
            self.spawned = time.perf_counter()
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONFAULTHANDLER": "1", **self._environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        while not ready.exists():
            if self._process.poll() is not None or time.perf_counter() - self.spawned > START_LIMIT_S:
                self.kill()
                raise Wrong(f"the server did not start: {self.output}")
            time.sleep(0.001)  # a start is timed by this, to the millisecond
        self.start_s = time.perf_counter() - self.spawned
        self.ready = json.loads(ready.read_bytes())

    def address(self, door: Literal["amqp", "flight"]) -> tuple[str, int]:
        """Host and port of a door."""
        text = self.ready.get(door)
        if not isinstance(text, str):
            raise Wrong(f"the server has no {door} door: {self.ready}")
        host, _, port = text.rpartition("//")[2].rpartition(":")
        return host, int(port)

    @property
    def recovery_s(self) -> float:
        """Seconds that the server says its recovery took."""
        recovered = self.ready["recovered"]
        assert isinstance(recovered, dict)
        return float(recovered["seconds"])

    def usage(self) -> Usage:
        """CPU and memory of the whole process tree."""
        if self._process is None or self._process.poll() is not None:
            raise Wrong(f"the server has ended: {self.output}")
        return usage(self.pid)

    def kill(self) -> None:
        """kill -9 for the whole tree; nothing when it does not run."""
        if self._process is None:
            return
        kill(self._process)
        self._process = None

    def stop(self) -> None:
        """SIGTERM, and wait for a clean end."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            status = self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # its last words are then where each of its threads stands
            time.sleep(1)
            self.kill()
            raise Wrong(f"the server did not stop within {STOP_LIMIT_S:.0f} s of SIGTERM") from None
        self._process = None
        if status != 0:
            raise Wrong(f"the server ended with status {status}: {self.output}")

    def log_bytes(self) -> int:
        """Bytes of log in the segment files, without the zeros of space that is only reserved."""
        return sum(filled(path) for path in sorted((self.data / "log").iterdir()) if path.is_file())


def filled(path: Path) -> int:
    """The size of a file up to its last byte that is not zero."""
    size = path.stat().st_size
    with path.open("rb") as file:
        while size:
            start = max(0, size - (1 << 20))
            file.seek(start)
            block = file.read(size - start).rstrip(b"\0")
            if block:
                return start + len(block)
            size = start
    return 0


@contextmanager
def work_folder(where: Path | None = None) -> Iterator[Path]:
    """A folder that is gone afterwards, however the benchmark ends; `where` is made if it is not there, and stays."""
    if where is not None:
        where.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- figures


class Measured(Protocol):
    """A server whose CPU and memory can be told."""

    def usage(self) -> Usage: ...


@dataclass(slots=True)
class Span:
    """A stretch of work: wall seconds, CPU seconds of the server and of the client.  Use as a context."""

    server: Measured
    wall_s: float = 0.0
    server_s: float = 0.0
    client_s: float = 0.0
    _start: tuple[float, float, float] = field(default=(0.0, 0.0, 0.0))

    def __enter__(self) -> Self:
        self._start = (time.perf_counter(), self.server.usage().cpu_s, own_cpu())
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu, own = self._start
        self.wall_s = time.perf_counter() - wall
        self.server_s = self.server.usage().cpu_s - cpu
        self.client_s = own_cpu() - own


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the sorted values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class DiskProbe:
    """The disk alone: what one write of some hundred bytes into reserved space and its `fdatasync` take.  A context."""

    def __init__(self, folder: Path, size: int = 700, room: int = 4 << 20) -> None:
        self._path = folder / "sync-probe"
        self._data = os.urandom(size)
        self._room = room
        self._place = 0
        self._handle = -1

    def __enter__(self) -> Self:
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._handle, 0, self._room)
        os.fsync(self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
        self._path.unlink()

    def sync(self) -> float:
        """Seconds of one."""
        started = time.perf_counter()
        os.pwrite(self._handle, self._data, self._place)
        os.fdatasync(self._handle)
        self._place = (self._place + len(self._data)) % (self._room - len(self._data))
        return time.perf_counter() - started


def filesystem(folder: Path) -> str:
    """The type of the file system a folder lies on, because a sync to memory is none."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if str(folder).startswith(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    import pyarrow

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * _PAGE / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pyarrow": pyarrow.__version__,
    }


def commit() -> str:
    """The commit of the checkout, with `+` when files differ from it; `unknown` outside of one."""
    git = ["git", "--no-optional-locks", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return "unknown"
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


_where: dict[str, object] = {}


def emit(
    what: str,
    values: Sequence[float],
    unit: str,
    *,
    budget: float | None = None,
    sense: Literal["at most", "at least"] = "at most",
    settings: Mapping[str, object],
) -> float:
    """Print the median of some runs as one line of JSON; the median.  `ratio` is value / budget."""
    if not _where:
        _where.update(machine=machine(), commit=commit())
    value = statistics.median(values)
    line: dict[str, object] = {
        "what": what,
        "value": _short(value),
        "unit": unit,
        "budget": None if budget is None else _short(budget),
        "sense": sense,
        "ratio": None if budget is None else round(value / budget, 3),
        "met": None if budget is None else (value <= budget if sense == "at most" else value >= budget),
        "runs": [_short(one) for one in values],
        "settings": dict(settings),
        **_where,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    print(json.dumps(line), flush=True)
    return value


def _short(value: float) -> float:
    return round(value) if abs(value) >= 10_000 else float(f"{value:.4g}")


# -- arguments


def parser(description: str, *, messages: int, repeat: int = 3, quick: int = 2000) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--messages", type=int, default=messages, help=f"messages in each run (default {messages:,})")
    options.add_argument("--repeat", type=int, default=repeat, help="runs of which the median is told")
    options.add_argument("--folder", type=Path, help="where data folders are made (default: the temporary folder)")
    options.add_argument("--quick", action="store_true", help="a few messages, once: shows that it works")
    options.set_defaults(quick_messages=quick)
    return options


def parse(options: argparse.ArgumentParser) -> argparse.Namespace:
    """Parsed options, with `--quick` worked in."""
    given = options.parse_args()
    if given.quick:
        given.messages, given.repeat = min(given.messages, given.quick_messages), 1
    if given.messages < 1 or given.repeat < 1:
        options.error("--messages and --repeat are at least 1")
    return given
