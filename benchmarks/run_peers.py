"""`make bench-peers`: the same work on Penstock and on the other servers of this machine, side by side.

    python benchmarks/run_peers.py [--clients] [--mode publish-300] [--amqp amqp://user:password@host:port] ...

Two kinds of modes: those of bench_amqp, one client that saturates (AMQP servers only); and those of crowd_loads, many
ordinary clients, which `--clients` asks for alone (RabbitMQ by AMQP, NATS by JetStream, Redis by streams).

Penstock is started anew, and so are RabbitMQ, NATS and Redis where they are installed: on free ports, in a temporary
folder, with settings that promise what ours promises.  A RabbitMQ that runs, which is one that answers on
127.0.0.1:5672 or at an `--amqp`, is measured as it is: it is not started, changed or stopped, and what is declared
there has names of its own and is deleted again.  They take turns, run by run, and every message is checked.  CPU is
that of the process that listens, with its children, where it is on this machine and may be seen.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap
from typing import cast
from urllib.parse import unquote, urlsplit

from amqp_client import Link
from bench_amqp import Bench, Make, Place, modes
from crowd import Door, allow_many
from crowd_amqp import AmqpDoor
from crowd_loads import Load, Outcome, load, run
from crowd_nats import NatsDoor
from crowd_redis import RedisDoor
from harness import Server, Span, Usage, Wrong, commit, emit, machine, parse, parser, percentile, usage, work_folder
from peers import INSTALLED, ON_DISK, Started, listener, product, program
from rich.console import Console
from rich.table import Table

USUAL = "amqp://guest:guest@127.0.0.1:5672"
MODES = ("publish", "publish-one-queue", "consume", "consume-each", "both", "both-each")
CLIENTS = (
    "one", "publish-1", "publish-20", "publish-300", "publish-2000", "work-1", "work-20", "work-300", "work-2000",
    "request-1", "request-20", "request-300", "paced-300", "paced-2000", "paced-work-300",
)  # fmt: skip
QUICK = ("publish-3", "work-3", "paced-3", "request-3", "request-direct-3", "one")
MARKS = ("<!-- bench-peers: what is between these marks is written by it -->", "<!-- end of bench-peers -->")


@dataclass(slots=True)
class Target:
    """A server that is measured, as `Bench` and `Span` see one."""

    name: str
    at: tuple[str, int]
    folder: Path
    user: str = "guest"
    password: str = "guest"
    pid: int | None = None  # of the process that listens; None: somewhere else, or not to be seen
    promise: str = ON_DISK
    door: Door | None = None  # None: it speaks AMQP
    spans: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    outcomes: dict[Load, list[Outcome]] = field(default_factory=dict[Load, list[Outcome]])

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


def running(urls: list[str], folder: Path) -> list[Target]:
    """The AMQP servers that answer.  Raises Wrong for an address that was given and does not."""
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


def started(name: str, folder: Path, stack: ExitStack) -> Target:
    """A server of a product, which runs until the stack ends.  Raises Wrong when it cannot be had."""
    server = stack.enter_context(Started(name, folder / name.lower()))
    target = Target(name, server.at, folder, pid=server.pid, promise=server.promise)
    match name:
        case "NATS":
            nats = NatsDoor(server.at)
            target.name, target.door = f"NATS {nats.version}", nats
        case "Redis":
            redis = RedisDoor(server.at)
            target.name, target.door = f"Redis {redis.version()}", redis
        case _:
            target.name = product(server.at) or name
    return target


def peers(given: argparse.Namespace, crowds: bool, folder: Path, stack: ExitStack) -> tuple[list[Target], list[str]]:
    """The servers beside ours, and who is absent, and why."""
    found = running(given.amqp, folder)
    missing: list[str] = []
    for name in INSTALLED:
        if any(one.name.startswith(name) for one in found):
            continue
        if program(name) is None:
            missing.append(f"{name} (not installed)")
        elif "none" in given.peer or (given.peer and name.lower() not in given.peer):
            missing.append(f"{name} (installed, not asked for)")
        elif name != "RabbitMQ" and not crowds:
            missing.append(f"{name} (installed, speaks no AMQP: --clients)")
        else:
            try:
                found.append(started(name, folder, stack))
            except Wrong as error:
                missing.append(f"{name} ({error})")
    return found, missing


def saturate(targets: Sequence[Target], wanted: Sequence[str], given: argparse.Namespace) -> None:
    """Every mode of one client on every target that speaks AMQP, run by run in turns."""
    repeat, given.repeat = given.repeat, 1
    benches = [Kept(cast("Server", one), given) for one in targets]
    given.repeat = repeat
    for mode in wanted:
        for _ in range(repeat):
            for bench, one in zip(benches, targets, strict=True):
                Link.login = (one.user, one.password)
                modes(bench)[mode]()


def crowd(targets: Sequence[Target], wanted: Sequence[Load], given: argparse.Namespace) -> None:
    """Every load of many clients on every target, run by run in turns."""
    doors = [one.door or AmqpDoor(one.at, (one.user, one.password)) for one in targets]
    if not given.quick:
        for door, one in zip(doors, targets, strict=True):
            run(door, one, load("work-20"), 1.0)  # what a server compiles and maps at first is no cost of a message
    for what in wanted:
        for _ in range(given.repeat):
            for door, one in zip(doors, targets, strict=True):
                one.outcomes.setdefault(what, []).append(run(door, one, what, given.seconds))


def figures(targets: Sequence[Target], given: argparse.Namespace) -> Table:
    """A line of JSON for each figure, and the table: messages a second, and CPU a message where it is seen."""
    table = Table(title="messages/s · server CPU us a message", title_justify="left")
    table.add_column("work")
    for number, one in enumerate(targets):
        table.add_column(f"{one.name}{f' ({one.at[1]})' if number else ''}", justify="right")
    for what in targets[0].spans:
        row = [what]
        for one in targets:
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


def _digits(value: float) -> str:
    """Two or more that count."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _cell(one: Target, what: Load, given: argparse.Namespace) -> str:
    """A line of JSON for each figure of a load on a server, and a cell of the table."""
    outcomes = one.outcomes[what]
    settings: dict[str, object] = {"server": one.name, "port": one.at[1], "promise": one.promise}
    settings |= {"clients": what.clients, "seconds": given.seconds}
    settings["client_us"] = round(percentile([outcome.client_us for outcome in outcomes], 0.5), 1)
    rate = emit(f"{what.title}: rate", [each.rate for each in outcomes], "messages/s", settings=settings)
    p50 = emit(f"{what.title}: {what.answer} p50", [each.p50 for each in outcomes], "ms", settings=settings)
    p99 = emit(f"{what.title}: {what.answer} p99", [each.p99 for each in outcomes], "ms", settings=settings)
    told = f"{rate:,.0f}/s · {_digits(p50)} / {_digits(p99)} ms"
    if what.kind == "one":
        delivered = [each.delivered_p50 for each in outcomes]
        told = f"delivered {emit(f'{what.title}: delivered p50', delivered, 'ms', settings=settings) * 1e3:,.0f} us, "
        told += f"confirmed {p50 * 1e3:,.0f} us"
    if one.pid is not None:
        cpu = emit(f"{what.title}: server CPU", [each.cpu_us for each in outcomes], "us/message", settings=settings)
        told = f"{_digits(cpu)} us · {told}"
    return told


