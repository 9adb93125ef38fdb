"""`make bench-peers`: the same AMQP work on Penstock and on the AMQP servers of this machine, side by side.

    python benchmarks/run_peers.py [--amqp amqp://user:password@host:port] [--mode publish] [--messages N] [--repeat N]

Penstock is started anew.  A peer is a server that runs: one that answers on 127.0.0.1:5672, and each `--amqp`; it is
not started, changed or stopped, and what is declared there has names of its own and is deleted again.  They take turns,
run by run, and every message is checked as in bench_amqp.  CPU is that of the process that listens, with its children,
where it is on this machine and may be seen.  Redis and NATS speak no AMQP: figures of theirs, measured elsewhere, are
in README.md.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from amqp_client import Link
from bench_amqp import Bench, Make, Place, modes
from harness import Server, Span, Usage, Wrong, emit, parse, parser, usage, work_folder
from rich.console import Console
from rich.table import Table

USUAL = "amqp://guest:guest@127.0.0.1:5672"
MODES = ("publish", "publish-one-queue", "consume", "consume-each", "both", "both-each")
INSTALLED = {
    "RabbitMQ": ("rabbitmq-server", "/usr/sbin/rabbitmq-server", "/usr/lib/rabbitmq/bin/rabbitmq-server"),
    "Redis": ("redis-server",),
    "NATS": ("nats-server",),
}
AMQP = ("RabbitMQ",)
"""Of those, the ones that our client speaks to."""


@dataclass(slots=True)
class Target:
    """A server that is measured, as `Bench` and `Span` see one."""

    name: str
    at: tuple[str, int]
    folder: Path
    user: str = "guest"
    password: str = "guest"
    pid: int | None = None  # of the process that listens; None: somewhere else, or not to be seen
    spans: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])

    def address(self, door: str) -> tuple[str, int]:
        """Where it listens."""
        return self.at

    def usage(self) -> Usage:
        """CPU and memory; zeros where they cannot be seen."""
        return Usage(0.0, 0) if self.pid is None else usage(self.pid)


class Kept(Bench):
    """The modes of bench_amqp, whose figures are kept with their target."""

    names = f"penstock-bench-{secrets.token_hex(4)}-"

    def _place(self, make: Make) -> Place:
        self._runs += 1
        return make(self.address, f"{self.names}{self._runs}")

    def _tell(self, what: str, spans: list[Span], budget: float | None, rate_budget: float | None = None) -> None:
        target = cast("Target", self.server)
        target.spans.setdefault(what, []).extend(spans)


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


def absent(running: set[str]) -> list[str]:
    """What is not measured, and why.  running: names of products that are."""
    told: list[str] = []
    for name, programs in INSTALLED.items():
        if any(one.startswith(name) for one in running):
            continue
        there = any(shutil.which(program) for program in programs)
        if name not in AMQP:
            told.append(f"{name} ({'installed, ' if there else ''}speaks no AMQP)")
        else:
            told.append(f"{name} ({'installed, and not running: start it' if there else 'not installed'})")
    return told


def targets(urls: list[str], folder: Path) -> list[Target]:
    """The peers that answer.  Raises Wrong for an address that was given and does not."""
    found: list[Target] = []
    for url in [*urls, USUAL]:
        parts = urlsplit(url)
        at = (parts.hostname or "127.0.0.1", parts.port or 5672)
        if any(one.at == at for one in found):
            continue
        name = product(at)
        if name is None:
            if url in urls:
                raise Wrong(f"no AMQP server answers at {at[0]}:{at[1]}")
            continue
        local = at[0] in ("127.0.0.1", "localhost", "::1")
        user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        found.append(Target(name, at, folder, user, password, listener(at[1]) if local else None))
    return found


def measure(all_targets: list[Target], wanted: list[str], given: argparse.Namespace) -> None:
    """Every mode on every target, run by run in turns."""
    repeat, given.repeat = given.repeat, 1
    benches = [Kept(cast("Server", one), given) for one in all_targets]
    for mode in wanted:
        for _ in range(repeat):
            for bench, one in zip(benches, all_targets, strict=True):
                Link.login = (one.user, one.password)
                modes(bench)[mode]()


def figures(all_targets: list[Target], given: argparse.Namespace) -> Table:
    """A line of JSON for each figure, and the table: messages a second, and CPU a message where it is seen."""
    table = Table(title="messages/s · server CPU us a message", title_justify="left")
    table.add_column("work")
    for number, one in enumerate(all_targets):
        table.add_column(f"{one.name}{f' ({one.at[1]})' if number else ''}", justify="right")
    for what in all_targets[0].spans:
        row = [what]
        for one in all_targets:
            spans, n = one.spans[what], given.messages
            settings: dict[str, object] = {"server": one.name, "port": one.at[1], "messages": n}
            rate = emit(f"{what}: rate", [n / span.wall_s for span in spans], "messages/s", settings=settings)
            cell = f"{rate:,.0f}"
            if one.pid is not None:
                cpu = [span.server_s / n * 1e6 for span in spans]
                cell += f" · {emit(f'{what}: server CPU', cpu, 'us/message', settings=settings):.2f}"
            row.append(cell)
        table.add_row(*row)
    return table


def main() -> int:
    """Run the modes on whoever is there."""
    options = parser(__doc__ or "", messages=200_000)
    options.add_argument("--amqp", action="append", default=[], help="a peer; may be repeated")
    options.add_argument("--mode", action="append", help=f"of bench_amqp (default: {', '.join(MODES)})")
    given = parse(options)
    given.rate = 20_000.0
    wanted: list[str] = given.mode or [*MODES]
    unknown = set(wanted) - set(modes(Bench.__new__(Bench)))
    if unknown:
        options.error(f"no such mode: {', '.join(sorted(unknown))}")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with work_folder(given.folder) as folder:
        try:
            peers = targets(given.amqp, folder)
        except Wrong as error:
            options.error(str(error))
        missing = absent({one.name for one in peers})
        console.print(f"measured: {', '.join(['Penstock', *(one.name for one in peers)])}; not: {', '.join(missing)}")
        with Server(folder / "penstock") as server:
            ours = Target("Penstock", server.address("amqp"), folder, pid=server.pid)
            measure([ours, *peers], wanted, given)
            console.print(figures([ours, *peers], given))
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
