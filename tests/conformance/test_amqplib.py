"""amqplib, of Node.js: an application of it, and its own suite, of the newest version whose package has tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from choices import WITH_PACKAGES
from live_server import LiveServer

HERE = Path(__file__).resolve()
MODULES = HERE.parents[2] / ".venv-node" / "node_modules"
"""Made by `make conformance`, where there is npm."""

PORT = HERE.with_name("amqplib_port.cjs")
SUITE = "amqplib-with-tests"
EXCUSED = {"serverProperties": "asks whether the server's name is RabbitMQ, and it has one of its own"}
FILES = ("channel_api", "callback_api", "connect")
"""Its tests that speak to a server; the others look at its own code."""

pytestmark = [
    pytest.mark.conformance,
    WITH_PACKAGES,
    pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm"),
]


def test_an_application_of_amqplib_runs_unmodified(server: LiveServer) -> None:
    ended = subprocess.run(
        ["node", str(HERE.with_name("amqplib_app.cjs")), f"amqp://guest:guest@127.0.0.1:{server.port}/"],
        env={**os.environ, "NODE_PATH": str(MODULES)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said == {"got": list(range(50)), "answer": "42", "cancelled": True, "code": 404}


@pytest.fixture
def on_ipv6(tmp_path: Path) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path / "ipv6")
    try:
        live.start("[::1]:0")
        yield live
    finally:
        live.__exit__(None, None, None)


def test_its_own_suite_passes(
    server: LiveServer, on_ipv6: LiveServer, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    ports = {"AMQP_PORT": str(server.port), "AMQP_PORT_IPV6": str(on_ipv6.port)}
    ended = subprocess.run(
        ["node", "--test", "--test-concurrency=1", "--test-timeout=120000", "--test-reporter=junit",
         *(f"test/{name}.test.js" for name in FILES)],
        cwd=shutil.copytree(MODULES / SUITE, tmp_path / "suite"), capture_output=True, text=True, timeout=900,
        check=False, env={**os.environ, **ports, "NODE_OPTIONS": f"--require={PORT}"},
    )  # fmt: skip
    cases = list(ElementTree.fromstring(ended.stdout).iter("testcase"))
    bad = {case.attrib["name"]: case.attrib["failure"] for case in cases if case.find("failure") is not None}
    assert bad.keys() <= EXCUSED.keys(), bad
    passed = sum(case.find("skipped") is None for case in cases) - len(bad)
    assert passed > 70, ended.stdout[-4000:]
    record_property("cases", passed)
