"""Members that speak TLS with each other, each with a certificate of the cluster's CA."""

from __future__ import annotations

import signal
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

import penstock
from cluster_of_servers.house import Cluster, Publisher, drain
from penstock.errors import NotLeading
from ports import free_ports
from tls_lab import Files, over_tls
from waiting import eventually


def told(port: int, context: ssl.SSLContext) -> bytes:
    """The first word to one who calls."""
    try:
        with over_tls(context, port, "127.0.0.1") as stranger:
            return stranger.recv(32)
    except OSError:
        return b""


def test_members_copy_over_tls_and_nobody_else_is_spoken_to(tmp_path: Path) -> None:
    files = Files(tmp_path / "tls")
    certificate, key = files.authority.member(["127.0.0.1"], days=1)
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
        ends = f"cluster: the certificate {files.certificate} ends on "
        for server in cluster.servers:  # in whichever role
            eventually(lambda server=server: ends in server.output.read_text(), "that it ends was not told")
        publisher = Publisher(cluster)
        publisher.more(20)
        with socket.create_connection(("127.0.0.1", leader.stream), 30) as stranger:
            stranger.settimeout(1.0)
            with pytest.raises(TimeoutError):
                stranger.recv(32)  # without TLS the first word is the other side's
        context = ssl.create_default_context(cafile=files.ca)
        for _ in range(40):  # more than there is room for at once
            assert told(leader.stream, context) == b"", "one without a certificate is told nothing"
        context.load_cert_chain(files.certificate, files.key)
        assert len(told(leader.stream, context)) == 32, "and one with a certificate is spoken to afterwards"
        with ExitStack() as silent:
            for _ in range(40):
                silent.enter_context(socket.create_connection(("127.0.0.1", leader.stream), 30))
            assert len(told(leader.stream, context)) == 32, "silent strangers give way"
        lines = [one for one in leader.output.read_text().splitlines() if "was sent away" in one]
        assert 0 < len(lines) < 20, "the same word about the same host is told once in a while"
        cluster.level()  # with `min_in_sync = 1` one that was late is not waited for, and may not lead
        leader.kill()
        [other] = [one for one in cluster.servers if one is not leader]
        assert cluster.leader() is other
        assert publisher.confirmed <= set(drain(other))


def test_a_follower_takes_up_renewed_certificates_for_as_long_as_it_follows(tmp_path: Path) -> None:
    """Whoever asks it by TLS who leads must be able to believe it."""
    files = Files(tmp_path / "tls")
    cluster = Cluster(tmp_path / "cluster", 2, section='lease = "1s"\nack_timeout = "1s"\nmin_in_sync = 1')
    ports = dict(zip(cluster.servers, zip(*[iter(free_ports(4))] * 2, strict=True), strict=True))
    for server, (https, flight) in ports.items():
        server._environ = {
            "PENSTOCK_TLS__CERTIFICATE": files.certificate, "PENSTOCK_TLS__KEY": files.key,
            "PENSTOCK_LISTEN__HTTPS": f"127.0.0.1:{https}", "PENSTOCK_LISTEN__FLIGHT_TLS": f"127.0.0.1:{flight}",
        }  # fmt: skip
    with cluster:
        leader = cluster.leader()
        cluster.level()
        [follower] = cluster.followers()
        https, flight = ports[follower]

        def shown(port: int) -> str:
            """Nothing while a port is closed, as Flight's is for a moment."""
            try:
                text = ssl.get_server_certificate(("127.0.0.1", port))
            except OSError:
                return ""
            found = x509.load_pem_x509_certificate(text.encode())
            return str(found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)

        assert [shown(https), shown(flight)] == ["localhost", "localhost"]
        files.sign_server(("renewed", "127.0.0.1"))
        assert follower.process is not None
        follower.process.send_signal(signal.SIGHUP)
        for name, port in (("HTTP", https), ("Flight", flight)):  # each takes it up in a thread of its own
            eventually(lambda port=port: shown(port) == "renewed", f"{name} goes on with the old one", 40)

        def refused() -> str:
            with pytest.raises(NotLeading) as said:
                penstock.connect(f"penstocks://127.0.0.1:{flight}", ca=files.ca)
            return str(said.value)

        # who waits hears from its member once in a while whom it follows
        eventually(lambda: f"{leader.name} leads" in refused(), refused, 40)
