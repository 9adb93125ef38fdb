"""Processes of ours: one that is started again when it dies, the server as such a child, a start of the server, and
servers of this machine that run.

The settings of a child are pickled by its parent, which is this same program, and come through its standard input, for
they hold passwords; the end of that is the end of the parent.

Of servers that run Linux tells who holds the lock of a data folder, and who listens where.  Nothing is asked of a
server, and no lock is touched.  Of processes of other users little is to be seen.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.errors import PenstockError
from penstock.log.disk import LOCK_NAME

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from penstock.server.base.progress import Progress, Show

Say: TypeAlias = "Callable[[str], object]"
"""Takes a line for people."""

PAUSE_S = (0.1, 10.0)
"""Before a process that has died is started again: the first time, and at most."""

CALM_S = 60.0
"""A process that has run for so long starts again at once when it dies."""

LOG_BYTES = 16 * 2**20
"""A file of output that is longer is put aside at the next start, and takes the place of the one before."""


class Child:
    """A process that is started again when it dies, after a pause that grows while it keeps dying."""

    def __init__(self, name: str, say: Say, pause: tuple[float, float] = PAUSE_S) -> None:
        """`pause`: seconds before the next start, the first time and at most."""
        self.name = name
        self.say = say
        self.pause = pause
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._pause = 0.0
        self._since = 0.0
        self._next = 0.0

    @property
    def pid(self) -> int | None:
        """Its process id, None while it is down."""
        return self.process.pid if self.process is not None else None

    def start(self, command: Sequence[str], given: bytes = b"", log: Path | None = None) -> None:
        """Start it; its standard input stays open until it stops or we are gone.

        A machine that has no room for a process (OSError) is told of and asked again later, but for the first start.
        """
        try:
            self._start(command, given, log)
        except OSError as error:
            if not self.starts:
                raise
            self._rest()
            self.say(f"penstock: the {self.name} cannot be started now: {error}")

    def _start(self, command: Sequence[str], given: bytes, log: Path | None) -> None:
        errors: Any = None
        if log is not None:
            if log.exists() and log.stat().st_size > LOG_BYTES:
                os.replace(log, log.with_suffix(".log.1"))
            errors = log.open("ab")
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for us alone: we stop our children in order
            )
        finally:
            if errors is not None:
                errors.close()
        self.starts += 1
        self._since = time.monotonic()
        self.give(given)

    def give(self, more: bytes) -> None:
        """Write this to its standard input, if it is up: where it is not, its next start is given what it needs."""
        if self.process is None:
            return
        pipe: Any = self.process.stdin
        try:
            pipe.write(more)
            pipe.flush()
        except BrokenPipeError:
            pass  # it died; the next look finds out

    def hear(self, number: int) -> None:
        """Pass a signal on, if it is up."""
        process = self.process
        if process is not None:
            process.send_signal(number)

    def ended(self) -> int | None:
        """The exit status if it has died since the last look; the pause before the next start begins."""
        if self.process is None:
            return None
        status = self.process.poll()
        if status is None:
            return None
        self._close()
        if time.monotonic() - self._since > CALM_S:
            self._pause = 0.0
        self._rest()
        return status

    def _rest(self) -> None:
        """The pause before the next start begins, longer than the last."""
        self._pause = min(self._pause * 2, self.pause[1]) if self._pause else self.pause[0]
        self._next = time.monotonic() + self._pause

    def due(self) -> bool:
        """Whether it is down and may be started."""
        return self.process is None and time.monotonic() >= self._next

    def stop(self, patience: float) -> None:
        """SIGTERM, and SIGKILL for its whole session when that does not help."""
        process = self.process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            self.say(f"penstock: the {self.name} does not stop and is killed")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._close()

    def _close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass  # nobody reads what was left in it
        self.process = None


def main() -> int:
    """Serve until told to stop; the exit status of the error that ended it, if one did."""
    settings, ready_file = read_parcel(sys.stdin.buffer.fileno())
    threading.Thread(target=_watch, daemon=True).start()
    relax_collector()
    try:
        from penstock.server.launching import serve  # heavy, and what goes wrong in it is told below

        serve(settings, ready_file=ready_file, show=line())
    except PenstockError as error:
        sys.stderr.write(f"penstock: {error}\n")
        return error.exit_status
    return 0


def parcel(settings: object, ready_file: str) -> bytes:
    """What a child reads: a length of 8 bytes, big-endian, and the pickle."""
    data = pickle.dumps((settings, ready_file))
    return len(data).to_bytes(8, "big") + data


def read_parcel(descriptor: int) -> tuple[Any, str]:
    """The inverse; reads no byte beyond it."""
    size = int.from_bytes(_read(descriptor, 8), "big")
    settings, ready_file = pickle.loads(_read(descriptor, size))
    return settings, str(ready_file)


def _read(descriptor: int, size: int) -> bytes:
    out = b""
    while len(out) < size:
        piece = os.read(descriptor, size - len(out))
        if not piece:
            raise EOFError("the parent is gone")
        out += piece
    return out


def _watch() -> None:
    """The parent is gone when our standard input ends: stop as if told to."""
    while os.read(sys.stdin.buffer.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


# -- the start of a server


PATIENCE_S = 0.3
"""A start that is over by then shows nothing, and loads nothing to show it with."""

_PARTS = 1000


class Line:
    """Called with each step of a start, and once at its end."""

    def __init__(self, console: Console | None = None) -> None:
        """`console`: where it is drawn, standard error without one."""
        self._console = console
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __call__(self, progress: Progress) -> None:
        """Draw it anew, or take it away when the start has ended."""
        if progress.over:
            self.close()
            return
        if self._bar is None:
            if progress.seconds < PATIENCE_S:
                return
            self._open()
        if self._bar is not None and self._task is not None:
            done = round(_PARTS * progress.share)
            self._bar.update(self._task, completed=done, description=describe(progress), refresh=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        self._bar = Bar(
            TextColumn("recovering {task.percentage:>3.0f} %", table_column=Column(no_wrap=True, min_width=16)),
            BarColumn(12, table_column=Column(min_width=12)),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            console=self._console or Console(stderr=True),
            transient=True,
            auto_refresh=False,
        )
        self._bar.start()
        self._task = self._bar.add_task("", total=_PARTS)


def describe(progress: Progress) -> str:
    """What is done now, without what the bar says already."""
    words = [progress.doing]
    if progress.stage == "checking" and progress.segments_total:
        words.append(f"{progress.segments}/{progress.segments_total}")
    if progress.records_total:
        words.append(f"{progress.records:,}/{progress.records_total:,} records")
    if rate := progress.rate:
        words.append(f"{rate:,.0f}/s")
    if (left := progress.seconds_left) is not None:
        words.append(f"about {left:.0f} s left")
    return "  ".join(words)


def relax_collector() -> None:
    """Have the collector of cycles look rarely while modules are loaded and the log is folded: nearly all stays.

    At its defaults it costs 4 % of a start.  The server sets it for good when it is ready.
    """
    gc.set_threshold(100_000, 50, 1_000)


def line() -> Show | None:
    """A line on the terminal; None where there is none."""
    return Line() if sys.stderr.isatty() else None


MEMBER = b"penstock.server.cluster.process"


def serving_process(folder: Path) -> int | None:
    """The server of a data folder, whose lock it holds, or its member's process while it follows."""
    holder = lock_holder(folder)
    with suppress(OSError):
        if MEMBER in Path(f"/proc/{holder}/cmdline").read_bytes():
            return int(Path(f"/proc/{holder}/stat").read_text().rpartition(")")[2].split()[1])
    return holder