def markdown(targets: Sequence[Target], missing: Sequence[str], given: argparse.Namespace, busy: float) -> str:
    """The table of the crowd's loads, with what it was measured on; and its lines of JSON.  busy: load at the start."""
    here = machine()
    head = "CPU of the server a message · messages a second · confirm or answer, p50 / p99; p50 for one message alone. "
    head += f"{datetime.now(UTC):%Y-%m-%d}, {here['cores']} cores ({here['processor']}), kernel {here['kernel']}, "
    head += f"commit `{commit()}`, median of {given.repeat} runs of {given.seconds:g} s; "
    head += f"load of the machine when it began {busy:.1f}"
    head += " (busy with other work: rates and times say little)" if busy > 1 else ""
    head += f"; not measured: {', '.join(missing)}." if missing else "."
    rows = [["load", *(one.name for one in targets)], ["---"] * (len(targets) + 1)]
    rows.append(["a confirm means", *(one.promise for one in targets)])
    for what in targets[0].outcomes:
        rows.append([what.title, *(_cell(one, what, given) for one in targets)])
    return "\n".join([*wrap(head, 120), "", *(f"| {' | '.join(row)} |" for row in rows)])


def put(text: str, file: Path) -> None:
    """Write the table between the marks of a document."""
    before = file.read_text()
    start, end = map(re.escape, MARKS)
    after, found = re.subn(f"{start}.*?{end}", lambda _: f"{MARKS[0]}\n{text}\n{MARKS[1]}", before, flags=re.DOTALL)
    if found != 1:
        raise Wrong(f"{file} has not once the marks {MARKS[0]} and {MARKS[1]}")
    file.write_text(after)


def asked(given: argparse.Namespace) -> tuple[list[str], list[Load]]:
    """The modes of one client and the loads of many.  Raises ValueError for one that there is not."""
    if not given.mode:
        return [] if given.clients else [*MODES], [load(name) for name in (QUICK if given.quick else CLIENTS)]
    single = [name for name in given.mode if name != "one" and name in modes(Bench.__new__(Bench))]
    return single, [load(name) for name in given.mode if name not in single]


def main() -> int:
    """Run the modes on whoever is there."""
    options = parser(__doc__ or "", messages=200_000)
    options.add_argument("--amqp", action="append", default=[], help="a peer that runs; may be repeated")
    names = [*map(str.lower, INSTALLED), "none"]
    options.add_argument("--peer", action="append", default=[], choices=names, help="start only this; may be repeated")
    options.add_argument("--clients", action="store_true", help="the loads of many clients alone")
    both = f"{', '.join(MODES)}; {', '.join(CLIENTS)}"
    options.add_argument("--mode", action="append", help=f"may be repeated (default: {both})")
    options.add_argument("--seconds", type=float, default=4.0, help="how long many clients send")
    options.add_argument("--into", type=Path, help="a document; the table of many clients goes between its marks")
    given = parse(options)
    given.rate = 20_000.0
    if given.quick:
        given.seconds = min(given.seconds, 0.1)
    try:
        single, loads = asked(given)
    except ValueError as error:
        options.error(str(error))
    allow_many()
    busy = os.getloadavg()[0]
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with work_folder(given.folder) as folder, ExitStack() as stack:
        try:
            others, missing = peers(given, bool(loads), folder, stack)
        except Wrong as error:
            options.error(str(error))
        told = ", ".join(["Penstock", *(one.name for one in others)])
        console.print(f"measured: {told}; not: {', '.join(missing) or 'none'}")
        server = stack.enter_context(Server(folder / "penstock"))
        targets = [Target("Penstock", server.address("amqp"), folder, pid=server.pid), *others]
        if single:
            amqp = [one for one in targets if one.door is None]
            saturate(amqp, single, given)
            console.print(figures(amqp, given))
        if loads:
            crowd(targets, loads, given)
            table = markdown(targets, missing, given, busy)
            console.print(table, markup=False)
            if given.into is not None:
                put(table, given.into)
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
