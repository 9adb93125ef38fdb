"""What TLS costs at the AMQP door: modes of bench_amqp with and without it on one server, and what a handshake takes.

    python benchmarks/bench_tls.py --mode publish --mode consume --messages 500000 --repeat 5

TLS 1.3, a certificate with a P-256 key, OpenSSL's first choice of cipher.  The two take turns, so that both meet the
same neighbours.
"""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path

from amqp_client import Link
from bench_amqp import Bench, modes
from harness import Server, Span, emit, parse, parser, work_folder
from tls_socket import TlsSocket

MODES = ("publish", "publish-varied", "consume", "consume-each", "both")
CONNECTIONS = 300


class Told(Bench):
    """The modes, with what they went over in the name of each figure."""

    over = ""

    def _tell(self, what: str, spans: list[Span], budget: float | None, rate_budget: float | None = None) -> None:
        super()._tell(f"{what}, {self.over}", spans, budget if self.over == "plain" else None, None)


def certificate(folder: Path) -> tuple[str, dict[str, str]]:
    """The CA's file, and the environment of a server that shows what it signed."""
    from penstock.server.sockets.certificates import Authority, write_new

    folder.mkdir(parents=True)
    authority = Authority(days=1)
    signed, key = authority.server(["localhost", "127.0.0.1"], 1)
    for name, data in (("ca.pem", authority.pem), ("server.pem", signed), ("server.key", key)):
        write_new(folder / name, data, secret=name.endswith("key"))
    environ = {"LISTEN__AMQPS": "127.0.0.1:0", "TLS__CERTIFICATE": str(folder / "server.pem")}
    environ["TLS__KEY"] = str(folder / "server.key")
    return str(folder / "ca.pem"), {f"PENSTOCK_{name}": value for name, value in environ.items()}


def connections(bench: Told, count: int) -> None:
    """Connect, log in, open a channel and leave, one after another."""
    cpu: list[float] = []
    wall: list[float] = []
    for _ in range(bench.repeat):
        with Span(bench.server) as span:
            for _ in range(count):
                Link(bench.address).close()
        cpu.append(span.server_s / count * 1e6)
        wall.append(span.wall_s / count * 1e6)
    settings: dict[str, object] = {"connections": count}
    emit(f"AMQP connection, {bench.over}: server CPU", cpu, "us", settings=settings)
    emit(f"AMQP connection, {bench.over}: until it is closed again", wall, "us", settings=settings)


def main() -> None:
    """Run the modes asked for."""
    options = parser(__doc__ or "", messages=300_000)
    options.add_argument("--mode", action="append", help=f"of bench_amqp (default: {', '.join(MODES)})")
    given = parse(options)
    given.rate = 20_000.0
    with work_folder(given.folder) as folder:
        wanted: list[str] = given.mode or [*MODES]
        unknown = set(wanted) - set(modes(Bench.__new__(Bench)))
        if unknown:
            options.error(f"no such mode: {', '.join(sorted(unknown))}")
        _run(folder, wanted, given)


def _run(folder: Path, wanted: list[str], given: argparse.Namespace) -> None:
    ca, environ = certificate(folder / "certificates")
    context = ssl.create_default_context(cafile=ca)
    repeat, given.repeat = given.repeat, 1
    with Server(folder / "server", environ=environ) as server:
        bench = Told(server, given)
        ways = {
            "plain": (server.address("amqp"), None),
            "TLS": (server.address("amqps"), lambda plain: TlsSocket(plain, context)),
        }
        for mode in wanted:
            for _ in range(repeat):
                for bench.over, (bench.address, Link.over) in ways.items():
                    modes(bench)[mode]()
        bench.repeat = repeat
        for bench.over, (bench.address, Link.over) in ways.items():
            connections(bench, 20 if given.quick else CONNECTIONS)
        Link.over = None
        server.stop()


if __name__ == "__main__":
    main()
