"""What a process loads: an empty server and a replay in the bulk child do without what they do not need."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from bulk_lab import Writer
from penstock.history.view import listing
from penstock.wire.flight.commands import Replay

SOURCE = Path(__file__).resolve().parents[2] / "src"

SERVER = """
import os, sys, threading, time

def look():
    while not os.path.exists(sys.argv[-1]):
        time.sleep(0.01)
    print(*sys.modules, flush=True)
    os._exit(0)

threading.Thread(target=look, daemon=True).start()
from penstock.cli.main import main
main()
"""
"""`penstock ARGUMENTS --ready-file FILE`, whatever it does before the doors are open."""

NOT_IN_AN_EMPTY_SERVER = (
    "cryptography", "duckdb", "lark", "pandas", "prometheus_client", "pyarrow.compute", "pyspark", "rich", "starlette",
    "uvicorn",
    "penstock.client", "penstock.config.foreign.amps_actions", "penstock.config.foreign.amps_elements",
    "penstock.config.foreign.amps_queues", "penstock.config.foreign.ampsconfig",
    "penstock.config.foreign.artemis", "penstock.config.foreign.rabbitmq",
    "penstock.core.audit_controls", "penstock.core.audit_histories", "penstock.core.audit_log",
    "penstock.expr.scan", "penstock.log.simdisk",
    "penstock.log.verify", "penstock.server.bulk.backup", "penstock.server.bulk.child", "penstock.server.http",
    "penstock.server.sockets.tls", "penstock.spark", "penstock.testing", "penstock.wire.http",
)  # fmt: skip

SETTINGS = """
[[queue]]
vhost = "/"
name = "orders"
max_length = 10
filter = "/price > 3"

[[topic]]
name = "ticks"
key = ["/id"]
"""

COMMANDS = """
import contextlib, io, sys
from penstock.cli.main import main

for words in ("audit", "log show", "log ls", "log verify"):
    sys.argv = ["penstock", *words.split(), "--data", sys.argv[-1]]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main()
    assert said.getvalue() or words == "audit", words
    print(words.replace(" ", "_"), *sys.modules)
"""
"""`penstock WORDS --data FOLDER`, one after the other, of which nothing is shown but what each has loaded."""

READ = """
import sys
from penstock.cli.serving import read_settings

read_settings(sys.argv[1], {"server.data": sys.argv[2]})
print(*sys.modules)
"""

CHILD = """
import json, socket, sys
from penstock.server.base.loading import do_without_pandas

do_without_pandas()
from penstock.server.bulk import requests
from penstock.server.bulk.child import Work
from penstock.server.doors.line import Kind, Line

ours, theirs = socket.socketpair()
line = Line(ours)
kind, name = sys.argv[3:]
line.send(Kind.CALL, 0, *requests.packed({kind: name}, json.loads(sys.argv[2])))
Work(sys.argv[1]).serve(theirs)
while (frame := line.receive(requests.ANSWERS)).kind is not Kind.DONE:
    assert frame.kind is not Kind.FAILED, bytes(frame.payload)
print(*requests.unpacked(frame.payload)[1].values(), *sys.modules)
"""

NOT_IN_A_REPLAY = (
    "asyncio", "lark", "pandas", "pyarrow.compute", "pyarrow.flight", "pydantic", "typer",
    "penstock.client", "penstock.config", "penstock.core", "penstock.expr.compiler", "penstock.expr.filter",
    "penstock.expr.grammar", "penstock.log.log", "penstock.log.recover",
    "penstock.log.writer", "penstock.memory", "penstock.server.app", "penstock.server.engine",
    "penstock.server.flight.calls", "penstock.server.flight.door", "penstock.server.process", "penstock.wire.amqp",
    "penstock.wire.http",
)  # fmt: skip

NOT_IN_AN_INDEX = (
    *NOT_IN_A_REPLAY, "penstock.expr", "penstock.server.flight", "penstock.wire",
)  # fmt: skip


def said(code: str, *arguments: str) -> list[str]:
    """The words that a new interpreter prints."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n{code}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


ANYWHERE = "penstock.client"
"""The package without its parts, which says where they are: with `penstock` itself comes no more of it."""


def unwanted(loaded: list[str], names: tuple[str, ...]) -> list[str]:
    return [one for one in loaded if one != ANYWHERE and any(f"{one}.".startswith(f"{name}.") for name in names)]


