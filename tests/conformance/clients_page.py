"""`docs/clients.md`: which clients were run, their versions, the result, and where answers differ from RabbitMQ's.

`make conformance` writes it when everything of it was run.
"""

from __future__ import annotations

import json
import shutil
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
    package: str = ""  # of Python, or of Node.js under the name that it is installed by
    what: str = ""
    lock: str = ""  # the file of `tools` that says its version


OWN = "its own suite, against a server"


def _program(client: str, package: str, what: str) -> Run:
    test = f"test_frameworks.py::test_a_program_of_a_framework_runs_unmodified[{client.lower()}-"
    return Run(client, (test,), package, f"a program of it, and the same on RabbitMQ: {what}", "frameworks.lock")


TOLD = {
    "`amq.rabbitmq.trace`": "what no queue takes is not told, nor are events; connection, channel and user are "
    "empty where a message did not come by AMQP",
    "`amq.rabbitmq.event`": "whose a consumer is is not told; logins that are let in are told of AMQP alone, those "
    "that are refused of every door; the exchanges that a vhost has from the beginning are not told one by one, nor "
    "are limits told as parameters, too; to read it takes the tag `administrator`, for it tells of all vhosts and of "
    "people ([but of a settings file without any `[[permission]]`](http.md#events))",
    "`x-delivery-limit` of a quorum queue": "what a channel or a connection holds as it closes cleanly goes back "
    "without counting, and `x-delivery-count` says one more all the same; of a connection that is lost the oldest "
    "delivery of each consumer counts. In RabbitMQ each of them counts",
    "the header `CC` of a dead letter with a key of its queue's": "is gone, as in RabbitMQ before 3.13; later it "
    "stays, and nothing goes by it",
    "`/metrics/detailed`": "has the families that [http.md](http.md#metrics) names: figures of Erlang, of single "
    "connections and of single channels are not among them",
    "`basic.qos` without `global`": "of py-amqp, and so of kombu and Celery, it holds for running consumers of the "
    "channel, too, each by itself: kombu says `global` at servers named RabbitMQ alone, and means that. Celery's "
    "workers hold tasks until their time, and their pools grow, by it",
}
"""What is told otherwise beside answers, and how; no walk compares it."""

RUNS = (
    Run(
        "pika",
        ("test_pika_", "test_close_codes", "test_connection_ends"),
        "pika",
        "topology, messages, consumers, errors",
    ),
    Run("pika", ("test_stream_queues", "test_quorum_queues"), "pika", "queues of the types stream and quorum"),
    Run("pika", ("test_suites.py::test_a_suite_of_others_passes[pika]",), "pika", OWN, "suites.lock"),
    Run("aio-pika", ("test_other_clients",), "aio-pika", "and pika's other connections"),
    Run("aio-pika", ("test_suites.py::test_a_suite_of_others_passes[aio-pika]",), "aio-pika", OWN, "suites.lock"),
    Run("aiormq", ("test_suites.py::test_a_suite_of_others_passes[aiormq]",), "aiormq", OWN, "suites.lock"),
    Run("py-amqp", ("test_suites.py::test_a_suite_of_others_passes[amqp]",), "amqp", OWN, "suites.lock"),
    Run("kombu", ("test_suites.py::test_a_suite_of_others_passes[kombu]",), "kombu", OWN, "suites.lock"),
    Run("dramatiq", ("test_suites.py::test_a_suite_of_others_passes[dramatiq]",), "dramatiq", OWN, "suites.lock"),
    Run("Celery", ("test_suites.py::test_a_suite_of_others_passes[celery]",), "celery", OWN, "suites.lock"),
    Run(
        "pika, Celery, dramatiq, FastStream",
        ("test_examples",),
        "",
        "RabbitMQ's six tutorials, the first steps of the others and Celery's canvas, as in [examples](../examples)",
    ),
    Run("amqplib", ("test_amqplib.py::test_an_application",), "", "Node.js", "node/package-lock.json"),
    Run("amqplib", ("test_amqplib.py::test_its_own_suite",), "amqplib-with-tests", OWN, "node/package-lock.json"),
    Run("amqp-tools", ("test_commands_of_others.py::test_amqp_tools",), "", "declare, publish, get, consume, delete"),
    Run(
        "promtool",
        ("test_commands_of_others.py::test_promtool",),
        "",
        "Prometheus' check of our pages of metrics, and each rule for alerts played",
    ),
    Run("rabbitmqadmin", ("test_rabbitmqadmin",), "", "ours, and the one that comes with RabbitMQ's management"),
    _program("FastStream", "faststream", "RabbitBroker"),
    _program("taskiq", "taskiq-aio-pika", "tasks, later ones, retries"),
    _program("remoulade", "remoulade", "actors, later ones, retries"),
    _program("nameko", "nameko", "calls between services, events"),
    _program("AMQPStorm", "amqpstorm", "confirms, transactions, its client of the management"),
    _program("rabbitpy", "rabbitpy", "confirms, returned messages"),
    Run(
        "RabbitMQ, beside us",
        ("test_differential",),
        "",
        "random methods and topologies, every answer and message compared",
    ),
    Run("RabbitMQ, beside us", ("test_refusals",), "", "arguments with values of every kind, every refusal compared"),
    Run("RabbitMQ, taken over", ("test_migrate",), "", "`penstock migrate`"),
)


