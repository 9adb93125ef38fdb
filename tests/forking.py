"""The processes that fork: each has loaded what others are to have, and becomes nothing itself.  See `forked`."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forked import APART, BESIDE, FDS_MOST, MOST, SERVES, name_beside, with_loaded_children

ALLOCATORS = "jemalloc_bg_thd"
"""A thread of jemalloc's, which is not in forked processes: who judges the memory of one takes a new one."""

SERVER = (
    "penstock.server.process", "penstock.server.amqp.door", "penstock.server.flight.door", "penstock.server.http.door",
    "penstock.server.sql.queries", "penstock.server.links.links", "penstock.server.flight.operation_actions",
    "penstock.cli.child_process", "uvicorn.logging", "uvicorn.protocols.http.h11_impl",
    "uvicorn.protocols.websockets.auto", "uvicorn.lifespan.off", "typer._adapters", "encodings.idna",
    "importlib.readers", "numpy.ma",
)  # fmt: skip
"""What a server has loaded once it is ready, with all that these import."""

MADE = (
    "penstock.server.counters.Counters", "penstock.server.people.accounts.Accounts",
    "penstock.server.sockets.strangers.Terms", "penstock.log.mending.Recovery", "penstock.records.entries.Publishes",
    "penstock.records.entries.Control", "penstock.records.entries.Moves", "penstock.records.entries.Group",
    "penstock.core.state.durable.DurableState", "penstock.core.acted.Acted", "penstock.server.opening.Recovered",
    "penstock.log.writer.Commit", "penstock.log.rewrite_plan.Aims", "penstock.server.flight.decided.GroupLimits",
    "penstock.server.sql.queries.SqlLimits", "penstock.server.flight.door.FlightLimits",
    "penstock.server.flight.connections.Strangers", "penstock.server.app.Ready",
)  # fmt: skip
"""Of what each server makes one in its first moments: how is worked out with the first, for a fifth of a start."""

COMMANDS = ("penstock.client.client", "rich.progress", "rich.table")
"""What most commands load beside it."""


class _Child(Exception):
    """This is the new process."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__()
        self.request = request


def load() -> None:
    """Everything of a server and of a command."""
    from penstock.config.settings import Settings
    from penstock.server import launching
    from penstock.server.app import load_first_uses

    finders = list(sys.meta_path)
    launching.with_bounded_pool(launching.decoded_most(Settings().server.memory))
    launching.do_without_pandas()
    for module in (*SERVER, *BESIDE, *COMMANDS):
        importlib.import_module(module)
    for place in MADE:
        module, _, name = place.rpartition(".")
        made = getattr(sys.modules[module], name)
        with contextlib.suppress(TypeError):  # most take arguments
            made.__init__(object.__new__(made))
    sys.meta_path[:] = finders  # a command may want pandas
    load_first_uses()  # half a second after its start each server does: more than the start itself takes
    from penstock.cli import main as tree

    for names in tree.FILES.values():
        for name in names.split():
            tree.command(name)  # which is kept: making one takes 20 ms
    root = tree.command("serve")
    with root.make_context("penstock", ["serve"]) as context:  # how options are read is worked out with the first
        _, serve, _ = root.resolve_command(context, ["serve"])
        assert serve is not None
        serve.make_context("serve", [], context).close()


RESERVED_MOST = 256 << 20
"""Bytes of what has memory of its own: allocators reserve more where nobody sets a limit before they are loaded."""

Asked = tuple[bytes, socket.socket, list[int]]
"""A request, who is told of the process and of its end, and the descriptors of its streams."""


def of_the_owner(control: socket.socket) -> Asked | None:
    """What the process that made this one asks, over a socket that it keeps; None when it has ended."""
    said, fds, _, _ = socket.recv_fds(control, MOST, 4)
    return (said, socket.socket(fileno=fds[0]), fds[1:]) if said else None


def of_a_visitor(listener: socket.socket) -> Asked | None:
    """What a process asks that has connected for this."""
    visitor = listener.accept()[0]
    said, fds, _, _ = socket.recv_fds(visitor, MOST, FDS_MOST)
    return said, visitor, fds


def fork_when_asked(
    asked: Mapping[socket.socket, Callable[[socket.socket], Asked | None]], own: Sequence[socket.socket]
) -> None:
    """Until the owner has ended.  Raises _Child in each process that is made.  asked: how each socket is read.

    own: what no other process is to have.
    """
    waiting: dict[int, socket.socket] = {}
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([*asked, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        while waiting:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid in waiting:
                with waiting.pop(pid) as told:
                    _tell(told, os.waitstatus_to_exitcode(status))
        for end, read in asked.items():
            if end not in ready:
                continue
            request = read(end)
            if request is None:
                return
            said, told, streams = request
            wanted = json.loads(said)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (*asked, *own, told, *waiting.values()):
                    other.close()
                for fd in (woken, wake):
                    os.close(fd)
                become(wanted, streams)
                raise _Child(wanted)
            join(pid, wanted)  # here as well, so that it is done when its number is told
            for fd in streams:
                os.close(fd)
            waiting[pid] = told
            _tell(told, pid)


def _tell(told: socket.socket, number: int) -> None:
    try:
        told.send(number.to_bytes(8, signed=True))
    except OSError:
        pass  # nobody waits for it any more


def join(pid: int, request: Mapping[str, Any]) -> None:
    """A process group of its own, or that of who asked: signals for a server are for what it started, too.

    A session of its own is the process's own business.
    """
    if request.get("session"):
        if pid == 0:
            os.setsid()
    elif "group" in request:
        with contextlib.suppress(OSError):  # it did so and is something else by now; or that is in another session
            os.setpgid(pid, request["group"])


def become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Take the streams and other descriptors, the folder and the environment of the request."""
    passed = request.get("passed", [])
    aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, 1 + max([*streams, *passed])) for fd in streams]
    for fd in streams:
        os.close(fd)
    for fd, number in zip(aside, (0, 1, 2, *passed), strict=True):
        os.dup2(fd, number)
        os.close(fd)
    join(0, request)
    if "files" in request:
        resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])