def lock_holder(folder: Path) -> int | None:
    """The process that holds the lock of a data folder, as Linux tells; the lock is not touched."""
    try:
        inode, holder = (folder / LOCK_NAME).stat().st_ino, (folder / LOCK_NAME).read_text().strip()
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 6514 fe:00:12345 0 EOF
    held = any("FLOCK" in lock and lock[-4] == holder and lock[-3].endswith(f":{inode}") for lock in locks)
    return int(holder) if held else None


def listens(process: int, number: int) -> bool:
    """Whether a process, or one that it has started, listens on this TCP port, as far as Linux lets us see."""
    rows = list[list[str]]()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows += [line.split() for line in Path(table).read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == number}
    unseen = not os.access(f"/proc/{process}/fd", os.R_OK)  # another user's: somebody listens, and it may be this one
    return bool(sockets) and (unseen or any(sockets & _open_in(one) for one in (process, *children(process))))


def children(process: int, module: bytes = b"penstock.server.") -> Iterator[int]:
    """Those that are parts of a server, as Flight's door is."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            child = int(stat.read_text().rpartition(")")[2].split()[1]) == process
            if child and module in (stat.parent / "cmdline").read_bytes():
                yield int(stat.parent.name)


def serving_elsewhere(ports: Sequence[int]) -> tuple[int, Path] | None:
    """The server that listens on all of these TCP ports, and its data folder, whichever its start was told.

    So it is the server of the settings that name them, where these name another folder, or that from elsewhere.
    """
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))) if ports else ():
        for name in _open_in(process):
            server = serving_process(Path(name).parent) if name.endswith(f"/{LOCK_NAME}") else None
            if server is not None and all(listens(server, port) for port in ports):
                return server, Path(name).parent
    return None


def _open_in(process: int) -> set[str]:
    found = set[str]()
    with suppress(OSError):
        for fd in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile, as the one that lists them
                found.add(str(fd.readlink()))
    return found


if __name__ == "__main__":
    sys.exit(main())