def _version(run: Run) -> str:
    if run.lock.endswith(".json"):
        lock = json.loads((ROOT / "tools" / run.lock).read_text())
        return str(lock["packages"][f"node_modules/{run.package or run.client}"]["version"])
    if run.lock:
        lines = (ROOT / "tools" / run.lock).read_text().splitlines()
        return next(line.split("==")[1].split()[0] for line in lines if line.startswith(f"{run.package}=="))
    if run.client.startswith("RabbitMQ") and shutil.which("rabbitmqctl"):
        asked = subprocess.run(["rabbitmqctl", "version"], capture_output=True, text=True, check=False)
        return asked.stdout.strip() or "as installed"
    try:
        return version(run.package) if run.package else ""
    except PackageNotFoundError:
        return ""


def differences() -> str:
    """The parts of the page that the walks say."""
    from conformance.test_amqplib import EXCUSED
    from conformance.test_differential import DIFFERENCES, LEFT_OUT
    from conformance.test_refusals import KNOWN
    from conformance.test_suites import SUITES

    rows = [f"| {one.what} | {one.why} |" for one in (*DIFFERENCES, *KNOWN)]
    suites = [*((one.name, one.excused) for one in SUITES), ("amqplib", EXCUSED)]
    excused = [f"| {suite} | `{name}` | {why} |" for suite, known in suites for name, why in known.items()]
    told = [f"| {what} | {how} |" for what, how in TOLD.items()]
    left = [f"| {what} | {why} |" for what, why in LEFT_OUT.items()]
    return "\n".join([
        "## Where answers differ", "", "| answer | here, and why |", "| --- | --- |", *rows, "",
        "## What is told otherwise", "", "| what | here |", "| --- | --- |", *told, "",
        "## What the random methods leave out", "", "| what | why |", "| --- | --- |", *left, "",
        "## What of their suites may fail", "", "| suite | test | why |", "| --- | --- | --- |", *excused, "",
        "What is missing altogether is in [rabbitmq.md](rabbitmq.md#what-is-not-there).", "",
    ])  # fmt: skip


def _in_its_file(name: str) -> str:
    """The name of a test without the folders of its file: "test_x.py::test[a/b]"."""
    file, colons, test = name.partition("::")
    return f"{Path(file).name}{colons}{test}"


def write(outcomes: Mapping[str, str], cases: Mapping[str, int]) -> bool:
    """The page of a run, by the names of tests; False, and nothing is written, where one failed or little was run."""
    rows = list[str]()
    for run in RUNS:
        names = [name for name in outcomes if _in_its_file(name).startswith(tuple(run.files))]
        found = {outcomes[name] for name in names}
        counts = [(cases.get(name, 1), outcomes[name] == "passed") for name in names]
        passed = sum(count for count, well in counts if well)
        if "failed" in found or not found or not (passed or run.lock):
            return False  # or all were skipped, as where there is no RabbitMQ
        every = sum(count for count, _ in counts)
        said = f"{passed} of {every}" if passed else "not run: its packages were not there"
        rows.append(f"| {run.client} | {_version(run)} | {run.what} | {said} |")
    table = ["| client | version | tests | passed |", "| --- | --- | --- | --- |", *rows, "", ""]
    PAGE.write_text(HEAD + "\n".join(table) + differences())
    return True