def test_an_empty_server_is_ready_without_what_it_does_not_need(tmp_path: Path) -> None:
    doors = ("--amqp", "127.0.0.1:0", "--flight", "127.0.0.1:0", "--http", "off")
    loaded = said(SERVER, "serve", "--data", f"{tmp_path}/data", *doors, "--ready-file", f"{tmp_path}/ready")
    assert "penstock.server.flight.door" in loaded
    assert unwanted(loaded, NOT_IN_AN_EMPTY_SERVER) == []


def test_settings_are_read_before_arrow_is_there_whose_pool_they_bound(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(SETTINGS)
    loaded = said(READ, str(file), str(tmp_path))
    assert "penstock.config.load" in loaded
    assert unwanted(loaded, ("pyarrow", "penstock.server.process", "grpc")) == []


def test_a_door_of_amqp_is_there_without_arrow_and_numpy() -> None:
    loaded = said("import sys, penstock.server.amqp.front; print(*sys.modules)")
    assert "penstock.wire.amqp.machine" in loaded
    assert unwanted(loaded, ("pyarrow", "numpy", "pydantic", "cryptography", "penstock.core", "penstock.log")) == []


def test_a_server_that_waits_beside_its_member_loads_nothing_of_that() -> None:
    loaded = said("import sys, penstock.server.cluster.leading; print(*sys.modules)")
    assert "penstock.server.cluster.packets" in loaded
    names = ("penstock.log.replica", *(f"penstock.server.cluster.{one}" for one in ("member", "process", "speech")))
    assert unwanted(loaded, names) == []


def test_a_replay_in_the_child_loads_the_reader_of_the_log_and_no_more(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(30)
    values = {
        "command": asdict(Replay("t1", columns=("lsn", "topic", "time", "body"))),
        "start": 0,
        "end": writer.lsn,
        "log": listing(writer.log).plain(),
    }
    writer.log.close()
    rows, *loaded = said(CHILD, str(tmp_path), json.dumps(values), "read", "replay")
    assert int(rows) == 100
    assert "penstock.log.reader" in loaded
    assert unwanted(loaded, NOT_IN_A_REPLAY) == []


def test_an_index_is_made_in_the_child_without_all_functions_of_arrow(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(60, size=200)
    [first] = [one.first for one in writer.log.segments()[:1]]
    assert writer.log.segments()[0].closed
    writer.log.close()
    size, *loaded = said(CHILD, str(tmp_path), json.dumps({"first": first}), "job", "index")
    assert int(size) > 0
    assert "penstock.log.name_index" in loaded
    assert unwanted(loaded, NOT_IN_AN_INDEX) == []


def test_commands_that_read_a_log_do_without_pandas(tmp_path: Path) -> None:
    """pyarrow looks for it when an array is made of a list: as much again as all else that they load."""
    writer = Writer(tmp_path)
    writer.write(3)
    writer.log.close()
    loaded = said(COMMANDS, str(tmp_path))
    assert {"audit", "log_show", "log_ls", "log_verify", "pyarrow"} <= set(loaded)
    assert "pandas" not in loaded


def test_dataclasses_are_those_whose_methods_are_made_when_needed() -> None:
    found = list[str]()
    for file in sorted((SOURCE / "penstock").rglob("*.py")):
        if file == SOURCE / "penstock" / "records" / "dataclass.py":
            continue
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "dataclasses" in text else ():
            if not isinstance(node, ast.ImportFrom) or node.module != "dataclasses":
                continue
            if any(one.name == "dataclass" for one in node.names):
                found.append(f"{file.relative_to(SOURCE)}:{node.lineno}")
    assert not found, f"import dataclass from penstock.records.dataclass: {found}"


@pytest.mark.parametrize(("module", "without"), [
    ("penstock.server.flight.front, penstock.server.flight.grpc_server", ["_hashlib", "_ssl", "asyncio", "pandas"]),
    ("penstock.server.http.front", ["numpy", "pyarrow", "starlette", "anyio", "penstock.core", "penstock.expr", "re2"]),
    ("penstock.server.amqp.front", ["numpy", "pyarrow", "uvicorn", "penstock.core", "penstock.expr", "re2"]),
    ("penstock.server.http.door", ["prometheus_client", "uvicorn", "h11"]),
])  # fmt: skip
def test_a_process_that_takes_clients_has_its_own_needs_alone(module: str, without: list[str]) -> None:
    """Each of these is some MiB at rest: OpenSSL 4, numpy 20."""
    program = f"from penstock.server.base.loading import do_without_pandas as less; less(); import sys, {module}"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; print(*sys.modules)"], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert not set(without) & set(done.stdout.split())
