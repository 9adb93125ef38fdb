"""A real server process for tests: started, killed, started again on the same folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError

from forked import Forked, can_fork, of_the_product
from waiting import Patience, eventually

START_S, END_S = 60.0, 60.0
"""A machine that does much else takes its time."""

PIKAS_MISTAKES = (AMQPConnectorException, AssertionError, AttributeError, KeyError, ValueError)
"""What pika raises beside its own errors and the system's where a server ends while it connects, or looks what came:
the loop that it has closed meanwhile is None to it."""


def bury(connection: pika.BlockingConnection) -> None:
    """Close it, whatever it has come to: pika leaves sockets where it sees an end late, or fails at one."""
    with contextlib.suppress(AMQPError, OSError, *PIKAS_MISTAKES):
        pika.BlockingConnection.close(connection)
    connection._cleanup()
    if (left := connection._impl._transport) is not None:
        left._sock.close()


class Mortal(pika.BlockingConnection):
    """A connection whose end is no matter."""

    def close(self, reply_code: int = 200, reply_text: str = "") -> None:
        bury(self)


def all_durable(server: LiveServer) -> bool:
    """Whether every record that a server with an HTTP door has given out is on its disk."""
    with urlopen(f"http://{server.ready['http']}/healthz", timeout=30) as answer:
        health = json.loads(answer.read())
    return bool(health["durable_lsn"] == health["last_lsn"])


class LiveServer:
    """`with LiveServer(folder) as server:`; the folder holds data, ready file and the server's output."""

    program: Sequence[str] = ("-m", "penstock")  # what Python runs; a test may stand something before it
    loads = False  # whether it is a process that loads what it runs, and not forked from one that has
    children_load = False  # whether those that it starts do, and are its children in the eyes of the system
    http = "off"  # address of the HTTP door
    flight = "127.0.0.1:0"

    def __init__(self, folder: Path, arguments: Sequence[str] = (), flight: bool = False) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.arguments = list(arguments)
        self.with_flight = flight
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.ready: dict[str, Any] = {}
        self.starts = 0
        self.connections: list[pika.BlockingConnection] = []

    def descriptors(self) -> int:
        """How many its process has open."""
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bury()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def start(self, amqp: str = "127.0.0.1:0") -> None:
        """Start, and wait until the doors are open."""
        self.spawn(amqp)
        self.await_ready()

    def await_ready(self) -> None:
        """Wait until the doors of the server that was spawned are open."""
        ready_file = self.folder / "ready.json"
        assert self.process is not None
        patience = Patience(START_S)
        while not ready_file.exists():
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.output()}")
            if patience.is_over():
                self.kill()
                raise AssertionError(f"the server was not ready after {START_S} s:\n{self.output()}")
            time.sleep(0.01)
        self.ready = json.loads(ready_file.read_bytes())

    def spawn(self, amqp: str = "127.0.0.1:0") -> Path:
        """Start, and do not wait; returns the ready file that will come."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ready_file = self.folder / "ready.json"
        ready_file.unlink(missing_ok=True)
        self.starts += 1
        doors = ["--http", self.http, "--flight", self.flight if self.with_flight else "off"]
        command = [*self.program, "serve", *self.arguments, "--data", str(self.data)]
        command += ["--amqp", amqp, *doors, "--ready-file", str(ready_file)]
        environ = of_the_product()
        with open(self.folder / "output.txt", "ab") as output:
            if self.loads or not can_fork(environ):
                self.process = subprocess.Popen([sys.executable, *command], stdout=output, stderr=output, env=environ)
            else:
                self.process = Forked(
                    command, stdout=output.fileno(), stderr=output.fileno(), env=environ,
                    children=not self.children_load,
                )  # fmt: skip
        return ready_file

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(END_S)
        self.bury()

    def stop(self) -> None:
        """A clean stop; AssertionError if it was none."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(END_S)
        self.bury()
        assert code == 0, f"the server stopped with {code}:\n{self.output()}"

    def output(self) -> str:
        """What all runs have printed."""
        return (self.folder / "output.txt").read_text(errors="replace")

    def hears(self, text: str) -> None:
        """Wait until some run has printed this: lines are written beside what they tell of, and so after it."""
        eventually(lambda: text in self.output(), lambda: f"it never said {text!r}:\n{self.output()}")

    @property
    def port(self) -> int:
        """Of the AMQP door."""
        return int(self.ready["amqp"].rsplit(":", 1)[1])

    def memory(self) -> int:
        """Resident bytes of the process."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def parameters(self, **changes: Any) -> pika.ConnectionParameters:
        """For pika."""
        patience = {"socket_timeout": 30, "stack_timeout": 60}  # its own is 15 s from the call to the opened connection
        values: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "heartbeat": 30, **patience, **changes}
        return pika.ConnectionParameters(**values)

    def connect(self, **changes: Any) -> pika.BlockingConnection:
        """A pika connection."""
        connection = pika.BlockingConnection(self.parameters(**changes))
        self.connections.append(connection)
        return connection

    def bury(self) -> None:
        """Close all connections ever made here, also those whose server is gone: each holds three sockets."""
        for connection in self.connections:
            bury(connection)
        self.connections.clear()
