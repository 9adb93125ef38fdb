"""The suites that clients of others come with, as they are, against a real server: py-amqp, kombu, dramatiq, Celery,
aiormq, aio-pika and pika.

They come with the sources that `tools/suites` fetches.  A test that may fail is named here, with its reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from choices import WITH_PACKAGES
from tls_lab import Files, TlsServer

HERE = Path(__file__).resolve()
PLACE = HERE.parents[2] / ".venv-suites"
"""Made by `make conformance`."""

LIMIT_S = 1800

AGAIN = 2
"""How often what failed is run once more: many of their tests see what a worker did in a tenth of a second."""

pytestmark = [pytest.mark.conformance, WITH_PACKAGES]


class Suite(NamedTuple):
    """One client's."""

    name: str  # of its folder
    tests: tuple[str, ...]  # files, from its folder
    environ: dict[str, str]  # `{amqp}` and `{amqps}` are ports
    excused: dict[str, str]  # names of tests, or of their classes, that may fail, and why
    options: tuple[str, ...] = ()


CONTAINER = {"AMQP_PORT": "{amqp}", "AMQPS_PORT": "{amqps}"}
STRANGER = "asks badssl.com, a machine of others"
SAME = "fails on RabbitMQ the same way"
HURRY = "fails on RabbitMQ as well, now and then: how a connection ended and why are heard in either order"
LOGS = "fails on RabbitMQ the same way: it looks for lines of a log that is off"

SUITES = (
    Suite(
        "amqp",
        ("t/integration",),
        {"RABBITMQ_HOST": "localhost", "RABBITMQ_5672_TCP": "{amqp}", "RABBITMQ_5671_TCP": "{amqps}"},
        {"test_tls_default_certs": STRANGER, "test_tls_no_default_certs_fails": STRANGER},
    ),
    Suite(
        "kombu",
        ("t/integration/test_py_amqp.py",),
        {"RABBITMQ_HOST": "localhost", "RABBITMQ_5672_TCP": "{amqp}"},
        {},
    ),
    Suite("dramatiq", ("tests/test_rabbitmq.py",), {"RABBITMQ_PORT": "{amqp}"}, {}, ("-o", "addopts=")),
    Suite(
        "celery",
        tuple(f"t/integration/test_{name}.py" for name in ("tasks", "inspect", "serialization", "connection_recovery")),
        {"TEST_BROKER": "pyamqp://guest:guest@localhost:{amqp}//", "TEST_BACKEND": "rpc://"},
        {
            "test_retry": "fails on RabbitMQ the same way: results over `rpc://` do not tell of a retry in time",
            "test_task_success": LOGS,
            "test_task_failed": LOGS,
            "test_replaced_task_nesting_level_0": "clears its flag after it sent the task, which may be done by then",
        },
        ("-p", "celery.contrib.pytest"),
    ),
    Suite(
        "aiormq",
        ("tests",),
        CONTAINER,
        {"test_closing_waiter_cancellation": HURRY, "test_connection_close_during_publish_drain": HURRY},
        ("-p", "tests.docker_client"),
    ),
    Suite(
        "aio-pika",
        ("tests",),
        CONTAINER,
        {
            "test_restore_topology_and_consumers": "two of its five cases stop the program in their broker's container",
            "test_pool_consumer_survives_broker_restart": "stops the container of its broker",
            "test_leak_unclosed_channel": SAME,
            "test_create_channels_during_reconnect": SAME,
        },
    ),
    Suite(
        "pika",
        ("tests/acceptance",),
        {},
        {"TestGetaddrinfoWWWGoogleDotComPort80": "asks www.google.com, a machine of others"},
        ("-o", "addopts="),
    ),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    folder = tmp_path_factory.mktemp("suites")
    # As the broker of aiormq's image is set up: the suites publish 20 MB.
    with TlsServer(folder / "server", Files(folder / "tls"), rest='[amqp]\nmessage_max = "128MiB"\n') as one:
        yield one


def _prepare(folder: Path, files: Files, port: int) -> None:
    """What the sources lack: py-amqp's certificates, dramatiq's fixtures, a broker that is no container, a port."""
    if folder.name in {"aiormq", "aio-pika"}:
        (folder / "tests/docker_client.py").write_bytes(HERE.with_name("containers_fixture.py").read_bytes())
    if folder.name == "aiormq":
        certificate, key = files.client("guest")
        for name, made in {"ca.pem": files.ca, "client.pem": certificate, "client.key": key}.items():
            (folder / "tests/certs" / name).write_bytes(Path(made).read_bytes())
    if folder.name == "pika":
        for name in ("acceptance/blocking_adapter_test.py", "base/async_test_base.py"):
            file = folder / "tests" / name
            file.write_text(re.sub(r"\b5672\b", str(port), file.read_text()))
    if folder.name == "amqp":
        certificates = folder / "t/certs"
        certificates.mkdir(exist_ok=True)
        certificate, key = files.client("guest")
        wrong = files.client("other")[1]
        for name, made in {
            "ca_certificate": files.ca, "client_certificate": certificate, "client_key": key,
            "client_certificate_broken": certificate, "client_key_broken": wrong,
        }.items():  # fmt: skip
            (certificates / f"{name}.pem").write_bytes(Path(made).read_bytes())
    if folder.name == "dramatiq":
        (folder / "tests/__init__.py").touch()
        for name in ("conftest", "common"):
            (folder / f"tests/{name}.py").write_bytes(HERE.with_name("dramatiq_fixtures.py").read_bytes())


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_suite_of_others_passes(
    suite: Suite, server: TlsServer, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    source = PLACE / "sources" / suite.name
    if not source.exists():
        pytest.skip("tools/suites could not reach its sources")
    folder = shutil.copytree(source, tmp_path / suite.name, ignore=shutil.ignore_patterns(".git"))
    _prepare(folder, server.files, server.port)
    ports = {"amqp": server.port, "amqps": server.port_of("amqps")}
    report = tmp_path / "report.xml"
    command = [str(PLACE / "bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--timeout"]
    command += ["300", f"--junitxml={report}", *suite.options, *suite.tests]
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "PENSTOCK"))},
        "PATH": f"{PLACE / 'bin'}:{os.environ['PATH']}",
        **{name: value.format(**ports) for name, value in suite.environ.items()},
    }

    def ran(*more: str) -> tuple[set[str], int, str]:
        """Names of those that failed and have no excuse, how many cases passed, and what was said."""
        ended = subprocess.run(
            [*command, *more], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environ
        )
        said = f"{ended.stdout[-6000:]}{ended.stderr[-2000:]}"
        assert ended.returncode in {0, 1}, said
        cases = [case for case in ElementTree.parse(report).getroot().iter("testcase") if case.find("skipped") is None]
        bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
        strange = {case.attrib["name"].partition("[")[0] for case in bad if not suite.excused.keys() & _names(case)}
        return strange, len(cases) - len(bad), said

    failed, passed, said = ran()
    for _ in range(AGAIN):
        if failed:
            failed &= ran("-k", " or ".join(sorted(failed)))[0]
    assert not failed, said
    assert passed > 20, said
    record_property("cases", passed)


def _names(case: ElementTree.Element) -> set[str]:
    """The test's, without parameters, and its class's."""
    return {case.attrib["name"].partition("[")[0], case.attrib["classname"].rpartition(".")[2]}
