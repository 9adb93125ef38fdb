"""Python workers of Spark without the second that each takes to load: forked from a process that has loaded it all.

A session takes the program that `program` makes for its Python.  Spark starts that as it starts any; it hands its
streams over to a process which is forked, and tells the end of that one as its own.  What loading itself does is no
question to such a worker, and it is no child of Java's: who kills workers takes a Python of the usual kind.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pkgutil
import runpy
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forked import MOST
from forking import of_a_visitor, of_the_owner, serve, to_its_end

PROGRAM = f"""#!{sys.executable} -IS
import os, sys
from _json import encode_basestring_ascii as text
from _signal import SIGTERM, signal
from _socket import AF_UNIX, SCM_RIGHTS, SO_SNDBUF, SOCK_SEQPACKET, SOL_SOCKET, socket

nursery = socket(AF_UNIX, SOCK_SEQPACKET)
nursery.setsockopt(SOL_SOCKET, SO_SNDBUF, {MOST})
nursery.connect(PATH)
command = ",".join(map(text, sys.argv[1:]))
environ = ",".join(text(name) + ":" + text(value) for name, value in os.environ.items())
request = '{{"command":[' + command + '],"environ":{{' + environ + '}},"folder":' + text(os.getcwd()) + "}}"
streams = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
nursery.sendmsg([request.encode()], [(SOL_SOCKET, SCM_RIGHTS, streams)])
pid = int.from_bytes(nursery.recv(8), "big")
signal(SIGTERM, lambda number, frame: os.kill(pid, number))
os.closerange(0, 2)
code = int.from_bytes(nursery.recv(8), "big", signed=True)
os._exit(code if code >= 0 else 128 - code)
"""
"""It takes of Python what is built in alone: `json`, `socket` and `signal` would be half of what its start costs."""


PID = "workers.pid"


def program(folder: Path) -> Path:
    """An executable that is taken for Python, while this process lives; beside it the number of who forks (`PID`)."""
    path, made = folder / "workers", folder / "python"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(64)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ends = [theirs.fileno(), listener.fileno()]
            environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            process = subprocess.Popen([sys.executable, __file__, *map(str, ends)], pass_fds=ends, env=environ)
    (folder / PID).write_text(str(process.pid))
    atexit.register(process.wait)
    atexit.register(ours.close)
    made.write_text(PROGRAM.replace("PATH", repr(str(path))))
    made.chmod(0o755)
    return made


@contextmanager
def workers_of(python: Path) -> Iterator[None]:
    """A session that is made in here takes its workers from this program."""
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    before = {name: os.environ.get(name, sys.executable) for name in names}
    os.environ.update(dict.fromkeys(names, str(python)))
    try:
        yield
    finally:
        os.environ.update(before)


# -- in the process that forks


def load() -> None:
    """What workers import."""
    for name in ("pandas", "pyarrow.compute", "pyarrow.flight", "pyarrow.parquet", "pyspark.daemon", "pyspark.worker"):
        importlib.import_module(name)
    for package in ("pyspark.sql.worker", "penstock.spark", "penstock.expr"):
        inside = importlib.import_module(package)
        for module in pkgutil.walk_packages(inside.__path__, f"{package}."):
            importlib.import_module(module.name)
    importlib.import_module("pyspark.sql.streaming.python_streaming_source_runner")


def main() -> None:
    """The process that forks workers."""
    control, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    load()
    request = serve({control: of_the_owner, listener: of_a_visitor})
    if request is not None:
        command = request["command"]
        sys.path[:0] = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one not in sys.path]
        sys.argv = list(command[1:])
        if command[0] == "-c":  # Spark asks for the version
            exec(command[1], {"__name__": "__main__"})
            return
        assert command[0] == "-m", command
        warnings.simplefilter("ignore", RuntimeWarning)  # of modules that are loaded already
        to_its_end(lambda: runpy.run_module(command[1], run_name="__main__", alter_sys=True))


if __name__ == "__main__":
    main()
