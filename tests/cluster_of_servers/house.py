"""Servers of one cluster as processes of their own on this machine, with a register in a folder."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pika
from pika.exceptions import AMQPError

from fault_proxy import Network, Way
from forked import Forked, can_fork, of_the_product, penstock
from live_server import PIKAS_MISTAKES, bury
from penstock.replication.register import decode
from penstock.server.cluster.packets import LOST
from penstock.server.cluster.registers import register_at
from ports import free_ports
from waiting import eventually

PATIENCE_S = 60.0
SECRET = "not known to strangers"
GUEST = {"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}


class Server:
    """One member: its settings file, its folder, and the process while one runs.

    In a network others reach it by its ways, and it reaches etcd by one.
    """

    stream_way: Way
    door_way: Way
    register_way: Way | None = None

    def __init__(
        self, cluster: Cluster, folder: Path, number: int, section: str, more: str, network: Network | None
    ) -> None:  # fmt: skip
        self.cluster, self.folder, self.name = cluster, folder, f"p{number}"
        self.amqp, self.http, self.stream, self.flight = free_ports(4)
        self.door, registry, advertise = self.amqp, cluster.registry, ""
        self.reached = self.stream  # port at which others call it
        self._command, self._environ = cluster.command, cluster.environ
        if network is not None:
            self.stream_way = network.way(self.stream, cluster.groups)
            self.door_way = network.way(self.amqp)
            self.door, self.reached = self.door_way.port, self.stream_way.port
            advertise = f'advertise = "127.0.0.1:{self.reached}"'
            if registry.startswith("etcd://"):
                host, slash, key = registry.removeprefix("etcd://").partition("/")
                self.register_way = network.way(int(host.rpartition(":")[2]))
                registry = f"etcd://127.0.0.1:{self.register_way.port}{slash}{key}"
        if cluster.manual:
            section += f"\nmembers = {[f'127.0.0.1:{one.reached}' for one in cluster.servers]}"
        folder.mkdir(parents=True, exist_ok=True)
        self.settings = folder / "penstock.toml"
        self.settings.write_text(
            f"""
