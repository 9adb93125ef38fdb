"""An etcd of the tests' own, where it is installed (Debian: etcd-server)."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import Unavailable
from penstock.server.cluster.registers import EtcdRegister
from waiting import eventually

ETCD = shutil.which("etcd")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


def answers(client: str) -> bool:
    try:
        EtcdRegister([client], "probe").read()
    except Unavailable:
        return False
    return True


@contextmanager
def running_etcd(folder: Path) -> Iterator[str]:
    """Where it answers; the test is left out where there is none."""
    if ETCD is None:
        pytest.skip("etcd is not installed (Debian: etcd-server): its register is not tried")
    client, peer = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            ETCD, "--data-dir", str(folder), "--listen-client-urls", f"http://{client}", "--advertise-client-urls",
            f"http://{client}", "--listen-peer-urls", f"http://{peer}", "--initial-advertise-peer-urls",
            f"http://{peer}", "--initial-cluster", f"default=http://{peer}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        eventually(lambda: answers(client), "etcd does not start")
        yield client
    finally:
        process.kill()
        process.wait()
