"""The other servers of this machine: which run, which are installed, and how one is started beside them.

A server that is started has free ports of 127.0.0.1, its files in a temporary folder, and nothing of the system's own
settings, state or services; it is killed with all its processes at the end.  Its settings promise as much as ours where
it can: a confirm means that the message is on the disk.  Refuses to know what is measured.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from harness import START_LIMIT_S, Wrong, kill

INSTALLED = {
    "RabbitMQ": ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"),
    "NATS": ("nats-server",),
    "Redis": ("redis-server",),
}
ON_DISK = "on disk"


def program(name: str) -> str | None:
    """Of a product, where it is installed."""
    return next(filter(None, map(shutil.which, INSTALLED[name])), None)


class Started:
    """A server of a product, started.  Use as a context.  Raises Wrong when it is not installed or does not come up."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.promise = ON_DISK  # what a confirm means
        self.at = ("127.0.0.1", _free_ports(1)[0])
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        found = program(self.name)
        if found is None:
            raise Wrong("not installed")
        self._folder.mkdir(parents=True)
        start = {"RabbitMQ": self._rabbitmq, "NATS": self._nats, "Redis": self._redis}[self.name]
        try:
            start(found)
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            kill(process)

    @property
    def pid(self) -> int:
        """Of the process whose tree is the server."""
        return self._processes[-1].pid

    def _run(self, *command: str, **environ: str) -> None:
        with (self._folder / "output").open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    command,
                    cwd=self._folder,
                    env={**os.environ, **environ},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

    def _wait(self) -> None:
        """Until it answers."""
        end = time.perf_counter() + START_LIMIT_S
        while not (product(self.at) if self.name == "RabbitMQ" else _answers(self.at)):
            if self._processes[-1].poll() is not None or time.perf_counter() > end:
                last = (self._folder / "output").read_text(errors="replace").strip().splitlines()[-1:]
                raise Wrong(f"installed, did not start: {''.join(last)}")
            time.sleep(0.05)

    def _rabbitmq(self, found: str) -> None:
        """Durable classic queues, as it has them without settings; with an epmd of its own, which it would leave."""
        epmd, between = _free_ports(2)
        home = self._folder / "home"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text(os.urandom(16).hex())
        cookie.chmod(0o400)
        names = {"HOME": str(home), "ERL_EPMD_PORT": str(epmd), "ERL_EPMD_ADDRESS": self.at[0]}
        if shutil.which("epmd") is None:
            raise Wrong("installed, but its epmd is not to be found")
        self._run("epmd", "-port", str(epmd), "-address", self.at[0])
        settings = {
            "NODENAME": f"bench{os.getpid()}@localhost",
            "NODE_IP_ADDRESS": self.at[0],
            "NODE_PORT": str(self.at[1]),
            "DIST_PORT": str(between),
            "MNESIA_BASE": str(self._folder / "mnesia"),
            "LOG_BASE": str(self._folder / "log"),
            "PID_FILE": str(self._folder / "pid"),
            "ENABLED_PLUGINS_FILE": str(self._folder / "plugins"),
            "CONFIG_FILE": str(self._folder / "none"),
            "CONF_ENV_FILE": os.devnull,
        }
        while not _answers((self.at[0], epmd)):
            if self._processes[0].poll() is not None:
                raise Wrong("installed, but its epmd does not start")
            time.sleep(0.01)
        names["RUNNING_UNDER_SYSTEMD"] = "true"  # for its script: become the server, do not watch over it
        self._run(found, **names, **{f"RABBITMQ_{name}": value for name, value in settings.items()})

    def _nats(self, found: str) -> None:
        """JetStream with a sync before each PubAck, from version 2.10 on; before that it has no such setting."""
        file = self._folder / "nats.conf"
        jetstream = f'store_dir: "{self._folder / "jetstream"}"'
        for sync, promise in ((", sync_interval: always", ON_DISK), ("", "written, not synced")):
            file.write_text(f'listen: "{self.at[0]}:{self.at[1]}"\njetstream {{ {jetstream}{sync} }}\n')
            self.promise = promise
            if subprocess.run([found, "-t", "-c", str(file)], capture_output=True, check=False).returncode == 0:
                break
        self._run(found, "-c", str(file))

    def _redis(self, found: str) -> None:
        """A sync of the append-only file before each reply."""
        settings = {"port": str(self.at[1]), "bind": self.at[0], "dir": str(self._folder), "save": ""}
        settings |= {"appendonly": "yes", "appendfsync": "always", "daemonize": "no"}
        self._run(found, *(word for name, value in settings.items() for word in (f"--{name}", value)))


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the system gives to callers: none of these takes one meanwhile."""
    found = set[int]()
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("", port)):
            found.add(port)
    return list(found)


def _answers(at: tuple[str, int]) -> bool:
    try:
        socket.create_connection(at, 5).close()
    except OSError:
        return False
    return True


def product(at: tuple[str, int]) -> str | None:
    """What an AMQP server calls itself before anybody logs in; None where none answers."""
    try:
        with socket.create_connection(at, 5) as sock:
            sock.settimeout(5)
            sock.sendall(b"AMQP\0\0\x09\x01")
            data = b""
            while len(data) < 7 or len(data) < 8 + int.from_bytes(data[3:7], "big"):
                if not (more := sock.recv(65536)):
                    return None
                data += more
    except OSError:
        return None
    found = {name: _text(data, name) for name in ("product", "version")}
    return " ".join(one for one in found.values() if one) or "an AMQP server"


def _text(data: bytes, name: str) -> str:
    """A field of text of a table."""
    key = bytes([len(name)]) + name.encode() + b"S"
    place = data.find(key)
    if place < 0:
        return ""
    start = place + len(key) + 4
    return data[start : start + int.from_bytes(data[start - 4 : start], "big")].decode(errors="replace")


def listener(port: int) -> int | None:
    """The process of this machine that listens on a port, as far as Linux lets us see."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue
        inodes |= {
            f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port
        }
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if any(str(one.readlink()) in inodes for one in (process / "fd").iterdir()):
                    return int(process.name)
            except OSError:
                continue  # it is another user's, or has ended
    return None
