"""What it costs to begin: `import penstock`, and a server on an empty folder.

    python benchmarks/bench_start.py --repeat 11

Modules have their bytecode, as an installed package has it, and files are in the page cache.

import  seconds of the import statement in a fresh interpreter
start   from the spawn of the process until its ready file is there, AMQP's and Flight's doors on free ports; then with
        HTTP's beside them, and AMQP's a process, too: until all doors are open
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness import ROOT, Server, compile_sources, emit, parse, parser, together, work_folder

_IMPORT = "import time; t = time.perf_counter(); import penstock; print(time.perf_counter() - t)"


def imported() -> float:
    """Milliseconds of `import penstock`."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", _IMPORT]
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return float(done.stdout) * 1e3


def started(folder: Path, *, flight: bool, every: bool = False) -> tuple[float, float, float, float]:
    """Milliseconds until ready, milliseconds of CPU spent by then, and MiB resident: those of all processes added, of
    which each counts what it shares with others; and what they have, each page counted once.  every: each door is a
    process.
    """
    environ, arguments = ({"PENSTOCK_SERVER__DOORS": "1"}, ("--http", "127.0.0.1:0")) if every else ({}, ())
    with Server(folder, flight=flight, environ=environ, arguments=arguments) as server:
        used, held = server.usage(), together(server.pid)
        server.stop()
        return server.start_s * 1e3, used.cpu_s * 1e3, used.resident / 2**20, held / 2**20


def main() -> None:
    """Both, one unmeasured run ahead of each.  `--messages` has no meaning here."""
    options = parser(__doc__ or "", messages=1, repeat=7)
    options.add_argument("--no-flight", dest="flight", action="store_false", help="start with the AMQP door alone")
    given = parse(options)
    compile_sources(ROOT / "src")
    emit("import penstock", [imported() for _ in range(given.repeat + 1)][1:], "ms", budget=150.0, settings={})
    with work_folder(given.folder) as folder:
        runs = [started(folder / str(run), flight=given.flight) for run in range(given.repeat + 1)][1:]
        all_doors = [started(folder / f"all-{run}", flight=True, every=True) for run in range(given.repeat + 1)][1:]
    settings = {"doors": ["amqp", "flight"] if given.flight else ["amqp"]}
    walls, cpus, resident, _ = zip(*runs, strict=True)
    emit("server start on an empty folder", walls, "ms", budget=600.0, settings=settings)
    emit("server start: its CPU", cpus, "ms", settings=settings)
    emit("memory of the empty server", resident, "MiB", settings=settings)
    walls, cpus, resident, held = zip(*all_doors, strict=True)
    settings = {"doors": ["amqp", "http", "flight"], "processes": 4}
    emit("all doors open on an empty folder, each a process", walls, "ms", budget=900.0, settings=settings)
    emit("all doors open: CPU of all processes", cpus, "ms", settings=settings)
    emit("all doors open: resident memory of the processes added up", resident, "MiB", settings=settings)
    emit("all doors open: memory of all processes, shared pages once", held, "MiB", budget=220.0, settings=settings)


if __name__ == "__main__":
    main()
