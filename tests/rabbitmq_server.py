"""RabbitMQ itself, where it is installed: the one that answers are compared with.

Started in a folder of its own with an epmd of its own, on free ports of loopback; stopped with the test.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pika
import pytest
from pika.exceptions import AMQPError

from ports import free_ports
from waiting import eventually

PLACES = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
START_S = 90.0
PLUGINS = (
    "[rabbitmq_management, rabbitmq_consistent_hash_exchange, rabbitmq_random_exchange, rabbitmq_sharding, "
    "rabbitmq_recent_history_exchange]."
)


def installed() -> str | None:
    """The program; None where there is none, or no epmd."""
    return next(filter(None, map(shutil.which, PLACES)), None) if shutil.which("epmd") else None


BESIDE = pytest.mark.skipif(
    "PENSTOCK_CONFORMANCE" not in os.environ or installed() is None, reason="RabbitMQ: make conformance"
)
"""For what needs it."""


class RabbitMQ:
    """`with RabbitMQ(folder) as rabbitmq:`"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.http = free_ports(2)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        found = installed()
        assert found is not None, "not installed"
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start(found)
            eventually(self._answers, self._output, START_S)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)

    def _start(self, found: str) -> None:
        epmd, between = free_ports(2)
        home = self.folder / "home"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text(os.urandom(16).hex())
        cookie.chmod(0o400)
        (self.folder / "plugins").write_text(PLUGINS)
        (self.folder / "settings.conf").write_text(
            f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self.http}\ncollect_statistics_interval = 500\n"
        )
        names = {"HOME": str(home), "ERL_EPMD_PORT": str(epmd), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        self._run("epmd", "-port", str(epmd), "-address", "127.0.0.1")
        settings = {
            "NODENAME": f"test{os.getpid()}@localhost",
            "NODE_IP_ADDRESS": "127.0.0.1",
            "NODE_PORT": str(self.port),
            "DIST_PORT": str(between),
            "MNESIA_BASE": str(self.folder / "mnesia"),
            "LOG_BASE": str(self.folder / "log"),
            "PID_FILE": str(self.folder / "pid"),
            "ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "CONFIG_FILE": str(self.folder / "settings.conf"),
            "CONF_ENV_FILE": os.devnull,
        }
        names["RUNNING_UNDER_SYSTEMD"] = "true"  # for its script: become the server, do not watch over it
        eventually(lambda: _open(epmd), "epmd does not start")
        self._run(found, **names, **{f"RABBITMQ_{name}": value for name, value in settings.items()})

    def _run(self, *command: str, **environ: str) -> None:
        with (self.folder / "output").open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env={**os.environ, **environ},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _answers(self) -> bool:
        assert self._processes[-1].poll() is None, self._output()
        if not (_open(self.port) and _open(self.http)):
            return False
        try:
            self.connect().close()
        except AMQPError:
            return False
        return True

    def _output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-2000:]

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=30))


def _open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
