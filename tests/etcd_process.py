"""An etcd of the tests' own: the one that is installed, or that `tools/install` has unpacked (Debian: etcd-server)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import Unavailable
from penstock.server.cluster.registers import EtcdRegister
from ports import free_ports
from waiting import eventually

ETCD = shutil.which("etcd") or shutil.which("etcd", path=str(Path(sys.prefix, "etcd", "usr", "bin")))


def answers(client: str) -> bool:
    try:
        EtcdRegister([client], "probe").read()
    except Unavailable:
        return False
    return True


class Etcd:
    """One that can be killed and started again with what it has kept."""

    def __init__(self, folder: Path) -> None:
        self.client, self._peer = (f"127.0.0.1:{port}" for port in free_ports(2))
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin, and wait until it answers."""
        assert ETCD is not None
        client, peer = f"http://{self.client}", f"http://{self._peer}"
        self._process = subprocess.Popen(
            [
                ETCD, "--data-dir", str(self._folder), "--listen-client-urls", client, "--advertise-client-urls",
                client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster",
                f"default={peer}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        eventually(lambda: answers(self.client), "etcd does not start", 60)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def running_etcd(folder: Path) -> Iterator[str]:
    """Where it answers; the test is left out where there is none."""
    if ETCD is None:
        pytest.skip("etcd is not installed (Debian: etcd-server): its register is not tried")
    etcd = Etcd(folder)
    try:
        etcd.start()
        yield etcd.client
    finally:
        etcd.kill()