[server]
name = "{self.name}"
data = "{folder / "data"}"
[listen]
amqp = "127.0.0.1:{self.amqp}"
http = "127.0.0.1:{self.http}"
flight = "{f"127.0.0.1:{self.flight}" if cluster.flight else "off"}"
[cluster]
registry = "{registry}"
listen = "127.0.0.1:{self.stream}"
{advertise}
secret = "{SECRET}"
{section}
[[user]]
name = "guest"
password = "guest"
tags = ["administrator"]
[[queue]]
name = "work"
{more}
"""
        )
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.output = folder / "output.txt"
        self.connections = list[pika.BlockingConnection]()

    def run(self, *arguments: str) -> str:
        """What a command says that is given these settings."""
        done = penstock(*arguments, str(self.settings))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> None:
        """Begin; whether it leads or follows is for the cluster to say."""
        assert self.process is None or self.process.poll() is not None
        said_much = self.output.exists() and self.output.stat().st_size > 100_000
        command, environ = [*self._command, "serve", str(self.settings)], of_the_product(self._environ)
        with self.output.open("wb" if said_much else "ab") as out:
            if can_fork(environ):
                self.process = Forked(command, stdout=out.fileno(), stderr=out.fileno(), env=environ, group=True)
            else:
                self.process = subprocess.Popen(
                    [sys.executable, *command], stdout=out, stderr=out, env=environ, process_group=0
                )

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def group(self) -> int:
        """All its processes are in it."""
        assert self.process is not None
        return self.process.pid

    def processes(self) -> list[int]:
        """The server, then all others of its group."""
        found = [self.group]
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                if os.getpgid(int(name)) == self.group and int(name) != self.group:
                    found.append(int(name))
        return found

    def signal(self, number: int) -> None:
        """To the server and to its member's process alike."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, number)

    def freeze(self) -> None:
        """Stop its processes, but in no change of a register in a folder: a sleeper there holds everybody up."""
        with (self.cluster.folder / "register" / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Both are dead, and have let go of the folder."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(PATIENCE_S)
        eventually(lambda: len(self.processes()) == 1)

    def stop(self) -> int:
        """SIGTERM, to the server alone; its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def get(self, path: str, timeout: float = 30.0) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an HTTP answer; 0 where nobody answers, or one dies within its answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", headers=GUEST)
        try:
            try:
                answer = urllib.request.urlopen(request, timeout=timeout)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except (OSError, http.client.HTTPException):
            return 0, {}

    def connect(self) -> pika.BlockingConnection:
        """Raises AMQPError or OSError where nobody serves."""
        socket.create_connection(("127.0.0.1", self.door), 5).close()
        parameters = pika.ConnectionParameters("127.0.0.1", self.door, socket_timeout=5, heartbeat=20)
        try:
            connection = pika.BlockingConnection(parameters)
        except PIKAS_MISTAKES as error:
            raise ConnectionError(f"{self.name} ends") from error
        self.connections.append(connection)
        return connection

    @property
    def serves(self) -> bool:
        return self.get("/readyz", timeout=5.0)[0] == 200  # whoever looks asks all of them, and one may stand still

    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""


class Cluster:
    """`with Cluster(folder, 3) as cluster:` the first one was made a cluster of, and all were started."""

    def __init__(
        self, folder: Path, members: int, *, section: str = 'lease = "2s"\nack_timeout = "1s"', more: str = "",
        registry: str = "", network: Network | None = None,
        command: Sequence[str] = ("-m", "penstock"), environ: Mapping[str, str] | None = None,
        flight: bool = False,
    ) -> None:  # fmt: skip
        """command: what Python runs."""
        self.registry = registry or f"file://{folder / 'register'}"
        self.command, self.environ, self.flight = list(command), dict(environ or {}), flight
        self.folder = folder
        (folder / "register").mkdir(parents=True, exist_ok=True)
        self.servers = list[Server]()
        for number in range(1, members + 1):
            self.servers.append(Server(self, folder / f"p{number}", number, section, more, network))

    @property
    def url(self) -> str:
        """All of them, for our own clients."""
        return f"penstock://{','.join(f'127.0.0.1:{one.flight}' for one in self.servers)}"

    @property
    def manual(self) -> bool:
        """Whether each member has a copy of the register."""
        return self.registry == "manual"

    def groups(self) -> list[int]:
        """Of the servers' processes."""
        return [one.group for one in self.servers if one.process is not None]

    def __enter__(self) -> Self:
        self.servers[0].run("cluster", "init")
        for server in self.servers:
            server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = {one.name: None if one.process is None else one.process.poll() for one in self.servers}
        for server in self.servers:
            if server.runs:
                server.signal(signal.SIGCONT)
                server.kill()
            for connection in server.connections:
                bury(connection)
        if kind is not None:
            for server in self.servers:
                print(f"--- {server.name}, which had ended with {ended[server.name]}\n{server.said()}")

    def _asked(self) -> Server:
        """Whose register tells: where each member has a copy, that of who serves."""
        return next((one for one in self.servers if self.manual and one.runs and one.serves), self.servers[0])

    def status(self) -> dict[str, Any]:
        """What the register says, by the command."""
        told: dict[str, Any] = json.loads(self._asked().run("cluster", "status", "--json"))
        return told

    def in_sync(self) -> set[str]:
        """Names of those that hold everything that was confirmed.

        The register itself is asked: whoever waits asks often, and a command costs as much as a hundred of these.
        """
        return self._told_by(self._asked())

    def _told_by(self, server: Server) -> set[str]:
        value = register_at(self.registry, server.folder / "data").read().value
        if not value:
            return set()  # its own copy, which is to come
        state = decode(value)
        return {state.members[one].name for one in state.in_sync}

    def level(self, *servers: Server) -> None:
        """Wait until these are in sync, and no others, and each that has a copy of the register knows it.

        Who ended because another leads is started again, as what watches over servers does.
        """
        wanted = servers or self.servers
        names = {one.name for one in wanted}

        def are_level() -> bool:
            for one in wanted:
                if one.process is not None and one.process.poll() == LOST:
                    one.start()
            told = wanted if self.manual else [self._asked()]
            return all(self._told_by(one) == names for one in told)

        eventually(are_level, lambda: f"in sync: {self.in_sync()}, not {names}", PATIENCE_S)

    def leader(self, seconds: float = PATIENCE_S) -> Server:
        """The one that serves, as soon as one does."""
        found = list[Server]()

        def look() -> bool:
            found[:] = [one for one in self.servers if one.runs and one.serves]
            return bool(found)

        eventually(look, "nobody leads", seconds)
        return found[0]

    def followers(self) -> list[Server]:
        leader = self.leader()
        return [one for one in self.servers if one is not leader]


class Publisher:
    """One that goes on with whoever serves, and knows what was confirmed."""

    queue, rest = "work", 0.0  # seconds between two messages

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.confirmed = set[bytes]()
        self.count = 0
        self.gaps = list[float]()  # seconds for which nobody confirmed anything, where it was long
        self._channel: Any = None
        self._at = time.monotonic()

    def publish(self, until: float) -> None:
        """One message after the other, each confirmed or of an outcome that nobody knows."""
        while time.monotonic() < until:
            self.count += 1
            body = b"%08d" % self.count
            try:
                if self._channel is None:
                    self._connect()
                self._channel.basic_publish("", self.queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)
            except (AMQPError, OSError):
                self._channel = None
                time.sleep(0.02)
                continue
            now = time.monotonic()
            if now - self._at > 0.5:
                self.gaps.append(now - self._at)
            self._at = now
            self.confirmed.add(body)
            time.sleep(self.rest)

    def more(self, count: int) -> None:
        """So many more that are confirmed, by whoever leads by then."""
        wanted, until = len(self.confirmed) + count, time.monotonic() + PATIENCE_S
        while len(self.confirmed) < wanted:
            assert time.monotonic() < until, f"{len(self.confirmed)} of {wanted} are confirmed"
            self.publish(time.monotonic() + 0.05)

    def _connect(self) -> None:
        for server in self.cluster.servers:
            if not server.runs:
                continue
            try:
                connection = server.connect()
            except (AMQPError, OSError):
                continue
            self._channel = connection.channel()
            self._channel.confirm_delivery()
            return
        raise OSError("nobody serves")


def drain(server: Server, queue: str = "work", elsewhere: Callable[[], int] = lambda: 0) -> list[bytes]:
    """All that waits, acked: until the server says that nothing is left, however long that takes, nor is elsewhere."""
    connection = server.connect()
    channel = connection.channel()
    found, until = list[bytes](), time.monotonic() + PATIENCE_S
    for method, _, body in channel.consume(queue, inactivity_timeout=0.2):
        if method is not None:
            found.append(body)
            channel.basic_ack(method.delivery_tag)
            continue
        _, told = server.get(f"/api/queues/%2F/{queue}")
        left = told.get("messages", 1) + channel.get_waiting_message_count()  # what is on its way to us is in the first
        if not left and not elsewhere():
            break
        assert time.monotonic() < until, f"{left} of {queue} are left, {elsewhere()} elsewhere, and {len(found)} came"
    channel.cancel()
    connection.close()
    return found
