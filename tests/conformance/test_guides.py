"""The code of the guides runs as it stands, but for the addresses, and prints what the pages say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forked import ran
from page_lab import blocks, command, page, run
from penstock import connect
from penstock.testing.process import ServerProcess

PRINTS = {
    "queues.md": [
        "{'id': 1, 'region': 'north', 'total': 9.5} 1 {}",
        "{'id': 2, 'region': 'south', 'total': 20.0} 1 {'source': 'web'}",
        "{'id': 2, 'region': 'south', 'total': 20.0}",
        "1 {",
        "{'id': 1, 'region': 'north', 'total': 9.5}",
    ],
    "delivery.md": ["analytics [1, 3]", "risk [1, 2]", "0"],
    "limits.md": ["three", "[1, 2, 4]"],
    "retries.md": ["1", "0", "{'id': 1} no such address", "{", "1"],
    "groups.md": ["duplicate", "a b", "1"],
    "settling.md": ["Reading(sensor='a', celsius=20.5)", "2 1", "parcel 1", "0 1"],
    "query.md": ["region", "north", "south", "2"],
    "replay.md": ["'region': 'north'", "'region': 'south'", "bill 1", "bill 2"],
    "message-types.md": ["a-1"],
    "flight.md": [
        "2",
        "True",
        "[b'one', b'two']",
        "['subscribed']",
        "[(b'one', 1), (b'two', 1)]",
        "{'answer': 1, 'affected': 2, 'stale': 0}",
    ],
    "rabbitmq.md": ["order.new b'{\"id\": 1}'", "b'hello'", " b'{}'"],
}
"""What each guide prints, line by line: the line itself, or a part of it."""


ORDERS = [{"id": 1, "region": "north", "total": 9.5}, {"id": 2, "region": "south", "total": 20.0}]
"""What is there before the guides that only look."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "server") as one:
        yield one


@pytest.mark.parametrize("name", PRINTS)
def test_a_guide_does_what_it_says(
    name: str,
    server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if name in ("query.md", "replay.md"):
        with connect(server.flight_url) as client:
            client.declare("to-ship", underlying_topic="orders")
            for order in ORDERS:
                client.publish("orders", order)
    programs = blocks(page(name), "python")
    for written, real in {
        "amqp://guest:guest@localhost": server.amqp_url,
        "penstock://localhost": server.flight_url,
        "grpc://localhost:8815": f"grpc://{server.flight_url.rpartition('@')[2]}",
    }.items():
        programs = [program.replace(written, real) for program in programs]
    run(programs, {}, name)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(PRINTS[name]), lines
    for line, part in zip(lines, PRINTS[name], strict=True):
        assert part in line


def test_the_guide_to_tests_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, real_clients, with_pytest, expressions = blocks(page("testing.md"), "python")
    run([first, real_clients, expressions], {}, "testing.md")
    assert capsys.readouterr().out.splitlines() == ["b'{\"id\": 1}' 1 False", "2 True", "1", "1", "[True, None]"]
    jobs = tmp_path / "test_jobs.py"
    jobs.write_text(with_pytest)
    monkeypatch.chdir(tmp_path)
    program = str(Path(pytest.__file__).with_name("__main__.py"))
    done = ran(program, "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(jobs), seconds=120)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


COMMANDS = {"cli.md": 13, "limits.md": 5, "backup.md": 5}
"""Pages whose commands are run as they stand, and how many these are."""
ASKS = ("connection close",)
"""What asks before it does something, and ends with 2 where nobody is there to ask."""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_of_a_guide_are_run(
    name: str, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with connect(server.flight_url) as client:
        for queue in ("jobs", "orders", "to-ship"):
            client.declare(queue)
            lsn = max(client.publish(queue, order).lsn or 0 for order in ORDERS)
    places = {
        "./data": str(server.data), "/backup/2026-11-20": f"{tmp_path}/backup", "1042": str(lsn),
        "/var/lib/penstock": f"{tmp_path}/restored", "| jq .body": "",
    }  # fmt: skip
    lines = [line for block in blocks(page(name), "sh") for line in block.splitlines() if "penstock serve" not in line]
    assert len(lines) >= COMMANDS[name]
    for line in lines:
        if ("--data ./data" in line and "backup" in line) or "--members" in line:
            continue  # for a folder that no server uses, and for those of a cluster
        real = line
        for written, here in places.items():
            real = real.replace(written, here)
        done = command(real, server.flight_url)
        assert done.returncode == (2 if any(one in line for one in ASKS) else 0), f"{line}\n{done.stdout}{done.stderr}"
