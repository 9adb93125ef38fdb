"""The commands of a first hour, each as a process of its own, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from forked import penstock as command
from penstock.testing.process import ServerProcess
from waiting import eventually

pytestmark = pytest.mark.conformance


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("cli") / "data") as process:
        yield process


def penstock(*arguments: str, given: str = "", status: int = 0) -> str:
    done = command(*arguments, given=given)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_a_first_hour(server: ServerProcess) -> None:
    url = ("--url", server.flight_url)
    penstock("queue", "declare", "to-ship", "--set", "underlying_topic=orders", "--set", "lease_period=30s", *url)
    penstock("publish", "orders", *url, given='{"id": 1, "total": 9.5}\n{"id": 2, "total": 2}\n')

    table = penstock("queue", "list", *url)
    assert "to-ship" in table
    [row] = json.loads(penstock("queue", "list", "--json", *url))
    assert (row["queue"], row["ready"]) == ("to-ship", 2)

    assert penstock("queue", "peek", "to-ship", *url).count("total") == 2
    taken = penstock("consume", "to-ship", "--filter", "/total > 5", "--count", "1", "--ack", *url)
    assert json.loads(taken) == {"id": 1, "total": 9.5}
    assert json.loads(penstock("queue", "show", "to-ship", "--json", *url))["ready"] == 1

    data = str(server.data)
    assert "every checksum is right" in penstock("log", "verify", "--data", data)
    assert "publish" in penstock("log", "show", "--data", data)

    def listed(*where: str) -> list[tuple[str, int]]:
        return [(file["name"], file["rows"]) for file in json.loads(penstock("log", "ls", *where, "--json"))]

    eventually(lambda: listed(*url) == listed("--data", data))  # the server may write a record between the two
    assert "publish" in penstock("log", "show", *url, "--to", "50")
    assert "every guarantee held" in penstock("audit", "--data", data)


def test_a_queue_is_changed_emptied_and_deleted(server: ServerProcess) -> None:
    url = ("--url", server.flight_url)
    penstock("queue", "declare", "worked", "--set", "lease_period=30s", "--set", "filter=/n > 0", *url)
    penstock("queue", "alter", "worked", "--set", "max_deliveries=3", "--unset", "filter", *url)
    penstock("publish", "worked", *url, given='{"n": 0}\n{"n": 1}\n')  # without the filter both are in
    for wrong, status in (
        (("alter", "worked"), 2),
        (("alter", "worked", "--set", "lease_period=30"), 2),
        (("alter", "worked", "--unset", "filtre"), 2),
        (("alter", "nowhere", "--set", "max_deliveries=3"), 1),
        (("purge", "worked"), 2),  # nobody is there to ask
        (("delete", "worked"), 2),
        (("delete", "nowhere", "--yes"), 1),
    ):
        penstock("queue", *wrong, *url, status=status)
    assert json.loads(penstock("queue", "show", "worked", "--json", *url))["ready"] == 2
    penstock("queue", "declare", "other", *url)
    told = penstock("queue", "move", "worked", "--to", "other", "--dry", *url)
    assert told == "2 messages of queue worked would be moved: 2 to other\n"
    assert json.loads(penstock("queue", "show", "worked", "--json", *url))["ready"] == 2
    assert penstock("queue", "purge", "worked", "--yes", *url) == "2 messages removed from queue worked\n"
    assert json.loads(penstock("queue", "purge", "worked", "--yes", "--json", *url)) == {
        "purged": "worked",
        "messages": 0,
    }
    assert penstock("queue", "delete", "worked", "--yes", *url) == "queue worked deleted\n"
    penstock("queue", "show", "worked", *url, status=1)


def test_no_such_queue_is_the_servers_no(server: ServerProcess) -> None:
    penstock("queue", "show", "none", "--url", server.flight_url, status=1)


def test_nobody_there_is_status_five() -> None:
    penstock("queue", "list", "--url", "penstock://127.0.0.1:1", status=5)


def test_a_folder_in_use_is_status_three(server: ServerProcess, tmp_path: Path) -> None:
    penstock("serve", "--data", str(server.data), "--amqp", "off", "--http", "127.0.0.1:0", "--flight", "off", status=3)
