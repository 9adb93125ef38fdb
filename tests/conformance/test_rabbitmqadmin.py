"""The command line that a server hands out, as it is fetched, and RabbitMQ's own, where that is installed."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.test_management import Managed
from forked import ran

pytestmark = pytest.mark.conformance

Run = Callable[..., str]

THEIRS = next(Path("/usr/lib/rabbitmq/lib").glob("*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin"), None)
there = THEIRS is not None and "PENSTOCK_CONFORMANCE" in os.environ
OURS_AND_THEIRS = ["ours", pytest.param("theirs", marks=pytest.mark.skipif(not there, reason="make conformance"))]


@pytest.fixture(scope="module", params=OURS_AND_THEIRS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder: Path = tmp_path_factory.mktemp("tool")
    with Managed(folder / "server") as server:
        if request.param == "theirs":
            assert THEIRS is not None
            (folder / "rabbitmqadmin").write_bytes(THEIRS.read_bytes())
        else:
            with urllib.request.urlopen(f"http://{server.ready['http']}/cli/rabbitmqadmin", timeout=20) as answer:
                (folder / "rabbitmqadmin").write_bytes(answer.read())
        host, _, port = server.ready["http"].rpartition(":")
        (folder / "servers.conf").write_text(f"[here]\nhostname = {host}\nport = {port}\nssl = False\n")

        def run(*words: str, status: int = 0, given: bytes = b"", where: bool = True) -> str:
            at = ["-H", host, "-P", port] if where else []
            made = ran(str(folder / "rabbitmqadmin"), *at, *words, given=given, cwd=folder)
            told = made.stdout + made.stderr
            assert made.returncode == status, told
            return told

        yield run


def test_a_day_with_it(run: Run) -> None:
    assert run("declare", "exchange", "name=shop", "type=topic") == "exchange declared\n"
    run("declare", "queue", "name=jobs", "durable=true", 'arguments={"x-max-length": 10}')
    run("declare", "queue", "name=feed", "queue_type=stream")
    run("declare", "binding", "source=shop", "destination=jobs", "routing_key=order.#")
    run("declare", "policy", "name=cap", "pattern=^jobs$", 'definition={"max-length": 5}', "apply-to=queues")
    assert run("publish", "exchange=shop", "routing_key=order.new", "payload=hello") == "Message published\n"
    assert "NOT routed" in run("publish", "exchange=shop", "routing_key=lost", "payload=hello")
    assert "hello" in run("get", "queue=jobs", "ackmode=ack_requeue_false")
    table = run("list", "queues", "name", "type")
    assert "| jobs | classic |" in table
    assert "| feed | stream  |" in table
    assert run("-f", "tsv", "list", "bindings", "source", "destination", "routing_key").splitlines()[-1] == (
        "shop\tjobs\torder.#"
    )
    run("export", "all.json")
    for thing in ("queue name=jobs", "queue name=feed", "exchange name=shop", "policy name=cap"):
        run("delete", *thing.split())
    assert json.loads(run("-f", "raw_json", "list", "queues")) == []
    run("import", "all.json")
    assert {one["name"] for one in json.loads(run("-f", "raw_json", "list", "queues"))} == {"jobs", "feed"}
    run("purge", "queue", "name=jobs")
    assert "rabbitmq_version" in run("show", "overview")


def test_people_and_limits_name_their_vhost(run: Run) -> None:
    run("declare", "vhost", "name=parcels")
    run("declare", "user", "name=shop", "password=secret", "tags=monitoring")
    run("declare", "permission", "vhost=parcels", "user=shop", "configure=^s", "write=.*", "read=.*")
    run("declare", "vhost_limit", "vhost=parcels", "name=max-queues", "value=1")
    rights = json.loads(run("-f", "raw_json", "list", "permissions"))
    assert [one["configure"] for one in rights if (one["user"], one["vhost"]) == ("shop", "parcels")] == ["^s"]
    assert "max-queues" in run("list", "vhost_limits")
    run("-u", "shop", "-p", "secret", "-V", "parcels", "declare", "queue", "name=sent")
    assert json.loads(run("-f", "raw_json", "-R", "-S", "name", "list", "vhosts", "name")) == [
        {"name": "parcels"},
        {"name": "/"},
    ]
    run("delete", "vhost_limit", "vhost=parcels", "name=max-queues")
    run("delete", "permission", "vhost=parcels", "user=shop")
    run("delete", "user", "name=shop")
    run("delete", "vhost", "name=parcels")


@pytest.mark.parametrize("run", ["ours"], indirect=True)  # theirs reads standard input as UTF-8
def test_bytes_come_and_go_as_they_are(run: Run, tmp_path: Path) -> None:
    run("declare", "queue", "name=blobs")
    run("publish", "routing_key=blobs", given=b"\xff\x00\xfe")
    run("get", "queue=blobs", "ackmode=ack_requeue_false", f"payload_file={tmp_path / 'one'}")
    assert (tmp_path / "one").read_bytes() == b"\xff\x00\xfe"
    run("delete", "queue", "name=blobs")


def test_a_file_or_an_address_names_the_server(run: Run) -> None:
    run("declare", "queue", "name=sent")
    assert "name: sent" in run("-c", "servers.conf", "-N", "here", "-f", "long", "list", "queues", "name", where=False)
    assert "Access refused" in run("-U", "http://nobody:wrong@localhost", "list", "queues", status=1)
    assert "declare permission " in run("help", "subcommands", where=False)
    assert "hostname = " in run("help", "config", where=False)
    assert run("--version", where=False).startswith("rabbitmqadmin 3")
    run("delete", "queue", "name=sent")


@pytest.mark.parametrize("run", ["ours"], indirect=True)
def test_what_is_wrong_is_told(run: Run) -> None:
    assert "404" in run("delete", "queue", "name=missing", status=1)
    assert "type is missing" in run("declare", "exchange", "name=x", status=1)
    assert "not one of name" in run("declare", "queue", "nam=x", status=1)
    assert "Access refused" in run("-u", "nobody", "list", "queues", status=1)
    assert "one of" in run("list", "things", status=1)
