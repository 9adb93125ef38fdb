"""What is besieged, and who besieges it: a server with every door, and processes that attack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cluster_of_servers.house import free_ports
from forked import penstock as command_line
from hostile.attacks import Target
from hostile.strangers import PROTOCOLS
from tls_lab import Files, TlsServer

MEMORY = 128 << 20
"""Bytes of `server.memory` below."""
SETTINGS = """
[server]
doors = 1
memory = "128MiB"
data = "{data}"
[log]
segment = "8MiB"
retention = {{ bytes = "64MiB" }}
checkpoint_bytes = "16MiB"
[sql]
memory = "64MiB"
spill = "256MiB"
timeout = "20s"
[cluster]
registry = "file://{register}"
listen = "127.0.0.1:{stream}"
secret = "not known to strangers"
min_in_sync = 1
lease = "2m"
stall = "5m"
[[vhost]]
name = "town"
[[user]]
name = "guest"
password = "guest"
tags = ["administrator"]
[[user]]
name = "weak"
password = "weak"
tags = ["management"]
max_connections = 200
[[permission]]
user = "guest"
vhost = "town"
configure = ".*"
write = ".*"
read = ".*"
[[permission]]
user = "guest"
configure = ".*"
write = ".*"
read = ".*"
[[permission]]
user = "weak"
configure = "^(weak|hostile|calm|fuzzed|amq.gen)"
write = ".*"
read = ".*"
[[operator_policy]]
name = "bounds"
pattern = ".*"
definition = {{ max-length = 500, max-length-bytes = 4000000, expires = 60000 }}
apply_to = "queues"
"""
STUCK_S = 180.0
"""An attacker that says nothing for so long is started again."""


class Attacker:
    """A process that attacks, and says what it does."""

    def __init__(
        self, target: Target, seed: int, seconds: float, length: float, output: Path, tell: Callable[[str, str], object]
    ) -> None:
        self.seed = seed
        self.told_at = time.monotonic()
        self._tell = tell
        told = json.dumps({"ports": dict(target.ports), "user": target.user, "password": target.password})
        command = ["nice", "-n", "10", sys.executable, "-m", "soak.siege", "--attack", told]
        command += ["--seed", str(seed), "--seconds", str(seconds), "--bout", str(length)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GRPC_VERBOSITY": "NONE"}
        with output.open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environ, text=True)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            name, _, door = line.strip().partition("\t")
            self.told_at = time.monotonic()
            self._tell(name, door)

    @property
    def stuck(self) -> bool:
        return time.monotonic() - self.told_at > STUCK_S

    def end(self) -> None:
        self.process.kill()
        self.process.wait(20)
        if self.process.stdout is not None:
            self.process.stdout.close()


class Fort(TlsServer):
    """The server: every door, and the cluster's port."""

    loads = True
    http = "127.0.0.1:0"

    def __init__(self, folder: Path) -> None:
        [self.stream] = free_ports(1)
        (folder / "register").mkdir(parents=True)
        said = SETTINGS.format(data=folder / "data", register=folder / "register", stream=self.stream)
        super().__init__(folder, Files(folder / "files"), rest=said)
        self.with_flight = True

    def start(self, amqp: str = "127.0.0.1:0") -> None:
        """A cluster of one member, which leads."""
        if not self.starts:
            made = command_line("cluster", "init", str(self.folder / "penstock.toml"))
            assert made.returncode == 0, made.stderr
        super().start(amqp)

    @property
    def door(self) -> int:
        """Of AMQP."""
        return self.port

    def target(self) -> Target:
        return Target({**{door: self.port_of(door) for door in PROTOCOLS}, "cluster": self.stream}, "weak", "weak")
