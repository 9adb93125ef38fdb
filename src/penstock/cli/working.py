"""`worker`: run the functions of a `penstock.App`, in one process or several."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import Json, Told, counted, note, root, telling, write_table
from penstock.errors import InvalidArgument, PenstockError

if TYPE_CHECKING:
    from penstock.cli.child_process import Child
    from penstock.worker.app import App

STOP_S = 3600.0
"""A process may take so long to stop: its own grace ends before."""

SHOWN = 3
"""Files that a note of a change names."""

NO_PYTHON = 65
"""Status of one of several processes whose module is no Python, which another start would not mend; told as 1."""

BEAT_S = 0.2
"""How often the processes are looked at."""


@telling(root)
def worker(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, such as shop.workers:app.")],
    url: Annotated[
        str | None,
        typer.Option("--url", envvar="PENSTOCK_URL", help="The server, instead of the one that the app names."),
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=256, help="So many processes, each with all workers of the app.")
    ] = 1,
    burst: Annotated[bool, typer.Option("--burst", help="End when no message is ready any more.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a Python file below this folder changes.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Tell of connections too, not of failures alone.")
    ] = False,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
    json: Json = False,
) -> Told:
    """Give the messages of queues to the functions of an app.  SIGTERM and Ctrl-C let what runs end.

    Example: penstock worker shop.workers:app --processes 4
    """
    if reload and burst:
        raise InvalidArgument("--reload goes on for ever, and --burst ends: choose one")
    if processes > 1 or reload:
        sources = Sources(Path.cwd()) if reload else None
        raise typer.Exit(_several(target, url, processes, burst, verbose, json, sources))
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        app = _loaded(target)
    except SyntaxError:
        raise typer.Exit(NO_PYTHON if with_parent else 1) from None
    if with_parent:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    if not json:
        _tell(app)
    counts = app.run(url=url, burst=burst)
    return {name: asdict(one) for name, one in counts.items()}, _show_counts


def _loaded(target: str) -> App:
    """The app.  What its module raises is told by that module's own lines, without those that led there.

    A SyntaxError is told and raised, for who starts processes again.
    """
    from penstock.worker import app

    try:
        return app.load(target, Path.cwd())
    except PenstockError:
        raise
    except Exception as error:  # a module may raise whatever it likes
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename in {__file__, app.__file__, importlib.__file__}:
            own = own.tb_next
        while own is not None and own.tb_frame.f_code.co_filename.startswith("<frozen"):
            own = own.tb_next
        sys.stderr.write("".join(traceback.format_exception(error.with_traceback(own))))
        if isinstance(error, SyntaxError):
            raise
        raise typer.Exit(1) from None


def _end_with_parent() -> None:
    """The parent holds our standard input open for as long as it lives."""
    stdin = sys.stdin.fileno()
    while os.read(stdin, 4096):  # a reader of Python's own would hold a lock when the process ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _tell(app: App) -> None:
    for one in app.workers:
        note(
            f"{one.name}: {one.queue}, {one.concurrency} at once" + (f", {one.timeout:g} s each" if one.timeout else "")
        )
    note("penstock worker: at work; Ctrl-C lets what runs end")


def _show_counts(counts: Mapping[str, Mapping[str, int]]) -> None:
    columns = ("worker", "done", "retried", "rejected", "released", "lost")
    rows = [(name, *(one[column] for column in columns[1:])) for name, one in counts.items()]
    write_table(columns, rows)


class Sources:
    """The Python files below a folder, but for those of hidden folders and environments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._times = self._look()

    def changed(self) -> list[str]:
        """Those that were written, came or went since the last look."""
        before, self._times = self._times, self._look()
        return sorted({name for name, _ in before.items() ^ self._times.items()})

    def _look(self) -> dict[str, int]:
        times = dict[str, int]()
        for top, folders, files in os.walk(self._folder):
            folders[:] = [one for one in folders if one[0] not in "._" and not Path(top, one, "pyvenv.cfg").exists()]
            for name in files:
                if name.endswith(".py"):
                    with suppress(OSError):  # it has gone meanwhile
                        times[os.path.relpath(os.path.join(top, name), self._folder)] = os.stat(
                            os.path.join(top, name)
                        ).st_mtime_ns
        return times


def _several(
    target: str, url: str | None, processes: int, burst: bool, verbose: bool, json: bool, sources: Sources | None
) -> int:
    """Processes side by side, each started again when it dies, or when a source changes; the worst exit status."""
    from penstock.cli.child_process import Child

    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    command = [sys.executable, "-m", "penstock", "worker", target, "--with-parent"]
    for given, option in ((burst, "--burst"), (verbose, "--verbose"), (json, "--json")):
        command += [option] * given
    if url is not None:
        command += ["--url", url]
    children = [Child(f"worker process {number}", note) for number in range(1, processes + 1)]
    finals = (0, 2, NO_PYTHON) if burst else (2, NO_PYTHON)
    note(f"penstock worker: {counted(processes, 'process').replace('processs', 'processes')} of {target}")
    ended = dict[str, int]()  # status by name, of those that are not started again
    while not stopping.is_set() and (sources is not None or len(ended) < processes):
        if sources is not None and (changed := sources.changed()):
            note(f"penstock worker: {', '.join(changed[:SHOWN])}{' ...' if len(changed) > SHOWN else ''} changed")
            _stop_all(children)
            ended.clear()
            for child in children:
                child.start(command)
        for child in children:
            _look(child, command, finals, ended)
        stopping.wait(BEAT_S)
    _stop_all(children)
    return max(ended.values(), default=0)


def _stop_all(children: Sequence[Child]) -> None:
    """At once: each lets what runs end."""
    with ThreadPoolExecutor(len(children)) as pool:
        for child in children:
            pool.submit(child.stop, STOP_S)


def _look(child: Child, command: Sequence[str], finals: Sequence[int], ended: dict[str, int]) -> None:
    """Start a process again when it is due, unless it has ended with one of these, which is noted in `ended`."""
    status = child.ended()
    if status is not None:
        final = status in finals
        status = 1 if status == NO_PYTHON else status
        note(f"penstock: {child.name} ended with {status}{'' if final else ' and is started again'}")
        if final:
            ended[child.name] = status
    if child.name not in ended and child.due():
        child.start(command)
