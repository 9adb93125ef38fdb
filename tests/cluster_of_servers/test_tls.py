"""Members that speak TLS with each other, each with a certificate of the cluster's CA."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import pytest

from cluster_of_servers.house import Cluster, Publisher, drain
from tls_lab import Files


def told(port: int, context: ssl.SSLContext) -> bytes:
    """The first word to one who calls."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 5) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as stranger,
        ):
            return stranger.recv(32)
    except OSError:
        return b""


def test_members_copy_over_tls_and_nobody_else_is_spoken_to(tmp_path: Path) -> None:
    files = Files(tmp_path / "tls")
    certificate, key = files.authority.member(["127.0.0.1"])
    files.put(files.certificate, certificate)
    files.put(files.key, key)
    section = f"""
lease = "1s"
ack_timeout = "1s"
min_in_sync = 1
certificate = "{files.certificate}"
key = "{files.key}"
ca = "{files.ca}"
"""
    with Cluster(tmp_path / "cluster", 2, section=section) as cluster:
        leader = cluster.leader()
        cluster.level()
        publisher = Publisher(cluster)
        publisher.publish(time.monotonic() + 0.3)
        with socket.create_connection(("127.0.0.1", leader.stream), 5) as stranger:
            stranger.settimeout(1.0)
            with pytest.raises(TimeoutError):
                stranger.recv(32)  # without TLS the first word is the other side's
        context = ssl.create_default_context(cafile=files.ca)
        assert told(leader.stream, context) == b"", "one without a certificate is told nothing"
        context.load_cert_chain(files.certificate, files.key)
        assert len(told(leader.stream, context)) == 32
        leader.kill()
        [other] = [one for one in cluster.servers if one is not leader]
        assert cluster.leader() is other
        assert publisher.confirmed <= set(drain(other))
