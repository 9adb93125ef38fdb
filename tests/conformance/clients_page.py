"""`docs/clients.md`: which clients were run, their versions, the result, and where answers differ from RabbitMQ's.

`make conformance` writes it when everything of it was run.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/clients.md"

HEAD = """# Clients that were run, and what differs from RabbitMQ

Made by `make conformance`: unmodified clients of others against a real server, and the same random methods (declares,
bindings, publishes with confirms, gets, settling, limits, time to live, dead letters, transactions, errors) on this
server and on RabbitMQ, every answer compared.

"""


class Run(NamedTuple):
    """What one client's tests are."""

    client: str
    files: Sequence[str]  # beginnings of the names of test files
    package: str = ""  # of Python
    what: str = ""


RUNS = (
    Run(
        "pika",
        ("test_pika_", "test_close_codes", "test_connection_ends"),
        "pika",
        "topology, messages, consumers, errors",
    ),
    Run("pika", ("test_stream_queues", "test_quorum_queues"), "pika", "queues of the types stream and quorum"),
    Run("aio-pika", ("test_other_clients",), "aio-pika", "and pika's other connections"),
    Run("amqplib", ("test_amqplib",), "", "Node.js"),
    Run("FastStream", ("test_faststream",), "", "RabbitBroker"),
    Run("RabbitMQ, beside us", ("test_differential",), "", "random methods, every answer compared"),
    Run("RabbitMQ, taken over", ("test_migrate",), "", "`penstock migrate`"),
)


def _locked(name: str) -> str:
    """The version that a lock names."""
    if name == "amqplib":
        lock = json.loads((ROOT / "tools/node/package-lock.json").read_text())
        return str(lock["packages"]["node_modules/amqplib"]["version"])
    lines = (ROOT / "tools/faststream.lock").read_text().splitlines()
    return next(line.split("==")[1].split()[0] for line in lines if line.startswith("faststream"))


def _version(run: Run) -> str:
    if run.client in {"amqplib", "FastStream"}:
        return _locked(run.client)
    if run.client.startswith("RabbitMQ"):
        asked = subprocess.run(["rabbitmqctl", "version"], capture_output=True, text=True, check=False)
        return asked.stdout.strip() or "as installed"
    try:
        return version(run.package)
    except PackageNotFoundError:
        return ""


def differences() -> str:
    """The parts of the page that the walks say."""
    from conformance.test_differential import DIFFERENCES, LEFT_OUT

    rows = [f"| {one.what} | {one.why} |" for one in DIFFERENCES]
    left = [f"| {what} | {why} |" for what, why in LEFT_OUT.items()]
    return "\n".join([
        "## Where answers differ", "", "| answer | here, and why |", "| --- | --- |", *rows, "",
        "## What the random methods leave out", "", "| what | why |", "| --- | --- |", *left, "",
        "What is missing altogether is in [rabbitmq.md](rabbitmq.md#what-is-not-there).", "",
    ])  # fmt: skip


def write(outcomes: Mapping[str, str]) -> bool:
    """The page of a run, by the names of tests; False, and nothing is written, where one failed or little was run."""
    rows = list[str]()
    for run in RUNS:
        found = [one for name, one in outcomes.items() if Path(name.split("::")[0]).name.startswith(tuple(run.files))]
        if "failed" in found or (not found and run.client != "amqplib" and run.client != "FastStream"):
            return False
        passed = found.count("passed")
        said = f"{passed} of {passed}" if passed else "not run: its packages were not there"
        rows.append(f"| {run.client} | {_version(run)} | {run.what} | {said} |")
    table = ["| client | version | tests | passed |", "| --- | --- | --- | --- |", *rows, "", ""]
    PAGE.write_text(HEAD + "\n".join(table) + differences())
    return True
