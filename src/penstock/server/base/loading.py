"""How libraries are loaded in a server's process: Arrow's pool has a bound, and pandas is not there; and what the
processes beside it find.

It imports neither: what it does has to be done before.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import orjson

from penstock.errors import printable

if TYPE_CHECKING:
    import subprocess

POOL = "ARROW_DEFAULT_MEMORY_POOL"
RESERVED, NO_MORE = "MIMALLOC_RESERVE_OS_MEMORY", "MIMALLOC_DISALLOW_OS_ALLOC"
"""mimalloc takes one piece of address space as it is loaded, and then asks the system for none."""

LEAST, MOST, SHARE = 128 << 20, 512 << 20, 4
"""Two batches of the largest size that a server of a budget takes (`wire.flight.received.Bounds`), or a share of it."""


def decoded_most(memory: int) -> int:
    """Bytes that Arrow's own pool may have, from which Flight takes what it decompresses.  memory: the budget."""
    return max(LEAST, min(MOST, memory), memory // SHARE)


DOOR_MEMORY = 3 << 29
"""Bytes that a door's process may have beyond what it decompresses: 1.5 GiB."""

STACKS = 2 << 30
"""Stacks of Flight's threads, for which the system counts a MiB each, of which a tenth is used: of more threads than it
lets gRPC have, for those that begin until it looks (`flight.crowding`).  2,400 began in the meantime on a busy machine.
Where no core is free for that look all that there is room for begin, and the door ends and is back: more room would
only have the machine do nothing else before that."""


HTTP = [0, DOOR_MEMORY]
"""The same of HTTP's: heads of 512 strangers, 128 MiB of bodies, and one of these as values, which are written anew:
orjson takes up to 500 MiB for that, of which it uses 20, and ends the process where it gets no more."""


def of_a_door(memory: int) -> list[int]:
    """Bytes that Flight's process may decompress, and may have in all.  memory: the server's budget."""
    return [decoded_most(memory), decoded_most(memory) + DOOR_MEMORY + STACKS]


PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process as soon as the thread that started it has gone.

    One that hears of its server's end by a socket ends by itself, but not while it is stopped: until then it would keep
    addresses, or the lock of a folder, from the server that is started next.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux has it
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def begun_as_a_door() -> tuple[socket.socket, socket.socket, int]:
    """What a door's process does first, by the arguments of `door_process.spawned`; it may allocate so much, no more.

    The control socket, the one for lines, and bytes that it may decompress.
    """
    end_with_parent()
    threading.excepthook = _ends
    control, lines = (socket.socket(fileno=int(one)) for one in sys.argv[1:3])
    decoded, memory = orjson.loads(sys.argv[3])
    beside_a_server()
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with_all_files()
    return control, lines, decoded


UNGUARDED = 76
"""Status of a door's process that ended because one of its threads did."""


def _ends(told: threading.ExceptHookArgs) -> None:
    """A thread that ends by an error leaves a door without what it guarded; want of memory is no fault to look into."""
    error = told.exc_value
    try:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            os.write(2, b"no memory is left for a thread of this door\n")
        else:
            threading.__excepthook__(told)
    finally:
        os._exit(UNGUARDED)


def with_bounded_pool(most: int) -> None:
    """Load Arrow so that its own pool has so many bytes and no more.

    pyarrow's Flight server decompresses a message as it reads it, and shows no header of it before: 38 kB of zstd
    became 1.2 GiB.  It takes the memory from this pool, and the allocation that is too much fails with the one call.
    What our own code allocates comes from another pool (`allocator.keep_close`).  The variables are taken away again:
    they are not for the server's children.
    """
    given = os.environ.get(POOL)
    bounds = {POOL: "mimalloc", RESERVED: f"{most >> 20}MiB", NO_MORE: "1"}
    if given not in (None, "mimalloc") or any(name in os.environ for name in (RESERVED, NO_MORE)):
        return  # the operator's choice; the server says at its start that there is no bound
    os.environ.update(bounds)
    try:
        import pyarrow as _  # noqa: F401 - it reads them
    finally:
        for name in bounds:
            del os.environ[name]
        if given is not None:
            os.environ[POOL] = given


SPARING = {POOL: "system"}
"""For a process with a bound: what Arrow takes where nobody names a pool takes hold of a GiB as it is first asked for
anything, and all of that counts."""


def environment(**more: str) -> dict[str, str]:
    """For a process of our own: it finds this package where this process found it, and numpy does no algebra there."""
    source = str(Path(__file__).resolve().parents[__name__.count(".")])
    others = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join(dict.fromkeys([source, *others]))
    return {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", **more}


def begun(
    module: str, hands: Sequence[socket.socket | int], *words: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process of our own that runs a module, by its arguments these descriptors, which it is given, and words.

    OSError where there can be none.  `subprocess` runs no code of ours between fork and exec, so threads do no harm.
    """
    import subprocess  # what is begun begins none

    fds = [one if isinstance(one, int) else one.fileno() for one in hands]
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, fds), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=fds,
        env=environment() if env is None else env,
    )


END_S = 2.0


def ended(process: subprocess.Popen[bytes]) -> int:
    """The status of a process that should end by itself, and soon does."""
    from subprocess import TimeoutExpired

    try:
        return process.wait(END_S)
    except TimeoutExpired:
        process.kill()
        return process.wait()


def end_children() -> None:
    """Kill the processes of doors, and whatever else this one has started.

    They end by themselves when their server has gone, but not while they are stopped, as this one may have been: until
    then they would keep its addresses from the server that is started next.
    """
    for place in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, place.read_text().split()):
                with suppress(OSError):
                    handle = os.pidfd_open(child)
                    if str(child) in place.read_text().split():  # else the number may be another's by now
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                    os.close(handle)


KILLED_FIRST = 300
"""Where the memory of a machine or a cgroup has been used up the kernel kills whoever scores highest, of 1,000 that its
size makes: of a server and the processes beside it those that begin again, and not the one that has the log."""


def beside_a_server() -> None:
    """What such a process does first."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(name, signal.SIG_IGN)  # they reach the server too, and its end is ours
    with suppress(OSError, ValueError):  # where there is no such file they are killed by their size
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(min(1000, int(score.read_text()) + KILLED_FIRST)))
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler])


class OneLine(logging.Formatter):
    """An entry of a log is one line, and a traceback behind it: some tell names and texts that clients chose."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The entry without the traceback."""
        return printable(super().formatMessage(record))


def with_all_files() -> None:
    """It may open as many files as the system lets it."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


class _NoPandas:
    """Answers for pandas that it is not there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The import system's question; ModuleNotFoundError for pandas, None for the rest."""
        if fullname == "pandas":
            raise ModuleNotFoundError("a server does without pandas", name=fullname)
        return None


def do_without_pandas() -> None:
    """Have pyarrow not look for pandas, where that is installed; it would when an array is made of a list."""
    sys.meta_path.insert(0, _NoPandas())
