"""Commands that others wrote, as Debian has them: amqp-tools, and promtool, which checks pages of metrics."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from alert_table import EXAMPLES, FILES, play
from choices import WITH_PACKAGES
from live_server import LiveServer

DEBIAN = Path(__file__).resolve().parents[2] / ".venv-suites/debian"
"""Unpacked by `make conformance`."""

pytestmark = [pytest.mark.conformance, WITH_PACKAGES]


class Measured(LiveServer):
    """With pages of metrics."""

    http = "127.0.0.1:0"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    with Measured(tmp_path_factory.mktemp("measured")) as one:
        yield one


def command(name: str) -> str:
    """The one that is installed, or else unpacked."""
    found = shutil.which(name) or shutil.which(name, path=str(DEBIAN / "usr/bin"))
    if found is None:
        pytest.skip(f"there is no {name} here")
    return found


def run(name: str, *arguments: str, said: bytes = b"") -> str:
    """What it says; it must end well."""
    libraries = ":".join(str(path) for path in (DEBIAN / "usr/lib").glob("*-linux-*"))
    ended = subprocess.run(
        [command(name), *arguments], input=said, capture_output=True, timeout=60, check=False,
        env={**os.environ, "LD_LIBRARY_PATH": libraries},
    )  # fmt: skip
    assert ended.returncode == 0, (name, arguments, ended.stdout, ended.stderr)
    assert not ended.stderr, (name, arguments, ended.stderr)
    return ended.stdout.decode()


def test_amqp_tools(server: Measured) -> None:
    """librabbitmq, of C: a queue, messages with properties, one that is got, three that are consumed, the end."""
    there = ("--url", f"amqp://guest:guest@127.0.0.1:{server.port}", "--queue", "tools")
    to = (*there[:2], "--routing-key", "tools")
    assert run("amqp-declare-queue", *there, "--durable").strip() == "tools"
    run("amqp-publish", *to, "--persistent", "--content-type", "text/plain", said=b"from standard input")
    assert run("amqp-get", *there) == "from standard input"
    for number in range(3):
        run("amqp-publish", *to, "--body", f"<{number}>")
    assert run("amqp-consume", *there, "--count", "3", "--prefetch-count", "1", "cat") == "<0><1><2>"
    run("amqp-publish", *to, "--body", "left")
    assert run("amqp-delete-queue", *there).strip() == "1"


@pytest.mark.parametrize("page", ["metrics", "metrics/per-object", "metrics/detailed?family=queue_coarse_metrics"])
def test_promtool(server: Measured, channel: BlockingChannel, page: str) -> None:
    """Nothing that it would complain of, of a server that has worked."""
    channel.queue_declare("measured", durable=True)
    channel.confirm_delivery()
    for number in range(5):
        channel.basic_publish("", "measured", b"%d" % number)
    for _ in range(3):
        tag = channel.basic_get("measured")[0]
        assert tag is not None
        channel.basic_ack(tag.delivery_tag)
    asked = Request(f"http://{server.ready['http']}/{page}", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    with urlopen(asked, timeout=60) as answer:
        told = answer.read()
    assert b"# TYPE" in told
    assert run("promtool", "check", "metrics", said=told) == ""


@pytest.mark.parametrize("file", FILES)
def test_promtool_plays_each_rule_for_alerts(file: str, tmp_path: Path) -> None:
    """It fires when it should, and is quiet when it should be."""
    assert "SUCCESS" in run("promtool", "check", "rules", str(EXAMPLES / file))
    assert "SUCCESS" in run("promtool", "test", "rules", str(play(file, tmp_path)))
