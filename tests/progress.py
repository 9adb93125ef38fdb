"""Waiting for other processes by what they do, not by the clock: on a busy machine they are slow, and not stuck.

What works uses CPU, or wants to: beside enough others it gets next to none, and stands in the scheduler's line.  A wait
goes on as long as the processes below this one do, and is over when they have used next to nothing, and stood in line
for next to nothing, for so long that what was waited for will not come, or after many times as long.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

IDLE = 0.05
"""CPU seconds a second below which processes only wait: a Java with nothing to do uses less than a hundredth."""

IN_LINE = 0.3
"""Seconds a second for which one thread wants a CPU and has none, from which on it is starved.  One that only wakes up
now and then stands in line for a tenth of that on the same machine."""

LOOK_S = 0.2
"""Between looks."""

AT_MOST = 15
"""Times the patience, whatever is done meanwhile."""

TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """The live processes below this one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                text = (path / "stat").read_text()
                children.setdefault(int(text[text.rindex(")") + 2 :].split()[1]), []).append(int(path.name))
    found = [pid]
    for one in found:
        found.extend(children.get(one, ()))
    return found[1:]


def used(pids: Iterable[int]) -> dict[int, float]:
    """CPU seconds of processes that live."""
    found = dict[int, float]()
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue  # it has ended
        user, system = text[text.rindex(")") + 2 :].split()[11:13]
        found[pid] = (int(user) + int(system)) / TICKS
    return found


def delayed(pids: Iterable[int]) -> dict[int, float]:
    """Seconds for which threads of processes that live could have run, and had no CPU; by thread."""
    found = dict[int, float]()
    for pid in pids:
        with suppress(OSError):  # it has ended
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    found[int(task.name)] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return found


class Progress:
    """Whether those who are waited for still do something."""

    def __init__(
        self,
        patience: float,
        spent: Callable[[], Mapping[int, float]] = lambda: used(descendants(os.getpid())),
        clock: Callable[[], float] = time.monotonic,
        in_line: Callable[[], Mapping[int, float]] = lambda: delayed(descendants(os.getpid())),
    ) -> None:
        """patience: seconds in which they do something, if they do.  spent: CPU seconds by process.

        in_line: seconds for which each thread could have run, and did not.
        """
        self._patience, self._spent, self._clock, self._in_line = patience, spent, clock, in_line
        self._before, self._stood = dict(spent()), dict(in_line())
        self._since = self._begun = clock()

    def is_over(self) -> bool:
        """Whether it is time to give up."""
        now = self._clock()
        if now - self._begun > AT_MOST * self._patience:
            return True
        if now - self._since < self._patience:
            return False
        spent, stood = dict(self._spent()), dict(self._in_line())
        done = sum(seconds - self._before.get(pid, 0.0) for pid, seconds in spent.items())
        starved = max((seconds - self._stood.get(thread, 0.0) for thread, seconds in stood.items()), default=0.0)
        waited, self._before, self._stood, self._since = now - self._since, spent, stood, now
        return done < IDLE * waited and starved < IN_LINE * waited


def everybody() -> list[int]:
    """This process, and those below it."""
    return [os.getpid(), *descendants(os.getpid())]


def given(future: Future[T], patience: float = 30.0) -> T:
    """What a loop of this process gives.  AssertionError when neither this process nor one below it does anything.

    Within the patience nobody is looked at: that takes milliseconds, and is needed only where the machine is busy.
    """
    progress: Progress | None = None
    while True:
        try:
            return future.result(patience if progress is None else LOOK_S)
        except TimeoutError:
            if future.done():
                return future.result()  # it may be the error of what was waited for
            assert progress is None or not progress.is_over(), f"nothing was done for {patience:g} s"
            progress = progress or Progress(patience, lambda: used(everybody()), in_line=lambda: delayed(everybody()))


def ran(
    command: Sequence[str], *, patience: float, env: Mapping[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A program to its end, and what it has said.  AssertionError when it does nothing any more."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, env=env, cwd=cwd, stdout=out, stderr=err, text=True)
        ended = has_ended(process, patience)
        if not ended:
            process.kill()
            process.wait()
        out.seek(0)
        err.seek(0)
        said = out.read(), err.read()
    assert ended, f"{command[:2]} did nothing for {patience:g} s: {(said[0] + said[1])[-3000:]}"
    return subprocess.CompletedProcess(list(command), process.returncode, *said)


def has_ended(process: subprocess.Popen[str] | subprocess.Popen[bytes], patience: float) -> bool:
    """Whether a process comes to its end; False when it and all others do nothing any more."""
    progress = Progress(patience)
    while True:
        try:
            process.wait(0.5)
            return True
        except subprocess.TimeoutExpired:
            if progress.is_over():
                return False