def with_other_memory(command: Sequence[str]) -> None:
    """Arrow was loaded for a server with the memory of the settings' default; another one is loaded anew."""
    from penstock.config.settings import Settings
    from penstock.server import launching

    usual = launching.decoded_most(Settings().server.memory)

    def bounded(most: int) -> None:
        if most != usual:
            os.execv(sys.executable, [sys.executable, *command])

    launching.with_bounded_pool = bounded


def run(command: Sequence[str], owner: int) -> None:
    """As `python COMMAND`.  owner: who asked for it."""
    if command[0] == "-m" and command[1] in (*BESIDE, *APART):
        Path("/proc/self/comm").write_text(name_beside(owner, command[1]))
        sys.argv = list(command[1:])
        importlib.import_module(command[1]).main()
    elif command[0] == "-m":
        given = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        sys.path[:0] = [one for one in given if one and one not in sys.path]
        sys.argv = list(command[1:])
        if command[1] in SERVES[1:]:  # it is loaded: `runpy` would load it anew, and says so
            sys.exit(importlib.import_module(command[1]).main())
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        sys.path[0] = str(Path(command[0]).parent)
        runpy.run_path(command[0], run_name="__main__")


def to_its_end(run: Callable[[], object]) -> None:
    """Run, wait for threads, do what was left for the end, collect cycles, flush: all of an end but for the last step.

    That takes every module apart, here a copy of all that was loaded before the fork, page by page: 0.07 CPU seconds a
    process.  Who fails otherwise than by a status ends as any other.
    """
    status = 0
    try:
        run()
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        status = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # who was dropped without being awaited or closed says so
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        sys.exit(status)  # Python says that nobody reads
    os._exit(status & 0xFF)


def serve(
    asked: Mapping[socket.socket, Callable[[socket.socket], Asked | None]], own: Sequence[socket.socket] = ()
) -> Mapping[str, Any] | None:
    """Fork from this process, which has loaded what is wanted, until nobody asks; in a forked one: its request."""
    threads = {(Path("/proc/self/task") / one / "comm").read_text().strip() for one in os.listdir("/proc/self/task")}
    assert len(threads - {ALLOCATORS}) == 1, f"a process with threads is not forked: {threads}"
    gc.collect()
    gc.freeze()
    try:
        fork_when_asked(asked, own)
    except _Child as child:
        return child.request
    return None


def apart(module: str, listener: socket.socket, owner: socket.socket) -> Mapping[str, Any] | None:
    """As `serve`, in a process that loads this as soon as somebody asks for it: many have no use for it."""
    if owner in select.select([owner, listener], [], [])[0]:
        return None
    environ, more = APART[module]
    os.environ.update(environ)
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (RESERVED_MOST, limits[1]))
    for name in (module, *more):
        importlib.import_module(name)
    resource.setrlimit(resource.RLIMIT_DATA, limits)
    return serve({owner: of_the_owner, listener: of_a_visitor})


def main() -> None:
    """The processes that fork servers, commands, and what runs beside a server."""
    control, *listeners = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    del sys.path[0]  # the folder of tests
    address = listeners[0].getsockname().decode()
    helpers = dict[int, socket.socket]()
    for module, listener in zip(APART, listeners[1:], strict=True):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            for one in (control, ours, *listeners, *helpers.values()):
                if one is not listener:
                    one.close()
            request, helpers = apart(module, listener, theirs), {}
            break
        helpers[pid] = ours
        theirs.close()
        listener.close()
    else:
        load()
        request = serve({control: of_the_owner, listeners[0]: of_a_visitor}, [*helpers.values()])
    if request is None:
        for pid, one in helpers.items():
            one.close()  # which is the end of theirs
            os.waitpid(pid, 0)
        return
    command = request["command"]
    if command[0] != "-m" or command[1] in SERVES:
        with_other_memory(command)
        if request["children"]:
            with_loaded_children(lambda: address)
    to_its_end(lambda: run(command, request["owner"]))


if __name__ == "__main__":
    main()
